//! What the gateway tells the records of sessions, and what it asks for them.

use bcd::proto::{CommandProgress, OrderAnswer, OrderClaim};
use bcd::rt::channel::channel;
use bcd::sys::log::{self, Level, Value};
use bcd::wire::grpc::{Code, Status};

use super::inbox::Item;
use super::{Answer, Progress, Records, Registry, RegistryError, now_ms};
use crate::joinservice;
use crate::store::{Due, Fetch, Incoming, Kept, SessionFacts, Store, StoreError};

/// Commands, and cancellations, that one answer to [`Sessions::owed`] has at most.
const OWED_AT_ONCE: u32 = 8;
/// Commands whose progress is remembered.
const PROGRESS_MAX: usize = 10_000;
const PROGRESS_TEXT_MAX: usize = 256;

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
    /// Which opening this was: of two sessions of a node the one with the higher number came later.
    pub opening: u64,
    /// Up to where the events of its journal are stored.
    pub resume_position: u64,
    /// SHA-256 of the key of the CA that issued its certificate, if that is known.
    pub issuer_sha256: Option<[u8; 32]>,
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

/// How far a session has come with what it owes its node.
#[derive(Debug, Clone, Default)]
pub struct Given {
    pub node_id: String,
    /// The last command and the last cancellation that were sent, by their orders.
    pub command: i64,
    pub cancel: i64,
    /// The last output whose release was sent.
    pub release: i64,
    /// The generation of the spec the node holds; `None`: it is given none.
    pub spec_generation: Option<u64>,
    /// Only commands of this kind, and no outputs.
    pub only: Option<&'static str>,
}

/// What a session owes its node.
#[derive(Debug, Default)]
pub struct Owed {
    /// The node was deleted: nothing is owed, and its session is over.
    pub deleted: bool,
    pub due: Due,
    /// A newer spec: its generation and its encoded envelope.
    pub spec: Option<(u64, Vec<u8>)>,
    /// The output to fetch next.
    pub fetch: Option<Fetch>,
    /// Outputs the node may delete: the commands' numbers and ids.
    pub releases: Vec<(i64, String)>,
}

/// What the gateway tells of sessions. Its loops share one.
pub trait Sessions: Send + Sync {
    /// Whether the session may be; the node is then adopting.
    fn open(&self, opening: Opening) -> Answer<Result<Opened, Status>>;
    /// Stores events and gives the position up to which their journal is stored. A session has one call
    /// of this at a time: that bounds what waits here.
    fn store(&self, batch: Batch) -> Answer<Result<u64, NotStored>>;
    /// What a session owes its node beyond what it has given.
    fn owed(&self, given: &Given) -> Answer<Result<Owed, RegistryError>>;
    /// Keeps a piece of a command's output.
    fn keep(&self, command: i64, start: u64, data: Vec<u8>) -> Answer<Result<Kept, RegistryError>>;
    /// The node has a command's output no more.
    fn output_gone(&self, command: i64);
    /// The node has heard that it may delete a command's output.
    fn output_released(&self, command: i64);
    /// Decides on a node's claim to an order; what is granted is durable.
    fn claim(&self, node_id: &str, claim: OrderClaim)
    -> Answer<Result<OrderAnswer, RegistryError>>;
    /// How far a node says it is with a command.
    fn progress(&self, node_id: &str, progress: CommandProgress);
    /// The node holds the trust bundle of this version.
    fn trusts(&self, node_id: &str, version: u64);
    /// A frame was heard: the node is connected.
    fn seen(&self, node_id: &str, session_id: &str);
    /// The session is over.
    fn closed(&self, node_id: &str, session_id: &str);
}

/// Opens a session inside a transaction, if it may be: the `number`th that was asked for.
pub(super) fn open(
    store: &Store,
    opening: &Opening,
    number: u64,
    now_ms: i64,
) -> Result<Result<Opened, Status>, StoreError> {
    let refused = |message: &str| Ok(Err(Status::new(Code::PermissionDenied, message)));
    let node = match store.node(&opening.node_id)? {
        Some(node) if !node.deleted => node,
        _ => return refused(joinservice::DELETED),
    };
    // The first session with a renewed key ends the time of the former.
    if node.spki_sha256 != opening.spki_sha256
        && !store.promote_next(&opening.node_id, &opening.spki_sha256)?
    {
        return refused(joinservice::REPLACED);
    }
    store.note_trust(&opening.node_id, opening.trust_version)?;
    store.note_restart(&opening.node_id, &opening.boot_id, now_ms)?;
    let shared = store.session_opened(&SessionFacts {
        node_id: &opening.node_id,
        session_id: &opening.session_id,
        daemon_version: &opening.daemon_version,
        boot_id: &opening.boot_id,
        capabilities: &opening.capabilities,
        address: &opening.address,
        now_ms,
    })?;
    if shared {
        said_shared(opening, &node.address);
    }
    let resume_position = store.journal_position(&opening.node_id, &opening.journal_id)?;
    let keys = store.node_keys(&opening.node_id)?;
    Ok(Ok(Opened {
        opening: number,
        resume_position,
        issuer_sha256: keys.and_then(|keys| keys.issuer_sha256),
    }))
}

