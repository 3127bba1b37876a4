//! What init learns of the machine and bcd tells in its facts: files below /run/init, a line a finding, tabs between its
//! parts. bcd's `facts` reads them (src/facts/init.rs).
use std::fs;
use std::io;
use std::path::Path;

use crate::say;

const DIRECTORY: &str = "/run/init";
/// Address and MAC.
pub const BMC: &str = "bmc";
/// A NIC's name; the switch's name, port and chassis.
pub const NEIGHBOURS: &str = "lldp";

/// Writes one of the files.
pub fn write(name: &str, content: &str) {
    let path = Path::new(DIRECTORY).join(name);
    if let Err(error) = fs::create_dir_all(DIRECTORY).and_then(|()| replace(&path, content)) {
        say(&format!("cannot write {}: {error}", path.display()));
    }
}

/// Writes the file whole: who reads it meanwhile sees the old or the new one.
///
/// # Errors
/// It cannot be written.
pub fn replace(path: &Path, content: &str) -> io::Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, content)?;
    fs::rename(&new, path)
}
