//! One session: `Hello`, `Welcome`, then frames both ways until it ends.
//!
//! How the parts fit: `hello` says who opens it; `frame` reads a frame and leaves an event as it came;
//! `intake` decides on events; `fetch` on commands' outputs; `giving` on what the node is owed: commands,
//! cancellations, its spec. `dialogue` is the loop, and each frame it sends has the session's patience to
//! be taken. This file opens the session.
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

mod dialogue;
pub mod fetch;
mod frame;
mod giving;
mod hello;
pub mod intake;

use std::sync::Arc;

use bcd::proto::{GatewayFrame, GatewayFrameKind, Welcome};
use bcd::sys::log::{self, Level, Value};
use bcd::wire::grpc::Status;
use bcd::wire::grpc::server::{Context, Receiver, Sender};

use self::dialogue::Session;
use self::fetch::Fetching;
use self::frame::Frame;
pub(super) use self::frame::SESSION;
use self::giving::Giving;
use self::intake::Intake;
use super::Gateway;
use super::live::{Order, Seat};
use crate::ids;
use crate::registry::{Given, Opening, now_ms};

/// The one kind of command for a node that must upgrade first.
const UPGRADE: &str = "daemon.upgrade";

/// Holds the node's place among the live sessions, until dropped, however the session ends.
struct Place {
    gateway: Arc<Gateway>,
    node_id: String,
    session_id: String,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.gateway.live.leave(&self.node_id, &self.session_id);
        self.gateway
            .sessions
            .closed(&self.node_id, &self.session_id);
        self.gateway.news.ring();
    }
}

/// Runs a session to its end; the status is the call's.
pub(super) async fn run(
    gateway: Arc<Gateway>,
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
    gateway: &Arc<Gateway>,
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
    let Seat { orders, looks } = gateway
        .live
        .enter(&place.node_id, &place.session_id, opened.opening)
        .map_err(dialogue::status_of)?;
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
        claiming: None,
        heard: false,
        not_after: identity.not_after,
        issuer_sha256: opened.issuer_sha256,
        looks,
    };
    let welcome = Welcome {
        protocol_version: version.unwrap_or(0),
        server_time_ms: now_ms(),
        resume_position: opened.resume_position,
        upgrade_required: version.is_none(),
        heartbeat_interval_ms: u32::try_from(interval.as_millis()).unwrap_or(u32::MAX),
        session_id: session.place.session_id.clone(),
        signed_time: gateway.relay.signed_time().await,
        reconnect_spread_ms: reconnect_spread_ms(gateway.fleet()),
    };
    session.send(GatewayFrameKind::Welcome(welcome)).await?;
    if hello.trust_bundle_version < gateway.relay.trust().version {
        session.send_trust().await?;
    }
    session.issuer_holds()?;
    let renew_to = gateway.relay.trust().renew_to;
    if renew_to.is_some() && renew_to != opened.issuer_sha256 {
        let within = gateway.live.renew_within();
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
