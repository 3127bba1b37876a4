//! A disk that is written: opened alone and past the page cache, with the few things besides bytes that the
//! kernel does for it (linux/fs.h). A plain file serves as one too: for images on a file system, and for tests.
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FallocateFlags, fallocate, major, minor};

use super::memory::Region;
use super::passthrough::Device;
use super::patience::Patience;

const BLKRRPART: libc::c_ulong = 0x125f;
const BLKFLSBUF: libc::c_ulong = 0x1261;
const BLKSSZGET: libc::c_ulong = 0x1268;
const BLKGETSIZE64: libc::c_ulong = 0x8008_1272;
const BLKDISCARD: libc::c_ulong = 0x1277;
const BLKSECDISCARD: libc::c_ulong = 0x127d;
const BLKZEROOUT: libc::c_ulong = 0x127f;

/// What any one call may take: longer than the six tries of 30 s that the kernel makes with a SCSI disk.
pub const CALL: Duration = Duration::from_secs(200);
/// What a [`Region`] has at least.
const PAGE: usize = 4096;
/// Of a plain file.
const SECTOR: u32 = 512;

/// A disk that is open. Offsets, lengths and the buffers' addresses are multiples of its sector: the kernel refuses others.
#[derive(Debug)]
pub struct Block {
    file: File,
    size: u64,
    sector: u32,
    is_device: bool,
    patience: Patience,
}

impl Block {
    /// Opens a disk to be read and written. A disk that is mounted, assembled into something or opened so by another
    /// process is refused by the kernel (`EBUSY`).
    ///
    /// # Errors
    /// The kernel's.
    pub fn open(path: &Path) -> io::Result<Self> {
        // Without O_CREAT the flag means a device that nobody else holds; on a plain file it means nothing.
        let open = |direct| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(libc::O_EXCL | libc::O_CLOEXEC | libc::O_NOFOLLOW | direct)
                .open(path)
        };
        let file = match open(libc::O_DIRECT) {
            // A file system in memory has no other way.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => open(0)?,
            opened => opened?,
        };
        let metadata = file.metadata()?;
        if !metadata.file_type().is_block_device() {
            return Ok(Self {
                size: metadata.len(),
                sector: SECTOR,
                is_device: false,
                patience: Patience::default(),
                file,
            });
        }
        let (mut size, mut sector) = (0_u64, 0_i32);
        // SAFETY: the kernel writes one u64, which lives through the call.
        check(unsafe { libc::ioctl(file.as_raw_fd(), BLKGETSIZE64 as _, &raw mut size) })?;
        // SAFETY: the kernel writes one int, which lives through the call.
        check(unsafe { libc::ioctl(file.as_raw_fd(), BLKSSZGET as _, &raw mut sector) })?;
        Ok(Self {
            size,
            sector: u32::try_from(sector).unwrap_or(SECTOR).max(SECTOR),
            is_device: true,
            patience: Patience::default(),
            file,
        })
    }

    /// The same disk, for each call to which there is `patience`.
    #[must_use]
    pub fn with(self, patience: &Patience) -> Self {
        let patience = patience.clone();
        Self { patience, ..self }
    }

    fn call<T>(&self, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.patience.during(CALL, call)
    }

    /// In bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes of a logical sector.
    pub fn sector(&self) -> u32 {
        self.sector
    }

    /// # Errors
    /// The kernel's; what was written until then is not known.
    pub fn write(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.call(|| self.file.write_all_at(bytes, at))
    }

    /// # Errors
    /// The kernel's, and the disk's end.
    pub fn read(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        self.call(|| self.file.read_exact_at(bytes, at))
    }

    /// Bytes from anywhere on the disk, as many as there are up to its end.
    ///
    /// # Errors
    /// The kernel's, or there is no memory.
    pub fn bytes(&self, at: u64, length: usize) -> io::Result<Vec<u8>> {
        let sector = u64::from(self.sector);
        let last = self.size / sector * sector;
        let begin = (at / sector * sector).min(last);
        let end = at.saturating_add(length as u64).min(last);
        let whole = usize::try_from(end.next_multiple_of(sector).saturating_sub(begin));
        let whole = whole.map_err(io::Error::other)?;
        let mut region = Region::new(whole.next_multiple_of(PAGE).max(PAGE))?;
        let read = region.bytes_mut().get_mut(..whole).unwrap_or_default();
        self.read(read, begin)?;
        let skip = usize::try_from(at - begin).unwrap_or(whole);
        let left = read.get(skip..).unwrap_or_default();
        Ok(left.get(..length).unwrap_or(left).to_vec())
    }

    /// Has the range read as zeros, by the disk's own means if it has some (NVMe Write Zeroes, WRITE SAME).
    ///
    /// # Errors
    /// The kernel's.
    pub fn zero(&self, at: u64, length: u64) -> io::Result<()> {
        if !self.is_device {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            return self.call(|| Ok(fallocate(&self.file, hole, at, length)?));
        }
        self.range(BLKZEROOUT, at, length)
    }

    /// Has the disk forget a range; what is read there then is the disk's affair. `secure`: so that nothing is left of it.
    ///
    /// # Errors
    /// The kernel's: it does not take that.
    pub fn discard(&self, at: u64, length: u64, secure: bool) -> io::Result<()> {
        match secure {
            true => self.range(BLKSECDISCARD, at, length),
            false => self.range(BLKDISCARD, at, length),
        }
    }

    fn range(&self, request: libc::c_ulong, at: u64, length: u64) -> io::Result<()> {
        let range = [at, length];
        // A slow disk makes a MiB a second.
        let limit = CALL + Duration::from_secs(length >> 20);
        self.patience.during(limit, || {
            // SAFETY: the kernel reads two u64, which live through the call.
            check(unsafe { libc::ioctl(self.file.as_raw_fd(), request as _, range.as_ptr()) })
        })
    }

    /// The device's number, as the kernel's files have it: `MAJOR:MINOR`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn number(&self) -> io::Result<String> {
        let number = self.file.metadata()?.rdev();
        Ok([&major(number).to_string(), ":", &minor(number).to_string()].concat())
    }

    /// The same disk, for commands of its own kind.
    ///
    /// # Errors
    /// Too many open files.
    pub fn passthrough(&self) -> io::Result<Device> {
        Ok(Device::of(self.file.try_clone()?))
    }

    /// Returns once everything written is on the medium, and nothing of the disk in the page cache.
    ///
    /// # Errors
    /// The kernel's: something written may be lost.
    pub fn flush(&self) -> io::Result<()> {
        // The kernel gives a flush twice the time of a write.
        self.patience.during(2 * CALL, || self.file.sync_all())?;
        self.plain(BLKFLSBUF)
    }

    /// Has the kernel look at the partition table anew.
    ///
    /// # Errors
    /// Somebody holds a partition, or the disk takes none.
    pub fn reread_partitions(&self) -> io::Result<()> {
        self.plain(BLKRRPART)
    }

    fn plain(&self, request: libc::c_ulong) -> io::Result<()> {
        if !self.is_device {
            return Ok(());
        }
        self.call(|| {
            // SAFETY: these requests take no argument.
            check(unsafe { libc::ioctl(self.file.as_raw_fd(), request as _, 0) })
        })
    }
}

