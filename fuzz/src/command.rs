//! A command's params, by kind, and its record in the journal: what is read is written and read back the
//! same; what is refused is refused in one line.
use bcd::command::kinds::KINDS;
use bcd::command::record::Record;

pub const HEAP: super::Heap = super::Heap {
    base: 16 << 10,
    per_byte: 64,
};

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
        None => {
            if let Some(record) = Record::decode(bytes) {
                assert_eq!(Record::decode(&record.encode()), Some(record));
            }
        }
    }
}
