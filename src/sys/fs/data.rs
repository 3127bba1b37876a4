//! A regular file that is read and written in place, at given offsets, for as long as it is open:
//! what the journal is made of. Everything else replaces files whole ([`Dir::write_atomic`]).
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use rustix::fs::{
    AtFlags, FallocateFlags, FlockOperation, Gid, Mode, OFlags, Uid, fallocate, fchmod, fchown,
    fdatasync, flock, fstat, fsync, linkat, unlinkat,
};
use rustix::io::Errno;

use super::tape::{self, Step};
use super::{Cause, Dir, Error, component, retry};

/// An open file of a [`Dir`].
pub struct DataFile {
    file: File,
    path: PathBuf,
}

/// Whose a file is, and who may do what with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ownership {
    pub uid: u32,
    /// The permission bits.
    pub mode: u32,
}

impl Dir {
    /// Opens the regular file `name` for reading and writing.
    ///
    /// # Errors
    /// It is missing ([`Error::is_missing`]), a symlink or other than a regular file, or not
    /// permitted.
    pub fn open_data(&self, name: &str) -> Result<DataFile, Error> {
        self.data(name, OFlags::RDWR)
    }

    /// Opens the regular file `name` for reading.
    ///
    /// # Errors
    /// As [`open_data`](Self::open_data).
    pub fn view_data(&self, name: &str) -> Result<DataFile, Error> {
        self.data(name, OFlags::RDONLY)
    }

    /// Creates the file `name` with `mode`, empty. A leftover of that name is removed first, never
    /// reused: its mode or owner may be another's.
    ///
    /// # Errors
    /// What openat(2), unlinkat(2) or fchmod(2) says.
    pub fn create_data(&self, name: &str, mode: u32) -> Result<DataFile, Error> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let create = || self.open_file(name, flags, "create");
        let path = self.join(name);
        let file = match create() {
            Err(error) if error.is_there() => {
                retry(|| unlinkat(self, name, AtFlags::empty()))
                    .map_err(|errno| Error::os("remove", &path, errno))?;
                tape::removed(name);
                create()?
            }
            opened => opened?,
        };
        tape::created(name, &file);
        fchmod(&file, Mode::from_raw_mode(mode))
            .map_err(|errno| Error::os("create", &path, errno))?;
        Ok(DataFile { file, path })
    }

    /// Gives the file `from` the second name `to`, which must be free, and flushes the directory.
    ///
    /// # Errors
    /// `to` is there ([`Error::is_there`]), or what linkat(2) or fsync(2) says.
    pub fn link_new(&self, from: &str, to: &str) -> Result<(), Error> {
        component(from, &self.join(from))?;
        component(to, &self.join(to))?;
        tape::before(Step::Link)
            .and_then(|()| retry(|| linkat(self, from, self, to, AtFlags::empty())))
            .map_err(|errno| Error::os("link", &self.join(to), errno))?;
        tape::linked(from, to);
        self.sync()
    }

    /// Whether `name` is `file` itself.
    ///
    /// # Errors
    /// What fstat(2) says, save that there is no such name.
    pub fn is_named(&self, name: &str, file: &DataFile) -> Result<bool, Error> {
        let failed = |errno| Error::os("look at", &self.join(name), errno);
        let named = match self.stat(name) {
            Err(Errno::NOENT) => return Ok(false),
            named => named.map_err(failed)?,
        };
        let open = fstat(&file.file).map_err(failed)?;
        Ok(named.st_ino == open.st_ino && named.st_dev == open.st_dev)
    }

    fn data(&self, name: &str, flags: OFlags) -> Result<DataFile, Error> {
        Ok(DataFile {
            file: self.open_file(name, flags, "open")?,
            path: self.join(name),
        })
    }
}

impl DataFile {
    /// Its length in bytes.
    ///
    /// # Errors
    /// What fstat(2) says.
    pub fn length(&self) -> Result<u64, Error> {
        let stat = fstat(&self.file).map_err(|errno| self.failed("look at", errno))?;
        Ok(u64::try_from(stat.st_size).unwrap_or(0))
    }

    /// Whether it has no name any more: nothing but this descriptor holds it.
    pub fn is_deleted(&self) -> bool {
        fstat(&self.file).is_ok_and(|stat| stat.st_nlink == 0)
    }

    /// Whose it is.
    ///
    /// # Errors
    /// What fstat(2) says.
    pub fn ownership(&self) -> Result<Ownership, Error> {
        let stat = fstat(&self.file).map_err(|errno| self.failed("look at", errno))?;
        Ok(Ownership {
            uid: stat.st_uid,
            mode: stat.st_mode & 0o7777,
        })
    }

