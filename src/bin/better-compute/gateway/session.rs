//! One session: who opened it, `Hello`, `Welcome`, and heartbeats until it ends.

#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::indexing_slicing))]

use std::rc::Rc;
use std::time::Duration;

use bcd::crypto::certificate::Certificate;
use bcd::crypto::digest;
use bcd::proto::{
    Drain, GatewayFrame, GatewayFrameKind, Heartbeat, Hello, NodeFrame, NodeFrameKind, RenewNow,
    Welcome,
};
use bcd::rt::{self, Either};
use bcd::sys::log::{self, Level, Value};
use bcd::wire::grpc::server::{Context, Receiver, Sender};
use bcd::wire::grpc::{Code, Status};
use rustls::pki_types::CertificateDer;

use super::{Gateway, Live};
use crate::ids;
use crate::joinservice::role_named;
use crate::registry::{Opening, now_ms};

/// The protocol versions this gateway speaks.
const VERSIONS: &[u32] = &[1];
const HELLO_WAIT: Duration = Duration::from_secs(10);
/// How a drained node spreads its return: `Drain.reconnect_after_ms`.
const RECONNECT_AFTER_MS: u32 = 5_000;
const TEXT_MAX: usize = 256;
const CAPABILITIES_MAX: usize = 256;
const VERSIONS_MAX: usize = 64;

/// What a gateway does to a session from outside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(dead_code)] // Until keys are rotated.
pub(super) enum Ending {
    /// The trust bundle changed: the node gets the one in force. Ends nothing.
    Trust,
    /// The node shall renew within this span. Ends nothing.
    Renew(Duration),
    /// The same node opened another one.
    Replaced,
    /// The node was deleted.
    Deleted,
    /// The gateway stops.
    Drain,
}

/// Who a certificate says its holder is.
#[derive(Debug, PartialEq, Eq)]
struct Identity {
    node_id: String,
    /// SHA-256 of the certificate's SubjectPublicKeyInfo.
    spki_sha256: [u8; 32],
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
    }
}

