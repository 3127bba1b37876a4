//! `disks.wipe`: disks are wiped, side by side, on a one-time order; a signed receipt says how.
//!
//! Each disk is wiped by a child of its own: a disk that hangs holds up no other, is told as that, and one failure stops
//! none. What a disk was when its child was ended is not known any more, and told as that.
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::kinds::{decode, explained};
use super::machine::{Failure, Outcome};
use super::ordered;
use super::work::{Context, UNKNOWN};
use super::worker::{self, Parent};
use crate::attest::ids::is_ulid_of;
use crate::crypto::digest::hex;
use crate::crypto::envelope::Purpose;
use crate::deploy::disk;
use crate::deploy::wipe::drive::wipe_target;
use crate::facts::tree::Tree;
use crate::proto::{
    Disk, DiskTarget, DisksWipeParams, DisksWipeResult, Message, WipeMethod, WipeOutcome,
    WipeReceipt, WipedDisk,
};
use crate::sys::block::CALL;
use crate::sys::log::{self, Level, Value};
use crate::sys::patience::Patience;
use crate::sys::process::RunError;
use crate::sys::{random, thread};

/// Disks of an order.
const DISKS: usize = 64;
const METHODS: usize = 14;
/// What is kept of the kind's time for the receipt.
const RESERVE: Duration = Duration::from_secs(120);
/// What a disk's own methods may take, and what is overwritten in a second at least.
const COMMANDS: Duration = Duration::from_secs(12 * 3600);
const SLOWEST: u64 = 20_000_000;
/// How often it is looked whether a disk hangs.
const LOOK: Duration = Duration::from_secs(1);
/// Of a thread that waits for a child.
const STACK: usize = 128 * 1024;

/// Disks to be wiped.
#[derive(Clone, Debug, PartialEq)]
pub struct Wipe {
    order_id: String,
    disks: Vec<DiskTarget>,
    methods: Vec<WipeMethod>,
    /// The disks are all of the machine's that are fixed.
    all: bool,
}

impl Wipe {
    /// # Errors
    /// What is wrong with the params.
    pub fn read(params: &[u8]) -> Result<Self, String> {
        let params: DisksWipeParams = decode(params)?;
        if !is_ulid_of("ord", &params.order_id) {
            return Err("order_id is ord_ and a lower-case ULID".to_owned());
        }
        let disks = params.disks;
        if disks.is_empty() || disks.len() > DISKS {
            return Err(format!(
                "there are {} disks: 1 to {DISKS} may be",
                disks.len()
            ));
        }
        for (n, target) in disks.iter().enumerate() {
            disk::check(target)?;
            if disks
                .iter()
                .take(n)
                .any(|other| other.stable_name == target.stable_name)
            {
                return Err("a disk is named twice".to_owned());
            }
        }
        let known = |method: &WipeMethod| method.0 != 0 && method.name().is_some();
        if params.methods.len() > METHODS || !params.methods.iter().all(known) {
            return Err("methods has one that this bcd does not know".to_owned());
        }
        Ok(Self {
            order_id: params.order_id,
            disks,
            methods: params.methods,
            all: params.all,
        })
    }

