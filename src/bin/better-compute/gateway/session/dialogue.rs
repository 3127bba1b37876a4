//! An open session: frames both ways, one [`Turn`] at a time.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bcd::proto::{
    Ack, Drain, GatewayFrame, GatewayFrameKind, Heartbeat, NodeFrameKind, OrderAnswer, RenewNow,
};
use bcd::rt;
use bcd::sys::log::{self, Level, Value};
use bcd::wire::grpc::server::{Receiver, Sender};
use bcd::wire::grpc::{Code, Status};

use super::super::live::{Ending, Looks, Order};
use super::Place;
use super::fetch::Fetching;
use super::frame::Frame;
use super::giving::Giving;
use super::intake::Intake;
use crate::joinservice;
use crate::registry::{Answer, Batch, Owed, RegistryError, Sessions, now_ms};
use crate::store::Kept;

/// How long a session waits before it tries to store events again.
pub(super) const STORE_AGAIN: Duration = Duration::from_secs(2);
/// How a drained node spreads its return: `Drain.reconnect_after_ms`.
const RECONNECT_AFTER_MS: u32 = 5_000;

/// The longest id, and nonce, of a claim that is answered.
const CLAIM_TEXT: usize = 64;

/// What happens next in a session.
#[allow(clippy::large_enum_variant)] // One at a time, and kept nowhere.
enum Turn {
    Order(Option<Order>),
    Stored(Result<u64, Status>),
    Owed(Result<Owed, RegistryError>),
    Kept(Kept),
    Claimed(Result<OrderAnswer, RegistryError>),
    Frame(Result<Option<Frame>, Status>),
}

/// An open session.
pub(super) struct Session {
    pub(super) place: Place,
    pub(super) answers: Sender<GatewayFrame>,
    /// How long silence, or a frame that is not taken, is borne.
    pub(super) patience: Duration,
    pub(super) journal_id: Vec<u8>,
    pub(super) intake: Intake,
    /// Events that are being stored.
    pub(super) storing: Option<Answer<Result<u64, Status>>>,
    pub(super) giving: Giving,
    pub(super) fetching: Fetching,
    /// A piece of output that is being stored.
    pub(super) keeping: Option<Answer<Kept>>,
    /// A claim to an order that is being decided.
    pub(super) claiming: Option<Answer<Result<OrderAnswer, RegistryError>>>,
    /// Whether the node was heard since `Hello`.
    pub(super) heard: bool,
    /// When the certificate it was opened with ends, Unix time in seconds.
    pub(super) not_after: i64,
    /// SHA-256 of the key of the CA that issued it, if that is known.
    pub(super) issuer_sha256: Option<[u8; 32]>,
    /// Whether an order to look waits.
    pub(super) looks: Looks,
}

impl Session {
    pub(super) async fn go_on(
        &mut self,
        mut frames: Receiver<Frame>,
        mut orders: rt::channel::Receiver<Order>,
    ) -> Result<(), Status> {
        // The node is dead when nothing comes for two intervals, whatever else happens meanwhile.
        let mut deadline = Instant::now() + self.patience;
        loop {
            let turn = self.turn(&mut frames, &mut orders);
            match rt::timeout_at(deadline, turn).await {
                Err(_) if self.intake.has_room() => {
                    return Err(Status::new(
                        Code::DeadlineExceeded,
                        format!("nothing was heard for {} s", self.patience.as_secs_f32()),
                    ));
                }
                // It may have spoken: nobody listened.
                Err(_) => deadline = Instant::now() + self.patience,
                Ok(Turn::Order(order)) => self.obey(order).await?,
                Ok(Turn::Stored(position)) => {
                    self.storing = None;
                    self.intake.stored(position?);
                    self.place.gateway.news.ring();
                    // A report may have left something to fetch.
                    if self.intake.reports() {
                        self.look();
                    }
                }
                Ok(Turn::Owed(owed)) => self.give(owed).await?,
                Ok(Turn::Kept(kept)) => self.fetch_on(kept).await?,
                Ok(Turn::Claimed(answer)) => {
                    self.claiming = None;
                    // What could not be decided is asked again.
                    if let Ok(answer) = answer {
                        self.answer_claim(answer).await?;
                    }
                }
                Ok(Turn::Frame(frame)) => {
                    let Some(frame) = frame? else {
                        log::event(
                            Level::Info,
                            "session.closed",
                            &[("node", Value::Text(&self.place.node_id))],
                        );
                        return Ok(());
                    };
                    deadline = Instant::now() + self.patience;
                    self.hear(frame).await?;
                }
            }
            self.store();
            if let Some(position) = self.intake.acknowledgement() {
                self.send(GatewayFrameKind::Ack(Ack { position })).await?;
            }
        }
    }

