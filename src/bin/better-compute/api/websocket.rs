//! The way to the gateway through a WebSocket (docs/protocol.md 9): `/v1/session` on the HTTPS listener.
//!
//! It passes bytes on and understands none of them. What runs inside is TLS between node and gateway, so this
//! end of it is as much a stranger as a proxy on the way; and the gateway takes the connection as any other,
//! with this process as its address.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use bcd::rt::tls::TlsStream;
use bcd::rt::{self, TcpStream};
use bcd::sys::log::{self, Level, Value};
use bcd::wire::websocket::WebSocket;
use tokio::io::AsyncWriteExt;

/// Open at once.
const OPEN_MAX: usize = 4096;
/// For the gateway, on this host, to take a connection; and for a node to take the last bytes.
const WAIT: Duration = Duration::from_secs(5);
/// How long a node may leave bytes unacknowledged.
const UNACKNOWLEDGED: Duration = Duration::from_secs(60);

/// The connections that pass through.
pub struct Bridge {
    gateway: SocketAddr,
    open: Cell<usize>,
}

impl Bridge {
    /// To the gateway that listens there.
    pub fn new(mut gateway: SocketAddr) -> Self {
        if gateway.ip().is_unspecified() {
            gateway.set_ip(match gateway.ip() {
                IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            });
        }
        let open = Cell::new(0);
        Self { gateway, open }
    }

    /// Whether there is room for another one.
    pub fn has_room(&self) -> bool {
        self.open.get() < OPEN_MAX
    }

    /// Passes bytes between a node and the gateway until one of them ends.
    pub async fn pass(
        self: Rc<Self>,
        stream: TlsStream<TcpStream>,
        ahead: Vec<u8>,
        address: SocketAddr,
    ) {
        let _one = One::of(&self);
        let _ = stream.io().set_unacknowledged_limit(UNACKNOWLEDGED);
        let mut node = WebSocket::server(stream, ahead);
        let connected = match rt::timeout(WAIT, TcpStream::connect(self.gateway)).await {
            Ok(connected) => connected.map_err(|error| error.to_string()),
            Err(_) => Err("it took too long".to_owned()),
        };
        let ended = match connected {
            Ok(mut gateway) => {
                let ended = both(&mut node, &mut gateway).await;
                let _ = gateway.shutdown().await;
                ended
            }
            Err(error) => Err(format!("no connection to the gateway: {error}")),
        };
        let _ = rt::timeout(WAIT, node.shutdown()).await;
        if let Err(error) = ended {
            let fields = [
                ("address", Value::Shown(&address)),
                ("error", Value::Text(&error)),
            ];
            log::event(Level::Debug, "api.websocket", &fields);
        }
    }
}

/// Bytes both ways, until one side ends.
async fn both(
    node: &mut WebSocket<TlsStream<TcpStream>>,
    gateway: &mut TcpStream,
) -> Result<(), String> {
    let (mut from_node, mut to_node) = tokio::io::split(node);
    let (mut from_gateway, mut to_gateway) = tokio::io::split(gateway);
    let up = tokio::io::copy(&mut from_node, &mut to_gateway);
    let down = tokio::io::copy(&mut from_gateway, &mut to_node);
    let (rt::Either::Left(ended) | rt::Either::Right(ended)) = rt::select(up, down).await;
    ended.map(drop).map_err(|error| error.to_string())
}

/// One that is open, until dropped.
struct One(Rc<Bridge>);

impl One {
    fn of(bridge: &Rc<Bridge>) -> Self {
        bridge.open.set(bridge.open.get() + 1);
        Self(bridge.clone())
    }
}

impl Drop for One {
    fn drop(&mut self) {
        self.0.open.set(self.0.open.get().saturating_sub(1));
    }
}
