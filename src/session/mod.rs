//! The session with the gateway (docs/protocol.md 6): opened, kept alive, opened again, for as
//! long as the daemon runs.
//!
//! `machine` decides, from what happened and when; `open` dials; `spec` judges specs; [`run`] is
//! the edge that waits for sockets, one timer and the signal, and does what the machine says. What
//! the frames are about is the work of others ([`Duties`]). While a session is healthy nothing
//! wakes the process but heartbeats and frames, and nothing is written to the disk.
//!
//! It refuses to end by itself: a node that is turned away says so, and asks again slowly.
use std::future::{Future, pending};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;

use self::machine::{Action, Event, State};
use self::open::{Live, SessionError, VERSIONS};
use self::work::Order;
use crate::attest::gateway::{self, Gateway};
use crate::config::Config;
use crate::crypto::certificate::Certificate;
use crate::crypto::envelope::{self, Purpose};
use crate::crypto::pin;
use crate::identity::store::{self, Joined, Store};
use crate::proto::{
    GatewayFrame, GatewayFrameKind, Heartbeat, Hello, Message, NodeFrame, NodeFrameKind,
    TrustBundle, Welcome,
};
use crate::rt::{self, Either};
use crate::sys::log::{self, Level, Value};
use crate::sys::utc::Utc;
use crate::sys::{clock, random};
use crate::wire::grpc::client::CallError;

mod duties;
mod machine;
mod open;
mod spec;
mod work;

pub use duties::{About, Duties, Signed, Terms, frames};

/// What to do when this node's identity is at fault.
const WAY_BACK: &str = "bcd join --reset --yes, then bcd join";

/// A node that has joined, and its way to the gateway.
pub struct Node {
    joined: Joined,
    store: Store,
    gateway: Gateway,
    tls: Arc<ClientConfig>,
    node_id: Rc<str>,
    /// Pins of the keys that sign for this node.
    signers: Rc<[pin::Pin]>,
    /// The latest server time, for judging certificates.
    server_time_ms: Arc<AtomicU64>,
    /// Of this node's certificate, Unix seconds.
    not_after: i64,
    boot_id: String,
}

type Dialling = Pin<Box<dyn Future<Output = Result<(Live, Welcome), SessionError>>>>;

/// What woke [`run`].
enum Woken {
    Frame(Result<Option<GatewayFrame>, CallError>),
    Dialled(Result<(Live, Welcome), SessionError>),
    /// Of the duties.
    Answer(NodeFrame),
    Due,
    Stop,
}

impl Node {
    /// A node of `config` with the identity that was loaded from `store`.
    ///
    /// # Errors
    /// The gateway's name is none, or the key does not fit TLS.
    pub fn new(
        config: &Config,
        store: Store,
        joined: Joined,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let gateway = Gateway::of(config)?;
        let identity = &joined.identity;
        let not_after = identity.leaf()?.not_after;
        let mut pins = vec![config.serving_ca_spki_pin];
        let mut signers = vec![config.join_signing_key_pin];
        match bundle(&identity.trust_bundle, config.join_signing_key_pin) {
            Ok(bundle) => {
                let cas = bundle
                    .serving_cas
                    .iter()
                    .filter_map(|der| Certificate::parse(der).ok());
                pins.extend(cas.map(|ca| ca.pin()));
                signers.extend(
                    bundle
                        .join_signing_keys
                        .iter()
                        .map(|key| pin::Pin::of_spki(key)),
                );
            }
            Err(why) => log::event(
                Level::Warn,
                "identity.trust_bundle_ignored",
                &[("why", Value::Text(&why)), ("do", Value::Text(WAY_BACK))],
            ),
        }
        pins.dedup();
        signers.dedup();
        let server_time_ms = Arc::new(AtomicU64::new(identity.server_time_ms));
        let mark = Arc::clone(&server_time_ms);
        let trusted = move || clock::trusted_ms(mark.load(Ordering::Relaxed));
        let chain = identity
            .certificate_chain
            .iter()
            .map(|der| CertificateDer::from(der.clone()));
        let tls = gateway::tls(
            pins,
            trusted,
            Some((chain.collect(), joined.key.to_rustls())),
        )?;
        let node_id = identity.node_id.as_str().into();
        let boot_id = clock::boot_id().unwrap_or_default();
        Ok(Self {
            joined,
            store,
            gateway,
            tls,
            node_id,
            signers: signers.into(),
            server_time_ms,
            not_after,
            boot_id,
        })
    }

