//! The session with the gateway (docs/protocol.md 6): opened, kept alive, opened again, for as
//! long as the daemon runs.
//!
//! `machine` decides, from what happened and when; `open` dials; `answers` says what this version
//! answers to specs and commands; [`run`] is the edge that waits for sockets, one timer and the
//! signal, and does what the machine says. While a session is healthy nothing wakes the process
//! but heartbeats and frames, and nothing is written to the disk.
//!
//! It refuses to end by itself: a node that is turned away says so, and asks again slowly.
use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;

use self::answers::Held;
use self::machine::{Action, Event, State};
use self::open::{Live, SessionError, VERSIONS};
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

mod answers;
mod machine;
mod open;

/// What to do when this node's identity is at fault.
const WAY_BACK: &str = "bcd join --reset --yes, then bcd join";

/// A node that has joined, and its way to the gateway.
pub struct Node {
    joined: Joined,
    store: Store,
    gateway: Gateway,
    tls: Arc<ClientConfig>,
    held: Held,
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
        let held = Held {
            node_id: identity.node_id.clone(),
            signers,
            generation: 0,
        };
        let boot_id = clock::boot_id().unwrap_or_default();
        Ok(Self {
            joined,
            store,
            gateway,
            tls,
            held,
            server_time_ms,
            not_after,
            boot_id,
        })
    }

    fn dial(&self) -> Dialling {
        let expires = u64::try_from(self.not_after)
            .unwrap_or(0)
            .saturating_mul(1000);
        if clock::trusted_ms(self.server_time_ms.load(Ordering::Relaxed)) > expires {
            log::event(
                Level::Error,
                "identity.expired",
                &[
                    ("node", Value::Text(&self.held.node_id)),
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
            node_id: self.held.node_id.clone(),
            boot_id: self.boot_id.clone(),
            protocol_versions: VERSIONS.to_vec(),
            daemon_version: env!("CARGO_PKG_VERSION").to_owned(),
            spec_generation: self.held.generation,
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
                ("node", Value::Text(&self.held.node_id)),
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

    /// What a frame asks for: the machine's event, and frames to answer with.
    fn take(&mut self, frame: GatewayFrame) -> (Event, Vec<NodeFrame>) {
        match frame.kind {
            Some(GatewayFrameKind::Drain(drain)) => {
                log::event(
                    Level::Info,
                    "session.drain",
                    &[
                        ("after_ms", Value::Number(drain.reconnect_after_ms.into())),
                        ("reason", Value::Text(&drain.reason)),
                    ],
                );
                (
                    Event::Drained {
                        after_ms: drain.reconnect_after_ms,
                    },
                    Vec::new(),
                )
            }
            Some(GatewayFrameKind::Spec(spec)) => match answers::spec(&spec, &mut self.held) {
                Ok(frames) => {
                    let sections = u64::try_from(frames.len()).unwrap_or(0);
                    log::event(
                        Level::Info,
                        "spec.unsupported",
                        &[
                            ("generation", Value::Number(self.held.generation)),
                            ("sections", Value::Number(sections)),
                        ],
                    );
                    (Event::Heard, frames)
                }
                Err(error) => {
                    log::event(
                        Level::Warn,
                        "spec.dropped",
                        &[("error", Value::Chain(&error))],
                    );
                    (Event::Heard, Vec::new())
                }
            },
            Some(GatewayFrameKind::Command(command)) => {
                log::event(
                    Level::Info,
                    "command.unsupported",
                    &[
                        ("command", Value::Text(&command.id)),
                        ("kind", Value::Text(&command.kind)),
                    ],
                );
                (Event::Heard, vec![answers::command(&command)])
            }
            _ => (Event::Heard, Vec::new()),
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

/// Holds a session until `stop`.
pub async fn run(mut node: Node, stop: impl Future) {
    let mut stop = std::pin::pin!(stop);
    let mut live: Option<Live> = None;
    let mut dialling: Option<Dialling> = None;
    let mut state = State::start(clock::monotonic());
    loop {
        let woken = wait(&mut live, &mut dialling, state.deadline(), stop.as_mut()).await;
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
                fresh = Some(session);
                Event::Welcomed { interval_ms }
            }
            Woken::Dialled(Err(error)) => {
                dialling = None;
                let trouble = error.trouble();
                failed = Some(error);
                Event::NotWelcomed(trouble)
            }
            Woken::Frame(frame) => match heard(&mut node, live.as_mut(), frame).await {
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
                    dialling = Some(node.dial());
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
                        &[("node", Value::Text(&node.held.node_id))],
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

/// Takes a frame, and sends what it is answered with.
async fn heard(
    node: &mut Node,
    live: Option<&mut Live>,
    frame: Result<Option<GatewayFrame>, CallError>,
) -> Result<Event, SessionError> {
    let frame = frame
        .map_err(SessionError::Call)?
        .ok_or(SessionError::Closed)?;
    let (event, answers) = node.take(frame);
    if let Some(live) = live {
        for answer in &answers {
            live.send(answer).await?;
        }
    }
    Ok(event)
}

/// Waits for the first of: the signal, a frame, the end of a dial, the deadline.
async fn wait(
    live: &mut Option<Live>,
    dialling: &mut Option<Dialling>,
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
    match rt::select(rt::select(stop, due), rt::select(frame, dialled)).await {
        Either::Left(Either::Left(_)) => Woken::Stop,
        Either::Left(Either::Right(())) => Woken::Due,
        Either::Right(Either::Left(frame)) => Woken::Frame(frame),
        Either::Right(Either::Right(dialled)) => Woken::Dialled(dialled),
    }
}
