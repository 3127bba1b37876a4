//! ATA: SANITIZE DEVICE and the SECURITY commands (ACS-3 7.36 to 7.43), inside SCSI's ATA PASS-THROUGH(16) (SAT-3).
//!
//! Security erase takes a password, which locks the disk when its power goes meanwhile. Ours is always the same: a
//! disk that a cut off wipe left locked is opened again, and one whose erasure failed is left without a password.
//! A disk that somebody else locked, or that the firmware froze, says so.
use std::time::Duration;

use super::scsi::give;
use super::{Course, Drive, Trouble};
use crate::proto::WipeMethod;
use crate::sys::passthrough::sense::{sense, sense_text};
use crate::sys::passthrough::{Answer, Data};

const PAGE: usize = 512;
const IDENTIFY: u8 = 0xec;
const SANITIZE: u8 = 0xb4;
const SET_PASSWORD: u8 = 0xf1;
const UNLOCK: u8 = 0xf2;
const ERASE_PREPARE: u8 = 0xf3;
const ERASE_UNIT: u8 = 0xf4;
const DISABLE_PASSWORD: u8 = 0xf6;
/// SANITIZE's features, and the signatures in LBA that make sure of them.
const STATUS: (u16, u64) = (0x00, 0);
const CRYPTO: (u16, u64) = (0x11, 0x4372_7970);
const BLOCK: (u16, u64) = (0x12, 0x426b_4572);

/// It is no secret.
const PASSWORD: &[u8; 32] = b"bcd wipes this disk\0\0\0\0\0\0\0\0\0\0\0\0\0";
const SHORT: Duration = Duration::from_secs(30);
const LEAST: Duration = Duration::from_secs(1800);
const MOST: Duration = Duration::from_secs(24 * 3600);

/// An ATA command.
#[derive(Clone, Copy, Debug, Default)]
struct Command {
    command: u8,
    feature: u16,
    lba: u64,
    /// 48-bit registers.
    extended: bool,
}

/// How its data move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moves {
    Nothing,
    In,
    Out,
}

impl Command {
    fn cdb(self, moves: Moves) -> [u8; 16] {
        let [_, _, b5, b4, b3, b2, b1, b0] = self.lba.to_be_bytes();
        let [feature_high, feature] = self.feature.to_be_bytes();
        // PIO in, PIO out, no data. Data: one block, its count in the count field. None: the registers back.
        let (protocol, flags, count) = match moves {
            Moves::In => (4, 0x0e, 1),
            Moves::Out => (5, 0x06, 1),
            Moves::Nothing => (3, 1 << 5, 0),
        };
        let extend = u8::from(self.extended);
        [
            0x85,
            protocol << 1 | extend,
            flags,
            feature_high,
            feature,
            0,
            count,
            b3,
            b0,
            b4,
            b1,
            b5,
            b2,
            0x40 * extend,
            self.command,
            0,
        ]
    }
}

/// How the SECURITY feature set stands (word 128 of IDENTIFY DEVICE, and the times in 89 and 90).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Security {
    pub supported: bool,
    pub enabled: bool,
    pub locked: bool,
    pub frozen: bool,
    /// Too many wrong passwords: only its power switch helps.
    pub expired: bool,
    pub enhanced: bool,
    /// Seconds that an erasure takes, and an enhanced one.
    pub estimates: [Option<u32>; 2],
}

fn word(identify: &[u8], at: usize) -> u16 {
    match identify.get(at * 2..at * 2 + 2) {
        Some(&[low, high]) => u16::from_le_bytes([low, high]),
        _ => 0,
    }
}

/// Reads IDENTIFY DEVICE.
pub fn security(identify: &[u8]) -> Security {
    let bits = word(identify, 128);
    let bit = |n: u32| bits >> n & 1 == 1;
    let estimate = |at| {
        let word = word(identify, at);
        // The longer form counts in its 15 lower bits; 0: it does not say; all ones: longer than can be said.
        let (units, most) = match word >> 15 {
            1 => (word & 0x7fff, 0x7fff),
            _ => (word & 0xff, 0xff),
        };
        (units != 0 && units != most).then(|| u32::from(units) * 120)
    };
    Security {
        supported: bit(0),
        enabled: bit(1),
        locked: bit(2),
        frozen: bit(3),
        expired: bit(4),
        enhanced: bit(5),
        estimates: [estimate(89), estimate(90)],
    }
}

/// Whether the disk sanitizes, by another key and block by block.
pub fn sanitizes(identify: &[u8]) -> (bool, bool) {
    let bits = word(identify, 59);
    let has = |bit: u32| bits >> 12 & 1 == 1 && bits >> bit & 1 == 1;
    (has(13), has(15))
}

