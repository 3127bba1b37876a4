//! Why the journal does not open, and why it does not take or give something.
use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::{fmt, io};

use super::format::{MAX_NODE_ID, NAME, VERSION};
use crate::sys::fs;

/// Why the journal did not open. The file is left as it was.
#[derive(Debug)]
pub enum OpenError {
    /// The file or its directory cannot be used.
    File(fs::Error),
    /// It is the journal of another node.
    OtherNode { found: String, expected: String },
    /// A newer bcd wrote it.
    Newer { path: PathBuf, version: u32 },
    /// Another process has it open.
    Busy(fs::Error),
    /// It is another account's, and this one may not change that.
    Foreign { path: PathBuf, uid: u32, euid: u32 },
    /// The node id is longer than a journal takes.
    NodeId,
    /// No name was left to set a damaged file aside under.
    NoName(PathBuf),
    /// The kernel gave no random bytes, or no thread.
    Kernel(&'static str, io::Error),
}

impl OpenError {
    /// What a person can do about it, when that is plain.
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::File(error) => error.remedy(),
            Self::OtherNode { .. } => {
                Some("move the file away, or put back the identity it belongs to")
            }
            Self::Newer { .. } => Some("install that bcd again, or move the file away"),
            Self::Busy(_) => Some("bcd node is running already: stop it first"),
            Self::Foreign { .. } => Some("give it to the account that runs bcd node"),
            Self::NoName(_) => Some("move those files away"),
            Self::NodeId | Self::Kernel(..) => None,
        }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(error) => error.fmt(f),
            Self::OtherNode { found, expected } => {
                write!(f, "the journal belongs to node `{found}`, not `{expected}`")
            }
            Self::Newer { path, version } => write!(
                f,
                "{} is of format version {version}, and this bcd knows {VERSION}",
                path.display()
            ),
            Self::Busy(error) => {
                write!(f, "{} is in use by another process", error.path().display())
            }
            Self::Foreign { path, uid, euid } => write!(
                f,
                "{} belongs to user {uid}, and bcd runs as user {euid}",
                path.display()
            ),
            Self::NodeId => write!(f, "a node id of more than {MAX_NODE_ID} bytes"),
            Self::NoName(path) => write!(
                f,
                "cannot set {} aside: every name for it is taken",
                path.display()
            ),
            Self::Kernel(what, _) => f.write_str(what),
        }
    }
}

impl Error for OpenError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            // Its text is the file error's own.
            Self::File(error) => error.source(),
            Self::Kernel(_, error) => Some(error),
            _ => None,
        }
    }
}

impl From<fs::Error> for OpenError {
    fn from(error: fs::Error) -> Self {
        if error.is_locked() {
            Self::Busy(error)
        } else {
            Self::File(error)
        }
    }
}

/// Why the journal did not take a commit, or does not give what was asked for.
#[derive(Clone, Debug)]
pub enum JournalError {
    /// It holds as much as `[journal]` lets it, and nothing that may be dropped.
    Full,
    /// An entry, or the commit, is larger than the journal takes.
    TooLarge { what: &'static str, max: usize },
    /// The disk: full, failing, or read-only. The commit may still be found after a crash if the
    /// disk failed while it was written; if the disk is full it is not.
    Disk(Arc<fs::Error>),
    /// The file was moved away, or another put in its place.
    Moved,
    /// The thread has ended.
    Closed,
}

impl JournalError {
    /// What a person can do about it, when that is plain.
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Disk(error) if error.is_full() => Some("free some space on that filesystem"),
            Self::Disk(error) => error.remedy(),
            Self::Moved => Some("restart bcd node"),
            Self::Full => Some("it empties when the gateway can be reached"),
            Self::TooLarge { .. } | Self::Closed => None,
        }
    }
}

impl fmt::Display for JournalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("the journal is full"),
            Self::TooLarge { what, max } => {
                write!(f, "{what} is larger than the journal takes: at most {max}")
            }
            Self::Disk(error) => error.fmt(f),
            Self::Moved => write!(f, "{NAME} is no longer the file that this process opened"),
            Self::Closed => f.write_str("the journal is closed"),
        }
    }
}

impl Error for JournalError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Disk(error) => error.source(),
            _ => None,
        }
    }
}
