//! The journal's file and its index, in the hands of one thread: appending groups of commits,
//! making room, compacting, and what to do when the disk does not play along.
//!
//! After a failed write or flush the file is not written to again. The kernel may have marked the
//! pages clean and dropped them, so that a later flush succeeds and the bytes are gone; and the
//! page that the failed write shares with acknowledged records may be torn on the disk. What is
//! acknowledged is read back, checked, and written to a new file instead ([`rewrite`]).
use std::sync::Arc;
use std::time::Duration;

use super::format::{Content, Encoder, Header, MAX_BODY, MAX_KEY, MAX_VALUE, NAME, NEW};
use super::format::{RECORDS, total};
use super::index::{Holds, Index, Slot};
use super::rewrite::{Order, Rewritten, Source, dropped, rewrite};
use super::scan::{self, MAX_COMMIT};
use super::{Class, Committed, Entry, Fault, JournalError, Kind, Limits, Status, Stored};
use crate::proto::{Event, EventBody, EventsDropped, JournalDamaged, Message};
use crate::sys::fs::{DataFile, Dir, Error};
use crate::sys::log::{Level, Value, event};
use crate::sys::{clock, random};

use self::group::Group;

mod group;

/// The most bytes of one commit.
const MAX_COMMIT_BYTES: usize = 4 << 20;
/// The most keys, and bytes of all keyed records.
const MAX_KEYS: usize = 4096;
const MAX_KEYED: u64 = 4 << 20;
/// What stays allocated for the next group's bytes.
const KEPT_BUFFER: usize = 16 << 10;
/// A rewrite that failed is tried again after this long at the earliest.
const RETRY: Duration = Duration::from_secs(1);
/// A compaction that failed costs nothing but space: it has more time.
const COMPACT_RETRY: Duration = Duration::from_secs(60);

/// Sizes, all of which follow from the caps.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    pub max_bytes: u64,
    pub max_events: usize,
    /// Kept allocated behind the records for when the disk is full.
    pub reserve: u64,
    /// Allocated ahead beyond that, so that not every group must.
    pub step: u64,
    /// Less dead bytes than this are not worth a compaction.
    pub floor: u64,
}

impl Tuning {
    pub fn of(limits: Limits) -> Self {
        // A cap below this could not hold a command.
        let max_bytes = limits.max_bytes.max(256 << 10);
        Self {
            max_bytes,
            max_events: usize::try_from(limits.max_events.max(16)).unwrap_or(usize::MAX),
            reserve: (max_bytes / 16).clamp(16 << 10, 512 << 10),
            step: (max_bytes / 64).clamp(16 << 10, 256 << 10),
            floor: (max_bytes / 16).min(64 << 10),
        }
    }
}

pub struct Writer {
    pub(super) dir: Dir,
    pub(super) file: DataFile,
    pub(super) header: Header,
    pub(super) index: Index,
    /// Where the next record goes.
    pub(super) end: u64,
    /// How far the file's blocks are reserved.
    pub(super) allocated: u64,
    /// The acknowledgement that is in the file.
    pub(super) acked_in_file: u64,
    pub(super) tuning: Tuning,
    pub(super) buffer: Vec<u8>,
    pub(super) trouble: Option<Trouble>,
    /// The file's last bytes are in doubt: nothing more goes there.
    pub(super) suspect: bool,
    pub(super) rewrite_after: Duration,
    /// An event to go with the next group: records had gone bad.
    pub(super) untold: Option<Vec<u8>>,
    pub(super) counts: Counts,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub commits: u64,
    pub syncs: u64,
    pub dropped: u64,
    pub compactions: u64,
}

/// A fault that lasts.
pub struct Trouble {
    error: Arc<Error>,
    since_ms: u64,
    refused_commands: u32,
}

/// What a commit takes.
#[derive(Clone, Copy, Debug, Default)]
struct Needs {
    bytes: u64,
    events: usize,
    keys: usize,
    keyed: u64,
    /// It records what has happened: the reserve is for it, and the caps stretch for it.
    result: bool,
    /// It takes on a new command.
    command: bool,
}

