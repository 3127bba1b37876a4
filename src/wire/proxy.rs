//! The way through a forward proxy: `HTTPS_PROXY`, `NO_PROXY` and CONNECT.
//!
//! [`from_environment`] reads them once, at the start; every connection of [`super::dial`] that is to
//! speak TLS goes by them. The proxy looks the server's name up. A user name and password are sent as
//! Basic, wiped from the environment and from memory, and are in no error.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]
use std::error::Error;
use std::fmt;
use std::net::IpAddr;
use std::sync::OnceLock;
use std::time::Duration;

use zeroize::Zeroizing;

use super::base64;
use super::hop::{self, Credentials, Hop, HopCause, HopError};
use super::url;
use crate::rt::{Stream, literal_address};
use crate::sys::environment;

/// Bytes of a proxy's address with its credentials.
const LONGEST: usize = 4096;

/// Entries of `NO_PROXY`. What is beyond is not looked at.
const EXCEPTIONS: usize = 1024;

static PROXIES: OnceLock<Proxies> = OnceLock::new();

/// A proxy.
pub struct Proxy {
    /// A name or an address; IPv6 without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// `Basic …`, as it is sent.
    authorization: Option<Zeroizing<String>>,
}

/// Which proxy, and what is reached without it.
#[derive(Default)]
pub struct Proxies {
    proxy: Option<Proxy>,
    exceptions: Vec<Exception>,
}

/// Why `HTTPS_PROXY` names no proxy for us. Never holds any of its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyError {
    TooLong,
    NotText,
    /// TLS to the proxy.
    Https,
    Scheme,
    Host,
    Port,
    NoPort,
    Path,
    Escape,
    Credentials,
}

/// An entry of `NO_PROXY`.
struct Exception {
    what: What,
    port: Option<u16>,
}

enum What {
    Everything,
    /// This name, and the names below it.
    Domain(String),
    /// The names below this one.
    Below(String),
    /// Addresses whose first bits are these.
    Network(IpAddr, u32),
}

/// Reads `HTTPS_PROXY`, else `https_proxy`, and `NO_PROXY`, else `no_proxy`; an empty one counts as
/// none. An address with credentials is wiped from the environment.
///
/// Call it before any thread is started.
///
/// # Errors
/// [`ProxyError`], with the variable's name.
pub fn from_environment() -> Result<(), (&'static str, ProxyError)> {
    let mut proxies = Proxies::default();
    let no_proxy = ["NO_PROXY", "no_proxy"].into_iter().find_map(set);
    for name in ["HTTPS_PROXY", "https_proxy"] {
        let Some(value) = set(name) else { continue };
        if value.contains(&b'@') {
            // What is given is dropped as it stands: it has been read already.
            let taken = environment::take_secret(name).map(environment::into_bytes);
            drop(taken.map(Zeroizing::new));
        }
        if proxies.proxy.is_none() {
            let text = std::str::from_utf8(&value).map_err(|_| (name, ProxyError::NotText))?;
            let exceptions = no_proxy.as_ref().map(|list| String::from_utf8_lossy(list));
            proxies = Proxies::parse(text, exceptions.as_deref().unwrap_or_default())
                .map_err(|error| (name, error))?;
        }
    }
    let _ = PROXIES.set(proxies);
    Ok(())
}

fn set(name: &'static str) -> Option<Zeroizing<Vec<u8>>> {
    let value = Zeroizing::new(environment::into_bytes(std::env::var_os(name)?));
    (!value.trim_ascii().is_empty()).then_some(value)
}

/// The proxy through which a TLS server is reached; `None`: directly.
pub fn before(host: &str, port: u16) -> Option<&'static Proxy> {
    PROXIES.get()?.before(host, port)
}

impl Proxies {
    /// Reads the two variables' texts.
    ///
    /// # Errors
    /// [`ProxyError`]. An entry of `no_proxy` that is none of the forms excepts nothing.
    pub fn parse(proxy: &str, no_proxy: &str) -> Result<Proxies, ProxyError> {
        let entries = no_proxy.split([',', ' ', '\t']);
        Ok(Proxies {
            proxy: Some(Proxy::parse(proxy)?),
            exceptions: entries.filter_map(exception).take(EXCEPTIONS).collect(),
        })
    }

