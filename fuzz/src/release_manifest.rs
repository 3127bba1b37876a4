//! A release manifest's payload: what is accepted says so again when it is written, and names files only.
use bcd::update::manifest::Manifest;
use nanoserde::SerJson;

pub const HEAP: super::Heap = super::Heap {
    base: 64 << 10,
    per_byte: 256,
};

pub fn run(data: &[u8]) {
    match Manifest::parse(data) {
        Ok(manifest) => {
            let text = manifest.serialize_json();
            assert_eq!(Manifest::parse(text.as_bytes()).as_ref(), Ok(&manifest));
            for file in &manifest.files {
                assert!(!file.name.contains('/') && !file.name.starts_with('.'));
            }
        }
        Err(said) => super::one_line(&said),
    }
    assert!(Manifest::verify(data, &[], 1, 0).is_err());
}