/// Whether no part of a commit is larger than any journal takes.
pub(super) fn fits(commit: &[Entry]) -> Result<(), JournalError> {
    let too_large = |what, max| Err(JournalError::TooLarge { what, max });
    for entry in commit {
        match entry {
            Entry::Event { body, .. } if body.len() > MAX_BODY => {
                return too_large("an event", MAX_BODY);
            }
            Entry::Put { value, .. } if value.len() > MAX_VALUE => {
                return too_large("a value", MAX_VALUE);
            }
            Entry::Put { key, .. } | Entry::Delete { key, .. } if key.len() > MAX_KEY => {
                return too_large("a key", MAX_KEY);
            }
            _ => {}
        }
    }
    match commit.len() > MAX_COMMIT {
        true => too_large("a commit's count of entries", MAX_COMMIT),
        false => Ok(()),
    }
}

impl Writer {
    /// Appends the commits, each whole or not at all, with one flush for all of them. What is `Ok` is
    /// on the disk.
    pub fn append(&mut self, commits: &[Vec<Entry>]) -> Vec<Result<Committed, JournalError>> {
        let needs: Vec<_> = commits.iter().map(|commit| self.needs(commit)).collect();
        if let Err(error) = self.ready() {
            return needs
                .into_iter()
                .map(|needs| {
                    self.refuse(&needs?);
                    Err(error.clone())
                })
                .collect();
        }
        let sum = |of: &dyn Fn(&Needs) -> u64| needs.iter().flatten().map(of).sum::<u64>();
        let bytes = sum(&|needs| needs.bytes);
        let events = sum(&|needs| needs.events as u64);
        if bytes == 0 {
            return needs
                .into_iter()
                .map(|needs| needs.map(|_| self.committed(self.index.position)))
                .collect();
        }
        self.relieve(events, bytes);
        let disk = self.allocate(bytes);
        let mut group = self.group();
        let recovers = disk.is_ok() && self.trouble.is_some();
        if recovers {
            group.recovered(self.trouble.as_ref());
        }
        if let Some(body) = &self.untold {
            group.push(&[Entry::Event {
                class: Class::Result,
                body: body.clone(),
            }]);
        }
        let mut outcome = Vec::with_capacity(commits.len());
        for (commit, needs) in commits.iter().zip(needs) {
            let taken = needs.and_then(|needs| {
                let taken = self.admit(&needs, &group, disk.as_ref().err());
                if taken.is_err() {
                    self.refuse(&needs);
                }
                taken
            });
            outcome.push(taken.map(|()| group.push(commit)));
        }
        let taken = outcome.iter().filter(|taken| taken.is_ok()).count();
        let written = if taken > 0 {
            self.write(group)
        } else {
            self.keep(group.encoder.bytes);
            Ok(())
        };
        match written {
            Ok(()) => {
                self.counts.commits += taken as u64;
                if taken > 0 {
                    self.untold = None;
                }
                if recovers && taken > 0 {
                    self.recovered();
                }
                outcome
                    .into_iter()
                    .map(|taken| taken.map(|last| self.committed(last)))
                    .collect()
            }
            Err(error) => outcome
                .into_iter()
                .map(|taken| taken.and(Err(error.clone())))
                .collect(),
        }
    }

