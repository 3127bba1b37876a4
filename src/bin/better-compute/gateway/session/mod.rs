//! One session: `Hello`, `Welcome`, then frames both ways until it ends.
//!
//! How the parts fit: `hello` says who opens it; `frame` reads a frame and leaves an event as it came;
//! `intake` decides on events; `fetch` on commands' outputs; `giving` on what the node is owed: commands,
//! cancellations, its spec. This file is the loop: it takes one [`Turn`] at a time, and each send has
//! the session's patience to be taken.
//!
//! Promises: an acknowledgement leaves after its events are stored; while they cannot be stored, the
//! session goes on and says nothing of them; a node that sends faster than the records take it is not
//! read, so HTTP/2 holds it back; a node that does not read is given up.

#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::indexing_slicing))]

mod fetch;
mod frame;
mod giving;
mod hello;
mod intake;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bcd::proto::{
    Ack, Drain, GatewayFrame, GatewayFrameKind, Heartbeat, NodeFrameKind, RenewNow, Welcome,
};
use bcd::rt;
use bcd::sys::log::{self, Level, Value};
use bcd::wire::grpc::server::{Context, Receiver, Sender};
use bcd::wire::grpc::{Code, Status};

use self::fetch::Fetching;
use self::frame::Frame;
pub(super) use self::frame::SESSION;
use self::giving::Giving;
use self::intake::Intake;
use super::{Gateway, Live};
use crate::ids;
use crate::joinservice;
use crate::registry::{Answer, Batch, Given, Opening, Owed, RegistryError, Sessions, now_ms};
use crate::store::Kept;

/// Orders that may wait for a session.
const ORDERS: usize = 16;
/// How long a session waits before it tries to store events again.
const STORE_AGAIN: Duration = Duration::from_secs(2);
/// The one kind of command for a node that must upgrade first.
const UPGRADE: &str = "daemon.upgrade";
/// How a drained node spreads its return: `Drain.reconnect_after_ms`.
const RECONNECT_AFTER_MS: u32 = 5_000;

/// Why a gateway ends a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// The same node opened another one.
    Replaced,
    /// The node was deleted.
    Deleted,
    /// The gateway stops.
    Drain,
}

/// What others want of a session.
pub(super) enum Order {
    /// The records owe the node something new.
    Look,
    /// The trust bundle changed: the node gets the one in force.
    Trust,
    /// The node shall renew its certificate within this span.
    Renew(Duration),
    End(Ending),
}

/// Holds the node's place among the live sessions, until dropped, however the session ends.
struct Place {
    gateway: Rc<Gateway>,
    node_id: String,
    session_id: String,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut live = self.gateway.live.borrow_mut();
        if live
            .get(&self.node_id)
            .is_some_and(|live| live.session_id == self.session_id)
        {
            live.remove(&self.node_id);
        }
        drop(live);
        self.gateway
            .sessions
            .closed(&self.node_id, &self.session_id);
        self.gateway.news.ring();
    }
}

/// Runs a session to its end; the status is the call's.
pub(super) async fn run(
    gateway: Rc<Gateway>,
    context: Context,
    frames: Receiver<Frame>,
    answers: Sender<GatewayFrame>,
) -> Result<(), Status> {
    let address = context
        .peer
        .address
        .map(|address| address.ip().to_string())
        .unwrap_or_default();
    let ended = hold(&gateway, &context, &address, frames, answers).await;
    if let Err(status) = &ended {
        log::event(
            Level::Warn,
            "session.ended",
            &[
                ("address", Value::Text(&address)),
                ("status", Value::Shown(status)),
            ],
        );
    }
    ended
}