    /// The proxy through which this server is reached. This host's own addresses never are.
    pub fn before(&self, host: &str, port: u16) -> Option<&Proxy> {
        let proxy = self.proxy.as_ref()?;
        let name = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        let address = literal_address(&name).map(|address| address.to_canonical());
        let own = name == "localhost" || address.is_some_and(|address| address.is_loopback());
        let direct = own
            || self.exceptions.iter().any(|exception| {
                exception.port.is_none_or(|only| only == port) && exception.what.has(&name, address)
            });
        (!direct).then_some(proxy)
    }
}

impl What {
    fn has(&self, name: &str, address: Option<IpAddr>) -> bool {
        let below = |domain: &str| {
            let rest = name.strip_suffix(domain);
            address.is_none() && rest.is_some_and(|rest| rest.ends_with('.'))
        };
        match self {
            What::Everything => true,
            What::Domain(domain) => name == domain || below(domain),
            What::Below(domain) => below(domain),
            What::Network(network, bits) => match (network, address) {
                (IpAddr::V4(network), Some(IpAddr::V4(address))) => {
                    let differ = network.to_bits() ^ address.to_bits();
                    differ.leading_zeros() >= *bits
                }
                (IpAddr::V6(network), Some(IpAddr::V6(address))) => {
                    let differ = network.to_bits() ^ address.to_bits();
                    differ.leading_zeros() >= *bits
                }
                _ => false,
            },
        }
    }
}

/// `*`, `host`, `.suffix`, `*.suffix`, an address, a network, each but the last with `:port` too.
fn exception(entry: &str) -> Option<Exception> {
    let anywhere = |what| Some(Exception { what, port: None });
    if let Some((network, bits)) = entry.split_once('/') {
        let network = literal_address(network)?;
        let most = if network.is_ipv4() { 32 } else { 128 };
        let bits = bits.parse::<u32>().ok().filter(|bits| *bits <= most)?;
        return anywhere(What::Network(network, bits));
    }
    if let Some(address) = literal_address(entry) {
        return anywhere(single(address));
    }
    let (host, port) = match entry.rsplit_once(':') {
        Some((host, port)) => (host, Some(url::parse_port(port)?)),
        None => (entry, None),
    };
    let what = if host == "*" {
        What::Everything
    } else if let Some(address) = literal_address(host) {
        single(address)
    } else {
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        let suffix = host.strip_prefix("*.").or_else(|| host.strip_prefix('.'));
        let named = suffix.unwrap_or(&host);
        if !url::is_host(named) {
            return None;
        }
        match suffix {
            Some(suffix) => What::Below(suffix.to_owned()),
            None => What::Domain(host),
        }
    };
    Some(Exception { what, port })
}

fn single(address: IpAddr) -> What {
    let address = address.to_canonical();
    What::Network(address, if address.is_ipv4() { 32 } else { 128 })
}

impl Proxy {
    /// `http://USER:PASSWORD@HOST:PORT`, of which scheme and credentials may be left out.
    fn parse(text: &str) -> Result<Proxy, ProxyError> {
        let text = text.trim_ascii();
        if text.len() > LONGEST {
            return Err(ProxyError::TooLong);
        }
        let rest = match text.split_once("://") {
            None => text,
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => rest,
            Some((scheme, _)) if scheme.eq_ignore_ascii_case("https") => {
                return Err(ProxyError::Https);
            }
            Some(_) => return Err(ProxyError::Scheme),
        };
        // A password may hold what separates the parts of a URL.
        let (credentials, rest) = match rest.rsplit_once('@') {
            Some((credentials, rest)) => (Some(credentials), rest),
            None => (None, rest),
        };
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        if authority.contains(['/', '?', '#']) {
            return Err(ProxyError::Path);
        }
        let (host, port) = url::split_authority(authority).map_err(|_| ProxyError::Host)?;
        let port = port.filter(|port| !port.is_empty());
        let port = url::parse_port(port.ok_or(ProxyError::NoPort)?).ok_or(ProxyError::Port)?;
        let authorization = credentials
            .filter(|credentials| !credentials.is_empty())
            .map(basic)
            .transpose()?;
        Ok(Proxy {
            host,
            port,
            authorization,
        })
    }