    fn dial(&self, about: About) -> Dialling {
        let expires = u64::try_from(self.not_after)
            .unwrap_or(0)
            .saturating_mul(1000);
        if clock::trusted_ms(self.server_time_ms.load(Ordering::Relaxed)) > expires {
            log::event(
                Level::Error,
                "identity.expired",
                &[
                    ("node", Value::Text(&self.node_id)),
                    (
                        "not_after",
                        Value::Shown(&Utc::from_seconds(self.not_after)),
                    ),
                    (
                        "do",
                        Value::Text(
                            "set this host's clock if it is wrong; else bcd join --reset --yes, then bcd join",
                        ),
                    ),
                ],
            );
        }
        let hello = Hello {
            node_id: self.node_id.to_string(),
            boot_id: self.boot_id.clone(),
            protocol_versions: VERSIONS.to_vec(),
            daemon_version: env!("CARGO_PKG_VERSION").to_owned(),
            capabilities: about.capabilities,
            spec_generation: about.spec_generation,
            ..Hello::default()
        };
        Box::pin(open::open(self.gateway.endpoint(&self.tls), hello))
    }

    /// Says what was agreed, and keeps the server's time, an hour's step at a time.
    fn welcomed(&mut self, welcome: &Welcome) {
        let level = if welcome.upgrade_required {
            Level::Warn
        } else {
            Level::Info
        };
        log::event(
            level,
            if welcome.upgrade_required {
                "session.upgrade_required"
            } else {
                "session.welcome"
            },
            &[
                ("node", Value::Text(&self.node_id)),
                ("session", Value::Text(&welcome.session_id)),
                ("version", Value::Number(welcome.protocol_version.into())),
                ("gateway", Value::Shown(self.gateway.url())),
            ],
        );
        // Never past the end of our own certificate: a gateway with a mad clock must not be able
        // to make everything look expired for good.
        let end = u64::try_from(self.not_after)
            .unwrap_or(0)
            .saturating_mul(1000);
        let time = u64::try_from(welcome.server_time_ms).unwrap_or(0).min(end);
        self.server_time_ms.fetch_max(time, Ordering::Relaxed);
        if let Err(error) = self.keep_time(time) {
            log::event(
                Level::Warn,
                "identity.time_not_kept",
                &[("error", Value::Chain(&error))],
            );
        }
    }

    /// Only into the identity this node runs with: a `bcd join --reset` may have put another there.
    fn keep_time(&mut self, time_ms: u64) -> Result<(), store::StoreError> {
        let Ok(_lock) = self.store.dir().lock() else {
            return Ok(());
        };
        match self.store.load()? {
            store::State::Joined(on_disk)
                if on_disk.identity.certificate_chain == self.joined.identity.certificate_chain =>
            {
                self.store
                    .note_server_time(&mut self.joined.identity, time_ms)
                    .map(|_| ())
            }
            _ => Ok(()),
        }
    }

