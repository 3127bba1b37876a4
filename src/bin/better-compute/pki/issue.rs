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
use bcd::crypto::der::{self, Reader};
use bcd::crypto::key::{self, NodeKey};
use bcd::sys::utc::Utc;

use crate::ids::fill_random;

/// Certificates begin this long before they are issued, since clocks of machines lag; those of a short
/// life by a tenth of it, so that two thirds of it are not over from the start.
const BACKDATED_SECONDS: i64 = 3600;

/// Why a certificate could not be issued: a key or a name that does not fit.
#[derive(Debug)]
pub struct IssueError(Box<dyn Error + Send + Sync>);

impl fmt::Display for IssueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot issue a certificate")
    }
}

impl Error for IssueError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.0)
    }
}

impl From<rcgen::Error> for IssueError {
    fn from(error: rcgen::Error) -> Self {
        Self(error.into())
    }
}

impl From<der::Error> for IssueError {
    fn from(error: der::Error) -> Self {
        Self(error.into())
    }
}

impl From<key::Error> for IssueError {
    fn from(error: key::Error) -> Self {
        Self(error.into())
    }
}

/// Issues node leaves: rcgen says once how one looks, and each is a copy with what is its own. The thread
/// that decides joins issues them, so what this takes bounds joins a second.
pub struct NodeIssuer {
    key: NodeKey,
    model: Model,
}

/// The parts of a leaf that all have alike, in DER.
struct Model {
    version: Vec<u8>,
    algorithm: Vec<u8>,
    issuer: Vec<u8>,
    subject: Vec<u8>,
    /// Those before subjectAltName, and those behind it.
    extensions: [Vec<u8>; 2],
    /// subjectAltName's OID and whether it is critical.
    names: Vec<u8>,
}

impl NodeIssuer {
    /// From the node-identity CA's certificate (DER) and key (PKCS#8).
    ///
    /// # Errors
    /// One of them does not parse.
    pub fn new(ca: &[u8], pkcs8: &[u8]) -> Result<Self, IssueError> {
        let key = NodeKey::from_pkcs8_der(pkcs8)?;
        let leaf = by_rcgen(
            &issuer(ca, pkcs8)?,
            &key.spki_der(),
            "spiffe://a/b",
            params(0, 1),
        )?;
        let model = Model::of(&leaf)?;
        Ok(Self { key, model })
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
        let model = &self.model;
        if !spiffe_id.is_ascii() {
            return Err(
                rcgen::Error::InvalidAsn1String(rcgen::InvalidAsn1String::Ia5String(
                    spiffe_id.to_owned(),
                ))
                .into(),
            );
        }
        let (not_before, not_after) = validity(now_ms, seconds);
        let name = der::element(der::primitive(6), &[spiffe_id.as_bytes()]);
        let names = der::element(der::OCTET_STRING, &[&der::sequence(&[&name])]);
        let [before, behind] = &model.extensions;
        let extensions = der::sequence(&[before, &der::sequence(&[&model.names, &names]), behind]);
        let tbs = der::sequence(&[
            &model.version,
            &der::element(der::INTEGER, &[&serial()]),
            &model.algorithm,
            &model.issuer,
            &der::sequence(&[&time(not_before), &time(not_after)]),
            &model.subject,
            spki,
            &der::element(der::constructed(3), &[&extensions]),
        ]);
        let signature = der::bit_string(&self.key.sign(&tbs)?);
        Ok(der::sequence(&[&tbs, &model.algorithm, &signature]))
    }
}

impl Model {
    fn of(leaf: &[u8]) -> Result<Self, IssueError> {
        let read = |reader: &mut Reader<'_>| -> Result<Self, der::Error> {
            let mut outer = reader.enter(der::SEQUENCE)?;
            let mut fields = outer.enter(der::SEQUENCE)?;
            outer.any()?;
            outer.any()?;
            let version = fields.any()?.raw.to_vec();
            fields.any()?;
            let algorithm = fields.any()?.raw.to_vec();
            let issuer = fields.any()?.raw.to_vec();
            fields.any()?;
            let subject = fields.any()?.raw.to_vec();
            fields.any()?;
            let mut extensions = fields.enter(der::constructed(3))?;
            let mut all = extensions.enter(der::SEQUENCE)?;
            let (mut around, mut names) = ([Vec::new(), Vec::new()], None);
            while !all.is_empty() {
                let extension = all.element(der::SEQUENCE)?;
                let mut parts = Reader::new(extension.content);
                let oid = parts.element(der::OID)?;
                if oid.content != SUBJECT_ALT_NAME {
                    around[usize::from(names.is_some())].extend_from_slice(extension.raw);
                    continue;
                }
                let mut head = oid.raw.to_vec();
                if parts.peek() == Some(der::BOOLEAN) {
                    head.extend_from_slice(parts.any()?.raw);
                }
                names = Some(head);
            }
            Ok(Self {
                version,
                algorithm,
                issuer,
                subject,
                extensions: around,
                names: names.ok_or(der::Error::Value)?,
            })
        };
        Ok(read(&mut Reader::new(leaf))?)
    }
}