    /// Host and port, for messages.
    pub fn name(&self) -> String {
        url::full_authority(&self.host, self.port)
    }

    /// Asks the proxy at the other end of `stream` to connect it to `host` and `port`.
    ///
    /// # Errors
    /// It does not, within `wait`.
    pub async fn open(
        &self,
        stream: Stream,
        host: &str,
        port: u16,
        wait: Duration,
    ) -> Result<Stream, HopError> {
        let to = url::full_authority(host, port);
        let mut head = Zeroizing::new(Vec::with_capacity(1024 + LONGEST));
        for part in ["CONNECT ", &to, " HTTP/1.1\r\nHost: ", &to, "\r\n"] {
            head.extend_from_slice(part.as_bytes());
        }
        head.extend_from_slice(
            concat!("User-Agent: bcd/", env!("CARGO_PKG_VERSION"), "\r\n").as_bytes(),
        );
        if let Some(authorization) = &self.authorization {
            for part in ["Proxy-Authorization: ", authorization, "\r\n"] {
                head.extend_from_slice(part.as_bytes());
            }
        }
        head.extend_from_slice(b"\r\n");
        let failed = |cause| self.failed(&to, cause);
        let answer = hop::ask(stream, &head, wait).await.map_err(failed)?;
        match answer.status {
            200..=299 => {
                let (stream, ahead) = answer.into_parts();
                // Whoever speaks TLS waits for the client to begin.
                match ahead.is_empty() {
                    true => Ok(stream),
                    false => Err(failed(HopCause::Malformed("more follows its answer"))),
                }
            }
            // Some say 401 of credentials that they do not take.
            status @ (401 | 407) => {
                let basic = status == 401 || answer.header_lists("proxy-authenticate", "basic");
                let how = match (basic, &self.authorization) {
                    (false, _) => Credentials::NotBasic,
                    (true, None) => Credentials::None,
                    (true, Some(_)) => Credentials::Refused,
                };
                Err(failed(HopCause::Credentials(how, status)))
            }
            status => Err(failed(HopCause::Status(status))),
        }
    }

    pub(super) fn failed(&self, to: &str, cause: HopCause) -> HopError {
        HopError {
            hop: Hop::Proxy,
            at: self.name(),
            to: to.to_owned(),
            cause,
        }
    }
}

/// The header's value for `USER:PASSWORD`, percent-encoded (RFC 7617).
fn basic(credentials: &str) -> Result<Zeroizing<String>, ProxyError> {
    let mut plain = Zeroizing::new(Vec::with_capacity(credentials.len() + 1));
    let mut bytes = credentials.bytes();
    while let Some(byte) = bytes.next() {
        let byte = match byte {
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                match (digit(bytes.next()), digit(bytes.next())) {
                    (Some(high), Some(low)) => {
                        u8::try_from(high << 4 | low).map_err(|_| ProxyError::Escape)?
                    }
                    _ => return Err(ProxyError::Escape),
                }
            }
            byte => byte,
        };
        if byte.is_ascii_control() {
            return Err(ProxyError::Credentials);
        }
        plain.push(byte);
    }
    if !credentials.contains(':') {
        plain.push(b':');
    }
    let encoded = Zeroizing::new(base64::encode(&plain));
    let mut value = Zeroizing::new(String::with_capacity(6 + encoded.len()));
    value.push_str("Basic ");
    value.push_str(&encoded);
    Ok(value)
}

