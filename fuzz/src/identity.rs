//! identity.json: what is read is written and read back the same, with what a newer version put there.
use bcd::identity::record::{Identity, MAX_CHAIN, MAX_LENGTH};

pub const HEAP: super::Heap = super::Heap {
    base: 64 << 10,
    per_byte: 256,
};

pub fn run(data: &[u8]) {
    match Identity::from_json(data) {
        Ok(identity) => {
            assert!(data.len() <= MAX_LENGTH);
            assert!((1..=MAX_CHAIN).contains(&identity.certificate_chain.len()));
            assert!(identity.leaf().is_ok());
            let text = identity.to_json();
            assert_eq!(
                Identity::from_json(text.as_bytes()).as_ref(),
                Ok(&identity),
                "{text}"
            );
        }
        Err(error) => assert!(!error.to_string().chars().any(char::is_control)),
    }
}
