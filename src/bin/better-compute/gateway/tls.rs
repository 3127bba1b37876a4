//! The TLS configurations of the gateway (client certificates asked for, HTTP/2) and of the API.

use std::error::Error;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{CipherSuite, RootCertStore, ServerConfig};

use crate::pki::ServingLeaf;

/// A configuration that may be replaced, on any thread, while connections go on.
#[derive(Clone)]
pub struct TlsConfig(Arc<Mutex<Arc<ServerConfig>>>);

impl TlsConfig {
    pub fn new(config: Arc<ServerConfig>) -> Self {
        Self(Arc::new(Mutex::new(config)))
    }

    /// The one for the next connection.
    pub fn current(&self) -> Arc<ServerConfig> {
        self.locked().clone()
    }

    /// Uses another one from now on.
    pub fn replace(&self, config: Arc<ServerConfig>) {
        *self.locked() = config;
    }

    fn locked(&self) -> MutexGuard<'_, Arc<ServerConfig>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

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
    // A hall of machines that joins costs mostly handshakes, and SHA-384, which AES-256 brings along, has no
    // instruction of its own. What else a handshake stands on, P-256 and X25519, is 128 bits strong too.
    config.ignore_client_order = true;
    // A node keeps one connection for days, and its next one shall be judged by the trust of then.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
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
    let mut provider = default_provider();
    // Of the rest the order stays.
    provider
        .cipher_suites
        .sort_by_key(|suite| suite.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256);
    let builder = ServerConfig::builder_with_provider(provider.into())
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
