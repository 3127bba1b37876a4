//! newc archives: headers are read to the trailer or to an error, holding one name at a time; what was read
//! is written and read back the same.
use std::io::repeat;

use ramdisk::cpio::{Reader, Writer};

pub const HEAP: super::Heap = super::Heap {
    base: 64 << 10,
    per_byte: 64,
};

pub fn run(data: &[u8]) {
    let mut reader = Reader::new(data);
    let mut entries = Vec::new();
    while let Ok(Some(entry)) = reader.next_entry() {
        assert!(reader.position <= data.len() as u64);
        entries.push(entry);
    }
    entries.retain(|entry| entry.size < 1024);
    let mut writer = Writer::new(Vec::new());
    for entry in &entries {
        let mut content = std::io::Read::take(repeat(0), entry.size.into());
        writer
            .entry(entry, &mut content)
            .expect("what was read can be written");
    }
    let archive = writer.finish().expect("a vector takes all");
    let mut reader = Reader::new(&archive[..]);
    for entry in &entries {
        assert_eq!(reader.next_entry().expect("our own").as_ref(), Some(entry));
    }
    assert_eq!(reader.next_entry().expect("our own"), None);
}
