//! What the tests see of the file layer: every change that a thread makes to its files, in order,
//! and a way to let a step fail. A shipped build has none of it.
use std::os::fd::AsFd;

use rustix::io::Errno;

/// A step that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Create,
    Write,
    Sync,
    Allocate,
    SetLength,
    Rename,
    Link,
    Remove,
    SyncDir,
}

#[cfg(not(test))]
mod off {
    use super::{AsFd, Errno, Step};

    #[inline(always)]
    pub(in super::super) fn before(_: Step) -> Result<(), Errno> {
        Ok(())
    }
    #[inline(always)]
    pub(in super::super) fn created(_: &str, _: impl AsFd) {}
    #[inline(always)]
    pub(in super::super) fn wrote(_: impl AsFd, _: u64, _: &[u8]) {}
    #[inline(always)]
    pub(in super::super) fn synced(_: impl AsFd, _: bool) {}
    #[inline(always)]
    pub(in super::super) fn allocated(_: impl AsFd, _: u64) {}
    #[inline(always)]
    pub(in super::super) fn set_length(_: impl AsFd, _: u64) {}
    #[inline(always)]
    pub(in super::super) fn renamed(_: &str, _: &str) {}
    #[inline(always)]
    pub(in super::super) fn linked(_: &str, _: &str) {}
    #[inline(always)]
    pub(in super::super) fn removed(_: &str) {}
    #[inline(always)]
    pub(in super::super) fn dir_synced() {}
}

#[cfg(not(test))]
pub(super) use off::*;
#[cfg(test)]
pub(crate) use on::*;

#[cfg(test)]
mod on {
    use std::cell::RefCell;

    use super::{AsFd, Errno, Step};

    /// A change to a file (by its inode) or to the directory's names.
    #[derive(Clone, Debug)]
    pub(crate) enum Op {
        Create {
            name: String,
            inode: u64,
        },
        Write {
            inode: u64,
            offset: u64,
            bytes: Vec<u8>,
        },
        /// The file is at least so long, with zeros.
        Allocate {
            inode: u64,
            length: u64,
        },
        SetLength {
            inode: u64,
            length: u64,
        },
        Sync {
            inode: u64,
        },
        /// What was not on the disk may be lost, and a later sync does not bring it there.
        SyncFailed {
            inode: u64,
        },
        Rename {
            from: String,
            to: String,
        },
        Link {
            from: String,
            to: String,
        },
        Remove {
            name: String,
        },
        SyncDir,
        /// The test's own: up to here everything was promised that this number means.
        Promise(usize),
    }

    #[derive(Default)]
    struct Tape {
        ops: Option<Vec<Op>>,
        faults: Vec<(Step, Errno)>,
        lies: bool,
    }

    thread_local! {
        static TAPE: RefCell<Tape> = RefCell::new(Tape::default());
    }

    /// Begins to record what this thread does.
    pub(crate) fn start() {
        TAPE.with_borrow_mut(|tape| tape.ops = Some(Vec::new()));
    }

    /// Ends the recording.
    pub(crate) fn stop() -> Vec<Op> {
        TAPE.with_borrow_mut(|tape| tape.ops.take().unwrap_or_default())
    }

    pub(crate) fn promise(number: usize) {
        note(|| Op::Promise(number));
    }

    /// From now on each such step of this thread fails, until [`mend`].
    pub(crate) fn fail(step: Step, errno: Errno) {
        TAPE.with_borrow_mut(|tape| tape.faults.push((step, errno)));
    }

    /// From now on the disk of this thread confirms flushes that it does not make.
    pub(crate) fn lie() {
        TAPE.with_borrow_mut(|tape| tape.lies = true);
    }

    pub(crate) fn mend() {
        TAPE.with_borrow_mut(|tape| tape.faults.clear());
    }

    pub(in super::super) fn before(step: Step) -> Result<(), Errno> {
        TAPE.with_borrow(
            |tape| match tape.faults.iter().find(|(failing, _)| *failing == step) {
                Some((_, errno)) => Err(*errno),
                None => Ok(()),
            },
        )
    }

    fn note(op: impl FnOnce() -> Op) {
        TAPE.with_borrow_mut(|tape| {
            if let Some(ops) = &mut tape.ops {
                ops.push(op());
            }
        });
    }

    fn inode(fd: impl AsFd) -> u64 {
        rustix::fs::fstat(fd).unwrap().st_ino
    }

    pub(in super::super) fn created(name: &str, fd: impl AsFd) {
        note(|| Op::Create {
            name: name.to_owned(),
            inode: inode(fd),
        });
    }

    pub(in super::super) fn wrote(fd: impl AsFd, offset: u64, bytes: &[u8]) {
        note(|| Op::Write {
            inode: inode(fd),
            offset,
            bytes: bytes.to_vec(),
        });
    }

    pub(in super::super) fn synced(fd: impl AsFd, ok: bool) {
        let lies = TAPE.with_borrow(|tape| tape.lies);
        note(|| {
            let inode = inode(fd);
            if ok && !lies {
                Op::Sync { inode }
            } else {
                Op::SyncFailed { inode }
            }
        });
    }

    pub(in super::super) fn allocated(fd: impl AsFd, length: u64) {
        note(|| Op::Allocate {
            inode: inode(fd),
            length,
        });
    }

    pub(in super::super) fn set_length(fd: impl AsFd, length: u64) {
        note(|| Op::SetLength {
            inode: inode(fd),
            length,
        });
    }

    pub(in super::super) fn renamed(from: &str, to: &str) {
        note(|| Op::Rename {
            from: from.to_owned(),
            to: to.to_owned(),
        });
    }

    pub(in super::super) fn linked(from: &str, to: &str) {
        note(|| Op::Link {
            from: from.to_owned(),
            to: to.to_owned(),
        });
    }

    pub(in super::super) fn removed(name: &str) {
        note(|| Op::Remove {
            name: name.to_owned(),
        });
    }

    pub(in super::super) fn dir_synced() {
        note(|| Op::SyncDir);
    }
}
