//! The bytes of `journal.db`, format version 1; docs/journal.md describes them for other readers.
//!
//! A record's CRC covers, besides the record, the file's salt and the record's own offset. So a
//! record is one only where it was written, in the file it was written to: blocks that a
//! filesystem brings back from an older file, or puts in the wrong place, are not.
use super::crc32c::Crc32c;
use super::{Class, Kind};

/// The journal's file in `data_dir`.
pub const NAME: &str = "journal.db";
/// What a rewritten journal is called until it is whole.
pub const NEW: &str = "journal.db.new";

/// The version this bcd reads and writes.
pub const VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"bcdjrnl\n";
/// Bytes of one header.
pub const HEADER: usize = 192;
/// Where the header's copy stands.
pub const SECOND_HEADER: u64 = 4096;
/// Where the records begin.
pub const RECORDS: u64 = 8192;
/// The longest node id.
pub const MAX_NODE_ID: usize = 128;

/// Bytes of a record before its payload.
pub const HEAD: usize = 24;
/// A record's last byte: never zero, so that a record whose end was not written is told from one
/// whose bytes are wrong.
const LAST_BYTE: u8 = 0xbc;
/// The longest body of an event: its frame, with sequence and time, stays below 1 MiB.
pub const MAX_BODY: usize = (1 << 20) - 256;
/// The longest value of a keyed record.
pub const MAX_VALUE: usize = 1 << 20;
/// The longest key.
pub const MAX_KEY: usize = 255;
/// What an event's payload begins with: its time.
pub const EVENT_HEAD: usize = 8;

const FIRST: u8 = 1;
const LAST: u8 = 2;

/// What the file says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub journal_id: [u8; 16],
    /// Differs from file to file; goes into each record's CRC.
    pub salt: u32,
    /// When the journal was made, Unix time in milliseconds.
    pub created_ms: u64,
    /// Everything below this offset was on the disk before the file got its name.
    pub whole_to: u64,
    pub node_id: String,
}

/// Why bytes are no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderFault {
    /// Too short, another magic, or a CRC that does not match.
    Damaged,
    /// Of a version that this bcd does not know.
    Newer(u32),
}

impl Header {
    pub fn encode(&self) -> [u8; HEADER] {
        let mut bytes = Vec::with_capacity(HEADER);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        let crc = Crc32c::new().then(&bytes).value();
        bytes.extend(crc.to_le_bytes());
        bytes.extend(self.journal_id);
        bytes.extend(self.created_ms.to_le_bytes());
        bytes.extend(self.whole_to.to_le_bytes());
        bytes.extend(self.salt.to_le_bytes());
        bytes.extend((self.node_id.len() as u32).to_le_bytes());
        bytes.extend(self.node_id.as_bytes());
        bytes.resize(HEADER - 4, 0);
        let crc = Crc32c::new().then(&bytes).value();
        bytes.extend(crc.to_le_bytes());
        let mut header = [0; HEADER];
        for (to, from) in header.iter_mut().zip(bytes) {
            *to = from;
        }
        header
    }

    /// # Errors
    /// The bytes are no header of version 1.
    pub fn decode(bytes: &[u8]) -> Result<Self, HeaderFault> {
        Self::parse(bytes).unwrap_or(Err(HeaderFault::Damaged))
    }

    /// `None` where the bytes end too early.
    fn parse(bytes: &[u8]) -> Option<Result<Self, HeaderFault>> {
        let mut rest = Cut(bytes);
        let damaged = Some(Err(HeaderFault::Damaged));
        // Every version begins with these sixteen bytes.
        if rest.take::<8>()? != MAGIC {
            return damaged;
        }
        let version = rest.u32()?;
        if rest.u32()? != Crc32c::new().then(bytes.get(..12)?).value() {
            return damaged;
        }
        if version != VERSION {
            return Some(Err(HeaderFault::Newer(version)));
        }
        if u32_at(bytes, HEADER - 4)? != Crc32c::new().then(bytes.get(..HEADER - 4)?).value() {
            return damaged;
        }
        let journal_id = rest.take::<16>()?;
        let created_ms = rest.u64()?;
        let whole_to = rest.u64()?;
        let salt = rest.u32()?;
        let length = usize::try_from(rest.u32()?).ok()?;
        if length > MAX_NODE_ID {
            return damaged;
        }
        let node_id = std::str::from_utf8(rest.0.get(..length)?).ok()?;
        Some(Ok(Self {
            journal_id,
            salt,
            created_ms,
            whole_to,
            node_id: node_id.to_owned(),
        }))
    }
}

