//! Files that survive power loss at any instant and cannot be tricked out of their directory.
//!
//! A [`Dir`] is an open directory; everything else happens beneath it. A write goes to
//! `NAME.new`, which is flushed, renamed over `NAME`, and the directory flushed: a reader finds
//! the old bytes or the new, whole. A file has its final mode before its first byte. Symlinks are
//! never followed, save by [`Dir::open_beneath`], and there never out of the directory. Only
//! regular files are read or replaced, and reads have a bound.
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    Access, AtFlags, CWD, FileType, FlockOperation, Gid, Mode, OFlags, RenameFlags, ResolveFlags,
    Uid, accessat, chownat, fchmod, flock, fstat, fsync, mkdirat, openat, openat2, renameat,
    renameat_with, statat, unlinkat,
};
use rustix::io::Errno;

use super::user::Account;
pub use data::{DataFile, Ownership};
pub use error::{Cause, Error};
use tape::Step;

mod beneath;
mod data;
mod error;
pub(crate) mod tape;

/// An open directory, by the path it was opened at.
pub struct Dir {
    fd: OwnedFd,
    path: PathBuf,
}

/// Keeps the directory to this process, until dropped or the process ends.
pub struct Lock {
    _fd: OwnedFd,
}

/// What a name in a directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Regular,
    Directory,
    Symlink,
    Other,
}

