//! Requests on the status socket: one that is taken is written so that it reads back the same, and none is
//! taken that is longer than a request may be.
use bcd::status::server::{REQUEST, Request};

pub const HEAP: super::Heap = super::Heap {
    base: 16 << 10,
    per_byte: 16,
};

pub fn run(data: &[u8]) {
    match Request::parse(data) {
        Ok(request) => {
            assert!(data.trim_ascii().len() <= REQUEST);
            assert_eq!(Request::parse(request.line().as_bytes()), Ok(request));
        }
        Err(why) => assert!(!why.is_empty()),
    }
}
