//! What the machine is made of: the message `Facts`, collected from `/proc`, `/sys`, netlink and
//! nvidia-smi.
//!
//! Each area is a file with a pure parser over bytes and a thin reader below a [`tree`]. Everything
//! read may be missing, broken or hostile: it is bounded, and what cannot be read is a line in
//! `Facts.problems`, never a failure of the whole. Two collections of an unchanged machine are equal,
//! in every bit: lists are sorted, and what changes by itself (uptime, counters, link-local
//! addresses) is not collected.
//!
//! Collecting blocks (a program is run, sysfs asks drivers): it belongs on a thread. [`report`] decides
//! when, and tells the control plane through the journal.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic
    )
)]
use std::path::Path;

use self::tree::Tree;
use crate::proto::{Facts, NetworkInterface};
use crate::sys::host;

pub mod cpu;
pub mod disks;
pub mod firmware;
pub mod gpus;
mod init;
pub mod kernel;
pub mod memory;
pub mod nics;
pub mod report;
mod root;
pub mod tree;
pub mod view;
pub mod virtualization;

/// Lines of problems; more help nobody.
const PROBLEMS: usize = 32;

/// Collects the facts of this machine.
pub fn collect() -> Facts {
    let tree = Tree::new(Path::new("/"));
    let mut problems = Problems::default();
    let interfaces = nics::read(&tree, &mut problems);
    complete(&tree, interfaces, problems)
}

/// The facts without those that take long or tell nothing of the machine itself: no disks and GPUs.
/// For the claims of a join.
pub fn collect_claims() -> Facts {
    let tree = Tree::new(Path::new("/"));
    let mut problems = Problems::default();
    let interfaces = nics::read(&tree, &mut problems);
    machine(&tree, interfaces, &mut problems)
}

/// What the files below `tree` say, without the kernel's own words on interfaces: for fuzzing.
pub fn of_tree(tree: &Tree) -> Facts {
    complete(tree, Vec::new(), Problems::default())
}

/// All facts, with the interfaces as they were read.
fn complete(tree: &Tree, interfaces: Vec<NetworkInterface>, mut problems: Problems) -> Facts {
    let facts = machine(tree, interfaces, &mut problems);
    let disks = disks::read(tree, &mut problems);
    let command_line = facts
        .kernel
        .as_ref()
        .map_or("", |kernel| &kernel.command_line);
    Facts {
        root: root::read(tree, &disks, command_line),
        disks,
        gpus: gpus::read(tree, &mut problems),
        problems: problems.into_lines(),
        ..facts
    }
}

fn machine(tree: &Tree, interfaces: Vec<NetworkInterface>, problems: &mut Problems) -> Facts {
    let (cpu, hypervisor) = cpu::read(tree, problems);
    let firmware = firmware::read(tree, problems);
    let signature = host::hypervisor().filter(|_| hypervisor);
    let mut facts = Facts {
        hostname: kernel::read_hostname(tree),
        machine_id: tree.text("etc/machine-id"),
        os_release: kernel::read_os_release(tree),
        kernel: Some(kernel::read(tree, host::architecture(), problems)),
        cpu: Some(cpu),
        memory_bytes: memory::read(tree, problems),
        interfaces,
        virtualization: virtualization::read(tree, &firmware, hypervisor, signature),
        firmware: Some(firmware),
        has_tpm: tree.exists("dev/tpmrm0") || tree.exists("sys/class/tpm/tpm0"),
        ..Facts::default()
    };
    init::read_bmc(tree, &mut facts);
    facts
}

/// Where a problem belongs.
#[derive(Clone, Copy)]
enum Area {
    Cpu,
    Memory,
    Disks,
    Nics,
    Gpus,
    Firmware,
    Kernel,
}

/// What could not be read, and why; one line each.
#[derive(Default)]
struct Problems(Vec<String>);

impl Problems {
    fn say(&mut self, area: Area, what: &str) {
        if self.0.len() < PROBLEMS {
            let area = match area {
                Area::Cpu => "cpu: ",
                Area::Memory => "memory: ",
                Area::Disks => "disks: ",
                Area::Nics => "nics: ",
                Area::Gpus => "gpus: ",
                Area::Firmware => "firmware: ",
                Area::Kernel => "kernel: ",
            };
            let line = [area, what].concat();
            self.0.push(tree::clean(line.as_bytes()));
        }
    }

    fn unread(&mut self, area: Area, what: &str, error: &std::io::Error) {
        self.say(
            area,
            &["cannot read ", what, ": ", &error.to_string()].concat(),
        );
    }

    #[cfg(test)]
    fn lines(&self) -> &[String] {
        &self.0
    }

    /// Sorted, so that it does not matter in which order they were found.
    fn into_lines(mut self) -> Vec<String> {
        self.0.sort_unstable();
        self.0.dedup();
        self.0
    }
}
