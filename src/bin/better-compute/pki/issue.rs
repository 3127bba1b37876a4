//! Issuing certificates: the CAs themselves, a gateway's serving leaf, and node leaves.

use std::error::Error;
use std::fmt;
use std::net::IpAddr;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType, SerialNumber,
    SubjectPublicKeyInfo,
};
use rustls_pki_types::CertificateDer;
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer, X509Certificate};

use bcd::crypto::certificate::Certificate;

use crate::ids::fill_random;

/// Certificates begin this long before they are issued, since clocks of machines lag; those of a short
/// life by a tenth of it, so that two thirds of it are not over from the start.
const BACKDATED_SECONDS: i64 = 3600;

/// Why a certificate could not be issued: a key or a name that does not fit.
#[derive(Debug)]
pub struct IssueError(rcgen::Error);

impl fmt::Display for IssueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot issue a certificate")
    }
}

impl Error for IssueError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.0)
    }
}

impl From<rcgen::Error> for IssueError {
    fn from(error: rcgen::Error) -> Self {
        Self(error)
    }
}

/// Issues node leaves.
pub struct NodeIssuer(Issuer<'static, KeyPair>);

impl NodeIssuer {
    /// From the node-identity CA's certificate (DER) and key (PKCS#8).
    ///
    /// # Errors
    /// One of them does not parse.
    pub fn new(ca: &[u8], pkcs8: &[u8]) -> Result<Self, IssueError> {
        Ok(Self(issuer(ca, pkcs8)?))
    }

    /// A leaf in DER over a P-256 SubjectPublicKeyInfo whose only alternative name is `spiffe_id`,
    /// valid for `seconds` from `now_ms`.
    ///
    /// # Errors
    /// The key is no P-256 key, or the name no URI.
    pub fn leaf(
        &self,
        spki: &[u8],
        spiffe_id: &str,
        now_ms: i64,
        seconds: i64,
    ) -> Result<Vec<u8>, IssueError> {
        let mut params = params(now_ms, seconds);
        params.subject_alt_names = vec![SanType::URI(spiffe_id.try_into()?)];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let key = SubjectPublicKeyInfo::from_der(spki)?;
        Ok(params.signed_by(&key, &self.0)?.der().to_vec())
    }
}

/// Issues a gateway's and an API's leaves.
pub struct ServingIssuer(Issuer<'static, KeyPair>);

/// A serving leaf and its key.
pub struct ServingLeaf {
    /// DER.
    pub certificate: Vec<u8>,
    /// PKCS#8, DER.
    pub key: Vec<u8>,
}

impl ServingIssuer {
    /// From the serving CA's certificate (DER) and key (PKCS#8).
    ///
    /// # Errors
    /// One of them does not parse.
    pub fn new(ca: &[u8], pkcs8: &[u8]) -> Result<Self, IssueError> {
        Ok(Self(issuer(ca, pkcs8)?))
    }

    /// A new key and a leaf for `names` (DNS names and literal addresses), valid for `seconds`.
    ///
    /// # Errors
    /// A name is neither.
    pub fn leaf(
        &self,
        names: &[String],
        now_ms: i64,
        seconds: i64,
    ) -> Result<ServingLeaf, IssueError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = params(now_ms, seconds);
        for name in names {
            params.subject_alt_names.push(match name.parse::<IpAddr>() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName(name.as_str().try_into()?),
            });
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.0)?.der().to_vec();
        Ok(ServingLeaf {
            certificate,
            key: key.serialize_der(),
        })
    }
}

/// A self-signed CA certificate in DER that may have `paths` more CAs below it.
pub(super) fn self_signed_ca(
    name: &str,
    key: &KeyPair,
    paths: u8,
    now_ms: i64,
    seconds: i64,
) -> Result<Vec<u8>, IssueError> {
    let params = ca_params(name, paths, now_ms, seconds);
    Ok(params.self_signed(key)?.der().to_vec())
}

/// The CA `name` with its key, certified by another CA (certificate and PKCS#8 key), in DER; valid for
/// as long as that one.
pub(super) fn cross_certificate(
    name: &str,
    key: &KeyPair,
    by: &[u8],
    by_pkcs8: &[u8],
    now_ms: i64,
) -> Result<Vec<u8>, IssueError> {
    let until = Certificate::parse(by).map_or(0, |ca| ca.not_after);
    let seconds = until.saturating_sub(now_ms.div_euclid(1000));
    let mut params = ca_params(name, 0, now_ms, seconds);
    params.use_authority_key_identifier_extension = true;
    Ok(params
        .signed_by(key, &issuer(by, by_pkcs8)?)?
        .der()
        .to_vec())
}

fn ca_params(name: &str, paths: u8, now_ms: i64, seconds: i64) -> CertificateParams {
    let mut params = params(now_ms, seconds);
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(paths));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// The SubjectPublicKeyInfo of a certificate, both in DER.
pub(super) fn spki_of(certificate: &[u8]) -> Option<Vec<u8>> {
    let (rest, certificate) = X509Certificate::from_der(certificate).ok()?;
    rest.is_empty()
        .then(|| certificate.tbs_certificate.subject_pki.raw.to_vec())
}

fn issuer(ca: &[u8], pkcs8: &[u8]) -> Result<Issuer<'static, KeyPair>, IssueError> {
    let key = KeyPair::try_from(pkcs8)?;
    Ok(Issuer::from_ca_cert_der(&CertificateDer::from(ca), key)?)
}

/// An empty subject, a random serial of 127 bits, and the validity.
fn params(now_ms: i64, seconds: i64) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let mut serial = [0u8; 16];
    fill_random(&mut serial);
    serial[0] = serial[0] & 0x7f | 0x40;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    let now = now_ms.div_euclid(1000);
    let at = |seconds: i64| {
        OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH)
    };
    params.not_before = at(now.saturating_sub(BACKDATED_SECONDS.min(seconds / 10)));
    params.not_after = at(now.saturating_add(seconds));
    params
}
