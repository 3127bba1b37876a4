//! A journal's file: what can be read of it is in order, however it is damaged, and nothing is read
//! twice. The input is a header and the records; the file has them where they belong.
use std::cell::RefCell;
use std::path::PathBuf;

use bcd::journal::{MAX_BODY, MAX_KEY, MAX_VALUE, View, look};
use bcd::sys::fs::Dir;

pub const HEAP: super::Heap = super::Heap {
    base: 256 << 10,
    per_byte: 64,
};

const HEADER: usize = 192;
const SECOND: usize = 4096;
const RECORDS: usize = 8192;

thread_local! {
    static PLACE: RefCell<Option<PathBuf>> = const { RefCell::new(None) };
}

/// A directory of this thread's own, in memory where there is one.
fn place() -> PathBuf {
    PLACE.with_borrow_mut(|place| {
        place
            .get_or_insert_with(|| {
                let shared = PathBuf::from("/dev/shm");
                let root = if shared.is_dir() {
                    shared
                } else {
                    std::env::temp_dir()
                };
                let name = format!(
                    "bcd-fuzz-journal-{}-{:?}",
                    std::process::id(),
                    std::thread::current().id()
                );
                let path = root.join(name.replace(['(', ')'], ""));
                std::fs::create_dir_all(&path).expect("a directory");
                path
            })
            .clone()
    })
}

pub fn run(data: &[u8]) {
    let (header, records) = data.split_at(data.len().min(HEADER));
    let mut bytes = vec![0; RECORDS];
    bytes[..header.len()].copy_from_slice(header);
    bytes[SECOND..SECOND + header.len()].copy_from_slice(header);
    bytes.extend(records);
    let place = place();
    let path = place.join("journal.db");
    std::fs::write(&path, &bytes).expect("a file");
    let seen = look(&Dir::open(&place).expect("a directory"), "journal.db");
    std::fs::remove_dir_all(&place).expect("the directory");
    PLACE.set(None);
    let View::Readable(seen) = seen.expect("a readable file") else {
        return;
    };
    let whole = seen.damage.is_none();
    if let Some(found) = &seen.damage {
        assert!(!found.what.chars().any(char::is_control));
    }
    assert!(seen.used_bytes <= seen.file_bytes + 8 && seen.acked() <= seen.position());
    assert!(seen.keys().count() == seen.key_count());
    for key in seen.keys() {
        assert!(key.key.len() <= MAX_KEY && key.bytes <= MAX_VALUE as u64);
    }
    let (mut before, mut count) = (seen.acked(), 0);
    for event in seen.events() {
        let sequence = event.stored.sequence;
        assert!(sequence > before && sequence <= seen.position());
        assert!(event.stored.body.len() <= MAX_BODY);
        // Of a whole journal nothing is missing that nothing stands for.
        assert!(!whole || event.class.is_none() || sequence == before + 1);
        (before, count) = (sequence, count + 1);
    }
    assert_eq!(count, seen.unacknowledged());
    assert!(!whole || before == seen.position());
}