    /// Waits for the next turn. Orders come first, frames last, and only while there is room for them.
    async fn turn(
        &mut self,
        frames: &mut Receiver<Frame>,
        orders: &mut rt::channel::Receiver<Order>,
    ) -> Turn {
        let mut frame = pin!(frames.next());
        let reading = self.intake.has_room();
        let (storing, keeping) = (&mut self.storing, &mut self.keeping);
        let claiming = &mut self.claiming;
        let asking = &mut self.giving.asking;
        poll_fn(|cx| {
            if let Poll::Ready(order) = orders.poll_recv(cx) {
                return Poll::Ready(Turn::Order(order));
            }
            if let Some(storing) = storing.as_mut()
                && let Poll::Ready(stored) = storing.as_mut().poll(cx)
            {
                return Poll::Ready(Turn::Stored(stored));
            }
            if let Some(owed) = asking.as_mut()
                && let Poll::Ready(owed) = owed.as_mut().poll(cx)
            {
                return Poll::Ready(Turn::Owed(owed));
            }
            if let Some(keep) = keeping.as_mut()
                && let Poll::Ready(kept) = keep.as_mut().poll(cx)
            {
                return Poll::Ready(Turn::Kept(kept));
            }
            if let Some(claim) = claiming.as_mut()
                && let Poll::Ready(answer) = claim.as_mut().poll(cx)
            {
                return Poll::Ready(Turn::Claimed(answer));
            }
            match reading {
                true => frame.as_mut().poll(cx).map(Turn::Frame),
                false => Poll::Pending,
            }
        })
        .await
    }

    pub(super) async fn obey(&mut self, order: Option<Order>) -> Result<(), Status> {
        match order {
            Some(Order::Look) => {
                self.looks.done();
                self.look();
                Ok(())
            }
            Some(Order::Trust) => {
                self.send_trust().await?;
                self.issuer_holds()
            }
            Some(Order::Renew(span)) => {
                let within_ms = u32::try_from(span.as_millis()).unwrap_or(u32::MAX);
                self.send(GatewayFrameKind::Renew(RenewNow { within_ms }))
                    .await
            }
            Some(Order::End(Ending::Drain)) => {
                let drain = Drain {
                    reconnect_after_ms: RECONNECT_AFTER_MS,
                    reason: "the gateway is stopping".to_owned(),
                };
                self.send(GatewayFrameKind::Drain(drain)).await
            }
            // The place in `live` holds the other end, unless another session took it.
            None => Err(status_of(Ending::Replaced)),
            Some(Order::End(why)) => Err(status_of(why)),
        }
    }

    /// Whether the CA of the node's certificate is still one of the fleet's.
    pub(super) fn issuer_holds(&self) -> Result<(), Status> {
        let trust = self.place.gateway.relay.trust();
        match self.issuer_sha256 {
            Some(issuer) if !trust.node_cas.contains(&issuer) => Err(Status::new(
                Code::Aborted,
                "the CA of this node's certificate was retired: come back with a renewed one",
            )),
            _ => Ok(()),
        }
    }

    pub(super) async fn send_trust(&mut self) -> Result<(), Status> {
        let signed = self.place.gateway.relay.trust().signed.clone();
        self.send(GatewayFrameKind::TrustBundle(signed)).await
    }

