//! The gateway: the one address nodes call. It relays joins and holds sessions.
//!
//! It owns its serving leaf and knows the node-identity CA's certificate; of the JoinService it has a
//! [`Relay`], of the records a [`Sessions`]. It neither opens a token nor signs an answer: a join passes
//! through as bytes.
//!
//! Promises: TLS 1.3 with ALPN h2; a client certificate is asked for, and one that is shown must chain to
//! the node CA and be valid; everything a peer may take is bounded (handshakes at once and by address,
//! connections, streams, messages, time).

pub mod handshakes;
mod rate;
pub mod session;
pub mod tls;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bcd::proto::join_service;
use bcd::rt::{self, TcpListener, TcpStream};
use bcd::sys::log::{self, Level, Value};
use bcd::wire::grpc::server::{Limits, Peer, Router, serve_until};
use bcd::wire::grpc::{Code, Status};
use rustls::ServerConfig;

use self::handshakes::Handshakes;
use self::rate::Rate;
use self::session::{Ending, Order};
use crate::joinservice::REQUEST_MAX;
use crate::joinservice::thread::{Call, Relay};
use crate::news::News;
use crate::registry::Sessions;

/// TLS handshake and HTTP/2 preface, each.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Connections at once.
const CONNECTIONS_MAX: usize = 50_000;
/// How long sessions may take to move after a drain.
const DRAIN: Duration = Duration::from_secs(5);

/// Over how long renewals that a rotation asks for are spread, unless it says otherwise.
const RENEW_WITHIN: Duration = Duration::from_secs(3600);

/// A TLS configuration that may be replaced while connections go on.
pub type TlsConfig = Rc<RefCell<Arc<ServerConfig>>>;

/// What a gateway is told about its fleet.
pub struct Settings {
    pub trust_domain: String,
    /// `Welcome.heartbeat_interval_ms`.
    pub heartbeat: Duration,
}

/// A gateway and its live sessions.
pub struct Gateway {
    settings: Settings,
    sessions: Rc<dyn Sessions>,
    relay: Rc<dyn Relay>,
    /// Rings when a session changes what the records say.
    pub news: Rc<News>,
    /// Over how long renewals that a rotation asks for are spread.
    renew_within: Cell<Duration>,
    /// By node id: the newest session and the way to end it.
    live: RefCell<BTreeMap<String, Live>>,
    connections: RefCell<usize>,
    draining: RefCell<Vec<rt::channel::Sender<()>>>,
}

struct Live {
    session_id: String,
    orders: rt::channel::Sender<Order>,
    /// Whether it has been told to look and has not done so yet: however often that is said, the queue
    /// keeps its room for what ends the session.
    looks: Rc<Cell<bool>>,
}

impl Gateway {
    pub fn new(settings: Settings, sessions: Rc<dyn Sessions>, relay: Rc<dyn Relay>) -> Rc<Self> {
        Rc::new(Self {
            settings,
            sessions,
            relay,
            news: Rc::default(),
            renew_within: Cell::new(RENEW_WITHIN),
            live: RefCell::default(),
            connections: RefCell::default(),
            draining: RefCell::default(),
        })
    }

    /// Ends the session of a node that was deleted.
    pub fn node_deleted(&self, node_id: &str) {
        if let Some(live) = self.live.borrow().get(node_id) {
            let _ = live.orders.try_send(Order::End(Ending::Deleted));
        }
    }

    /// The records owe this node something new: its session, if it has one, looks for it.
    pub fn look(&self, node_id: &str) {
        if let Some(live) = self.live.borrow().get(node_id)
            && !live.looks.get()
            && live.orders.try_send(Order::Look).is_ok()
        {
            live.looks.set(true);
        }
        self.news.ring();
    }

    /// Hands the trust bundle in force to every session.
    pub fn trust_changed(&self) {
        for live in self.live.borrow().values() {
            let _ = live.orders.try_send(Order::Trust);
        }
    }

    /// Asks every node with a session to renew its certificate within this span; those that open one
    /// later too, while the node CA is rotated.
    pub fn renew_within(&self, span: Duration) {
        self.renew_within.set(span);
        for live in self.live.borrow().values() {
            let _ = live.orders.try_send(Order::Renew(span));
        }
    }

