//! Base64, both alphabets: only the one canonical text of some bytes is read.
use bcd::crypto::{base64, pin::Pin};

pub const HEAP: super::Heap = super::Heap {
    base: 4096,
    per_byte: 8,
};

pub fn run(data: &[u8]) {
    assert_eq!(
        base64::decode(&base64::encode(data)).as_deref(),
        Ok(data),
        "what was encoded reads back"
    );
    assert_eq!(
        base64::decode_url(&base64::encode_url(data)).as_deref(),
        Ok(data)
    );
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(bytes) = base64::decode(text) {
        assert_eq!(base64::encode(&bytes), text, "two texts for the same bytes");
    }
    if let Ok(bytes) = base64::decode_url(text) {
        assert_eq!(base64::encode_url(&bytes), text);
    }
    let secret = base64::decode_secret(text).map(|bytes| bytes.to_vec());
    assert_eq!(secret.ok(), base64::decode(text).ok());
    if let Ok(pin) = Pin::parse(text) {
        assert_eq!(pin.to_string(), text, "two texts for the same pin");
    }
}
