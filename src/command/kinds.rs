//! The kinds of commands this bcd knows, and what holds for each: one row of a table.
use std::time::Duration;

use super::machine::{Failure, Outcome};
use super::work::Context;
use super::{boot, deploy, diag, logs, reboot, wipe};
use crate::facts::report::Cause;
use crate::proto::{DecodeError, Message, Role};

/// What holds for all commands of a kind.
#[derive(Debug)]
pub struct Kind {
    pub name: &'static str,
    /// How many run at the same time.
    pub at_once: usize,
    /// What becomes of one that comes while all places are taken.
    pub when_busy: WhenBusy,
    /// How long one may take; then it is stopped, and fails.
    pub limit: Duration,
    /// Reads its params; else what is wrong with them.
    pub read: fn(&[u8]) -> Result<Job, String>,
    /// It is done in a ramdisk alone, on a one-time order that is signed: what writes to disks, or decides what a machine starts.
    pub ordered: bool,
    /// Its work is to end this boot: the result then, of the boot ids before and after.
    pub restarted: Option<fn(&str, &str) -> Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenBusy {
    /// It is PENDING until there is a place, or its deadline.
    Wait,
    /// It fails at once: doing it twice in a row is nobody's wish.
    Refuse,
}

/// Work to be done, its params read and checked.
#[derive(Clone, Debug, PartialEq)]
pub enum Job {
    Reboot(reboot::Reboot),
    Logs(logs::Collect),
    Facts,
    Memory(diag::Test),
    Disks(diag::Disks),
    Network(diag::Network),
    Dcgm(diag::Dcgm),
    Deploy(Box<deploy::Deploy>),
    Wipe(wipe::Wipe),
    Boot(Box<boot::Boot>),
}

/// It ends a ramdisk's boot.
pub(super) const BOOT: &str = "machine.boot";

pub static KINDS: [Kind; 10] = [
    Kind {
        name: "node.reboot",
        at_once: 1,
        when_busy: WhenBusy::Refuse,
        // The longest delay, the wait for the acknowledgement, and systemctl's minute.
        limit: Duration::from_secs(700),
        read: |params| reboot::Reboot::read(params).map(Job::Reboot),
        ordered: false,
        restarted: Some(reboot::result),
    },
    Kind {
        name: "logs.collect",
        at_once: 2,
        when_busy: WhenBusy::Wait,
        limit: Duration::from_secs(300),
        read: |params| logs::Collect::read(params).map(Job::Logs),
        ordered: false,
        restarted: None,
    },
    Kind {
        name: "node.facts",
        at_once: 1,
        when_busy: WhenBusy::Wait,
        limit: Duration::from_secs(120),
        // It takes none; what a later version sends is its own affair.
        read: |_| Ok(Job::Facts),
        ordered: false,
        restarted: None,
    },
    Kind {
        name: "diag.memory",
        at_once: 1,
        when_busy: WhenBusy::Refuse,
        // The longest test, and its child's slack.
        limit: Duration::from_secs(3700),
        read: |params| diag::Test::read(params).map(Job::Memory),
        ordered: false,
        restarted: None,
    },
    Kind {
        name: "diag.disks",
        at_once: 1,
        when_busy: WhenBusy::Wait,
        limit: Duration::from_secs(900),
        read: |params| diag::Disks::read(params).map(Job::Disks),
        ordered: false,
        restarted: None,
    },
    Kind {
        name: "diag.network",
        at_once: 1,
        when_busy: WhenBusy::Wait,
        limit: Duration::from_secs(120),
        read: |params| diag::Network::read(params).map(Job::Network),
        ordered: false,
        restarted: None,
    },
    Kind {
        name: "diag.dcgm",
        at_once: 1,
        when_busy: WhenBusy::Refuse,
        limit: Duration::from_secs(3 * 3600),
        read: |params| diag::Dcgm::read(params).map(Job::Dcgm),
        ordered: false,
        restarted: None,
    },
    Kind {
        name: "deploy.image",
        at_once: 1,
        when_busy: WhenBusy::Refuse,
        // A large image by a slow line.
        limit: Duration::from_secs(24 * 3600),
        read: |params| deploy::Deploy::read(params).map(|deploy| Job::Deploy(Box::new(deploy))),
        ordered: true,
        restarted: None,
    },
    Kind {
        name: "disks.wipe",
        at_once: 1,
        when_busy: WhenBusy::Refuse,
        // The largest disks there are, overwritten.
        limit: Duration::from_secs(96 * 3600),
        read: |params| wipe::Wipe::read(params).map(Job::Wipe),
        ordered: true,
        restarted: None,
    },
    Kind {
        name: BOOT,
        at_once: 1,
        when_busy: WhenBusy::Refuse,
        // Reading the disk, and waiting until all is delivered.
        limit: Duration::from_secs(1800),
        read: |params| boot::Boot::read(params).map(|boot| Job::Boot(Box::new(boot))),
        ordered: true,
        restarted: None,
    },
];

/// The reason of a command that this bcd does not know, or whose program this machine does not have.
pub const UNSUPPORTED: &str = "CommandUnsupported";

impl Kind {
    /// The kind of that name, if this bcd knows it.
    pub fn named(name: &str) -> Option<&'static Self> {
        KINDS.iter().find(|kind| kind.name == name)
    }

    /// Whether this machine has what commands of this kind need.
    pub fn is_possible(&self, role: Role) -> bool {
        match self.name {
            "diag.dcgm" => diag::dcgm::is_there(),
            _ if self.ordered => role == Role::RAMDISK,
            _ => true,
        }
    }
}

impl Job {
    /// Does it. Blocks: for a thread.
    pub fn run(self, context: &mut Context) -> Outcome {
        let done = match self {
            Self::Reboot(reboot) => reboot.run(context),
            Self::Logs(collect) => collect.run(context),
            Self::Facts => {
                // News for the control plane go the way of all news as well.
                let facts = context.facts.report(Cause::Any).unwrap_or_default();
                Ok(Outcome::Succeeded(facts.encode_to_vec()))
            }
            Self::Memory(test) => diag::run("diag.memory", context, &mut |context, report| {
                test.run(context, report)
            }),
            Self::Disks(disks) => diag::run("diag.disks", context, &mut |context, report| {
                disks.run(context, report)
            }),
            Self::Network(network) => diag::run("diag.network", context, &mut |context, report| {
                network.run(context, report)
            }),
            Self::Deploy(deploy) => deploy.run(context),
            Self::Dcgm(dcgm) => diag::run("diag.dcgm", context, &mut |context, report| {
                dcgm.run(context, report)
            }),
            Self::Wipe(wipe) => wipe.run(context),
            Self::Boot(boot) => boot.run(context),
        };
        match done {
            Ok(outcome) => outcome,
            // Whatever else went wrong, it went wrong since it was stopped.
            Err(_) if context.stop.is_said() => Outcome::Stopped,
            Err(failure) if failure.reason == UNSUPPORTED => Outcome::Unsupported(failure),
            Err(failure) => Outcome::Failed(failure),
        }
    }
}

/// Decodes params, for [`Kind::read`].
pub fn decode<M: Message>(params: &[u8]) -> Result<M, String> {
    M::decode(params).map_err(|error: DecodeError| format!("the params cannot be read: {error}"))
}

/// An error with all its causes, for a person.
pub fn explained(reason: &'static str, error: &dyn std::error::Error) -> Failure {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        message.push_str(": ");
        message.push_str(&error.to_string());
        cause = error.source();
    }
    Failure { reason, message }
}
