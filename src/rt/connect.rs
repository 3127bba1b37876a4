//! From a name to a connection: look-up on a thread, then happy eyeballs (RFC 8305).
//!
//! Addresses are tried in the order of section 4 of the RFC: the resolver's order, families
//! interleaved, IPv6 first. Each attempt gets a head start of 250 ms before the next one joins in,
//! or until it fails; the first that connects wins and the rest are dropped. A literal address
//! needs no look-up. Only so many look-ups may hang at once: the C library's resolver cannot be
//! interrupted, and a dead name server must not cost a thread an attempt.
use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use super::blocking::blocking;
use super::dns;
use super::net::TcpStream;
use super::timer::{sleep, sleep_until, timeout_at};

/// RFC 8305's Connection Attempt Delay.
const HEAD_START: Duration = Duration::from_millis(250);

/// What all others get before an address that is known to be bad joins in: it would win the race
/// as often as not, being dead above TCP alone.
const LAST_RESORT: Duration = Duration::from_secs(2);

/// Look-ups that may be under way in the process.
const LOOKUPS: usize = 8;

/// How often a look-up that found no free place asks again.
const LOOKUP_RETRY: Duration = Duration::from_millis(200);

/// Addresses of one name that are tried.
const ADDRESSES: usize = 16;

static LOOKING: AtomicUsize = AtomicUsize::new(0);

/// How trying one address went.
#[derive(Debug)]
pub struct Attempt {
    /// The address.
    pub address: SocketAddr,
    /// What came of it; `None` when it was still connecting as the time was up.
    pub error: Option<io::Error>,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.error {
            Some(error) => write!(f, "{}: {error}", self.address),
            None => write!(f, "{}: no answer", self.address),
        }
    }
}

/// Why there is no connection.
#[derive(Debug)]
pub enum ConnectError {
    /// The name has no address, or the resolver failed.
    Lookup {
        /// The name.
        host: String,
        /// The resolver's word.
        source: io::Error,
    },
    /// The resolver did not answer in time.
    LookupTimedOut {
        /// The name.
        host: String,
        /// How long it was waited for.
        after: Duration,
    },
    /// Every address failed.
    Failed(Vec<Attempt>),
    /// No address had answered when the time was up.
    TimedOut {
        /// The addresses tried until then.
        tried: Vec<Attempt>,
        /// How long it was waited for.
        after: Duration,
    },
}

fn list(f: &mut fmt::Formatter<'_>, attempts: &[Attempt]) -> fmt::Result {
    for (number, attempt) in attempts.iter().enumerate() {
        write!(f, "{}{attempt}", if number == 0 { "" } else { "; " })?;
    }
    Ok(())
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectError::Lookup { host, .. } => write!(f, "the name {host} cannot be looked up"),
            ConnectError::LookupTimedOut { host, after } => {
                write!(
                    f,
                    "looking up the name {host} took longer than {}",
                    Seconds(*after)
                )
            }
            ConnectError::Failed(attempts) => {
                f.write_str("no connection (")?;
                list(f, attempts)?;
                f.write_str(")")
            }
            ConnectError::TimedOut { tried, after } => {
                write!(f, "no connection within {} (", Seconds(*after))?;
                list(f, tried)?;
                f.write_str(")")
            }
        }
    }
}

impl Error for ConnectError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            ConnectError::Lookup { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// A duration as people write it: `10 s`, `250 ms`.
pub(crate) struct Seconds(pub(crate) Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_millis();
        match (ms / 1000, ms % 1000) {
            (0, ms) => write!(f, "{ms} ms"),
            (s, 0) => write!(f, "{s} s"),
            (s, ms) => write!(f, "{s}.{} s", ms / 100),
        }
    }
}

/// The address a host part stands for by itself: `192.0.2.1`, `::1` or `[::1]`.
pub fn literal_address(host: &str) -> Option<IpAddr> {
    if let Some(inner) = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
    {
        return inner.parse::<Ipv6Addr>().ok().map(IpAddr::V6);
    }
    host.parse::<Ipv4Addr>()
        .map(IpAddr::V4)
        .or_else(|_| host.parse::<Ipv6Addr>().map(IpAddr::V6))
        .ok()
}

/// Gives the place of a look-up back, also when its thread outlives who asked.
struct Place;

