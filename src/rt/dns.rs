//! Asking name servers over TCP, where the C library has found nothing.
//!
//! musl before 1.2.4 does not repeat over TCP an answer that was cut off at 512 bytes, so that a server which
//! then sends no record at all seems to know none; and it takes a server's denial of IPv6 for one of the
//! whole name. Such names are asked for once more, over TCP, each family by itself. Blocking: for a
//! look-up's thread.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]
use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::sys::random;

/// For all of it: the C library has taken its time already.
const WAIT: Duration = Duration::from_secs(3);

/// As in resolv.conf(5).
const CONFIG: &str = "/etc/resolv.conf";
const SERVERS: usize = 3;
const DOMAINS: usize = 6;
/// Bytes that are read of it.
const LONGEST: u64 = 16 << 10;

/// Addresses that are taken of an answer.
const ADDRESSES: usize = 64;

const A: u16 = 1;
const AAAA: u16 = 28;
const INTERNET: u16 = 1;

/// What resolv.conf says.
#[derive(Debug, Default, PartialEq, Eq)]
struct Config {
    servers: Vec<IpAddr>,
    domains: Vec<String>,
    ndots: usize,
}

/// The addresses of `host`; empty when nobody knows any.
pub(super) fn addresses(host: &str) -> Vec<IpAddr> {
    let mut text = String::new();
    let read = File::open(CONFIG).and_then(|file| file.take(LONGEST).read_to_string(&mut text));
    match read {
        Ok(_) => ask_all(&Config::parse(&text), host, 53),
        Err(_) => Vec::new(),
    }
}

/// Asks for the name and its completions, the first server that answers.
fn ask_all(config: &Config, host: &str, port: u16) -> Vec<IpAddr> {
    let deadline = Instant::now() + WAIT;
    for server in &config.servers {
        let server = SocketAddr::new(*server, port);
        for name in config.names(host) {
            match ask(server, &name, deadline) {
                Some(addresses) if addresses.is_empty() => {}
                Some(addresses) => return addresses,
                // Another server may do better.
                None => break,
            }
        }
    }
    Vec::new()
}

/// Both families, over a connection each: not every server takes a second question. `None`: it does not
/// answer.
fn ask(server: SocketAddr, name: &str, deadline: Instant) -> Option<Vec<IpAddr>> {
    let left = || {
        let left = deadline.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    };
    let mut addresses = Vec::new();
    for kind in [AAAA, A] {
        let mut stream = TcpStream::connect_timeout(&server, left()?).ok()?;
        let id: [u8; 2] = random::bytes().ok()?;
        let question = question(id, name, kind)?;
        stream.set_write_timeout(Some(left()?)).ok()?;
        stream.write_all(&question).ok()?;
        let mut length = [0; 2];
        stream.set_read_timeout(Some(left()?)).ok()?;
        stream.read_exact(&mut length).ok()?;
        let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
        stream.set_read_timeout(Some(left()?)).ok()?;
        stream.read_exact(&mut answer).ok()?;
        addresses.extend(read_answer(&answer, id, kind)?);
    }
    Some(addresses)
}

impl Config {
    fn parse(text: &str) -> Config {
        let mut config = Config {
            ndots: 1,
            ..Config::default()
        };
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            match words.next() {
                Some("nameserver") if config.servers.len() < SERVERS => {
                    // A zone (fe80::1%eth0) has no number here.
                    config
                        .servers
                        .extend(words.next().and_then(|word| word.parse::<IpAddr>().ok()));
                }
                // The last one counts.
                Some("search" | "domain") => {
                    config.domains = words.take(DOMAINS).map(str::to_owned).collect();
                }
                Some("options") => {
                    let mut dots =
                        words.filter_map(|word| word.strip_prefix("ndots:")?.parse().ok());
                    config.ndots = dots.next_back().unwrap_or(config.ndots).min(15);
                }
                _ => {}
            }
        }
        config
    }

    /// The names to ask for, in their order.
    fn names(&self, host: &str) -> Vec<String> {
        if let Some(whole) = host.strip_suffix('.') {
            return vec![whole.to_owned()];
        }
        let completed = self
            .domains
            .iter()
            .map(|domain| [host, ".", domain].concat());
        let itself = std::iter::once(host.to_owned());
        match host.matches('.').count() >= self.ndots {
            true => itself.chain(completed).collect(),
            false => completed.chain(itself).collect(),
        }
    }
}

