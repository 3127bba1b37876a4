//! PKCS#8, DER and PEM: a key that is read signs, and reads back as the same key.
use bcd::crypto::{key::NodeKey, spki::PublicKey};

pub const HEAP: super::Heap = super::Heap {
    base: 16 << 10,
    per_byte: 16,
};

pub fn run(data: &[u8]) {
    let text = std::str::from_utf8(data).ok();
    let read = [
        NodeKey::from_pkcs8_der(data).ok(),
        text.and_then(|text| NodeKey::from_pem(text).ok()),
    ];
    for key in read.into_iter().flatten() {
        let again = NodeKey::from_pem(&key.to_pem()).expect("a key reads back");
        assert_eq!(again.point(), key.point());
        let public = PublicKey::parse(&key.spki_der()).expect("its public half can be read");
        let signature = key.sign(data).expect("it signs");
        assert!(public.verify(data, &signature).is_ok());
    }
}
