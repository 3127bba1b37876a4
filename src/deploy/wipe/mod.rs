//! A disk is wiped: by the best method it has, and by the next when that one does not hold.
//!
//! What it promises:
//! - A method holds when the device says that it came to its end, and what is read back afterwards shows it. A method
//!   that reports success and left data has failed.
//! - Everything that was tried is told, with the device's own words and what was read back where.
//! - What runs on the device already (a sanitize that a crash or a power cut left behind) is waited for, told as
//!   that, and not taken for ours: the list is gone through all the same where it proves nothing.
//!
//! How the parts fit: [`nvme`], [`ata`] and [`scsi`] know what a device has and how it is told; [`media`] discards,
//! overwrites and reads back; [`places`] says where. All of them reach the disk through [`Drive`] alone.
use std::io;
use std::time::{Duration, Instant};

use crate::proto::{
    DeviceLog, Disk, SampleContent, WipeAttempt, WipeMethod, WipeOutcome, WipeSample, WipedDisk,
};
use crate::sys::passthrough::{Admin, Answer, Data};

pub mod ata;
pub mod drive;
pub mod media;
pub mod nvme;
pub mod places;
pub mod scsi;

use places::Place;

/// Of a device's log.
const LOG: usize = 64;

/// A disk as it is reached.
pub trait Drive {
    /// # Errors
    /// It could not be given.
    fn nvme(&self, admin: Admin, data: &mut [u8], within: Duration) -> io::Result<u16>;
    /// The disk's namespace.
    ///
    /// # Errors
    /// It has none.
    fn namespace(&self) -> io::Result<u32>;
    /// # Errors
    /// It could not be given.
    fn scsi(&self, cdb: &[u8], data: Data<'_>, within: Duration) -> io::Result<Answer>;
    /// Reads past all caches; `out` is of a `Region`.
    ///
    /// # Errors
    /// It cannot be read.
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;
    /// # Errors
    /// It cannot be written.
    fn zero(&self, offset: u64, length: u64) -> io::Result<()>;
    /// # Errors
    /// The disk does not take it.
    fn discard(&self, offset: u64, length: u64, secure: bool) -> io::Result<()>;
    /// # Errors
    /// What was written is not on the medium.
    fn settle(&self) -> io::Result<()>;
    /// Waits.
    fn pause(&self, wait: Duration);
    /// The time for receipts, Unix time in milliseconds.
    fn now_ms(&self) -> i64;
}

/// What is to be done.
pub struct Plan<'a> {
    pub disk: &'a Disk,
    /// What may be used, in any order.
    pub methods: &'a [WipeMethod],
    /// Where partitions begin and end, in bytes.
    pub partitions: &'a [(u64, u64)],
    /// The disk takes discards.
    pub discards: bool,
    pub seed: [u8; 8],
}

/// Why a method did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// For programs.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

impl Trouble {
    pub fn new(reason: &'static str, parts: &[&str]) -> Self {
        Self {
            reason,
            message: parts.concat(),
        }
    }

    fn io(what: &str, error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::TimedOut => Self::new("DeviceTimedOut", &[what, ": it did not answer"]),
            _ => Self::new("DeviceFailed", &[what, ": ", &error.to_string()]),
        }
    }
}

/// How a method is going.
pub struct Course<'a> {
    pub drive: &'a dyn Drive,
    pub disk: &'a Disk,
    pub attempt: WipeAttempt,
    say: &'a mut dyn FnMut(u32, &str),
}

impl<'a> Course<'a> {
    fn new(
        drive: &'a dyn Drive,
        disk: &'a Disk,
        method: WipeMethod,
        say: &'a mut dyn FnMut(u32, &str),
    ) -> Self {
        Self {
            drive,
            disk,
            attempt: WipeAttempt {
                method,
                started_ms: drive.now_ms(),
                ..WipeAttempt::default()
            },
            say,
        }
    }

    /// Keeps what the device says; the last of a name counts.
    pub fn log(&mut self, name: &str, bytes: &[u8]) {
        let bytes = bytes.get(..LOG).unwrap_or(bytes).to_vec();
        let name = name.to_owned();
        self.attempt.logs.retain(|log| log.name != name);
        self.attempt.logs.push(DeviceLog { name, bytes });
    }

    /// Says how far it is, in percent; over 100: it does not know.
    pub fn say(&mut self, percent: u32) {
        (self.say)(percent, word(self.attempt.method));
    }