/// What a record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// The file's first record: events up to here were acknowledged when it was written.
    Base {
        acked: u64,
    },
    /// Events up to here are acknowledged.
    Ack {
        acked: u64,
    },
    /// An event; its time and body are its payload.
    Event(Class),
    /// Stands for the events from `first` to the record's own sequence.
    Dropped {
        time_ms: u64,
        first: u64,
        count: u64,
    },
    /// The value of a key; both are its payload.
    Put(Kind, String),
    Delete(Kind, String),
}

const BASE: u8 = 1;
const ACK: u8 = 2;
const EVENT: u8 = 3;
const DROPPED: u8 = 4;
const PUT: u8 = 5;
const DELETE: u8 = 6;

/// A record and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub offset: u64,
    /// Of the payload.
    pub length: u32,
    /// The record begins, and ends, a commit.
    pub first: bool,
    pub last: bool,
    /// Everything below this offset was on the disk before the record was written.
    pub durable_to: u64,
    /// An event's own; else that of the last event before.
    pub sequence: u64,
    pub content: Content,
}

/// All bytes of a record with a payload of `length`.
pub const fn total(length: usize) -> usize {
    (HEAD + length + 1).next_multiple_of(8)
}

impl Record {
    pub fn total(&self) -> u64 {
        total(self.length as usize) as u64
    }

    /// Where the next record stands.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.total())
    }
}

/// The head of a record, before its CRC is known to match.
pub struct Head {
    pub length: usize,
    crc: u32,
    kind: u8,
    flags: u8,
    tag: u8,
    pub key_length: usize,
    back: u32,
    sequence: u64,
}

impl Head {
    /// `None` when the bytes cannot be a record's head at `offset`.
    pub fn decode(bytes: &[u8], offset: u64) -> Option<Self> {
        let mut rest = Cut(bytes);
        let length = usize::try_from(rest.u32()?).ok()?;
        let crc = rest.u32()?;
        let [kind, flags, tag, key_length] = rest.take::<4>()?;
        let back = rest.u32()?;
        let sequence = rest.u64()?;
        let key_length = usize::from(key_length);
        let fits = match kind {
            BASE | ACK => length == 8 && tag == 0 && key_length == 0,
            EVENT => {
                (EVENT_HEAD..=EVENT_HEAD + MAX_BODY).contains(&length)
                    && Class::from_tag(tag).is_some()
                    && key_length == 0
            }
            DROPPED => length == 24 && tag == 0 && key_length == 0,
            PUT => {
                (key_length..=key_length + MAX_VALUE).contains(&length)
                    && Kind::from_tag(tag).is_some()
            }
            DELETE => length == key_length && Kind::from_tag(tag).is_some(),
            _ => false,
        };
        let placed = offset.checked_sub(u64::from(back))? >= RECORDS;
        (fits && placed && flags & !(FIRST | LAST) == 0).then_some(Self {
            length,
            crc,
            kind,
            flags,
            tag,
            key_length,
            back,
            sequence,
        })
    }

    /// How much of the payload [`record`](Self::record) wants to see.
    pub fn prefix(&self) -> usize {
        match self.kind {
            EVENT => 0,
            PUT | DELETE => self.key_length,
            _ => self.length,
        }
    }

    /// The CRC so far: what comes before the payload.
    pub fn seed(bytes: &[u8], salt: u32, offset: u64) -> Crc32c {
        Crc32c::new()
            .then(&salt.to_le_bytes())
            .then(&offset.to_le_bytes())
            .then(bytes.get(..4).unwrap_or_default())
            .then(bytes.get(8..HEAD).unwrap_or_default())
    }

    pub fn matches(&self, crc: Crc32c) -> bool {
        crc.value() == self.crc
    }

