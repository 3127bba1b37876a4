//! What debugfs and mtools print of file systems that nobody vouches for: no name comes out that could be taken for
//! anything else when it is asked for.
use bcd::deploy::volumes::{in_ext, in_fat, parse_stat};

pub const HEAP: super::Heap = super::Heap {
    base: 64 << 10,
    per_byte: 64,
};

pub fn run(data: &[u8]) {
    if let Some(stat) = parse_stat(data) {
        assert_eq!(parse_stat(data), Some(stat));
    }
    for (name, _) in in_ext(data).into_iter().chain(in_fat(data, "/EFI")) {
        assert!(
            !name.is_empty() && !name.contains(['/', '"', '\\']),
            "{name:?}"
        );
        assert!(!name.contains(char::is_control), "{name:?}");
    }
}
