//! From a host and a port to a connection that is ready to speak.
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use super::phase::Phase;
use crate::rt::{self, ConnectError, Stream, tls::TlsError};

/// How TLS is spoken to a server, and the name its certificate must be for.
pub type TlsTarget = (Arc<ClientConfig>, ServerName<'static>);

/// Why there is no connection.
pub(super) enum DialError {
    Connect(ConnectError),
    Tls(TlsError),
}

impl DialError {
    pub(super) fn phase(&self) -> Phase {
        match self {
            DialError::Connect(
                ConnectError::Lookup { .. } | ConnectError::LookupTimedOut { .. },
            ) => Phase::Lookup,
            DialError::Connect(_) => Phase::Connect,
            DialError::Tls(_) => Phase::Tls,
        }
    }
}

/// Looks `host` up and connects, within `connect` each.
pub(super) async fn dial(
    host: &str,
    port: u16,
    tls: Option<&TlsTarget>,
    connect: Duration,
    handshake: Duration,
) -> Result<Stream, DialError> {
    let tcp = rt::connect(host, port, connect)
        .await
        .map_err(DialError::Connect)?;
    secure(tcp, tls, handshake).await
}

/// The TLS handshake, if there is to be one.
pub(super) async fn secure(
    tcp: rt::TcpStream,
    tls: Option<&TlsTarget>,
    handshake: Duration,
) -> Result<Stream, DialError> {
    let Some((config, name)) = tls else {
        return Ok(Stream::Plain(tcp));
    };
    let tls = rt::tls::client(tcp, config.clone(), name.clone(), handshake)
        .await
        .map_err(DialError::Tls)?;
    Ok(Stream::Tls(Box::new(tls)))
}
