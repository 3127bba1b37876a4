//! NVMe: Sanitize, and Format NVM with a secure erase (NVM Express base specification 2.0, 5.24 and 5.14).
//!
//! Sanitize erases everything behind the controller, and some controllers format all namespaces at once: neither is
//! done where the controller has more than the one namespace that was ordered to be wiped.
use std::time::Duration;

use super::{Course, Drive, Trouble};
use crate::proto::WipeMethod;
use crate::sys::passthrough::Admin;

const GET_LOG_PAGE: u8 = 0x02;
const IDENTIFY: u8 = 0x06;
const FORMAT: u8 = 0x80;
const SANITIZE: u8 = 0x84;
const ALL: u32 = u32::MAX;
/// What Identify is asked for.
const NAMESPACE: u32 = 0;
const CONTROLLER: u32 = 1;
const ACTIVE: u32 = 2;
const ALLOCATED: u32 = 0x10;
/// Bytes of Identify, and of the sanitize log.
const PAGE: usize = 4096;
const LOG: usize = 512;
/// For one short command; the kernel resets a controller that takes longer.
const SHORT: Duration = Duration::from_secs(60);
/// Bounds of a sanitize's time, whatever the controller estimates.
const LEAST: Duration = Duration::from_secs(600);
const MOST: Duration = Duration::from_secs(24 * 3600);

/// The actions of Sanitize.
const EXIT_FAILURE: u32 = 1;
const BLOCK: u32 = 2;
const OVERWRITE: u32 = 3;
const CRYPTO: u32 = 4;
/// It may fail without making the disk useless: the next method shall have a chance.
const UNRESTRICTED: u32 = 1 << 3;
/// Overwrite in one pass.
const ONE_PASS: u32 = 1 << 4;

/// How a sanitize stands (log page 81h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Never,
    Done,
    /// In 65,536ths.
    Running(u16),
    Failed,
}

/// What the sanitize log says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    pub state: State,
    /// CDW10 of the command it speaks of.
    pub command: u32,
    /// How long overwriting, erasing blocks and changing the key take, in seconds.
    pub estimates: [Option<u32>; 3],
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..).and_then(<[u8]>::first_chunk);
    word.map_or(0, |word| u32::from_le_bytes(*word))
}

fn half(bytes: &[u8], at: usize) -> u16 {
    let half = bytes.get(at..).and_then(<[u8]>::first_chunk);
    half.map_or(0, |half| u16::from_le_bytes(*half))
}

/// Reads the sanitize log.
pub fn status(log: &[u8]) -> Status {
    let estimate = |at| match word(log, at) {
        0 | u32::MAX => None,
        seconds => Some(seconds),
    };
    Status {
        state: match half(log, 2) & 7 {
            1 | 4 => State::Done,
            2 => State::Running(half(log, 0)),
            3 => State::Failed,
            _ => State::Never,
        },
        command: word(log, 4),
        estimates: [estimate(8), estimate(12), estimate(16)],
    }
}

/// What a controller can do, and how the namespace is formatted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    pub sanitize: [bool; 3],
    pub format: bool,
    pub format_crypto: bool,
    /// A format, or its erasure, is for all namespaces.
    pub format_all: bool,
}

/// Reads Identify Controller: crypto, block, overwrite.
pub fn abilities(controller: &[u8]) -> Abilities {
    let (sanitize, fna) = (
        word(controller, 328),
        controller.get(524).copied().unwrap_or(0),
    );
    Abilities {
        sanitize: [0, 1, 2].map(|bit| sanitize >> bit & 1 == 1),
        format: half(controller, 256) >> 1 & 1 == 1,
        format_crypto: fna & 4 != 0,
        format_all: fna & 3 != 0,
    }
}