    /// Looks again and again, from every second to every ten, until `look` has an end, or `limit` is over.
    ///
    /// # Errors
    /// What `look` says, or that it took too long.
    pub fn until<T>(
        &mut self,
        limit: Duration,
        mut look: impl FnMut(&mut Self) -> Result<Option<T>, Trouble>,
    ) -> Result<T, Trouble> {
        let mut waited = Duration::ZERO;
        let begun = Instant::now();
        loop {
            if let Some(end) = look(self)? {
                return Ok(end);
            }
            if waited.max(begun.elapsed()) >= limit {
                let seconds = limit.as_secs().to_string();
                let parts = ["it was not over after ", &seconds, " s, and may still run"];
                return Err(Trouble::new("DeviceTimedOut", &parts));
            }
            let wait = (waited / 8).clamp(Duration::from_secs(1), Duration::from_secs(10));
            self.drive.pause(wait);
            waited += wait;
        }
    }
}

/// A method's name, for people and receipts: `nvme-sanitize-crypto`.
pub fn word(method: WipeMethod) -> &'static str {
    const WORDS: [&str; 14] = [
        "nvme-sanitize-crypto",
        "nvme-sanitize-block",
        "nvme-format-crypto",
        "nvme-format-erase",
        "nvme-sanitize-overwrite",
        "ata-sanitize-crypto",
        "ata-sanitize-block",
        "ata-security-erase-enhanced",
        "ata-security-erase",
        "scsi-sanitize-crypto",
        "scsi-sanitize-block",
        "secure-discard",
        "discard",
        "overwrite",
    ];
    let known = usize::try_from(method.0 - 1)
        .ok()
        .and_then(|at| WORDS.get(at));
    known.copied().unwrap_or("unknown")
}

/// The method of this name.
pub fn named(name: &str) -> Option<WipeMethod> {
    (1..=14)
        .map(WipeMethod)
        .find(|method| word(*method) == name)
}

/// How a disk takes commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Nvme,
    Ata,
    Scsi,
    /// It takes none but reads and writes.
    Block,
}

impl Way {
    /// `vendor` is what a SCSI disk says of its maker.
    pub fn of(transport: &str, vendor: &str) -> Self {
        match transport {
            nvme if nvme.starts_with("nvme") => Self::Nvme,
            "sata" => Self::Ata,
            "sas" | "fc" | "iscsi" | "scsi" if vendor == "ATA" => Self::Ata,
            "sas" | "fc" | "iscsi" | "scsi" => Self::Scsi,
            _ => Self::Block,
        }
    }
}

/// Wipes a disk. `say` hears how far it is, in percent, and by which method.
pub fn wipe(
    drive: &dyn Drive,
    way: Way,
    plan: &Plan<'_>,
    say: &mut dyn FnMut(u32, &str),
) -> WipedDisk {
    let mut wiped = WipedDisk {
        disk: Some(plan.disk.clone()),
        seed: plan.seed.to_vec(),
        outcome: WipeOutcome::FAILED,
        ..WipedDisk::default()
    };
    let places = places::all(plan.disk, plan.partitions, plan.seed);
    // What runs already makes the disk refuse everything else.
    let mut waiting = Course::new(drive, plan.disk, WipeMethod::UNSPECIFIED, &mut *say);
    let running = match way {
        Way::Nvme => nvme::await_running(&mut waiting),
        Way::Ata => ata::await_running(&mut waiting),
        Way::Scsi => scsi::await_running(&mut waiting),
        Way::Block => Ok(None),
    };
    let ended = match running {
        Ok(None) => None,
        Ok(Some(method)) => {
            waiting.attempt.method = method;
            Some(Ok(()))
        }
        Err(trouble) => Some(Err(trouble)),
    };
    let mut attempt = waiting.attempt;
    if let Some(ended) = ended {
        attempt.found_running = true;
        // What was there before is not known: only what is the same all over proves something.
        let held = ended.and_then(|()| proven(drive, &places, None, &attempt, &mut wiped.samples));
        let over = settled(&mut attempt, held, drive.now_ms());
        wiped.attempts.push(attempt);
        if over {
            wiped.outcome = WipeOutcome::WIPED;
            return wiped;
        }
    }
    let methods = match way {
        Way::Nvme => nvme::methods(drive),
        Way::Ata => ata::methods(drive),
        Way::Scsi => scsi::methods(drive),
        Way::Block => Vec::new(),
    };
    let discards = match plan.discards {
        true if plan.disk.transport == "mmc" => {
            vec![WipeMethod::SECURE_DISCARD, WipeMethod::DISCARD]
        }
        true => vec![WipeMethod::DISCARD],
        false => Vec::new(),
    };
    let methods = methods.into_iter().chain(discards);
    let methods = methods.chain([WipeMethod::OVERWRITE]);
    let allowed = |method: &WipeMethod| plan.methods.is_empty() || plan.methods.contains(method);
    let methods: Vec<WipeMethod> = methods.filter(allowed).collect();
    if methods.is_empty() && wiped.attempts.is_empty() {
        wiped.reason = "NoMethod".to_owned();
        wiped.message = "the disk has none of the methods that the order allows".to_owned();
        return wiped;
    }
    for method in methods {
        // What is there now, so that it is known again.
        let before: Vec<Option<[u8; 32]>> = places
            .iter()
            .map(|place| media::look(drive, place).and_then(|seen| seen.telling()))
            .collect();
        let mut course = Course::new(drive, plan.disk, method, &mut *say);
        course.say(0);
        let done = match method.0 {
            1..=5 => nvme::run(&mut course),
            6..=9 => ata::run(&mut course),
            10 | 11 => scsi::run(&mut course),
            12 | 13 => media::discard(&mut course),
            _ => media::overwrite(&mut course),
        };
        let mut attempt = course.attempt;
        wiped.samples.clear();
        let held = done.and_then(|()| {
            drive
                .settle()
                .map_err(|error| Trouble::io("what was written is not on the medium", &error))?;
            proven(drive, &places, Some(&before), &attempt, &mut wiped.samples)
        });
        let over = settled(&mut attempt, held, drive.now_ms());
        wiped.attempts.push(attempt);
        if over {
            wiped.outcome = WipeOutcome::WIPED;
            break;
        }
    }
    if wiped.outcome != WipeOutcome::WIPED
        && let Some(last) = wiped.attempts.last()
    {
        wiped.reason = last.reason.clone();
        wiped.message = [word(last.method), ": ", &last.message].concat();
    }
    wiped
}

