//! What went wrong with a file: which operation, on which path, and why.
use std::path::{Path, PathBuf};
use std::{fmt, io};

use rustix::io::Errno;

use super::Kind;
use crate::sys::user::euid;

/// A file operation that failed. Its text names the operation and the path; the kernel's reason
/// is its source, the other reasons are part of the text.
#[derive(Debug)]
pub struct Error {
    operation: &'static str,
    path: PathBuf,
    cause: Cause,
}

/// Why it failed.
#[derive(Debug)]
pub enum Cause {
    /// The kernel said no.
    Os(io::Error),
    /// Something else stands where a regular file should.
    NotRegular(Kind),
    /// The file is longer than the reader takes.
    TooLarge { max: usize },
    /// The path or a symlink in it leads out of the directory.
    Escapes,
    /// Not a single file name.
    BadName,
    /// The file has more names than this one.
    Linked,
}

impl Error {
    pub(super) fn new(operation: &'static str, path: &Path, cause: Cause) -> Self {
        Self {
            operation,
            path: path.to_owned(),
            cause,
        }
    }

    pub(super) fn os(operation: &'static str, path: &Path, errno: Errno) -> Self {
        Self::io(operation, path, errno.into())
    }

    pub(crate) fn io(operation: &'static str, path: &Path, error: io::Error) -> Self {
        Self::new(operation, path, Cause::Os(error))
    }

    /// Beneath a directory, the kernel's EXDEV means that the path led out of it.
    pub(super) fn escaping(self) -> Self {
        if self.errno() == Some(Errno::XDEV) {
            Self {
                cause: Cause::Escapes,
                ..self
            }
        } else {
            self
        }
    }

    /// The path at fault.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Why it failed.
    pub fn cause(&self) -> &Cause {
        &self.cause
    }

    /// There is no such file.
    pub fn is_missing(&self) -> bool {
        self.errno() == Some(Errno::NOENT)
    }

    /// The name is taken.
    pub fn is_there(&self) -> bool {
        self.errno() == Some(Errno::EXIST)
    }

    /// Another process holds the lock.
    pub fn is_locked(&self) -> bool {
        self.errno() == Some(Errno::WOULDBLOCK)
    }

    /// This process has no right to it.
    pub fn is_denied(&self) -> bool {
        matches!(self.errno(), Some(Errno::ACCESS | Errno::PERM))
    }

    /// The filesystem is mounted read-only.
    pub fn is_read_only(&self) -> bool {
        self.errno() == Some(Errno::ROFS)
    }

    /// The filesystem or the quota is full.
    pub fn is_full(&self) -> bool {
        matches!(self.errno(), Some(Errno::NOSPC | Errno::DQUOT))
    }

    /// What a person can do about it, when that is plain.
    pub fn remedy(&self) -> Option<&'static str> {
        match &self.cause {
            Cause::NotRegular(_) | Cause::Linked => return Some("move it away"),
            Cause::Os(_) => {}
            Cause::TooLarge { .. } | Cause::Escapes | Cause::BadName => return None,
        }
        Some(match self.errno()? {
            Errno::NOSPC | Errno::DQUOT => "free some space on that filesystem and run it again",
            Errno::ROFS => "that filesystem is read-only: remount it writable or choose another",
            Errno::ACCESS | Errno::PERM if euid() != 0 => {
                "run it as root or as the owner of that path"
            }
            Errno::ACCESS | Errno::PERM => {
                "see what keeps root from it: lsattr shows whether it is immutable"
            }
            Errno::IO => "the disk is failing: look at the kernel's log",
            Errno::WOULDBLOCK => "another bcd is at work there: let it finish",
            _ => return None,
        })
    }

    fn errno(&self) -> Option<Errno> {
        match &self.cause {
            Cause::Os(error) => Errno::from_io_error(error),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} {}", self.operation, self.path.display())?;
        match &self.cause {
            Cause::Os(_) => Ok(()),
            Cause::NotRegular(kind) => write!(f, ": it is {kind}, not a regular file"),
            Cause::TooLarge { max } => write!(f, ": it is longer than {max} bytes"),
            Cause::Escapes => f.write_str(": it leads out of its directory"),
            Cause::BadName => f.write_str(": not a single file name"),
            Cause::Linked => f.write_str(": it is a hard link, and may be another file too"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.cause {
            Cause::Os(error) => Some(error),
            _ => None,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Regular => "a regular file",
            Self::Directory => "a directory",
            Self::Symlink => "a symlink",
            Self::Other => "a device, pipe or socket",
        })
    }
}