/// CDW10 of a format that erases and leaves the namespace as it is formatted now; `erase`: 1 user data, 2 the key.
pub fn format_word(namespace: &[u8], erase: u32) -> u32 {
    let flbas = u32::from(namespace.get(26).copied().unwrap_or(0));
    let dps = u32::from(namespace.get(29).copied().unwrap_or(0));
    let format = flbas & 15 | (flbas >> 5 & 3) << 12;
    let metadata = (flbas >> 4 & 1) << 4;
    let protection = (dps & 7) << 5 | (dps >> 3 & 1) << 8;
    format | metadata | protection | erase << 9
}

/// Whether a list of namespaces holds this one alone.
pub fn is_alone(list: &[u8], namespace: u32) -> bool {
    word(list, 0) == namespace && word(list, 4) == 0
}

fn identify(drive: &dyn Drive, what: u32, nsid: u32) -> Option<Vec<u8>> {
    let mut page = vec![0; PAGE];
    let admin = Admin {
        opcode: IDENTIFY,
        nsid,
        cdw10: what,
        ..Admin::default()
    };
    let done = drive.nvme(admin, &mut page, SHORT);
    matches!(done, Ok(0)).then_some(page)
}

fn log(drive: &dyn Drive) -> Result<Vec<u8>, Trouble> {
    let mut page = vec![0; LOG];
    let admin = Admin {
        opcode: GET_LOG_PAGE,
        nsid: ALL,
        cdw10: ((LOG as u32 / 4) - 1) << 16 | 0x81,
        ..Admin::default()
    };
    match drive.nvme(admin, &mut page, SHORT) {
        Ok(0) => Ok(page),
        Ok(status) => Err(refused("its sanitize log cannot be read", status)),
        Err(error) => Err(Trouble::io("its sanitize log cannot be read", &error)),
    }
}

fn refused(what: &str, status: u16) -> Trouble {
    Trouble::new(
        "DeviceRefused",
        &[what, ": status ", &format!("{status:#x}")],
    )
}

/// What of these methods the disk has.
pub fn methods(drive: &dyn Drive) -> Vec<WipeMethod> {
    let mut methods = Vec::new();
    let (Some(controller), Ok(nsid)) = (identify(drive, CONTROLLER, 0), drive.namespace()) else {
        return methods;
    };
    let abilities = abilities(&controller);
    let alone = |list: Option<Vec<u8>>| list.is_some_and(|list| is_alone(&list, nsid));
    // Where namespaces can be managed, some may be there that this host does not see.
    let manages = half(&controller, 256) >> 3 & 1 == 1;
    let alone =
        alone(identify(drive, ACTIVE, 0)) && (!manages || alone(identify(drive, ALLOCATED, 0)));
    let [crypto, block, overwrite] = abilities.sanitize.map(|has| has && alone);
    let format = abilities.format && (alone || !abilities.format_all);
    for (has, method) in [
        (crypto, WipeMethod::NVME_SANITIZE_CRYPTO),
        (block, WipeMethod::NVME_SANITIZE_BLOCK),
        (
            format && abilities.format_crypto,
            WipeMethod::NVME_FORMAT_CRYPTO,
        ),
        (format, WipeMethod::NVME_FORMAT_ERASE),
        (overwrite, WipeMethod::NVME_SANITIZE_OVERWRITE),
    ] {
        if has {
            methods.push(method);
        }
    }
    methods
}

/// Waits for a sanitize that is under way; which it was.
///
/// # Errors
/// It failed, or took too long.
pub fn await_running(course: &mut Course<'_>) -> Result<Option<WipeMethod>, Trouble> {
    // A controller without sanitize has no such log.
    let Ok(page) = log(course.drive) else {
        return Ok(None);
    };
    let found = status(&page);
    let State::Running(_) = found.state else {
        return Ok(None);
    };
    let method = match found.command & 7 {
        CRYPTO => WipeMethod::NVME_SANITIZE_CRYPTO,
        OVERWRITE => WipeMethod::NVME_SANITIZE_OVERWRITE,
        _ => WipeMethod::NVME_SANITIZE_BLOCK,
    };
    course.attempt.method = method;
    wait(course, found.command, limit(&found, found.command))?;
    Ok(Some(method))
}

