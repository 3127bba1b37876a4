//! What a session is for: the work behind the frames that the session carries and does not
//! understand.
//!
//! The session hands each order to its [`Duties`] in the order it came, one at a time, and keeps a
//! few at most waiting: a node that is slow to take orders makes its gateway wait, not its memory
//! grow. Heartbeats, acknowledgements and the outbox go on meanwhile. What must not be lost goes
//! back as an event through the journal; what may be lost (progress, output that was asked for) as
//! a frame through [`Frames`].
use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use crate::proto::{Command, Envelope, NodeFrame, NodeSpec, OrderAnswer, OutputRequest, Welcome};
use crate::rt::channel::{self, Receiver, Sender};

/// Orders that wait while one is being taken.
pub(super) const ORDERS: usize = 4;

/// Frames that wait for the session to send them.
const FRAMES: usize = 4;

/// What `Hello` says of a node beyond who it is.
#[derive(Debug, Clone, Default)]
pub struct About {
    /// "command.node.reboot", "section.log" and others of that form.
    pub capabilities: Vec<String>,
    /// Of the spec held; 0: none.
    pub spec_generation: u64,
}

/// What was agreed in `Welcome`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// This version is too old for the control plane: nothing but an upgrade may be done.
    pub upgrade_required: bool,
}

/// A spec whose signature holds, for this node, not older than the one held.
#[derive(Debug, Clone)]
pub struct Signed {
    /// As it came.
    pub envelope: Envelope,
    /// Its payload.
    pub spec: NodeSpec,
}

/// What became of the session, for whoever shows it to people.
pub enum Stands<'a> {
    /// A try to open one is under way.
    Trying,
    /// One was opened.
    Open {
        welcome: &'a Welcome,
        address: Option<SocketAddr>,
    },
    /// The gateway is going away, or what this node shows has changed; the session goes on until another
    /// one is open.
    Moving,
    /// There is none, and why. It is tried again after `again`.
    Down { failed: Failed<'a>, again: Duration },
    /// Another one could not be opened. The one there is goes on.
    NotMoved(Failed<'a>),
}

/// Why, and what a person can do about it.
#[derive(Clone, Copy)]
pub struct Failed<'a> {
    pub error: &'a dyn Error,
    pub remedy: &'static str,
    /// Somebody said no: it will not pass by itself.
    pub refused: bool,
}

/// The work. One thread runs it together with the session: what blocks belongs on a thread
/// ([`crate::rt::blocking`]), what takes long into a task. Until a call returns the next order waits.
#[allow(async_fn_in_trait)] // Nothing here leaves its thread.
pub trait Duties {
    /// For the next `Hello`.
    fn about(&self) -> About;

    /// Events up to `position` are stored by the control plane, and forgotten here.
    fn acked(&self, position: u64);

    /// The session stands otherwise than before.
    fn stands(&self, _stands: Stands<'_>) {}

    /// A heartbeat goes out: a moment at which an idle node is awake anyway.
    fn awake(&self);

    /// A command to take: new, or sent again because its event has not arrived there.
    async fn command(&self, command: Command, terms: Terms);

    /// A command is no longer wanted.
    async fn cancel(&self, id: String);

    /// A spec to store and to apply. Not called when an upgrade is required.
    async fn spec(&self, spec: Signed);

    /// A piece of a command's output is asked for, or may be deleted.
    async fn output(&self, request: OutputRequest);

    /// What became of a claim to a one-time order.
    async fn order_answered(&self, answer: OrderAnswer);
}

/// The way for frames that are not kept: `CommandProgress`, `OutputChunk`. What is put in while
/// there is no session is dropped; while the gateway is slow, putting in waits.
pub struct Frames {
    /// Where the duties put them in.
    pub sender: Sender<NodeFrame>,
    pub(super) receiver: Receiver<NodeFrame>,
}

impl Frames {
    /// An empty one.
    pub fn new() -> Self {
        let (sender, receiver) = channel::channel(FRAMES);
        Self { sender, receiver }
    }
}

impl Default for Frames {
    fn default() -> Self {
        Self::new()
    }
}
