//! Reading a journal from its file, in pieces of bounded size: commit after commit up to the end of
//! what is readable, and then the judgement of what stands there.
//!
//! Nothing is appended before the bytes before it are on the disk, and each record says up to
//! where they were. What cannot be read is therefore damage when anything behind it proves that it
//! had been written, and when nothing of it is missing; else it is a write that a crash tore.
use super::format::{Cut, EVENT_HEAD, is_ending, total};
use super::format::{HEAD, HEADER, Head, Header, HeaderFault, RECORDS, Record, SECOND_HEADER};
use crate::sys::fs::{DataFile, Error};

/// How much is read at a time.
const PIECE: usize = 64 << 10;
/// The most records in a commit.
pub const MAX_COMMIT: usize = 1024;
/// A search for records behind damage gives up after as many bytes of candidates.
const SEARCH_BUDGET: u64 = 1 << 30;
/// The smallest piece that a disk writes whole.
const SECTOR: u64 = 512;

/// What stands after the last whole commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// Nothing but space.
    Clean,
    /// Bytes of a write that did not end.
    Torn { bytes: u64 },
    /// Bytes that were whole once.
    Damaged { at: u64, what: &'static str },
}

/// Where the readable part ends, and what is behind it.
#[derive(Clone, Copy, Debug)]
pub struct End {
    pub offset: u64,
    pub tail: Tail,
}

/// A file read through a buffer.
pub struct Window<'a> {
    file: &'a DataFile,
    buffer: Vec<u8>,
    /// Where in the file the buffer begins, and how much of it is of the file.
    start: u64,
    filled: usize,
}

impl<'a> Window<'a> {
    pub fn new(file: &'a DataFile) -> Self {
        Self {
            file,
            buffer: vec![0; PIECE],
            start: 0,
            filled: 0,
        }
    }

    /// The `length` bytes at `offset` (at most [`PIECE`]), fewer at the file's end.
    pub fn at(&mut self, offset: u64, length: usize) -> Result<&[u8], Error> {
        let end = offset.saturating_add(length as u64);
        if offset < self.start || end > self.start.saturating_add(self.filled as u64) {
            self.filled = 0;
            self.filled = self.file.read_at(&mut self.buffer, offset)?;
            self.start = offset;
        }
        let from = usize::try_from(offset.saturating_sub(self.start)).unwrap_or(usize::MAX);
        let to = from.saturating_add(length).min(self.filled);
        Ok(self.buffer.get(from..to).unwrap_or_default())
    }

    /// The record at `offset`, or `None` when there is none.
    pub fn record(&mut self, offset: u64, salt: u32) -> Result<Option<Record>, Error> {
        let head_bytes = self.at(offset, HEAD)?;
        let Some(head) = Head::decode(head_bytes, offset) else {
            return Ok(None);
        };
        let mut crc = Head::seed(head_bytes, salt, offset);
        let mut prefix = Vec::new();
        let mut at = offset.saturating_add(HEAD as u64);
        let mut left = head.length;
        while left > 0 {
            let part = self.at(at, left.min(PIECE))?;
            if part.is_empty() {
                return Ok(None);
            }
            if prefix.is_empty() {
                prefix.extend(part.iter().take(head.prefix()));
            }
            crc = crc.then(part);
            at = at.saturating_add(part.len() as u64);
            left -= part.len();
        }
        let ending = total(head.length) - HEAD - head.length;
        let ending_bytes = self.at(at, ending)?;
        if !head.matches(crc) || ending_bytes.len() != ending || !is_ending(ending_bytes) {
            return Ok(None);
        }
        Ok(head.record(&prefix, offset))
    }
}

/// What the two headers say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Headers {
    Whole(Header),
    /// One of the two is damaged.
    OneDamaged(Header),
    Newer(u32),
    /// Neither can be read.
    Damaged,
}

