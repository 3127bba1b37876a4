//! `node.key` and `identity.json` in `data_dir`.
//!
//! The order of writes makes a crash harmless: `node.key` is on the disk before a join asks for its
//! certificate, and `identity.json` replaces the former one in a single rename after the answer was
//! verified. So a key without an identity is a join that did not end, and the next one takes the key up:
//! the control plane then gives the same token the same certificate again.
//!
//! A renewal goes the same way beside the key there is: `node.key.next` is on the disk before the request,
//! `identity.json` with the new certificate replaces the former one, and last `node.key.next` becomes
//! `node.key`. Whatever was cut off, [`Store::load`] finds the certificate with its key.

use std::error::Error;
use std::fmt;
use std::path::Path;

use zeroize::Zeroizing;

use super::record::{self, Identity, RecordError};
use crate::crypto::key::{self, NodeKey};
use crate::sys::fs::{self, Dir};
use crate::sys::log::{self, Level, Value};
use crate::sys::user::Account;
use crate::sys::utc::Utc;

/// The verified identity.
pub const IDENTITY: &str = "identity.json";
/// The node's private key.
pub const KEY: &str = "node.key";
/// The key of a renewal that has not ended.
pub const NEXT_KEY: &str = "node.key.next";
/// The node's journal.
pub use crate::journal::NAME as JOURNAL;

/// The longest key file read.
const MAX_KEY: usize = 16 << 10;
/// What a key file starts with that holds the record of a key in the TPM.
const TPM_KEY: &str = "-----BEGIN BCD TPM NODE KEY-----";
/// The server's time is written down when it has moved on by this much: an hour.
const SERVER_TIME_STEP_MS: u64 = 3_600_000;

/// What `data_dir` holds.
#[allow(clippy::large_enum_variant)] // One lives at a time.
pub enum State {
    /// Neither key nor identity.
    NotJoined,
    /// A key whose join did not end; the next join takes it up.
    PendingKey(NodeKey),
    /// An identity whose leaf certifies the key.
    Joined(Box<Joined>),
    /// Files that do not make an identity.
    Damaged(Damage),
}

/// An identity that loads, and its key.
pub struct Joined {
    pub identity: Identity,
    pub key: NodeKey,
}

/// Files that do not make an identity. `node.key` may still be good: then it is not among the files,
/// and the next join takes it up.
#[derive(Debug)]
pub struct Damage {
    /// The files at fault.
    pub files: Vec<&'static str>,
    why: Why,
}

#[derive(Debug)]
enum Why {
    Record(RecordError),
    Key(key::Error),
    KeyNotText,
    KeyMissing,
    KeyIsAnother,
    NotAFile(fs::Error),
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.why {
            Why::Record(_) => write!(f, "{IDENTITY} is damaged"),
            Why::Key(_) => write!(f, "{KEY} is damaged"),
            Why::KeyNotText => write!(f, "{KEY} is damaged: it is empty or no text"),
            Why::KeyMissing => write!(f, "{IDENTITY} is there and {KEY} is missing"),
            Why::KeyIsAnother => write!(
                f,
                "the certificate in {IDENTITY} is not for the key in {KEY}"
            ),
            Why::NotAFile(error) => error.fmt(f),
        }
    }
}

impl Error for Damage {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.why {
            Why::Record(error) => Some(error),
            Why::Key(error) => Some(error),
            Why::NotAFile(error) => error.source(),
            Why::KeyNotText | Why::KeyMissing | Why::KeyIsAnother => None,
        }
    }
}

/// Why the store could not be read or written. Nothing in it is damaged.
#[derive(Debug)]
pub enum StoreError {
    File(fs::Error),
    /// `identity.json` is of a newer bcd, in a form this one must not use.
    Newer(RecordError),
    /// `node.key` is the record of a key in the TPM, which this build cannot use.
    TpmKey,
    /// No key could be made.
    Key(key::Error),
    /// No free name was left to move a file aside to.
    NoName(&'static str),
}

impl StoreError {
    /// What a person can do about it, when that is plain.
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::File(error) => error.remedy(),
            _ => None,
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(error) => error.fmt(f),
            Self::Newer(_) => write!(f, "cannot use {IDENTITY}"),
            Self::TpmKey => write!(
                f,
                "cannot use {KEY}: it names a key in the TPM, and this bcd has no TPM support"
            ),
            Self::Key(_) => f.write_str("cannot make a key"),
            Self::NoName(name) => write!(f, "cannot move {name} aside: every name for it is taken"),
        }
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            // Its text is the file error's own.
            Self::File(error) => error.source(),
            Self::Newer(error) => Some(error),
            Self::Key(error) => Some(error),
            Self::TpmKey | Self::NoName(_) => None,
        }
    }
}