    /// Sets its permission bits.
    ///
    /// # Errors
    /// What fchmod(2) says.
    pub fn set_mode(&self, mode: u32) -> Result<(), Error> {
        fchmod(&self.file, Mode::from_raw_mode(mode))
            .map_err(|errno| self.failed("change the mode of", errno))
    }

    /// Gives the file to the account that `other` belongs to, where it is not that account's already.
    ///
    /// # Errors
    /// What fstat(2) or fchown(2) says.
    pub fn take_owner_of(&self, other: &Self) -> Result<(), Error> {
        let owner = |file: &Self| {
            fstat(&file.file)
                .map(|stat| (stat.st_uid, stat.st_gid))
                .map_err(|errno| file.failed("look at", errno))
        };
        let (uid, gid) = owner(other)?;
        if owner(self)?.0 == uid {
            return Ok(());
        }
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        fchown(&self.file, Some(uid), Some(gid))
            .map_err(|errno| self.failed("change the owner of", errno))
    }

    /// Takes the file for this process alone, until it is closed.
    ///
    /// # Errors
    /// Another process has it ([`Error::is_locked`]).
    pub fn lock(&self) -> Result<(), Error> {
        retry(|| flock(&self.file, FlockOperation::NonBlockingLockExclusive))
            .map_err(|errno| self.failed("lock", errno))
    }

    /// Fills `buffer` from `offset` on; the count is smaller only at the file's end.
    ///
    /// # Errors
    /// What pread(2) says.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Error> {
        let mut done = 0;
        while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.file.read_at(rest, offset.saturating_add(done as u64)) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::io("read", &self.path, error)),
            }
        }
        Ok(done)
    }

    /// Writes all of `bytes` at `offset`. On an error, any part of them may have been written.
    ///
    /// # Errors
    /// What pwrite(2) says.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), Error> {
        tape::wrote(&self.file, offset, bytes);
        tape::before(Step::Write).map_err(|errno| self.failed("write", errno))?;
        self.file
            .write_all_at(bytes, offset)
            .map_err(|error| Error::io("write", &self.path, error))
    }

    /// Flushes its bytes, and of its metadata what reading them needs, to the disk.
    ///
    /// # Errors
    /// The disk failed; what was written since the last flush may be lost, whatever a later flush
    /// says.
    pub fn sync_data(&self) -> Result<(), Error> {
        let synced = tape::before(Step::Sync).and_then(|()| retry(|| fdatasync(&self.file)));
        tape::synced(&self.file, synced.is_ok());
        synced.map_err(|errno| self.failed("flush", errno))
    }

    /// Flushes its bytes and all its metadata to the disk.
    ///
    /// # Errors
    /// As [`sync_data`](Self::sync_data).
    pub fn sync(&self) -> Result<(), Error> {
        let synced = tape::before(Step::Sync).and_then(|()| retry(|| fsync(&self.file)));
        tape::synced(&self.file, synced.is_ok());
        synced.map_err(|errno| self.failed("flush", errno))
    }

    /// Cuts the file, or lengthens it with zeros, to `length`.
    ///
    /// # Errors
    /// What ftruncate(2) says.
    pub fn set_length(&self, length: u64) -> Result<(), Error> {
        tape::before(Step::SetLength).map_err(|errno| self.failed("cut", errno))?;
        self.file
            .set_len(length)
            .map_err(|error| Error::io("cut", &self.path, error))?;
        tape::set_length(&self.file, length);
        Ok(())
    }

    /// Reserves the disk's blocks for the `length` bytes from `offset` on, lengthening the file
    /// with zeros where it is shorter: writing them will not find the disk full. Where the
    /// filesystem cannot reserve, zeros are written.
    ///
    /// # Errors
    /// [`Error::is_full`], or what fallocate(2) or pwrite(2) says.
    pub fn allocate(&self, offset: u64, length: u64) -> Result<(), Error> {
        let reserve = || fallocate(&self.file, FallocateFlags::empty(), offset, length);
        match tape::before(Step::Allocate).and_then(|()| retry(reserve)) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.write_zeros(offset, length),
            done => {
                done.map_err(|errno| self.failed("reserve space for", errno))?;
                tape::allocated(&self.file, offset.saturating_add(length));
                Ok(())
            }
        }
    }

    /// Writes zeros where the file does not reach yet, and nothing where it does.
    fn write_zeros(&self, offset: u64, length: u64) -> Result<(), Error> {
        let end = offset.saturating_add(length);
        let mut at = self.length()?.max(offset);
        while at < end {
            let zeros = [0; 4096];
            let count = usize::try_from(end - at).unwrap_or(zeros.len());
            let part = zeros.get(..count).unwrap_or(&zeros);
            self.write_at(part, at)?;
            at += part.len() as u64;
        }
        Ok(())
    }

    fn failed(&self, operation: &'static str, errno: Errno) -> Error {
        Error::new(operation, &self.path, Cause::Os(errno.into()))
    }
}