/// Reads both headers.
///
/// # Errors
/// The file cannot be read.
pub fn headers(file: &DataFile) -> Result<Headers, Error> {
    let read = |offset| {
        let mut bytes = [0; HEADER];
        file.read_at(&mut bytes, offset)
            .map(|_| Header::decode(&bytes))
    };
    Ok(match (read(0)?, read(SECOND_HEADER)?) {
        (Ok(one), Ok(two)) if one == two => Headers::Whole(one),
        (Ok(one), _) => Headers::OneDamaged(one),
        (Err(_), Ok(two)) => Headers::OneDamaged(two),
        (Err(HeaderFault::Newer(version)), _) | (_, Err(HeaderFault::Newer(version))) => {
            Headers::Newer(version)
        }
        (Err(HeaderFault::Damaged), Err(HeaderFault::Damaged)) => Headers::Damaged,
    })
}

/// Gives each whole commit to `apply`, from the first to the last, and says what comes after.
/// `apply` may refuse a commit with the reason; that is damage.
///
/// # Errors
/// The file cannot be read.
pub fn scan(
    window: &mut Window<'_>,
    header: &Header,
    apply: &mut dyn FnMut(&[Record]) -> Result<(), &'static str>,
) -> Result<End, Error> {
    let mut commit: Vec<Record> = Vec::new();
    let mut whole = RECORDS;
    let mut at = RECORDS;
    loop {
        let record = window.record(at, header.salt)?;
        let Some(record) = record.filter(|_| commit.len() < MAX_COMMIT) else {
            break;
        };
        if record.first != commit.is_empty() {
            return Ok(damaged(whole, at, "a commit without its beginning or end"));
        }
        at = record.end();
        let last = record.last;
        commit.push(record);
        if last {
            if let Err(what) = apply(&commit) {
                return Ok(damaged(whole, whole, what));
            }
            commit.clear();
            whole = at;
        }
    }
    let tail = judge(window, header, whole, at)?;
    Ok(End {
        offset: whole,
        tail,
    })
}

fn damaged(offset: u64, at: u64, what: &'static str) -> End {
    End {
        offset,
        tail: Tail::Damaged { at, what },
    }
}

/// What is behind the last whole commit, where the record at `at` cannot be read.
fn judge(window: &mut Window<'_>, header: &Header, whole: u64, at: u64) -> Result<Tail, Error> {
    if whole < header.whole_to {
        let what = "a record that was written with the file cannot be read";
        return Ok(Tail::Damaged { at, what });
    }
    let Some(end) = last_byte(window, whole)? else {
        return Ok(Tail::Clean);
    };
    let (mut proof, mut last_end) = (false, 0);
    search(window, header.salt, at, end, &mut |record| {
        proof = record.durable_to > whole;
        last_end = record.end();
        !proof
    })?;
    if proof {
        let what = "a record cannot be read, and later ones can";
        return Ok(Tail::Damaged { at, what });
    }
    let claimed = Head::decode(window.at(at, HEAD)?, at)
        .map_or(0, |head| at.saturating_add(total(head.length) as u64));
    if (claimed == end || last_end == end) && !has_hole(window, at, end)? {
        let what = "the last record cannot be read, and no part of it is missing";
        return Ok(Tail::Damaged { at, what });
    }
    Ok(Tail::Torn {
        bytes: end.saturating_sub(whole),
    })
}

/// Where the bytes from `from` on end that are not zero; `None` when there are none.
fn last_byte(window: &mut Window<'_>, from: u64) -> Result<Option<u64>, Error> {
    let mut found = None;
    let mut at = from;
    loop {
        let part = window.at(at, PIECE)?;
        if part.is_empty() {
            return Ok(found);
        }
        if let Some(index) = part.iter().rposition(|byte| *byte != 0) {
            found = Some(at.saturating_add(index as u64 + 1));
        }
        at = at.saturating_add(part.len() as u64);
    }
}

/// Whether the file holds nothing but zeros.
///
/// # Errors
/// The file cannot be read.
pub fn is_zero(file: &DataFile) -> Result<bool, Error> {
    Ok(last_byte(&mut Window::new(file), 0)?.is_none())
}

/// Whether some sector's part of `from..to` holds nothing but zeros: a write that is missing.
fn has_hole(window: &mut Window<'_>, from: u64, to: u64) -> Result<bool, Error> {
    let mut at = from;
    while at < to {
        let next = (at + 1).next_multiple_of(SECTOR).min(to);
        let part = window.at(at, usize::try_from(next - at).unwrap_or(0))?;
        if part.iter().all(|byte| *byte == 0) {
            return Ok(true);
        }
        at = next;
    }
    Ok(false)
}

