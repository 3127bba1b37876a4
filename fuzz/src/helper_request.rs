//! What is said on the helper's socket: a request that is taken is exactly the line that is written for it, so
//! that nothing in it was passed over; and a helper's line that a client takes reads back the same.
use bcd::helper::protocol::{Answer, LINE, Request, heard};

/// The number of the greeting that the seeds answer.
const NONCE: &str = "0123456789abcdef0123456789abcdef";

pub const HEAP: super::Heap = super::Heap {
    base: 16 << 10,
    per_byte: 16,
};

pub fn run(data: &[u8]) {
    match Request::read(data, NONCE) {
        Ok(request) => {
            assert!(data.len() < LINE);
            assert_eq!(request.line(NONCE).trim_end().as_bytes(), data);
        }
        Err(Answer::Refused { reason, message }) => {
            assert!(!reason.is_empty() && !message.is_empty());
        }
        Err(Answer::Done) => panic!("nothing was done"),
    }
    match heard(data) {
        Some(Ok(greeting)) => {
            let again = heard(greeting.line().trim_end().as_bytes());
            assert_eq!(again, Some(Ok(greeting)));
        }
        Some(Err(answer)) => {
            // A helper that would refuse in the same words.
            let own = match answer {
                Answer::Done => Answer::Done,
                Answer::Refused { message, .. } => Answer::refused("Failed", &message),
            };
            assert_eq!(heard(own.line().as_bytes()), Some(Err(own)));
        }
        None => {}
    }
}