fn limit(status: &Status, command: u32) -> Duration {
    let [overwrite, block, crypto] = status.estimates;
    let estimate = match command & 7 {
        OVERWRITE => overwrite,
        CRYPTO => crypto,
        _ => block,
    };
    match estimate {
        Some(seconds) => Duration::from_secs(u64::from(seconds) * 2).clamp(LEAST, MOST),
        None => MOST,
    }
}

/// Waits until the sanitize of `command` is over.
fn wait(course: &mut Course<'_>, command: u32, limit: Duration) -> Result<(), Trouble> {
    course.until(limit, |course| {
        let page = log(course.drive)?;
        course.log("nvme-sanitize-log", &page);
        let status = status(&page);
        match status.state {
            State::Running(part) => {
                course.say((u32::from(part) * 100) >> 16);
                Ok(None)
            }
            _ if status.command != command => Err(Trouble::new(
                "DeviceLied",
                &["its sanitize log does not speak of the sanitize that was begun"],
            )),
            State::Done => Ok(Some(())),
            State::Failed => Err(Trouble::new("DeviceFailed", &["the sanitize failed"])),
            State::Never => Err(Trouble::new(
                "DeviceLied",
                &["its sanitize log knows of no sanitize"],
            )),
        }
    })
}

fn begin(drive: &dyn Drive, command: u32) -> Result<(), Trouble> {
    let admin = Admin {
        opcode: SANITIZE,
        cdw10: command,
        ..Admin::default()
    };
    match drive.nvme(admin, &mut [], SHORT) {
        Ok(0) => Ok(()),
        Ok(status) => Err(refused("it does not sanitize", status)),
        Err(error) => Err(Trouble::io("it does not sanitize", &error)),
    }
}

/// Runs one of [`methods`].
///
/// # Errors
/// It did not come to its end.
pub fn run(course: &mut Course<'_>) -> Result<(), Trouble> {
    let action = match course.attempt.method {
        WipeMethod::NVME_SANITIZE_CRYPTO => CRYPTO,
        WipeMethod::NVME_SANITIZE_BLOCK => BLOCK,
        WipeMethod::NVME_SANITIZE_OVERWRITE => OVERWRITE | ONE_PASS,
        WipeMethod::NVME_FORMAT_CRYPTO => return format(course, 2),
        _ => return format(course, 1),
    };
    let command = action | UNRESTRICTED;
    let limit = limit(&status(&log(course.drive)?), command);
    begin(course.drive, command)?;
    let ended = wait(course, command, limit);
    if ended
        .as_ref()
        .is_err_and(|trouble| trouble.reason == "DeviceFailed")
    {
        // Until then it refuses everything else.
        let _ = begin(course.drive, EXIT_FAILURE);
    }
    ended
}

fn format(course: &mut Course<'_>, erase: u32) -> Result<(), Trouble> {
    let drive = course.drive;
    let nsid = drive
        .namespace()
        .map_err(|error| Trouble::io("its namespace is not known", &error))?;
    let namespace = identify(drive, NAMESPACE, nsid)
        .ok_or_else(|| Trouble::new("DeviceRefused", &["how it is formatted now is not known"]))?;
    let admin = Admin {
        opcode: FORMAT,
        nsid,
        cdw10: format_word(&namespace, erase),
        ..Admin::default()
    };
    // No device says how long it takes: as if it wrote 100 MB a second.
    let seconds = course.disk.size_bytes / 100_000_000;
    let within = Duration::from_secs(seconds).clamp(LEAST, MOST);
    match drive.nvme(admin, &mut [], within) {
        Ok(0) => {
            let after = identify(drive, NAMESPACE, nsid).unwrap_or_default();
            course.log("nvme-identify-namespace", &after);
            Ok(())
        }
        Ok(status) => Err(refused("it does not format", status)),
        Err(error) => Err(Trouble::io("it does not format", &error)),
    }
}