    /// The unacknowledged events after `after`, in order, of about `max_bytes` together, but one at least.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(&mut self, after: u64, max_bytes: usize) -> Result<Vec<Stored>, JournalError> {
        if let Some(stored) = self.try_read(after, max_bytes) {
            return Ok(stored);
        }
        // A record has gone bad since it was written: what is lost is dropped, and said so.
        self.rewrite(false)?;
        Ok(self.try_read(after, max_bytes).unwrap_or_default())
    }

    fn try_read(&self, after: u64, max_bytes: usize) -> Option<Vec<Stored>> {
        let mut stored = Vec::new();
        let mut bytes = 0_usize;
        for (first, slot) in self.index.after(after) {
            let place = slot.place();
            bytes = bytes.saturating_add(place.length as usize);
            if bytes > max_bytes && !stored.is_empty() {
                break;
            }
            // What the disk cannot read is as bad as what it reads wrongly.
            let payload = scan::payload(&self.file, self.header.salt, place.offset(), place.length)
                .unwrap_or(None);
            stored.push(stored_event(first, slot, payload?)?);
        }
        Some(stored)
    }

    /// Forgets the events up to `position`; the file learns of it with the next commit.
    pub fn ack(&mut self, position: u64) {
        self.index.ack(position);
    }

    /// Begins a new journal with what is not acknowledged and the keys.
    ///
    /// # Errors
    /// As [`append`](Self::append).
    pub fn rebase(&mut self) -> Result<(), JournalError> {
        self.in_place()?;
        self.rewrite(true)
    }

    /// Compacts, when more of the file is dead than alive.
    pub fn tidy(&mut self) {
        let used = self.end.saturating_sub(RECORDS);
        let dead = used.saturating_sub(self.index.live());
        let due = dead > self.index.live() && dead > self.tuning.floor;
        if due && !self.suspect && clock::monotonic() >= self.rewrite_after {
            // What fails here is tried again later; no commit depends on it.
            if self.in_place().is_ok() && self.rewrite(false).is_err() {
                self.rewrite_after = clock::monotonic() + COMPACT_RETRY;
            }
        }
    }

    pub fn status(&self) -> Status {
        Status {
            journal_id: self.header.journal_id,
            position: self.index.position,
            acked: self.index.acked,
            unacknowledged: self.index.events() as u64,
            keys: self.index.key_count() as u64,
            live_bytes: self.index.live(),
            used_bytes: self.end,
            commits: self.counts.commits,
            syncs: self.counts.syncs,
            dropped: self.counts.dropped,
            compactions: self.counts.compactions,
            fault: self.trouble.as_ref().map(|trouble| Fault {
                reason: reason(&trouble.error),
                message: message(&trouble.error),
                since_ms: trouble.since_ms,
                refused_commands: trouble.refused_commands,
            }),
        }
    }

    fn committed(&self, last: u64) -> Committed {
        Committed { last }
    }

    /// What a commit takes, or why it can never be taken.
    fn needs(&self, commit: &[Entry]) -> Result<Needs, JournalError> {
        fits(commit)?;
        let mut needs = Needs::default();
        let (mut records, mut spec) = (false, false);
        for entry in commit {
            let length = match entry {
                Entry::Event { class, body } => {
                    needs.events += 1;
                    records |= *class == Class::Result;
                    body.len() + 8
                }
                Entry::Put { kind, key, value } => {
                    let new = self.index.place(*kind, key).is_none();
                    needs.keys += usize::from(new);
                    needs.command |= new && *kind == Kind::Command;
                    spec |= *kind == Kind::Spec;
                    records = true;
                    needs.keyed += total(key.len() + value.len()) as u64;
                    key.len() + value.len()
                }
                Entry::Delete { key, .. } => {
                    records = true;
                    key.len()
                }
            };
            needs.bytes += total(length) as u64;
        }
        if needs.bytes > MAX_COMMIT_BYTES as u64 {
            let (what, max) = ("a commit", MAX_COMMIT_BYTES);
            return Err(JournalError::TooLarge { what, max });
        }
        needs.result = records && !needs.command && !spec;
        Ok(needs)
    }

    /// Whether a commit may join the group; `full` is what the disk says to more space.
    fn admit(
        &self,
        needs: &Needs,
        group: &Group,
        full: Option<&Arc<Error>>,
    ) -> Result<(), JournalError> {
        let end = group.encoder.end().saturating_add(needs.bytes);
        if let Some(error) = full
            && !(needs.result && end <= self.allocated)
        {
            return Err(JournalError::Disk(error.clone()));
        }
        let stretch = if needs.result { self.tuning.reserve } else { 0 };
        let fits = end.saturating_sub(RECORDS) <= self.tuning.max_bytes + stretch;
        let events = self.index.events() + group.events + needs.events;
        let few = needs.result || needs.events == 0 || events <= self.tuning.max_events;
        let keys = self.index.key_count() + group.keys + needs.keys <= MAX_KEYS;
        let keyed = needs.keyed == 0 || self.index.keyed() + group.keyed + needs.keyed <= MAX_KEYED;
        if fits && few && keys && keyed {
            Ok(())
        } else {
            Err(JournalError::Full)
        }
    }

    fn refuse(&mut self, needs: &Needs) {
        if let Some(trouble) = self.trouble.as_mut().filter(|_| needs.command) {
            trouble.refused_commands = trouble.refused_commands.saturating_add(1);
        }
    }

    /// Makes the file fit to be written, where it is not.
    fn ready(&mut self) -> Result<(), JournalError> {
        self.in_place()?;
        if !self.suspect {
            return Ok(());
        }
        match &self.trouble {
            Some(trouble) if clock::monotonic() < self.rewrite_after => {
                Err(JournalError::Disk(trouble.error.clone()))
            }
            _ => self.rewrite(false),
        }
    }

    /// The file is still the one with its name. One that was deleted is whole as long as it is open:
    /// what it holds is written anew, so that a command is not run twice for a slip of somebody's hand.
    fn in_place(&mut self) -> Result<(), JournalError> {
        let named = self.dir.is_named(NAME, &self.file);
        if named.map_err(|error| JournalError::Disk(self.troubled(error)))? {
            return Ok(());
        }
        let deleted = self.file.is_deleted() && self.dir.exists(NAME).is_ok_and(|there| !there);
        if !deleted {
            return Err(JournalError::Moved);
        }
        if let Some(trouble) = &self.trouble
            && clock::monotonic() < self.rewrite_after
        {
            return Err(JournalError::Disk(trouble.error.clone()));
        }
        self.suspect = true;
        self.rewrite(false)?;
        event(Level::Error, "journal.deleted", &[]);
        Ok(())
    }

    /// Drops what may be dropped, and compacts, where the caps leave no room for so much more.
    fn relieve(&mut self, events: u64, bytes: u64) {
        let Tuning {
            max_bytes,
            max_events,
            ..
        } = self.tuning;
        let events = usize::try_from(events).unwrap_or(usize::MAX);
        let used = self.end.saturating_sub(RECORDS);
        let many = self.index.events().saturating_add(events) > max_events;
        let large = used.saturating_add(bytes) > max_bytes;
        if !many && !large {
            return;
        }
        // A little more than needed, so that it is not needed again at once.
        let keep_events = if many {
            max_events.saturating_sub(events + max_events / 16)
        } else {
            usize::MAX
        };
        let keep_bytes = if large && self.index.live() + bytes > max_bytes / 8 * 7 {
            (max_bytes / 4 * 3).saturating_sub(bytes)
        } else {
            u64::MAX
        };
        self.drop_events(keep_events, keep_bytes);
        let dead = used.saturating_sub(self.index.live());
        // Not for every commit of a journal that is full of results: a rewrite must be worth it, or needed.
        let beyond = used.saturating_add(bytes) > max_bytes + self.tuning.reserve;
        let worth = dead >= max_bytes / 8 || beyond && dead >= max_bytes / 64;
        if large && worth && clock::monotonic() >= self.rewrite_after {
            let _ = self.rewrite(false);
        }
    }

    fn drop_events(&mut self, keep_events: usize, keep_bytes: u64) {
        let now_ms = clock::wall_ms();
        let ranges = self.index.to_drop(keep_events, keep_bytes);
        for some in ranges.chunks(MAX_COMMIT) {
            let bytes = (some.len() * total(24)) as u64;
            // These few bytes may come from the reserve.
            if self.allocate(bytes).is_err() && self.end.saturating_add(bytes) > self.allocated {
                return;
            }
            let mut group = self.group();
            let mut count = 0;
            for range in some {
                count += range.anew;
                let content = Content::Dropped {
                    time_ms: now_ms,
                    first: range.first,
                    count: range.last - range.first + 1,
                };
                group.record(content, range.last, (true, true), &[]);
            }
            if self.write(group).is_err() {
                return;
            }
            self.counts.dropped += count;
            let fields = [
                ("count", Value::Number(count)),
                ("ranges", Value::Number(some.len() as u64)),
            ];
            event(Level::Warn, "journal.events_dropped", &fields);
        }
    }

    /// Reserves blocks for `bytes` more, and the reserve behind them.
    fn allocate(&mut self, bytes: u64) -> Result<(), Arc<Error>> {
        let wanted = self
            .end
            .saturating_add(bytes)
            .saturating_add(self.tuning.reserve);
        if wanted <= self.allocated {
            return Ok(());
        }
        let ahead = wanted
            .saturating_add(self.tuning.step)
            .next_multiple_of(4096);
        let mut reserve = |to: u64| {
            let more = self.file.allocate(self.allocated, to - self.allocated);
            if more.is_ok() {
                self.allocated = to;
            }
            more
        };
        reserve(ahead)
            .or_else(|_| reserve(wanted))
            .map_err(|error| self.troubled(error))
    }

    fn group(&mut self) -> Group {
        let bytes = std::mem::take(&mut self.buffer);
        let mut group = Group {
            encoder: Encoder::new(self.header.salt, self.end, Some(self.end), bytes),
            records: Vec::new(),
            position: self.index.position,
            now_ms: clock::wall_ms(),
            events: 0,
            keys: 0,
            keyed: 0,
        };
        if self.index.acked > self.acked_in_file {
            let acked = self.index.acked;
            group.record(Content::Ack { acked }, group.position, (true, true), &[]);
        }
        group
    }

    /// Puts a group on the disk and takes it in.
    fn write(&mut self, group: Group) -> Result<(), JournalError> {
        let Group {
            encoder, records, ..
        } = group;
        let end = encoder.end();
        let written = self
            .file
            .write_at(&encoder.bytes, self.end)
            .and_then(|()| self.file.sync_data());
        self.keep(encoder.bytes);
        if let Err(error) = written {
            self.suspect = true;
            return Err(JournalError::Disk(self.troubled(error)));
        }
        self.counts.syncs += 1;
        for record in &records {
            let followed = self.index.apply(record);
            debug_assert_eq!(followed, Ok(()));
        }
        self.acked_in_file = self.index.acked;
        self.end = end;
        self.allocated = self.allocated.max(end);
        Ok(())
    }

    fn keep(&mut self, mut buffer: Vec<u8>) {
        buffer.clear();
        buffer.shrink_to(KEPT_BUFFER);
        self.buffer = buffer;
    }

    /// Writes what is needed to a new file, which takes this one's place; with `rebase` under a new
    /// id, its events counted from 1.
    fn rewrite(&mut self, rebase: bool) -> Result<(), JournalError> {
        let now_ms = clock::wall_ms();
        let journal_id = if rebase {
            random::bytes()
                .map_err(|error| Error::io("get random bytes for", &self.dir.join(NEW), error))
        } else {
            Ok(self.header.journal_id)
        };
        let written = journal_id.and_then(|journal_id| {
            let order = Order {
                journal_id,
                node_id: &self.header.node_id,
                created_ms: if rebase {
                    now_ms
                } else {
                    self.header.created_ms
                },
                now_ms,
                renumber: rebase,
                event: None,
            };
            let source = Source {
                file: &self.file,
                salt: self.header.salt,
            };
            rewrite(&self.dir, Some(source), &self.index, &order, &self.tuning)
        });
        let written = match written {
            Ok(written) => written,
            Err(error) => return Err(self.not_rewritten(error)),
        };
        if written.lost > 0 {
            self.set_aside(&written, now_ms);
        }
        let renamed = match self.file.is_deleted() {
            false => self.dir.rename(NEW, NAME),
            // Whatever has the name by now is another's.
            true => self.dir.rename_new(NEW, NAME),
        };
        // Where only the last flush failed, the name is the new file's already.
        if renamed.is_ok() || matches!(self.dir.is_named(NAME, &written.file), Ok(true)) {
            self.adopt(written);
        }
        match renamed {
            Ok(()) => {
                self.suspect = false;
                self.counts.compactions += 1;
                Ok(())
            }
            Err(error) => {
                self.suspect = true;
                Err(self.not_rewritten(error))
            }
        }
    }

    fn not_rewritten(&mut self, error: Error) -> JournalError {
        self.rewrite_after = clock::monotonic() + RETRY;
        // The old file still takes what its reserve has room for.
        let error = if self.suspect {
            self.troubled(error)
        } else {
            Arc::new(error)
        };
        JournalError::Disk(error)
    }

    fn adopt(&mut self, written: Rewritten) {
        self.acked_in_file = written.index.acked;
        self.file = written.file;
        self.header = written.header;
        self.index = written.index;
        self.end = written.end;
        self.allocated = written.allocated;
    }

    /// Keeps a file in which records went bad, and has an event say so.
    fn set_aside(&mut self, written: &Rewritten, now_ms: u64) {
        let kept = super::open::free_name(&self.dir, now_ms)
            .ok()
            .filter(|name| self.dir.link_new(NAME, name).is_ok());
        let needed = self.index.events() + self.index.key_count();
        self.untold = Some(body(EventBody::JournalDamaged(JournalDamaged {
            kept_as: kept.clone().unwrap_or_default(),
            records_kept: (needed as u64).saturating_sub(written.lost),
            bytes_lost: self.index.live().saturating_sub(written.index.live()),
            damage: "records went bad after they were written".to_owned(),
        })));
        let fields = [
            ("lost", Value::Number(written.lost)),
            ("kept_as", Value::Text(kept.as_deref().unwrap_or(""))),
        ];
        event(Level::Error, "journal.damaged", &fields);
    }

    /// Notes a fault, and says so once while it lasts.
    fn troubled(&mut self, error: Error) -> Arc<Error> {
        let error = Arc::new(error);
        match &mut self.trouble {
            Some(trouble) => trouble.error = error.clone(),
            None => {
                let remedy = JournalError::Disk(error.clone()).remedy();
                let mut fields = vec![
                    ("reason", Value::Text(reason(&error))),
                    ("error", Value::Chain(&*error)),
                ];
                fields.extend(remedy.map(|remedy| ("do", Value::Text(remedy))));
                event(Level::Error, "journal.fault", &fields);
                self.trouble = Some(Trouble {
                    error: error.clone(),
                    since_ms: clock::wall_ms(),
                    refused_commands: 0,
                });
            }
        }
        error
    }

    fn recovered(&mut self) {
        if let Some(trouble) = self.trouble.take() {
            let refused = u64::from(trouble.refused_commands);
            let fields = [
                ("reason", Value::Text(reason(&trouble.error))),
                ("refused_commands", Value::Number(refused)),
            ];
            event(Level::Info, "journal.recovered", &fields);
        }
    }
}

pub fn stored_event(first: u64, slot: &Slot, payload: Vec<u8>) -> Option<Stored> {
    let (time_ms, body) = match slot.holds {
        Holds::Event(_) => scan::event(payload)?,
        Holds::Dropped => {
            let (time_ms, count) = dropped(&payload);
            let dropped = EventsDropped {
                first,
                last: slot.sequence,
                count,
            };
            (time_ms, body(EventBody::EventsDropped(dropped)))
        }
    };
    Some(Stored {
        sequence: slot.sequence,
        time_ms,
        body,
    })
}

/// An event's body, without sequence and time.
pub fn body(body: EventBody) -> Vec<u8> {
    let event = Event {
        body: Some(body),
        ..Default::default()
    };
    event.encode_to_vec()
}

/// The word that `StorageFault` has for an error.
fn reason(error: &Error) -> &'static str {
    if error.is_full() {
        "DiskFull"
    } else if error.is_read_only() {
        "ReadOnly"
    } else {
        "IoError"
    }
}

fn message(error: &Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}
