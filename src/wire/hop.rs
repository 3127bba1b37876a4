//! What stands between this host and a server, asked in HTTP/1.1 to let a connection through: a proxy, or a WebSocket.
//!
//! Each failure says which of them failed, at which step, and what to do. What it answers beside a
//! status is never read: a page for people is no answer to a program.
use std::error::Error;
use std::fmt;
use std::io;
use std::time::Duration;

use super::http1::client::{self, Answer, Cause, HttpError, Waits};
use super::phase::Phase;
use crate::rt::tls::TlsError;
use crate::rt::{self, ConnectError, Stream};

/// What kind of hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hop {
    /// The proxy of `HTTPS_PROXY`.
    Proxy,
    /// The endpoint of `[websocket]`.
    WebSocket,
}

/// What went wrong at it.
#[derive(Debug)]
pub enum HopCause {
    /// It is not reached.
    Connect(ConnectError),
    /// TLS to it does not come about.
    Tls(TlsError),
    /// It did not answer, or take the question, in this time.
    TimedOut(Duration),
    /// The connection to it broke.
    Io(io::Error),
    /// It closed the connection in the middle of its answer.
    Cut,
    /// What it answers is none.
    Malformed(&'static str),
    /// A proxy wants a user name and password, by this status.
    Credentials(Credentials, u16),
    /// Another status than the one that lets the connection through.
    Status(u16),
}

/// How a proxy was asked that wants to know by whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Credentials {
    /// Without a user name.
    None,
    /// With one that it does not take.
    Refused,
    /// It speaks no authentication that is spoken here.
    NotBasic,
}

/// Why a hop did not let a connection through.
#[derive(Debug)]
pub struct HopError {
    /// What kind of hop.
    pub hop: Hop,
    /// Which: host and port, without credentials.
    pub at: String,
    /// Where it was to lead.
    pub to: String,
    /// What went wrong.
    pub cause: HopCause,
}

impl HopError {
    /// How far a call came.
    pub fn phase(&self) -> Phase {
        match self.hop {
            Hop::Proxy => Phase::Proxy,
            Hop::WebSocket => Phase::WebSocket,
        }
    }

    /// Whether it said no, which waiting does not change.
    pub fn is_refusal(&self) -> bool {
        matches!(
            self.cause,
            HopCause::Credentials(..)
                | HopCause::Status(401 | 403 | 407)
                | HopCause::Tls(TlsError::Refused(rustls::Error::InvalidCertificate(_)))
        )
    }

    /// What to do about it.
    pub fn remedy(&self) -> &'static str {
        match (&self.cause, self.hop) {
            (HopCause::Credentials(Credentials::None, _), _) => {
                "put them into HTTPS_PROXY: http://USER:PASSWORD@HOST:PORT"
            }
            (HopCause::Credentials(Credentials::Refused, _), _) => "correct them in HTTPS_PROXY",
            (HopCause::Credentials(Credentials::NotBasic, _), _) => {
                "have the proxy let this host through without authentication, or with Basic"
            }
            (HopCause::Status(403), Hop::Proxy) => {
                "have the proxy allow CONNECT to this host and port, or name the host in NO_PROXY"
            }
            (HopCause::Status(500..), Hop::Proxy) => {
                "find out why the proxy does not reach it, or name the host in NO_PROXY"
            }
            (_, Hop::Proxy) => {
                "check that HTTPS_PROXY names an HTTP proxy, or name the host in NO_PROXY"
            }
            (HopCause::Tls(TlsError::Refused(rustls::Error::InvalidCertificate(_))), _) => {
                "set websocket.proxy_ca_file in config.toml to the CA of the proxy that opens TLS on the way, and \
                 check websocket.url"
            }
            (HopCause::Status(500..), Hop::WebSocket) => {
                "find out why the proxy on the way, or the gateway's HTTPS server, does not answer"
            }
            (HopCause::Connect(_), Hop::WebSocket) => {
                "check websocket.url in config.toml, and that this host reaches it"
            }
            (_, Hop::WebSocket) => {
                "check that websocket.url in config.toml is the gateway's …/v1/session, and have the proxy on the \
                 way let WebSockets to it through"
            }
        }
    }
}

/// Puts a question that is a head alone, and reads the head of the answer, each within `wait`.
pub(super) async fn ask(
    stream: Stream,
    head: &[u8],
    wait: Duration,
) -> Result<Answer<Stream>, HopCause> {
    let waits = Waits {
        request: wait,
        answer: wait,
        ..Waits::default()
    };
    client::ask(stream, head, &waits)
        .await
        .map_err(|HttpError { cause, .. }| match cause {
            Cause::TimedOut(after) => HopCause::TimedOut(after),
            Cause::Io(error) => HopCause::Io(error),
            Cause::Malformed(what) => HopCause::Malformed(what),
            _ => HopCause::Cut,
        })
}

impl fmt::Display for HopError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (at, to) = (&self.at, &self.to);
        let name = match self.hop {
            Hop::Proxy => "the proxy",
            Hop::WebSocket => "the WebSocket endpoint",
        };
        match &self.cause {
            HopCause::Connect(_) => write!(f, "{name} {at} is not reached"),
            HopCause::Tls(_) => write!(f, "no TLS with {name} {at}"),
            HopCause::TimedOut(after) => {
                write!(
                    f,
                    "{name} {at} did not answer within {}",
                    rt::Seconds(*after)
                )
            }
            HopCause::Io(_) => write!(f, "the connection to {name} {at} broke"),
            HopCause::Cut => {
                write!(
                    f,
                    "{name} {at} closed the connection in the middle of its answer"
                )
            }
            HopCause::Malformed(what) => write!(f, "{name} {at} answers no HTTP/1.1: {what}"),
            HopCause::Credentials(how, status) => {
                let what = match how {
                    Credentials::None => "wants a user name and password",
                    Credentials::Refused => "does not accept the user name and password",
                    Credentials::NotBasic => "wants another authentication than Basic",
                };
                write!(f, "{name} {at} {what} ({status})")
            }
            HopCause::Status(status) if self.hop == Hop::Proxy => {
                write!(f, "{name} {at} lets nothing through to {to} ({status})")
            }
            HopCause::Status(status) => write!(f, "{name} {at} answers {status} and opens none"),
        }
    }
}

impl Error for HopError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.cause {
            HopCause::Connect(error) => Some(error),
            HopCause::Tls(error) => Some(error),
            HopCause::Io(error) => Some(error),
            _ => None,
        }
    }
}