    /// The record, of the payload's first [`prefix`](Self::prefix) bytes.
    pub fn record(&self, prefix: &[u8], offset: u64) -> Option<Record> {
        let mut rest = Cut(prefix);
        let key = |bytes| std::str::from_utf8(bytes).ok().map(str::to_owned);
        let content = match self.kind {
            BASE => Content::Base { acked: rest.u64()? },
            ACK => Content::Ack { acked: rest.u64()? },
            EVENT => Content::Event(Class::from_tag(self.tag)?),
            DROPPED => Content::Dropped {
                time_ms: rest.u64()?,
                first: rest.u64()?,
                count: rest.u64()?,
            },
            PUT => Content::Put(Kind::from_tag(self.tag)?, key(prefix)?),
            DELETE => Content::Delete(Kind::from_tag(self.tag)?, key(prefix)?),
            _ => return None,
        };
        Some(Record {
            offset,
            length: u32::try_from(self.length).ok()?,
            first: self.flags & FIRST != 0,
            last: self.flags & LAST != 0,
            durable_to: offset.saturating_sub(u64::from(self.back)),
            sequence: self.sequence,
            content,
        })
    }
}

/// Whether the bytes after a payload are what they must be.
pub fn is_ending(bytes: &[u8]) -> bool {
    matches!(bytes.split_last(), Some((&LAST_BYTE, zeros)) if zeros.iter().all(|byte| *byte == 0))
}

/// Records on their way to one place in the file.
pub struct Encoder {
    salt: u32,
    /// Where the first byte will stand.
    start: u64,
    /// What is on the disk before; `None`: everything before each record (a file without a name).
    durable_to: Option<u64>,
    pub bytes: Vec<u8>,
}

impl Encoder {
    pub fn new(salt: u32, start: u64, durable_to: Option<u64>, bytes: Vec<u8>) -> Self {
        Self {
            salt,
            start,
            durable_to,
            bytes,
        }
    }

    /// Where the next record will stand.
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.bytes.len() as u64)
    }

    /// The bytes so far are written: the next one stands after them.
    pub fn flushed(&mut self) {
        self.start = self.end();
        self.bytes.clear();
    }

    /// Appends a record. `payload` is what follows the content's own fields: an event's time and
    /// body, a key's value. Returns it as a reader will find it.
    pub fn push(
        &mut self,
        content: Content,
        sequence: u64,
        (first, last): (bool, bool),
        payload: &[&[u8]],
    ) -> Record {
        let mut own = [0; 24];
        let (kind, tag, key_length, fields): (u8, u8, usize, &[u8]) = match &content {
            Content::Base { acked } => (BASE, 0, 0, numbers(&mut own, &[*acked])),
            Content::Ack { acked } => (ACK, 0, 0, numbers(&mut own, &[*acked])),
            Content::Event(class) => (EVENT, class.tag(), 0, &[]),
            Content::Dropped {
                time_ms,
                first,
                count,
            } => (
                DROPPED,
                0,
                0,
                numbers(&mut own, &[*time_ms, *first, *count]),
            ),
            Content::Put(kind, key) => (PUT, kind.tag(), key.len(), key.as_bytes()),
            Content::Delete(kind, key) => (DELETE, kind.tag(), key.len(), key.as_bytes()),
        };
        let offset = self.end();
        let durable_to = self.durable_to.unwrap_or(offset);
        let length = fields.len() + payload.iter().map(|part| part.len()).sum::<usize>();
        let mut head = Vec::with_capacity(HEAD);
        head.extend((length as u32).to_le_bytes());
        head.extend([0; 4]);
        let flags = if first { FIRST } else { 0 } | if last { LAST } else { 0 };
        head.extend([kind, flags, tag, key_length as u8]);
        head.extend(((offset - durable_to) as u32).to_le_bytes());
        head.extend(sequence.to_le_bytes());
        let mut crc = Head::seed(&head, self.salt, offset).then(fields);
        for part in payload {
            crc = crc.then(part);
        }
        let start = self.bytes.len();
        self.bytes.extend(head.iter().take(4));
        self.bytes.extend(crc.value().to_le_bytes());
        self.bytes.extend(head.iter().skip(8));
        self.bytes.extend(fields);
        for part in payload {
            self.bytes.extend(*part);
        }
        self.bytes.resize(start + total(length) - 1, 0);
        self.bytes.push(LAST_BYTE);
        Record {
            offset,
            length: length as u32,
            first,
            last,
            durable_to,
            sequence,
            content,
        }
    }
}

fn numbers<'a>(out: &'a mut [u8; 24], numbers: &[u64]) -> &'a [u8] {
    for (place, number) in out.chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    out.get(..8 * numbers.len()).unwrap_or_default()
}

/// Takes numbers off the front of bytes.
pub struct Cut<'a>(pub &'a [u8]);

impl Cut<'_> {
    pub fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk::<N>()?;
        self.0 = tail;
        Some(*head)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Cut(bytes.get(at..)?).u32()
}
