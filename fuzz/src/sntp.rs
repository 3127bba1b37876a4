//! SNTP: an answer without the question's cookie is none, and a time that is believed is a credible one.
use init::sntp;

pub const HEAP: super::Heap = super::Heap {
    base: 1024,
    per_byte: 4,
};

const COOKIE: [u8; 8] = *b"a cookie";
const FLOOR: u64 = 1_790_000_000;

pub fn run(data: &[u8]) {
    let mut answer = data.to_vec();
    if let Some(field) = answer.get_mut(24..32) {
        field.copy_from_slice(&COOKIE);
    }
    if let Some(time) = sntp::answered(&answer, COOKIE, FLOOR) {
        assert!((FLOOR..=FLOOR + 20 * 365 * 86_400).contains(&time.as_secs()));
    }
    assert_eq!(sntp::answered(&answer, *b"another!", FLOOR), None);
}
