//! An image onto a disk, in one pass.
//!
//! ```text
//!  download ──pieces──> unpack ──blocks──> digest ──blocks──> write
//!  SHA-256 of           gzip, xz, zstd,    SHA-256 of         O_DIRECT, 4 MiB
//!  what is packed       qcow2              what is unpacked   at once
//! ```
//!
//! What it promises:
//! - The first MiB, which makes a disk boot, is written last, by [`Written::commit`]: after every digest and length held,
//!   and after all the rest was read back if that was asked for. Until then the disk boots nothing, neither the image
//!   nor what was on it.
//! - Every byte up to the image's end is the image's. Zeros are written too, or the disk is told to make them.
//! - The four parts run at once, on a thread each, with little between them: the whole takes at most 16 MiB of
//!   blocks, 1 MiB of pieces, and what the decoder needs (32 MiB), whatever the image's size.
//!
//! It refuses to write what has no partition table, and what is too large for the disk.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]
use std::error::Error as StdError;
use std::fmt;
use std::io::{self, Read};
use std::sync::atomic::Ordering;
use std::thread::{Builder, Scope, ScopedJoinHandle};

use crate::crypto::digest::{self, Sha256};
use crate::rt::channel::{Receiver, Sender, channel};
use crate::sys::block::Block;
use crate::sys::log::{self, Level, Value};
use crate::sys::memory::Region;
use crate::sys::stop::Stop;
use crate::wire::url::Url;

use self::download::{Download, Downloaded, Gauge, Pace};
use self::packed::{Format, Input, Output, Pieces, bad, detect};
use super::files;
use super::gpt::{self, Table};

pub mod crc;
pub mod download;
mod gzip;
mod packed;
mod qcow2;
mod table;
mod xz;
mod zstd;

pub use self::download::{Expected, Measured};

/// What is written at once.
const BLOCK: usize = 4 << 20;
/// One for each part that is at work on it.
const BLOCKS: usize = 4;
/// What is written last, and the grain of zeros.
pub const HEAD: usize = 1 << 20;
/// Of 64 KiB each.
const PIECES: usize = 12;
/// The largest sector.
const SECTOR: usize = 4096;
const STACK: usize = 256 * 1024;

/// An image to be written.
pub struct Image {
    /// Tried in turn: the site's cache, and where it comes from.
    pub sources: Vec<Url>,
    /// As it is downloaded.
    pub packed: Expected,
    /// As it is on the disk.
    pub unpacked: Expected,
    /// Files will be written to its root: it has to have one.
    pub with_root: bool,
}

/// How far it is: bytes of how many, when that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    pub downloaded: (u64, Option<u64>),
    pub written: u64,
}

/// An image on a disk, up to its first MiB.
pub struct Written {
    pub packed: Measured,
    pub unpacked: Measured,
    /// How it was packed: "zstd", "qcow2" ...
    pub formats: Vec<&'static str>,
    /// The source the last of it came from, and how often the download went on after a break.
    pub from: String,
    pub resumed: u32,
    /// Bytes that the disk made zeros of itself.
    pub zeroed: u64,
    /// The image's first MiB, or all of it.
    head: Region,
    /// The copy of its table, for the disk's end.
    copy: Vec<(u64, Vec<u8>)>,
}