impl From<fs::Error> for StoreError {
    fn from(error: fs::Error) -> Self {
        Self::File(error)
    }
}

/// A file's old and new name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    pub from: &'static str,
    pub to: String,
}

/// The identity's files in an open `data_dir`.
pub struct Store {
    dir: Dir,
}

impl Store {
    /// Opens an existing `data_dir`.
    ///
    /// # Errors
    /// It is missing, no directory, or not permitted.
    pub fn open(data_dir: &Path) -> Result<Self, StoreError> {
        Ok(Self {
            dir: Dir::open(data_dir)?,
        })
    }

    /// Opens `data_dir`, made with mode 0700 when missing.
    ///
    /// # Errors
    /// As [`open`](Self::open), and what mkdir(2) says.
    pub fn create(data_dir: &Path) -> Result<Self, StoreError> {
        Ok(Self {
            dir: Dir::create(data_dir, 0o700)?,
        })
    }

    /// The directory itself.
    pub fn dir(&self) -> &Dir {
        &self.dir
    }

    /// What the directory holds.
    ///
    /// A renewal that stored its certificate and died before it promoted `node.key.next` is finished
    /// here, as far as the directory can be written.
    ///
    /// # Errors
    /// A file cannot be read, or is one that this version must leave alone.
    pub fn load(&self) -> Result<State, StoreError> {
        self.read_state(true)
    }

