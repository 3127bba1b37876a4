//! The control plane's records as the gateway and the API use them: one thread with the database,
//! reached through a bounded queue.
//!
//! Promises: what a call has answered is durable; events of many sessions are stored in one transaction,
//! and a session whose events could not be stored gets them back, to try again; a session that the
//! records let in belongs to a node that is not deleted, opened with the certificate of the node's present
//! key or of the one it renews to, which is its present key from then on. When a node was last seen
//! is kept in memory and written at most every 30 seconds: it is the one thing a kill may lose.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use bcd::rt::channel::{Receiver, Sender, channel};
use bcd::sys::clock;
use bcd::sys::log::{self, Level, Value};
use bcd::wire::grpc::{Code, Status};

use crate::joinservice;
use crate::store::{Incoming, Node, SessionFacts, Store, StoreError};

/// Calls that may wait.
const QUEUE: usize = 1024;
/// How often sightings are written.
const SEEN_EVERY_MS: i64 = 30_000;
/// After how many stored events a node's share of them is looked at, and of how many nodes at once.
const PRUNE_EVERY: i64 = 200;
const PRUNE_NODES: usize = 16;
/// How often events are pruned by age, and how many at once.
const PRUNE_AGE_EVERY_MS: i64 = 600_000;
const PRUNE_AT_ONCE: u32 = 1_000;

/// Now, Unix time in milliseconds.
pub fn now_ms() -> i64 {
    i64::try_from(clock::wall_ms()).unwrap_or(i64::MAX)
}

/// What the gateway knows of a session that is to be opened.
pub struct Opening {
    pub node_id: String,
    /// SHA-256 of the SubjectPublicKeyInfo of the certificate it was opened with.
    pub spki_sha256: [u8; 32],
    pub session_id: String,
    pub daemon_version: String,
    pub boot_id: String,
    pub capabilities: Vec<String>,
    pub address: String,
    /// The version of the trust bundle it holds.
    pub trust_version: u64,
    /// The node's journal; empty for a node that keeps none.
    pub journal_id: Vec<u8>,
}

/// What a session that may be starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// Up to where the events of its journal are stored.
    pub resume_position: u64,
}

/// Events of one session, in order.
#[derive(Debug)]
pub struct Batch {
    pub node_id: String,
    pub journal_id: Vec<u8>,
    pub events: Vec<Incoming>,
}

/// Events that could not be stored.
#[derive(Debug)]
pub struct NotStored {
    /// To try again; `None` when the records' thread is gone with them.
    pub batch: Option<Batch>,
    pub error: RegistryError,
}

/// A future of the loop.
pub type Answer<T> = Pin<Box<dyn Future<Output = T>>>;

/// What the gateway tells of sessions.
pub trait Sessions {
    /// Whether the session may be; the node is then adopting.
    fn open(&self, opening: Opening) -> Answer<Result<Opened, Status>>;
    /// Stores events and gives the position up to which their journal is stored. A session has one call
    /// of this at a time: that bounds what waits here.
    fn store(&self, batch: Batch) -> Answer<Result<u64, NotStored>>;
    /// The node holds the trust bundle of this version.
    fn trusts(&self, node_id: &str, version: u64);
    /// A frame was heard: the node is connected.
    fn seen(&self, node_id: &str, session_id: &str);
    /// The session is over.
    fn closed(&self, node_id: &str, session_id: &str);
}

/// Why a call to the records failed.
#[derive(Debug)]
pub enum RegistryError {
    Store(StoreError),
    /// Too many calls wait already.
    Busy,
    /// The thread has ended.
    Stopped,
}

impl fmt::Display for RegistryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(_) => write!(f, "the control plane cannot use its database"),
            Self::Busy => write!(f, "the control plane is busy: try again"),
            Self::Stopped => write!(f, "the control plane is stopping"),
        }
    }
}

impl Error for RegistryError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Store(error) => Some(error),
            _ => None,
        }
    }
}

type Work = Box<dyn FnOnce(&mut Records) + Send>;

/// Events that wait to be stored together.
type Inbox = Arc<Mutex<Vec<Delivery>>>;

