//! `http://` and `https://` URLs, as far as this program uses them.
//!
//! Refused, since each has been somebody's hole: user names and passwords in the URL, fragments,
//! anything but printable ASCII, and hosts that are neither a name nor an address.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]
use std::error::Error;
use std::fmt;
use std::net::Ipv6Addr;

use super::proxy::{self, Proxy};

/// Bytes of the longest URL.
const LONGEST: usize = 2048;

/// A URL, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    /// `https`, or `http`.
    pub https: bool,
    /// A name in lower case, or an address; IPv6 without brackets.
    pub host: String,
    /// The port, the scheme's own when none was given (443, 80).
    pub port: u16,
    /// Path and query, starting with `/`.
    pub path: String,
}

/// Why a text is no URL for us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UrlError {
    TooLong,
    Scheme,
    Characters,
    UserInfo,
    Fragment,
    Host,
    Port,
}

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            UrlError::TooLong => "the URL is longer than 2048 bytes",
            UrlError::Scheme => "the URL begins neither with https:// nor with http://",
            UrlError::Characters => "the URL holds a space, or a character that is not ASCII",
            UrlError::UserInfo => "the URL holds a user name or password (an @ before the path)",
            UrlError::Fragment => "the URL holds a fragment (#)",
            UrlError::Host => {
                "the URL's host is neither a name, an IPv4 address nor an IPv6 address in brackets"
            }
            UrlError::Port => "the URL's port is not a number from 1 to 65535",
        })
    }
}

impl Error for UrlError {}

impl Url {
    /// Reads a URL.
    ///
    /// # Errors
    /// [`UrlError`]: the first thing that is wrong.
    pub fn parse(text: &str) -> Result<Url, UrlError> {
        if text.len() > LONGEST {
            return Err(UrlError::TooLong);
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(UrlError::Characters);
        }
        let (scheme, rest) = text.split_once("://").ok_or(UrlError::Scheme)?;
        let https = scheme.eq_ignore_ascii_case("https");
        if !https && !scheme.eq_ignore_ascii_case("http") {
            return Err(UrlError::Scheme);
        }
        if rest.contains('#') {
            return Err(UrlError::Fragment);
        }
        let (authority, path) = match rest.find(['/', '?']) {
            Some(at) => rest.split_at_checked(at).ok_or(UrlError::Host)?,
            None => (rest, ""),
        };
        if authority.contains('@') {
            return Err(UrlError::UserInfo);
        }
        let path = if path.starts_with('/') {
            path.to_owned()
        } else {
            format!("/{path}")
        };
        let (host, port) = split_authority(authority)?;
        let port = match port {
            None | Some("") => {
                if https {
                    443
                } else {
                    80
                }
            }
            Some(port) => parse_port(port).ok_or(UrlError::Port)?,
        };
        Ok(Url {
            https,
            host,
            port,
            path,
        })
    }

    /// Where `reference` leads from here (RFC 3986, 5.2): another URL, or a part of one. Its fragment is left out.
    ///
    /// # Errors
    /// As for a URL.
    pub fn join(&self, reference: &str) -> Result<Url, UrlError> {
        let reference = reference.split('#').next().unwrap_or_default();
        let (head, _) = reference.split_once(['/', '?']).unwrap_or((reference, ""));
        let (path, _) = self.path.split_once('?').unwrap_or((&self.path, ""));
        let (directory, _) = path.rsplit_once('/').unwrap_or_default();
        let scheme = if self.https { "https:" } else { "http:" };
        let whole = match reference {
            // A scheme.
            _ if head.contains(':') => reference.to_owned(),
            _ if reference.starts_with("//") => [scheme, reference].concat(),
            _ if reference.starts_with('/') => [&self.origin(), reference].concat(),
            "" => [&self.origin(), self.path.as_str()].concat(),
            _ if reference.starts_with('?') => [&self.origin(), path, reference].concat(),
            _ => [&self.origin(), directory, "/", reference].concat(),
        };
        let mut url = Self::parse(&whole)?;
        let (path, query) = match url.path.find('?') {
            Some(at) => url.path.split_at(at),
            None => (url.path.as_str(), ""),
        };
        let mut segments = Vec::new();
        let mut rest = path.split('/').skip(1).peekable();
        while let Some(segment) = rest.next() {
            match segment {
                "." | ".." => {
                    if segment == ".." {
                        segments.pop();
                    }
                    if rest.peek().is_none() {
                        segments.push("");
                    }
                }
                segment => segments.push(segment),
            }
        }
        url.path = ["/", &segments.join("/"), query].concat();
        Ok(url)
    }