/// Runs a session to its end; the status is the call's.
pub(super) async fn run(
    gateway: Rc<Gateway>,
    context: Context,
    frames: Receiver<NodeFrame>,
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
    mut frames: Receiver<NodeFrame>,
    mut answers: Sender<GatewayFrame>,
) -> Result<(), Status> {
    let identity = identify(&context.peer.certificates, &gateway.settings.trust_domain)?;
    let hello = hello(&mut frames).await?;
    check(&hello, &identity)?;
    let version = choose(&hello.protocol_versions);
    // From here on the records hear of the end, even when the node goes away while they open it.
    let place = Place {
        gateway: gateway.clone(),
        node_id: identity.node_id,
        session_id: ids::new("sess", now_ms()),
    };
    gateway
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
        })
        .await?;
    let (end, mut ending) = rt::channel(4);
    let live = Live {
        session_id: place.session_id.clone(),
        end,
    };
    let older = gateway
        .live
        .borrow_mut()
        .insert(place.node_id.clone(), live);
    if let Some(older) = older {
        let _ = older.end.try_send(Ending::Replaced);
    }
    log::event(
        Level::Info,
        "session.welcome",
        &[
            ("node", Value::Text(&place.node_id)),
            ("session", Value::Text(&place.session_id)),
            ("address", Value::Text(address)),
            ("version", Value::Text(&hello.daemon_version)),
            ("upgrade_required", Value::Flag(version.is_none())),
        ],
    );
    let interval = gateway.settings.heartbeat;
    let patience = interval * 2;
    let welcome = Welcome {
        protocol_version: version.unwrap_or(0),
        server_time_ms: now_ms(),
        // No journal record is stored here yet, so none is acknowledged.
        resume_position: 0,
        upgrade_required: version.is_none(),
        heartbeat_interval_ms: u32::try_from(interval.as_millis()).unwrap_or(u32::MAX),
        session_id: place.session_id.clone(),
        signed_time: gateway.relay.signed_time().await,
        ..Welcome::default()
    };
    send(&mut answers, GatewayFrameKind::Welcome(welcome), patience).await?;
    let trust = gateway.relay.trust();
    if hello.trust_bundle_version < trust.version {
        let bundle = GatewayFrameKind::TrustBundle(trust.signed.clone());
        send(&mut answers, bundle, patience).await?;
    }
    // The node is dead when nothing comes for two intervals, whatever else happens meanwhile.
    let mut deadline = std::time::Instant::now() + patience;
    loop {
        let next = rt::timeout_at(deadline, rt::select(ending.recv(), frames.next()));
        match next.await {
            Err(_) => {
                return Err(Status::new(
                    Code::DeadlineExceeded,
                    format!("nothing was heard for {} s", patience.as_secs_f32()),
                ));
            }
            Ok(Either::Left(Some(Ending::Replaced))) => {
                return Err(Status::new(
                    Code::Aborted,
                    "the node opened another session, which replaces this one",
                ));
            }
            Ok(Either::Left(Some(Ending::Deleted))) => {
                return Err(Status::new(
                    Code::PermissionDenied,
                    "this node was deleted: join again with bcd join --reset --yes and a new token",
                ));
            }
            Ok(Either::Left(Some(Ending::Drain))) => {
                let drain = Drain {
                    reconnect_after_ms: RECONNECT_AFTER_MS,
                    reason: "the gateway is stopping".to_owned(),
                };
                send(&mut answers, GatewayFrameKind::Drain(drain), patience).await?;
            }
            Ok(Either::Left(Some(Ending::Trust))) => {
                let bundle = GatewayFrameKind::TrustBundle(gateway.relay.trust().signed.clone());
                send(&mut answers, bundle, patience).await?;
            }
            Ok(Either::Left(Some(Ending::Renew(span)))) => {
                let within_ms = u32::try_from(span.as_millis()).unwrap_or(u32::MAX);
                let renew = GatewayFrameKind::Renew(RenewNow { within_ms });
                send(&mut answers, renew, patience).await?;
            }
            // Unreachable: the place in `live` holds the other end, unless another session took it.
            Ok(Either::Left(None)) => {
                return Err(Status::new(Code::Aborted, "the session was replaced"));
            }
            Ok(Either::Right(frame)) => {
                let Some(frame) = frame? else {
                    log::event(
                        Level::Info,
                        "session.closed",
                        &[("node", Value::Text(&place.node_id))],
                    );
                    return Ok(());
                };
                deadline = std::time::Instant::now() + patience;
                gateway.sessions.seen(&place.node_id, &place.session_id);
                match frame.kind {
                    Some(NodeFrameKind::Heartbeat(heartbeat)) => {
                        let echo = Heartbeat {
                            sequence: heartbeat.sequence,
                            time_ms: now_ms(),
                        };
                        send(&mut answers, GatewayFrameKind::Heartbeat(echo), patience).await?;
                    }
                    Some(NodeFrameKind::TrustBundleTaken(taken)) => {
                        gateway.sessions.trusts(&place.node_id, taken.version);
                    }
                    _ => {}
                }
            }
        }
    }
}

async fn send(
    answers: &mut Sender<GatewayFrame>,
    kind: GatewayFrameKind,
    patience: Duration,
) -> Result<(), Status> {
    let frame = GatewayFrame { kind: Some(kind) };
    match rt::timeout(patience, answers.send(&frame)).await {
        Ok(sent) => sent,
        Err(_) => Err(Status::new(
            Code::DeadlineExceeded,
            "the node does not take what it is sent",
        )),
    }
}

/// Who the client certificate names. The handshake has checked that it chains to the node CA.
fn identify(
    certificates: &[CertificateDer<'static>],
    trust_domain: &str,
) -> Result<Identity, Status> {
    let unauthenticated = |message: &str| Status::new(Code::Unauthenticated, message);
    let leaf = certificates
        .first()
        .ok_or_else(|| unauthenticated("a session needs the node's client certificate"))?;
    let leaf = Certificate::parse(leaf)
        .map_err(|_| unauthenticated("the client certificate cannot be read"))?;
    let node_id = match leaf.uri_names.as_slice() {
        [uri] => node_of(uri, trust_domain),
        _ => None,
    };
    let node_id = node_id.ok_or_else(|| {
        unauthenticated("the client certificate carries no SPIFFE id of this fleet")
    })?;
    Ok(Identity {
        node_id: node_id.to_owned(),
        spki_sha256: digest::sha256(leaf.spki),
    })
}

/// The node id in `spiffe://<trust domain>/<role>/<node id>`.
fn node_of<'a>(uri: &'a str, trust_domain: &str) -> Option<&'a str> {
    let path = uri
        .strip_prefix("spiffe://")?
        .strip_prefix(trust_domain)?
        .strip_prefix('/')?;
    let (role, node_id) = path.split_once('/')?;
    (role_named(role).is_some() && ids::is_ulid_of("node", node_id)).then_some(node_id)
}

