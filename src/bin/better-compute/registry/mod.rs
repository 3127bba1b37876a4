//! The control plane's records as the gateway and the API use them: one thread with the database,
//! reached through a bounded queue.
//!
//! Promises: what a call has answered is durable; openings, events and ends of many sessions are written in
//! one transaction, and a session whose events could not be stored gets them back, to try again; a session that the
//! records let in belongs to a node that is not deleted, opened with the certificate of the node's present
//! key or of the one it renews to, which is its present key from then on. When a node was last seen
//! is kept in memory and written at most every 30 seconds: it is the one thing a kill may lose.

mod events;
mod inbox;
mod sessions;

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::thread;

use bcd::rt::channel::{Receiver, Sender, channel};
use bcd::sys::clock;
use bcd::sys::log::{self, Level, Value};

use self::inbox::Inbox;
pub use self::sessions::{Batch, Given, Opening, Owed, Sessions};
use crate::store::{Node, Store, StoreError};

/// Calls that may wait.
const QUEUE: usize = 1024;
/// Calls that are answered between two looks at what is to be written.
const CALLS: usize = 256;
/// How often sightings are written.
const SEEN_EVERY_MS: i64 = 30_000;

/// Now, Unix time in milliseconds.
pub fn now_ms() -> i64 {
    i64::try_from(clock::wall_ms()).unwrap_or(i64::MAX)
}

/// A future of the loop.
pub type Answer<T> = Pin<Box<dyn Future<Output = T>>>;

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

/// The way to the records' thread.
#[derive(Clone)]
pub struct Registry {
    work: Sender<Work>,
    inbox: Arc<Inbox>,
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
    /// Sessions that were opened, or refused.
    opened: u64,
    /// By command: how far its node says it is. Not kept.
    progress: BTreeMap<String, Progress>,
}

/// How far a node says it is with a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// `None`: it does not know.
    pub percent: Option<u32>,
    pub message: String,
    pub at_ms: i64,
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
        opened: 0,
        progress: BTreeMap::new(),
    };
    let inbox = Arc::<Inbox>::default();
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
        // Most calls only read: those that wait do not each wait for a transaction.
        for _ in 0..CALLS {
            match work.try_recv() {
                Some(call) => call(&mut records),
                None => break,
            }
        }
        // Whatever came meanwhile, or while the last transaction was written, goes into one.
        let waiting = inbox.take();
        if !waiting.is_empty() {
            records.write(waiting, now_ms());
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

    /// The nodes that changed after this change, deleted ones too.
    ///
    /// # Errors
    /// The database failed.
    pub fn changed_nodes(&self, after: i64) -> Result<Vec<Node>, StoreError> {
        let mut nodes = self.store.changed_nodes(after)?;
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

    /// For a clean end: writes all sightings and closes all sessions.
    ///
    /// # Errors
    /// The database failed.
    pub fn finish(&mut self) -> Result<(), StoreError> {
        self.write_seen();
        self.store.close_all_sessions()
    }

    /// How far its node says it is with a command.
    pub fn progress(&self, id: &str) -> Option<&Progress> {
        self.progress.get(id)
    }

    /// Logs what went wrong where nobody waits for an answer.
    fn complain(&self, outcome: Result<(), StoreError>) {
        if let Err(error) = outcome {
            log::event(
                Level::Error,
                "registry.write",
                &[("error", Value::Chain(&error))],
            );
        }
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
}
