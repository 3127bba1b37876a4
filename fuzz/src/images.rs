//! Images of disks, packed in any way: whatever the bytes, they are unpacked within bounds, or refused in words.
use std::io::{Cursor, Read};

use bcd::deploy::image;

/// A window or dictionary of 32 MiB, and what stands around it.
pub const HEAP: super::Heap = super::Heap {
    base: 40 << 20,
    per_byte: 64,
};

/// What a disk holds here.
const DISK: u64 = 1 << 20;

pub fn run(data: &[u8]) {
    let unpacked = match image::unpacked(Box::new(Cursor::new(data.to_vec())), DISK) {
        Ok((unpacked, formats)) => {
            assert!((1..=2).contains(&formats.len()), "{formats:?}");
            let mut all = Vec::new();
            let read = unpacked.take(DISK).read_to_end(&mut all);
            if formats == ["raw"] {
                assert!(read.is_ok() && data.starts_with(&all));
            }
            read.err().map(|error| error.to_string())
        }
        Err(error) => Some(image::Error::to_string(&error)),
    };
    if let Some(error) = unpacked {
        assert!(!error.is_empty() && !error.contains('\n'), "{error}");
    }
}
