//! How a node reaches its gateway: which address, under which name, and by which pins the
//! certificate is judged. Joining and sessions both dial this way.
use std::fmt;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, PrivateKeyDer, ServerName};

use crate::config::Config;
use crate::crypto::gateway_verifier::PinnedCa;
use crate::crypto::pin::Pin;
use crate::wire::grpc::client::Endpoint;
use crate::wire::url::Url;

/// A gateway's address and name.
#[derive(Debug, Clone)]
pub struct Gateway {
    url: Url,
    name: ServerName<'static>,
}

/// The gateway's name is neither a DNS name nor an address.
#[derive(Debug)]
pub struct BadName(String, InvalidDnsNameError);

impl Gateway {
    /// The gateway at `url`, whose certificate must carry `server_name`, else the URL's host.
    ///
    /// # Errors
    /// The name is none.
    pub fn new(url: Url, server_name: Option<&str>) -> Result<Self, BadName> {
        let name = server_name.unwrap_or(&url.host);
        let name = ServerName::try_from(name.to_owned())
            .map_err(|error| BadName(name.to_owned(), error))?;
        Ok(Self { url, name })
    }

    /// The gateway of a configuration.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn of(config: &Config) -> Result<Self, BadName> {
        Self::new(
            config.gateway_url.clone(),
            config.gateway_server_name.as_deref(),
        )
    }

    /// For messages: the URL as it was given.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// Where and how to call it. An `http://` gateway (development builds) is called without TLS.
    pub fn endpoint(&self, tls: &Arc<ClientConfig>) -> Endpoint {
        Endpoint {
            tls: self.url.https.then(|| (Arc::clone(tls), self.name.clone())),
            ..Endpoint::new(self.url.host.clone(), self.url.port)
        }
    }
}

/// TLS 1.3 with a gateway whose CA has one of `pins`. `trusted_ms` is asked at each handshake.
/// With `identity`, the node's chain and key, the client shows it.
///
/// # Errors
/// The key does not fit the chain.
pub fn tls(
    pins: Vec<Pin>,
    trusted_ms: impl Fn() -> u64 + Send + Sync + 'static,
    identity: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
) -> Result<Arc<ClientConfig>, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(PinnedCa::new(pins, trusted_ms)));
    let mut config = match identity {
        Some((chain, key)) => builder.with_client_auth_cert(chain, key)?,
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    // One connection at a time to one gateway: tickets are of no use, and cost memory.
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config))
}

impl fmt::Display for BadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the gateway's name {:?} is neither a DNS name nor an address",
            self.0
        )
    }
}

impl std::error::Error for BadName {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.1)
    }
}
