//! Looking at a journal without changing it, also while a daemon writes to it.
use std::time::Duration;

use super::format::{Header, Record};
use super::index::{Holds, Index};
use super::open::no_header;
use super::scan::{self, Headers, Tail, Window};
use super::writer::stored_event;
use super::{Class, Kind, Stored};
use crate::sys::fs::{DataFile, Dir, Error};

/// Between two looks, and how many there are at most.
const PAUSE: Duration = Duration::from_millis(50);
const LOOKS: u32 = 40;

/// A journal as it was found.
pub enum View {
    Readable(Box<Readable>),
    /// No header can be read.
    Unreadable {
        why: &'static str,
        file_bytes: u64,
    },
    Newer(u32),
}

/// A journal whose header can be read.
pub struct Readable {
    file: DataFile,
    header: Header,
    index: Index,
    pub file_bytes: u64,
    /// Of the file's records up to the end of what is whole.
    pub records: u64,
    pub used_bytes: u64,
    /// Bytes of a write that did not end, or has not yet.
    pub torn_bytes: u64,
    pub damage: Option<Found>,
}

/// Damage, and what could be read in spite of it.
pub struct Found {
    pub what: String,
    pub records_readable: u64,
    pub bytes_lost: u64,
}

/// A key, without its value.
pub struct Key<'a> {
    pub kind: Kind,
    pub key: &'a str,
    pub bytes: u64,
}

/// An event, or what stands for dropped ones.
pub struct Unacknowledged {
    /// `None`: it stands for dropped events.
    pub class: Option<Class>,
    pub stored: Stored,
}

impl View {
    /// Where it is not whole, and how.
    fn broken(&self) -> Option<(u64, u64, Option<&str>)> {
        match self {
            Self::Readable(seen) if seen.torn_bytes > 0 || seen.damage.is_some() => {
                let what = seen.damage.as_ref().map(|found| found.what.as_str());
                Some((seen.used_bytes, seen.torn_bytes, what))
            }
            Self::Readable(_) | Self::Unreadable { .. } | Self::Newer(_) => None,
        }
    }
}

/// Reads the journal called `name` in `dir`. A write under way looks like a torn one, and a record read while it
/// is written like a bad one: what is not whole is so when the next look finds it as it was.
///
/// # Errors
/// It is missing, no regular file, or cannot be read.
pub fn view(dir: &Dir, name: &str) -> Result<View, Error> {
    let mut seen = look(dir, name)?;
    for _ in 1..LOOKS {
        if seen.broken().is_none() {
            break;
        }
        std::thread::sleep(PAUSE);
        let before = std::mem::replace(&mut seen, look(dir, name)?);
        if seen.broken() == before.broken() {
            break;
        }
    }
    Ok(seen)
}

/// One look, at a journal that nobody writes to.
///
/// # Errors
/// As [`view`].
pub fn look(dir: &Dir, name: &str) -> Result<View, Error> {
    let file = dir.view_data(name)?;
    let file_bytes = file.length()?;
    let (header, mut damage) = match scan::headers(&file)? {
        Headers::Whole(header) => (header, None),
        Headers::OneDamaged(header) => {
            (header, Some("one of its two headers is damaged".to_owned()))
        }
        Headers::Newer(version) => return Ok(View::Newer(version)),
        Headers::Damaged => {
            let why = no_header(&file);
            return Ok(View::Unreadable { why, file_bytes });
        }
    };
    let mut index = Index::default();
    let mut records = 0;
    let end = scan::scan(
        &mut Window::new(&file),
        &header,
        &mut |commit: &[Record]| {
            records += commit.len() as u64;
            commit.iter().try_for_each(|record| index.apply(record))
        },
    )?;
    let mut torn_bytes = 0;
    match end.tail {
        Tail::Clean => {}
        Tail::Torn { bytes } => torn_bytes = bytes,
        Tail::Damaged { at, what } => damage = Some(format!("{what}, at byte {at}")),
    }
    let damage = match damage {
        None => None,
        Some(what) => {
            index = Index::default();
            let salvaged = scan::salvage(&file, header.salt, &mut |commit| {
                commit.iter().for_each(|record| index.salvage(record));
            })?;
            Some(Found {
                what,
                records_readable: salvaged.records,
                bytes_lost: salvaged.bytes_lost,
            })
        }
    };
    Ok(View::Readable(Box::new(Readable {
        file,
        header,
        index,
        file_bytes,
        records,
        used_bytes: end.offset,
        torn_bytes,
        damage,
    })))
}

impl Readable {
    pub fn node_id(&self) -> &str {
        &self.header.node_id
    }

    pub fn journal_id(&self) -> [u8; 16] {
        self.header.journal_id
    }

    /// When it was made, Unix time in milliseconds.
    pub fn created_ms(&self) -> u64 {
        self.header.created_ms
    }

    pub fn position(&self) -> u64 {
        self.index.position
    }

    pub fn acked(&self) -> u64 {
        self.index.acked
    }

    pub fn unacknowledged(&self) -> usize {
        self.index.events()
    }

    pub fn key_count(&self) -> usize {
        self.index.key_count()
    }

    pub fn live_bytes(&self) -> u64 {
        self.index.live()
    }

    /// The keys, by kind and name.
    pub fn keys(&self) -> impl Iterator<Item = Key<'_>> {
        self.index.keys().map(|(kind, key, place)| Key {
            kind,
            key,
            bytes: u64::from(place.length).saturating_sub(key.len() as u64),
        })
    }

    /// The unacknowledged events in order, each read as it is asked for; one that went bad meanwhile is
    /// left out.
    pub fn events(&self) -> impl Iterator<Item = Unacknowledged> {
        self.index
            .after(self.index.acked)
            .filter_map(|(first, slot)| {
                let place = slot.place();
                let salt = self.header.salt;
                let payload = scan::payload(&self.file, salt, place.offset(), place.length);
                let class = match slot.holds {
                    Holds::Event(class) => Some(class),
                    Holds::Dropped => None,
                };
                let stored = stored_event(first, slot, payload.ok()??)?;
                Some(Unacknowledged { class, stored })
            })
    }
}