fn check(done: i32) -> io::Result<()> {
    match done {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::fs::tests::scratch;

    #[test]
    fn what_is_written_is_read_again_and_zeros_are_zeros() {
        let dir = scratch("block");
        let path = dir.join("disk");
        let file = File::create(&path).unwrap();
        file.set_len(1 << 20).unwrap();
        let block = Block::open(&path).unwrap();
        assert_eq!((block.size(), block.sector()), (1 << 20, 512));
        let mut region = Region::new(8192).unwrap();
        region.bytes_mut().fill(7);
        block.write(region.bytes_mut(), 4096).unwrap();
        block.zero(8192, 4096).unwrap();
        block.flush().unwrap();
        block.reread_partitions().unwrap();
        block.read(region.bytes_mut(), 4096).unwrap();
        let (written, zeroed) = region.bytes_mut().split_at(4096);
        assert!(written.iter().all(|b| *b == 7) && zeroed.iter().all(|b| *b == 0));
        assert!(block.read(region.bytes_mut(), (1 << 20) - 4096).is_err());
        assert!(Block::open(&dir.join("none")).is_err());
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn bytes_from_anywhere_end_with_the_disk() {
        let dir = scratch("block-bytes");
        let path = dir.join("disk");
        // The last sector is not whole.
        let image: Vec<u8> = (0..2560_u32 + 100).map(|n| (n / 10) as u8).collect();
        std::fs::write(&path, &image).unwrap();
        let block = Block::open(&path).unwrap();
        for (at, length) in [
            (0, 2560),
            (0, 1),
            (511, 2),
            (1000, 1000),
            (2559, 1),
            (512, 512),
        ] {
            let bytes = block.bytes(at, length).unwrap();
            assert_eq!(bytes, image[at as usize..at as usize + length]);
        }
        assert_eq!(block.bytes(2500, 4096).unwrap(), image[2500..2560]);
        for at in [2560, 2660, 1 << 40, u64::MAX] {
            assert!(block.bytes(at, 4096).unwrap().is_empty(), "{at}");
        }
        std::fs::remove_dir_all(dir).unwrap();
    }
}
