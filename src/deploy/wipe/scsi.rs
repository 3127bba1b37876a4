//! SCSI: SANITIZE (SBC-4 5.31). UNMAP is the kernel's discard, and the disk's to prove like any other.
use std::time::Duration;

use super::{Course, Drive, Trouble};
use crate::proto::WipeMethod;
use crate::sys::passthrough::sense::{sense, sense_text};
use crate::sys::passthrough::{Answer, Data};

const SANITIZE: u8 = 0x48;
const BLOCK: u8 = 2;
const CRYPTO: u8 = 3;
const EXIT_FAILURE: u8 = 0x1f;
const IMMEDIATELY: u8 = 1 << 7;
/// It may fail without making the disk useless.
const UNRESTRICTED: u8 = 1 << 5;

const SHORT: Duration = Duration::from_secs(30);
/// SCSI disks do not say how long it takes.
const MOST: Duration = Duration::from_secs(24 * 3600);
/// SAM's CHECK CONDITION, and the adapter's word for a time-out.
const CHECK_CONDITION: u8 = 2;
const DID_TIME_OUT: u16 = 3;
const NOT_READY: u8 = 2;
const UNIT_ATTENTION: u8 = 6;

/// Gives a command; an adapter that failed is a trouble.
pub(super) fn give(
    drive: &dyn Drive,
    what: &str,
    cdb: &[u8],
    data: Data<'_>,
    within: Duration,
) -> Result<Answer, Trouble> {
    match drive.scsi(cdb, data, within) {
        Ok(answer) if answer.host_status == 0 => Ok(answer),
        Ok(answer) if answer.host_status == DID_TIME_OUT => Err(Trouble::new(
            "DeviceTimedOut",
            &[what, ": it did not answer"],
        )),
        Ok(answer) => {
            let status = format!("{:#x}", answer.host_status);
            let parts = [what, ": its adapter failed with status ", &status];
            Err(Trouble::new("DeviceFailed", &parts))
        }
        Err(error) => Err(Trouble::io(what, &error)),
    }
}

/// REPORT SUPPORTED OPERATION CODES for one service action of SANITIZE.
fn supported(action: u8) -> [u8; 12] {
    let mut cdb = [0; 12];
    // MAINTENANCE IN, the service action, one command with its own, the answer's length.
    cdb[..6].copy_from_slice(&[0xa3, 0x0c, 3, SANITIZE, 0, action]);
    cdb[9] = 64;
    cdb
}

/// Whether the answer to [`supported`] says so: as the standard has it, or in the maker's way.
pub fn is_supported(answer: &[u8]) -> bool {
    answer.get(1).is_some_and(|byte| matches!(byte & 7, 3 | 5))
}

/// What of these methods the disk has.
pub fn methods(drive: &dyn Drive) -> Vec<WipeMethod> {
    let has = |action| {
        let mut page = [0; 64];
        let answer = drive.scsi(&supported(action), Data::In(&mut page), SHORT);
        answer.is_ok_and(|answer| answer.host_status == 0 && answer.status == 0)
            && is_supported(&page)
    };
    let mut methods = Vec::new();
    if has(CRYPTO) {
        methods.push(WipeMethod::SCSI_SANITIZE_CRYPTO);
    }
    if has(BLOCK) {
        methods.push(WipeMethod::SCSI_SANITIZE_BLOCK);
    }
    methods
}

/// How a sanitize stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// In 65,536ths.
    Running(u16),
    Failed,
    Ready,
    /// Ask again.
    Attention,
    Other,
}

/// Reads what TEST UNIT READY comes to.
pub fn state(status: u8, bytes: &[u8]) -> State {
    if status != CHECK_CONDITION {
        return match status {
            0 => State::Ready,
            // Busy, reserved ...: ask again.
            _ => State::Attention,
        };
    }
    match sense(bytes) {
        Some((NOT_READY, [0x04, 0x1b])) => State::Running(progress(bytes)),
        Some((_, [0x31, 0x03])) => State::Failed,
        Some((UNIT_ATTENTION, _)) => State::Attention,
        _ => State::Other,
    }
}

/// The progress in sense data of either form; 0 when there is none.
fn progress(bytes: &[u8]) -> u16 {
    let at = |at: usize| bytes.get(at).copied().unwrap_or(0);
    let number = |flags: u8, high: u8, low: u8| match flags & 0x80 {
        0 => 0,
        _ => u16::from_be_bytes([high, low]),
    };
    if at(0) & 0x7f == 0x70 {
        return number(at(15), at(16), at(17));
    }
    // Descriptors: a type, a length, the rest.
    let mut rest = bytes.get(8..).unwrap_or_default();
    while let [kind, length, more @ ..] = rest {
        if let (2, [_, _, flags, high, low, ..]) = (*kind, more) {
            return number(*flags, *high, *low);
        }
        rest = more.get(usize::from(*length)..).unwrap_or_default();
    }
    0
}

fn look(course: &mut Course<'_>) -> Result<State, Trouble> {
    let answer = give(
        course.drive,
        "it does not say how it is",
        &[0; 6],
        Data::None,
        SHORT,
    )?;
    if !answer.sense.is_empty() {
        course.log("scsi-sense", &answer.sense);
    }
    match state(answer.status, &answer.sense) {
        State::Other => {
            let why = sense_text(&answer.sense);
            Err(Trouble::new("DeviceFailed", &["it is not ready: ", &why]))
        }
        state => Ok(state),
    }
}

fn wait(course: &mut Course<'_>) -> Result<(), Trouble> {
    course.until(MOST, |course| match look(course)? {
        State::Running(part) => {
            course.say((u32::from(part) * 100) >> 16);
            Ok(None)
        }
        State::Attention => Ok(None),
        State::Failed => Err(Trouble::new("DeviceFailed", &["the sanitize failed"])),
        State::Ready | State::Other => Ok(Some(())),
    })
}

/// Waits for a sanitize that is under way. Which it is the disk does not say.
///
/// # Errors
/// It failed, or took too long.
pub fn await_running(course: &mut Course<'_>) -> Result<Option<WipeMethod>, Trouble> {
    course.attempt.method = WipeMethod::SCSI_SANITIZE_BLOCK;
    for _ in 0..3 {
        match look(course) {
            Ok(State::Running(_)) => {
                wait(course)?;
                return Ok(Some(WipeMethod::SCSI_SANITIZE_BLOCK));
            }
            // What happened before (a reset, the power) is told once.
            Ok(State::Attention) => {}
            _ => break,
        }
    }
    Ok(None)
}

/// Runs one of [`methods`].
///
/// # Errors
/// It did not come to its end.
pub fn run(course: &mut Course<'_>) -> Result<(), Trouble> {
    let action = match course.attempt.method {
        WipeMethod::SCSI_SANITIZE_CRYPTO => CRYPTO,
        _ => BLOCK,
    };
    let sanitize = |flags: u8| [SANITIZE, flags, 0, 0, 0, 0, 0, 0, 0, 0];
    let cdb = sanitize(IMMEDIATELY | UNRESTRICTED | action);
    let answer = give(
        course.drive,
        "it does not sanitize",
        &cdb,
        Data::None,
        SHORT,
    )?;
    if answer.status != 0 {
        let why = sense_text(&answer.sense);
        let parts = ["it does not sanitize: ", &why];
        return Err(Trouble::new("DeviceRefused", &parts));
    }
    let ended = wait(course);
    if ended
        .as_ref()
        .is_err_and(|trouble| trouble.reason == "DeviceFailed")
    {
        let _ = course
            .drive
            .scsi(&sanitize(EXIT_FAILURE), Data::None, SHORT);
    }
    ended
}