    /// Says why there is no session, and what to do when somebody must do something.
    fn lost(&self, error: &SessionError, wait: Duration) {
        let wait = Value::Number(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
        let mut fields = vec![("error", Value::Chain(error)), ("again_ms", wait)];
        match error.trouble() {
            machine::Trouble::Passing => log::event(Level::Warn, "session.lost", &fields),
            machine::Trouble::Refused => {
                fields.push((
                    "do",
                    Value::Text(if error.is_refusal_of_us() {
                        "ask whoever runs the control plane; to join anew: bcd join --reset --yes, then bcd join"
                    } else {
                        "check the gateway's certificate, and gateway_url and serving_ca_spki_pin in config.toml"
                    }),
                ));
                log::event(Level::Error, "session.refused", &fields);
            }
        }
    }
}

/// The trust bundle of an identity, held against the configured pin.
fn bundle(json: &str, signer: pin::Pin) -> Result<TrustBundle, String> {
    let envelope = envelope::from_json(json.as_bytes()).map_err(|error| error.to_string())?;
    let payload = envelope::verify_pinned(&envelope, Purpose::TrustBundle, &[signer])
        .map_err(|error| error.to_string())?;
    TrustBundle::decode(payload).map_err(|error| error.to_string())
}

/// Holds a session until `stop`. What comes in it is handed to `duties`; what comes out of
/// `frames` is sent while there is one.
pub async fn run<D: Duties + 'static>(
    mut node: Node,
    duties: Rc<D>,
    mut frames: rt::channel::Receiver<NodeFrame>,
    stop: impl Future,
) {
    let (orders, waiting) = rt::channel(duties::ORDERS);
    let judge = work::Judge {
        node_id: node.node_id.clone(),
        signers: node.signers.clone(),
    };
    rt::spawn(work::work(duties.clone(), judge, waiting));
    let mut terms = Terms {
        upgrade_required: false,
    };
    let mut stop = std::pin::pin!(stop);
    let mut live: Option<Live> = None;
    let mut dialling: Option<Dialling> = None;
    let mut state = State::start(clock::monotonic());
    loop {
        let woken = wait(
            &mut live,
            &mut dialling,
            &mut frames,
            state.deadline(),
            stop.as_mut(),
        )
        .await;
        // What the event was about: a session that was welcomed, or why there is none.
        let mut fresh = None;
        let mut failed = None;
        let event = match woken {
            Woken::Stop => Event::Stop,
            Woken::Due => Event::Due,
            Woken::Dialled(Ok((session, welcome))) => {
                dialling = None;
                let interval_ms = welcome.heartbeat_interval_ms;
                node.welcomed(&welcome);
                terms.upgrade_required = welcome.upgrade_required;
                let _ = orders.send(Order::Welcomed(terms)).await;
                fresh = Some(session);
                Event::Welcomed { interval_ms }
            }
            Woken::Dialled(Err(error)) => {
                dialling = None;
                let trouble = error.trouble();
                failed = Some(error);
                Event::NotWelcomed(trouble)
            }
            Woken::Answer(frame) => {
                // Without a session it is dropped: its asker asks again.
                let sent = match live.as_mut() {
                    Some(live) => live.send(&frame).await,
                    None => continue,
                };
                match sent {
                    Ok(()) => continue,
                    Err(error) => {
                        live = None;
                        let trouble = error.trouble();
                        failed = Some(error);
                        Event::Ended(trouble)
                    }
                }
            }
            Woken::Frame(frame) => match heard(&orders, terms, frame).await {
                Ok(event) => event,
                Err(error) => {
                    live = None;
                    let trouble = error.trouble();
                    failed = Some(error);
                    Event::Ended(trouble)
                }
            },
        };
        let mut action;
        (state, action) = next(state, event);
        loop {
            if let (Action::Pause(wait), Some(error)) = (action, &failed) {
                node.lost(error, wait);
            }
            let beat = match action {
                Action::Rest => None,
                Action::Dial => {
                    dialling = Some(node.dial(duties.about()));
                    None
                }
                Action::Beat(sequence) => Some(sequence),
                Action::Adopt(sequence) => {
                    if let Some(old) = std::mem::replace(&mut live, fresh.take()) {
                        rt::spawn(old.end());
                    }
                    Some(sequence)
                }
                Action::DropSilent => {
                    log::event(
                        Level::Warn,
                        "session.silent",
                        &[("node", Value::Text(&node.node_id))],
                    );
                    live = None;
                    None
                }
                Action::Pause(_) => {
                    live = None;
                    None
                }
                Action::Finish => {
                    if let Some(session) = live.take() {
                        session.end().await;
                    }
                    return;
                }
            };
            let Some((sequence, session)) = beat.zip(live.as_mut()) else {
                break;
            };
            let time_ms = i64::try_from(clock::wall_ms()).unwrap_or(i64::MAX);
            let frame = NodeFrame {
                kind: Some(NodeFrameKind::Heartbeat(Heartbeat { sequence, time_ms })),
            };
            let Err(error) = session.send(&frame).await else {
                break;
            };
            live = None;
            (state, action) = next(state, Event::Ended(error.trouble()));
            failed = Some(error);
        }
    }
}

