//! What a kind's code is given: who it works for, when it has to stop, and the ways back.
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::id::Id;
use super::orders::Orders;
use super::outputs::Outputs;
use super::parting::Parting;
use crate::deploy::files::Site;
use crate::deploy::receipt::Signer;
use crate::facts::report::Reporter;
use crate::helper::client::Client;
use crate::journal::Journal;
use crate::proto::{CommandProgress, NodeFrame, NodeFrameKind};
use crate::rt::channel::Sender;
use crate::sys::clock;
use crate::sys::stop::Stop;
use crate::wire::url::Url;

/// Between two progress frames of a command.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);
/// A wait for an acknowledgement looks this often, for the few seconds it lasts.
const ACK_LOOK: Duration = Duration::from_millis(50);

/// A command at work, on its thread. Clones are the same command's.
#[derive(Clone)]
pub struct Context {
    pub id: Id,
    pub stop: Stop,
    /// How long the kind may take.
    pub limit: Duration,
    pub progress: Progress,
    pub outputs: Arc<Outputs>,
    pub boot_id: String,
    #[cfg(feature = "fakehw")]
    pub data_dir: std::path::PathBuf,
    pub journal: Journal,
    /// The event that said RUNNING.
    pub running_event: u64,
    pub facts: Reporter,
    pub node_id: Box<str>,
    /// The site's image cache.
    pub image_cache: Option<Url>,
    /// For an OS that is installed here.
    pub site: Option<Arc<Site>>,
    pub orders: Orders,
    /// The id of the order that this command has a signature for; `None`: it is of a kind that needs none.
    pub order: Option<String>,
    pub parting: Parting,
    pub signer: Signer,
    /// When the work began: trusted time, Unix time in milliseconds, and the monotonic clock.
    pub begun: (u64, Duration),
    /// Who does what needs root; `None`: this process.
    pub helper: Option<Client>,
}

impl Context {
    /// Waits until the control plane is known to have heard that this command runs, at most `wait` long.
    pub fn await_acknowledgement(&self, wait: Duration) {
        self.acknowledged(self.running_event, wait);
    }

    /// Waits until the control plane has all that the journal holds by now, at most `wait` long; whether it has.
    pub fn deliver(&self, wait: Duration) -> bool {
        self.acknowledged(self.journal.status().position, wait)
    }

    fn acknowledged(&self, position: u64, wait: Duration) -> bool {
        let end = Instant::now() + wait;
        while self.journal.status().acked < position {
            if Instant::now() >= end || self.stop.wait(ACK_LOOK) {
                return false;
            }
        }
        true
    }

    /// The node's trusted time now, Unix time in milliseconds: what receipts are dated by.
    pub fn trusted_ms(&self) -> i64 {
        let (then, since) = self.begun;
        let passed = clock::monotonic().saturating_sub(since).as_millis();
        let now = then.saturating_add(u64::try_from(passed).unwrap_or(u64::MAX));
        i64::try_from(now).unwrap_or(i64::MAX)
    }
}

/// The way for progress, which is not kept: what comes too fast, or has no session, is dropped.
#[derive(Clone)]
pub struct Progress {
    id: Id,
    frames: Sender<NodeFrame>,
    last: Option<Instant>,
}

/// For a percentage that is not known.
pub const UNKNOWN: u32 = 101;

impl Progress {
    pub fn new(id: Id, frames: Sender<NodeFrame>) -> Self {
        Self {
            id,
            frames,
            last: None,
        }
    }

    /// For what a child says.
    pub fn taker(&mut self) -> impl FnMut(CommandProgress) {
        |said| self.say(said.percent, || said.message)
    }

    /// Says how far the work is; `message` is made only when it is sent.
    pub fn say(&mut self, percent: u32, message: impl FnOnce() -> String) {
        if self
            .last
            .is_some_and(|last| last.elapsed() < PROGRESS_EVERY)
        {
            return;
        }
        self.last = Some(Instant::now());
        let progress = CommandProgress {
            id: self.id.to_string(),
            percent,
            message: message(),
        };
        let _ = self.frames.try_send(NodeFrame {
            kind: Some(NodeFrameKind::CommandProgress(progress)),
        });
    }
}
