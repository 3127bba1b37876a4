//! Files that a command is given or makes.

use std::path::Path;

use bcd::cli::Failure;
use bcd::crypto::key::NodeKey;
use bcd::sys::fs::{self, Dir};
use zeroize::Zeroizing;

/// Bytes of a key file.
pub const KEY_MAX: usize = 16 * 1024;

/// The directory a path's file is in, and its name there.
pub fn beside(path: &Path) -> Result<(Dir, String), Failure> {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let dir = Dir::open(parent.unwrap_or(Path::new("."))).map_err(Failure::refused)?;
    Ok((dir, name.into_owned()))
}

/// A file's bytes, at most `max`.
pub fn read(path: &Path, max: usize) -> Result<Vec<u8>, Failure> {
    let (dir, name) = beside(path)?;
    dir.open_beneath(&name)
        .and_then(|file| fs::read_bounded(file, path, max))
        .map_err(Failure::refused)
}

/// A private key's file; `how` makes one.
///
/// # Errors
/// It cannot be read, or holds no P-256 key.
pub fn read_key(path: &Path, how: &str) -> Result<NodeKey, Failure> {
    let text = Zeroizing::new(read(path, KEY_MAX)?);
    std::str::from_utf8(&text)
        .ok()
        .and_then(|text| NodeKey::from_pem(text).ok())
        .ok_or_else(|| {
            Failure::refused(format!(
                "{} holds no P-256 private key in PKCS#8 PEM: make one with {how}",
                path.display()
            ))
        })
}

/// Writes a file that must not be there, whole or not at all.
///
/// # Errors
/// `FILE_EXISTS`, or it cannot be written.
pub fn write_new(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Failure> {
    let (dir, name) = beside(path)?;
    // Before the work; the rename has the last word.
    if dir.exists(&name).map_err(Failure::refused)? {
        return Err(exists(path));
    }
    let new = format!("{name}.new");
    dir.write_atomic(&new, bytes, mode)
        .map_err(Failure::failed)?;
    if let Err(error) = dir.rename_new(&new, &name) {
        let _ = dir.remove(&new);
        return match error.is_there() {
            true => Err(exists(path)),
            false => Err(Failure::failed(error)),
        };
    }
    dir.sync().map_err(Failure::failed)
}

fn exists(path: &Path) -> Failure {
    Failure::refused(format!(
        "FILE_EXISTS: {} is there already, and is never overwritten",
        path.display()
    ))
}
