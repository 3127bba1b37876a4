//! What a person sees of a node: who it is, whether it is connected, what went wrong last and what
//! happens next.
//!
//! A [`Snapshot`] is taken from the parts of a running daemon ([`Source`]), or from the disk when
//! none runs, and is then text, JSON or OpenMetrics, each in a file of its own. `board` is what the
//! session tells; `server` answers on the status socket (docs/operations.md has its form).
//!
//! It promises that nobody is woken while nobody asks, and that asking changes nothing.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic
    )
)]
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::attest::member::Member;
use crate::command::{Commands, Seen};
use crate::config::Config;
use crate::converge::Converge;
use crate::crypto::digest::hex;
use crate::identity::record;
use crate::identity::store::{State, Store, StoreError};
use crate::journal::{self, Journal, View};
use crate::proto::SectionStatus;
use crate::sys::fs::Dir;
use crate::sys::{clock, log};

mod board;
pub mod client;
mod json;
pub mod metrics;
pub mod server;
mod text;
pub mod textfile;

pub use board::{Board, Session, Trouble};

/// What to do about an identity that does not load, or has ended.
pub const JOIN_AGAIN: &str = "run bcd join --reset --yes, then bcd join";

/// Everything at one moment.
pub struct Snapshot {
    pub now_ms: u64,
    /// By the monotonic clock.
    pub now: Duration,
    /// The daemon's process and, by the monotonic clock, when it started; `None` when none runs.
    pub running: Option<(u32, Duration)>,
    pub gateway: String,
    pub identity: Identity,
    pub session: Option<Session>,
    pub generation: u64,
    pub sections: Vec<SectionStatus>,
    pub commands: Option<Seen>,
    pub journal: Option<JournalSeen>,
    pub clock: Clock,
}

/// Who the node is.
#[derive(Debug, Default)]
pub struct Identity {
    /// joined, not joined, damaged or unknown.
    pub state: &'static str,
    pub node_id: String,
    pub spiffe_id: String,
    pub role: String,
    pub site: String,
    pub pool: String,
    /// Unix seconds.
    pub not_before: i64,
    pub not_after: i64,
    pub expired: bool,
    pub trust_version: Option<u64>,
    /// This user may not look.
    pub is_hidden: bool,
    /// Empty when there is none.
    pub problem: String,
    pub remedy: String,
}

/// How the journal is.
#[derive(Debug, Default)]
pub struct JournalSeen {
    /// Empty when it cannot be read.
    pub id: String,
    /// Whose it is, where it was read from the disk.
    pub node_id: String,
    pub status: journal::Status,
    /// This user may not look.
    pub is_hidden: bool,
    /// Empty when there is none.
    pub problem: String,
    pub remedy: String,
}

/// What time it is.
#[derive(Debug, Default)]
pub struct Clock {
    pub trusted_ms: u64,
    /// The last time a server signed; 0: none.
    pub signed_ms: u64,
    /// True time less the host's, as far as it is known.
    pub offset_ms: Option<i64>,
}

/// The parts of a running daemon.
pub struct Source {
    pub member: Member,
    pub journal: Journal,
    pub converge: Converge,
    pub commands: Commands,
    pub board: Board,
    /// By the monotonic clock.
    pub started: Duration,
}

/// In which form a snapshot is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Json,
    Text,
    Metrics,
}

impl Source {
    /// How everything is now.
    pub fn snapshot(&self) -> Snapshot {
        let trusted_ms = self.member.trusted_ms();
        let mut identity = Identity::of(&self.member.identity(), trusted_ms);
        identity.trust_version = Some(self.member.trust_version());
        if let Some(trouble) = self.member.trouble() {
            identity.problem = trouble.problem;
            trouble.remedy.clone_into(&mut identity.remedy);
        }
        let status = self.journal.status();
        let mut journal = JournalSeen {
            id: hex(&status.journal_id),
            status,
            ..JournalSeen::default()
        };
        if let Some(fault) = &journal.status.fault {
            journal.problem = log::one_line(&fault.message);
            journal.remedy = FREE_SPACE.to_owned();
        }
        Snapshot {
            now_ms: clock::wall_ms(),
            now: clock::monotonic(),
            running: Some((std::process::id(), self.started)),
            gateway: self.member.gateway().url().to_string(),
            identity,
            session: Some(self.board.session().clone()),
            generation: self.converge.generation(),
            sections: self.converge.sections(),
            commands: Some(self.commands.seen()),
            journal: Some(journal),
            clock: Clock {
                trusted_ms,
                signed_ms: self.member.signed_ms(),
                offset_ms: self.member.offset_ms(),
            },
        }
    }
}

/// What to do about a journal that refuses work.
const FREE_SPACE: &str =
    "free some space on its filesystem, or look at the kernel's log; it goes on by itself";

impl Snapshot {
    /// What the disk tells when no daemon runs. Changes nothing.
    pub fn of_disk(config: &Config) -> Self {
        let (identity, signed_ms) = Identity::on_disk(&config.data_dir);
        let trusted_ms = clock::trusted_ms(signed_ms);
        Self {
            now_ms: clock::wall_ms(),
            now: clock::monotonic(),
            running: None,
            gateway: config.gateway_url.to_string(),
            identity,
            session: None,
            generation: 0,
            sections: Vec::new(),
            commands: None,
            journal: JournalSeen::on_disk(&config.data_dir),
            clock: Clock {
                trusted_ms,
                signed_ms,
                offset_ms: None,
            },
        }
    }