/// Why there is no image on the disk.
#[derive(Debug)]
pub enum Error {
    Download(download::Error),
    Unpack(io::Error),
    /// It is of a kind that is not written.
    Format(&'static str),
    /// It is larger than the disk, in bytes.
    TooLarge {
        image: Option<u64>,
        disk: u64,
    },
    /// It has no partition table that is good for this disk.
    Table(gpt::Error),
    /// Files for its OS were not written, or could not be.
    Files(files::Error),
    /// Another disk has one of its identifiers: which, and which disk.
    Shared(String),
    /// The first of its kind that failed on the disk: what, and at which byte.
    Disk(&'static str, u64, io::Error),
    /// Unpacked it has another length, or another digest.
    Size {
        expected: u64,
        found: u64,
    },
    Digest {
        expected: [u8; 32],
        found: [u8; 32],
    },
    /// The disk does not hold what was written to it.
    ReadBack {
        written: [u8; 32],
        read: [u8; 32],
    },
    Resources(io::Error),
    Stopped,
}

/// Writes all of `image` but its first MiB, once that is known to hold a partition table for this disk; what was at both
/// ends of the disk is gone from then on. A source that sent something else than the image is left out, and it begins anew.
///
/// # Errors
/// See [`Error`]. The disk holds parts of the image, or nothing new when there was no download.
pub fn write(
    image: &Image,
    disk: &Block,
    stop: &Stop,
    progress: &mut dyn FnMut(Progress),
) -> Result<Written, Error> {
    if let Some(size) = image.unpacked.size.filter(|size| *size > disk.size()) {
        return Err(Error::TooLarge {
            image: Some(size),
            disk: disk.size(),
        });
    }
    let mut sources = image.sources.as_slice();
    loop {
        let gauge = Gauge::default();
        let error = match write_from(sources, &gauge, image, disk, stop, progress) {
            Ok(written) => return Ok(written),
            Err(error) => error,
        };
        // What is pinned and there no other source has better.
        let is_other = error.is_of_what_came() && !gauge.holds.load(Ordering::Relaxed);
        let begun = gauge.source.load(Ordering::Relaxed);
        let (done, rest) = sources.split_at_checked(begun).unwrap_or_default();
        let Some(wrong) = done.last().filter(|_| is_other && !rest.is_empty()) else {
            return Err(error);
        };
        let fields = [
            ("source", Value::Text(&download::shown(wrong))),
            ("error", Value::Chain(&error)),
        ];
        log::event(Level::Info, "deploy.source_left_out", &fields);
        sources = rest;
    }
}

fn write_from(
    sources: &[Url],
    gauge: &Gauge,
    image: &Image,
    disk: &Block,
    stop: &Stop,
    progress: &mut dyn FnMut(Progress),
) -> Result<Written, Error> {
    // What ends the download, should it wait for a server that sends nothing more.
    let halt = Stop::new().map_err(Error::Resources)?;
    let (to_pieces, pieces) = channel(PIECES);
    let (to_used, used) = channel(PIECES);
    let (to_free, free) = channel(BLOCKS);
    let (to_full, full) = channel(BLOCKS);
    let (to_digested, digested) = channel(BLOCKS);
    for _ in 0..BLOCKS {
        let block = Region::new(BLOCK).map_err(Error::Resources)?;
        let _ = to_free.try_send(block);
    }
    std::thread::scope(|scope| {
        let download = Download {
            sources,
            expected: image.packed,
            pace: Pace::default(),
            stops: [stop, &halt],
            gauge,
            pieces: to_pieces,
        };
        let download = start(scope, "image-download", move || download.run(used))?;
        let size = disk.size();
        let pieces = Pieces::new(pieces, to_used);
        let unpack = start(scope, "image-unpack", move || {
            unpack(pieces, size, gauge, free, &to_full)
        })?;
        let digest = start(scope, "image-digest", move || digest(full, &to_digested))?;
        let mut writer = Writer {
            disk,
            with_root: image.with_root,
            head: None,
            at: 0,
            zeroed: 0,
        };
        let mut wrote = Ok(());
        while let Some((block, length)) = digested.recv_blocking() {
            wrote = match stop.is_said() {
                true => Err(Error::Stopped),
                false => writer.write(&block, length),
            };
            if wrote.is_err() {
                break;
            }
            let _ = to_free.send_blocking(block);
            let total = gauge.total.load(Ordering::Relaxed);
            progress(Progress {
                downloaded: (
                    gauge.bytes.load(Ordering::Relaxed),
                    (total > 0).then_some(total),
                ),
                written: writer.at,
            });
        }
        // Whoever still waits for blocks, for pieces, or to hand some on, ends.
        drop((digested, to_free));
        halt.say();
        let (downloaded, unpacked, sha256) = (joined(download), joined(unpack), joined(digest));
        // The first cause, not what followed from it: a download that broke also ends what unpacks it, whose end is no
        // image's, and a disk that fails ends all.
        match (wrote, &downloaded) {
            (Err(error), Ok(Err(broken)))
                if error.is_of_what_came() && !matches!(broken, download::Error::Stopped) => {}
            (wrote, _) => wrote?,
        }
        if stop.is_said() {
            return Err(Error::Stopped);
        }
        let (downloaded, formats) = match (downloaded?, unpacked?) {
            (Err(download::Error::Stopped), Err(error)) => return Err(error),
            (Err(download::Error::Stopped), _) => return Err(Error::Stopped),
            (Err(error), _) => return Err(Error::Download(error)),
            (Ok(_), Err(error)) => return Err(error),
            (Ok(downloaded), Ok(formats)) => (downloaded, formats),
        };
        writer.finish(image, downloaded, formats, sha256?)
    })
}

fn start<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>, Error> {
    let thread = Builder::new().name(name.to_owned()).stack_size(STACK);
    thread.spawn_scoped(scope, work).map_err(Error::Resources)
}

fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> Result<T, Error> {
    let panicked = || Error::Resources(io::Error::other("a thread panicked"));
    thread.join().map_err(|_| panicked())
}

/// What comes out of what is packed, and packed once more inside; and how it was. What says beforehand that it is larger
/// than a disk of `disk` bytes is refused.
///
/// # Errors
/// It is of a kind that is not unpacked, or damaged at its beginning.
pub fn unpacked(pieces: Output, disk: u64) -> Result<(Output, Vec<&'static str>), Error> {
    let mut formats = Vec::new();
    let mut output = pieces;
    loop {
        let (format, input) = detect(output).map_err(Error::Unpack)?;
        if format != Format::Raw || formats.is_empty() {
            formats.push(format.name());
        }
        let input: Input = input;
        output = match format {
            Format::Other(name) => return Err(Error::Format(name)),
            Format::Raw => return Ok((input, formats)),
            Format::Qcow2 => {
                let qcow2 = qcow2::Qcow2::open(input).map_err(Error::Unpack)?;
                return match qcow2.size() {
                    size if size > disk => Err(Error::TooLarge {
                        image: Some(size),
                        disk,
                    }),
                    _ => Ok((Box::new(qcow2), formats)),
                };
            }
            // Once, and not for ever.
            _ if formats.len() > 1 => {
                return Err(Error::Unpack(bad("what is unpacked is packed once more")));
            }
            Format::Gzip => Box::new(gzip::Gzip::new(input)),
            Format::Xz => Box::new(xz::Xz::new(input)),
            Format::Zstd => Box::new(zstd::Zstd::new(input).map_err(Error::Unpack)?),
        };
    }
}

type Full = (Region, usize);

fn unpack(
    pieces: Pieces,
    disk: u64,
    gauge: &Gauge,
    free: Receiver<Region>,
    full: &Sender<Full>,
) -> Result<Vec<&'static str>, Error> {
    let (mut output, formats) = unpacked(Box::new(pieces), disk)?;
    let total = gauge.total.load(Ordering::Relaxed);
    if formats == [Format::Raw.name()] && total > disk {
        let image = Some(total);
        return Err(Error::TooLarge { image, disk });
    }
    while let Some(mut block) = free.recv_blocking() {
        let bytes = block.bytes_mut();
        let length = fill(&mut *output, bytes).map_err(Error::Unpack)?;
        // A disk takes whole sectors.
        let end = length.next_multiple_of(SECTOR);
        bytes.get_mut(length..end).unwrap_or_default().fill(0);
        if length == 0 || full.send_blocking((block, length)).is_err() {
            break;
        }
    }
    Ok(formats)
}

/// Reads until `bytes` are full, or the end.
fn fill(output: &mut dyn Read, bytes: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match output.read(rest) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

fn digest(full: Receiver<Full>, digested: &Sender<Full>) -> [u8; 32] {
    let mut digest = Sha256::new();
    while let Some((block, length)) = full.recv_blocking() {
        digest.update(block.bytes().get(..length).unwrap_or_default());
        if digested.send_blocking((block, length)).is_err() {
            break;
        }
    }
    digest.finish()
}

/// The end of the pipe.
struct Writer<'a> {
    disk: &'a Block,
    with_root: bool,
    head: Option<Region>,
    /// How much of the image came.
    at: u64,
    zeroed: u64,
}

impl Writer<'_> {
    fn write(&mut self, block: &Region, length: usize) -> Result<(), Error> {
        let size = self.disk.size();
        if length as u64 > size - self.at {
            return Err(Error::TooLarge {
                image: None,
                disk: size,
            });
        }
        let from = self.at;
        let sector = usize::try_from(self.disk.sector()).unwrap_or(SECTOR);
        let whole = length.next_multiple_of(sector.max(512));
        let bytes = block.bytes().get(..whole).unwrap_or_default();
        let skip = match self.head {
            Some(_) => 0,
            None => {
                self.begin(bytes.get(..length.min(HEAD)).unwrap_or_default())?;
                HEAD.min(bytes.len())
            }
        };
        // Runs of MiBs that are all zeros, and of those that are not.
        let mut begin = skip;
        while begin < bytes.len() {
            let mut chunks = bytes.get(begin..).unwrap_or_default().chunks(HEAD);
            let zeros = chunks.next().is_some_and(is_zero);
            let more = chunks.take_while(|chunk| is_zero(chunk) == zeros).count();
            let end = bytes.len().min(begin + (more + 1) * HEAD);
            let run = bytes.get(begin..end).unwrap_or_default();
            self.run(run, from + begin as u64, zeros)?;
            begin = end;
        }
        self.at += length as u64;
        Ok(())
    }

