//! A P-256 private key: the node's own, and every signing key of the control plane. It is made
//! here, kept as PKCS#8 (RFC 5958, with its public half), and signs ECDSA with SHA-256. Its
//! PKCS#8 bytes are wiped when dropped; it has no `Debug`.
use std::fmt;

use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use zeroize::Zeroizing;

use super::pin::Pin;
use super::{pem, spki};

/// A P-256 private key.
pub struct NodeKey {
    pair: EcdsaKeyPair,
    point: [u8; spki::POINT],
    pkcs8: Zeroizing<Vec<u8>>,
}

/// Why there is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The system gave no random bytes.
    Random,
    /// Not a PKCS#8 PEM file.
    Pem(pem::Error),
    /// Not the PKCS#8 of a P-256 key with its public half, or the halves do not belong together.
    Rejected,
}

impl NodeKey {
    /// Makes a new key.
    ///
    /// # Errors
    /// [`Error::Random`].
    pub fn generate() -> Result<Self, Error> {
        let random = SystemRandom::new();
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &random)
            .map_err(|_| Error::Random)?;
        Self::from_pkcs8_der(document.as_ref())
    }

    /// Reads PKCS#8 DER.
    ///
    /// # Errors
    /// [`Error::Rejected`].
    pub fn from_pkcs8_der(der: &[u8]) -> Result<Self, Error> {
        let random = SystemRandom::new();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, der, &random)
            .map_err(|_| Error::Rejected)?;
        let point = pair
            .public_key()
            .as_ref()
            .try_into()
            .map_err(|_| Error::Rejected)?;
        Ok(Self {
            pair,
            point,
            pkcs8: Zeroizing::new(der.to_vec()),
        })
    }

    /// Reads a PKCS#8 PEM file (`BEGIN PRIVATE KEY`).
    ///
    /// # Errors
    /// [`Error::Pem`] or [`Error::Rejected`].
    pub fn from_pem(text: &str) -> Result<Self, Error> {
        let der = pem::decode(text, pem::PRIVATE_KEY).map_err(Error::Pem)?;
        Self::from_pkcs8_der(&der)
    }

    /// The PKCS#8 PEM file of this key.
    pub fn to_pem(&self) -> Zeroizing<String> {
        pem::encode(pem::PRIVATE_KEY, &self.pkcs8)
    }

    /// The PKCS#8 DER of this key.
    pub fn pkcs8_der(&self) -> &[u8] {
        &self.pkcs8
    }

    /// This key as rustls takes it for client authentication. (rustls keeps it as long as its
    /// configuration lives.)
    pub fn to_rustls(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.pkcs8.to_vec()).into()
    }

    /// The public point, uncompressed.
    pub fn point(&self) -> &[u8; spki::POINT] {
        &self.point
    }

    /// The DER SubjectPublicKeyInfo.
    pub fn spki_der(&self) -> Vec<u8> {
        spki::p256(&self.point)
    }

    /// The pin of the public half.
    pub fn pin(&self) -> Pin {
        Pin::of_spki(&self.spki_der())
    }

    /// Signs `message`: ECDSA with SHA-256, ASN.1 DER, with a fresh nonce each time.
    ///
    /// # Errors
    /// [`Error::Random`].
    pub fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let signature = self.pair.sign(&SystemRandom::new(), message);
        Ok(signature.map_err(|_| Error::Random)?.as_ref().to_vec())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Random => "the system gives no random bytes",
            Self::Pem(_) => "not a PEM private key",
            Self::Rejected => "not a PKCS#8 P-256 private key with its public half",
        })
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Pem(error) => Some(error),
            _ => None,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// `openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256` and its
    /// `openssl pkey -pubout`, OpenSSL 3.
    pub(crate) const OPENSSL_KEY: &str = include_str!("testdata/openssl-p256.key");
    pub(crate) const OPENSSL_PUB: &str = include_str!("testdata/openssl-p256.pub");

    #[test]
    fn a_key_reads_back_from_its_file_and_signs_as_itself() {
        let key = NodeKey::generate().unwrap();
        let again = NodeKey::from_pem(&key.to_pem()).unwrap();
        assert_eq!(again.spki_der(), key.spki_der());
        let signature = again.sign(b"message").unwrap();
        let public = spki::PublicKey::parse(&key.spki_der()).ok().unwrap();
        public.verify(b"message", &signature).unwrap();
        assert!(public.verify(b"massage", &signature).is_err());
        assert_ne!(NodeKey::generate().unwrap().pin(), key.pin());
    }

    #[test]
    fn a_key_openssl_made_is_read_and_has_the_public_half_openssl_says() {
        let key = NodeKey::from_pem(OPENSSL_KEY).unwrap();
        let public = pem::decode(OPENSSL_PUB, pem::PUBLIC_KEY).unwrap();
        assert_eq!(key.spki_der(), *public);
    }

    #[test]
    fn a_damaged_key_is_refused_at_every_byte() {
        let key = NodeKey::from_pem(OPENSSL_KEY).unwrap();
        let der = key.pkcs8_der();
        for length in 0..der.len() {
            assert!(NodeKey::from_pkcs8_der(&der[..length]).is_err(), "{length}");
        }
        for at in 0..der.len() {
            let mut flipped = der.to_vec();
            flipped[at] ^= 1;
            if let Ok(other) = NodeKey::from_pkcs8_der(&flipped) {
                // What is not checked must not matter.
                assert_eq!(other.spki_der(), key.spki_der(), "{at}");
            }
        }
        assert!(matches!(NodeKey::from_pem(""), Err(Error::Pem(_))));
    }
}
