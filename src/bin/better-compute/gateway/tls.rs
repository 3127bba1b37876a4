//! The TLS configurations of the gateway (client certificates asked for, HTTP/2) and of the API.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig};

use crate::pki::ServingLeaf;

/// Why a configuration cannot be made.
#[derive(Debug)]
pub struct TlsConfigError(Box<dyn Error + Send + Sync>);

impl fmt::Display for TlsConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot set up TLS")
    }
}

impl Error for TlsConfigError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.0)
    }
}

/// The gateway's: TLS 1.3, `h2`, the serving CA in the chain (nodes pin it), and client certificates of
/// `node_cas` taken but not demanded: a join has none.
///
/// # Errors
/// A certificate or key does not fit.
pub fn gateway(
    leaf: &ServingLeaf,
    chain: &[Vec<u8>],
    node_cas: &[Vec<u8>],
) -> Result<Arc<ServerConfig>, TlsConfigError> {
    let mut roots = RootCertStore::empty();
    for node_ca in node_cas {
        roots
            .add(CertificateDer::from(node_ca.clone()))
            .map_err(|error| TlsConfigError(error.into()))?;
    }
    let nodes =
        WebPkiClientVerifier::builder_with_provider(roots.into(), default_provider().into())
            .allow_unauthenticated()
            .build()
            .map_err(|error| TlsConfigError(error.into()))?;
    let versions = &[&rustls::version::TLS13];
    let mut config = configuration(leaf, chain, versions, Some(nodes))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

/// The API's: HTTP/1.1, no client certificates.
///
/// # Errors
/// A certificate or key does not fit.
pub fn api(leaf: &ServingLeaf, chain: &[Vec<u8>]) -> Result<Arc<ServerConfig>, TlsConfigError> {
    let versions = rustls::ALL_VERSIONS;
    let mut config = configuration(leaf, chain, versions, None)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn configuration(
    leaf: &ServingLeaf,
    chain: &[Vec<u8>],
    versions: &[&'static rustls::SupportedProtocolVersion],
    clients: Option<Arc<dyn ClientCertVerifier>>,
) -> Result<ServerConfig, TlsConfigError> {
    let failed = |error: rustls::Error| TlsConfigError(error.into());
    let builder = ServerConfig::builder_with_provider(default_provider().into())
        .with_protocol_versions(versions)
        .map_err(failed)?;
    let builder = match clients {
        Some(clients) => builder.with_client_cert_verifier(clients),
        None => builder.with_no_client_auth(),
    };
    let chain = std::iter::once(&leaf.certificate).chain(chain);
    let chain = chain.map(|der| CertificateDer::from(der.clone())).collect();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(leaf.key.clone()));
    builder.with_single_cert(chain, key).map_err(failed)
}