/// How a sanitize stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Idle,
    /// The last one came to its end.
    Done,
    /// In 65,536ths.
    Running(u16),
    Frozen,
}

/// Reads the registers that SANITIZE STATUS leaves, from the sense data they come in. `None`: they are not there.
pub fn state(sense: &[u8]) -> Option<State> {
    // The ATA status return descriptor. The fixed form has no room for the registers that count.
    if !matches!(sense.first()? & 0x7f, 0x72 | 0x73) {
        return None;
    }
    let mut rest = sense.get(8..)?;
    loop {
        let [kind, length, more @ ..] = rest else {
            return None;
        };
        if let (9, [_, _, high, _, _, low, _, middle, ..]) = (*kind, more) {
            let part = u16::from_be_bytes([*middle, *low]);
            return Some(match high >> 5 {
                flags if flags & 2 != 0 => State::Running(part),
                flags if flags & 4 != 0 => State::Done,
                flags if flags & 1 != 0 => State::Frozen,
                _ => State::Idle,
            });
        }
        rest = more.get(usize::from(*length)..)?;
    }
}

/// Gives a command; sense data that only bring the registers are none of a failure.
fn ask(
    drive: &dyn Drive,
    what: &str,
    command: Command,
    data: Data<'_>,
    within: Duration,
) -> Result<Answer, Trouble> {
    let moves = match &data {
        Data::None => Moves::Nothing,
        Data::In(_) => Moves::In,
        Data::Out(_) => Moves::Out,
    };
    let answer = give(drive, what, &command.cdb(moves), data, within)?;
    let failed = answer.status != 0 && sense(&answer.sense).is_none_or(|(key, _)| key > 1);
    match failed {
        true => {
            let why = sense_text(&answer.sense);
            Err(Trouble::new("DeviceRefused", &[what, ": ", &why]))
        }
        false => Ok(answer),
    }
}

fn identify(drive: &dyn Drive) -> Result<Vec<u8>, Trouble> {
    let mut page = vec![0; PAGE];
    let command = Command {
        command: IDENTIFY,
        ..Command::default()
    };
    let what = "it does not identify itself";
    let answer = ask(drive, what, command, Data::In(&mut page), SHORT)?;
    page.truncate(answer.length);
    Ok(page)
}

fn sanitize(drive: &dyn Drive, action: (u16, u64)) -> Result<Option<State>, Trouble> {
    let command = Command {
        command: SANITIZE,
        feature: action.0,
        lba: action.1,
        extended: true,
    };
    let answer = ask(drive, "it does not sanitize", command, Data::None, SHORT)?;
    Ok(state(&answer.sense))
}

/// What of these methods the disk has. One that is frozen or locked has them, and says so when they are tried.
pub fn methods(drive: &dyn Drive) -> Vec<WipeMethod> {
    let Ok(page) = identify(drive) else {
        return Vec::new();
    };
    let (crypto, block) = sanitizes(&page);
    let security = security(&page);
    let mut methods = Vec::new();
    for (has, method) in [
        (crypto, WipeMethod::ATA_SANITIZE_CRYPTO),
        (block, WipeMethod::ATA_SANITIZE_BLOCK),
        (
            security.supported && security.enhanced,
            WipeMethod::ATA_SECURITY_ERASE_ENHANCED,
        ),
        (security.supported, WipeMethod::ATA_SECURITY_ERASE),
    ] {
        if has {
            methods.push(method);
        }
    }
    methods
}

/// Waits for a sanitize that is under way, and opens a disk that one of our own erasures left locked. Which sanitize
/// it is the disk does not say.
///
/// # Errors
/// It failed, or took too long.
pub fn await_running(course: &mut Course<'_>) -> Result<Option<WipeMethod>, Trouble> {
    let Ok(page) = identify(course.drive) else {
        return Ok(None);
    };
    if security(&page).enabled {
        // Somebody else's password does not fit: the methods that need none say what they come to.
        let _ = release(course.drive);
    }
    let (crypto, block) = sanitizes(&page);
    if !crypto && !block {
        return Ok(None);
    }
    let Ok(Some(State::Running(_))) = sanitize(course.drive, STATUS) else {
        return Ok(None);
    };
    course.attempt.method = WipeMethod::ATA_SANITIZE_BLOCK;
    wait(course)?;
    Ok(Some(WipeMethod::ATA_SANITIZE_BLOCK))
}

fn wait(course: &mut Course<'_>) -> Result<(), Trouble> {
    course.until(MOST, |course| match sanitize(course.drive, STATUS)? {
        Some(State::Running(part)) => {
            course.say((u32::from(part) * 100) >> 16);
            Ok(None)
        }
        Some(State::Done) => {
            course.log("ata-sanitize-status", b"completed without error");
            Ok(Some(()))
        }
        Some(State::Idle | State::Frozen) => {
            Err(Trouble::new("DeviceFailed", &["the sanitize failed"]))
        }
        None => Err(Trouble::new(
            "NoStatus",
            &["its adapter does not hand on how the sanitize stands"],
        )),
    })
}