async fn hold(
    gateway: &Rc<Gateway>,
    context: &Context,
    address: &str,
    mut frames: Receiver<Frame>,
    answers: Sender<GatewayFrame>,
) -> Result<(), Status> {
    let identity = hello::identify(&context.peer.certificates, &gateway.settings.trust_domain)?;
    let hello = hello::hello(&mut frames).await?;
    hello::check(&hello, &identity)?;
    let version = hello::choose(&hello.protocol_versions);
    // From here on the records hear of the end, even when the node goes away while they open it.
    let place = Place {
        gateway: gateway.clone(),
        node_id: identity.node_id,
        session_id: ids::new("sess", now_ms()),
    };
    let opened = gateway
        .sessions
        .open(Opening {
            node_id: place.node_id.clone(),
            spki_sha256: identity.spki_sha256,
            session_id: place.session_id.clone(),
            daemon_version: hello.daemon_version.clone(),
            boot_id: hello.boot_id,
            capabilities: hello.capabilities,
            address: address.to_owned(),
            trust_version: hello.trust_bundle_version,
            journal_id: hello.journal_id.clone(),
        })
        .await?;
    gateway.news.ring();
    let (orders_in, orders) = rt::channel(ORDERS);
    let live = Live {
        session_id: place.session_id.clone(),
        orders: orders_in,
    };
    let older = gateway
        .live
        .borrow_mut()
        .insert(place.node_id.clone(), live);
    if let Some(older) = older {
        let _ = older.orders.try_send(Order::End(Ending::Replaced));
    }
    log::event(
        Level::Info,
        "session.welcome",
        &[
            ("node", Value::Text(&place.node_id)),
            ("session", Value::Text(&place.session_id)),
            ("address", Value::Text(address)),
            ("version", Value::Text(&hello.daemon_version)),
            ("resume", Value::Shown(&opened.resume_position)),
            ("upgrade_required", Value::Flag(version.is_none())),
        ],
    );
    let interval = gateway.settings.heartbeat;
    let given = Given {
        node_id: place.node_id.clone(),
        spec_generation: version.map(|_| hello.spec_generation),
        only: version.is_none().then_some(UPGRADE),
        ..Given::default()
    };
    let mut session = Session {
        intake: Intake::new(!hello.journal_id.is_empty(), opened.resume_position),
        journal_id: hello.journal_id,
        place,
        answers,
        patience: interval * 2,
        storing: None,
        giving: Giving::new(given),
        fetching: Fetching::default(),
        keeping: None,
        heard: false,
        not_after: identity.not_after,
        issuer_sha256: opened.issuer_sha256,
    };
    let welcome = Welcome {
        protocol_version: version.unwrap_or(0),
        server_time_ms: now_ms(),
        resume_position: opened.resume_position,
        upgrade_required: version.is_none(),
        heartbeat_interval_ms: u32::try_from(interval.as_millis()).unwrap_or(u32::MAX),
        session_id: session.place.session_id.clone(),
        signed_time: gateway.relay.signed_time().await,
        reconnect_spread_ms: reconnect_spread_ms(gateway.live.borrow().len()),
    };
    session.send(GatewayFrameKind::Welcome(welcome)).await?;
    if hello.trust_bundle_version < gateway.relay.trust().version {
        session.send_trust().await?;
    }
    let renew_to = gateway.relay.trust().renew_to;
    if renew_to.is_some() && renew_to != opened.issuer_sha256 {
        let within = gateway.renew_within.get();
        session.obey(Some(Order::Renew(within))).await?;
    }
    session.look();
    session.go_on(frames, orders).await
}

/// Over how long the nodes of a gateway with so many sessions shall come back: 500 a second.
fn reconnect_spread_ms(sessions: usize) -> u32 {
    let wanted = u32::try_from(sessions)
        .unwrap_or(u32::MAX)
        .saturating_mul(2);
    wanted.clamp(8_000, 600_000)
}

/// What happens next in a session.
enum Turn {
    Order(Option<Order>),
    Stored(Result<u64, Status>),
    Owed(Result<Owed, RegistryError>),
    Kept(Kept),
    Frame(Result<Option<Frame>, Status>),
}

/// An open session.
struct Session {
    place: Place,
    answers: Sender<GatewayFrame>,
    /// How long silence, or a frame that is not taken, is borne.
    patience: Duration,
    journal_id: Vec<u8>,
    intake: Intake,
    /// Events that are being stored.
    storing: Option<Answer<Result<u64, Status>>>,
    giving: Giving,
    fetching: Fetching,
    /// A piece of output that is being stored.
    keeping: Option<Answer<Kept>>,
    /// Whether the node was heard since `Hello`.
    heard: bool,
    /// When the certificate it was opened with ends, Unix time in seconds.
    not_after: i64,
    /// SHA-256 of the key of the CA that issued it, if that is known.
    issuer_sha256: Option<[u8; 32]>,
}

impl Session {
    async fn go_on(
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
            match reading {
                true => frame.as_mut().poll(cx).map(Turn::Frame),
                false => Poll::Pending,
            }
        })
        .await
    }

    async fn obey(&mut self, order: Option<Order>) -> Result<(), Status> {
        match order {
            Some(Order::Look) => {
                self.look();
                Ok(())
            }
            Some(Order::Trust) => {
                self.send_trust().await?;
                let trust = self.place.gateway.relay.trust();
                match self.issuer_sha256 {
                    Some(issuer) if !trust.node_cas.contains(&issuer) => Err(Status::new(
                        Code::Aborted,
                        "the CA of this node's certificate was retired: come back with a renewed one",
                    )),
                    _ => Ok(()),
                }
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
            Some(Order::End(Ending::Replaced)) | None => Err(Status::new(
                Code::Aborted,
                "the node opened another session, which replaces this one",
            )),
            Some(Order::End(Ending::Deleted)) => {
                Err(Status::new(Code::PermissionDenied, joinservice::DELETED))
            }
        }
    }

    async fn send_trust(&mut self) -> Result<(), Status> {
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
            _ => Ok(()),
        }
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
    async fn send(&mut self, kind: GatewayFrameKind) -> Result<(), Status> {
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

/// Stores a batch, however long it takes the records to be able to.
async fn store_at_last(sessions: Rc<dyn Sessions>, mut batch: Batch) -> Result<u64, Status> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_return_of_many_nodes_is_spread_wider() {
        for (sessions, spread) in [
            (0, 8_000),
            (4_000, 8_000),
            (10_000, 20_000),
            (usize::MAX, 600_000),
        ] {
            assert_eq!(reconnect_spread_ms(sessions), spread);
        }
    }
}
