//! The URLs that the configuration holds: an absolute URL with a host, and never with credentials.

use std::error::Error;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use super::values::{decimal, is_server_name};

/// `scheme://host[:port][/path]`, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// In lower case: `https`, `http`, `wss` or `ws`.
    pub scheme: String,
    /// A DNS name in lower case, or an address without brackets.
    pub host: String,
    /// As given, else the scheme's own.
    pub port: u16,
    /// With its query and fragment; `/` at least.
    pub path: String,
}

impl Url {
    /// Parses an absolute URL of the schemes http, https, ws and wss.
    ///
    /// # Errors
    /// See [`UrlError`]; its text never repeats the URL, which may hold credentials.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        if let Some(c) = text
            .chars()
            .find(|c| c.is_whitespace() || c.is_control() || !c.is_ascii())
        {
            return Err(UrlError::Character(c));
        }
        let (scheme, rest) = text.split_once("://").ok_or(UrlError::NotAbsolute)?;
        let scheme = scheme.to_ascii_lowercase();
        let default_port = match scheme.as_str() {
            "https" | "wss" => 443,
            "http" | "ws" => 80,
            _ => return Err(UrlError::Scheme),
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at_checked(end).unwrap_or((rest, ""));
        if authority.contains('@') {
            return Err(UrlError::Credentials);
        }
        let (host, port) = match authority.strip_prefix('[') {
            Some(bracketed) => {
                let (host, port) = bracketed.split_once(']').ok_or(UrlError::Host)?;
                host.parse::<Ipv6Addr>().map_err(|_| UrlError::Host)?;
                let port = match port.strip_prefix(':') {
                    Some(port) => Some(port),
                    None if port.is_empty() => None,
                    None => return Err(UrlError::Host),
                };
                (host, port)
            }
            None => match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            },
        };
        if !is_server_name(host) {
            return Err(UrlError::Host);
        }
        let port = match port {
            None => default_port,
            Some(port) => decimal(port)
                .and_then(|port| u16::try_from(port).ok())
                .filter(|&port| port != 0)
                .ok_or(UrlError::Port)?,
        };
        let path = if path.starts_with('/') {
            path.to_owned()
        } else {
            format!("/{path}")
        };
        Ok(Self {
            scheme,
            host: host.to_ascii_lowercase(),
            port,
            path,
        })
    }

    /// Whether the scheme speaks TLS.
    pub fn is_tls(&self) -> bool {
        self.scheme == "https" || self.scheme == "wss"
    }

    /// The host as an address, if it is one.
    pub fn address(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }

    /// `host` or `host:port`, brackets around an IPv6 address, as an `:authority` header wants it.
    pub fn authority(&self) -> String {
        let host = if self.host.contains(':') {
            format!("[{}]", self.host)
        } else {
            self.host.clone()
        };
        let default_port = if self.is_tls() { 443 } else { 80 };
        if self.port == default_port {
            host
        } else {
            format!("{host}:{}", self.port)
        }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = if self.path == "/" { "" } else { &self.path };
        write!(f, "{}://{}{path}", self.scheme, self.authority())
    }
}

/// Why a text is no URL that a configuration may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UrlError {
    Character(char),
    NotAbsolute,
    Scheme,
    Credentials,
    Host,
    Port,
}

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Character(c) => return write!(f, "has {c:?}, which no URL holds unescaped"),
            Self::NotAbsolute => "is not an absolute URL such as https://gw.example.com",
            Self::Scheme => "has an unknown scheme",
            Self::Credentials => "must not carry credentials",
            Self::Host => "has no valid host",
            Self::Port => "has a port that is not between 1 and 65535",
        };
        f.write_str(text)
    }
}

impl Error for UrlError {}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_taken_apart() {
        for (text, host, port, path, shown) in [
            (
                "https://gw.example.com",
                "gw.example.com",
                443,
                "/",
                "https://gw.example.com",
            ),
            (
                "HTTPS://GW.example.com:443/",
                "gw.example.com",
                443,
                "/",
                "https://gw.example.com",
            ),
            (
                "https://10.0.0.1:8443",
                "10.0.0.1",
                8443,
                "/",
                "https://10.0.0.1:8443",
            ),
            (
                "https://[fd00::1]",
                "fd00::1",
                443,
                "/",
                "https://[fd00::1]",
            ),
            (
                "wss://[::1]:9/v1/session?x",
                "::1",
                9,
                "/v1/session?x",
                "wss://[::1]:9/v1/session?x",
            ),
            ("http://a?q", "a", 80, "/?q", "http://a/?q"),
        ] {
            let url = Url::parse(text).unwrap();
            assert_eq!(
                (url.host.as_str(), url.port, url.path.as_str()),
                (host, port, path),
                "{text}"
            );
            assert_eq!(url.to_string(), shown);
            assert_eq!(Url::parse(shown).unwrap(), url);
        }
    }

    #[test]
    fn what_is_no_url_is_refused() {
        for (text, want) in [
            ("gw.example.com", UrlError::NotAbsolute),
            ("ftp://a", UrlError::Scheme),
            ("https://user:secret@a", UrlError::Credentials),
            ("https://a@", UrlError::Credentials),
            ("https://", UrlError::Host),
            ("https://:443", UrlError::Host),
            ("https://a..b", UrlError::Host),
            ("https://[::1", UrlError::Host),
            ("https://[::1]443", UrlError::Host),
            ("https://[10.0.0.1]", UrlError::Host),
            ("https://10.0.0.300", UrlError::Host),
            ("https://a:0", UrlError::Port),
            ("https://a:65536", UrlError::Port),
            ("https://a:", UrlError::Port),
            ("https://a:1:2", UrlError::Port),
            ("https://a b", UrlError::Character(' ')),
            ("https://é", UrlError::Character('é')),
            ("https://a\n", UrlError::Character('\n')),
        ] {
            assert_eq!(Url::parse(text), Err(want), "{text}");
        }
    }
}
