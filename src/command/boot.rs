//! `machine.boot`: the ramdisk's work is done, and the machine starts its system, or is restarted or switched off.
//!
//! What the ramdisk has told is in memory alone, so it goes only when the control plane has all of it; the command's own
//! end is told last, before it goes.
use std::time::Duration;

use super::diag::memory::kilobytes;
use super::kinds::{decode, explained};
use super::machine::{Failure, Outcome};
use super::ordered;
use super::work::{Context, UNKNOWN};
use crate::attest::ids::is_ulid_of;
use crate::deploy::disk;
use crate::deploy::start::{self, prepare};
use crate::facts::tree::Tree;
use crate::proto::{BootMode, Disk, DiskTarget, MachineBootParams, MachineBootResult, Message};
use crate::sys::block::{Block, CALL};
use crate::sys::kexec;
use crate::sys::log::{self, Level, Value};
use crate::sys::patience::Patience;
use crate::sys::power::Ending;
use crate::sys::stop::Stop;

/// The longest text that is put behind a command line.
const APPEND: usize = 1024;
/// How long the control plane may take to acknowledge what it was told.
const DELIVERY: Duration = Duration::from_secs(120);
/// And reading what is to be started, by programs of which each has minutes.
const READING: Duration = Duration::from_secs(900);
const MEMINFO: usize = 4096;

/// An end of this boot.
#[derive(Clone, Debug, PartialEq)]
pub struct Boot {
    order_id: String,
    mode: BootMode,
    target: DiskTarget,
    append: String,
    fallback: bool,
}

impl Boot {
    /// # Errors
    /// What is wrong with the params.
    pub fn read(params: &[u8]) -> Result<Self, String> {
        let params: MachineBootParams = decode(params)?;
        if !is_ulid_of("ord", &params.order_id) {
            return Err("order_id is ord_ and a lower-case ULID".to_owned());
        }
        let is_kexec = params.mode == BootMode::KEXEC;
        if !is_kexec && !matches!(params.mode, BootMode::REBOOT | BootMode::POWER_OFF) {
            return Err("mode is none that is known".to_owned());
        }
        if params.disk.is_some() != is_kexec {
            return Err("kexec, and nothing else, needs a disk".to_owned());
        }
        let target = params.disk.unwrap_or_default();
        if is_kexec {
            disk::check(&target)?;
        }
        if params.append.len() > APPEND || params.append.chars().any(char::is_control) {
            return Err("append is one line of at most 1024 bytes".to_owned());
        }
        Ok(Self {
            order_id: params.order_id,
            mode: params.mode,
            target,
            append: params.append,
            fallback: !params.no_fallback,
        })
    }

    /// # Errors
    /// The machine stays up.
    pub fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let busy = "disks are being written to, or the machine is going down already";
        let closed = context
            .parting
            .close()
            .ok_or_else(|| Failure::new("Busy", busy))?;
        let mut result = MachineBootResult {
            mode: self.mode,
            ..MachineBootResult::default()
        };
        let mut ending = match self.mode {
            BootMode::POWER_OFF => Ending::PowerOff,
            _ => Ending::Restart,
        };
        if self.mode == BootMode::KEXEC {
            context
                .progress
                .say(UNKNOWN, || "reading the disk's system".to_owned());
            match self.loaded(context) {
                Ok(loaded) => (result, ending) = (loaded, Ending::Kexec),
                Err(failure) if !self.fallback || context.stop.is_said() => return Err(failure),
                Err(failure) => {
                    result = MachineBootResult {
                        mode: BootMode::REBOOT,
                        fallback: failure.message,
                        ..MachineBootResult::default()
                    };
                }
            }
        }
        if !context.deliver(DELIVERY) {
            kexec::unload();
            let what = "the control plane has not acknowledged within 120 s all that it was told, the receipts among it; the machine stays";
            return Err(Failure::new("NotDelivered", what));
        }
        if let Err(refused) = ordered::grant(context, &self.order_id) {
            kexec::unload();
            return Err(refused);
        }
        let mode = result.mode.name().unwrap_or_default();
        let fields = [
            ("command", Value::Shown(&context.id)),
            ("mode", Value::Text(mode)),
            ("kernel", Value::Text(&result.kernel)),
            ("command_line", Value::Text(&result.command_line)),
            ("fallback", Value::Text(&result.fallback)),
        ];
        log::event(Level::Warn, "machine.boot", &fields);
        closed.end(ending);
        result.order_id = self.order_id;
        Ok(Outcome::Succeeded(result.encode_to_vec()))
    }

    /// Loads what the disk's loader would start.
    fn loaded(&self, context: &Context) -> Result<MachineBootResult, Failure> {
        let patience = Patience::default();
        let (its, target, append) = (patience.clone(), self.target.clone(), self.append.clone());
        ordered::apart(context, &patience, move |context| {
            let (found, block) = ordered::hold(&its, &target)?;
            let loaded = its.during(READING, || Ok(load(&found, &block, &append, &context.stop)));
            let _ = its.during(CALL, || {
                drop(block);
                Ok(())
            });
            loaded.unwrap_or_else(|error| Err(explained(ordered::HANGS, &error)))
        })?
    }
}