fn next(state: State, event: Event) -> (State, Action) {
    // Without random bytes the shortest waits are taken.
    state.next(
        event,
        clock::monotonic(),
        random::below(u64::MAX).unwrap_or(0),
    )
}

/// Takes a frame: what the session itself knows, or an order for the duties.
async fn heard(
    orders: &rt::channel::Sender<Order>,
    terms: Terms,
    frame: Result<Option<GatewayFrame>, CallError>,
) -> Result<Event, SessionError> {
    let frame = frame
        .map_err(SessionError::Call)?
        .ok_or(SessionError::Closed)?;
    let order = match frame.kind {
        Some(GatewayFrameKind::Drain(drain)) => {
            log::event(
                Level::Info,
                "session.drain",
                &[
                    ("after_ms", Value::Number(drain.reconnect_after_ms.into())),
                    ("reason", Value::Text(&drain.reason)),
                ],
            );
            let after_ms = drain.reconnect_after_ms;
            return Ok(Event::Drained { after_ms });
        }
        Some(GatewayFrameKind::Spec(spec)) => Order::Spec(spec, terms),
        Some(GatewayFrameKind::Command(command)) => Order::Command(command, terms),
        Some(GatewayFrameKind::Cancel(cancel)) => Order::Cancel(cancel.id),
        Some(GatewayFrameKind::OutputRequest(request)) => Order::Output(request),
        Some(GatewayFrameKind::TrustBundle(bundle)) => Order::TrustBundle(bundle),
        Some(GatewayFrameKind::Renew(renew)) => Order::Renew(renew.within_ms),
        Some(
            GatewayFrameKind::Welcome(_)
            | GatewayFrameKind::Heartbeat(_)
            | GatewayFrameKind::Ack(_),
        )
        | None => return Ok(Event::Heard),
    };
    let _ = orders.send(order).await;
    Ok(Event::Heard)
}

/// Waits for the first of: the signal, a frame, the end of a dial, the deadline, an answer.
async fn wait(
    live: &mut Option<Live>,
    dialling: &mut Option<Dialling>,
    frames: &mut rt::channel::Receiver<NodeFrame>,
    deadline: Option<Duration>,
    stop: Pin<&mut impl Future>,
) -> Woken {
    let frame = async {
        match live {
            Some(live) => live.receiver.next().await,
            None => pending().await,
        }
    };
    let dialled = async {
        match dialling {
            Some(dialling) => dialling.await,
            None => pending().await,
        }
    };
    let due = async {
        match deadline {
            Some(at) => {
                rt::sleep_until(Instant::now() + at.saturating_sub(clock::monotonic())).await
            }
            None => pending().await,
        }
    };
    let answer = async {
        match frames.recv().await {
            Some(frame) => frame,
            None => pending().await,
        }
    };
    let session = rt::select(rt::select(frame, dialled), answer);
    match rt::select(rt::select(stop, due), session).await {
        Either::Left(Either::Left(_)) => Woken::Stop,
        Either::Left(Either::Right(())) => Woken::Due,
        Either::Right(Either::Left(Either::Left(frame))) => Woken::Frame(frame),
        Either::Right(Either::Left(Either::Right(dialled))) => Woken::Dialled(dialled),
        Either::Right(Either::Right(answer)) => Woken::Answer(answer),
    }
}