/// The page that goes with a SECURITY command.
fn password(control: u16) -> [u8; PAGE] {
    let mut page = [0; PAGE];
    let (head, rest) = page.split_at_mut(2);
    head.copy_from_slice(&control.to_le_bytes());
    if let Some(place) = rest.first_chunk_mut::<32>() {
        *place = *PASSWORD;
    }
    page
}

fn secure(
    drive: &dyn Drive,
    what: &str,
    command: u8,
    control: Option<u16>,
    within: Duration,
) -> Result<(), Trouble> {
    let command = Command {
        command,
        ..Command::default()
    };
    let page = control.map(password);
    let data = match &page {
        Some(page) => Data::Out(page),
        None => Data::None,
    };
    ask(drive, what, command, data, within).map(drop)
}

/// Opens the disk with our password, and takes the password away.
fn release(drive: &dyn Drive) -> Result<(), Trouble> {
    secure(
        drive,
        "it does not open with the password of a wipe",
        UNLOCK,
        Some(0),
        SHORT,
    )?;
    secure(
        drive,
        "it does not let go of the password",
        DISABLE_PASSWORD,
        Some(0),
        SHORT,
    )
}

/// Runs one of [`methods`].
///
/// # Errors
/// It did not come to its end.
pub fn run(course: &mut Course<'_>) -> Result<(), Trouble> {
    let enhanced = match course.attempt.method {
        WipeMethod::ATA_SANITIZE_CRYPTO | WipeMethod::ATA_SANITIZE_BLOCK => {
            let action = match course.attempt.method {
                WipeMethod::ATA_SANITIZE_CRYPTO => CRYPTO,
                _ => BLOCK,
            };
            match sanitize(course.drive, STATUS)? {
                Some(State::Frozen) => return Err(frozen("SANITIZE")),
                None => {
                    let message = "its adapter does not hand on how a sanitize stands";
                    return Err(Trouble::new("NoStatus", &[message]));
                }
                Some(_) => {}
            }
            sanitize(course.drive, action)?;
            return wait(course);
        }
        method => method == WipeMethod::ATA_SECURITY_ERASE_ENHANCED,
    };
    erase(course, enhanced)
}

fn frozen(what: &str) -> Trouble {
    let parts = [
        "the firmware froze ",
        what,
        " at the start: suspend the machine once, or plug the disk in while it runs",
    ];
    Trouble::new("DeviceFrozen", &parts)
}

fn erase(course: &mut Course<'_>, enhanced: bool) -> Result<(), Trouble> {
    let drive = course.drive;
    let page = identify(drive)?;
    let before = security(&page);
    course.log("ata-security", page.get(256..258).unwrap_or_default());
    if before.frozen {
        return Err(frozen("SECURITY"));
    }
    if before.expired {
        let message = "too many wrong passwords were given: switch its power off and on";
        return Err(Trouble::new("DeviceLocked", &[message]));
    }
    if before.enabled {
        // Ours from a wipe that was cut off, or somebody else's.
        release(drive).map_err(|trouble| {
            let parts = ["somebody else's password is set: ", &trouble.message];
            Trouble::new("DeviceLocked", &parts)
        })?;
    }
    let [normal_s, enhanced_s] = before.estimates;
    let estimate = match enhanced {
        true => enhanced_s,
        false => normal_s,
    };
    let within = match estimate {
        Some(seconds) => Duration::from_secs(u64::from(seconds) * 2).clamp(LEAST, MOST),
        None => MOST,
    };
    // The user's password, of the high level: the maker's opens the disk too.
    secure(drive, "it takes no password", SET_PASSWORD, Some(0), SHORT)?;
    let control = u16::from(enhanced) << 1;
    let erased = secure(
        drive,
        "it does not prepare to erase",
        ERASE_PREPARE,
        None,
        SHORT,
    )
    .and_then(|()| {
        secure(
            drive,
            "it does not erase",
            ERASE_UNIT,
            Some(control),
            within,
        )
    });
    let after = identify(drive);
    let still = after.as_ref().map_or(true, |page| security(page).enabled);
    if let Ok(page) = &after {
        course.log("ata-security", page.get(256..258).unwrap_or_default());
    }
    if still {
        // It must not be left locked, whatever came of it.
        let released = release(drive);
        erased?;
        released?;
        let message = "it says that it erased, and still has the password that erasing takes away";
        return Err(Trouble::new("DeviceLied", &[message]));
    }
    erased
}