fn load(
    found: &Disk,
    block: &Block,
    append: &str,
    stop: &Stop,
) -> Result<MachineBootResult, Failure> {
    let tree = Tree::new("/".as_ref());
    let meminfo = tree.bytes("proc/meminfo", MEMINFO).unwrap_or_default();
    let free = kilobytes(&meminfo, "MemAvailable:").unwrap_or(0);
    let is_uefi = tree.exists("sys/firmware/efi");
    let failed = |error: start::Error| explained("NotStarted", &error);
    let prepared = prepare(block, &disk::node(found), is_uefi, free, stop).map_err(failed)?;
    let (entry, pinned) = prepared.load(append).map_err(failed)?;
    Ok(MachineBootResult {
        mode: BootMode::KEXEC,
        loader: entry.loader.to_owned(),
        title: entry.title,
        kernel: entry.kernel.path,
        initrds: entry.initrds.into_iter().map(|at| at.path).collect(),
        command_line: pinned.command_line,
        root_partition: pinned.partition.unwrap_or(0),
        ..MachineBootResult::default()
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn params_past_their_bounds_are_refused_in_words() {
        const ORDER: &str = "ord_01kb7w3x9qn5v8m2r6t4y0sdfh";
        let kexec = || MachineBootParams {
            order_id: ORDER.to_owned(),
            mode: BootMode::KEXEC,
            disk: Some(DiskTarget {
                stable_name: "nvme-a".to_owned(),
                ..DiskTarget::default()
            }),
            ..MachineBootParams::default()
        };
        let read = |params: MachineBootParams| Boot::read(&params.encode_to_vec());
        assert!(read(kexec()).unwrap().fallback);
        let reboot = MachineBootParams {
            order_id: ORDER.to_owned(),
            mode: BootMode::REBOOT,
            ..MachineBootParams::default()
        };
        assert!(read(reboot.clone()).is_ok());
        for (params, says) in [
            (MachineBootParams::default(), "order_id"),
            (
                MachineBootParams {
                    mode: BootMode(9),
                    ..reboot
                },
                "mode",
            ),
            (
                MachineBootParams {
                    mode: BootMode::POWER_OFF,
                    ..kexec()
                },
                "nothing else",
            ),
            (
                MachineBootParams {
                    disk: None,
                    ..kexec()
                },
                "needs a disk",
            ),
            (
                MachineBootParams {
                    append: "a\nb".to_owned(),
                    ..kexec()
                },
                "one line",
            ),
            (
                MachineBootParams {
                    append: "x".repeat(1025),
                    ..kexec()
                },
                "1024",
            ),
        ] {
            let said = read(params).unwrap_err();
            assert!(said.contains(says), "{said}");
        }
    }
}
