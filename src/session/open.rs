//! Opening a session: connect, `Hello`, `Welcome`.
use std::error::Error;
use std::fmt;
use std::time::Duration;

use rustls::{AlertDescription, Error as TlsProblem};

use crate::crypto::gateway_verifier::Failure;
use crate::proto::{
    GatewayFrame, GatewayFrameKind, Hello, NodeFrame, NodeFrameKind, Welcome, session_service,
};
use crate::rt::{self, tls::TlsError};
use crate::wire::grpc::Code;
use crate::wire::grpc::client::{CallError, Cause, Client, Endpoint, Phase, Receiver, Sender};

use super::machine::Trouble;

/// Versions of the protocol this node speaks.
pub const VERSIONS: &[u32] = &[1];

/// For `Welcome` after `Hello`.
pub const WAIT: Duration = Duration::from_secs(10);

/// What a try led to.
pub struct Opened {
    pub client: Client,
    pub sender: Sender<NodeFrame>,
    pub receiver: Receiver<GatewayFrame>,
    pub welcome: Welcome,
}

/// Why there is no session, or none any more.
#[derive(Debug)]
pub enum SessionError {
    /// The call failed, or ended with a status.
    Call(CallError),
    /// The gateway ended the session with OK.
    Closed,
    /// No `Welcome` in time.
    NoWelcome,
    /// The gateway's first frame is something else.
    NotWelcome,
    /// The gateway chose a version that was not offered.
    Version(u32),
    /// A frame did not go out in this time.
    Stuck(Duration),
    /// The gateway acknowledged events that were not sent.
    AckAhead { position: u64, sent: u64 },
    /// The control plane has stored events that this journal has not written: the disk went back in
    /// time.
    ResumeAhead { resume: u64, position: u64 },
    /// Nothing was heard for two heartbeat intervals.
    Silent,
    /// This node took nothing from its gateway for two heartbeat intervals.
    Stalled,
}

/// Opens a session with `hello` as the first frame.
///
/// # Errors
/// See [`SessionError`].
pub async fn open(endpoint: Endpoint, hello: Hello) -> Result<Opened, SessionError> {
    let client = Client::connect(&endpoint)
        .await
        .map_err(SessionError::Call)?;
    let stream = client.stream(&session_service::SESSION, None).await;
    let (mut sender, mut receiver) = stream.map_err(SessionError::Call)?;
    let hello = NodeFrame {
        kind: Some(NodeFrameKind::Hello(hello)),
    };
    let greeting = async {
        let sent = sender.send(&hello).await;
        // Where the stream has ended, the receiving half knows why.
        match (receiver.next().await, sent) {
            (Ok(Some(frame)), Ok(())) => Ok(frame),
            (Ok(None), Ok(())) => Err(SessionError::Closed),
            (Err(error), _) | (Ok(_), Err(error)) => Err(SessionError::Call(error)),
        }
    };
    let first = rt::timeout(WAIT, greeting)
        .await
        .map_err(|_| SessionError::NoWelcome)??;
    let Some(GatewayFrameKind::Welcome(welcome)) = first.kind else {
        return Err(SessionError::NotWelcome);
    };
    let version = welcome.protocol_version;
    let offered = if welcome.upgrade_required {
        version == 0
    } else {
        VERSIONS.contains(&version)
    };
    if offered {
        Ok(Opened {
            client,
            sender,
            receiver,
            welcome,
        })
    } else {
        Err(SessionError::Version(version))
    }
}

impl SessionError {
    /// Whether it may pass by itself.
    pub fn trouble(&self) -> Trouble {
        let Self::Call(error) = self else {
            return Trouble::Passing;
        };
        let refused = match &error.cause {
            Cause::Status(status) => {
                matches!(status.code, Code::PermissionDenied | Code::Unauthenticated)
            }
            Cause::Tls(TlsError::Refused(TlsProblem::InvalidCertificate(_))) => true,
            // An alert within the handshake is another matter: whoever is on the way can send that.
            Cause::Alert(alert) => about_us(*alert),
            Cause::Hop(error) => error.is_refusal(),
            _ => false,
        };
        if refused {
            Trouble::Refused
        } else {
            Trouble::Passing
        }
    }

