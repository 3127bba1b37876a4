//! What is done with reads and writes: looking at places, discarding with every byte read back, overwriting.
use std::io;

use super::places::{self, Place};
use super::{Course, Drive, Trouble};
use crate::crypto::digest;
use crate::proto::{SampleContent, WipeMethod};
use crate::sys::memory::Region;

/// Discarded and zeroed at once. Between two the progress is told.
const CHUNK: u64 = 64 * 1024 * 1024;
/// What a chunk that cannot be written is taken apart to, and how many such pieces are borne.
const PIECE: u64 = 1024 * 1024;
const BAD_PIECES: u64 = 256;
/// Read at once.
const READ: u64 = 1024 * 1024;

/// What is at a place.
pub struct Seen(Region);

impl Seen {
    fn fill(&self) -> Option<u8> {
        fill(self.0.bytes())
    }

    pub fn content(&self) -> SampleContent {
        match self.fill() {
            Some(0) => SampleContent::ZEROS,
            Some(0xff) => SampleContent::ONES,
            Some(_) => SampleContent::FILL,
            None => SampleContent::OTHER,
        }
    }

    /// The digest of what is not the same byte all over: by it it is known again.
    pub fn telling(&self) -> Option<[u8; 32]> {
        match self.fill() {
            Some(_) => None,
            None => Some(digest::sha256(self.0.bytes())),
        }
    }

    pub fn label(&self) -> Option<&'static str> {
        places::label(self.0.bytes())
    }
}

/// The byte that is there over and over.
fn fill(bytes: &[u8]) -> Option<u8> {
    let first = *bytes.first()?;
    bytes.iter().all(|byte| *byte == first).then_some(first)
}

/// What is at a place now; `None`: it cannot be read.
pub fn look(drive: &dyn Drive, place: &Place) -> Option<Seen> {
    let length = usize::try_from(place.length).ok()?;
    let mut buffer = Region::new(length).ok()?;
    drive.read(place.offset, buffer.bytes_mut()).ok()?;
    Some(Seen(buffer))
}

/// The disk's bytes in whole blocks.
fn size(course: &Course<'_>) -> u64 {
    let block = u64::from(course.disk.logical_block_bytes.max(1));
    course.disk.size_bytes / block * block
}

fn percent(done: u64, of: u64) -> u32 {
    let percent = u128::from(done) * 100 / u128::from(of.max(1));
    u32::try_from(percent).unwrap_or(100)
}

/// Discards the whole disk, and reads every byte back.
///
/// # Errors
/// It does not take it, or something is left.
pub fn discard(course: &mut Course<'_>) -> Result<(), Trouble> {
    let size = size(course);
    let secure = course.attempt.method == WipeMethod::SECURE_DISCARD;
    let mut offset = 0;
    while offset < size {
        let length = CHUNK.min(size - offset);
        course
            .drive
            .discard(offset, length, secure)
            .map_err(|error| Trouble::io("the disk does not discard", &error))?;
        offset += length;
        course.say(percent(offset, size) / 2);
    }
    course
        .drive
        .settle()
        .map_err(|error| Trouble::io("what was discarded is not on the medium", &error))?;
    let mut buffer = Region::new(usize::try_from(READ).unwrap_or(1 << 20))
        .map_err(|error| Trouble::io("no memory to read it back", &error))?;
    let mut offset = 0;
    while offset < size {
        let length = READ.min(size - offset);
        let bytes = usize::try_from(length).ok();
        let bytes = bytes.and_then(|length| buffer.bytes_mut().get_mut(..length));
        let bytes = bytes.unwrap_or_default();
        let at = offset.to_string();
        course.drive.read(offset, bytes).map_err(|error| {
            Trouble::io(&["it cannot be read back at byte ", &at].concat(), &error)
        })?;
        if !matches!(fill(bytes), Some(0 | 0xff)) {
            let parts = [
                "something is left after discarding, in the MiB at byte ",
                &at,
            ];
            return Err(Trouble::new("DataLeft", &parts));
        }
        offset += length;
        course.attempt.bytes_verified = offset;
        if offset % CHUNK == 0 {
            course.say(50 + percent(offset, size) / 2);
        }
    }
    Ok(())
}

/// Writes zeros over the whole disk. What cannot be written is passed over, and the rest is overwritten all the
/// same.
///
/// # Errors
/// Some could not be written.
pub fn overwrite(course: &mut Course<'_>) -> Result<(), Trouble> {
    let size = size(course);
    let mut bad: Option<(u64, io::Error)> = None;
    let mut bad_pieces = 0_u64;
    let mut offset = 0;
    while offset < size && bad_pieces < BAD_PIECES {
        let length = CHUNK.min(size - offset);
        match course.drive.zero(offset, length) {
            Ok(()) => course.attempt.bytes_written += length,
            Err(_) => {
                let mut piece = offset;
                while piece < offset + length && bad_pieces < BAD_PIECES {
                    let length = PIECE.min(offset + length - piece);
                    match course.drive.zero(piece, length) {
                        Ok(()) => course.attempt.bytes_written += length,
                        Err(error) => {
                            bad_pieces += 1;
                            bad.get_or_insert((piece, error));
                        }
                    }
                    piece += length;
                }
            }
        }
        offset += length;
        course.say(percent(offset, size));
    }
    match bad {
        None => Ok(()),
        Some((at, error)) => {
            let (pieces, at) = (bad_pieces.to_string(), at.to_string());
            let parts = [
                &pieces,
                " MiB could not be written, the first at byte ",
                &at,
                ": ",
                &error.to_string(),
            ];
            Err(Trouble::new("WriteFailed", &parts))
        }
    }
}
