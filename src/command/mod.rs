//! Commands: things done once, at the control plane's word (docs/protocol.md 6).
//!
//! What it promises:
//! - A command runs at most once, whatever crashes and however often it is delivered. It is on the disk
//!   before anything happens, and as running before its work begins; what is found running after a
//!   restart has failed, and is not run again.
//! - What it came to is in the journal, in one write with the record that it ended, until the
//!   control plane has acknowledged it.
//! - A node that cannot write takes no commands. They are sent again with the next session.
//!
//! How the parts fit: `machine` is one command's life, `ledger` all commands', both pure; `record` is what
//! the journal keeps; `engine` does what they say, and gives each command's work a thread. `kinds` is
//! the table of what this bcd can do; `reboot`, `logs`, `diag` and the facts do it; `outputs` keeps what is fetched later,
//! and `parting` ends a boot.
//!
//! It refuses to do two things for one id, and to wake anybody while there is nothing to do.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use crate::converge;
use crate::proto::{
    Command, NodeFrame, NodeFrameKind, OrderAnswer, OutputChunk, OutputRequest, Role,
};
use crate::rt;
use crate::rt::channel::Sender;
use crate::sys::log::{self, Level, Value};

use engine::Input;
use kinds::KINDS;
use orders::Orders;
use outputs::{CHUNK, Outputs};

pub use engine::{Clocks, Engine, Parts};
pub use id::Id;
pub use kinds::Job;
pub use ledger::{Going, Seen};
pub use machine::{Failure, Outcome};

mod boot;
mod deploy;
pub mod diag;
mod engine;
mod id;
pub mod kinds;
mod ledger;
mod logs;
mod machine;
pub mod ordered;
mod orders;
mod outputs;
pub mod parting;
mod reboot;
pub mod record;
pub mod signed;
pub mod wipe;
mod work;
pub mod worker;

/// The most that one `OutputRequest` is answered with.
const RANGE: usize = 1024 * 1024;

/// What this bcd can do in its role, as `Hello` says it: `command.<kind>` and `section.<name>`.
pub fn capabilities(role: Role) -> Vec<String> {
    let kinds = KINDS.iter().filter(|kind| kind.is_possible(role));
    let commands = kinds.map(|kind| ["command.", kind.name].concat());
    let sections = converge::sections().map(|name| ["section.", name].concat());
    commands.chain(sections).collect()
}

/// A machine in the place of this one: a simulated node's, whose commands must do nothing here. It puts
/// out nothing that is fetched later.
pub trait Machine: Send + Sync {
    /// Does the work of a command. Blocks: for a thread.
    fn run(&self, id: Id, job: Job) -> Outcome;
}

/// The way to the commands, for whoever holds the session. Clones lead to the same place.
#[derive(Clone)]
pub struct Commands {
    inbox: Sender<Input>,
    outputs: Arc<Outputs>,
    frames: Sender<NodeFrame>,
    orders: Orders,
    seen: Rc<RefCell<Seen>>,
    /// A piece of output on its way.
    sending: Rc<RefCell<Option<rt::JoinHandle<()>>>>,
}

impl Commands {
    /// What is under way, as of the last change.
    pub fn seen(&self) -> Seen {
        self.seen.borrow().clone()
    }

    /// A command came. Waits while the ones before it are being written. `upgrade_required`: this bcd may
    /// only be upgraded.
    pub async fn command(&self, command: Command, upgrade_required: bool) {
        let input = Input::Command {
            command,
            upgrade_required,
        };
        let _ = self.inbox.send(input).await;
    }

    /// A command is no longer wanted.
    pub async fn cancel(&self, id: &str) {
        // One that never came cannot run, and is not remembered.
        if let Some(id) = Id::parse(id) {
            let _ = self.inbox.send(Input::Cancel(id)).await;
        }
    }

    /// What became of a claim to a one-time order.
    pub fn order_answered(&self, answer: OrderAnswer) {
        self.orders.answered(answer);
    }

    /// As [`output`](Self::output), without waiting for its end, but for that of the one before it: a slow gateway
    /// makes outputs wait, and a cancellation must not wait with them.
    pub async fn begin_output(&self, request: OutputRequest) {
        let before = self.sending.take();
        if let Some(before) = before {
            before.await;
        }
        let commands = self.clone();
        let sending = rt::spawn(async move { commands.output(request).await });
        self.sending.replace(Some(sending));
    }

    /// Sends what is asked for of a command's output, or deletes it. The disk is read on a thread, and
    /// a slow gateway makes it wait.
    async fn output(&self, request: OutputRequest) {
        let id = Id::parse(&request.command_id);
        let outputs = self.outputs.clone();
        let frames = self.frames.clone();
        let work = move || match id {
            Some(id) if request.release => release(&outputs, id),
            Some(id) => send(&outputs, id, &request, &frames),
            None => gone(request.command_id, request.offset, &frames),
        };
        if let Err(error) = rt::blocking("outputs", work).await {
            log::event(
                Level::Error,
                "command.output_failed",
                &[("error", Value::Chain(&error))],
            );
        }
    }
}

fn send(outputs: &Outputs, id: Id, request: &OutputRequest, frames: &Sender<NodeFrame>) {
    let mut offset = request.offset;
    let mut left = usize::try_from(request.max_bytes).unwrap_or(RANGE);
    left = left.clamp(1, RANGE);
    loop {
        let chunk = match outputs.chunk(id, offset, left.min(CHUNK)) {
            Ok(Some(chunk)) => chunk,
            Ok(None) => return gone(id.to_string(), offset, frames),
            Err(error) => {
                failed(id, &error);
                return gone(id.to_string(), offset, frames);
            }
        };
        let length = chunk.data.len();
        offset = offset.saturating_add(length as u64);
        left = left.saturating_sub(length);
        let more = left > 0 && length > 0 && offset < chunk.size;
        put(chunk, frames);
        if !more {
            return;
        }
    }
}

fn gone(command_id: String, offset: u64, frames: &Sender<NodeFrame>) {
    let chunk = OutputChunk {
        command_id,
        offset,
        gone: true,
        ..Default::default()
    };
    put(chunk, frames);
}

fn put(chunk: OutputChunk, frames: &Sender<NodeFrame>) {
    let kind = Some(NodeFrameKind::Output(chunk));
    let _ = frames.send_blocking(NodeFrame { kind });
}

fn release(outputs: &Outputs, id: Id) {
    match outputs.remove(id) {
        Ok(()) => log::event(
            Level::Debug,
            "command.output_released",
            &[("command", Value::Shown(&id))],
        ),
        Err(error) => failed(id, &error),
    }
}

fn failed(id: Id, error: &crate::sys::fs::Error) {
    log::event(
        Level::Error,
        "command.output_failed",
        &[
            ("command", Value::Shown(&id)),
            ("error", Value::Chain(error)),
        ],
    );
}

fn dropped(command: &Command, why: &str) {
    log::event(
        Level::Warn,
        "command.dropped",
        &[
            ("command", Value::Text(&command.id)),
            ("kind", Value::Text(&command.kind)),
            ("why", Value::Text(why)),
        ],
    );
}
