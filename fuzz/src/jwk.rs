//! The JWK: a key that is read is written and read back the same, with the same pin.
use bcd::crypto::jwk::{MAX_LENGTH, PublicKey};

pub const HEAP: super::Heap = super::Heap {
    base: 16 << 10,
    per_byte: 64,
};

pub fn run(data: &[u8]) {
    let Ok(key) = PublicKey::parse(data) else {
        return;
    };
    assert!(data.len() <= MAX_LENGTH);
    let again = PublicKey::parse(key.to_json().as_bytes()).expect("a key reads back");
    assert!(again == key);
    assert_eq!(again.pin(), key.pin());
}
