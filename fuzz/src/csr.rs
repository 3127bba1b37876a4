//! PKCS#10: a request that verifies names a P-256 key that reads back the same.
use bcd::crypto::{csr, spki::PublicKey};

pub const HEAP: super::Heap = super::Heap {
    base: 8192,
    per_byte: 8,
};

pub fn run(data: &[u8]) {
    if let Ok(spki) = csr::verify(data) {
        let key = PublicKey::parse(&spki).expect("a key that signed can be read");
        assert!(matches!(key, PublicKey::P256(_)));
        assert_eq!(key.to_der(), spki, "two encodings of one key");
    }
}
