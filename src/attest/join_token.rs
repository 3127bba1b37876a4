//! Join tokens, `bcjt_jt_<ulid>.<secret>`, and where they come from: `--token-file`, else
//! `BCD_JOIN_TOKEN`, else the first line of standard input. Never from an argument, which would show it in
//! the shell's history and in every process listing.
//!
//! A token is wiped from memory when dropped, and no message of this module repeats any part of one.

use std::error::Error;
use std::fmt;
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, statat};
use zeroize::Zeroizing;

use super::ids::{ULID, is_digits, is_ulid};
use crate::sys::fs::{self, Dir};
use crate::sys::{environment, user};

/// The variable a token may come in.
pub const VARIABLE: &str = "BCD_JOIN_TOKEN";
/// The longest token file, and the longest line read from standard input.
pub const MAX_LENGTH: usize = 4096;

const PREFIX: &str = "bcjt_jt_";
/// 32 bytes in base64url without padding.
const SECRET: usize = 43;

/// A well-formed token. It may be unknown, expired, used or revoked: only the control plane can tell.
pub struct JoinToken(Zeroizing<String>);

impl JoinToken {
    /// Checks the form of `text`, blanks around it dropped.
    ///
    /// # Errors
    /// See [`Malformed`].
    pub fn parse(text: &str) -> Result<Self, Malformed> {
        let text = text.trim();
        if text.is_empty() {
            return Err(Malformed::Empty);
        }
        if text.contains(char::is_whitespace) {
            return Err(Malformed::Whitespace);
        }
        let Some(rest) = text.strip_prefix(PREFIX) else {
            let cut = PREFIX.starts_with(text);
            return Err(if cut {
                Malformed::Truncated
            } else {
                Malformed::Prefix
            });
        };
        let Some((id, secret)) = rest.split_once('.') else {
            let cut = rest.len() <= ULID && is_digits(rest);
            return Err(if cut {
                Malformed::Truncated
            } else {
                Malformed::Id
            });
        };
        if !is_ulid(id) {
            return Err(Malformed::Id);
        }
        if !secret
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        {
            return Err(Malformed::SecretCharacter);
        }
        match secret.len() {
            SECRET => Ok(Self(Zeroizing::new(text.to_owned()))),
            0..SECRET => Err(Malformed::Truncated),
            _ => Err(Malformed::TooLong),
        }
    }

    /// The whole token, as it is sealed.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What names the token, `jt_<ulid>`; no secret.
    pub fn id(&self) -> &str {
        let end = PREFIX.len() + ULID;
        self.0.get("bcjt_".len()..end).unwrap_or_default()
    }
}

/// Why a text is no join token. Says nothing of the text itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    Empty,
    NotUtf8,
    Whitespace,
    Prefix,
    Id,
    Truncated,
    TooLong,
    SecretCharacter,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "it is empty",
            Self::NotUtf8 => "it is not UTF-8",
            Self::Whitespace => "it holds more than one word; a token is one",
            Self::Prefix => "it does not begin with bcjt_jt_; a token is bcjt_jt_<id>.<secret>",
            Self::Id => "its id is not a ULID; copy the token whole, bcjt_jt_<id>.<secret>",
            Self::Truncated => "it is cut short; copy the token whole, bcjt_jt_<id>.<secret>",
            Self::TooLong => "its secret is too long; copy the token alone, bcjt_jt_<id>.<secret>",
            Self::SecretCharacter => "its secret holds a character that no token has",
        })
    }
}

impl Error for Malformed {}

/// Why there is no token to join with.
#[derive(Debug)]
pub enum TokenError {
    /// None of the sources has one.
    None,
    /// The variable's is malformed.
    Variable(Malformed),
    /// The first line of standard input is malformed.
    Stdin(Malformed),
    /// Standard input cannot be read.
    ReadStdin(io::Error),
    /// The first line of standard input is over [`MAX_LENGTH`].
    LongLine,
    /// The token file breaks a rule.
    File(PathBuf, FileRefusal),
    /// The token file could not be deleted after the join.
    Kept(PathBuf, FileRefusal),
}