    /// Whether there is a session.
    pub fn is_connected(&self) -> bool {
        let session = self.session.as_ref();
        session.is_some_and(|session| session.state.is_connected())
    }

    /// In a form, with its last line's end.
    pub fn show(&self, form: Form) -> String {
        match form {
            Form::Json => json::render(self),
            Form::Text => text::render(self),
            Form::Metrics => metrics::render(self),
        }
    }

    /// Unix time in milliseconds of a moment of the monotonic clock.
    fn wall_of(&self, at: Duration) -> u64 {
        let ms = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        if at > self.now {
            self.now_ms.saturating_add(ms(at.saturating_sub(self.now)))
        } else {
            self.now_ms.saturating_sub(ms(self.now.saturating_sub(at)))
        }
    }
}

impl Identity {
    fn of(identity: &record::Identity, trusted_ms: u64) -> Self {
        let (not_before, not_after) = identity
            .leaf()
            .map_or((0, 0), |leaf| (leaf.not_before, leaf.not_after));
        let expired = i64::try_from(trusted_ms / 1000).unwrap_or(i64::MAX) > not_after;
        Self {
            state: "joined",
            node_id: identity.node_id.clone(),
            spiffe_id: identity.spiffe_id.clone(),
            role: identity.role.clone(),
            site: identity.site.clone(),
            pool: identity.pool.clone(),
            not_before,
            not_after,
            expired,
            trust_version: None,
            is_hidden: false,
            problem: String::new(),
            remedy: String::new(),
        }
    }

    /// Who the files in `data_dir` say this is, and the last time that a server signed.
    pub fn on_disk(data_dir: &Path) -> (Self, u64) {
        let not_joined = || Self {
            state: "not joined",
            problem: "this machine has not joined".to_owned(),
            remedy: "run bcd join".to_owned(),
            ..Self::default()
        };
        let unknown = |error: StoreError| Self {
            state: "unknown",
            is_hidden: matches!(&error, StoreError::File(error) if error.is_denied()),
            problem: log::one_line_chain(&error),
            remedy: error.remedy().unwrap_or("look at that file").to_owned(),
            ..Self::default()
        };
        let looked = match Store::open(data_dir).and_then(|store| store.look()) {
            Err(StoreError::File(error)) if error.is_missing() => return (not_joined(), 0),
            looked => looked,
        };
        match looked {
            Ok(State::Joined(joined)) => {
                let signed_ms = joined.identity.server_time_ms;
                let seen = Self::of(&joined.identity, clock::trusted_ms(signed_ms));
                (seen, signed_ms)
            }
            Ok(State::NotJoined) => (not_joined(), 0),
            Ok(State::PendingKey(_)) => {
                let mut seen = not_joined();
                seen.problem = "a join was begun and has not ended".to_owned();
                seen.remedy = "run bcd join again: it goes on with the same key".to_owned();
                (seen, 0)
            }
            Ok(State::Damaged(damage)) => {
                let seen = Self {
                    state: "damaged",
                    problem: log::one_line_chain(&damage),
                    remedy: JOIN_AGAIN.to_owned(),
                    ..Self::default()
                };
                (seen, 0)
            }
            Err(error) => (unknown(error), 0),
        }
    }
}

impl JournalSeen {
    /// How the file in `data_dir` is; `None` when there is none.
    pub fn on_disk(data_dir: &Path) -> Option<Self> {
        let path: PathBuf = data_dir.join(journal::NAME);
        let mut seen = Self::default();
        let view = Dir::open(data_dir).and_then(|dir| journal::view(&dir, journal::NAME));
        match view {
            Err(error) if error.is_missing() => return None,
            Err(error) => {
                seen.is_hidden = error.is_denied();
                seen.problem = log::one_line_chain(&error);
                seen.remedy = error.remedy().unwrap_or("look at that file").to_owned();
            }
            Ok(View::Newer(version)) => {
                seen.problem = format!(
                    "{} is of format version {version}, which this bcd does not know",
                    path.display()
                );
                "use the bcd that wrote it".clone_into(&mut seen.remedy);
            }
            Ok(View::Unreadable { why, .. }) => {
                seen.problem = format!("{}: {why}", path.display());
                SET_ASIDE.clone_into(&mut seen.remedy);
            }
            Ok(View::Readable(view)) => {
                seen.id = hex(&view.journal_id());
                view.node_id().clone_into(&mut seen.node_id);
                seen.status.position = view.position();
                seen.status.acked = view.acked();
                seen.status.unacknowledged = view.unacknowledged() as u64;
                seen.status.keys = view.key_count() as u64;
                seen.status.live_bytes = view.live_bytes();
                seen.status.used_bytes = view.used_bytes;
                if let Some(found) = &view.damage {
                    seen.problem = format!("{} is damaged: {}", path.display(), found.what);
                    SET_ASIDE.clone_into(&mut seen.remedy);
                }
            }
        }
        Some(seen)
    }
}

const SET_ASIDE: &str =
    "nothing: bcd node sets it aside when it starts, and carries over what can be read";
