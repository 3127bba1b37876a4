//! What TLS is made of here: the suites, groups, signatures and kinds of keys of ring that bcd's
//! connections use, named one by one, so that the linker leaves out the others.
//!
//! - Suites: AES-GCM. What speaks TLS 1.3 must have it (RFC 8446, 9.1), and what speaks 1.2 has it.
//! - Key agreement: P-256, which TLS 1.3 demands as well, and P-384.
//! - Signatures of a peer: all that ring verifies, since others choose their certificates.
//! - Our own key: ECDSA, the only kind a node has.
use std::sync::Arc;

use rustls::crypto::ring::sign::any_ecdsa_type;
use rustls::crypto::ring::{cipher_suite, kx_group};
use rustls::crypto::{
    CryptoProvider, GetRandomFailed, KeyProvider, SecureRandom, WebPkiSupportedAlgorithms,
};
use rustls::sign::SigningKey;
use rustls::{Error, SignatureScheme};
use rustls_pki_types::PrivateKeyDer;
use webpki::ring;

use crate::sys::random;

/// The provider of every client that bcd has.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: vec![
            cipher_suite::TLS13_AES_256_GCM_SHA384,
            cipher_suite::TLS13_AES_128_GCM_SHA256,
            cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
            cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
            cipher_suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
            cipher_suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        ],
        kx_groups: vec![kx_group::SECP256R1, kx_group::SECP384R1],
        signature_verification_algorithms: SIGNATURES,
        secure_random: &Kernel,
        key_provider: &Ecdsa,
    })
}

/// The signatures that are verified, as rustls' own provider for ring has them.
pub static SIGNATURES: WebPkiSupportedAlgorithms = WebPkiSupportedAlgorithms {
    all: &[
        ring::ECDSA_P256_SHA256,
        ring::ECDSA_P256_SHA384,
        ring::ECDSA_P384_SHA256,
        ring::ECDSA_P384_SHA384,
        ring::ED25519,
        ring::RSA_PSS_2048_8192_SHA256_LEGACY_KEY,
        ring::RSA_PSS_2048_8192_SHA384_LEGACY_KEY,
        ring::RSA_PSS_2048_8192_SHA512_LEGACY_KEY,
        ring::RSA_PKCS1_2048_8192_SHA256,
        ring::RSA_PKCS1_2048_8192_SHA384,
        ring::RSA_PKCS1_2048_8192_SHA512,
        ring::RSA_PKCS1_2048_8192_SHA256_ABSENT_PARAMS,
        ring::RSA_PKCS1_2048_8192_SHA384_ABSENT_PARAMS,
        ring::RSA_PKCS1_2048_8192_SHA512_ABSENT_PARAMS,
    ],
    mapping: &[
        // TLS 1.2 leaves the curve open; 1.3 takes the first.
        (
            SignatureScheme::ECDSA_NISTP384_SHA384,
            &[ring::ECDSA_P384_SHA384, ring::ECDSA_P256_SHA384],
        ),
        (
            SignatureScheme::ECDSA_NISTP256_SHA256,
            &[ring::ECDSA_P256_SHA256, ring::ECDSA_P384_SHA256],
        ),
        (SignatureScheme::ED25519, &[ring::ED25519]),
        (
            SignatureScheme::RSA_PSS_SHA512,
            &[ring::RSA_PSS_2048_8192_SHA512_LEGACY_KEY],
        ),
        (
            SignatureScheme::RSA_PSS_SHA384,
            &[ring::RSA_PSS_2048_8192_SHA384_LEGACY_KEY],
        ),
        (
            SignatureScheme::RSA_PSS_SHA256,
            &[ring::RSA_PSS_2048_8192_SHA256_LEGACY_KEY],
        ),
        (
            SignatureScheme::RSA_PKCS1_SHA512,
            &[ring::RSA_PKCS1_2048_8192_SHA512],
        ),
        (
            SignatureScheme::RSA_PKCS1_SHA384,
            &[ring::RSA_PKCS1_2048_8192_SHA384],
        ),
        (
            SignatureScheme::RSA_PKCS1_SHA256,
            &[ring::RSA_PKCS1_2048_8192_SHA256],
        ),
    ],
};

/// The kernel's generator.
#[derive(Debug)]
struct Kernel;

impl SecureRandom for Kernel {
    fn fill(&self, out: &mut [u8]) -> Result<(), GetRandomFailed> {
        random::fill(out).map_err(|_| GetRandomFailed)
    }
}

/// Loads ECDSA keys.
#[derive(Debug)]
struct Ecdsa;

impl KeyProvider for Ecdsa {
    fn load_private_key(&self, key: PrivateKeyDer<'static>) -> Result<Arc<dyn SigningKey>, Error> {
        any_ecdsa_type(&key)
    }
}

#[cfg(test)]
mod tests {
    use rustls::crypto::ring::default_provider;

    use super::*;

    #[test]
    fn every_signature_that_rustls_verifies_with_ring_is_verified() {
        let theirs = default_provider().signature_verification_algorithms;
        assert_eq!(SIGNATURES.all.len(), theirs.all.len());
        for (ours, theirs) in SIGNATURES.all.iter().zip(theirs.all) {
            assert_eq!(ours.public_key_alg_id(), theirs.public_key_alg_id());
            assert_eq!(ours.signature_alg_id(), theirs.signature_alg_id());
        }
        assert_eq!(SIGNATURES.supported_schemes(), theirs.supported_schemes());
        for (ours, theirs) in SIGNATURES.mapping.iter().zip(theirs.mapping) {
            assert_eq!(ours.1.len(), theirs.1.len());
        }
    }

    #[test]
    fn what_tls_1_3_demands_is_offered() {
        let offered = provider();
        let suites: Vec<_> = offered.cipher_suites.iter().map(|s| s.suite()).collect();
        assert!(suites.contains(&rustls::CipherSuite::TLS13_AES_128_GCM_SHA256));
        let groups: Vec<_> = offered.kx_groups.iter().map(|group| group.name()).collect();
        assert_eq!(groups.first(), Some(&rustls::NamedGroup::secp256r1));
    }
}
