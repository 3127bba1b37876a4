//! The gateway's loops: a thread each, and connections handed to the one that has the fewest.
//!
//! One acceptor and not a listener a loop: the kernel would spread by a hash of addresses, which leaves a
//! few long sessions as uneven as they fall, and would let a second control plane listen on the same port
//! without a word.

use std::cell::RefCell;
use std::io;
use std::net::{SocketAddr, TcpStream as Socket};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use bcd::rt::channel::{Receiver, Sender, channel};
use bcd::rt::{self, TcpStream};
use bcd::sys::log::{self, Level, Value};
use bcd::wire::grpc::server::{Limits, Peer, Router, serve_until};

use super::Gateway;
use super::handshakes::{TOTAL_MAX, Turn};
use super::tls::TlsConfig;

/// TLS handshake and HTTP/2 preface, each.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long a loop that ends waits for its connections to hear of it.
const FAREWELL: Duration = Duration::from_millis(500);

/// A connection that was accepted.
pub struct Accepted {
    pub socket: Socket,
    pub address: SocketAddr,
    /// Its handshake's.
    pub turn: Turn,
}

/// The loops. They end when this is dropped.
pub struct Loops {
    loops: Vec<Loop>,
    /// Where the search for the one with the fewest connections begins.
    next: usize,
    ended: Receiver<()>,
}

struct Loop {
    accepted: Sender<Accepted>,
    connections: Arc<AtomicUsize>,
}

impl Loops {
    /// Starts so many, at least one.
    ///
    /// # Errors
    /// There is no thread or no epoll instance to be had.
    pub fn start(count: usize, gateway: &Arc<Gateway>, tls: &TlsConfig) -> io::Result<Self> {
        let (alive, ended) = channel(1);
        let mut loops = Vec::new();
        for number in 0..count.max(1) {
            let (sender, accepted) = channel(TOTAL_MAX);
            let connections = Arc::new(AtomicUsize::new(0));
            loops.push(Loop {
                accepted: sender,
                connections: connections.clone(),
            });
            let (gateway, tls, alive) = (gateway.clone(), tls.clone(), alive.clone());
            let (started, starting) = channel(1);
            thread::Builder::new()
                .name(format!("gateway-{number}"))
                .spawn(move || {
                    // Gone with the thread, after all that the loop held.
                    let _alive: Sender<()> = alive;
                    let ran = rt::try_block_on(async {
                        let _ = started.try_send(Ok(()));
                        run(gateway, tls, accepted, connections).await;
                    });
                    if let Err(error) = ran {
                        let _ = started.try_send(Err(error));
                    }
                })?;
            starting
                .recv_blocking()
                .unwrap_or_else(|| Err(io::Error::other("the thread ended")))?;
        }
        Ok(Self {
            loops,
            next: 0,
            ended,
        })
    }

    /// Hands a connection to the loop that has the fewest.
    pub fn hand_over(&mut self, accepted: Accepted) {
        let turn = self.next;
        self.next = turn.wrapping_add(1);
        let count = self.loops.len();
        let chosen = (0..count)
            .filter_map(|offset| self.loops.get(turn.wrapping_add(offset) % count))
            .min_by_key(|its| its.connections.load(Ordering::Relaxed));
        if let Some(chosen) = chosen {
            chosen.connections.fetch_add(1, Ordering::Relaxed);
            // There is room for every handshake that may run at once.
            if chosen.accepted.try_send(accepted).is_err() {
                chosen.connections.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// How many connections there are.
    pub fn connections(&self) -> usize {
        let its = |one: &Loop| one.connections.load(Ordering::Relaxed);
        self.loops.iter().map(its).sum()
    }

    /// Ends all: each tells its connections, drops what is left of them, and is gone when this returns.
    pub async fn end(mut self) {
        self.loops.clear();
        while self.ended.recv().await.is_some() {}
    }
}

/// One loop: serves what it is handed until nothing more can come.
async fn run(
    gateway: Arc<Gateway>,
    tls: TlsConfig,
    mut accepted: Receiver<Accepted>,
    connections: Arc<AtomicUsize>,
) {
    let router = Rc::new(gateway.router());
    let stops: RefCell<Vec<Sender<()>>> = RefCell::default();
    while let Some(one) = accepted.recv().await {
        let (stop, stopping) = channel(1);
        {
            let mut stops = stops.borrow_mut();
            if stops.len() == stops.capacity() {
                stops.retain(|stop| !stop.is_closed());
            }
            stops.push(stop);
        }
        let (config, router) = (tls.current(), router.clone());
        let counted = Counted(connections.clone());
        rt::spawn(async move {
            let address = one.address;
            if let Err(error) = serve(one, config, router, stopping).await {
                log::event(
                    Level::Debug,
                    "gateway.connection",
                    &[
                        ("address", Value::Shown(&address)),
                        ("error", Value::Text(&error)),
                    ],
                );
            }
            drop(counted);
        });
    }
    for stop in stops.take() {
        let _ = stop.try_send(());
    }
    let gone = async {
        while connections.load(Ordering::Relaxed) > 0 {
            rt::sleep(Duration::from_millis(20)).await;
        }
    };
    let _ = rt::timeout(FAREWELL, gone).await;
}

/// Serves a connection to its end; the error is one for the log.
async fn serve(
    accepted: Accepted,
    config: Arc<rustls::ServerConfig>,
    router: Rc<Router>,
    mut stopping: Receiver<()>,
) -> Result<(), String> {
    let Accepted {
        socket,
        address,
        turn,
    } = accepted;
    let socket = TcpStream::from_std(socket).map_err(|error| bcd::cli::chain(&error))?;
    // On the heap both: what a future holds, it holds once more for each future it is handed on to, for
    // as long as the connection lasts.
    let shaken = Box::pin(rt::tls::server(socket, config, HANDSHAKE)).await;
    drop(turn);
    let stream = Box::new(shaken.map_err(|error| bcd::cli::chain(&error))?);
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

/// A connection in its loop's count, until dropped.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