/// Why a token file is refused; all but the last before its bytes are read.
#[derive(Debug)]
pub enum FileRefusal {
    /// It cannot be opened: missing, not permitted, no regular file, or a symlink that leads out of its
    /// directory.
    Open(fs::Error),
    /// Its mode, which is neither 0600 nor 0400.
    Mode(u32),
    /// Its owner's uid, which is neither the caller's nor root's.
    Owner(u32),
    /// It is over [`MAX_LENGTH`].
    TooLarge,
    Look(io::Error),
    Read(fs::Error),
    /// What it holds is no token.
    Token(Malformed),
    /// Another file took its name before it was deleted.
    Replaced,
}

impl fmt::Display for TokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => {
                write!(
                    f,
                    "no join token: set {VARIABLE}, write it to standard input, or give --token-file PATH"
                )
            }
            Self::Variable(_) => write!(f, "the join token in {VARIABLE} is refused"),
            Self::Stdin(_) => f.write_str("the join token on standard input is refused"),
            Self::ReadStdin(_) => f.write_str("cannot read the join token from standard input"),
            Self::LongLine => {
                write!(
                    f,
                    "the join token on standard input is refused: its line is over {MAX_LENGTH} bytes"
                )
            }
            Self::File(path, _) => write!(f, "the token file {} is refused", path.display()),
            Self::Kept(path, _) => write!(f, "the token file {} is not deleted", path.display()),
        }
    }
}

impl Error for TokenError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Variable(error) | Self::Stdin(error) => Some(error),
            Self::ReadStdin(error) => Some(error),
            Self::File(_, refusal) | Self::Kept(_, refusal) => Some(refusal),
            Self::None | Self::LongLine => None,
        }
    }
}

impl fmt::Display for FileRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(error) | Self::Read(error) => error.fmt(f),
            Self::Look(_) => f.write_str("cannot look at it"),
            Self::Mode(mode) => write!(
                f,
                "its mode is {mode:04o}, not 0600 or 0400; run chmod 0600 on it"
            ),
            Self::Owner(uid) => {
                write!(
                    f,
                    "it belongs to uid {uid}, not to the user that runs bcd or to root; chown it"
                )
            }
            Self::TooLarge => write!(f, "it is over {} KiB, so it is no token", MAX_LENGTH / 1024),
            Self::Token(malformed) => malformed.fmt(f),
            Self::Replaced => f.write_str("another file took its name; delete it yourself"),
        }
    }
}

impl Error for FileRefusal {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Open(error) | Self::Read(error) => error.source(),
            Self::Look(error) => Some(error),
            _ => None,
        }
    }
}

/// The token for this join: from `file` when given, else from the variable, else from the first line of
/// standard input, unless that is a terminal. The variable is wiped in any case. Call it before any thread
/// is started.
///
/// # Errors
/// See [`TokenError`].
pub fn obtain(file: Option<&TokenFile>) -> Result<JoinToken, TokenError> {
    let variable = environment::take_secret(VARIABLE)
        .map(environment::into_bytes)
        .map(Zeroizing::new);
    if let Some(file) = file {
        return file.read();
    }
    if let Some(bytes) = variable.filter(|bytes| !bytes.is_empty()) {
        return token_of(&bytes).map_err(TokenError::Variable);
    }
    let stdin = io::stdin();
    if stdin.is_terminal() {
        return Err(TokenError::None);
    }
    // A descriptor of its own: the standard reader would keep a copy of the token in its buffer.
    let stdin = stdin
        .as_fd()
        .try_clone_to_owned()
        .map_err(TokenError::ReadStdin)?;
    from_first_line(File::from(stdin))
}

/// The token on the first line of `input`; what follows the line is not looked at.
fn from_first_line(mut input: impl Read) -> Result<JoinToken, TokenError> {
    let mut buffer = Zeroizing::new([0_u8; MAX_LENGTH + 1]);
    let mut filled = 0;
    loop {
        let free = buffer.get_mut(filled..).unwrap_or_default();
        if free.is_empty() {
            return Err(TokenError::LongLine);
        }
        let count = match input.read(free) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(TokenError::ReadStdin(error)),
        };
        filled += count;
        let line = buffer.get(..filled).unwrap_or_default();
        let end = line.iter().position(|&b| b == b'\n');
        if end.is_none() && count != 0 {
            continue;
        }
        let line = line.get(..end.unwrap_or(filled)).unwrap_or_default();
        return match token_of(line) {
            Err(Malformed::Empty) if end.is_none() => Err(TokenError::None),
            token => token.map_err(TokenError::Stdin),
        };
    }
}

fn token_of(bytes: &[u8]) -> Result<JoinToken, Malformed> {
    JoinToken::parse(std::str::from_utf8(bytes).map_err(|_| Malformed::NotUtf8)?)
}

