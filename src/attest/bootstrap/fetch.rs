//! Fetching the well-known document from the control plane, under the system's roots.
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;

use super::{MAX_LENGTH, PATH};
use crate::attest::roots;
use crate::rt;
use crate::wire::http1::client::{self, Cause, HttpError, Request, Waits};
use crate::wire::url::Url;

/// For all of it.
const WAIT: Duration = Duration::from_secs(30);

/// Why there is no document.
#[derive(Debug)]
pub enum FetchError {
    /// The system's roots cannot be used.
    Roots(roots::Error),
    /// The server's name is neither a DNS name nor an address.
    Name,
    /// No answer.
    Http(HttpError),
    /// No whole answer in time.
    TimedOut,
    /// It is somewhere else, which is where we do not go.
    Redirect(u16),
    /// Another status than 200.
    Status(u16),
}

/// The document's bytes, at most 64 KiB. `http://` is taken as it stands: the caller decides.
///
/// # Errors
/// See [`FetchError`].
pub async fn fetch(server: &Url) -> Result<Vec<u8>, FetchError> {
    let tls = if server.https {
        let name = ServerName::try_from(server.host.clone()).map_err(|_| FetchError::Name)?;
        let tls = roots::tls(None).map_err(FetchError::Roots)?;
        Some((Arc::new(tls), name))
    } else {
        None
    };
    let url = server.with_path(PATH);
    let request = Request {
        method: "GET",
        url: &url,
        headers: &[("accept", "application/json")],
        body: None,
        tls,
        waits: Waits::default(),
    };
    let document = async {
        let mut answer = client::send(&request).await.map_err(FetchError::Http)?;
        match answer.status {
            200 => answer
                .body
                .collect(MAX_LENGTH)
                .await
                .map_err(FetchError::Http),
            status @ 300..=399 => Err(FetchError::Redirect(status)),
            status => Err(FetchError::Status(status)),
        }
    };
    rt::timeout(WAIT, document)
        .await
        .unwrap_or(Err(FetchError::TimedOut))
}

impl FetchError {
    /// What to do about it.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Roots(_) => {
                "install the ca-certificates package, or set SSL_CERT_FILE to a file of PEM certificates"
            }
            Self::Http(HttpError {
                cause: Cause::Tls(_),
                ..
            }) => {
                "check that --server names the control plane by the name in its certificate, and that this host's \
                 CA certificates are current; for a CA of your own, or of a proxy that opens TLS, SSL_CERT_FILE=FILE names it"
            }
            Self::Http(HttpError {
                cause: Cause::Hop(error),
                ..
            }) => error.remedy(),
            Self::Redirect(_) => "give --server the URL that the control plane itself answers at",
            _ => "check --server: it is the URL of the control plane",
        }
    }
}

impl fmt::Display for FetchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Roots(_) => f.write_str("the system's CA certificates cannot be used"),
            Self::Name => f.write_str("the server's name is neither a DNS name nor an address"),
            Self::Http(HttpError {
                cause: Cause::TooLarge(_),
                ..
            }) => f.write_str("the document is larger than 64 KiB"),
            Self::Http(_) => f.write_str("no document"),
            Self::TimedOut => write!(f, "no whole answer within {} s", WAIT.as_secs()),
            Self::Redirect(status) => {
                write!(
                    f,
                    "the server answered with a redirect (HTTP {status}), and redirects are refused"
                )
            }
            Self::Status(status) => write!(f, "the server answered HTTP {status}"),
        }
    }
}

impl Error for FetchError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Roots(error) => Some(error),
            Self::Http(HttpError {
                cause: Cause::TooLarge(_),
                ..
            }) => None,
            Self::Http(error) => Some(error),
            _ => None,
        }
    }
}