    /// Takes connections until `shutdown` ends; then asks all sessions to move, and gives them a few
    /// seconds.
    pub async fn serve(
        self: Rc<Self>,
        listener: TcpListener,
        tls: TlsConfig,
        shutdown: impl Future<Output = ()>,
    ) {
        let router = Rc::new(self.clone().router());
        let handshakes = Handshakes::new();
        let accepting = async {
            loop {
                match listener.accept().await {
                    Ok((stream, address)) => {
                        self.clone()
                            .take(stream, address, &tls, &router, &handshakes);
                    }
                    Err(error) => {
                        log::event(
                            Level::Error,
                            "gateway.accept",
                            &[("error", Value::Chain(&error))],
                        );
                        rt::sleep(Duration::from_secs(1)).await;
                    }
                }
            }
        };
        rt::select(shutdown, accepting).await;
        drop(listener);
        self.drain().await;
    }

    fn take(
        self: Rc<Self>,
        stream: TcpStream,
        address: SocketAddr,
        tls: &TlsConfig,
        router: &Rc<Router>,
        handshakes: &Rc<Handshakes>,
    ) {
        if *self.connections.borrow() >= CONNECTIONS_MAX {
            return;
        }
        let Some(turn) = handshakes.begin(address.ip()) else {
            log::event(
                Level::Debug,
                "gateway.handshakes",
                &[("address", Value::Shown(&address))],
            );
            return;
        };
        *self.connections.borrow_mut() += 1;
        let config = tls.borrow().clone();
        let router = router.clone();
        let (stop, mut stopping) = rt::channel(1);
        {
            let mut draining = self.draining.borrow_mut();
            draining.retain(|sender| !sender.is_closed());
            draining.push(stop);
        }
        rt::spawn(async move {
            let shaken = rt::tls::server(stream, config, HANDSHAKE).await;
            drop(turn);
            let ended = match shaken {
                Ok(stream) => {
                    let peer = Peer {
                        address: Some(address),
                        certificates: stream.peer_certificates().to_vec(),
                    };
                    let stopped = async move {
                        stopping.recv().await;
                    };
                    serve_until(stream, peer, router, Limits::default(), stopped)
                        .await
                        .map_err(|error| bcd::cli::chain(&error))
                }
                Err(error) => Err(bcd::cli::chain(&error)),
            };
            if let Err(error) = ended {
                log::event(
                    Level::Debug,
                    "gateway.connection",
                    &[
                        ("address", Value::Shown(&address)),
                        ("error", Value::Text(&error)),
                    ],
                );
            }
            *self.connections.borrow_mut() -= 1;
        });
    }

    /// What nodes call.
    pub fn router(self: Rc<Self>) -> Router {
        let mut router = Router::new();
        let rate = Rc::new(Rate::default());
        for (path, call) in [
            (join_service::JOIN.path(), Call::Join),
            (join_service::RENEW.path(), Call::Renew),
        ] {
            let (relay, news, rate) = (self.relay.clone(), self.news.clone(), rate.clone());
            router.unary_bytes(path, move |context, request| {
                let address = context.peer.address.map(|address| address.ip());
                let news = news.clone();
                let answer = match rate.admit(address, Instant::now()) {
                    Err(wait) => Err(rate::refusal(wait)),
                    Ok(()) if request.len() > REQUEST_MAX => Err(Status::new(
                        Code::InvalidArgument,
                        "malformed join request: it is over 64 KiB",
                    )),
                    Ok(()) => {
                        let address = address.map(|address| address.to_string());
                        Ok(relay.relay(call, request, address.unwrap_or_default()))
                    }
                };
                async move {
                    let answer = answer?.await;
                    news.ring();
                    answer
                }
            });
        }
        router.bidi(&session::SESSION, move |context, frames, answers| {
            session::run(self.clone(), context, frames, answers)
        });
        router
    }

    /// Asks every session to move, then every connection to end.
    async fn drain(&self) {
        for live in self.live.borrow().values() {
            let _ = live.orders.try_send(Order::End(Ending::Drain));
        }
        let moved = async {
            while !self.live.borrow().is_empty() {
                rt::sleep(Duration::from_millis(20)).await;
            }
        };
        let _ = rt::timeout(DRAIN, moved).await;
        for connection in self.draining.take() {
            let _ = connection.try_send(());
        }
    }
}
