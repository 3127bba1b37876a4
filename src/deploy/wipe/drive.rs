//! The edge: a disk of this machine, claimed for the time of its wipe.
use std::cell::Cell;
use std::io;
use std::time::{Duration, Instant};

use super::{Drive, Plan, Way, wipe};
use crate::deploy::disk;
use crate::facts::tree::Tree;
use crate::proto::{DiskTarget, WipeMethod, WipeOutcome, WipedDisk};
use crate::sys::block::{Block, CALL};
use crate::sys::memory::Region;
use crate::sys::passthrough::{Admin, Answer, Data, Device};
use crate::sys::patience::Patience;

/// Names in a directory of a disk.
const NAMES: usize = 1024;
/// Written at once where the kernel does not zero by itself.
const WRITE: u64 = 1024 * 1024;

struct Claimed {
    disk: Block,
    commands: Device,
    patience: Patience,
    /// Unix time in milliseconds, and the clock then.
    begun: (i64, Instant),
    /// The kernel zeroes ranges of this disk.
    zeroes: Cell<bool>,
}

impl Drive for Claimed {
    fn nvme(&self, admin: Admin, data: &mut [u8], within: Duration) -> io::Result<u16> {
        self.patience.during(within + CALL, || {
            self.commands.nvme_admin(admin, data, within)
        })
    }

    fn namespace(&self) -> io::Result<u32> {
        self.commands.nvme_namespace()
    }

    fn scsi(&self, cdb: &[u8], data: Data<'_>, within: Duration) -> io::Result<Answer> {
        self.patience
            .during(within + CALL, || self.commands.scsi(cdb, data, within))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.disk.read(out, offset)
    }

    fn zero(&self, offset: u64, length: u64) -> io::Result<()> {
        if self.zeroes.get() {
            match self.disk.zero(offset, length) {
                Err(error)
                    if matches!(
                        error.raw_os_error(),
                        Some(libc::EOPNOTSUPP | libc::ENOTTY | libc::EINVAL)
                    ) =>
                {
                    self.zeroes.set(false);
                }
                zeroed => return zeroed,
            }
        }
        let zeros = Region::new(usize::try_from(WRITE).unwrap_or(1 << 20))?;
        let mut done = 0;
        while done < length {
            let piece = WRITE.min(length - done);
            let bytes = usize::try_from(piece).ok();
            let bytes = bytes.and_then(|length| zeros.bytes().get(..length));
            self.disk.write(bytes.unwrap_or_default(), offset + done)?;
            done += piece;
        }
        Ok(())
    }

    fn discard(&self, offset: u64, length: u64, secure: bool) -> io::Result<()> {
        self.disk.discard(offset, length, secure)
    }

    fn settle(&self) -> io::Result<()> {
        self.disk.flush()
    }

    fn pause(&self, wait: Duration) {
        std::thread::sleep(wait);
    }

    fn now_ms(&self) -> i64 {
        let (then, since) = self.begun;
        let passed = i64::try_from(since.elapsed().as_millis()).unwrap_or(i64::MAX);
        then.saturating_add(passed)
    }
}

/// What became of a disk that nothing was written to.
pub fn refused(target: DiskTarget, reason: &str, message: String) -> WipedDisk {
    WipedDisk {
        target: Some(target),
        outcome: WipeOutcome::REFUSED,
        reason: reason.to_owned(),
        message,
        ..WipedDisk::default()
    }
}

/// Finds the disk that `target` means, claims it, and wipes it by `methods` (none: all). `now_ms` is the time now, for
/// the receipt; `patience` sees each call to the disk.
pub fn wipe_target(
    target: DiskTarget,
    methods: &[WipeMethod],
    seed: [u8; 8],
    now_ms: i64,
    patience: &Patience,
    say: &mut dyn FnMut(u32, &str),
) -> WipedDisk {
    let tree = Tree::new("/".as_ref());
    let found = match disk::find(&tree, &disk::list(&tree), &target) {
        Ok(found) => found,
        Err(refusal) => return refused(target, refusal.word(), refusal.to_string()),
    };
    let base = ["sys/block/", &found.kernel_name].concat();
    let held = patience.during(CALL, || Ok(disk::hold(&tree, &found)));
    let held = held.unwrap_or_else(|error| {
        let name = found.kernel_name.clone();
        Err(disk::Refusal::NotOpened(name, error.to_string()))
    });
    let claimed = held.and_then(|disk| {
        let commands = disk.passthrough().map_err(|error| {
            disk::Refusal::NotOpened(found.kernel_name.clone(), error.to_string())
        })?;
        Ok(Claimed {
            commands,
            disk: disk.with(patience),
            patience: patience.clone(),
            begun: (now_ms, Instant::now()),
            zeroes: Cell::new(true),
        })
    });
    let drive = match claimed {
        Ok(drive) => drive,
        Err(refusal) => {
            return WipedDisk {
                disk: Some(found),
                ..refused(target, refusal.word(), refusal.to_string())
            };
        }
    };
    let vendor = tree.text(&[&base, "/device/vendor"].concat());
    let number = |path: &[&str]| tree.number(&path.concat()).unwrap_or(0);
    let sectors = |n: u64| n.saturating_mul(512);
    let partitions: Vec<(u64, u64)> = tree
        .names(&base, NAMES)
        .unwrap_or_default()
        .iter()
        .filter(|name| tree.exists(&[&base, "/", name, "/partition"].concat()))
        .map(|name| {
            let start = sectors(number(&[&base, "/", name, "/start"]));
            let size = sectors(number(&[&base, "/", name, "/size"]));
            (start, start.saturating_add(size))
        })
        .collect();
    let plan = Plan {
        disk: &found,
        methods,
        partitions: &partitions,
        discards: number(&[&base, "/queue/discard_max_bytes"]) > 0,
        seed,
    };
    let way = Way::of(&found.transport, &vendor);
    let mut wiped = wipe(&drive, way, &plan, say);
    wiped.target = Some(target);
    // So that nobody finds partitions that are no more.
    let _ = disk::reread(&drive.disk);
    wiped
}