impl Place {
    fn take() -> Option<Place> {
        LOOKING
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| {
                (n < LOOKUPS).then_some(n + 1)
            })
            .ok()
            .map(|_| Place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        LOOKING.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The addresses of `host`, at most 16, in the order they should be tried.
///
/// # Errors
/// [`ConnectError::Lookup`] and [`ConnectError::LookupTimedOut`].
pub async fn resolve(
    host: &str,
    port: u16,
    wait: Duration,
) -> Result<Vec<SocketAddr>, ConnectError> {
    if let Some(address) = literal_address(host) {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let deadline = Instant::now() + wait;
    let name = host.to_owned();
    let looked = timeout_at(deadline, async move {
        let place = loop {
            match Place::take() {
                Some(place) => break place,
                None => sleep(LOOKUP_RETRY).await,
            }
        };
        blocking("lookup", move || {
            let _place = place;
            let found = (name.as_str(), port)
                .to_socket_addrs()
                .map(Iterator::collect::<Vec<_>>);
            match found {
                Err(error) => match dns::addresses(&name) {
                    addresses if addresses.is_empty() => Err(error),
                    addresses => Ok(addresses
                        .into_iter()
                        .map(|ip| SocketAddr::new(ip, port))
                        .collect()),
                },
                found => found,
            }
        })
        .await
    })
    .await;
    let failed = |source| ConnectError::Lookup {
        host: host.to_owned(),
        source,
    };
    match looked {
        Err(_) => Err(ConnectError::LookupTimedOut {
            host: host.to_owned(),
            after: wait,
        }),
        Ok(Err(error)) => Err(failed(error.into())),
        Ok(Ok(Err(error))) => Err(failed(error)),
        Ok(Ok(Ok(addresses))) if addresses.is_empty() => Err(failed(io::Error::new(
            io::ErrorKind::NotFound,
            "it has no address",
        ))),
        Ok(Ok(Ok(addresses))) => Ok(interleave(addresses)),
    }
}

/// IPv6 first, then by turns, each family in the resolver's order, nothing twice.
fn interleave(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let (mut v6, mut v4): (VecDeque<_>, VecDeque<_>) =
        addresses.into_iter().partition(SocketAddr::is_ipv6);
    let mut order = Vec::new();
    while !(v6.is_empty() && v4.is_empty()) && order.len() < ADDRESSES {
        for address in [v6.pop_front(), v4.pop_front()].into_iter().flatten() {
            if !order.contains(&address) {
                order.push(address);
            }
        }
    }
    order
}

/// Connects to `host` (a name, or a literal address with or without brackets). Look-up and
/// connecting get `wait` each.
///
/// # Errors
/// [`ConnectError`]: which phase failed, and how each address went.
pub async fn connect(host: &str, port: u16, wait: Duration) -> Result<TcpStream, ConnectError> {
    let addresses = resolve(host, port, wait).await?;
    connect_addresses(&addresses, 0, wait).await
}

type Connecting = Pin<Box<dyn Future<Output = io::Result<TcpStream>>>>;

/// Connects to the first of `addresses` that answers, started one after the other. The last `bad`
/// of them are for the case that no other answers within 2 s.
///
/// # Errors
/// [`ConnectError::Failed`] when all failed, [`ConnectError::TimedOut`] at the deadline.
pub async fn connect_addresses(
    addresses: &[SocketAddr],
    bad: usize,
    wait: Duration,
) -> Result<TcpStream, ConnectError> {
    let mut waiting = addresses.iter().copied();
    let mut running: Vec<(SocketAddr, Connecting)> = Vec::new();
    let mut tried: Vec<Attempt> = Vec::new();
    let mut deadline = sleep(wait);
    let mut next = sleep_until(Instant::now());
    let mut more = true;
    poll_fn(|cx| {
        loop {
            // A failed attempt does not wait for its head start to run out.
            let start = more && (running.is_empty() || Pin::new(&mut next).poll(cx).is_ready());
            if start {
                match waiting.next() {
                    Some(address) => {
                        running.push((address, Box::pin(TcpStream::connect(address))));
                        let good = waiting.len() > bad;
                        next = sleep(if good { HEAD_START } else { LAST_RESORT });
                    }
                    None => more = false,
                }
            }
            let mut failed = false;
            let mut index = 0;
            while let Some((address, connecting)) = running.get_mut(index) {
                match connecting.as_mut().poll(cx) {
                    Poll::Ready(Ok(stream)) => return Poll::Ready(Ok(stream)),
                    Poll::Ready(Err(error)) => {
                        tried.push(Attempt {
                            address: *address,
                            error: Some(error),
                        });
                        drop(running.remove(index));
                        failed = true;
                    }
                    Poll::Pending => index += 1,
                }
            }
            if running.is_empty() && !more {
                return Poll::Ready(Err(ConnectError::Failed(std::mem::take(&mut tried))));
            }
            if failed && more {
                next = sleep_until(Instant::now());
                continue;
            }
            if start {
                continue;
            }
            break;
        }
        if Pin::new(&mut deadline).poll(cx).is_ready() {
            let mut tried = std::mem::take(&mut tried);
            let pending = running
                .iter()
                .map(|(address, _)| *address)
                .chain(waiting.clone());
            tried.extend(pending.map(|address| Attempt {
                address,
                error: None,
            }));
            return Poll::Ready(Err(ConnectError::TimedOut { tried, after: wait }));
        }
        Poll::Pending
    })
    .await
}