impl fmt::Display for ProxyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ProxyError::TooLong => "it is longer than 4096 bytes",
            ProxyError::NotText => "it is not UTF-8",
            ProxyError::Https => {
                "TLS to the proxy itself (https://) is not spoken; the proxy sees names and no contents either way"
            }
            ProxyError::Scheme => "its scheme is not http",
            ProxyError::Host => {
                "its host is neither a name, an IPv4 address nor an IPv6 address in brackets"
            }
            ProxyError::Port => "its port is not a number from 1 to 65535",
            ProxyError::NoPort => "it names no port",
            ProxyError::Path => "it holds a path, or a user name without @ behind it",
            ProxyError::Escape => {
                "a % in its user name or password begins no escape; a % itself is written %25"
            }
            ProxyError::Credentials => "its user name or password holds a control character",
        })
    }
}

impl Error for ProxyError {}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::rt;

    fn sent(proxy: &str) -> Option<String> {
        let proxy = Proxy::parse(proxy).unwrap();
        let value = proxy.authorization?;
        let decoded = base64::decode(value.strip_prefix("Basic ").unwrap()).unwrap();
        Some(String::from_utf8(decoded).unwrap())
    }

    #[test]
    fn a_proxy_is_read_with_and_without_credentials() {
        for (text, name, credentials) in [
            ("http://proxy.example:3128", "proxy.example:3128", None),
            ("HTTP://Proxy.Example:3128/", "proxy.example:3128", None),
            ("proxy:8080", "proxy:8080", None),
            (" http://192.0.2.1:8080\n", "192.0.2.1:8080", None),
            ("http://[2001:db8::1]:8080", "[2001:db8::1]:8080", None),
            ("http://u:p@proxy:1", "proxy:1", Some("u:p")),
            ("u@proxy:1", "proxy:1", Some("u:")),
            ("http://@proxy:1", "proxy:1", None),
            ("http://a%40b:p%3a%25@proxy:1", "proxy:1", Some("a@b:p:%")),
            (
                "http://u:p@ss/w?r#d@proxy:1",
                "proxy:1",
                Some("u:p@ss/w?r#d"),
            ),
            ("http://ü:ö@proxy:1", "proxy:1", Some("ü:ö")),
        ] {
            assert_eq!(Proxy::parse(text).unwrap().name(), name, "{text}");
            assert_eq!(sent(text).as_deref(), credentials, "{text}");
        }
    }

    #[test]
    fn what_is_no_proxy_is_refused_without_being_quoted() {
        for (text, error) in [
            ("https://secret:word@proxy:443", ProxyError::Https),
            ("socks5://secret:word@proxy:1080", ProxyError::Scheme),
            ("http://secret:word@", ProxyError::Host),
            ("http://secret:word@proxy", ProxyError::NoPort),
            ("http://secret:word@proxy:", ProxyError::NoPort),
            ("http://secret:word@proxy:0", ProxyError::Port),
            ("http://secret:word@proxy:99999", ProxyError::Port),
            ("http://secret:word@-proxy:1", ProxyError::Host),
            ("http://secret:word@[::1:1", ProxyError::Host),
            ("http://secret:word@proxy:1/path", ProxyError::Path),
            ("http://secret:wo%rd@proxy:1", ProxyError::Escape),
            ("http://secret:word%2@proxy:1", ProxyError::Escape),
            ("http://secret:word%0a@proxy:1", ProxyError::Credentials),
            ("", ProxyError::Host),
        ] {
            let found = Proxy::parse(text).err();
            assert_eq!(found, Some(error), "{text}");
            let said = error.to_string();
            assert!(
                !said.contains("secret") && !said.contains("word:"),
                "{said}"
            );
        }
        let long = format!("http://{}@proxy:1", "a".repeat(LONGEST));
        assert_eq!(Proxy::parse(&long).err(), Some(ProxyError::TooLong));
    }

    fn direct(no_proxy: &str, host: &str, port: u16) -> bool {
        let proxies = Proxies::parse("proxy:3128", no_proxy).unwrap();
        proxies.before(host, port).is_none()
    }

    #[test]
    fn no_proxy_excepts_names_suffixes_addresses_networks_and_ports() {
        for (list, host, port, excepted) in [
            ("", "gw.example.com", 443, false),
            ("*", "gw.example.com", 443, true),
            ("example.com", "example.com", 443, true),
            ("example.com", "gw.EXAMPLE.com.", 443, true),
            ("example.com", "badexample.com", 443, false),
            (".example.com", "gw.example.com", 443, true),
            (".example.com", "example.com", 443, false),
            ("*.example.com", "gw.example.com", 443, true),
            ("*.example.com", "example.com", 443, false),
            ("EXAMPLE.com.", "gw.example.com", 443, true),
            ("gw.example.com:8443", "gw.example.com", 8443, true),
            ("gw.example.com:8443", "gw.example.com", 443, false),
            ("*:8443", "gw.example.com", 8443, true),
            ("10.0.0.0/8", "10.1.2.3", 443, true),
            ("10.0.0.0/8", "11.1.2.3", 443, false),
            ("10.0.0.0/8", "10.example.com", 443, false),
            ("0.0.0.0/0", "11.1.2.3", 443, true),
            ("0.0.0.0/0", "gw.example.com", 443, false),
            ("192.0.2.1", "192.0.2.1", 443, true),
            ("192.0.2.1", "192.0.2.10", 443, false),
            ("192.0.2.1:443", "192.0.2.1", 443, true),
            ("192.0.2.1:444", "192.0.2.1", 443, false),
            ("192.0.2.1", "::ffff:192.0.2.1", 443, true),
            ("2001:db8::/32", "2001:db8::7", 443, true),
            ("2001:db8::/32", "[2001:db8::7]", 443, true),
            ("2001:db8::/32", "2001:db9::7", 443, false),
            ("::/0", "2001:db9::7", 443, true),
            ("2001:db8::7", "2001:db8::7", 443, true),
            ("[2001:db8::7]:443", "2001:db8::7", 443, true),
            ("[2001:db8::7]:444", "2001:db8::7", 443, false),
            ("a, b.example\tgw.example.com", "gw.example.com", 443, true),
            ("localhost", "localhost.example", 443, false),
            // Other programs' forms except nothing, and spoil nothing.
            (
                "10.*,/run/x.sock,10.0.0.0/33,a b:x,,example.com",
                "example.com",
                443,
                true,
            ),
            ("10.*", "10.1.2.3", 443, false),
        ] {
            assert_eq!(
                direct(list, host, port),
                excepted,
                "{list:?} for {host}:{port}"
            );
        }
    }

    #[test]
    fn this_host_is_never_behind_a_proxy() {
        for host in [
            "localhost",
            "LOCALHOST.",
            "127.0.0.1",
            "127.8.8.8",
            "::1",
            "[::1]",
            "::ffff:127.0.0.1",
        ] {
            assert!(direct("", host, 443), "{host}");
        }
        assert!(Proxies::default().before("gw.example", 443).is_none());
    }

    /// What a proxy that answers so comes to, and what it was asked.
    fn asked(
        proxy: &'static str,
        answer: &'static [u8],
        hang: bool,
    ) -> (Result<(), HopError>, String) {
        const WAIT: Duration = Duration::from_millis(300);
        rt::block_on(async {
            let listener = rt::TcpListener::bind(([127, 0, 0, 1], 0).into()).unwrap();
            let address = listener.local_addr().unwrap();
            let serving = rt::spawn(async move {
                let (mut peer, _) = listener.accept().await.unwrap();
                let mut asked = Vec::new();
                while !asked.ends_with(b"\r\n\r\n") {
                    asked.push(peer.read_u8().await.unwrap());
                }
                peer.write_all(answer).await.unwrap();
                if hang {
                    rt::sleep(WAIT * 4).await;
                }
                String::from_utf8(asked).unwrap()
            });
            let proxy = Proxy::parse(proxy).unwrap();
            let tcp = rt::TcpStream::connect(address).await.unwrap();
            let opened = proxy
                .open(Stream::Plain(tcp), "gw.example", 443, WAIT)
                .await
                .map(drop);
            (opened, serving.await.unwrap())
        })
    }

    #[test]
    fn a_connection_is_asked_for_and_given() {
        let (opened, said) = asked(
            "u:p@proxy.example:3128",
            b"HTTP/1.1 200 Connection established\r\n\r\n",
            true,
        );
        assert!(opened.is_ok());
        let lines: Vec<_> = said.lines().collect();
        assert_eq!(lines.first(), Some(&"CONNECT gw.example:443 HTTP/1.1"));
        assert!(lines.contains(&"Host: gw.example:443"));
        assert!(lines.contains(&"Proxy-Authorization: Basic dTpw"));
        let head = b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: x\r\n\r\n";
        let (opened, said) = asked("proxy.example:3128", head, true);
        assert!(opened.is_ok(), "a CONNECT's answer has no body");
        assert!(!said.contains("Authorization"));
    }

    #[test]
    fn each_way_a_proxy_can_fail_has_its_own_words() {
        const WANTS: &[u8] = b"HTTP/1.1 407 x\r\nProxy-Authenticate: Negotiate\r\nProxy-Authenticate: basic realm=\"x\"\r\nContent-Length: 4\r\n\r\nnope";
        let plain = "proxy.example:3128";
        for (proxy, answer, hang, said, refusal) in [
            (
                plain,
                WANTS,
                true,
                "wants a user name and password (407)",
                true,
            ),
            (
                "u:hush@proxy.example:3128",
                WANTS,
                true,
                "does not accept the user name and password (407)",
                true,
            ),
            (
                "u:hush@proxy.example:3128",
                b"HTTP/1.1 401 x\r\n\r\n",
                true,
                "does not accept the user name and password (401)",
                true,
            ),
            (
                plain,
                b"HTTP/1.1 407 x\r\nProxy-Authenticate: Negotiate, NTLM,Basic realm=\"x\"\r\n\r\n",
                true,
                "wants a user name and password (407)",
                true,
            ),
            (
                plain,
                b"HTTP/1.1 407 x\r\nProxy-Authenticate: Negotiate\r\n\r\n",
                true,
                "wants another authentication than Basic (407)",
                true,
            ),
            (
                plain,
                b"HTTP/1.1 403 Filtered\r\nContent-Type: text/html\r\n\r\n<html>",
                true,
                "lets nothing through to gw.example:443 (403)",
                true,
            ),
            (
                plain,
                b"HTTP/1.1 503 x\r\n\r\n",
                true,
                "lets nothing through to gw.example:443 (503)",
                false,
            ),
            (
                plain,
                b"HTTP/1.1 302 x\r\nLocation: https://login.example/\r\n\r\n",
                true,
                "lets nothing through to gw.example:443 (302)",
                false,
            ),
            (
                plain,
                b"<!DOCTYPE html><html><body>\n\nblocked",
                false,
                "answers no HTTP/1.1: its head cannot be read",
                false,
            ),
            (
                plain,
                b"\x16\x03\x01\x00\n\n",
                true,
                "answers no HTTP/1.1: its head cannot be read",
                false,
            ),
            (
                plain,
                b"HTTP/1.1 200 OK\r\nX",
                false,
                "closed the connection in the middle of its answer",
                false,
            ),
            (
                plain,
                b"",
                false,
                "closed the connection in the middle of its answer",
                false,
            ),
            (
                plain,
                b"HTTP/1.1 200 OK\r\nX",
                true,
                "did not answer within 300 ms",
                false,
            ),
            (plain, b"", true, "did not answer within 300 ms", false),
            (
                plain,
                b"HTTP/1.1 200 OK\r\n\r\nSSH-2.0",
                true,
                "answers no HTTP/1.1: more follows its answer",
                false,
            ),
            (
                plain,
                b"HTTP/1.1 101 x\r\n\r\n",
                true,
                "lets nothing through to gw.example:443 (101)",
                false,
            ),
        ] {
            let (opened, _) = asked(proxy, answer, hang);
            let error = opened.unwrap_err();
            let text = error.to_string();
            assert_eq!(text, format!("the proxy proxy.example:3128 {said}"));
            assert_eq!(error.is_refusal(), refusal, "{text}");
            assert!(!error.remedy().is_empty() && !format!("{error:?}").contains("hush"));
        }
    }
}