    /// Host and port as in a `Host` header: brackets around IPv6, the scheme's own port left out.
    pub fn authority(&self) -> String {
        authority(&self.host, self.port, self.https)
    }

    /// The proxy through which this server is reached: none is for `http://`.
    pub fn proxy(&self) -> Option<&'static Proxy> {
        proxy::before(&self.host, self.port).filter(|_| self.https)
    }

    /// Scheme, host and port alone, as in a configuration: `https://gw.example:8443`.
    pub fn origin(&self) -> String {
        let scheme = if self.https { "https" } else { "http" };
        format!("{scheme}://{}", self.authority())
    }

    /// The same server with another path (and query), which must start with `/`.
    pub fn with_path(&self, path: &str) -> Url {
        Url {
            path: path.to_owned(),
            ..self.clone()
        }
    }
}

/// Host and port as in a `Host` header.
pub(super) fn authority(host: &str, port: u16, https: bool) -> String {
    if port == if https { 443 } else { 80 } {
        in_brackets(host)
    } else {
        full_authority(host, port)
    }
}

/// Host and port, whichever it is.
pub(super) fn full_authority(host: &str, port: u16) -> String {
    format!("{}:{port}", in_brackets(host))
}

/// The host, with brackets around IPv6.
fn in_brackets(host: &str) -> String {
    match host.contains(':') && !host.starts_with('[') {
        true => format!("[{host}]"),
        false => host.to_owned(),
    }
}

/// The host, checked, and the port's text.
pub(super) fn split_authority(authority: &str) -> Result<(String, Option<&str>), UrlError> {
    if let Some(rest) = authority.strip_prefix('[') {
        let (address, after) = rest.split_once(']').ok_or(UrlError::Host)?;
        let address: Ipv6Addr = address.parse().map_err(|_| UrlError::Host)?;
        return match after.strip_prefix(':') {
            Some(port) => Ok((address.to_string(), Some(port))),
            None if after.is_empty() => Ok((address.to_string(), None)),
            None => Err(UrlError::Host),
        };
    }
    let (host, port) = match authority.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (authority, None),
    };
    if !is_host(host) {
        return Err(UrlError::Host);
    }
    Ok((host.to_ascii_lowercase(), port))
}

/// Whether `host` is a name that can be looked up, or an IPv4 address. The characters of RFC 1123,
/// and `_`, which real networks have.
pub fn is_host(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    if host.len() > 253 || !host.split('.').all(label) {
        return false;
    }
    // A last label of digits makes it an address, and then a correct one.
    let numeric = host
        .rsplit('.')
        .next()
        .is_some_and(|last| last.bytes().all(|b| b.is_ascii_digit()));
    !numeric || host.parse::<std::net::Ipv4Addr>().is_ok()
}

