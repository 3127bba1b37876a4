//! A journal written anew, whole, beside the old one: when it is made, compacted, begun again under
//! another id, or carried over from a damaged file. It gets its name only once all of it is on
//! the disk, so that a crash leaves the old file or the new one.
use std::io;

use super::format::{Content, Cut, Encoder, Header, NEW, RECORDS, Record, SECOND_HEADER, total};
use super::index::{Holds, Index};
use super::scan::payload;
use super::writer::Tuning;
use super::{Class, Kind};
use crate::sys::fs::{DataFile, Dir, Error};
use crate::sys::random;

/// Written out when this much has come together.
const PIECE: usize = 64 << 10;

/// Where the records come from.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    pub file: &'a DataFile,
    pub salt: u32,
}

/// What the new file shall be.
pub struct Order<'a> {
    pub journal_id: [u8; 16],
    pub node_id: &'a str,
    pub created_ms: u64,
    pub now_ms: u64,
    /// Count the events from 1 again: another journal.
    pub renumber: bool,
    /// Appended after the rest.
    pub event: Option<(Class, Vec<u8>)>,
}

/// The new file, still called [`NEW`].
pub struct Rewritten {
    pub file: DataFile,
    pub header: Header,
    pub index: Index,
    pub end: u64,
    pub allocated: u64,
    /// Records that could not be read any more. In an event's place stands that it was dropped.
    pub lost: u64,
}

/// Writes what `index` names of `source` to [`NEW`], locked and flushed.
///
/// # Errors
/// The disk is full, or failed; nothing of the old file has changed.
pub fn rewrite(
    dir: &Dir,
    source: Option<Source<'_>>,
    index: &Index,
    order: &Order<'_>,
    tuning: &Tuning,
) -> Result<Rewritten, Error> {
    let written = write(dir, source, index, order, tuning);
    if written.is_err() {
        // Its space may be what is missing.
        let _ = dir.remove(NEW);
    }
    written
}

fn write(
    dir: &Dir,
    source: Option<Source<'_>>,
    index: &Index,
    order: &Order<'_>,
    tuning: &Tuning,
) -> Result<Rewritten, Error> {
    let file = dir.create_data(NEW, 0o600)?;
    file.lock()?;
    if let Some(source) = source {
        file.take_owner_of(source.file)?;
    }
    let event = order
        .event
        .as_ref()
        .map_or(0, |(_, body)| total(body.len() + 8));
    let allocated = RECORDS
        .saturating_add(index.live())
        .saturating_add((event + total(8)) as u64)
        .saturating_add(tuning.reserve + tuning.step)
        .next_multiple_of(4096);
    file.allocate(0, allocated)?;
    let salt = u32::from_le_bytes(random::bytes().map_err(|error| no_random(dir, error))?);
    let mut new = Building {
        file: &file,
        encoder: Encoder::new(salt, RECORDS, None, Vec::new()),
        index: Index::default(),
    };
    let base = if order.renumber { 0 } else { index.acked };
    new.push(Content::Base { acked: base }, base, &[])?;
    let lost = new.copy(source, index, order)?;
    if let Some((class, body)) = &order.event {
        let sequence = new.index.position + 1;
        let time = order.now_ms.to_le_bytes();
        new.push(Content::Event(*class), sequence, &[&time, body])?;
    }
    new.flush()?;
    let (index, end) = (new.index, new.encoder.end());
    let header = Header {
        journal_id: order.journal_id,
        salt,
        created_ms: order.created_ms,
        whole_to: end,
        node_id: order.node_id.to_owned(),
    };
    let bytes = header.encode();
    file.write_at(&bytes, 0)?;
    file.write_at(&bytes, SECOND_HEADER)?;
    file.sync()?;
    Ok(Rewritten {
        file,
        header,
        index,
        end,
        // More, where more was lost than its places take.
        allocated: allocated.max(end),
        lost,
    })
}

fn no_random(dir: &Dir, error: io::Error) -> Error {
    Error::io("get random bytes for", &dir.join(NEW), error)
}

struct Building<'a> {
    file: &'a DataFile,
    encoder: Encoder,
    index: Index,
}

impl Building<'_> {
    fn copy(
        &mut self,
        source: Option<Source<'_>>,
        index: &Index,
        order: &Order<'_>,
    ) -> Result<u64, Error> {
        let Some(Source { file, salt }) = source else {
            return Ok(0);
        };
        let mut lost = 0;
        // A sector that cannot be read is as lost as one that reads wrongly.
        let read = |offset, length| payload(file, salt, offset, length).unwrap_or(None);
        for (kind, key, place) in index.keys() {
            match read(place.offset(), place.length) {
                Some(bytes) => {
                    let value = bytes.get(key.len()..).unwrap_or_default();
                    self.put(kind, key, value)?;
                }
                None => lost += 1,
            }
        }
        for (first, slot) in index.after(index.acked) {
            let (first, sequence) = if order.renumber {
                let next = self.index.position + 1;
                (next, next)
            } else {
                (first, slot.sequence)
            };
            let place = slot.place();
            let bytes = read(place.offset(), place.length);
            let (time_ms, count) = match (slot.holds, bytes) {
                (Holds::Event(class), Some(bytes)) => {
                    self.push(Content::Event(class), sequence, &[&bytes])?;
                    continue;
                }
                (Holds::Dropped, Some(bytes)) => dropped(&bytes),
                (Holds::Event(_), None) => {
                    lost += 1;
                    (order.now_ms, 1)
                }
                (Holds::Dropped, None) => {
                    lost += 1;
                    (order.now_ms, slot.sequence.saturating_sub(first) + 1)
                }
            };
            let content = Content::Dropped {
                time_ms,
                first,
                count,
            };
            self.push(content, sequence, &[])?;
        }
        Ok(lost)
    }

    fn put(&mut self, kind: Kind, key: &str, value: &[u8]) -> Result<(), Error> {
        let sequence = self.index.position;
        self.push(Content::Put(kind, key.to_owned()), sequence, &[value])
    }

    fn push(&mut self, content: Content, sequence: u64, payload: &[&[u8]]) -> Result<(), Error> {
        let record: Record = self.encoder.push(content, sequence, (true, true), payload);
        let followed = self.index.apply(&record);
        debug_assert_eq!(followed, Ok(()));
        if self.encoder.bytes.len() >= PIECE {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Error> {
        let start = self.encoder.end() - self.encoder.bytes.len() as u64;
        self.file.write_at(&self.encoder.bytes, start)?;
        self.encoder.flushed();
        Ok(())
    }
}

/// Time and count of a record of dropped events.
pub fn dropped(payload: &[u8]) -> (u64, u64) {
    let mut rest = Cut(payload);
    let mut number = || rest.u64().unwrap_or(0);
    let (time_ms, _, count) = (number(), number(), number());
    (time_ms, count)
}
