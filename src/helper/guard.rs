//! Who is heard: the account's installed bcd, and root's.
//!
//! Proven of whoever wrote a request that is taken:
//! - It had the uid and gid of `[helper] user`, or was root, when it connected and when it wrote (SO_PEERCRED, and
//!   the credentials that the kernel puts beside each piece that is read).
//! - It is the process that connected. A socket that was handed on, inherited or sent, is of no use to another.
//! - That process ran an installed bcd when it was greeted, and ran one after it had written: `/proc/<pid>/exe`
//!   is the file (by device and inode, so that no mount, name or link of the peer's own matters) at `[update]
//!   entrypoint`, `bcd-a` or `bcd-b` in `[update] slots_dir`, or this helper's own, of root and writable for nobody else.
//! - It is one process throughout: it is held by a descriptor of the kernel's, so that one which ends, and whose
//!   number another gets, is seen as gone.
//! - The request was written after the greeting, as it has the greeting's number. A program that asks at once and
//!   then becomes bcd by exec has not seen that number; bcd itself becomes no other program.
//!
//! Not proven: that this bcd does as its code says. Whoever has the whole use of the account can start an
//! installed bcd under a debugger or with a configuration of their own, and have that ask. What this keeps out is
//! every other program of the account. What holds against a node that was taken over are the operations themselves:
//! each is one that the fleet may ask of this machine anyway.
use std::error::Error;
use std::fmt;
use std::fs::Metadata;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use crate::config::Update;
use crate::sys::peer::{self, Credentials, Process};
use crate::sys::user::Account;

/// What peers are held against.
pub struct Guard {
    account: Account,
    installed: [PathBuf; 3],
    /// This program itself, whatever is at its path by now.
    own: Metadata,
}

/// A peer that may be heard.
pub struct Peer {
    pub credentials: Credentials,
    process: Process,
}

/// Why a peer is not.
#[derive(Debug)]
pub enum Stranger {
    /// Another account's.
    Account(Credentials),
    /// It has ended, or cannot be looked at.
    Unseen(io::Error),
    /// It runs something else.
    Program(PathBuf),
    /// It is not who wrote.
    Writer,
}

impl Guard {
    /// For this account, by where `[update]` has bcd installed.
    ///
    /// # Errors
    /// `/proc` is not there.
    pub fn new(account: Account, update: &Update) -> io::Result<Self> {
        let slot = |name| update.slots_dir.join(name);
        Ok(Self {
            account,
            installed: [update.entrypoint.clone(), slot("bcd-a"), slot("bcd-b")],
            own: std::fs::metadata("/proc/self/exe")?,
        })
    }

    /// Whoever connected.
    ///
    /// # Errors
    /// It may not be heard.
    pub fn meet(&self, socket: impl AsFd) -> Result<Peer, Stranger> {
        let credentials = peer::credentials(&socket).map_err(Stranger::Unseen)?;
        let account = (credentials.uid, credentials.gid);
        if credentials.uid != 0 && account != (self.account.uid, self.account.gid) {
            return Err(Stranger::Account(credentials));
        }
        let process = Process::at(&socket, credentials).map_err(Stranger::Unseen)?;
        let peer = Peer {
            credentials,
            process,
        };
        self.know(&peer)?;
        Ok(peer)
    }

    /// Whether the peer, which wrote as `writer`, is still who it was.
    ///
    /// # Errors
    /// It is not, or has become another.
    pub fn meet_again(&self, peer: &Peer, writer: Option<Credentials>) -> Result<(), Stranger> {
        if writer != Some(peer.credentials) {
            return Err(Stranger::Writer);
        }
        self.know(peer)
    }

    /// Whether what it runs is an installed bcd, as long as it is there.
    fn know(&self, peer: &Peer) -> Result<(), Stranger> {
        let runs = peer.process.program().map_err(Stranger::Unseen)?;
        let same = |file: &Metadata| (file.dev(), file.ino()) == (runs.dev(), runs.ino());
        let known = same(&self.own)
            || self
                .installed
                .iter()
                .any(|path| std::fs::metadata(path).is_ok_and(|file| same(&file)));
        let roots = runs.is_file() && runs.uid() == 0 && runs.mode() & 0o022 == 0;
        match known && roots {
            true => Ok(()),
            false => Err(Stranger::Program(peer.process.name())),
        }
    }
}

impl Stranger {
    /// For programs, and the helper's log.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Account(_) => "AccountRefused",
            Self::Unseen(_) | Self::Program(_) => "ProgramRefused",
            Self::Writer => "WriterRefused",
        }
    }
}

impl fmt::Display for Stranger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Account(Credentials { uid, gid, .. }) => write!(
                f,
                "user {uid} of group {gid} is neither root nor the account helper.user names, in its own group"
            ),
            Self::Unseen(_) => f.write_str("the program that asks cannot be looked at"),
            Self::Program(name) => write!(
                f,
                "{} is not the bcd that is installed here; when bcd was upgraded, restart bcd.service",
                name.display()
            ),
            Self::Writer => f.write_str("another process wrote than the one that connected"),
        }
    }
}

impl Error for Stranger {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Unseen(error) => Some(error),
            _ => None,
        }
    }
}
