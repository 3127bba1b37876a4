//! What is needed to start the system on a disk without its firmware: kernel and initial ramdisks are read from the disk
//! into memory, and the command line is pinned to it.
use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::Path;

use super::gpt::{self, Guid, Table};
use super::ids;
use super::loader::root::{Pinned, pin};
use super::loader::{self, Entry, Files, Place, Volume, default_entry};
use super::volumes::{self, Volume as FileSystem};
use crate::sys::block::Block;
use crate::sys::kexec::{self, Filled, Filling};
use crate::sys::stop::Stop;

/// Of a disk, for its table.
const HEAD: usize = 1 << 20;
/// Partitions looked into.
const PARTITIONS: usize = 32;
/// Left to the ramdisk, whatever is loaded.
const RESERVE: u64 = 48 << 20;
/// What is loaded is in memory this often until the kernel has taken it: in the file, as the kernel reads it, and where it
/// is started from.
const COPIES: u64 = 3;

/// All that is to be started.
pub struct Prepared {
    pub entry: Entry,
    pub pinned: Pinned,
    kernel: Filled,
    initrd: Option<Filled>,
}

#[derive(Debug)]
pub enum Error {
    /// The disk, or the memory for what it has.
    Io(&'static str, io::Error),
    Table(gpt::Error),
    Loader(loader::Error),
    /// No loader was found, and these partitions cannot be read.
    Unreadable(Vec<String>),
    /// The entry names a file that is not there.
    Missing(Place),
    File(Place, volumes::Error),
    /// More than fits, in bytes.
    TooLarge(u64),
    /// The kernel did not take it.
    Refused(io::Error),
}

/// Reads what the loader on the disk `block` would start. `node` is the disk's place in /dev, and `memory` what is free.
///
/// # Errors
/// See [`Error`].
pub fn prepare(
    block: &Block,
    node: &Path,
    is_uefi: bool,
    memory: u64,
    stop: &Stop,
) -> Result<Prepared, Error> {
    let (volumes, mut disk) = look(block, node, stop)?;
    let entry = match default_entry(&volumes, is_uefi, &mut disk) {
        Ok(entry) => entry,
        Err(loader::Error::None) if !disk.unreadable.is_empty() => {
            return Err(Error::Unreadable(disk.unreadable));
        }
        Err(error) => return Err(Error::Loader(error)),
    };
    let room = memory.saturating_sub(RESERVE) / COPIES;
    let kernel = disk.fill("kernel", std::slice::from_ref(&entry.kernel), room)?;
    let room = room.saturating_sub(kernel.length());
    let initrd = match entry.initrds.is_empty() {
        true => None,
        false => Some(disk.fill("initrd", &entry.initrds, room)?),
    };
    let close = |filling: Filling| filling.close().map_err(|error| Error::Io("memory", error));
    Ok(Prepared {
        pinned: pin(&entry.command_line, &volumes),
        entry,
        kernel: close(kernel)?,
        initrd: initrd.map(close).transpose()?,
    })
}

impl Prepared {
    /// Has the kernel take it, with `append` behind its command line; gives the whole command line.
    ///
    /// # Errors
    /// The kernel does not.
    pub fn load(self, append: &str) -> Result<(Entry, Pinned), Error> {
        let mut pinned = self.pinned;
        if !append.is_empty() {
            // Behind "--" all would be init's.
            let line = &pinned.command_line;
            pinned.command_line = match line.split_once(" -- ") {
                Some((kernels, inits)) => [kernels, " ", append, " -- ", inits].concat(),
                None => [line, " ", append].concat(),
            };
        }
        kexec::load(&self.kernel, self.initrd.as_ref(), &pinned.command_line)
            .map_err(Error::Refused)?;
        Ok((self.entry, pinned))
    }
}

/// The partitions of a disk, and the way to their files.
fn look(block: &Block, node: &Path, stop: &Stop) -> Result<(Vec<Volume>, Disk), Error> {
    let read = |from: u64, length: usize| {
        let read = block.bytes(from, length);
        read.map_err(|error| Error::Io("the disk", error))
    };
    let head = read(0, HEAD)?;
    let table = Table::read(&head, block.sector()).map_err(Error::Table)?;
    let signature = head.get(440..444).and_then(|bytes| bytes.try_into().ok());
    let signature = signature.map_or(0, u32::from_le_bytes);
    let (mut volumes, mut systems, mut unreadable) = (Vec::new(), Vec::new(), Vec::new());
    for partition in table.partitions().into_iter().take(PARTITIONS) {
        let head = read(partition.start, ids::LOOK)?;
        let (kind, uuid) = ids::in_head(&head).unwrap_or_default();
        let number = partition.number;
        volumes.push(Volume {
            partition: number,
            uuid,
            label: ids::label(&head, kind),
            partuuid: match partition.guid == Guid::default() {
                true => format!("{signature:08x}-{number:02x}"),
                false => partition.guid.to_string(),
            },
            is_esp: partition.kind == gpt::ESP || (kind == "FAT" && table.name() == "mbr"),
            is_root: partition.kind == gpt::ROOT,
        });
        match kind {
            "ext" | "FAT" => {
                let system = FileSystem::open(node, partition.start, stop);
                let at = Place::new(number, "/");
                systems.push((number, system.map_err(|error| Error::File(at, error))?));
            }
            "" | "swap" => {}
            kind => unreadable.push(format!("partition {number} has {kind}")),
        }
    }
    Ok((
        volumes,
        Disk {
            systems,
            unreadable,
        },
    ))
}

struct Disk {
    /// By their partition's number.
    systems: Vec<(u32, FileSystem)>,
    unreadable: Vec<String>,
}

impl Disk {
    fn system(&self, at: &Place) -> Option<&FileSystem> {
        let found = self
            .systems
            .iter()
            .find(|(partition, _)| *partition == at.partition);
        found.map(|(_, system)| system)
    }