    /// What a person can do about it.
    pub fn remedy(&self) -> &'static str {
        const LOOK: &str = "look at the gateway's log";
        if let Self::Call(error) = self
            && let Some(remedy) = error.cause.remedy()
        {
            return remedy;
        }
        match self {
            Self::Call(error)
                if error
                    .status()
                    .is_some_and(|said| said.code == Code::Aborted) =>
            {
                "where this comes again: another bcd node has this node's identity, on this machine or on a copy \
                 of its disk; on the one that shall be another node: bcd join --reset --yes, then bcd join"
            }
            _ if self.is_alert() => {
                "bcd node asks for another certificate by itself; identity.renewal_failed in its log, and bcd \
                 status, say why it gets none"
            }
            _ if self.is_refusal_of_us() => {
                "ask whoever runs the control plane; to join anew: bcd join --reset --yes, then bcd join"
            }
            _ if self.trouble() == Trouble::Refused => {
                "check the gateway's certificate, and gateway_url and serving_ca_spki_pin in config.toml"
            }
            Self::Call(error) => match error.phase {
                Phase::Lookup => {
                    "check gateway_url and this machine's DNS; bcd doctor looks closer"
                }
                _ if error.status().is_some() => LOOK,
                _ => "check the way to the gateway and that it runs; bcd doctor looks closer",
            },
            Self::Silent => "check the way to the gateway; bcd doctor looks closer",
            Self::Stalled => "check this machine's disk and load",
            Self::Version(_) => "upgrade bcd or the gateway, whichever is older",
            Self::ResumeAhead { .. } => {
                "nothing, it goes on by itself; find out why the disk went back: a restored snapshot, a copy"
            }
            Self::Closed
            | Self::NoWelcome
            | Self::NotWelcome
            | Self::Stuck(_)
            | Self::AckAhead { .. } => LOOK,
        }
    }

    /// Whether the gateway does not take this node's certificate.
    pub fn is_alert(&self) -> bool {
        let status = matches!(
            self,
            Self::Call(CallError {
                cause: Cause::Status(_),
                ..
            })
        );
        self.is_refusal_of_us() && !status
    }

    /// Whether the gateway, or its TLS, refused this node for what it is.
    pub fn is_refusal_of_us(&self) -> bool {
        match self {
            Self::Call(CallError {
                cause: Cause::Status(_) | Cause::Alert(_),
                ..
            }) => self.trouble() == Trouble::Refused,
            _ => false,
        }
    }
}

/// Whether an alert is about the certificate this node showed.
fn about_us(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
            | AlertDescription::CertificateRequired
    )
}

impl fmt::Display for SessionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call(CallError {
                cause: Cause::Alert(alert),
                ..
            }) if about_us(*alert) => {
                f.write_str("the gateway does not accept this node's certificate")
            }
            Self::Call(_) => f.write_str("the session failed"),
            Self::Closed => f.write_str("the gateway ended the session"),
            Self::NoWelcome => write!(f, "no Welcome from the gateway within {} s", WAIT.as_secs()),
            Self::NotWelcome => f.write_str("the gateway's first frame is no Welcome"),
            Self::Version(version) => {
                write!(
                    f,
                    "the gateway chose protocol version {version} in its Welcome, which was not offered"
                )
            }
            Self::Stuck(wait) => {
                write!(f, "the gateway took no frame within {} s", wait.as_secs())
            }
            Self::AckAhead { position, sent } => write!(
                f,
                "the gateway acknowledged events up to {position}, and only those up to {sent} were sent"
            ),
            Self::ResumeAhead { resume, position } => write!(
                f,
                "the control plane has stored events up to {resume} of a journal that ends at {position}: \
                 the disk went back in time, and a new journal begins"
            ),
            Self::Silent => f.write_str("nothing was heard from the gateway for two heartbeat intervals"),
            Self::Stalled => f.write_str(
                "nothing was taken from the gateway for two heartbeat intervals: this node's own work is stuck",
            ),
        }
    }
}

impl Error for SessionError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            // As in a join: a certificate that does not hold says why itself.
            Self::Call(error) => match Failure::find(error) {
                Some(failure) => Some(failure),
                None => Some(error),
            },
            _ => None,
        }
    }
}
