//! The gateway: the one address nodes call. It relays joins and holds sessions.
//!
//! It owns its serving leaf and knows the node-identity CA's certificate; of the JoinService it has a
//! [`Relay`], of the records a [`Sessions`]. It neither opens a token nor signs an answer: a join passes
//! through as bytes.
//!
//! Promises: TLS 1.3 with ALPN h2; a client certificate is asked for, and one that is shown must chain to
//! the node CA and be valid; everything a peer may take is bounded (handshakes at once and by address,
//! connections, streams, messages, time). It runs one loop a core: a session stays on its loop, and all
//! loops share the place of each node (`live`), the limits and the ways to the JoinService and the
//! records. No lock is held while anything is waited for.

pub mod handshakes;
mod live;
mod loops;
mod rate;
pub mod session;
pub mod tls;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bcd::proto::join_service;
use bcd::rt::{self, TcpListener};
use bcd::sys::log::{self, Level, Value};
use bcd::wire::grpc::server::Router;
use bcd::wire::grpc::{Code, Status};

use self::handshakes::Handshakes;
use self::live::{Ending, Live};
use self::loops::{Accepted, Loops};
use self::rate::Rate;
use self::tls::TlsConfig;
use crate::joinservice::threads::Relay;
use crate::joinservice::{Call, REQUEST_MAX};
use crate::news::News;
use crate::registry::Sessions;

/// Connections at once.
const CONNECTIONS_MAX: usize = 50_000;
/// Between two looks whether a handshake has ended, while there are as many as there may be.
const FULL: Duration = Duration::from_millis(2);
/// How long sessions may take to move after a drain.
const DRAIN: Duration = Duration::from_secs(5);

/// What a gateway is told about its fleet.
pub struct Settings {
    pub trust_domain: String,
    /// `Welcome.heartbeat_interval_ms`.
    pub heartbeat: Duration,
    /// Nodes that may come back as it starts.
    pub expected: usize,
}

/// A gateway and its live sessions; shared by its loops.
pub struct Gateway {
    settings: Settings,
    sessions: Arc<dyn Sessions>,
    relay: Arc<dyn Relay>,
    /// Rings when a session changes what the records say.
    pub news: News,
    live: Live,
    /// The most sessions there were at once, or are to be expected.
    most: AtomicUsize,
    rate: Rate,
}

impl Gateway {
    pub fn new(
        settings: Settings,
        sessions: Arc<dyn Sessions>,
        relay: Arc<dyn Relay>,
    ) -> Arc<Self> {
        Arc::new(Self {
            most: AtomicUsize::new(settings.expected),
            settings,
            sessions,
            relay,
            news: News::default(),
            live: Live::default(),
            rate: Rate::default(),
        })
    }

    /// How many nodes may come back together once this gateway is gone: not those alone that have come back
    /// since it was gone before.
    fn fleet(&self) -> usize {
        let now = self.live.count();
        self.most.fetch_max(now, Ordering::Relaxed).max(now)
    }

    /// Ends the session of a node that was deleted.
    pub fn node_deleted(&self, node_id: &str) {
        self.live.end(node_id, Ending::Deleted);
    }

    /// The records owe this node something new: its session, if it has one, looks for it.
    pub fn look(&self, node_id: &str) {
        self.live.look(node_id);
        self.news.ring();
    }

    /// Hands the trust bundle in force to every session.
    pub fn trust_changed(&self) {
        self.live.trust();
    }

    /// Asks every node with a session to renew its certificate within this span; those that open one
    /// later too, while the node CA is rotated.
    pub fn renew_within(&self, span: Duration) {
        self.live.renew(span);
    }

    /// Starts `loops` threads. What is polled then takes connections until `shutdown` ends, asks all
    /// sessions to move, gives them a few seconds, and ends the threads.
    ///
    /// # Errors
    /// A thread could not be started.
    pub fn serve(
        self: &Arc<Self>,
        listener: TcpListener,
        tls: &TlsConfig,
        loops: usize,
        shutdown: impl Future<Output = ()>,
    ) -> io::Result<impl Future<Output = ()>> {
        let mut loops = Loops::start(loops, self, tls)?;
        Ok(async move {
            rt::select(shutdown, accept(&listener, &mut loops)).await;
            drop(listener);
            self.drain().await;
            loops.end().await;
        })
    }

    /// What nodes call.
    pub fn router(self: &Arc<Self>) -> Router {
        let mut router = Router::new();
        for (path, call) in [
            (join_service::JOIN.path(), Call::Join),
            (join_service::RENEW.path(), Call::Renew),
        ] {
            let gateway = self.clone();
            router.unary_bytes(path, move |context, request| {
                let address = context.peer.address.map(|address| address.ip());
                let gateway = gateway.clone();
                let answer = match gateway.rate.admit(address, Instant::now()) {
                    Err(wait) => Err(rate::refusal(wait)),
                    Ok(()) if request.len() > REQUEST_MAX => Err(Status::new(
                        Code::InvalidArgument,
                        "malformed join request: it is over 64 KiB",
                    )),
                    Ok(()) => {
                        let address = address.map(|address| address.to_string());
                        Ok(gateway
                            .relay
                            .relay(call, request, address.unwrap_or_default()))
                    }
                };
                async move {
                    let answer = answer?.await;
                    gateway.news.ring();
                    answer
                }
            });
        }
        let gateway = self.clone();
        router.bidi(&session::SESSION, move |context, frames, answers| {
            session::run(gateway.clone(), context, frames, answers)
        });
        router
    }

    /// Asks every session to move, and waits a while for it.
    async fn drain(&self) {
        self.live.drain();
        let moved = async {
            while self.live.count() > 0 {
                rt::sleep(Duration::from_millis(20)).await;
            }
        };
        let _ = rt::timeout(DRAIN, moved).await;
    }
}

/// Takes connections and hands them to the loops, until dropped.
async fn accept(listener: &TcpListener, loops: &mut Loops) {
    let handshakes = Arc::new(Handshakes::default());
    loop {
        // Whoever is turned away comes back after many seconds, and whoever waits in the kernel's queue after a
        // few: a fleet that returns is served as fast as it can be.
        while handshakes.is_full() {
            rt::sleep(FULL).await;
        }
        let (socket, address) = match listener.accept_socket().await {
            Ok(accepted) => accepted,
            Err(error) => {
                log::event(
                    Level::Error,
                    "gateway.accept",
                    &[("error", Value::Chain(&error))],
                );
                rt::sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        if loops.connections() >= CONNECTIONS_MAX {
            continue;
        }
        match handshakes.begin(address.ip()) {
            Some(turn) => loops.hand_over(Accepted {
                socket,
                address,
                turn,
            }),
            None => log::event(
                Level::Debug,
                "gateway.handshakes",
                &[("address", Value::Shown(&address))],
            ),
        }
    }
}