pub(super) fn parse_port(text: &str) -> Option<u16> {
    let digits = (1..=5).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits {
        return None;
    }
    text.parse().ok().filter(|port| *port != 0)
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.origin(), self.path)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn references_are_resolved() {
        let base = Url::parse("https://[::1]:8443/a/b/c?q").unwrap();
        for (reference, whole) in [
            ("", "https://[::1]:8443/a/b/c?q"),
            ("#f", "https://[::1]:8443/a/b/c?q"),
            ("d", "https://[::1]:8443/a/b/d"),
            ("d?x/../y#f", "https://[::1]:8443/a/b/d?x/../y"),
            ("./d/", "https://[::1]:8443/a/b/d/"),
            ("../d", "https://[::1]:8443/a/d"),
            ("..", "https://[::1]:8443/a/"),
            ("../../../../d", "https://[::1]:8443/d"),
            ("/d:e/./f", "https://[::1]:8443/d:e/f"),
            ("?y", "https://[::1]:8443/a/b/c?y"),
            ("//other/x", "https://other/x"),
            ("http://other:81?y", "http://other:81/?y"),
        ] {
            assert_eq!(
                base.join(reference).unwrap().to_string(),
                whole,
                "{reference}"
            );
        }
        for (reference, error) in [
            ("mailto:x", UrlError::Scheme),
            ("ftp://x/", UrlError::Scheme),
            ("/a b", UrlError::Characters),
            ("//u@h/", UrlError::UserInfo),
            ("//", UrlError::Host),
        ] {
            assert_eq!(base.join(reference).unwrap_err(), error, "{reference}");
        }
    }

    #[test]
    fn urls_are_read_and_written() {
        for (text, host, port, path, written) in [
            (
                "https://gw.example",
                "gw.example",
                443,
                "/",
                "https://gw.example/",
            ),
            (
                "HTTPS://GW.Example:8443/a?b=c",
                "gw.example",
                8443,
                "/a?b=c",
                "https://gw.example:8443/a?b=c",
            ),
            (
                "http://127.0.0.1:80/x",
                "127.0.0.1",
                80,
                "/x",
                "http://127.0.0.1/x",
            ),
            (
                "https://[::1]:7443",
                "::1",
                7443,
                "/",
                "https://[::1]:7443/",
            ),
            (
                "https://[2001:DB8::0:1]",
                "2001:db8::1",
                443,
                "/",
                "https://[2001:db8::1]/",
            ),
            ("https://h?q", "h", 443, "/?q", "https://h/?q"),
            ("https://h:/", "h", 443, "/", "https://h/"),
            ("https://h/a@b:c", "h", 443, "/a@b:c", "https://h/a@b:c"),
            (
                "https://a_b.c-d.",
                "a_b.c-d.",
                443,
                "/",
                "https://a_b.c-d./",
            ),
        ] {
            let url = Url::parse(text).unwrap();
            assert_eq!(
                (url.host.as_str(), url.port, url.path.as_str()),
                (host, port, path),
                "{text}"
            );
            assert_eq!(url.to_string(), written);
            assert_eq!(format!("{}{}", url.origin(), url.path), written);
            assert_eq!(Url::parse(written).unwrap(), url);
        }
    }

    #[test]
    fn what_is_no_url_for_us_is_refused() {
        for (text, error) in [
            ("", UrlError::Scheme),
            ("gw.example", UrlError::Scheme),
            ("ftp://gw.example", UrlError::Scheme),
            ("https:/gw.example", UrlError::Scheme),
            ("https://", UrlError::Host),
            ("https:///x", UrlError::Host),
            ("https://u:p@h/", UrlError::UserInfo),
            ("https://h/#f", UrlError::Fragment),
            ("https://h /", UrlError::Characters),
            ("https://hö/", UrlError::Characters),
            ("https://h\r\nX: y", UrlError::Characters),
            ("https://h:0", UrlError::Port),
            ("https://h:65536", UrlError::Port),
            ("https://h:+1", UrlError::Port),
            ("https://h:1:2", UrlError::Port),
            ("https://::1/", UrlError::Host),
            ("https://[::1", UrlError::Host),
            ("https://[::1]x", UrlError::Host),
            ("https://[fe80::1%eth0]", UrlError::Host),
            ("https://1.2.3", UrlError::Host),
            ("https://1.2.3.256", UrlError::Host),
            ("https://-a.example", UrlError::Host),
            ("https://a..b", UrlError::Host),
            ("https://a\\b", UrlError::Host),
        ] {
            assert_eq!(Url::parse(text), Err(error), "{text}");
        }
        assert_eq!(
            Url::parse(&format!("https://h/{}", "a".repeat(LONGEST))),
            Err(UrlError::TooLong)
        );
    }
}
