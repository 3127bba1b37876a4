//! SubjectPublicKeyInfo: one encoding a key, as pins are made of it.
use bcd::crypto::spki::PublicKey;

pub const HEAP: super::Heap = super::Heap {
    base: 4096,
    per_byte: 8,
};

pub fn run(data: &[u8]) {
    if let Ok(key) = PublicKey::parse(data) {
        assert_eq!(key.to_der(), data, "two encodings of one key");
        assert!(key.verify(b"anything", data).is_err());
    }
}