/// The entries of a directory, whatever signals come: the library's own passes on `EINTR`.
///
/// # Errors
/// The kernel's.
pub fn entries(path: &Path) -> std::io::Result<std::fs::ReadDir> {
    loop {
        match std::fs::read_dir(path) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

impl Dir {
    /// Opens the directory at `path`.
    ///
    /// # Errors
    /// It is missing, no directory, or not permitted.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = retry(|| openat(CWD, path, flags, Mode::empty()))
            .map_err(|errno| Error::os("open the directory", path, errno))?;
        Ok(Self {
            fd,
            path: path.to_owned(),
        })
    }

    /// Opens the directory at `path`, made with `mode` when missing (and its parents with 0755).
    /// The entry of each directory made is on the disk when this returns.
    ///
    /// # Errors
    /// As [`open`](Self::open), and what mkdir(2) says.
    pub fn create(path: &Path, mode: u32) -> Result<Self, Error> {
        match Self::open(path) {
            Err(error) if error.is_missing() => {}
            opened => return opened,
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Self::open(path);
        };
        let parent = if parent.as_os_str().is_empty() {
            Path::new(".")
        } else {
            parent
        };
        let parent = Self::create(parent, 0o755)?;
        let failed = |errno| Error::os("create the directory", path, errno);
        match retry(|| mkdirat(&parent.fd, name, Mode::from_raw_mode(mode))) {
            // Somebody else was faster; their mode stands.
            Err(Errno::EXIST) => return Self::open(path),
            made => made.map_err(failed)?,
        }
        let dir = Self::open(path)?;
        fchmod(&dir.fd, Mode::from_raw_mode(mode)).map_err(failed)?;
        parent.sync()?;
        Ok(dir)
    }

    /// The same directory, opened once more.
    ///
    /// # Errors
    /// No descriptor was left.
    pub fn reopen(&self) -> Result<Self, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = retry(|| openat(&self.fd, ".", flags, Mode::empty()))
            .map_err(|errno| Error::os("open the directory", &self.path, errno))?;
        Ok(Self {
            fd,
            path: self.path.clone(),
        })
    }

    /// The path this directory was opened at.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of `name` in this directory, for messages.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The bytes of the regular file `name`, at most `max` of them.
    ///
    /// # Errors
    /// It is missing ([`Error::is_missing`]), a symlink or other than a regular file, longer
    /// than `max`, or cannot be read.
    pub fn read(&self, name: &str, max: usize) -> Result<Vec<u8>, Error> {
        let file = self.open_file(name, OFlags::RDONLY, "open")?;
        read_bounded(file, &self.join(name), max)
    }

    /// As [`read`](Self::read), with `None` for a missing file.
    ///
    /// # Errors
    /// As [`read`](Self::read), but for a missing file.
    pub fn read_optional(&self, name: &str, max: usize) -> Result<Option<Vec<u8>>, Error> {
        match self.read(name, max) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens the regular file at a relative path none of whose parts is a symlink.
    ///
    /// # Errors
    /// As [`read`](Self::read); a part that is no name of a file (`..`, an empty one) is refused.
    pub fn open_plain(&self, path: &str) -> Result<File, Error> {
        let Some((parent, name)) = path.rsplit_once('/') else {
            return self.open_file(path, OFlags::RDONLY, "open");
        };
        let mut dir = self.reopen()?;
        for part in parent.split('/') {
            let shown = dir.join(part);
            component(part, &shown)?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let fd = retry(|| openat(&dir.fd, part, flags, Mode::empty()))
                .map_err(|errno| Error::os("open the directory", &shown, errno))?;
            dir = Self { fd, path: shown };
        }
        dir.open_file(name, OFlags::RDONLY, "open")
    }

    /// Opens a regular file by a relative path, following symlinks that stay beneath this
    /// directory (as in a Kubernetes Secret volume, whose files lead through `..data`).
    ///
    /// # Errors
    /// [`Cause::Escapes`] when the path or a symlink leads out of the directory; else as
    /// [`read`](Self::read).
    pub fn open_beneath(&self, path: &str) -> Result<File, Error> {
        let shown = self.join(path);
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = beneath::open(self.fd.as_fd(), Path::new(path), flags)
            .map_err(|errno| Error::os("open", &shown, errno).escaping())?;
        regular(fd, "open", &shown)
    }

    /// Replaces the file `name` by `bytes` with `mode`, so that after a crash at any instant it
    /// holds either what it held or all of `bytes`. When this returns, the disk has them.
    ///
    /// # Errors
    /// `name` is there and no regular file, or what the failing step's syscall says; then the
    /// old file stands untouched (unless only the last flush of the directory failed).
    pub fn write_atomic(&self, name: &str, bytes: &[u8], mode: u32) -> Result<(), Error> {
        let path = self.join(name);
        component(name, &path)?;
        if let Some(kind) = self.kind(name)?
            && kind != Kind::Regular
        {
            return Err(Error::new("replace", &path, Cause::NotRegular(kind)));
        }
        let new = format!("{name}.new");
        let written = self
            .write_new(&new, bytes, mode)
            .and_then(|()| self.rename(&new, name));
        if written.is_err()
            && self
                .kind(&new)
                .is_ok_and(|kind| kind == Some(Kind::Regular))
        {
            // Best effort: a leftover is replaced by the next write anyway.
            if unlinkat(&self.fd, &new, AtFlags::empty()).is_ok() {
                tape::removed(&new);
            }
        }
        written
    }

    /// Replaces the file `name` by `bytes` with `mode`, for readers that must never see half of it.
    /// Nothing is flushed: what a power cut leaves there is worth nothing.
    ///
    /// # Errors
    /// As [`write_atomic`](Self::write_atomic).
    pub fn replace(&self, name: &str, bytes: &[u8], mode: u32) -> Result<(), Error> {
        let new = format!("{name}.new");
        let path = self.join(&new);
        let failed = |errno| Error::os("write", &path, errno);
        component(name, &path)?;
        match retry(|| unlinkat(&self.fd, &new, AtFlags::empty())) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(failed(errno)),
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mut file = self.open_file(&new, flags, "create")?;
        fchmod(&file, Mode::from_raw_mode(mode)).map_err(failed)?;
        file.write_all(bytes)
            .map_err(|error| Error::io("write", &path, error))?;
        retry(|| renameat(&self.fd, &new, &self.fd, name)).map_err(failed)
    }

    /// Renames `from` to `to`, replacing a file `to`, and flushes the directory.
    ///
    /// # Errors
    /// What renameat(2) or fsync(2) says.
    pub fn rename(&self, from: &str, to: &str) -> Result<(), Error> {
        self.renamed(from, to, |from, to| renameat(&self.fd, from, &self.fd, to))
    }

    /// As [`rename`](Self::rename), but never onto a name that is there.
    ///
    /// # Errors
    /// `to` is there ([`Error::is_there`]); else as [`rename`](Self::rename).
    pub fn rename_new(&self, from: &str, to: &str) -> Result<(), Error> {
        self.renamed(from, to, |from, to| {
            match renameat_with(&self.fd, from, &self.fd, to, RenameFlags::NOREPLACE) {
                // Filesystems without RENAME_NOREPLACE (some FUSE, old NFS).
                Err(Errno::INVAL | Errno::NOSYS) => match self.stat(to) {
                    Ok(_) => Err(Errno::EXIST),
                    Err(Errno::NOENT) => renameat(&self.fd, from, &self.fd, to),
                    Err(errno) => Err(errno),
                },
                done => done,
            }
        })
    }

    /// Whether anything is called `name` here, a dangling symlink included.
    ///
    /// # Errors
    /// The directory cannot be searched.
    pub fn exists(&self, name: &str) -> Result<bool, Error> {
        Ok(self.kind(name)?.is_some())
    }

    /// What `name` is, or `None` when there is no such name. Symlinks are not followed.
    ///
    /// # Errors
    /// The directory cannot be searched.
    pub fn kind(&self, name: &str) -> Result<Option<Kind>, Error> {
        let path = self.join(name);
        component(name, &path)?;
        match self.stat(name) {
            Ok(stat) => Ok(Some(kind(stat.st_mode))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(Error::os("look at", &path, errno)),
        }
    }

    /// Removes the file `name` (a symlink itself, never its target) and flushes the directory.
    /// A missing file is no error.
    ///
    /// # Errors
    /// `name` is a directory, or what unlinkat(2) or fsync(2) says.
    pub fn remove(&self, name: &str) -> Result<(), Error> {
        let path = self.join(name);
        component(name, &path)?;
        match tape::before(Step::Remove)
            .and_then(|()| retry(|| unlinkat(&self.fd, name, AtFlags::empty())))
        {
            Ok(()) => {
                tape::removed(name);
                self.sync()
            }
            Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(Error::os("remove", &path, errno)),
        }
    }

    /// Gives `name` to `account`. A symlink changes hands itself, never what it points to; a file that has
    /// other names too is not given away, since one of them may be another's: whoever may write here could
    /// have linked it.
    ///
    /// # Errors
    /// [`Cause::Linked`], it is missing, or what chown(2) says.
    pub fn give(&self, name: &str, account: Account) -> Result<(), Error> {
        let path = self.join(name);
        component(name, &path)?;
        let failed = |errno| Error::os("give away", &path, errno);
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = retry(|| openat(&self.fd, name, flags, Mode::empty())).map_err(failed)?;
        let stat = fstat(&fd).map_err(failed)?;
        if kind(stat.st_mode) == Kind::Regular && stat.st_nlink > 1 {
            return Err(Error::new("give away", &path, Cause::Linked));
        }
        let (uid, gid) = (Uid::from_raw(account.uid), Gid::from_raw(account.gid));
        retry(|| chownat(&fd, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)).map_err(failed)
    }

    /// Takes the permissions `forbidden` from the directory; the mode it had, where it had one of them.
    ///
    /// # Errors
    /// What fstat(2) or fchmod(2) says.
    pub fn narrow(&self, forbidden: u32) -> Result<Option<u32>, Error> {
        let failed = |errno| Error::os("change the mode of", &self.path, errno);
        let mode = fstat(&self.fd).map_err(failed)?.st_mode & 0o7777;
        if mode & forbidden == 0 {
            return Ok(None);
        }
        fchmod(&self.fd, Mode::from_raw_mode(mode & !forbidden)).map_err(failed)?;
        Ok(Some(mode))
    }

    /// Flushes the directory's names to the disk.
    ///
    /// # Errors
    /// The disk failed.
    pub fn sync(&self) -> Result<(), Error> {
        match tape::before(Step::SyncDir).and_then(|()| retry(|| fsync(&self.fd))) {
            // Filesystems that cannot flush a directory (some FUSE) say so; nothing more to do.
            Ok(()) | Err(Errno::INVAL) => {
                tape::dir_synced();
                Ok(())
            }
            Err(errno) => Err(Error::os("flush the directory", &self.path, errno)),
        }
    }

    /// Takes this directory for this process alone; it leaves no file behind, and a process
    /// that dies lets go.
    ///
    /// # Errors
    /// Another process has it ([`Error::is_locked`]).
    pub fn lock(&self) -> Result<Lock, Error> {
        let failed = |errno| Error::os("lock the directory", &self.path, errno);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // An open of its own: a lock belongs to the open file, not to the descriptor.
        let fd = retry(|| openat(&self.fd, ".", flags, Mode::empty())).map_err(failed)?;
        retry(|| flock(&fd, FlockOperation::NonBlockingLockExclusive)).map_err(failed)?;
        Ok(Lock { _fd: fd })
    }

    /// Writes a page to a file that has no name and is gone at once: whether this directory can be
    /// written, a full disk and a quota included.
    ///
    /// # Errors
    /// What open(2), write(2) or fsync(2) says.
    pub fn try_write(&self) -> Result<(), Error> {
        let failed = |errno| Error::os("write to", &self.path, errno);
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        match retry(|| openat(&self.fd, ".", flags, Mode::RUSR | Mode::WUSR)) {
            Ok(file) => {
                let mut file = File::from(file);
                file.write_all(&[0; 4096])
                    .map_err(|error| Error::io("write to", &self.path, error))?;
                retry(|| fsync(&file)).map_err(failed)
            }
            // Filesystems without such files.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                retry(|| accessat(&self.fd, ".", Access::WRITE_OK, AtFlags::EACCESS))
                    .map_err(failed)
            }
            Err(errno) => Err(failed(errno)),
        }
    }

    fn write_new(&self, new: &str, bytes: &[u8], mode: u32) -> Result<(), Error> {
        let path = self.join(new);
        let failed = |errno| Error::os("write", &path, errno);
        let create = || {
            self.open_file(
                new,
                OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL,
                "create",
            )
        };
        let mut file = match create() {
            // A leftover of a crash: never reused, as its mode or owner may be another's.
            Err(error) if error.is_there() => {
                retry(|| unlinkat(&self.fd, new, AtFlags::empty()))
                    .map_err(|errno| Error::os("remove", &path, errno))?;
                tape::removed(new);
                create()?
            }
            opened => opened?,
        };
        tape::created(new, &file);
        fchmod(&file, Mode::from_raw_mode(mode)).map_err(failed)?;
        tape::wrote(&file, 0, bytes);
        tape::before(Step::Write).map_err(failed)?;
        file.write_all(bytes)
            .map_err(|error| Error::io("write", &path, error))?;
        let synced = tape::before(Step::Sync).and_then(|()| retry(|| fsync(&file)));
        tape::synced(&file, synced.is_ok());
        synced.map_err(|errno| Error::os("flush", &path, errno))
    }

    fn open_file(&self, name: &str, flags: OFlags, operation: &'static str) -> Result<File, Error> {
        let path = self.join(name);
        component(name, &path)?;
        if flags.contains(OFlags::CREATE) {
            tape::before(Step::Create).map_err(|errno| Error::os(operation, &path, errno))?;
        }
        // NONBLOCK: a FIFO in a file's place must not hang the open. It means nothing to files.
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        // The owner's bits only: the final mode comes by fchmod, which no umask thins out.
        let mode = if flags.contains(OFlags::CREATE) {
            Mode::RUSR | Mode::WUSR
        } else {
            Mode::empty()
        };
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let opened = match retry(|| openat2(&self.fd, name, flags, mode, resolve)) {
            // Before Linux 5.6, or hidden by a seccomp filter: a single component and
            // O_NOFOLLOW cannot leave the directory either.
            Err(Errno::NOSYS | Errno::PERM) => retry(|| openat(&self.fd, name, flags, mode)),
            opened => opened,
        };
        match opened {
            Ok(fd) => regular(fd, operation, &path),
            Err(Errno::LOOP) => Err(Error::new(
                operation,
                &path,
                Cause::NotRegular(Kind::Symlink),
            )),
            // Opened for writing, a directory is not even opened.
            Err(Errno::ISDIR) => Err(Error::new(
                operation,
                &path,
                Cause::NotRegular(Kind::Directory),
            )),
            Err(errno) => Err(Error::os(operation, &path, errno)),
        }
    }

    fn renamed(
        &self,
        from: &str,
        to: &str,
        rename: impl Fn(&str, &str) -> Result<(), Errno>,
    ) -> Result<(), Error> {
        component(from, &self.join(from))?;
        component(to, &self.join(to))?;
        let renamed = tape::before(Step::Rename).and_then(|()| retry(|| rename(from, to)));
        renamed.map_err(|errno| {
            // The name at fault: the target when it is in the way, else the source.
            let at_fault = if errno == Errno::EXIST { to } else { from };
            Error::os("rename", &self.join(at_fault), errno)
        })?;
        tape::renamed(from, to);
        self.sync()
    }

    fn stat(&self, name: &str) -> Result<rustix::fs::Stat, Errno> {
        retry(|| statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW))
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Reads a file that is not bcd's own, symlinks followed. Never waits: a FIFO is refused.
///
/// # Errors
/// It cannot be opened or read, is no regular file, or is longer than `max`.
pub fn read_foreign(path: &Path, max: usize) -> Result<Vec<u8>, Error> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let fd = retry(|| openat(CWD, path, flags, Mode::empty()))
        .map_err(|errno| Error::os("open", path, errno))?;
    read_bounded(regular(fd, "open", path)?, path, max)
}

/// Reads at most `max` bytes of `file`, whose `path` is for messages.
///
/// # Errors
/// It is longer, or cannot be read.
pub fn read_bounded(file: File, path: &Path, max: usize) -> Result<Vec<u8>, Error> {
    let failed = |error| Error::io("read", path, error);
    let size = file.metadata().map_err(failed)?.len();
    let limit = u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1);
    // Room for all of it at once: bytes that may be secret leave no copies behind in the heap.
    let mut bytes = Vec::with_capacity(usize::try_from(size.min(limit)).unwrap_or(max) + 1);
    file.take(limit).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() > max {
        return Err(Error::new("read", path, Cause::TooLarge { max }));
    }
    Ok(bytes)
}

/// A name must be one component: nothing here walks a path.
fn component(name: &str, path: &Path) -> Result<(), Error> {
    let bad = matches!(name, "" | "." | "..") || name.bytes().any(|byte| byte == b'/' || byte == 0);
    if bad {
        Err(Error::new("open", path, Cause::BadName))
    } else {
        Ok(())
    }
}

fn regular(fd: OwnedFd, operation: &'static str, path: &Path) -> Result<File, Error> {
    let stat = fstat(&fd).map_err(|errno| Error::os(operation, path, errno))?;
    match kind(stat.st_mode) {
        Kind::Regular => Ok(File::from(fd)),
        other => Err(Error::new(operation, path, Cause::NotRegular(other))),
    }
}

fn kind(mode: u32) -> Kind {
    match FileType::from_raw_mode(mode) {
        FileType::RegularFile => Kind::Regular,
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Symlink,
        _ => Kind::Other,
    }
}

fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}

#[cfg(test)]
mod crash;
#[cfg(test)]
pub(crate) mod replay;
#[cfg(test)]
pub(crate) mod tests;