    fn run(&mut self, run: &[u8], at: u64, zeros: bool) -> Result<(), Error> {
        if zeros && self.disk.zero(at, run.len() as u64).is_ok() {
            self.zeroed += run.len() as u64;
            return Ok(());
        }
        let written = self.disk.write(run, at);
        written.map_err(|error| Error::Disk("write to", at, error))
    }

    /// The image begins. From here on what was on the disk boots no more: neither by its first MiB nor by the copy
    /// of its partition table that firmware finds at the end.
    fn begin(&mut self, head: &[u8]) -> Result<(), Error> {
        let table = Table::read(head, self.disk.sector()).map_err(Error::Table)?;
        if self.with_root {
            files::candidates(&table).map_err(Error::Files)?;
        }
        let mut kept = Region::new(HEAD).map_err(Error::Resources)?;
        for (to, from) in kept.bytes_mut().iter_mut().zip(head) {
            *to = *from;
        }
        self.head = Some(kept);
        clear_ends(self.disk)
    }

    fn finish(
        self,
        image: &Image,
        downloaded: Downloaded,
        formats: Vec<&'static str>,
        sha256: [u8; 32],
    ) -> Result<Written, Error> {
        let found = self.at;
        let head = self.head.ok_or(Error::Table(gpt::Error::None))?;
        if let Some(expected) = image.unpacked.size.filter(|expected| *expected != found) {
            return Err(Error::Size { expected, found });
        }
        if let Some(expected) = image.unpacked.sha256.filter(|expected| *expected != sha256) {
            return Err(Error::Digest {
                expected,
                found: sha256,
            });
        }
        flush(self.disk)?;
        Ok(Written {
            packed: downloaded.packed,
            unpacked: Measured {
                sha256,
                size: found,
            },
            formats,
            from: downloaded.from,
            resumed: downloaded.resumed,
            zeroed: self.zeroed,
            head,
            copy: Vec::new(),
        })
    }
}

