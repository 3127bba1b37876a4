//! Reading the configuration's file, bounded, and who else may.

use std::error::Error;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// The most bytes a configuration may have.
pub const MAX_BYTES: usize = 64 * 1024;

/// Why the file could not be read.
#[derive(Debug)]
pub enum ReadError {
    Io(io::Error),
    NotAFile,
    TooLarge,
}

impl ReadError {
    /// Whether there is no such file.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Io(error) if error.kind() == io::ErrorKind::NotFound)
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::NotAFile => f.write_str("it is not a regular file"),
            Self::TooLarge => write!(f, "it is over {} KiB", MAX_BYTES / 1024),
        }
    }
}

impl Error for ReadError {}

/// The bytes of the file, symlinks followed. Never waits: a FIFO is refused, not read.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, ReadError> {
    let file = open(path).map_err(ReadError::Io)?;
    if !file.metadata().map_err(ReadError::Io)?.is_file() {
        return Err(ReadError::NotAFile);
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(ReadError::Io)?;
    if bytes.len() > MAX_BYTES {
        return Err(ReadError::TooLarge);
    }
    Ok(bytes)
}

fn open(path: &Path) -> io::Result<File> {
    File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
}

/// A warning when the file can be read or written by anyone but its owner. Under `[helper]` its group
/// reads it too: `bcd node` runs as that account.
///
/// # Errors
/// The file cannot be looked at.
pub fn exposure(path: &Path, helper: bool) -> io::Result<Option<String>> {
    let mode = std::fs::metadata(path)?.mode() & 0o777;
    let allowed = if helper { 0o640 } else { 0o600 };
    let beyond = mode & 0o066 & !allowed;
    if beyond == 0 {
        return Ok(None);
    }
    let who = match (beyond & 0o006 != 0, beyond & 0o060 != 0) {
        (true, true) => "its group and others",
        (true, false) => "others",
        (false, _) => "its group",
    };
    let what = match (beyond & 0o044 != 0, beyond & 0o022 != 0) {
        (true, true) => "read and written",
        (true, false) => "read",
        (false, _) => "written",
    };
    let path = path.display();
    Ok(Some(format!(
        "{path} (mode {mode:04o}) can be {what} by {who}; run chmod {allowed:04o} {path}"
    )))
}