struct Delivery {
    batch: Batch,
    answer: Sender<Result<u64, NotStored>>,
}

/// The way to the records' thread.
#[derive(Clone)]
pub struct Registry {
    work: Sender<Work>,
    inbox: Inbox,
}

/// The database and what is not in it yet.
pub struct Records {
    pub store: Store,
    /// By node: the session it was seen in, and when.
    seen: BTreeMap<String, (String, i64)>,
    written_ms: i64,
    /// By node: events stored since its share was last looked at.
    stored: BTreeMap<String, i64>,
    /// When events were last pruned by age.
    pruned_ms: i64,
    /// When it was last said that events cannot be stored.
    complained_ms: i64,
}

/// Starts the thread; sessions that an earlier process left open are closed first. It ends when the last
/// [`Registry`] is gone.
///
/// # Errors
/// The database does not take the change.
pub fn start(store: Store) -> Result<Registry, RegistryError> {
    store.close_all_sessions().map_err(RegistryError::Store)?;
    let (sender, receiver) = channel(QUEUE);
    let records = Records {
        store,
        seen: BTreeMap::new(),
        written_ms: 0,
        stored: BTreeMap::new(),
        pruned_ms: 0,
        complained_ms: 0,
    };
    let inbox = Inbox::default();
    let taken = inbox.clone();
    thread::Builder::new()
        .name("registry".to_owned())
        .spawn(move || run(records, receiver, &taken))
        .map_err(|error: io::Error| {
            log::event(
                Level::Error,
                "registry.thread",
                &[("error", Value::Chain(&error))],
            );
            RegistryError::Stopped
        })?;
    Ok(Registry {
        work: sender,
        inbox,
    })
}

fn run(mut records: Records, mut work: Receiver<Work>, inbox: &Inbox) {
    while let Some(call) = work.recv_blocking() {
        call(&mut records);
        // Whatever came while the call ran, or while the last transaction was written, goes into one.
        let waiting = std::mem::take(&mut *inbox.lock().unwrap_or_else(PoisonError::into_inner));
        if !waiting.is_empty() {
            records.store_events(waiting, now_ms());
        }
    }
}

impl Registry {
    /// Runs `work` on the records' thread and gives its value.
    ///
    /// # Errors
    /// See [`RegistryError`].
    pub fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Records) -> Result<T, StoreError> + Send + 'static,
    ) -> impl Future<Output = Result<T, RegistryError>> + 'static {
        let (answer, mut answered) = channel(1);
        let queued = self.work.try_send(Box::new(move |records: &mut Records| {
            let _ = answer.try_send(work(records));
        }));
        let queued = queued.map_err(|error| match error {
            bcd::rt::channel::SendError::Full(_) => RegistryError::Busy,
            bcd::rt::channel::SendError::Closed(_) => RegistryError::Stopped,
        });
        async move {
            queued?;
            match answered.recv().await {
                Some(value) => value.map_err(RegistryError::Store),
                None => Err(RegistryError::Stopped),
            }
        }
    }

    /// Runs `work` without waiting for it; what fails is logged.
    fn tell(&self, work: impl FnOnce(&mut Records) -> Result<(), StoreError> + Send + 'static) {
        let work = Box::new(move |records: &mut Records| {
            if let Err(error) = work(records) {
                log::event(
                    Level::Error,
                    "registry.write",
                    &[("error", Value::Chain(&error))],
                );
            }
        });
        if self.work.try_send(work).is_err() {
            log::event(Level::Warn, "registry.busy", &[]);
        }
    }
}

impl Records {
    /// All nodes with when they were last seen.
    ///
    /// # Errors
    /// The database failed.
    pub fn nodes(&self) -> Result<Vec<Node>, StoreError> {
        let mut nodes = self.store.nodes()?;
        for node in &mut nodes {
            self.add_seen(node);
        }
        Ok(nodes)
    }

    /// A node that is not deleted.
    ///
    /// # Errors
    /// The database failed.
    pub fn node(&self, id: &str) -> Result<Option<Node>, StoreError> {
        let mut node = self.store.node(id)?.filter(|node| !node.deleted);
        if let Some(node) = &mut node {
            self.add_seen(node);
        }
        Ok(node)
    }

