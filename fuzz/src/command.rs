//! A command's params, by kind, its record in the journal, and the files it gives an OS: what is read is written and
//! read back the same; what is refused is refused in one line; a hostname ends no line of a file.
use bcd::command::kinds::KINDS;
use bcd::command::record::Record;
use bcd::deploy::files::Wanted;
use bcd::proto::{Message, OsFiles};

pub const HEAP: super::Heap = super::Heap {
    base: 16 << 10,
    per_byte: 64,
};

/// Files for an OS.
const FILES: u8 = 200;

/// The first byte says which.
pub fn run(data: &[u8]) {
    let Some((first, bytes)) = data.split_first() else {
        return;
    };
    match KINDS.get(usize::from(*first)) {
        Some(kind) => {
            if let Err(message) = (kind.read)(bytes) {
                assert!(!message.is_empty() && !message.chars().any(char::is_control));
            }
        }
        None if *first == FILES => {
            let Ok(wanted) = OsFiles::decode(bytes) else {
                return;
            };
            match Wanted::read(wanted) {
                Ok(wanted) => {
                    let files = wanted.files("ord_1", None);
                    assert!(files.len() <= 3);
                    for file in files.iter().filter(|file| file.name == "meta-data") {
                        let text = std::str::from_utf8(&file.bytes).expect("it is text");
                        assert!((1..=2).contains(&text.lines().count()), "{text}");
                    }
                }
                Err(why) => super::one_line(&why),
            }
        }
        None => {
            if let Some(record) = Record::decode(bytes) {
                assert_eq!(Record::decode(&record.encode()), Some(record));
            }
        }
    }
}