    /// As [`load`](Self::load), and changes nothing: also beside a `bcd node` that is renewing.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn look(&self) -> Result<State, StoreError> {
        self.read_state(false)
    }

    fn read_state(&self, finish: bool) -> Result<State, StoreError> {
        let key = self.load_key(KEY)?;
        Ok(match (self.load_identity()?, key) {
            (None, None) => State::NotJoined,
            (None, Some(Ok(key))) => State::PendingKey(key),
            (None, Some(Err(damage))) => State::Damaged(damage),
            (Some(Err(mut damage)), key) => {
                if let Some(Err(of_key)) = key {
                    damage.files.extend(of_key.files);
                }
                State::Damaged(damage)
            }
            (Some(Ok(identity)), key) => self.matched(identity, key, finish)?,
        })
    }

    /// Takes from others what is this account's alone: reading and writing the keys and the identity, and
    /// writing in the directory. What was open to them is said, since a key may be in other hands by now.
    pub fn close_to_others(&self) {
        let said = |path: &Path, corrected: Result<Option<u32>, fs::Error>, remedy| {
            let name = "identity.open_to_others";
            let path = path.display();
            let path = Value::Shown(&path);
            match corrected {
                Ok(None) => {}
                Ok(Some(mode)) => {
                    let mode = format!("{mode:04o}");
                    let was = ("was", Value::Text(&mode));
                    log::event(
                        Level::Warn,
                        name,
                        &[("path", path), was, ("do", Value::Text(remedy))],
                    );
                }
                Err(error) => log::event(Level::Warn, name, &[("error", Value::Chain(&error))]),
            }
        };
        let remedy = "it is closed now; whoever could write there may have put other files in place: look at them";
        said(self.dir.path(), self.dir.narrow(0o022), remedy);
        for name in [KEY, NEXT_KEY, IDENTITY] {
            // What is no file, or missing, is found out when it is read.
            let Ok(file) = self.dir.view_data(name) else {
                continue;
            };
            let corrected = file.ownership().and_then(|ownership| {
                if ownership.mode & 0o077 == 0 {
                    return Ok(None);
                }
                file.set_mode(0o600)?;
                Ok(Some(ownership.mode))
            });
            let remedy = "it is closed now; if another may have copied the key: bcd join --reset --yes, then bcd join";
            said(&self.dir.join(name), corrected, remedy);
        }
    }

    /// Writes the node key, 0600, before anything asks for its certificate.
    ///
    /// # Errors
    /// It could not be written; the former file stands.
    pub fn save_key(&self, key: &NodeKey) -> Result<(), StoreError> {
        Ok(self.dir.write_atomic(KEY, key.to_pem().as_bytes(), 0o600)?)
    }

    /// Writes the identity, 0600. The machine has joined once this returns.
    ///
    /// # Errors
    /// It could not be written; the former file stands.
    pub fn save_identity(&self, identity: &Identity) -> Result<(), StoreError> {
        Ok(self
            .dir
            .write_atomic(IDENTITY, identity.to_json().as_bytes(), 0o600)?)
    }

    /// The key of the next renewal, 0600 and on the disk when this returns: the one of a renewal that
    /// was cut off, or else a new one. One that cannot be used is moved to `NAME.corrupt-<UTC>`.
    ///
    /// # Errors
    /// It could not be read or written.
    pub fn next_key(&self, present: &NodeKey, now_ms: u64) -> Result<NodeKey, StoreError> {
        match self.load_key(NEXT_KEY)? {
            Some(Ok(key)) if key.pin() != present.pin() => return Ok(key),
            Some(Ok(_)) | None => {}
            Some(Err(damage)) => {
                self.set_aside(&damage, now_ms)?;
            }
        }
        self.new_next_key()
    }

    /// A new key for the next renewal, in the place of one that the control plane refused.
    ///
    /// # Errors
    /// It could not be made or written; the former file stands.
    pub fn new_next_key(&self) -> Result<NodeKey, StoreError> {
        let key = NodeKey::generate().map_err(StoreError::Key)?;
        let pem = key.to_pem();
        self.dir.write_atomic(NEXT_KEY, pem.as_bytes(), 0o600)?;
        Ok(key)
    }

    /// Stores what a renewal brought, and only then makes its key the node key. A crash between the
    /// two is mended by the next [`load`](Self::load).
    ///
    /// # Errors
    /// The identity could not be written, and the former stands; or it is stored, and the key waits for
    /// the next load.
    pub fn complete_renewal(&self, identity: &Identity) -> Result<(), StoreError> {
        self.save_identity(identity)?;
        Ok(self.dir.rename(NEXT_KEY, KEY)?)
    }

    /// Whether a server's time is worth writing down beside the one that was.
    pub fn is_due(kept_ms: u64, server_time_ms: u64) -> bool {
        server_time_ms >= kept_ms.saturating_add(SERVER_TIME_STEP_MS)
    }

    /// Notes a later time that a server gave, so that a clock that jumps back revives no expired
    /// certificate. Written down once an hour at most; `false` when that is not due.
    ///
    /// # Errors
    /// It could not be written; the former file stands, and `identity` has the new time.
    pub fn note_server_time(
        &self,
        identity: &mut Identity,
        server_time_ms: u64,
    ) -> Result<bool, StoreError> {
        if !Self::is_due(identity.server_time_ms, server_time_ms) {
            return Ok(false);
        }
        identity.server_time_ms = server_time_ms;
        self.save_identity(identity)?;
        Ok(true)
    }

    /// Moves damaged files to `NAME.corrupt-<UTC>`.
    ///
    /// # Errors
    /// A file could not be renamed; those before it are moved.
    pub fn set_aside(&self, damage: &Damage, now_ms: u64) -> Result<Vec<Moved>, StoreError> {
        self.move_all(&damage.files, "corrupt", now_ms)
    }

    /// Moves the journal of an earlier identity to `journal.db.old-<UTC>`, if there is one.
    ///
    /// # Errors
    /// It could not be renamed.
    pub fn move_journal_aside(&self, now_ms: u64) -> Result<Option<Moved>, StoreError> {
        Ok(self.move_all(&[JOURNAL], "old", now_ms)?.pop())
    }

    /// The files that [`reset`](Self::reset) would move.
    ///
    /// # Errors
    /// The directory cannot be searched.
    pub fn resettable(&self) -> Result<Vec<&'static str>, StoreError> {
        let mut there = Vec::new();
        // The keys first: a reset cut short must not leave a key that the next join would take up.
        for name in [NEXT_KEY, KEY, IDENTITY, JOURNAL] {
            if self.dir.exists(name)? {
                there.push(name);
            }
        }
        Ok(there)
    }

    /// Moves identity, keys and journal to `NAME.reset-<UTC>`, whichever are there. Nothing is deleted.
    ///
    /// # Errors
    /// A file could not be renamed; those before it are moved.
    pub fn reset(&self, now_ms: u64) -> Result<Vec<Moved>, StoreError> {
        let there = self.resettable()?;
        self.move_all(&there, "reset", now_ms)
    }

    /// Gives key and identity to the account of `[helper]`, whichever are there, so that the unprivileged
    /// `bcd node` can read them. Only root can; a name that is a symlink changes hands itself.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn hand_over(&self, account: Account) -> Result<(), StoreError> {
        for name in [KEY, IDENTITY] {
            if self.dir.exists(name)? {
                self.dir.give(name, account)?;
            }
        }
        Ok(())
    }

    /// The identity with the key its leaf certifies.
    fn matched(
        &self,
        identity: Identity,
        key: Option<Result<NodeKey, Damage>>,
        finish: bool,
    ) -> Result<State, StoreError> {
        let is_for = |key: &NodeKey| {
            identity
                .leaf()
                .is_ok_and(|leaf| leaf.spki == key.spki_der())
        };
        let damage = match key {
            Some(Ok(key)) if is_for(&key) => {
                return Ok(State::Joined(Box::new(Joined { identity, key })));
            }
            Some(Ok(_)) => Damage {
                files: vec![IDENTITY],
                why: Why::KeyIsAnother,
            },
            Some(Err(mut damage)) => {
                damage.files.push(IDENTITY);
                damage
            }
            None => Damage {
                files: vec![IDENTITY],
                why: Why::KeyMissing,
            },
        };
        match self.load_key(NEXT_KEY)? {
            Some(Ok(key)) if is_for(&key) => {
                if finish {
                    // Only a tidying: where it fails, the next load finds the same.
                    let _ = self.dir.rename(NEXT_KEY, KEY);
                }
                Ok(State::Joined(Box::new(Joined { identity, key })))
            }
            _ => Ok(State::Damaged(damage)),
        }
    }

    fn load_identity(&self) -> Result<Option<Result<Identity, Damage>>, StoreError> {
        let bytes = match self.read(IDENTITY, record::MAX_LENGTH)? {
            None => return Ok(None),
            Some(Err(damage)) => return Ok(Some(Err(damage))),
            Some(Ok(bytes)) => bytes,
        };
        match Identity::from_json(&bytes) {
            Ok(identity) => Ok(Some(Ok(identity))),
            Err(error @ RecordError::Newer(_)) => Err(StoreError::Newer(error)),
            Err(error) => Ok(Some(Err(Damage {
                files: vec![IDENTITY],
                why: Why::Record(error),
            }))),
        }
    }

    fn load_key(&self, name: &'static str) -> Result<Option<Result<NodeKey, Damage>>, StoreError> {
        let bytes = match self.read(name, MAX_KEY)? {
            None => return Ok(None),
            Some(Err(damage)) => return Ok(Some(Err(damage))),
            Some(Ok(bytes)) => bytes,
        };
        let key = match std::str::from_utf8(&bytes) {
            Ok(text) if text.contains(TPM_KEY) => return Err(StoreError::TpmKey),
            Ok(text) if !text.trim().is_empty() => NodeKey::from_pem(text).map_err(Why::Key),
            _ => Err(Why::KeyNotText),
        };
        Ok(Some(key.map_err(|why| Damage {
            files: vec![name],
            why,
        })))
    }

    /// The bytes of a file; damage when something else than such a file stands there.
    #[allow(clippy::type_complexity)]
    fn read(
        &self,
        name: &'static str,
        max: usize,
    ) -> Result<Option<Result<Zeroizing<Vec<u8>>, Damage>>, StoreError> {
        match self.dir.read_optional(name, max) {
            Ok(bytes) => Ok(bytes.map(|bytes| Ok(Zeroizing::new(bytes)))),
            Err(error)
                if matches!(
                    error.cause(),
                    fs::Cause::NotRegular(_) | fs::Cause::TooLarge { .. }
                ) =>
            {
                Ok(Some(Err(Damage {
                    files: vec![name],
                    why: Why::NotAFile(error),
                })))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn move_all(
        &self,
        names: &[&'static str],
        reason: &str,
        now_ms: u64,
    ) -> Result<Vec<Moved>, StoreError> {
        let utc = Utc::from_ms(now_ms).compact();
        let mut moved = Vec::new();
        for from in names.iter().copied() {
            match self.move_one(from, &format!("{from}.{reason}-{utc}")) {
                Ok(to) => moved.push(Moved { from, to }),
                Err(StoreError::File(error)) if error.is_missing() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(moved)
    }

    /// Renames to `to`, or where that is taken (two in one second) to `to-2` and so on.
    fn move_one(&self, from: &'static str, to: &str) -> Result<String, StoreError> {
        for attempt in 1..100 {
            let to = if attempt == 1 {
                to.to_owned()
            } else {
                format!("{to}-{attempt}")
            };
            match self.dir.rename_new(from, &to) {
                Ok(()) => return Ok(to),
                Err(error) if error.is_there() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(StoreError::NoName(from))
    }
}

#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod tests;