    fn add_seen(&self, node: &mut Node) {
        if let Some((_, at)) = self.seen.get(&node.id) {
            node.last_seen_ms = node.last_seen_ms.max(Some(*at));
        }
    }

    fn open(
        &mut self,
        opening: &Opening,
        now_ms: i64,
    ) -> Result<Result<Opened, Status>, StoreError> {
        let refused = |message: &str| Ok(Err(Status::new(Code::PermissionDenied, message)));
        let node = match self.store.node(&opening.node_id)? {
            Some(node) if !node.deleted => node,
            _ => return refused(joinservice::DELETED),
        };
        // The first session with a renewed key ends the time of the former.
        if node.spki_sha256 != opening.spki_sha256
            && !self
                .store
                .promote_next(&opening.node_id, &opening.spki_sha256)?
        {
            return refused(joinservice::REPLACED);
        }
        self.store
            .note_trust(&opening.node_id, opening.trust_version)?;
        self.seen.remove(&opening.node_id);
        self.store.session_opened(&SessionFacts {
            node_id: &opening.node_id,
            session_id: &opening.session_id,
            daemon_version: &opening.daemon_version,
            boot_id: &opening.boot_id,
            capabilities: &opening.capabilities,
            address: &opening.address,
            now_ms,
        })?;
        let resume_position = self
            .store
            .journal_position(&opening.node_id, &opening.journal_id)?;
        Ok(Ok(Opened { resume_position }))
    }

    /// Stores what came from all sessions in one transaction. When that fails, each alone: what is wrong
    /// with one does not hold up the others.
    fn store_events(&mut self, deliveries: Vec<Delivery>, now_ms: i64) {
        let stored = self.store.together(|store| {
            deliveries
                .iter()
                .map(|delivery| add(store, &delivery.batch, now_ms))
                .collect::<Result<Vec<u64>, StoreError>>()
        });
        match stored {
            Ok(positions) => {
                for (delivery, position) in deliveries.into_iter().zip(positions) {
                    self.count_stored(&delivery.batch);
                    let _ = delivery.answer.try_send(Ok(position));
                }
                self.prune(now_ms);
            }
            Err(error) if deliveries.len() == 1 => self.give_back(deliveries, error, now_ms),
            Err(_) => {
                for delivery in deliveries {
                    self.store_events(vec![delivery], now_ms);
                }
            }
        }
    }

    fn give_back(&mut self, deliveries: Vec<Delivery>, error: StoreError, now_ms: i64) {
        if now_ms - self.complained_ms >= SEEN_EVERY_MS {
            self.complained_ms = now_ms;
            log::event(
                Level::Error,
                "registry.events",
                &[("error", Value::Chain(&error))],
            );
        }
        let mut error = Some(error);
        for delivery in deliveries {
            let error = error
                .take()
                .map_or(RegistryError::Busy, RegistryError::Store);
            let _ = delivery.answer.try_send(Err(NotStored {
                batch: Some(delivery.batch),
                error,
            }));
        }
    }

    fn count_stored(&mut self, batch: &Batch) {
        let count = i64::try_from(batch.events.len()).unwrap_or(0);
        // A node that was not heard of since the start may be at its share already.
        let stored = self.stored.entry(batch.node_id.clone());
        *stored.or_insert(PRUNE_EVERY) += count;
    }

    /// Keeps each node's events to its share, a little late, and all of them to their age.
    fn prune(&mut self, now_ms: i64) {
        let full: Vec<String> = self
            .stored
            .iter()
            .filter(|(_, count)| **count >= PRUNE_EVERY)
            .map(|(node_id, _)| node_id.clone())
            .take(PRUNE_NODES)
            .collect();
        for node_id in full {
            let pruned = self.store.prune_node_events(&node_id).map(|_| ());
            self.complain(pruned);
            self.stored.insert(node_id, 0);
        }
        if now_ms - self.pruned_ms >= PRUNE_AGE_EVERY_MS {
            match self.store.prune_old_events(now_ms, PRUNE_AT_ONCE) {
                Ok(ControlFlow::Continue(())) => {}
                Ok(ControlFlow::Break(())) => self.pruned_ms = now_ms,
                Err(error) => {
                    self.pruned_ms = now_ms;
                    self.complain(Err(error));
                }
            }
        }
    }