    /// # Errors
    /// The order is not this command's, or not every disk is wiped.
    pub fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        if self.all {
            self.nothing_else_is_there(context)?;
        }
        let _writing = ordered::claim(context, &self.order_id)?;
        let started_ms = context.trusted_ms();
        let wiped = self.wipe(context);
        let count = |outcome: WipeOutcome| {
            let count = wiped.iter().filter(|disk| disk.outcome == outcome).count();
            u32::try_from(count).unwrap_or(u32::MAX)
        };
        let mut result = DisksWipeResult {
            order_id: self.order_id.clone(),
            wiped: count(WipeOutcome::WIPED),
            failed: count(WipeOutcome::FAILED),
            refused: count(WipeOutcome::REFUSED),
            receipt_sha256: Vec::new(),
        };
        let first = wiped.iter().find(|disk| disk.outcome != WipeOutcome::WIPED);
        let first = first.map(|disk| {
            let name = disk
                .target
                .as_ref()
                .map_or("", |target| &target.stable_name);
            [name, ": ", &disk.message].concat()
        });
        let receipt = WipeReceipt {
            head: Some(ordered::head(context, &self.order_id, started_ms)),
            disks: wiped,
        };
        let sha256 = ordered::tell(context, Purpose::WipeReceipt, receipt.encode_to_vec())?;
        result.receipt_sha256 = sha256.to_vec();
        match first {
            None => Ok(Outcome::Succeeded(result.encode_to_vec())),
            Some(first) => {
                let counts = format!(
                    "{} wiped, {} failed, {} refused: {first}",
                    result.wiped, result.failed, result.refused
                );
                Err(Failure::new("NotWiped", counts))
            }
        }
    }

    /// Who orders all disks to be wiped believes afterwards that they are. One that came up since the machine last told of
    /// its disks is not among those of the order.
    fn nothing_else_is_there(&self, context: &Context) -> Result<(), Failure> {
        let patience = Patience::default();
        let its = patience.clone();
        let listed = ordered::apart(context, &patience, move |_| {
            its.asks("a disk of this machine");
            its.during(CALL, || Ok(disk::list(&Tree::new("/".as_ref()))))
        })?;
        let disks = listed.map_err(|error| explained(ordered::HANGS, &error))?;
        match self.other(&disks) {
            None => Ok(()),
            Some(disk) => {
                let name = match disk.stable_name.as_str() {
                    "" => &disk.kernel_name,
                    name => name,
                };
                const WHY: &str = ": it is not in the order, which is for all disks of this machine: it came up after the facts that \
                                   the order was made by. Nothing was wiped. Order again once the machine has told of it";
                Err(Failure::new("DiskNotOrdered", [name, WHY].concat()))
            }
        }
    }

    /// A fixed disk that is none of the order's.
    fn other<'a>(&self, disks: &'a [Disk]) -> Option<&'a Disk> {
        let ordered = |disk: &Disk| {
            let mut targets = self.disks.iter();
            targets.any(|target| target.stable_name == disk.stable_name)
        };
        disks
            .iter()
            .find(|disk| disk::is_fixed(disk) && !ordered(disk))
    }

    /// All disks side by side, in their order.
    fn wipe(&self, context: &mut Context) -> Vec<WipedDisk> {
        let now_ms = context.trusted_ms();
        let limit = context.limit.saturating_sub(RESERVE);
        let stop = context.stop.clone();
        let shares = Mutex::new((vec![0_u32; self.disks.len()], &mut context.progress));
        let one = |n: usize, target: &DiskTarget| {
            let mut tell = |percent: u32, message: String| {
                let mut shares = shares.lock().unwrap_or_else(PoisonError::into_inner);
                let (shares, progress) = &mut *shares;
                if let Some(share) = shares.get_mut(n) {
                    *share = match percent {
                        UNKNOWN.. => *share,
                        percent => percent,
                    };
                }
                let sum: u32 = shares.iter().sum();
                let percent = sum / u32::try_from(shares.len().max(1)).unwrap_or(1);
                progress.say(percent, || [&target.stable_name, ": ", &message].concat());
            };
            let slow = Duration::from_secs(target.size_bytes / SLOWEST);
            let within = COMMANDS.saturating_add(slow).min(limit);
            let wiped = self.child(target, now_ms, within, &stop, &mut tell);
            tell(100, "done".to_owned());
            said(&context.id.to_string(), &wiped);
            wiped
        };
        std::thread::scope(|scope| {
            let waiting: Vec<_> = self
                .disks
                .iter()
                .enumerate()
                .map(|(n, target)| {
                    let builder = std::thread::Builder::new().name("wipe".to_owned());
                    let one = &one;
                    builder
                        .stack_size(STACK)
                        .spawn_scoped(scope, move || one(n, target))
                })
                .collect();
            let ends = waiting.into_iter().zip(&self.disks);
            ends.map(
                |(thread, target)| match thread.map(|thread| thread.join()) {
                    Ok(Ok(wiped)) => wiped,
                    Ok(Err(_)) | Err(_) => {
                        let message = "this node had no thread for it, or lost it";
                        unknown(target, "InternalError", message.to_owned())
                    }
                },
            )
            .collect()
        })
    }

    fn child(
        &self,
        target: &DiskTarget,
        now_ms: i64,
        within: Duration,
        stop: &crate::sys::stop::Stop,
        tell: &mut dyn FnMut(u32, String),
    ) -> WipedDisk {
        let seed = match random::bytes::<8>() {
            Ok(seed) => seed.to_vec(),
            Err(error) => {
                return unknown(target, "InternalError", explained("", &error).message);
            }
        };
        let work = WipedDisk {
            target: Some(target.clone()),
            seed,
            ..WipedDisk::default()
        };
        let methods: Vec<String> = self.methods.iter().map(|m| m.0.to_string()).collect();
        let arguments = [
            "wipe",
            &hex(&work.encode_to_vec()),
            &methods.join(","),
            &now_ms.to_string(),
        ];
        let mut progress = |said: crate::proto::CommandProgress| tell(said.percent, said.message);
        match worker::run(&arguments, within, stop, &mut progress) {
            Ok(worker::Done {
                wiped: Some(wiped), ..
            }) => wiped,
            Ok(done) => unknown(
                target,
                "InternalError",
                ["its child ended without a word: ", &done.complaint].concat(),
            ),
            Err(RunError::Stopped) => {
                let message = "it was cancelled; what runs inside the disk goes on";
                unknown(target, "Cancelled", message.to_owned())
            }
            Err(RunError::Output(error)) if error.kind() == io::ErrorKind::TimedOut => {
                unknown(target, ordered::HANGS, ordered::NO_ANSWER.to_owned())
            }
            Err(error @ RunError::TimedOut { .. }) => {
                unknown(target, "TimedOut", explained("", &error).message)
            }
            Err(error) => unknown(target, "InternalError", explained("", &error).message),
        }
    }
}

