//! The addresses `--gateway` and `--http` take: `host:port`, where the host is a literal address or a
//! name and the port may be 0 for one of the kernel's choice.

use std::error::Error;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

/// Where to listen, and by which names to be called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listen {
    host: String,
    port: u16,
}

/// Not `host:port`.
#[derive(Debug)]
pub struct ParseListenError;

impl fmt::Display for ParseListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "an address is host:port, [ipv6]:port for IPv6; port 0 takes a free one"
        )
    }
}

impl Error for ParseListenError {}

impl FromStr for Listen {
    type Err = ParseListenError;

    fn from_str(text: &str) -> Result<Self, ParseListenError> {
        let (host, port) = text.rsplit_once(':').ok_or(ParseListenError)?;
        let port = port.parse().map_err(|_| ParseListenError)?;
        let host = match host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
        {
            Some(inner) => match inner.parse::<IpAddr>() {
                Ok(IpAddr::V6(_)) => inner,
                _ => return Err(ParseListenError),
            },
            None => host,
        };
        let named = host
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.');
        if host.is_empty()
            || !(named || host.parse::<IpAddr>().is_ok())
            || text.matches(':').count() > 1 && !text.starts_with('[')
        {
            return Err(ParseListenError);
        }
        Ok(Self {
            host: host.to_ascii_lowercase(),
            port,
        })
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl Listen {
    /// The socket address; a name's IPv4 address is preferred.
    pub fn resolve(&self) -> io::Result<SocketAddr> {
        let all: Vec<_> = (self.host.as_str(), self.port).to_socket_addrs()?.collect();
        all.iter()
            .find(|address| address.is_ipv4())
            .or(all.first())
            .copied()
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the name has no address"))
    }

    /// How others call it: `https://host:port`, the host's own name when it listens on all addresses.
    pub fn url(&self, port: u16) -> String {
        let host = match self.is_unspecified() {
            true => host_name(),
            false => self.host.clone(),
        };
        match host.contains(':') {
            true => format!("https://[{host}]:{port}"),
            false => format!("https://{host}:{port}"),
        }
    }

    /// The names and addresses its certificate carries.
    pub fn names(&self) -> Vec<String> {
        let own = match self.is_unspecified() {
            true => host_name(),
            false => self.host.clone(),
        };
        let mut names = vec![own];
        for local in ["localhost", "127.0.0.1", "::1"] {
            if names.iter().all(|name| name != local) {
                names.push(local.to_owned());
            }
        }
        names
    }

    fn is_unspecified(&self) -> bool {
        self.host
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_unspecified())
    }
}

/// The kernel's host name; `localhost` when it is none that a certificate could carry.
fn host_name() -> String {
    let name = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .to_ascii_lowercase();
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'.';
    match !name.is_empty() && name.bytes().all(plain) {
        true => name,
        false => "localhost".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port() {
        for (text, url) in [
            ("127.0.0.1:0", "https://127.0.0.1:7"),
            ("[::1]:8443", "https://[::1]:7"),
            ("localhost:1", "https://localhost:7"),
            ("GW.example.com:1", "https://gw.example.com:7"),
        ] {
            assert_eq!(text.parse::<Listen>().unwrap().url(7), url);
        }
        for bad in [
            "",
            "localhost",
            ":1",
            "a:b",
            "a:99999",
            "::1:1",
            "[a]:1",
            "[::1]",
            "a b:1",
            "1.2.3.4:5:6",
        ] {
            assert!(bad.parse::<Listen>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_certificate_always_serves_this_host_too() {
        let names = |text: &str| text.parse::<Listen>().unwrap().names();
        assert_eq!(names("127.0.0.1:0"), ["127.0.0.1", "localhost", "::1"]);
        assert_eq!(names("gw:1"), ["gw", "localhost", "127.0.0.1", "::1"]);
        assert!(!names("0.0.0.0:1").contains(&"0.0.0.0".to_owned()));
    }
}