/// A question with its length before it; `None`: the name fits none.
fn question(id: [u8; 2], name: &str, kind: u16) -> Option<Vec<u8>> {
    // Recursion is desired; one question.
    let mut message = vec![id[0], id[1], 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.trim_end_matches('.').split('.') {
        let length = u8::try_from(label.len())
            .ok()
            .filter(|n| (1..64).contains(n))?;
        message.push(length);
        message.extend_from_slice(label.as_bytes());
    }
    message.push(0);
    message.extend_from_slice(&kind.to_be_bytes());
    message.extend_from_slice(&INTERNET.to_be_bytes());
    let mut framed = u16::try_from(message.len())
        .ok()
        .filter(|n| *n <= 12 + 255 + 4)?
        .to_be_bytes()
        .to_vec();
    framed.append(&mut message);
    Some(framed)
}

/// A message that is read from its front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u16> {
        self.bytes(2)?
            .first_chunk()
            .copied()
            .map(u16::from_be_bytes)
    }

    /// Passes over a name: whose addresses they are, the server has looked at, down all aliases.
    fn name(&mut self) -> Option<()> {
        loop {
            match self.bytes(1)?.first()? {
                0 => return Some(()),
                length @ 1..64 => drop(self.bytes(usize::from(*length))?),
                192.. => return self.bytes(1).map(drop),
                _ => return None,
            }
        }
    }
}

