//! What sessions write: openings, events, sightings, ends. All that waits goes into one transaction, in
//! the order it came: one flush of the disk for however many sessions come at once.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bcd::rt::channel::Sender;
use bcd::sys::log::{self, Level, Value};
use bcd::wire::grpc::Status;

use super::events;
use super::sessions::{Batch, NotStored, Opened, Opening, open};
use super::{Records, RegistryError, SEEN_EVERY_MS};
use crate::store::{Store, StoreError};

/// Openings that may wait.
const OPENINGS_MAX: usize = 4096;

/// Beyond so many items, sightings are let go: a later one says the same.
const SIGHTINGS_MAX: usize = 16_384;

/// What comes of an opening.
pub(super) type OpeningAnswer = Result<Result<Opened, Status>, RegistryError>;

/// Something to be written.
pub(super) enum Item {
    Open(Opening, Sender<OpeningAnswer>),
    Events(Batch, Sender<Result<u64, NotStored>>),
    /// The node was heard in this session.
    Seen {
        node_id: String,
        session_id: String,
    },
    Closed {
        node_id: String,
        session_id: String,
    },
}

/// What came of writing an item.
enum Outcome {
    Opened(Result<Opened, Status>),
    Stored(u64),
    Done,
}

/// What waits to be written, bounded: of events, a session has one batch here at a time; openings and
/// sightings are counted; ends are no more than openings and sessions.
#[derive(Default)]
pub(super) struct Inbox(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    items: Vec<Item>,
    openings: usize,
}

impl Inbox {
    /// Adds an item and says whether it is the first, so that the records' thread must be told.
    ///
    /// # Errors
    /// Too many sessions wait to be opened already.
    pub(super) fn add(&self, item: Item) -> Result<bool, RegistryError> {
        let mut waiting = self.locked();
        if matches!(item, Item::Open(..)) {
            if waiting.openings >= OPENINGS_MAX {
                return Err(RegistryError::Busy);
            }
            waiting.openings += 1;
        }
        let sighting = matches!(item, Item::Seen { .. });
        if sighting && waiting.items.len() >= SIGHTINGS_MAX {
            return Ok(false);
        }
        waiting.items.push(item);
        Ok(waiting.items.len() == 1)
    }

    /// All that waits.
    pub(super) fn take(&self) -> Vec<Item> {
        std::mem::take(&mut *self.locked()).items
    }

    fn locked(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Records {
    /// Writes items in one transaction. When that fails, each alone: what is wrong with one does not
    /// hold up the others.
    pub(super) fn write(&mut self, mut items: Vec<Item>, now_ms: i64) {
        items.retain(|item| !self.seen_again(item, now_ms));
        if items.is_empty() {
            return self.write_seen_in_time(now_ms);
        }
        let seen = &self.seen;
        let mut opened = self.opened;
        let written = self.store.together(|store| {
            let each = items
                .iter()
                .map(|item| write(store, seen, &mut opened, item, now_ms));
            each.collect::<Result<Vec<_>, StoreError>>()
        });
        match written {
            Ok(outcomes) => {
                self.opened = opened;
                let mut events = false;
                for (item, outcome) in items.into_iter().zip(outcomes) {
                    events |= matches!(item, Item::Events(..));
                    self.written(item, outcome, now_ms);
                }
                if events {
                    self.prune(now_ms);
                }
                self.write_seen_in_time(now_ms);
            }
            Err(_) if items.len() > 1 => {
                for item in items {
                    self.write(vec![item], now_ms);
                }
            }
            Err(error) => {
                if let Some(item) = items.pop() {
                    self.not_written(item, error, now_ms);
                }
            }
        }
    }

    /// Takes a sighting that needs no writing: the node is known to be in this session.
    fn seen_again(&mut self, item: &Item, now_ms: i64) -> bool {
        let Item::Seen {
            node_id,
            session_id,
        } = item
        else {
            return false;
        };
        match self.seen.get_mut(node_id) {
            Some((session, at)) if session == session_id => {
                *at = now_ms;
                true
            }
            _ => false,
        }
    }

    fn write_seen_in_time(&mut self, now_ms: i64) {
        if now_ms - self.written_ms >= SEEN_EVERY_MS {
            self.write_seen();
            self.written_ms = now_ms;
        }
    }

    /// An item is durable: what is kept in memory follows, and whoever waits is told.
    fn written(&mut self, item: Item, outcome: Outcome, now_ms: i64) {
        match (item, outcome) {
            (Item::Open(opening, answer), Outcome::Opened(opened)) => {
                if opened.is_ok() {
                    self.seen.remove(&opening.node_id);
                }
                let _ = answer.try_send(Ok(opened));
            }
            (Item::Events(batch, answer), Outcome::Stored(position)) => {
                self.count_stored(&batch);
                let _ = answer.try_send(Ok(position));
            }
            (
                Item::Seen {
                    node_id,
                    session_id,
                },
                _,
            ) => {
                self.seen.insert(node_id, (session_id, now_ms));
            }
            (
                Item::Closed {
                    node_id,
                    session_id,
                },
                _,
            ) if seen_in(&self.seen, &node_id, &session_id).is_some() => {
                self.seen.remove(&node_id);
            }
            _ => {}
        }
    }

    fn not_written(&mut self, item: Item, error: StoreError, now_ms: i64) {
        if now_ms - self.complained_ms >= SEEN_EVERY_MS {
            self.complained_ms = now_ms;
            log::event(
                Level::Error,
                "registry.events",
                &[("error", Value::Chain(&error))],
            );
        }
        let error = RegistryError::Store(error);
        match item {
            Item::Open(_, answer) => {
                let _ = answer.try_send(Err(error));
            }
            Item::Events(batch, answer) => {
                let batch = Some(batch);
                let _ = answer.try_send(Err(NotStored { batch, error }));
            }
            Item::Seen { .. } | Item::Closed { .. } => {}
        }
    }
}

type Seen = BTreeMap<String, (String, i64)>;

/// When the node was last seen in this session.
fn seen_in(seen: &Seen, node_id: &str, session_id: &str) -> Option<i64> {
    let (session, at) = seen.get(node_id)?;
    (session == session_id).then_some(*at)
}

/// Writes an item inside the transaction.
fn write(
    store: &Store,
    seen: &Seen,
    opened: &mut u64,
    item: &Item,
    now_ms: i64,
) -> Result<Outcome, StoreError> {
    match item {
        Item::Open(opening, _) => {
            *opened += 1;
            open(store, opening, *opened, now_ms).map(Outcome::Opened)
        }
        Item::Events(batch, _) => events::add(store, batch, now_ms).map(Outcome::Stored),
        Item::Seen {
            node_id,
            session_id,
        } => {
            store.session_seen(node_id, session_id, now_ms)?;
            Ok(Outcome::Done)
        }
        Item::Closed {
            node_id,
            session_id,
        } => {
            if let Some(at) = seen_in(seen, node_id, session_id) {
                store.session_seen(node_id, session_id, at)?;
            }
            store.session_closed(node_id, session_id)?;
            Ok(Outcome::Done)
        }
    }
}