    /// Files one behind the other, each on a boundary of four bytes: archives for the kernel begin there.
    fn fill(&self, name: &str, places: &[Place], room: u64) -> Result<Filling, Error> {
        let memory = |error| Error::Io("memory", error);
        let mut filling = Filling::new(name).map_err(memory)?;
        for at in places {
            let system = self.system(at).ok_or_else(|| Error::Missing(at.clone()))?;
            let padding = [0; 3];
            let short = usize::try_from(filling.length().wrapping_neg() % 4).unwrap_or(0);
            filling
                .push(padding.get(..short).unwrap_or_default())
                .map_err(memory)?;
            let left = room.saturating_sub(filling.length());
            let done = system.stream(&at.path, left, &mut |bytes| filling.push(bytes));
            match done {
                Ok(Some(_)) => {}
                Ok(None) => return Err(Error::Missing(at.clone())),
                Err(volumes::Error::TooLong(_)) => return Err(Error::TooLarge(room)),
                Err(error) => return Err(Error::File(at.clone(), error)),
            }
        }
        Ok(filling)
    }
}

impl Files for Disk {
    fn exists(&mut self, at: &Place) -> Result<bool, String> {
        let Some(system) = self.system(at) else {
            return Ok(false);
        };
        let (directory, name) = at.path.rsplit_once('/').unwrap_or_default();
        let directory = if directory.is_empty() { "/" } else { directory };
        // FAT knows no case.
        let is_it = |one: &str| match system.kind() {
            "FAT" => one.eq_ignore_ascii_case(name),
            _ => one == name,
        };
        match system.list(directory) {
            Ok(names) => Ok(names.is_some_and(|names| names.iter().any(|(one, _)| is_it(one)))),
            // A file where a directory is asked for.
            Err(volumes::Error::NotA(..)) => Ok(false),
            Err(error) => Err(said(&error)),
        }
    }

    fn read(&mut self, at: &Place, max: usize) -> Result<Vec<u8>, String> {
        let system = self.system(at).ok_or("no such file")?;
        let bytes = system.read(&at.path, max).map_err(|error| said(&error))?;
        bytes.ok_or_else(|| "no such file".to_owned())
    }

    fn names(&mut self, at: &Place) -> Result<Vec<String>, String> {
        let Some(system) = self.system(at) else {
            return Ok(Vec::new());
        };
        match system.list(&at.path) {
            Ok(names) => Ok(names.into_iter().flatten().map(|(name, _)| name).collect()),
            Err(volumes::Error::NotA(..)) => Ok(Vec::new()),
            Err(error) => Err(said(&error)),
        }
    }
}

/// An error with its causes.
fn said(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(what, _) => write!(f, "{what} failed"),
            Self::Table(_) => f.write_str("its partition table cannot be used"),
            Self::Loader(error) => error.fmt(f),
            Self::Unreadable(what) => write!(
                f,
                "no boot loader's configuration was found, and what may have one is not read here: {}",
                what.join(", ")
            ),
            Self::Missing(at) => write!(f, "its loader starts {at}, which is not there"),
            Self::File(at, _) => write!(f, "cannot read {at}"),
            Self::TooLarge(room) => write!(
                f,
                "kernel and initial ramdisks are over {} MiB, a third of what memory is free",
                room >> 20
            ),
            Self::Refused(error) => match error.raw_os_error() {
                Some(libc::EPERM) => f.write_str(
                    "the kernel starts no other (it is locked down by Secure Boot, or kexec is disabled): boot with --reboot",
                ),
                Some(libc::EKEYREJECTED | libc::ENOKEY | libc::EBADMSG | libc::ENODATA) => f
                    .write_str(
                        "the image's kernel has no signature that the ramdisk's kernel trusts: boot with --reboot",
                    ),
                Some(libc::ENOSYS) => f.write_str(
                    "the ramdisk's kernel is built without kexec_file_load: boot with --reboot",
                ),
                Some(libc::ENOEXEC) => {
                    f.write_str("the image's kernel is none that this machine can start")
                }
                _ => f.write_str("the kernel does not take the image's"),
            },
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Io(_, error) | Self::Refused(error) => Some(error),
            Self::Table(error) => Some(error),
            Self::File(_, error) => Some(error),
            Self::Loader(_) | Self::Unreadable(_) | Self::Missing(_) | Self::TooLarge(_) => None,
        }
    }
}
