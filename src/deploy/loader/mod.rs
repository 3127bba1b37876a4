//! What an image's own boot loader would start: kernel, initial ramdisks and command line of the default entry, read from
//! the configuration of GRUB, systemd-boot or extlinux, so that the ramdisk can start the same by kexec.
//!
//! How the parts fit: [`default_entry`] looks for a configuration on the volumes of a disk and has it read by `grub`
//! (scripts), `bls` (entries of the Boot Loader Specification, GRUB's and systemd-boot's) or
//! `extlinux`; [`root`] pins the command line to the disk it came from. Files come through [`Files`], so all of it is
//! pure. Every size, depth and number of steps has a bound.
//!
//! It refuses to guess: what it does not understand is an [`Error`] that says so, and the machine is restarted instead.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic
    )
)]
use std::error::Error as StdError;
use std::fmt;

mod bls;
mod extlinux;
mod grub;
pub mod root;

/// The largest configuration file, and entry of the Boot Loader Specification.
const CONFIG: usize = 1 << 20;
const ENTRY: usize = 64 * 1024;
/// Entries looked at.
const ENTRIES: usize = 256;
/// The longest command line; the kernel's own bound is lower on every architecture.
const COMMAND_LINE: usize = 4096;
/// Initial ramdisks of an entry.
const INITRDS: usize = 16;

/// A partition of the disk that a loader could read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// Its number in the table.
    pub partition: u32,
    /// Of its file system, as blkid shows them; empty: none.
    pub uuid: String,
    pub label: String,
    /// By which the kernel finds it: a GUID, or of an MBR the disk's number and the partition's.
    pub partuuid: String,
    /// It is an EFI system partition, or by its type the root file system.
    pub is_esp: bool,
    pub is_root: bool,
}

/// A file on a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    pub partition: u32,
    /// From the file system's root: "/boot/vmlinuz".
    pub path: String,
}

/// The way to the volumes' files. A volume that cannot be read has none.
pub trait Files {
    /// Whether there is such a file.
    ///
    /// # Errors
    /// In words.
    fn exists(&mut self, at: &Place) -> Result<bool, String>;

    /// All bytes of a file that has at most `max`.
    ///
    /// # Errors
    /// In words; it is larger.
    fn read(&mut self, at: &Place, max: usize) -> Result<Vec<u8>, String>;

    /// The names in a directory; none where there is none.
    ///
    /// # Errors
    /// In words.
    fn names(&mut self, at: &Place) -> Result<Vec<String>, String>;
}

/// What the loader would start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// "grub", "systemd-boot", "extlinux".
    pub loader: &'static str,
    pub title: String,
    pub kernel: Place,
    /// In this order, one behind the other.
    pub initrds: Vec<Place>,
    pub command_line: String,
}

/// Why nothing is known of what the loader would start.
#[derive(Debug, PartialEq, Eq)]
pub enum Error {
    /// No volume has a configuration.
    None,
    /// A file cannot be read.
    File(Place, String),
    /// A configuration says what this does not understand: where, and what.
    NotUnderstood(Place, String),
}

/// The entry that the loader on these volumes starts by itself.
///
/// # Errors
/// There is no loader, or it is not understood.
pub fn default_entry(
    volumes: &[Volume],
    is_uefi: bool,
    files: &mut dyn Files,
) -> Result<Entry, Error> {
    // Who has installed systemd-boot means it, whatever else lies about.
    let mut systemd_boot = None;
    for volume in volumes {
        let at = Place::new(volume.partition, "/EFI/systemd");
        if is_uefi && volume.is_esp && !names(files, &at)?.is_empty() {
            systemd_boot = Some(volume.partition);
        }
    }
    if systemd_boot.is_none()
        && let Some(config) = first(volumes, &grub::CONFIGS, files)?
    {
        return grub::default_entry(config, volumes, is_uefi, files);
    }
    if let Some(entry) = bls::systemd_boot(volumes, systemd_boot, files)? {
        return Ok(entry);
    }
    match first(volumes, &extlinux::CONFIGS, files)? {
        Some(config) => extlinux::default_entry(&config, files),
        None => Err(Error::None),
    }
}

/// The first of `paths` that a volume has.
fn first(
    volumes: &[Volume],
    paths: &[&str],
    files: &mut dyn Files,
) -> Result<Option<Place>, Error> {
    for path in paths {
        for volume in volumes {
            let at = Place::new(volume.partition, path);
            if exists(files, &at)? {
                return Ok(Some(at));
            }
        }
    }
    Ok(None)
}

fn exists(files: &mut dyn Files, at: &Place) -> Result<bool, Error> {
    files
        .exists(at)
        .map_err(|error| Error::File(at.clone(), error))
}

fn names(files: &mut dyn Files, at: &Place) -> Result<Vec<String>, Error> {
    files
        .names(at)
        .map_err(|error| Error::File(at.clone(), error))
}

/// A file as text; what is no UTF-8 in it is replaced.
fn text(files: &mut dyn Files, at: &Place, max: usize) -> Result<String, Error> {
    let bytes = files
        .read(at, max)
        .map_err(|error| Error::File(at.clone(), error))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

impl Entry {
    /// Within its bounds.
    fn checked(self, config: &Place) -> Result<Self, Error> {
        let refused = |what: &str| {
            let what = [what, " in the entry ", &self.title].concat();
            Err(Error::NotUnderstood(config.clone(), what))
        };
        if self.kernel.path.is_empty() {
            return refused("no kernel");
        }
        if self.command_line.len() > COMMAND_LINE || self.command_line.contains('\0') {
            return refused("a command line that no kernel takes");
        }
        if self.initrds.len() > INITRDS {
            return refused("more than 16 initial ramdisks");
        }
        Ok(self)
    }
}

impl Place {
    /// `path` without what means nothing in it.
    pub fn new(partition: u32, path: &str) -> Self {
        let mut clean = String::new();
        for part in path.split('/') {
            if !matches!(part, "" | ".") {
                clean.push('/');
                clean.push_str(part);
            }
        }
        Self {
            partition,
            path: clean,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on partition {}", self.path, self.partition)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str(
                "the disk has no configuration of GRUB, systemd-boot or extlinux that can be read",
            ),
            Self::File(at, error) => write!(f, "cannot read {at}: {error}"),
            Self::NotUnderstood(at, what) => write!(f, "{at} is not understood: {what}"),
        }
    }
}

impl StdError for Error {}

#[cfg(test)]
pub mod tests;