    fn complain(&self, outcome: Result<(), StoreError>) {
        if let Err(error) = outcome {
            log::event(
                Level::Error,
                "registry.write",
                &[("error", Value::Chain(&error))],
            );
        }
    }

    fn note_seen(
        &mut self,
        node_id: String,
        session_id: String,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        let first = self
            .seen
            .get(&node_id)
            .is_none_or(|(session, _)| *session != session_id);
        if first {
            self.store.session_seen(&node_id, &session_id, now_ms)?;
        }
        self.seen.insert(node_id, (session_id, now_ms));
        if now_ms - self.written_ms >= SEEN_EVERY_MS {
            self.write_seen();
            self.written_ms = now_ms;
        }
        Ok(())
    }

    /// For a clean end: writes all sightings and closes all sessions.
    ///
    /// # Errors
    /// The database failed.
    pub fn finish(&mut self) -> Result<(), StoreError> {
        self.write_seen();
        self.store.close_all_sessions()
    }

    fn write_seen(&mut self) {
        let seen = &self.seen;
        let written = self.store.together(|store| {
            seen.iter()
                .try_for_each(|(node, (session, at))| store.session_seen(node, session, *at))
        });
        if let Err(error) = written {
            log::event(
                Level::Error,
                "registry.write",
                &[("error", Value::Chain(&error))],
            );
        }
    }

    fn close(&mut self, node_id: &str, session_id: &str) -> Result<(), StoreError> {
        let ended = self
            .seen
            .get(node_id)
            .filter(|(session, _)| session == session_id);
        if let Some((_, at)) = ended {
            self.store.session_seen(node_id, session_id, *at)?;
            self.seen.remove(node_id);
        }
        self.store.session_closed(node_id, session_id)
    }
}

/// Stores one session's events, and what they say, inside a transaction.
fn add(store: &Store, batch: &Batch, now_ms: i64) -> Result<u64, StoreError> {
    store.add_events(
        &batch.node_id,
        &batch.journal_id,
        &batch.events,
        now_ms,
        |_, _| Ok(()),
    )
}

impl Sessions for Registry {
    fn store(&self, batch: Batch) -> Answer<Result<u64, NotStored>> {
        let (answer, mut answered) = channel(1);
        let first = {
            let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
            inbox.push(Delivery { batch, answer });
            inbox.len() == 1
        };
        if first {
            // A full queue is as good a nudge: the inbox is looked at after each of its calls.
            let _ = self.work.try_send(Box::new(|_: &mut Records| {}));
        }
        Box::pin(async move {
            answered.recv().await.unwrap_or(Err(NotStored {
                batch: None,
                error: RegistryError::Stopped,
            }))
        })
    }

    fn open(&self, opening: Opening) -> Answer<Result<Opened, Status>> {
        let answer = self.with(move |records| records.open(&opening, now_ms()));
        Box::pin(async move {
            answer.await.unwrap_or_else(|error| {
                log::event(
                    Level::Error,
                    "session.registry",
                    &[("error", Value::Chain(&error))],
                );
                Err(Status::new(
                    Code::Unavailable,
                    "the control plane cannot use its records: try again later",
                ))
            })
        })
    }

    fn trusts(&self, node_id: &str, version: u64) {
        let node_id = node_id.to_owned();
        self.tell(move |records| records.store.note_trust(&node_id, version));
    }

    fn seen(&self, node_id: &str, session_id: &str) {
        let (node_id, session_id) = (node_id.to_owned(), session_id.to_owned());
        self.tell(move |records| records.note_seen(node_id, session_id, now_ms()));
    }

    fn closed(&self, node_id: &str, session_id: &str) {
        let (node_id, session_id) = (node_id.to_owned(), session_id.to_owned());
        self.tell(move |records| records.close(&node_id, &session_id));
    }
}