/// Writes down how an attempt ended; whether it held.
fn settled(attempt: &mut WipeAttempt, held: Result<(), Trouble>, now_ms: i64) -> bool {
    attempt.finished_ms = now_ms;
    match held {
        Ok(()) => true,
        Err(trouble) => {
            attempt.reason = trouble.reason.to_owned();
            attempt.message = crate::facts::tree::clean(trouble.message.as_bytes());
            false
        }
    }
}

/// Whether a method leaves what cannot be foretold: the same data under another key.
fn scrambles(method: WipeMethod) -> bool {
    matches!(
        method,
        WipeMethod::NVME_SANITIZE_CRYPTO
            | WipeMethod::NVME_FORMAT_CRYPTO
            | WipeMethod::ATA_SANITIZE_CRYPTO
            | WipeMethod::ATA_SECURITY_ERASE_ENHANCED
            | WipeMethod::SCSI_SANITIZE_CRYPTO
    )
}

/// Reads back at all `places`, writes down what is there, and judges it. `before`: what was there, where that
/// could be told again.
///
/// # Errors
/// Data are left, or may be.
fn proven(
    drive: &dyn Drive,
    places: &[Place],
    before: Option<&[Option<[u8; 32]>]>,
    attempt: &WipeAttempt,
    samples: &mut Vec<WipeSample>,
) -> Result<(), Trouble> {
    let mut trouble = None;
    for (n, place) in places.iter().enumerate() {
        let was = before.and_then(|before| before.get(n).copied().flatten());
        let mut sample = WipeSample {
            offset: place.offset,
            length: place.length,
            place: place.name.to_owned(),
            ..WipeSample::default()
        };
        let at = place.offset.to_string();
        let wrong = match media::look(drive, place) {
            None => {
                sample.content = SampleContent::UNREADABLE;
                Some(("NotReadBack", "it cannot be read back at byte "))
            }
            Some(seen) => {
                sample.content = seen.content();
                let telling = seen.telling();
                sample.sha256 = telling.map(Vec::from).unwrap_or_default();
                match telling {
                    None => None,
                    Some(now) if was == Some(now) => {
                        sample.content = SampleContent::KEPT;
                        Some(("DataLeft", "what was there is still there, at byte "))
                    }
                    Some(_) if seen.label().is_some() => Some((
                        "DataLeft",
                        "a label that storage is known by is there, at byte ",
                    )),
                    Some(_) if !scrambles(attempt.method) => {
                        Some(("DataLeft", "something is left, at byte "))
                    }
                    Some(_) if before.is_none() => {
                        Some(("NotProven", "nobody knows what was there before, at byte "))
                    }
                    Some(_) => None,
                }
            }
        };
        if let (None, Some((reason, what))) = (&trouble, wrong) {
            let parts = [what, &at, " (", place.name, ")"];
            trouble = Some(Trouble::new(reason, &parts));
        }
        samples.push(sample);
    }
    trouble.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests;
