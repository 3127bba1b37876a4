//! The system's CA certificates, for `--server`: `SSL_CERT_FILE`, else the distribution's bundle,
//! else the roots built in. Gateways are never judged by them.
use std::env;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{error, fmt};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::crypto::certificate::Certificate;
use crate::sys::clock;

/// Where Debian and its like keep the bundle.
const BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";

/// The longest bundle read.
const MAX_LENGTH: u64 = 8 << 20;

/// Why there are no roots.
#[derive(Debug)]
pub enum Error {
    /// The file that `SSL_CERT_FILE` names cannot be read.
    Read(PathBuf, io::Error),
    /// It holds no certificate that can be used.
    Empty(PathBuf),
    /// No verifier can be made of them.
    Verifier(String),
}

/// TLS 1.2 or later to a server that one of the roots vouches for, judged at trusted time.
///
/// # Errors
/// See [`Error`].
pub fn tls() -> Result<Arc<ClientConfig>, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let unusable = |error: &dyn fmt::Display| Error::Verifier(error.to_string());
    let roots = Arc::new(load(env::var_os("SSL_CERT_FILE").map(PathBuf::from))?);
    let judge = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider))
        .build()
        .map_err(|error| unusable(&error))?;
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(&error))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AtTrustedTime(judge)))
        .with_no_client_auth();
    Ok(Arc::new(config))
}

fn load(named: Option<PathBuf>) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    let named = named.filter(|path| !path.as_os_str().is_empty());
    let path = named.as_deref().unwrap_or(Path::new(BUNDLE));
    match read(path) {
        Ok(pem) => {
            let certificates = CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok);
            let (added, _) = roots.add_parsable_certificates(certificates);
            if added == 0 && named.is_some() {
                return Err(Error::Empty(path.to_owned()));
            }
        }
        Err(error) if named.is_some() => return Err(Error::Read(path.to_owned(), error)),
        Err(_) => {}
    }
    if roots.is_empty() {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    Ok(roots)
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut pem = Vec::new();
    File::open(path)?.take(MAX_LENGTH).read_to_end(&mut pem)?;
    Ok(pem)
}

/// Judges validity at trusted time instead of the host's clock. Trusted time is a lower bound; a
/// certificate that begins later proves, once it is otherwise good, that it has begun.
#[derive(Debug)]
struct AtTrustedTime(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AtTrustedTime {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
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
        self.0
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(path, _) => write!(f, "cannot read {} (SSL_CERT_FILE)", path.display()),
            Self::Empty(path) => {
                write!(f, "{} (SSL_CERT_FILE) holds no certificate", path.display())
            }
            Self::Verifier(why) => write!(f, "no verifier: {why}"),
        }
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Read(_, error) => Some(error),
            _ => None,
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
        assert!(matches!(load(Some(empty)), Err(Error::Empty(_))));
    }

    #[test]
    fn without_a_name_there_are_always_roots() {
        assert!(!load(None).unwrap().is_empty());
        assert!(!load(Some(PathBuf::new())).unwrap().is_empty());
    }
}
