//! The well-known document: what is settled holds a key with the pin it was given for.
use bcd::attest::bootstrap::{Given, MAX_LENGTH, settle};

pub const HEAP: super::Heap = super::Heap {
    base: 64 << 10,
    per_byte: 128,
};

pub fn run(data: &[u8]) {
    for insecure in [false, true] {
        match settle(data, &Given::default(), insecure) {
            Ok(settled) => {
                assert!(data.len() <= MAX_LENGTH);
                assert_eq!(settled.encryption_key.pin(), settled.encryption);
                assert!(settled.gateway_url.https || insecure);
                // A pin given and not the published one refuses the same document.
                let mut other = settled.serving_ca;
                other.0[0] ^= 1;
                let given = Given {
                    serving_ca: Some(other),
                    ..Given::default()
                };
                let published = String::from_utf8_lossy(data).contains("servingCaPin");
                assert!(!published || settle(data, &given, insecure).is_err());
            }
            Err(refused) => {
                let said = refused.to_string();
                assert!(!said.chars().any(char::is_control), "{said:?}");
                assert!(said.len() < 2048);
            }
        }
    }
}
