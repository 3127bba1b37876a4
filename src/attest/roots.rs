//! The system's CA certificates, for `--server` and for TLS to a WebSocket's server: `SSL_CERT_FILE`, else
//! the distribution's bundle, else the roots built in. Gateways are never judged by them.
use std::env;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{error, fmt};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::crypto::certificate::Certificate;
use crate::crypto::provider::{SIGNATURES, provider};
use crate::sys::{clock, fs};

/// Where Debian and its like keep the bundle.
const BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";

/// What names the CA of a proxy that opens TLS.
const PROXY_CA: &str = "websocket.proxy_ca_file";

/// The longest bundle read.
const MAX_LENGTH: usize = 8 << 20;

/// Why there are no roots.
#[derive(Debug)]
pub enum Error {
    /// A file that is named by this cannot be read.
    Read(PathBuf, &'static str, fs::Error),
    /// It holds no certificate that can be used.
    Empty(PathBuf, &'static str),
    /// rustls has no version of TLS.
    Versions(rustls::Error),
}

/// TLS 1.2 or later to a server that one of the roots vouches for, judged at trusted time; or one of the
/// certificates in `more`, the file of `websocket.proxy_ca_file`.
///
/// # Errors
/// See [`Error`].
pub fn tls(more: Option<&Path>) -> Result<ClientConfig, Error> {
    let mut roots = load(env::var_os("SSL_CERT_FILE").map(PathBuf::from))?;
    if let Some(path) = more {
        add(&mut roots, path, PROXY_CA)?;
    }
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(Error::Versions)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AtTrustedTime(roots)))
        .with_no_client_auth();
    Ok(config)
}

fn load(named: Option<PathBuf>) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    let named = named.filter(|path| !path.as_os_str().is_empty());
    match &named {
        Some(path) => add(&mut roots, path, "SSL_CERT_FILE")?,
        // What is wrong with the distribution's is made good by those built in.
        None => drop(add(&mut roots, Path::new(BUNDLE), "")),
    }
    if roots.is_empty() {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    Ok(roots)
}

/// Adds the certificates in a file, of which there must be one.
fn add(roots: &mut RootCertStore, path: &Path, named_by: &'static str) -> Result<(), Error> {
    let pem = fs::read_foreign(path, MAX_LENGTH)
        .map_err(|error| Error::Read(path.to_owned(), named_by, error))?;
    let certificates = CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok);
    match roots.add_parsable_certificates(certificates) {
        (0, _) => Err(Error::Empty(path.to_owned(), named_by)),
        _ => Ok(()),
    }
}

/// Judges validity at trusted time instead of the host's clock. Trusted time is a lower bound; a
/// certificate that begins later proves, once it is otherwise good, that it has begun.
/// Revocation is not looked at.
#[derive(Debug)]
struct AtTrustedTime(RootCertStore);

impl ServerCertVerifier for AtTrustedTime {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let begins = |der: &CertificateDer<'_>| {
            Certificate::parse(der)
                .ok()
                .and_then(|read| u64::try_from(read.not_before).ok())
        };
        let latest = std::iter::once(end_entity)
            .chain(intermediates)
            .filter_map(begins)
            .max();
        let now = (clock::trusted_ms(0) / 1000).max(latest.unwrap_or(0));
        let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(now));
        let leaf = ParsedCertificate::try_from(end_entity)?;
        let algorithms = SIGNATURES.all;
        verify_server_cert_signed_by_trust_anchor(&leaf, &self.0, intermediates, now, algorithms)?;
        verify_server_name(&leaf, server_name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &SIGNATURES)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &SIGNATURES)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        SIGNATURES.supported_schemes()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(path, by, _) => write!(f, "cannot read {} ({by})", path.display()),
            Self::Empty(path, by) => {
                write!(f, "{} ({by}) holds no certificate", path.display())
            }
            Self::Versions(_) => f.write_str("TLS cannot be set up"),
        }
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Read(_, _, error) => Some(error),
            Self::Versions(error) => Some(error),
            Self::Empty(..) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    #[test]
    fn a_named_file_must_be_there_and_hold_certificates() {
        let dir = crate::sys::fs::tests::scratch("roots");
        let missing = dir.join("missing.pem");
        assert!(matches!(load(Some(missing)), Err(Error::Read(..))));
        let empty = dir.join("empty.pem");
        std::fs::write(&empty, "no certificate\n").unwrap();
        assert!(matches!(load(Some(empty)), Err(Error::Empty(..))));
    }

    #[test]
    fn without_a_name_there_are_always_roots() {
        assert!(!load(None).unwrap().is_empty());
        assert!(!load(Some(PathBuf::new())).unwrap().is_empty());
    }
}