/// Gives the records found from `from` on, at any offset that can hold one, to `see`, until it
/// returns `false`. A record found is stepped over whole.
fn search(
    window: &mut Window<'_>,
    salt: u32,
    from: u64,
    to: u64,
    see: &mut dyn FnMut(Record) -> bool,
) -> Result<(), Error> {
    let mut at = from.next_multiple_of(8);
    let mut budget = SEARCH_BUDGET;
    while at < to && budget > 0 {
        let plausible = Head::decode(window.at(at, HEAD)?, at);
        let Some(head) = plausible else {
            at += 8;
            continue;
        };
        budget = budget.saturating_sub(head.length as u64);
        match window.record(at, salt)? {
            Some(record) => {
                at = record.end();
                if !see(record) {
                    return Ok(());
                }
            }
            None => at += 8,
        }
    }
    Ok(())
}

/// What [`salvage`] found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Salvaged {
    pub records: u64,
    pub bytes_lost: u64,
}

/// Gives every whole commit that can be read anywhere in the file to `apply`, in order. A part that
/// the disk cannot read is skipped.
///
/// # Errors
/// The file's length cannot be had.
pub fn salvage(
    file: &DataFile,
    salt: u32,
    apply: &mut dyn FnMut(&[Record]),
) -> Result<Salvaged, Error> {
    let length = file.length()?;
    let mut window = Window::new(file);
    let mut commit: Vec<Record> = Vec::new();
    let mut found = Salvaged::default();
    let mut kept = 0;
    let mut end_of_data = RECORDS.min(length);
    let mut at = RECORDS;
    while at < length {
        let mut next = 0;
        // The records up to the next hole in them, as commits.
        let searched = search(&mut window, salt, at, length, &mut |record| {
            if record.first || commit.last().is_none_or(|last| last.end() != record.offset) {
                commit.clear();
            }
            next = record.end();
            let begun = record.first || !commit.is_empty();
            let last = record.last;
            if begun && commit.len() < MAX_COMMIT {
                commit.push(record);
                if last {
                    apply(&commit);
                    found.records += commit.len() as u64;
                    kept += commit.iter().map(Record::total).sum::<u64>();
                    commit.clear();
                }
            }
            true
        });
        if searched.is_ok() {
            break;
        }
        // The disk cannot read somewhere behind `next`: on after the buffer's piece.
        at = at.max(next).saturating_add(PIECE as u64) & !4095;
    }
    if let Ok(Some(end)) = last_byte(&mut window, RECORDS) {
        end_of_data = end;
    }
    found.bytes_lost = end_of_data.saturating_sub(RECORDS).saturating_sub(kept);
    Ok(found)
}

/// The whole payload of the record at `offset`, its CRC checked again; `None` when it is not
/// (any more) there.
///
/// # Errors
/// The file cannot be read.
pub fn payload(
    file: &DataFile,
    salt: u32,
    offset: u64,
    length: u32,
) -> Result<Option<Vec<u8>>, Error> {
    let length = length as usize;
    let mut bytes = vec![0; total(length)];
    let read = file.read_at(&mut bytes, offset)?;
    let whole = read == bytes.len() && {
        let head = Head::decode(&bytes, offset).filter(|head| head.length == length);
        let body = bytes.get(HEAD..HEAD + length).unwrap_or_default();
        let ending = bytes.get(HEAD + length..).unwrap_or_default();
        head.is_some_and(|head| {
            is_ending(ending) && head.matches(Head::seed(&bytes, salt, offset).then(body))
        })
    };
    if !whole {
        return Ok(None);
    }
    bytes.truncate(HEAD + length);
    bytes.drain(..HEAD);
    Ok(Some(bytes))
}

/// An event's payload as its time and body.
pub fn event(mut payload: Vec<u8>) -> Option<(u64, Vec<u8>)> {
    let time_ms = Cut(&payload).u64()?;
    payload.drain(..EVENT_HEAD);
    Some((time_ms, payload))
}