/// Zeros over the first and the last MiB.
fn clear_ends(disk: &Block) -> Result<(), Error> {
    let zeros = Region::new(HEAD).map_err(Error::Resources)?;
    let sector = u64::from(disk.sector());
    let length = disk.size().min(HEAD as u64) / sector * sector;
    let last = disk.size() / sector * sector - length;
    for at in [last, 0] {
        let bytes = usize::try_from(length)
            .ok()
            .and_then(|length| zeros.bytes().get(..length));
        let written = disk.write(bytes.unwrap_or_default(), at);
        written.map_err(|error| Error::Disk("write to", at, error))?;
    }
    flush(disk)
}

fn flush(disk: &Block) -> Result<(), Error> {
    disk.flush().map_err(|error| Error::Disk("flush", 0, error))
}

fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<16>();
    rest.iter().all(|byte| *byte == 0) && words.iter().all(|word| u128::from_ne_bytes(*word) == 0)
}

impl Written {
    /// Reads everything but the first MiB back from the disk, and holds the whole against the image's digest.
    ///
    /// # Errors
    /// It cannot be read, or is not what was written; or `stop` was said.
    pub fn read_back(
        &self,
        disk: &Block,
        stop: &Stop,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), Error> {
        let size = self.unpacked.size;
        let first = usize::try_from(size).unwrap_or(HEAD).min(HEAD);
        let mut read = Sha256::new();
        read.update(self.head.bytes().get(..first).unwrap_or_default());
        let (to_free, free) = channel(2);
        let (to_full, full) = channel(2);
        for _ in 0..2 {
            let _ = to_free.try_send(Region::new(BLOCK).map_err(Error::Resources)?);
        }
        std::thread::scope(|scope| {
            let reader = start(scope, "image-read", move || {
                let mut at = first as u64;
                while at < size
                    && let Some(mut block) = free.recv_blocking()
                {
                    let length = usize::try_from(size - at).unwrap_or(BLOCK).min(BLOCK);
                    let whole = length.next_multiple_of(SECTOR);
                    // The disk may end within a sector of the largest kind.
                    let there = usize::try_from(disk.size() - at).unwrap_or(whole);
                    let bytes = block.bytes_mut().get_mut(..whole.min(there));
                    let done = disk.read(bytes.unwrap_or_default(), at);
                    done.map_err(|error| Error::Disk("read from", at, error))?;
                    at += length as u64;
                    if to_full.send_blocking((block, length)).is_err() {
                        break;
                    }
                }
                Ok(())
            })?;
            let mut at = first as u64;
            while let Some((block, length)) = full.recv_blocking() {
                if stop.is_said() {
                    return Err(Error::Stopped);
                }
                read.update(block.bytes().get(..length).unwrap_or_default());
                at += length as u64;
                let _ = to_free.send_blocking(block);
                progress(at);
            }
            joined(reader)?
        })?;
        let (read, written) = (read.finish(), self.unpacked.sha256);
        match read == written {
            true => Ok(()),
            false => Err(Error::ReadBack { written, read }),
        }
    }
}

