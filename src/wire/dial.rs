//! From a host and a port to a connection that is ready to speak.
use std::cell::{Cell, RefCell};
use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use super::hop::{HopCause, HopError};
use super::phase::Phase;
use super::websocket::{self, Way};
use super::{proxy, url};
use crate::rt::{self, ConnectError, Stream, tls::TlsError};

/// How TLS is spoken to a server, and the name its certificate must be for.
pub type TlsTarget = (Arc<ClientConfig>, ServerName<'static>);

/// A way to a server that is made above this floor, in the place of this host's network, its proxies
/// and its look-ups: a simulation's, whose connections have faults.
pub trait Line: fmt::Debug {
    /// Connects, within `wait`.
    fn open(&self, wait: Duration) -> Opening;
}

/// A connection on its way.
pub type Opening = Pin<Box<dyn Future<Output = Result<Stream, ConnectError>>>>;

/// Why there is no connection.
pub(super) enum DialError {
    Connect(ConnectError),
    Hop(Box<HopError>),
    Tls(TlsError),
}

impl DialError {
    pub(super) fn phase(&self) -> Phase {
        match self {
            DialError::Connect(
                ConnectError::Lookup { .. } | ConnectError::LookupTimedOut { .. },
            ) => Phase::Lookup,
            DialError::Connect(_) => Phase::Connect,
            DialError::Hop(error) => error.phase(),
            DialError::Tls(_) => Phase::Tls,
        }
    }
}

/// Which addresses of a name were of no use lately. They are tried last, so that one dead server
/// behind a name with several addresses does not hold its clients.
#[derive(Default)]
pub struct Tried {
    /// Where the last connection went.
    last: Cell<Option<SocketAddr>>,
    /// The one that failed last is last.
    bad: RefCell<Vec<SocketAddr>>,
}

/// Bad addresses that are remembered; as many as of a name are tried.
const BAD: usize = 16;

impl Tried {
    /// Where the last connection went.
    pub fn last(&self) -> Option<SocketAddr> {
        self.last.get()
    }

    /// What a connection to `address` was for has failed, or will soon.
    pub fn failed(&self, address: Option<SocketAddr>) {
        if let Some(address) = address {
            let mut bad = self.bad.borrow_mut();
            bad.retain(|other| *other != address);
            bad.push(address);
            let over = bad.len().saturating_sub(BAD);
            bad.drain(..over);
        }
    }

    /// What a connection to `address` was for has come about.
    pub fn served(&self, address: Option<SocketAddr>) {
        if let Some(address) = address {
            self.bad.borrow_mut().retain(|other| *other != address);
        }
    }

    /// The good ones as they were, then the bad ones, and how many of these there are.
    fn order(&self, addresses: &mut [SocketAddr]) -> usize {
        let bad = self.bad.borrow();
        let place = |address: &SocketAddr| bad.iter().position(|other| other == address);
        addresses.sort_by_key(|address| place(address).map_or(0, |place| place + 1));
        addresses.iter().filter(|a| place(a).is_some()).count()
    }
}

/// Looks `host` up and connects, within `wait` each.
async fn tcp(
    host: &str,
    port: u16,
    wait: Duration,
    tried: &Tried,
) -> Result<rt::TcpStream, ConnectError> {
    tried.last.set(None);
    let mut addresses = rt::resolve(host, port, wait).await?;
    let bad = tried.order(&mut addresses);
    let tcp = rt::connect_addresses(&addresses, bad, wait).await?;
    tried.last.set(tcp.peer_addr().ok());
    Ok(tcp)
}

/// Connects to `host`, within `wait` for each step: through the proxy of the environment, if TLS is to
/// be spoken with it and there is one for it.
pub(super) async fn connect(
    host: &str,
    port: u16,
    tls: bool,
    wait: Duration,
    tried: &Tried,
) -> Result<Stream, DialError> {
    let Some(proxy) = proxy::before(host, port).filter(|_| tls) else {
        let tcp = tcp(host, port, wait, tried).await;
        return tcp.map(Stream::Plain).map_err(DialError::Connect);
    };
    let failed = |error| DialError::Hop(Box::new(error));
    let to = url::full_authority(host, port);
    let stream = tcp(&proxy.host, proxy.port, wait, tried)
        .await
        .map_err(|error| failed(proxy.failed(&to, HopCause::Connect(error))))?;
    // The proxy looks the name up and connects meanwhile.
    proxy
        .open(Stream::Plain(stream), host, port, wait.saturating_mul(2))
        .await
        .map_err(failed)
}

/// Connects to what stands behind a WebSocket.
pub(super) async fn through(
    way: &Way,
    wait: Duration,
    handshake: Duration,
    tried: &Tried,
) -> Result<Stream, DialError> {
    let url = &way.url;
    let failed = |cause| DialError::Hop(Box::new(websocket::failed(url, cause)));
    let stream = connect(&url.host, url.port, way.tls.is_some(), wait, tried)
        .await
        .map_err(|error| match error {
            DialError::Connect(error) => failed(HopCause::Connect(error)),
            other => other,
        })?;
    let stream =
        secure(stream, way.tls.as_ref(), handshake)
            .await
            .map_err(|error| match error {
                DialError::Tls(error) => failed(HopCause::Tls(error)),
                other => other,
            })?;
    websocket::open(stream, url, wait)
        .await
        .map_err(|error| DialError::Hop(Box::new(error)))
}

/// As [`connect`], to any address, and the TLS handshake, if there is to be one.
pub(super) async fn dial(
    host: &str,
    port: u16,
    tls: Option<&TlsTarget>,
    wait: Duration,
    handshake: Duration,
) -> Result<Stream, DialError> {
    let stream = connect(host, port, tls.is_some(), wait, &Tried::default()).await?;
    secure(stream, tls, handshake).await
}

/// The TLS handshake, if there is to be one.
pub(super) async fn secure(
    stream: Stream,
    tls: Option<&TlsTarget>,
    handshake: Duration,
) -> Result<Stream, DialError> {
    let Some((config, name)) = tls else {
        return Ok(stream);
    };
    let tls = rt::tls::client(stream, config.clone(), name.clone(), handshake)
        .await
        .map_err(DialError::Tls)?;
    Ok(Stream::Tls(Box::new(tls)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(names: &[&str]) -> Vec<SocketAddr> {
        let parse = |name: &&str| format!("{name}:443").parse().ok();
        names.iter().filter_map(parse).collect()
    }

    #[test]
    fn an_address_that_failed_is_tried_last_until_it_serves_again() {
        let tried = Tried::default();
        let all = ["10.0.0.1", "10.0.0.2", "10.0.0.3"];
        let order = |bad| {
            let mut list = addresses(&all);
            assert_eq!(tried.order(&mut list), bad);
            list
        };
        tried.failed(None);
        assert_eq!(order(0), addresses(&all));
        for (name, outcome, expected) in [
            ("10.0.0.1", false, ["10.0.0.2", "10.0.0.3", "10.0.0.1"]),
            ("10.0.0.2", false, ["10.0.0.3", "10.0.0.1", "10.0.0.2"]),
            ("10.0.0.1", false, ["10.0.0.3", "10.0.0.2", "10.0.0.1"]),
            ("10.0.0.2", true, ["10.0.0.2", "10.0.0.3", "10.0.0.1"]),
            ("10.0.0.1", true, ["10.0.0.1", "10.0.0.2", "10.0.0.3"]),
        ] {
            let address = addresses(&[name]).pop();
            match outcome {
                true => tried.served(address),
                false => tried.failed(address),
            }
            let bad = tried.bad.borrow().len();
            assert_eq!(order(bad), addresses(&expected));
        }
    }

    #[test]
    fn a_name_whose_addresses_change_for_ever_fills_no_memory() {
        let tried = Tried::default();
        for port in 1..1000 {
            tried.failed(Some(SocketAddr::from(([10, 0, 0, 1], port))));
        }
        assert_eq!(tried.bad.borrow().len(), BAD);
    }
}
