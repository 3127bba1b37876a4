//! What the doctor reads of others' texts: each is judged, with evidence, and what is not well with a remedy.
use bcd::doctor::{Level, read_texts};

pub const HEAP: super::Heap = super::Heap {
    base: 16 << 10,
    per_byte: 16,
};

pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for verdict in read_texts(&text) {
        assert!(!verdict.evidence.is_empty());
        if verdict.level == Level::Ok {
            assert!(verdict.remedy.is_empty());
        }
    }
}