/// 2.5.29.17.
const SUBJECT_ALT_NAME: [u8; 3] = [0x55, 0x1d, 0x11];

/// A node's leaf as rcgen makes it.
fn by_rcgen(
    issuer: &Issuer<'_, KeyPair>,
    spki: &[u8],
    spiffe_id: &str,
    mut params: CertificateParams,
) -> Result<Vec<u8>, IssueError> {
    params.subject_alt_names = vec![SanType::URI(spiffe_id.try_into()?)];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    let key = SubjectPublicKeyInfo::from_der(spki)?;
    Ok(params.signed_by(&key, issuer)?.der().to_vec())
}

/// A Time (RFC 5280, 4.1.2.5): UTCTime until 2049.
fn time(seconds: i64) -> Vec<u8> {
    let text = Utc::from_seconds(seconds).to_string();
    let digits: Vec<u8> = text.bytes().filter(|byte| !b"-:T".contains(byte)).collect();
    match digits.as_slice() {
        [b'1', b'9', rest @ ..] if rest.first() >= Some(&b'5') => {
            der::element(der::UTC_TIME, &[rest])
        }
        [b'2', b'0', rest @ ..] if rest.first() < Some(&b'5') => {
            der::element(der::UTC_TIME, &[rest])
        }
        all => der::element(der::GENERALIZED_TIME, &[all]),
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
    params.serial_number = Some(SerialNumber::from_slice(&serial()));
    let at = |seconds: i64| {
        OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH)
    };
    let (not_before, not_after) = validity(now_ms, seconds);
    params.not_before = at(not_before);
    params.not_after = at(not_after);
    params
}

fn serial() -> [u8; 16] {
    let mut serial = [0u8; 16];
    fill_random(&mut serial);
    serial[0] = serial[0] & 0x7f | 0x40;
    serial
}

fn validity(now_ms: i64, seconds: i64) -> (i64, i64) {
    let now = now_ms.div_euclid(1000);
    let not_before = now.saturating_sub(BACKDATED_SECONDS.min(seconds / 10));
    (not_before, now.saturating_add(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaf_by_the_model_is_the_one_that_rcgen_makes() {
        let (ca, node) = (NodeKey::generate().unwrap(), NodeKey::generate().unwrap());
        let key = KeyPair::try_from(ca.pkcs8_der()).unwrap();
        let certificate = self_signed_ca("nodes", &key, 0, 1_700_000_000_000, 1_000_000).unwrap();
        let made = NodeIssuer::new(&certificate, ca.pkcs8_der()).unwrap();
        let rcgens = issuer(&certificate, ca.pkcs8_der()).unwrap();
        for (now_ms, seconds) in [
            (1_790_000_000_123, 30 * 86_400),
            (1_790_000_000_123, 10),
            // Until 2049 a year has two digits, and four after it.
            (2_524_607_000_000, 86_400),
            (3_000_000_000_000, 86_400),
        ] {
            for name in [
                "spiffe://a/node/1",
                &format!("spiffe://{}/node/1", "a".repeat(200)),
            ] {
                let leaf = made.leaf(&node.spki_der(), name, now_ms, seconds).unwrap();
                let read = Certificate::parse(&leaf).unwrap();
                let issuer_of_it = Certificate::parse(&certificate).unwrap();
                assert!(read.is_issued_by(&issuer_of_it));
                let mut same = params(now_ms, seconds);
                same.serial_number = Some(SerialNumber::from_slice(read.serial));
                let rcgens = by_rcgen(&rcgens, &node.spki_der(), name, same).unwrap();
                let signed = |der: &[u8]| {
                    let mut outer = Reader::new(der).enter(der::SEQUENCE).unwrap();
                    (
                        outer.any().unwrap().raw.to_vec(),
                        outer.any().unwrap().raw.to_vec(),
                    )
                };
                assert_eq!(signed(&leaf), signed(&rcgens), "{now_ms} {seconds} {name}");
            }
        }
        assert!(
            made.leaf(&node.spki_der(), "spiffe://ä/node/1", 0, 1)
                .is_err()
        );
    }
}