impl Error {
    /// Whether another source may send what is better.
    fn is_of_what_came(&self) -> bool {
        match self {
            Self::Download(error) => matches!(
                error,
                download::Error::Changed(..)
                    | download::Error::Encoding(_)
                    | download::Error::Size { .. }
                    | download::Error::Digest { .. }
            ),
            Self::Unpack(_)
            | Self::Format(_)
            | Self::TooLarge { .. }
            | Self::Table(_)
            | Self::Size { .. }
            | Self::Digest { .. } => true,
            _ => false,
        }
    }

    /// For programs.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Download(error) => error.word(),
            Self::Unpack(_) => "ImageDamaged",
            Self::Format(_) | Self::Table(gpt::Error::None) => "ImageUnsupported",
            Self::Table(gpt::Error::Sector { .. }) => "SectorSize",
            Self::Table(gpt::Error::Damaged(_)) => "ImageDamaged",
            Self::TooLarge { .. } | Self::Table(gpt::Error::TooSmall) => "DiskTooSmall",
            Self::Files(error) => error.word(),
            Self::Shared(_) => "SharedIdentifier",
            Self::Disk(..) => "DiskFailed",
            Self::Size { .. } => "ImageSize",
            Self::Digest { .. } => "ImageDigest",
            Self::ReadBack { .. } => "ReadBackDiffers",
            Self::Resources(_) => "InternalError",
            Self::Stopped => "Cancelled",
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = digest::hex;
        match self {
            Self::Download(_) => f.write_str("the image cannot be downloaded"),
            Self::Unpack(_) => f.write_str("the image cannot be unpacked"),
            Self::Format(name) => write!(
                f,
                "the image is {name}: give one that is raw, gzip, xz, zstd or qcow2"
            ),
            Self::TooLarge { image, disk } => match image {
                Some(image) => write!(
                    f,
                    "the image has {image} bytes, and the disk {disk}: choose a larger disk"
                ),
                None => write!(
                    f,
                    "the image has more bytes than the disk ({disk}): choose a larger disk"
                ),
            },
            Self::Table(_) => f.write_str("the image is not for this disk"),
            Self::Files(error) => error.fmt(f),
            Self::Shared(what) => write!(
                f,
                "{what}: this machine could start with the wrong one; wipe the other disk first, or take it out"
            ),
            Self::Disk(what, at, _) => write!(f, "cannot {what} the disk at byte {at}"),
            Self::Size { expected, found } => write!(
                f,
                "unpacked, the image has {found} bytes, and {expected} were expected"
            ),
            Self::Digest { expected, found } => write!(
                f,
                "unpacked, the image's SHA-256 is {}, and {} was expected",
                hex(found),
                hex(expected)
            ),
            Self::ReadBack { written, read } => write!(
                f,
                "the disk does not hold what was written to it: read back, its SHA-256 is {}, not {}: replace the disk",
                hex(read),
                hex(written)
            ),
            Self::Resources(_) => f.write_str("no memory or no thread for writing the image"),
            Self::Stopped => f.write_str("writing the image was stopped"),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Download(error) => Some(error),
            Self::Unpack(error) | Self::Disk(_, _, error) | Self::Resources(error) => Some(error),
            Self::Table(error) => Some(error),
            Self::Files(error) => error.source(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
