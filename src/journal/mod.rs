//! The journal: what must survive in `data_dir/journal.db`. It holds the outbox (events that the
//! control plane has not acknowledged yet) and small values under keys (states of commands, the
//! last accepted spec, marks).
//!
//! What it promises:
//! - A commit, of one entry or many, is whole or not there, whatever happens when. Once
//!   [`Journal::commit`] says `Ok` it is on the disk.
//! - One flush of the disk serves all commits that wait for one.
//! - Results and keyed records are never dropped. When a cap is reached the oldest telemetry goes
//!   first, then the oldest statuses, and an `EventsDropped` stands in their place.
//! - On a full disk results still find room, in a reserve; new work is refused at once; when space
//!   returns the next commit finds it.
//! - A damaged file is set aside, what can be read of it is carried over, and an event says so.
//! - Nothing wakes up when there is nothing to do, and nothing is written then.
//!
//! How the parts fit: [`format`](mod@format) is the bytes, `scan` reads them, `index` knows what is
//! needed and where it stands, `writer` appends and `rewrite` makes the file anew, `open` recovers. All of that is
//! plain blocking code; `thread` puts it on a thread of its own behind a bounded queue. `memory` stands in
//! for all of it where there is no disk.
//!
//! What it refuses: files of another node or of a newer bcd, symlinks and whatever else is no
//! regular file; none of these is touched.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic
    )
)]

mod crc32c;
mod error;
mod format;
mod index;
mod memory;
mod open;
mod rewrite;
mod scan;
mod thread;
mod view;
mod writer;

use crate::proto::EventBody;

pub use error::{JournalError, OpenError};
pub use format::{MAX_BODY, MAX_KEY, MAX_VALUE, NAME};
pub use thread::Journal;
pub use view::{Found, Key, Readable, Unacknowledged, View, look, view};

/// The caps of `[journal]`.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Of the file. Results and keyed records may go a little beyond; a compaction needs as much again for
    /// a moment.
    pub max_bytes: u64,
    /// Of unacknowledged events.
    pub max_events: u64,
}

/// What an event is worth when there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Never dropped.
    Result,
    /// Dropped when no telemetry is left.
    Status,
    /// Dropped first.
    Telemetry,
}

/// What a keyed record is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The state of a command, by its id. A new key is new work: refused while the disk is full.
    Command,
    /// A spec; refused while the disk is full.
    Spec,
    /// Anything else: watermarks and the like.
    Mark,
}

/// A part of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// `body` is an encoded `Event` without sequence and time, at most [`MAX_BODY`] bytes.
    Event { class: Class, body: Vec<u8> },
    /// At most [`MAX_KEY`] and [`MAX_VALUE`] bytes; at most 4,096 keys, and 4 MiB of them all.
    Put {
        kind: Kind,
        key: String,
        value: Vec<u8>,
    },
    /// A key that is not there is no error.
    Delete { kind: Kind, key: String },
}

impl Entry {
    /// An event that says how something is.
    pub fn status(body: EventBody) -> Self {
        Self::Event {
            class: Class::Status,
            body: writer::body(body),
        }
    }
}

/// A commit that is on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The sequence of its last event; the position, where it has none.
    pub last: u64,
}

/// An unacknowledged event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub sequence: u64,
    /// When it was committed, by the host's clock, Unix time in milliseconds.
    pub time_ms: u64,
    pub body: Vec<u8>,
}

/// A key's value, as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keyed {
    pub kind: Kind,
    pub key: String,
    pub value: Vec<u8>,
}

/// What a journal held when it was opened.
#[derive(Clone, Debug)]
pub struct Recovered {
    pub journal_id: [u8; 16],
    /// The last sequence number given.
    pub position: u64,
    /// Events up to here are acknowledged, at least.
    pub acked: u64,
    /// Every key, by kind and key ascending.
    pub entries: Vec<Keyed>,
    /// The file was damaged: this is another journal, begun with what could be read.
    pub damage: Option<Damage>,
    /// Bytes of a write that a crash had cut short.
    pub tail_cut: u64,
}

/// What happened to a damaged file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The name it has now.
    pub kept_as: String,
    /// Events and keys carried over.
    pub records_kept: u64,
    pub bytes_lost: u64,
    /// What was wrong, for a person.
    pub what: String,
}

/// How the journal is.
#[derive(Clone, Debug, Default)]
pub struct Status {
    pub journal_id: [u8; 16],
    pub position: u64,
    pub acked: u64,
    /// Events, or what stands for dropped ones.
    pub unacknowledged: u64,
    pub keys: u64,
    /// Bytes of the records that are needed.
    pub live_bytes: u64,
    /// Bytes of the file that are written.
    pub used_bytes: u64,
    /// Since it was opened: commits taken, flushes of the file's bytes, events dropped, rewrites.
    pub commits: u64,
    pub syncs: u64,
    pub dropped: u64,
    pub compactions: u64,
    pub fault: Option<Fault>,
}

/// Why new work is refused at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// As in the `StorageFault` event that follows once it is over.
    pub reason: &'static str,
    pub message: String,
    pub since_ms: u64,
    pub refused_commands: u32,
}

impl Class {
    fn tag(self) -> u8 {
        match self {
            Self::Result => 1,
            Self::Status => 2,
            Self::Telemetry => 3,
        }
    }

    fn from_tag(tag: u8) -> Option<Self> {
        [Self::Result, Self::Status, Self::Telemetry]
            .into_iter()
            .find(|class| class.tag() == tag)
    }
}

impl Kind {
    fn tag(self) -> u8 {
        match self {
            Self::Command => 1,
            Self::Spec => 2,
            Self::Mark => 3,
        }
    }

    fn from_tag(tag: u8) -> Option<Self> {
        [Self::Command, Self::Spec, Self::Mark]
            .into_iter()
            .find(|kind| kind.tag() == tag)
    }
}

#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod sample_tests;
#[cfg(test)]
mod tests;
