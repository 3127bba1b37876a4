//! DSSE's JSON, and verification: what is read is written and read back the same; nobody's signature
//! holds.
use bcd::crypto::envelope::{self, Purpose};
use bcd::crypto::pin::Pin;
use bcd::proto::{Envelope, Message};

pub const HEAP: super::Heap = super::Heap {
    base: 64 << 10,
    per_byte: 256,
};

pub fn run(data: &[u8]) {
    let read = [envelope::from_json(data).ok(), Envelope::decode(data).ok()];
    for envelope in read.into_iter().flatten() {
        let text = envelope::to_json(&envelope);
        assert_eq!(
            envelope::from_json(text.as_bytes()).as_ref(),
            Ok(&envelope),
            "{text}"
        );
        let refused = envelope::verify_pinned(&envelope, Purpose::TrustBundle, &[Pin([7; 32])]);
        let said = refused.expect_err("a key nobody has signed").to_string();
        assert!(!said.chars().any(char::is_control), "{said:?}");
        assert!(said.len() < 4096, "{said}");
        let keys: Vec<&[u8]> = vec![data];
        assert!(envelope::verify(&envelope, Purpose::TrustBundle, &keys).is_err());
    }
}
