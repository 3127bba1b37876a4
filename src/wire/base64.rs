//! Base64 (RFC 4648), strict: the one canonical text of some bytes decodes, everything else
//! (blanks, missing or extra padding, stray bits) is refused. Standard with padding, and
//! URL-safe without.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic
    )
)]
use std::fmt;

use zeroize::Zeroizing;

const STANDARD: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const URL: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Why a text is not base64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// No bytes have a text of this length, or its padding is wrong.
    Length,
    /// The character at this offset is not of the alphabet.
    Character(usize),
    /// The last character has bits that stand for nothing.
    TrailingBits,
}

/// Standard alphabet, padded.
pub fn encode(bytes: &[u8]) -> String {
    write(bytes, STANDARD, true)
}

/// URL-safe alphabet, not padded (as JWK has it).
pub fn encode_url(bytes: &[u8]) -> String {
    write(bytes, URL, false)
}

/// Reads what [`encode`] writes.
///
/// # Errors
/// See [`Error`].
pub fn decode(text: &str) -> Result<Vec<u8>, Error> {
    if !text.len().is_multiple_of(4) {
        return Err(Error::Length);
    }
    let stripped = text
        .strip_suffix("==")
        .or_else(|| text.strip_suffix('='))
        .unwrap_or(text);
    // "xx=" is told from "xx==" by the length, "====" and "x===" by what is left.
    read(stripped, b'+', b'/')
}

/// Reads what [`encode_url`] writes.
///
/// # Errors
/// See [`Error`].
pub fn decode_url(text: &str) -> Result<Vec<u8>, Error> {
    read(text, b'-', b'_')
}

/// As [`decode`], for bytes that are secret.
///
/// # Errors
/// See [`Error`].
pub fn decode_secret(text: &str) -> Result<Zeroizing<Vec<u8>>, Error> {
    decode(text).map(Zeroizing::new)
}

fn write(bytes: &[u8], alphabet: &[u8; 64], padded: bool) -> String {
    // All at once, so that no copy of a secret is left behind by growing.
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let mut group = [0_u8; 4];
        for (to, from) in group.iter_mut().skip(1).zip(chunk) {
            *to = *from;
        }
        let bits = u32::from_be_bytes(group);
        for place in 0..4 {
            if place <= chunk.len() {
                let index = (bits >> (18 - 6 * place)) & 63;
                let byte = alphabet.get(index as usize).copied().unwrap_or_default();
                out.push(char::from(byte));
            } else if padded {
                out.push('=');
            }
        }
    }
    out
}

fn read(text: &str, c62: u8, c63: u8) -> Result<Vec<u8>, Error> {
    if text.len() % 4 == 1 {
        return Err(Error::Length);
    }
    let mut out = Vec::with_capacity(text.len() / 4 * 3 + 2);
    let mut bits = 0_u32;
    let mut count = 0_u32;
    for (at, byte) in text.bytes().enumerate() {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            _ if byte == c62 => 62,
            _ if byte == c63 => 63,
            _ => return Err(Error::Character(at)),
        };
        bits = (bits << 6) | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    if bits == 0 {
        Ok(out)
    } else {
        Err(Error::TrailingBits)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length => f.write_str("not base64: its length is wrong"),
            Self::Character(at) => write!(f, "not base64: character {} is wrong", at + 1),
            Self::TrailingBits => f.write_str("not base64: its last character is wrong"),
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    // RFC 4648, section 10.
    const VECTORS: [(&str, &str); 7] = [
        ("", ""),
        ("f", "Zg=="),
        ("fo", "Zm8="),
        ("foo", "Zm9v"),
        ("foob", "Zm9vYg=="),
        ("fooba", "Zm9vYmE="),
        ("foobar", "Zm9vYmFy"),
    ];

    #[test]
    fn the_rfcs_vectors_hold_both_ways() {
        for (bytes, text) in VECTORS {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text).unwrap(), bytes.as_bytes());
            let bare = text.trim_end_matches('=');
            assert_eq!(encode_url(bytes.as_bytes()), bare);
            assert_eq!(decode_url(bare).unwrap(), bytes.as_bytes());
        }
        assert_eq!(encode(&[0xfb, 0xff]), "+/8=");
        assert_eq!(encode_url(&[0xfb, 0xff]), "-_8");
    }

    #[test]
    fn only_the_canonical_text_decodes() {
        for text in [
            "Z",
            "Zg",
            "Zg=",
            "Zg===",
            "Zm9",
            "Zm9v=",
            "Zm9v====",
            "====",
            "=",
            "Z===",
            "Zg==Zg==",
            "Zh==",
            "Zm9=",
            " Zg==",
            "Zg==\n",
            "Zm 8=",
            "-_8=",
            "Zm8\u{e9}",
            "Z=g=",
        ] {
            assert!(decode(text).is_err(), "{text:?}");
        }
        for text in ["Z", "Zg==", "Zh", "+/8", "Zm9v=", "Zm9vY"] {
            assert!(decode_url(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn every_length_and_byte_comes_back() {
        for length in 0..300_usize {
            let bytes: Vec<u8> = (0..length).map(|i| (i * 7 + length) as u8).collect();
            assert_eq!(decode(&encode(&bytes)).unwrap(), bytes);
            assert_eq!(decode_url(&encode_url(&bytes)).unwrap(), bytes);
        }
    }
}
