//! Join tokens: a token that is read is what was there, and no message repeats any of it.
use bcd::attest::join_token::JoinToken;

pub const HEAP: super::Heap = super::Heap {
    base: 4096,
    per_byte: 4,
};

pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    match JoinToken::parse(text) {
        Ok(token) => {
            assert_eq!(token.as_str(), text.trim());
            assert!(token.id().starts_with("jt_") && token.id().len() == 29);
            assert!(token.as_str().is_ascii());
        }
        Err(malformed) => {
            let said = malformed.to_string();
            let secret = text.rsplit('.').next().unwrap_or_default().trim();
            // Words of the message itself are no secret.
            let telling = secret.len() >= 16 && !secret.contains(char::is_whitespace);
            assert!(!telling || !said.contains(secret));
        }
    }
}
