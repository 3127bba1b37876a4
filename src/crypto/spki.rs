//! Public keys as SubjectPublicKeyInfo (RFC 5480, RFC 8410): P-256 for everything, Ed25519
//! besides for release keys. A P-256 point is uncompressed, 65 bytes.
use std::fmt;

use ring::signature::{ECDSA_P256_SHA256_ASN1, ED25519, UnparsedPublicKey};

use super::der::{self, Reader};

/// Everything before the point in the SubjectPublicKeyInfo of a P-256 key.
const P256_HEAD: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
/// The same of an Ed25519 key.
const ED25519_HEAD: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];

/// The length of a P-256 point.
pub const POINT: usize = 65;

/// A key that can verify.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum PublicKey {
    /// The uncompressed point, from 0x04.
    P256([u8; POINT]),
    Ed25519([u8; 32]),
}

/// Why bytes are not such a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// A SubjectPublicKeyInfo, but of another kind of key.
    Unsupported,
    /// Not a SubjectPublicKeyInfo.
    Der(der::Error),
}

/// The signature is not this key's over this message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadSignature;

impl PublicKey {
    /// Reads a DER SubjectPublicKeyInfo.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn parse(spki: &[u8]) -> Result<Self, Error> {
        if let Some(point) = spki.strip_prefix(&P256_HEAD)
            && let Ok(point) = <[u8; POINT]>::try_from(point)
            && point.first() == Some(&4)
        {
            return Ok(Self::P256(point));
        }
        if let Some(key) = spki.strip_prefix(&ED25519_HEAD)
            && let Ok(key) = <[u8; 32]>::try_from(key)
        {
            return Ok(Self::Ed25519(key));
        }
        Reader::whole(spki, |reader| {
            let mut info = reader.enter(der::SEQUENCE)?;
            info.element(der::SEQUENCE)?;
            info.bit_string()?;
            info.finish()
        })
        .map_err(Error::Der)?;
        Err(Error::Unsupported)
    }

    /// The DER SubjectPublicKeyInfo.
    pub fn to_der(&self) -> Vec<u8> {
        match self {
            Self::P256(point) => p256(point),
            Self::Ed25519(key) => [&ED25519_HEAD[..], key].concat(),
        }
    }

    /// Checks a signature: ECDSA with SHA-256 as ASN.1 DER for P-256, 64 bytes for Ed25519.
    ///
    /// # Errors
    /// It does not hold.
    pub fn verify(&self, message: &[u8], signature: &[u8]) -> Result<(), BadSignature> {
        let verified = match self {
            Self::P256(point) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, point).verify(message, signature)
            }
            Self::Ed25519(key) => UnparsedPublicKey::new(&ED25519, key).verify(message, signature),
        };
        verified.map_err(|_| BadSignature)
    }
}

/// The DER SubjectPublicKeyInfo of an uncompressed P-256 point.
pub fn p256(point: &[u8; POINT]) -> Vec<u8> {
    [&P256_HEAD[..], point].concat()
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported => f.write_str("the key is neither P-256 nor Ed25519"),
            Self::Der(_) => f.write_str("not a public key"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Der(error) => Some(error),
            Self::Unsupported => None,
        }
    }
}

impl fmt::Display for BadSignature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the signature does not hold")
    }
}

impl std::error::Error for BadSignature {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_read_back() {
        let mut point = [9; POINT];
        point[0] = 4;
        for key in [PublicKey::P256(point), PublicKey::Ed25519([3; 32])] {
            assert!(PublicKey::parse(&key.to_der()) == Ok(key));
        }
    }

    #[test]
    fn other_keys_and_damaged_ones_are_told_apart() {
        let rsa = der::sequence(&[&der::sequence(&[]), &der::bit_string(b"x")]);
        assert!(PublicKey::parse(&rsa) == Err(Error::Unsupported));
        let compressed = [&P256_HEAD[..], &[2; POINT]].concat();
        assert!(PublicKey::parse(&compressed) == Err(Error::Unsupported));
        let whole = PublicKey::Ed25519([3; 32]).to_der();
        for length in 0..whole.len() {
            assert!(matches!(
                PublicKey::parse(&whole[..length]),
                Err(Error::Der(_))
            ));
        }
    }
}