/// The first frame, which must be `Hello`.
async fn hello(frames: &mut Receiver<NodeFrame>) -> Result<Hello, Status> {
    let frame = rt::timeout(HELLO_WAIT, frames.next())
        .await
        .map_err(|_| Status::new(Code::DeadlineExceeded, "no Hello came for 10 s"))??;
    match frame.and_then(|frame| frame.kind) {
        Some(NodeFrameKind::Hello(hello)) => Ok(hello),
        _ => Err(Status::new(
            Code::InvalidArgument,
            "the first frame must be Hello",
        )),
    }
}

fn check(hello: &Hello, identity: &Identity) -> Result<(), Status> {
    let invalid = |message: &str| Err(Status::new(Code::InvalidArgument, message));
    if hello.node_id != identity.node_id {
        return Err(Status::new(
            Code::PermissionDenied,
            "Hello names another node than the client certificate",
        ));
    }
    let long = |text: &String| text.len() > TEXT_MAX;
    if long(&hello.boot_id) || long(&hello.daemon_version) {
        return invalid("a text in Hello is over 256 bytes");
    }
    if hello.capabilities.len() > CAPABILITIES_MAX
        || hello
            .capabilities
            .iter()
            .any(|name| long(name) || name.chars().any(char::is_control))
    {
        return invalid("Hello.capabilities is over its limit of 256 names of 256 bytes");
    }
    if hello.protocol_versions.len() > VERSIONS_MAX {
        return invalid("Hello.protocol_versions has more than 64 entries");
    }
    Ok(())
}

/// The highest version both speak.
fn choose(spoken: &[u32]) -> Option<u32> {
    VERSIONS
        .iter()
        .copied()
        .filter(|version| spoken.contains(version))
        .max()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: &str = "node_01hf7yat000000000000000000";

    #[test]
    fn only_this_fleets_spiffe_ids_name_a_node() {
        let id = |uri: &str| node_of(uri, "example.org").map(str::to_owned);
        for role in ["node", "site", "ramdisk"] {
            let uri = format!("spiffe://example.org/{role}/{NODE}");
            assert_eq!(id(&uri).as_deref(), Some(NODE));
        }
        for bad in [
            format!("spiffe://example.orgx/node/{NODE}"),
            format!("spiffe://other/node/{NODE}"),
            format!("spiffe://example.org/admin/{NODE}"),
            format!("spiffe://example.org/node/{NODE}/x"),
            format!("https://example.org/node/{NODE}"),
            "spiffe://example.org/node/".to_owned(),
            "spiffe://example.org/node/node_1".to_owned(),
        ] {
            assert_eq!(id(&bad), None, "{bad}");
        }
        let status = identify(&[], "example.org").unwrap_err();
        assert_eq!(status.code, Code::Unauthenticated);
    }

    #[test]
    fn the_highest_common_version_is_spoken_or_an_upgrade_required() {
        assert_eq!(choose(&[1]), Some(1));
        assert_eq!(choose(&[0, 1, 2, 9]), Some(1));
        assert_eq!(choose(&[2, 3]), None);
        assert_eq!(choose(&[]), None);
    }

    #[test]
    fn hello_must_match_the_certificate_and_keep_its_limits() {
        let identity = Identity {
            node_id: NODE.to_owned(),
            spki_sha256: [0; 32],
        };
        let good = Hello {
            node_id: NODE.to_owned(),
            capabilities: vec!["a.b".to_owned()],
            ..Hello::default()
        };
        assert!(check(&good, &identity).is_ok());
        let code = |change: &dyn Fn(&mut Hello)| {
            let mut hello = good.clone();
            change(&mut hello);
            check(&hello, &identity).unwrap_err().code
        };
        assert_eq!(code(&|h| h.node_id.clear()), Code::PermissionDenied);
        assert_eq!(
            code(&|h| h.boot_id = "x".repeat(257)),
            Code::InvalidArgument
        );
        assert_eq!(
            code(&|h| h.daemon_version = "x".repeat(257)),
            Code::InvalidArgument
        );
        assert_eq!(
            code(&|h| h.capabilities = vec![String::new(); 257]),
            Code::InvalidArgument
        );
        assert_eq!(
            code(&|h| h.capabilities = vec!["a\nb".to_owned()]),
            Code::InvalidArgument
        );
        assert_eq!(
            code(&|h| h.protocol_versions = vec![1; 65]),
            Code::InvalidArgument
        );
    }
}
