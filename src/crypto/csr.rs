//! Certificate requests (PKCS#10, RFC 2986): the node's key, signed by itself. The subject is
//! empty and there are no attributes: who a node is, the JoinService decides.
use std::fmt;

use super::der::{self, Reader};
use super::key::{self, NodeKey};
use super::spki::{BadSignature, PublicKey};

/// AlgorithmIdentifier of ecdsa-with-SHA256 (RFC 5758).
pub(super) const ECDSA_SHA256: [u8; 12] = [
    0x30, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02,
];

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// Not a PKCS#10 request.
    Der(der::Error),
    /// The key is not P-256.
    Key,
    /// Signed by another algorithm than ECDSA with SHA-256.
    Algorithm,
    /// The request is not signed by its own key.
    Signature,
}

/// Builds the request for `key`, DER.
///
/// # Errors
/// Signing failed for want of random bytes.
pub fn build(key: &NodeKey) -> Result<Vec<u8>, key::Error> {
    let version = der::element(der::INTEGER, &[&[0]]);
    let subject = der::sequence(&[]);
    let attributes = der::element(der::constructed(0), &[]);
    let info = der::sequence(&[&version, &subject, &key.spki_der(), &attributes]);
    let signature = key.sign(&info)?;
    Ok(der::sequence(&[
        &info,
        &ECDSA_SHA256,
        &der::bit_string(&signature),
    ]))
}

/// Reads a request, checks that its own P-256 key signed it, and gives that key's DER
/// SubjectPublicKeyInfo. Subject and attributes are not looked at.
///
/// # Errors
/// See [`Error`].
pub fn verify(csr: &[u8]) -> Result<Vec<u8>, Error> {
    let parsed = Reader::whole(csr, |reader| {
        let mut request = reader.enter(der::SEQUENCE)?;
        let info = request.element(der::SEQUENCE)?;
        let algorithm = request.element(der::SEQUENCE)?.raw;
        let signature = request.bit_string()?;
        request.finish()?;

        let mut fields = Reader::new(info.content);
        if fields.integer()? != [0] {
            return Err(der::Error::Value);
        }
        fields.element(der::SEQUENCE)?;
        let spki = fields.element(der::SEQUENCE)?.raw;
        fields.element(der::constructed(0))?;
        fields.finish()?;
        Ok((info.raw, spki, algorithm, signature))
    });
    let (info, spki, algorithm, signature) = parsed.map_err(Error::Der)?;
    let key = match PublicKey::parse(spki) {
        Ok(key @ PublicKey::P256(_)) => key,
        _ => return Err(Error::Key),
    };
    if algorithm != ECDSA_SHA256 {
        return Err(Error::Algorithm);
    }
    key.verify(info, signature)
        .map_err(|BadSignature| Error::Signature)?;
    Ok(spki.to_vec())
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Der(_) => "not a PKCS#10 certificate request",
            Self::Key => "the certificate request is not for a P-256 key",
            Self::Algorithm => "the certificate request is not signed by ECDSA with SHA-256",
            Self::Signature => "the certificate request is not signed by its own key",
        })
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Der(error) => Some(error),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `openssl req -new -subj /CN=x` with the key of `key::tests`.
    const OPENSSL_CSR: &str = include_str!("testdata/openssl-p256.csr");

    #[test]
    fn a_request_verifies_and_names_its_key() {
        let key = NodeKey::generate().unwrap();
        assert_eq!(verify(&build(&key).unwrap()).unwrap(), key.spki_der());
    }

    #[test]
    fn a_request_openssl_made_is_read() {
        let key = NodeKey::from_pem(key::tests::OPENSSL_KEY).unwrap();
        let der = super::super::pem::decode(OPENSSL_CSR, "CERTIFICATE REQUEST").unwrap();
        assert_eq!(verify(&der).unwrap(), key.spki_der());
    }

    #[test]
    fn a_request_signed_by_another_key_is_refused() {
        let mine = build(&NodeKey::generate().unwrap()).unwrap();
        let other = NodeKey::generate().unwrap();
        let mut reader = Reader::new(&mine).enter(der::SEQUENCE).unwrap();
        let info = reader.any().unwrap().raw;
        let forged = der::bit_string(&other.sign(info).unwrap());
        let forged = der::sequence(&[info, &ECDSA_SHA256, &forged]);
        assert_eq!(verify(&forged), Err(Error::Signature));
        let renamed = der::sequence(&[info, &der::sequence(&[]), &der::bit_string(b"")]);
        assert_eq!(verify(&renamed), Err(Error::Algorithm));
    }

    #[test]
    fn a_damaged_request_is_refused_at_every_byte() {
        let csr = build(&NodeKey::generate().unwrap()).unwrap();
        for length in 0..csr.len() {
            assert!(verify(&csr[..length]).is_err());
        }
        for at in 0..csr.len() {
            for bit in 0..8 {
                let mut flipped = csr.clone();
                flipped[at] ^= 1 << bit;
                assert!(verify(&flipped).is_err(), "byte {at} bit {bit}");
            }
        }
    }

    #[cfg(feature = "control-plane")]
    #[test]
    fn another_implementation_accepts_the_request() {
        let csr = build(&NodeKey::generate().unwrap()).unwrap();
        let der = rustls_pki_types::CertificateSigningRequestDer::from(csr);
        rcgen::CertificateSigningRequestParams::from_der(&der).unwrap();
    }
}