    async fn hear(&mut self, frame: Frame) -> Result<(), Status> {
        // Heartbeats come, so this is looked at in time.
        if now_ms() / 1000 > self.not_after {
            return Err(Status::new(
                Code::Unauthenticated,
                "this node's certificate has expired: renew it",
            ));
        }
        let sessions = self.place.gateway.sessions.clone();
        let beat = matches!(frame.known.kind, Some(NodeFrameKind::Heartbeat(_)));
        if beat || !self.heard {
            sessions.seen(&self.place.node_id, &self.place.session_id);
        }
        if !self.heard {
            self.heard = true;
            self.place.gateway.news.ring();
        }
        if let Some(event) = frame.event {
            return self.intake.take(event);
        }
        match frame.known.kind {
            Some(NodeFrameKind::Heartbeat(heartbeat)) => {
                for command in self.giving.beat() {
                    sessions.output_released(command);
                }
                let echo = Heartbeat {
                    sequence: heartbeat.sequence,
                    time_ms: now_ms(),
                };
                self.send(GatewayFrameKind::Heartbeat(echo)).await
            }
            Some(NodeFrameKind::TrustBundleTaken(taken)) => {
                sessions.trusts(&self.place.node_id, taken.version);
                Ok(())
            }
            Some(NodeFrameKind::CommandProgress(progress)) => {
                sessions.progress(&self.place.node_id, progress);
                self.place.gateway.news.ring();
                Ok(())
            }
            Some(NodeFrameKind::Output(chunk)) => self.take_output(chunk),
            // One at a time: a node asks again.
            Some(NodeFrameKind::OrderClaim(claim))
                if self.claiming.is_none()
                    && claim.order_id.len().max(claim.nonce.len()) <= CLAIM_TEXT =>
            {
                self.claiming = Some(sessions.claim(&self.place.node_id, claim));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    async fn answer_claim(&mut self, answer: OrderAnswer) -> Result<(), Status> {
        log::event(
            Level::Info,
            "order.claimed",
            &[
                ("node", Value::Text(&self.place.node_id)),
                ("order", Value::Text(&answer.order_id)),
                ("granted", Value::Flag(answer.granted)),
                ("reason", Value::Text(&answer.reason)),
            ],
        );
        self.send(GatewayFrameKind::OrderAnswer(answer)).await
    }

    /// Has the events that wait stored, unless earlier ones are being stored.
    fn store(&mut self) {
        if self.storing.is_some() {
            return;
        }
        let Some(events) = self.intake.next_batch() else {
            return;
        };
        let batch = Batch {
            node_id: self.place.node_id.clone(),
            journal_id: self.journal_id.clone(),
            events,
        };
        let sessions = self.place.gateway.sessions.clone();
        self.storing = Some(Box::pin(store_at_last(sessions, batch)));
    }

    /// Sends a frame; one that is not taken in time ends the session.
    pub(super) async fn send(&mut self, kind: GatewayFrameKind) -> Result<(), Status> {
        let frame = GatewayFrame { kind: Some(kind) };
        match rt::timeout(self.patience, self.answers.send(&frame)).await {
            Ok(sent) => sent,
            Err(_) => Err(Status::new(
                Code::DeadlineExceeded,
                "the node does not take what it is sent",
            )),
        }
    }
}

/// What a session's call ends with.
pub(super) fn status_of(why: Ending) -> Status {
    match why {
        Ending::Replaced => Status::new(
            Code::Aborted,
            "the node opened another session, which replaces this one",
        ),
        Ending::Deleted => Status::new(Code::PermissionDenied, joinservice::DELETED),
        Ending::Drain => Status::new(Code::Unavailable, "the gateway is stopping"),
    }
}

/// Stores a batch, however long it takes the records to be able to.
async fn store_at_last(sessions: Arc<dyn Sessions>, mut batch: Batch) -> Result<u64, Status> {
    loop {
        let held = match sessions.store(batch).await {
            Ok(position) => return Ok(position),
            Err(held) => held,
        };
        let Some(again) = held.batch else {
            return Err(Status::new(
                Code::Unavailable,
                "the control plane is stopping: try again",
            ));
        };
        log::event(
            Level::Debug,
            "session.held",
            &[
                ("node", Value::Text(&again.node_id)),
                ("error", Value::Chain(&held.error)),
            ],
        );
        batch = again;
        rt::sleep(STORE_AGAIN).await;
    }
}
