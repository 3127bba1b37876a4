//! The node's duties, put together: which part takes which order.
use std::cell::Cell;
use std::time::Duration;

use crate::proto::{
    Command, CommandState, CommandUpdate, Envelope, NodeFrame, NodeFrameKind, OutputRequest,
    SectionState, SectionStatus,
};
use crate::rt::channel::Sender;
use crate::session::{About, Duties, Signed, Terms};
use crate::sys::log::{self, Level, Value};

/// What this bcd does for its control plane.
pub(super) struct Work {
    frames: Sender<NodeFrame>,
    generation: Cell<u64>,
}

impl Work {
    /// `frames` leads to the session.
    pub(super) fn new(frames: Sender<NodeFrame>) -> Self {
        Self {
            frames,
            generation: Cell::new(0),
        }
    }

    async fn send(&self, kind: NodeFrameKind) {
        let _ = self.frames.send(NodeFrame { kind: Some(kind) }).await;
    }
}

impl Duties for Work {
    fn about(&self) -> About {
        About {
            capabilities: Vec::new(),
            spec_generation: self.generation.get(),
        }
    }

    fn acked(&self, _position: u64) {}

    async fn welcomed(&self, _terms: Terms) {}

    async fn command(&self, command: Command, _terms: Terms) {
        log::event(
            Level::Info,
            "command.unsupported",
            &[
                ("command", Value::Text(&command.id)),
                ("kind", Value::Text(&command.kind)),
            ],
        );
        let update = CommandUpdate {
            id: command.id,
            state: CommandState::UNSUPPORTED,
            reason: "CommandUnsupported".to_owned(),
            message: format!("bcd {} knows no such command", env!("CARGO_PKG_VERSION")),
            result: Vec::new(),
        };
        self.send(NodeFrameKind::CommandUpdate(update)).await;
    }

    async fn cancel(&self, _id: String) {}

    async fn spec(&self, spec: Signed) {
        let spec = spec.spec;
        self.generation.set(spec.generation);
        for section in spec.sections {
            let status = SectionStatus {
                generation: spec.generation,
                state: SectionState::UNSUPPORTED,
                reason: "SectionUnsupported".to_owned(),
                message: format!(
                    "bcd {} knows no section {}",
                    env!("CARGO_PKG_VERSION"),
                    section.name
                ),
                section: section.name,
            };
            self.send(NodeFrameKind::SectionStatus(status)).await;
        }
    }

    async fn output(&self, _request: OutputRequest) {}

    async fn trust_bundle(&self, _bundle: Envelope) {}

    async fn renew(&self, _within: Duration) {}
}