/// A disk of which nothing more is known: it may be wiped in part.
fn unknown(target: &DiskTarget, reason: &str, message: String) -> WipedDisk {
    WipedDisk {
        target: Some(target.clone()),
        outcome: WipeOutcome::FAILED,
        reason: reason.to_owned(),
        message,
        ..WipedDisk::default()
    }
}

fn said(command: &str, disk: &WipedDisk) {
    let name = disk
        .target
        .as_ref()
        .map_or("", |target| &target.stable_name);
    let method = disk.attempts.last().map(|attempt| attempt.method);
    let outcome = disk.outcome.name().unwrap_or_default();
    log::event(
        // The command, and the receipt, say it to whoever shall do something about it.
        Level::Info,
        "disk.wiped",
        &[
            ("command", Value::Text(command)),
            ("disk", Value::Text(name)),
            (
                "outcome",
                Value::Text(outcome.strip_prefix("WIPE_OUTCOME_").unwrap_or(outcome)),
            ),
            (
                "method",
                Value::Text(method.map_or("", crate::deploy::wipe::word)),
            ),
            ("reason", Value::Text(&disk.reason)),
            ("message", Value::Text(&disk.message)),
        ],
    );
}

/// In the child: wipes the disk of `work`, and tells the parent.
///
/// # Errors
/// The parent is gone, or says what no parent says.
pub fn serve<W: io::Write>(
    work: &str,
    methods: &str,
    now_ms: &str,
    parent: &mut Parent<W>,
) -> io::Result<()> {
    let nonsense = || io::Error::from(io::ErrorKind::InvalidInput);
    let work = unhex(work)
        .and_then(|bytes| WipedDisk::decode(&bytes).ok())
        .ok_or_else(nonsense)?;
    let (target, seed) = (work.target.ok_or_else(nonsense)?, work.seed);
    let seed = seed.try_into().map_err(|_| nonsense())?;
    let now_ms = now_ms.parse().map_err(|_| nonsense())?;
    let methods: Vec<WipeMethod> = methods
        .split(',')
        .filter(|text| !text.is_empty())
        .map(|text| text.parse().map(WipeMethod).map_err(|_| nonsense()))
        .collect::<Result<_, _>>()?;
    let mut gone = None;
    let mut say = |percent: u32, method: &str| {
        if let Err(error) = parent.progress(percent, method) {
            gone = Some(error);
        }
    };
    let patience = Patience::default();
    tell_when_it_hangs(patience.clone())?;
    let wiped = wipe_target(target, &methods, seed, now_ms, &patience, &mut say);
    match gone {
        Some(error) => Err(error),
        None => parent.wiped(&wiped),
    }
}

/// The child cannot end then: the parent goes on without it.
fn tell_when_it_hangs(patience: Patience) -> io::Result<()> {
    // The thread that hangs has the way that all frames go locked, between two of them.
    let own_way = io::stdout().as_fd().try_clone_to_owned()?;
    let look = move || {
        while patience.run_out().is_none() {
            std::thread::sleep(LOOK);
        }
        // Without a parent there is nobody to tell.
        let _ = Parent::new(File::from(own_way)).hangs();
    };
    thread::start("patience", Box::new(look))
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text
        .as_bytes()
        .chunks(2)
        .map(|pair| std::str::from_utf8(pair).ok());
    digits
        .map(|pair| u8::from_str_radix(pair?, 16).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_for_all_disks_is_not_for_a_machine_that_has_another_fixed_one() {
        let disk = |name: &str| Disk {
            stable_name: name.to_owned(),
            kernel_name: "sdx".to_owned(),
            ..Disk::default()
        };
        let wipe = Wipe {
            order_id: String::new(),
            disks: vec![DiskTarget {
                stable_name: "nvme-A".to_owned(),
                ..DiskTarget::default()
            }],
            methods: Vec::new(),
            all: true,
        };
        let stick = Disk {
            removable: true,
            ..disk("stick")
        };
        let behind_usb = Disk {
            transport: "usb".to_owned(),
            ..disk("behind")
        };
        let known = [disk("nvme-A"), stick, behind_usb];
        assert_eq!(wipe.other(&known), None);
        for name in ["nvme-B", ""] {
            let disks = [&known[..], &[disk(name)]].concat();
            assert_eq!(wipe.other(&disks), Some(&disk(name)));
        }
    }
}
