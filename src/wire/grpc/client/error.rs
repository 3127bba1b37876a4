//! Why a call to a server failed, and what to do about it.
use std::error::Error;
use std::fmt;
use std::time::Duration;

use proto_gen::codec::DecodeError;
use rustls::AlertDescription;

use super::super::status::{Code, Status};
use crate::rt::{self, tls::TlsError};
use crate::wire::dial::DialError;
use crate::wire::hop::HopError;
use crate::wire::phase::Phase;
use crate::wire::watched::Signs;

/// What ended a call.
#[derive(Debug)]
pub enum Cause {
    /// The phase took longer than this.
    TimedOut(Duration),
    /// No connection.
    Connect(rt::ConnectError),
    /// What stands on the way does not let the connection through.
    Hop(Box<HopError>),
    /// No TLS session; a certificate verifier's own error is below it.
    Tls(TlsError),
    /// The peer chose no `h2` in the handshake (ALPN).
    NoHttp2,
    /// The server ended the connection by this alert once the handshake was over on this side, before
    /// a word of HTTP/2: a TLS 1.3 server judges its client only then. Nobody on the way can send it.
    Alert(AlertDescription),
    /// What came is not what was sent: by TLS on this side, or by the server's alert.
    Altered(rustls::Error),
    /// The connection or the stream broke.
    Http2(h2::Error),
    /// The server's answer, or what stands for it (an HTTP status without a gRPC one).
    Status(Status),
    /// The server's message cannot be decoded.
    Decode(DecodeError),
}

/// Why a call failed, and how far it had come.
#[derive(Debug)]
pub struct CallError {
    /// How far it had come.
    pub phase: Phase,
    /// What ended it.
    pub cause: Cause,
}

impl CallError {
    /// The server's code, or the code gRPC gives to what happened.
    pub fn code(&self) -> Code {
        match &self.cause {
            Cause::TimedOut(_) => Code::DeadlineExceeded,
            Cause::Connect(_)
            | Cause::Hop(_)
            | Cause::Tls(_)
            | Cause::NoHttp2
            | Cause::Alert(_)
            | Cause::Altered(_) => Code::Unavailable,
            Cause::Http2(error) => match error.reason() {
                Some(reason) if error.is_reset() => Code::from_reason(reason),
                _ => Code::Unavailable,
            },
            Cause::Status(status) => status.code,
            Cause::Decode(_) => Code::Internal,
        }
    }

    /// What the server itself answered.
    pub fn status(&self) -> Option<&Status> {
        match &self.cause {
            Cause::Status(status) => Some(status),
            _ => None,
        }
    }

    pub(super) fn new(phase: Phase, cause: Cause) -> CallError {
        CallError { phase, cause }
    }

    /// A connection that broke. What TLS said of it says more than HTTP/2, and before a word of HTTP/2 was
    /// heard it broke in an earlier phase.
    pub(super) fn broken(signs: &Signs, phase: Phase, error: h2::Error) -> CallError {
        let heard = signs.heard();
        match signs.broken() {
            Some(tls) if is_altered(&tls) || is_no_tls(&tls) => {
                CallError::new(phase, Cause::Altered(tls))
            }
            Some(rustls::Error::AlertReceived(alert)) if !heard => {
                CallError::new(Phase::Tls, Cause::Alert(alert))
            }
            _ => CallError::new(
                if heard { phase } else { Phase::Settings },
                Cause::Http2(error),
            ),
        }
    }

    pub(super) fn dial(error: DialError) -> CallError {
        let phase = error.phase();
        let cause = match error {
            DialError::Connect(error) => Cause::Connect(error),
            DialError::Hop(error) => Cause::Hop(error),
            DialError::Tls(error) => Cause::Tls(error),
        };
        CallError::new(phase, cause)
    }

    /// An answer whose message cannot be taken. Never RESOURCE_EXHAUSTED: that is a server's word for
    /// passing trouble, and a message over the limit does not pass.
    pub(super) fn misframed(mut status: Status) -> CallError {
        if status.code == Code::ResourceExhausted {
            status.code = Code::Internal;
        }
        CallError::answer(status)
    }

    pub(super) fn answer(status: Status) -> CallError {
        CallError::new(Phase::Answer, Cause::Status(status))
    }
}

impl Cause {
    /// What to do about it, where that is the same whatever the call was for.
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Cause::Hop(error) => Some(error.remedy()),
            Cause::Altered(_) => Some(ALTERED),
            Cause::Tls(TlsError::Refused(error)) if is_altered(error) => Some(ALTERED),
            _ => None,
        }
    }
}

const ALTERED: &str = "nothing of it was believed; something on the way changes, drops or repeats what passes: \
                       look at the proxies and filters between this host and the gateway";

/// Whether TLS says that what came is none of it: after a handshake it can only have been put there.
fn is_no_tls(error: &rustls::Error) -> bool {
    matches!(
        error,
        rustls::Error::InvalidMessage(_)
            | rustls::Error::AlertReceived(
                AlertDescription::DecodeError
                    | AlertDescription::UnexpectedMessage
                    | AlertDescription::RecordOverflow
            )
    )
}

/// Whether TLS says that bytes were changed, left out, moved or played back.
fn is_altered(error: &rustls::Error) -> bool {
    matches!(
        error,
        rustls::Error::DecryptError
            | rustls::Error::PeerSentOversizedRecord
            | rustls::Error::AlertReceived(
                AlertDescription::BadRecordMac | AlertDescription::DecryptError
            )
    )
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            Cause::TimedOut(after) => {
                write!(f, "{}: no end after {}", self.phase, rt::Seconds(*after))
            }
            // Offered is 1.3 alone: docs/protocol.md 2.
            Cause::Tls(error) if error.is_about_version() => write!(
                f,
                "{}: the server speaks only TLS 1.2 or older, and TLS 1.3 is needed",
                self.phase
            ),
            Cause::Connect(_) | Cause::Hop(_) | Cause::Tls(_) => write!(f, "{} failed", self.phase),
            Cause::NoHttp2 => write!(
                f,
                "{}: the server does not speak HTTP/2 (no h2 in ALPN)",
                self.phase
            ),
            Cause::Alert(alert) => write!(
                f,
                "{}: the server refused with the alert {alert:?}",
                self.phase
            ),
            Cause::Altered(_) => write!(f, "{}: what came is not what was sent", self.phase),
            Cause::Http2(_) => write!(f, "{}: the connection broke", self.phase),
            Cause::Status(status) => write!(f, "the server answered {status}"),
            Cause::Decode(_) => write!(f, "{}: the server's message cannot be decoded", self.phase),
        }
    }
}

impl Error for CallError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.cause {
            Cause::Connect(error) => Some(error),
            Cause::Hop(error) => Some(&**error),
            Cause::Tls(error) => Some(error),
            Cause::Altered(error) => Some(error),
            Cause::Http2(error) => Some(error),
            Cause::Decode(error) => Some(error),
            Cause::TimedOut(_) | Cause::NoHttp2 | Cause::Alert(_) | Cause::Status(_) => None,
        }
    }
}
