//! gRPC's trailers and `grpc-timeout`: a status that is read is one line and survives being sent on.
use bcd::wire::grpc::seams::{status_in, timeout, trailers_for};
use http::{HeaderMap, HeaderValue};

pub const HEAP: super::Heap = super::Heap {
    base: 16 << 10,
    per_byte: 32,
};

pub fn run(data: &[u8]) {
    let at = data.iter().position(|byte| *byte == b'\n');
    let (code, message) = data.split_at(at.unwrap_or(data.len()));
    let message = message.get(1..).unwrap_or_default();
    if let Ok(value) = HeaderValue::from_bytes(data) {
        let _ = timeout(&value);
    }
    let (Ok(code), Ok(message)) = (
        HeaderValue::from_bytes(code),
        HeaderValue::from_bytes(message),
    ) else {
        return;
    };
    let mut trailers = HeaderMap::new();
    assert_eq!(status_in(&trailers), None);
    trailers.insert("grpc-status", code);
    trailers.insert("grpc-message", message);
    let status = status_in(&trailers).expect("there is a status");
    assert!(!status.message.chars().any(char::is_control), "{status:?}");
    // A replaced byte becomes a longer character; and it is cut at the limit.
    assert!(status.message.len() <= 3 * 1024);
    let again = status_in(&trailers_for(&status)).expect("there is a status");
    assert_eq!(again.code, status.code);
    assert!(status.message.starts_with(&again.message));
    assert!(again.message.len() == status.message.len() || again.message.len() > 1020);
}
