//! The PKI bundle: what is read is written and reads back the same, its pins are there, and a private half
//! that opens but is not one is refused.
use bcd::config::MAX_BYTES;
use better_compute::api::wellknown;
use better_compute::pki::{Bundle, Lock, Private};

pub const HEAP: super::Heap = super::Heap {
    base: 256 << 10,
    per_byte: 128,
};

pub fn run(data: &[u8]) {
    if let Err(error) = Private::parse(data) {
        super::one_line(&error);
    }
    match Bundle::parse(data) {
        Err(why) => super::one_line(&why),
        Ok(bundle) => {
            let again = Bundle::parse(bundle.to_json().as_bytes());
            let again = again.expect("what was written is read");
            assert_eq!(again.public, bundle.public);
            assert_eq!(again.to_json(), bundle.to_json());
            assert_eq!(again.sealed_with(), bundle.sealed_with());
            let public = &bundle.public;
            assert!(public.pins().serving_ca.to_string().starts_with("sha256/"));
            let _ = (public.node_ca_pin(), public.command_root_sha256());
            if let Some(document) = wellknown::document(public, "https://gw.example", None) {
                assert!(document.len() < MAX_BYTES);
            }
            // The key opens none of these; that it says so, not in what words, counts here.
            let lock = Lock::Key(vec![1; 32].into());
            if let Err(error) = bundle.open(&lock) {
                super::one_line(&error);
            }
        }
    }
}