impl Records {
    fn owed(&mut self, given: &Given, now_ms: i64) -> Result<Owed, StoreError> {
        self.store.together(|store| {
            if store.is_deleted(&given.node_id)? {
                return Ok(Owed {
                    deleted: true,
                    ..Owed::default()
                });
            }
            let after = (given.command, given.cancel);
            let due = store.due(&given.node_id, after, given.only, OWED_AT_ONCE, now_ms)?;
            let spec = match given.spec_generation {
                Some(held) => store.newer_spec(&given.node_id, held)?,
                None => None,
            };
            let (fetch, releases) = match given.only {
                None => (
                    store.next_fetch(&given.node_id)?,
                    store.to_release(&given.node_id, given.release)?,
                ),
                Some(_) => (None, Vec::new()),
            };
            Ok(Owed {
                deleted: false,
                due,
                spec,
                fetch,
                releases,
            })
        })
    }

    fn note_progress(
        &mut self,
        node_id: &str,
        progress: CommandProgress,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        let known = self.store.command(&progress.id)?;
        let its_own = known.is_some_and(|known| known.node_id == node_id && !known.is_over(now_ms));
        if its_own
            && (self.progress.len() < PROGRESS_MAX || self.progress.contains_key(&progress.id))
        {
            let noted = Progress {
                percent: (progress.percent <= 100).then_some(progress.percent),
                message: log::cut(&progress.message, PROGRESS_TEXT_MAX).to_owned(),
                at_ms: now_ms,
            };
            self.progress.insert(progress.id, noted);
        }
        Ok(())
    }
}

impl Registry {
    /// Leaves something to be written.
    fn leave(&self, item: Item) -> Result<(), RegistryError> {
        if self.inbox.add(item)? {
            // A full queue is as good a nudge: the inbox is looked at after each of its calls.
            let _ = self.work.try_send(Box::new(|_: &mut Records| {}));
        }
        Ok(())
    }
}

/// Two machines use one identity: one of their disks was copied.
fn said_shared(opening: &Opening, other: &str) {
    log::event(
        Level::Error,
        "node.identity_shared",
        &[
            ("node", Value::Text(&opening.node_id)),
            ("address", Value::Text(&opening.address)),
            ("other_address", Value::Text(other)),
            ("boot", Value::Text(&opening.boot_id)),
            (
                "do",
                Value::Text(
                    "two machines use this node's identity: on the one that shall be another node run \
                     bcd join --reset --yes, then bcd join with a new token",
                ),
            ),
        ],
    );
}

impl Sessions for Registry {
    fn store(&self, batch: Batch) -> Answer<Result<u64, NotStored>> {
        let (answer, mut answered) = channel(1);
        let _ = self.leave(Item::Events(batch, answer));
        Box::pin(async move {
            answered.recv().await.unwrap_or(Err(NotStored {
                batch: None,
                error: RegistryError::Stopped,
            }))
        })
    }

    fn open(&self, opening: Opening) -> Answer<Result<Opened, Status>> {
        let (answer, mut answered) = channel(1);
        let left = self.leave(Item::Open(opening, answer));
        Box::pin(async move {
            let opened = match left {
                Ok(()) => answered.recv().await.unwrap_or(Err(RegistryError::Stopped)),
                Err(error) => Err(error),
            };
            opened.unwrap_or_else(|error| {
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

    fn owed(&self, given: &Given) -> Answer<Result<Owed, RegistryError>> {
        let given = given.clone();
        Box::pin(self.with(move |records| records.owed(&given, now_ms())))
    }

    fn keep(&self, command: i64, start: u64, data: Vec<u8>) -> Answer<Result<Kept, RegistryError>> {
        Box::pin(self.with(move |records| {
            records
                .store
                .together(|store| store.keep_output(command, start, &data))
        }))
    }

    fn output_gone(&self, command: i64) {
        self.tell(move |records| records.store.output_gone(command));
    }

    fn output_released(&self, command: i64) {
        self.tell(move |records| records.store.output_released(command));
    }

    fn claim(
        &self,
        node_id: &str,
        claim: OrderClaim,
    ) -> Answer<Result<OrderAnswer, RegistryError>> {
        let node_id = node_id.to_owned();
        Box::pin(self.with(move |records| {
            records
                .store
                .together(|store| store.claim_order(&node_id, &claim, now_ms()))
        }))
    }

    fn progress(&self, node_id: &str, progress: CommandProgress) {
        let node_id = node_id.to_owned();
        self.tell(move |records| records.note_progress(&node_id, progress, now_ms()));
    }

    fn trusts(&self, node_id: &str, version: u64) {
        let node_id = node_id.to_owned();
        self.tell(move |records| records.store.note_trust(&node_id, version));
    }

    fn seen(&self, node_id: &str, session_id: &str) {
        let (node_id, session_id) = (node_id.to_owned(), session_id.to_owned());
        let _ = self.leave(Item::Seen {
            node_id,
            session_id,
        });
    }

    fn closed(&self, node_id: &str, session_id: &str) {
        let (node_id, session_id) = (node_id.to_owned(), session_id.to_owned());
        let _ = self.leave(Item::Closed {
            node_id,
            session_id,
        });
    }
}