/// A token in a file: its owner's alone (0600 or 0400), regular, at most 4 KiB. A symlink is followed
/// only within the file's own directory, as in a Kubernetes Secret volume, whose files lead through
/// `..data`.
pub struct TokenFile {
    path: PathBuf,
}

impl TokenFile {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks the file's rules, then reads it.
    ///
    /// # Errors
    /// [`TokenError::File`].
    pub fn read(&self) -> Result<JoinToken, TokenError> {
        self.open()
            .and_then(|file| self.bytes(&file))
            .and_then(|bytes| token_of(&bytes).map_err(FileRefusal::Token))
            .map_err(|refusal| TokenError::File(self.path.clone(), refusal))
    }

    /// Deletes the file once its token is spent, or the machine had joined already: the link and what
    /// it leads to. A file that is not there is fine; one that is no token file is left alone.
    ///
    /// # Errors
    /// [`TokenError::Kept`]: it cannot be deleted, as on the read-only mount of a Secret volume, or is no token file: a warning,
    /// since the join is done.
    pub fn delete(&self) -> Result<(), TokenError> {
        let refused = |refusal| TokenError::Kept(self.path.clone(), refusal);
        let (bytes, file) = match self.open().and_then(|file| Ok((self.bytes(&file)?, file))) {
            Err(FileRefusal::Open(error)) if error.is_missing() => return Ok(()),
            opened => opened.map_err(refused)?,
        };
        // Whatever somebody gave by mistake is not ours to delete.
        if !bytes.trim_ascii_start().starts_with(PREFIX.as_bytes()) {
            return Err(refused(FileRefusal::Token(Malformed::Prefix)));
        }
        self.unlink(&file).map_err(refused)
    }

    /// Removes the file that is open, and the link that led to it.
    fn unlink(&self, file: &File) -> Result<(), FileRefusal> {
        // Where it really lies; without /proc, what was given.
        let real = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let real = real.unwrap_or_else(|_| self.path.clone());
        let (dir, name) = beside(&real)?;
        // Only that very file: in the meantime the name may have come to mean another.
        let metadata = file.metadata().map_err(FileRefusal::Look)?;
        let found = statat(&dir, name.as_str(), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|errno| FileRefusal::Look(errno.into()))?;
        if (found.st_dev, found.st_ino) != (metadata.dev(), metadata.ino()) {
            return Err(FileRefusal::Replaced);
        }
        dir.remove(&name).map_err(FileRefusal::Open)?;
        let (dir, name) = beside(&self.path)?;
        if dir.kind(&name).map_err(FileRefusal::Open)? == Some(fs::Kind::Symlink) {
            dir.remove(&name).map_err(FileRefusal::Open)?;
        }
        Ok(())
    }

    /// Opens the file and checks its rules.
    fn open(&self) -> Result<File, FileRefusal> {
        let (dir, name) = beside(&self.path)?;
        let file = dir.open_beneath(&name).map_err(FileRefusal::Open)?;
        let metadata = file.metadata().map_err(FileRefusal::Look)?;
        let mode = metadata.mode() & 0o7777;
        if mode != 0o600 && mode != 0o400 {
            return Err(FileRefusal::Mode(mode));
        }
        if metadata.uid() != user::euid() && metadata.uid() != 0 {
            return Err(FileRefusal::Owner(metadata.uid()));
        }
        if metadata.len() > MAX_LENGTH as u64 {
            return Err(FileRefusal::TooLarge);
        }
        Ok(file)
    }

    fn bytes(&self, file: &File) -> Result<Zeroizing<Vec<u8>>, FileRefusal> {
        let file = file.try_clone().map_err(FileRefusal::Look)?;
        match fs::read_bounded(file, &self.path, MAX_LENGTH) {
            Ok(bytes) => Ok(Zeroizing::new(bytes)),
            Err(error) if matches!(error.cause(), fs::Cause::TooLarge { .. }) => {
                Err(FileRefusal::TooLarge)
            }
            Err(error) => Err(FileRefusal::Read(error)),
        }
    }
}

/// A file's directory, opened, and its name in there.
fn beside(path: &Path) -> Result<(Dir, String), FileRefusal> {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let dir = Dir::open(parent).map_err(FileRefusal::Open)?;
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default()
        .to_owned();
    Ok((dir, name))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]
mod tests;