/// The addresses in the answer to the question `id` for `kind`; none when the name has none, or is none.
/// `None`: it is no answer, or one that another server may give better.
pub fn read_answer(message: &[u8], id: [u8; 2], kind: u16) -> Option<Vec<IpAddr>> {
    let mut message = Reader(message);
    let own = message.bytes(2)? == id;
    let flags = message.number()?;
    let (questions, answers) = (message.number()?, message.number()?);
    message.bytes(4)?;
    // An answer, to a query, not cut off; well, or that there is no such name.
    if !own || flags & 0xfa00 != 0x8000 || !matches!(flags & 15, 0 | 3) {
        return None;
    }
    for _ in 0..questions {
        message.name()?;
        message.bytes(4)?;
    }
    let mut addresses = Vec::new();
    for _ in 0..answers {
        message.name()?;
        let (its_kind, class) = (message.number()?, message.number()?);
        message.bytes(4)?;
        let length = message.number()?;
        let data = message.bytes(usize::from(length))?;
        let address = match (
            its_kind,
            <[u8; 4]>::try_from(data),
            <[u8; 16]>::try_from(data),
        ) {
            (A, Ok(v4), _) => IpAddr::from(v4),
            (AAAA, _, Ok(v6)) => IpAddr::from(v6),
            _ => continue,
        };
        if its_kind == kind && class == INTERNET && addresses.len() < ADDRESSES {
            addresses.push(address);
        }
    }
    Some(addresses)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]
    use std::net::TcpListener;

    use super::*;

    const ID: [u8; 2] = [7, 9];

    /// An answer with an alias before its addresses.
    fn answer(flags: u16, addresses: &[IpAddr]) -> Vec<u8> {
        let count = addresses.len() as u16 + 1;
        let mut message = ID.to_vec();
        for number in [flags, 1, count, 0, 0] {
            message.extend(number.to_be_bytes());
        }
        message.extend(b"\x02gw\x04test\x00\x00\x01\x00\x01");
        message.extend(b"\xc0\x0c\x00\x05\x00\x01\x00\x00\x00\x3c\x00\x04\x01a\xc0\x0f");
        for address in addresses {
            let (kind, data) = match address {
                IpAddr::V4(v4) => (A, v4.octets().to_vec()),
                IpAddr::V6(v6) => (AAAA, v6.octets().to_vec()),
            };
            message.extend(b"\x01a\xc0\x0f");
            message.extend(kind.to_be_bytes());
            message.extend(b"\x00\x01\x00\x00\x00\x3c");
            message.extend((data.len() as u16).to_be_bytes());
            message.extend(data);
        }
        message
    }

    #[test]
    fn addresses_are_read_down_an_alias_and_nothing_that_is_cut_is() {
        let all: Vec<IpAddr> = ["192.0.2.1", "2001:db8::1", "192.0.2.2"]
            .map(|a| a.parse().unwrap())
            .into();
        let message = answer(0x8180, &all);
        assert_eq!(read_answer(&message, ID, A), Some(vec![all[0], all[2]]));
        assert_eq!(read_answer(&message, ID, AAAA), Some(vec![all[1]]));
        for end in 0..message.len() {
            assert_eq!(read_answer(&message[..end], ID, A), None, "{end} bytes");
        }
        assert_eq!(read_answer(&message, [7, 8], A), None, "another question's");
        for flags in [0x0180, 0x8380, 0x8182, 0x8185, 0x8980] {
            assert_eq!(read_answer(&answer(flags, &all), ID, A), None, "{flags:x}");
        }
        assert_eq!(read_answer(&answer(0x8183, &[]), ID, A), Some(vec![]));
        let many = vec![all[0]; 5000];
        assert_eq!(
            read_answer(&answer(0x8180, &many), ID, A).unwrap().len(),
            ADDRESSES
        );
    }

    #[test]
    fn resolv_conf_is_read_as_the_c_library_does() {
        let text = "# x\nnameserver 192.0.2.1\n nameserver ::1\nnameserver fe80::1%lo\nnameserver nonsense\n\
                    domain x.test\nsearch a.test b.test\noptions timeout:1 ndots:2\nnameserver 192.0.2.2\nnameserver 192.0.2.3\n";
        let config = Config::parse(text);
        let servers: Vec<IpAddr> = ["192.0.2.1", "::1", "192.0.2.2"]
            .map(|a| a.parse().unwrap())
            .into();
        assert_eq!((config.servers.clone(), config.ndots), (servers, 2));
        assert_eq!(config.names("gw.x"), ["gw.x.a.test", "gw.x.b.test", "gw.x"]);
        assert_eq!(
            config.names("gw.x.y"),
            ["gw.x.y", "gw.x.y.a.test", "gw.x.y.b.test"]
        );
        assert_eq!(config.names("gw."), ["gw"]);
        assert_eq!(
            Config::parse(""),
            Config {
                ndots: 1,
                ..Config::default()
            }
        );
    }

    #[test]
    fn a_name_that_fits_no_question_is_not_asked_for() {
        assert!(question(ID, "gw.example", A).is_some());
        for name in ["", "a..b", &"a".repeat(64), &"abcdefg.".repeat(40)] {
            assert_eq!(question(ID, name, A), None, "{name}");
        }
    }

    #[test]
    fn the_completion_that_exists_is_found_over_tcp() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let serving = std::thread::spawn(move || {
            let mut asked = Vec::new();
            for _ in 0..4 {
                let (mut peer, _) = listener.accept().unwrap();
                let mut length = [0; 2];
                peer.read_exact(&mut length).unwrap();
                let mut message = vec![0; usize::from(u16::from_be_bytes(length))];
                peer.read_exact(&mut message).unwrap();
                let known = message.windows(6).any(|part| part == b"second");
                asked.push((known, message[message.len() - 3]));
                let mut said = match known {
                    true => answer(0x8180, &["192.0.2.7".parse().unwrap()]),
                    false => answer(0x8183, &[]),
                };
                said[..2].copy_from_slice(&message[..2]);
                peer.write_all(&(said.len() as u16).to_be_bytes()).unwrap();
                peer.write_all(&said).unwrap();
            }
            asked
        });
        let config = Config {
            servers: vec!["127.0.0.1".parse().unwrap()],
            domains: vec!["first".to_owned(), "second".to_owned()],
            ndots: 1,
        };
        assert_eq!(
            ask_all(&config, "gw", port),
            ["192.0.2.7".parse::<IpAddr>().unwrap()]
        );
        assert_eq!(
            serving.join().unwrap(),
            [(false, 28), (false, 1), (true, 28), (true, 1)]
        );
    }
}
