//! gRPC's status: codes, `grpc-status` and `grpc-message`, and what stands for them elsewhere.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]
use std::error::Error;
use std::fmt;

use http::{HeaderMap, HeaderValue};

use crate::sys::log::cut;

/// Bytes of a message that are kept from a peer: it is one line for a person.
const MESSAGE: usize = 1024;

/// gRPC's status codes, with their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Code {
    Ok = 0,
    Cancelled = 1,
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    DataLoss = 15,
    Unauthenticated = 16,
}

/// By number, with the names of gRPC's documents.
const CODES: [(Code, &str); 17] = [
    (Code::Ok, "OK"),
    (Code::Cancelled, "CANCELLED"),
    (Code::Unknown, "UNKNOWN"),
    (Code::InvalidArgument, "INVALID_ARGUMENT"),
    (Code::DeadlineExceeded, "DEADLINE_EXCEEDED"),
    (Code::NotFound, "NOT_FOUND"),
    (Code::AlreadyExists, "ALREADY_EXISTS"),
    (Code::PermissionDenied, "PERMISSION_DENIED"),
    (Code::ResourceExhausted, "RESOURCE_EXHAUSTED"),
    (Code::FailedPrecondition, "FAILED_PRECONDITION"),
    (Code::Aborted, "ABORTED"),
    (Code::OutOfRange, "OUT_OF_RANGE"),
    (Code::Unimplemented, "UNIMPLEMENTED"),
    (Code::Internal, "INTERNAL"),
    (Code::Unavailable, "UNAVAILABLE"),
    (Code::DataLoss, "DATA_LOSS"),
    (Code::Unauthenticated, "UNAUTHENTICATED"),
];

impl Code {
    /// The code with this number; numbers that gRPC does not know are UNKNOWN.
    pub fn from_number(number: usize) -> Code {
        CODES.get(number).map_or(Code::Unknown, |(code, _)| *code)
    }

    /// Its name in gRPC's documents, `INVALID_ARGUMENT` for one.
    pub fn name(self) -> &'static str {
        CODES.get(self as usize).map_or("UNKNOWN", |(_, name)| name)
    }

    /// gRPC's mapping for answers with an HTTP status and no `grpc-status` (proxies' answers).
    pub(super) fn from_http(status: http::StatusCode) -> Code {
        match status.as_u16() {
            400 => Code::Internal,
            401 => Code::Unauthenticated,
            403 => Code::PermissionDenied,
            404 => Code::Unimplemented,
            429 | 502 | 503 | 504 => Code::Unavailable,
            _ => Code::Unknown,
        }
    }

    /// gRPC's mapping for HTTP/2 error codes, of a reset stream or a closed connection.
    pub(super) fn from_reason(reason: h2::Reason) -> Code {
        match reason {
            h2::Reason::REFUSED_STREAM => Code::Unavailable,
            h2::Reason::CANCEL => Code::Cancelled,
            h2::Reason::ENHANCE_YOUR_CALM => Code::ResourceExhausted,
            h2::Reason::INADEQUATE_SECURITY => Code::PermissionDenied,
            _ => Code::Internal,
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How a call ended: a code, and one line for a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The code.
    pub code: Code,
    /// What went wrong; empty for OK. A peer's words: control characters are replaced.
    pub message: String,
}

impl Status {
    /// A status with these two.
    pub fn new(code: Code, message: impl Into<String>) -> Status {
        Status {
            code,
            message: message.into(),
        }
    }

    /// The status in a peer's trailers, or in the headers of a trailers-only answer.
    pub(super) fn from_headers(headers: &HeaderMap) -> Option<Status> {
        let number = headers.get("grpc-status")?.as_bytes();
        let number = std::str::from_utf8(number)
            .ok()
            .and_then(|text| text.parse::<usize>().ok());
        let message = headers
            .get("grpc-message")
            .map(|value| decode_message(value.as_bytes()));
        Some(Status {
            code: number.map_or(Code::Unknown, Code::from_number),
            message: message.unwrap_or_default(),
        })
    }

    /// Puts the status among trailers (or headers, for a trailers-only answer).
    pub(super) fn put(&self, headers: &mut HeaderMap) {
        headers.insert("grpc-status", HeaderValue::from(self.code as u16));
        if !self.message.is_empty()
            && let Ok(message) = HeaderValue::from_str(&encode_message(&self.message))
        {
            headers.insert("grpc-message", message);
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code.name())?;
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        Ok(())
    }
}

impl Error for Status {}

/// `grpc-message`: printable ASCII but `%` as it is, every other byte of the UTF-8 as `%XX`.
fn encode_message(message: &str) -> String {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let message = cut(message, MESSAGE);
    let mut encoded = String::with_capacity(message.len());
    for byte in message.bytes() {
        if (0x20..=0x7e).contains(&byte) && byte != b'%' {
            encoded.push(char::from(byte));
        } else {
            encoded.push('%');
            for digit in [byte >> 4, byte & 15] {
                encoded.push(char::from(
                    HEX.get(usize::from(digit)).copied().unwrap_or(b'0'),
                ));
            }
        }
    }
    encoded
}

/// The reverse. As gRPC asks, nothing is refused: a `%` that stands for nothing stays, and bytes
/// that are not UTF-8 become U+FFFD. Control characters become spaces: it is shown to people.
fn decode_message(encoded: &[u8]) -> String {
    let hex = |byte: Option<&u8>| char::from(*byte?).to_digit(16);
    let mut bytes = Vec::with_capacity(encoded.len().min(MESSAGE));
    let mut rest = encoded;
    while let Some((first, tail)) = rest.split_first() {
        if bytes.len() >= MESSAGE {
            break;
        }
        rest = tail;
        match (first, hex(tail.first()), hex(tail.get(1))) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((high << 4 | low) as u8);
                rest = tail.get(2..).unwrap_or_default();
            }
            _ => bytes.push(*first),
        }
    }
    let text = String::from_utf8_lossy(&bytes);
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    #[test]
    fn a_message_survives_the_wire() {
        for message in ["plain", "100 % sure", "Größe 😀", "a%b%%41", ""] {
            assert_eq!(decode_message(encode_message(message).as_bytes()), message);
        }
        assert_eq!(encode_message("a\n%é"), "a%0A%25%C3%A9");
    }

    #[test]
    fn an_odd_message_is_shown_as_well_as_can_be() {
        assert_eq!(decode_message(b"50%"), "50%");
        assert_eq!(decode_message(b"%4"), "%4");
        assert_eq!(decode_message(b"%zz%4a"), "%zzJ");
        assert_eq!(decode_message(b"%ff!"), "\u{fffd}!");
        assert_eq!(decode_message(b"a%0d%0ab%1b[31m"), "a  b [31m");
        assert_eq!(decode_message(&[b'x'; 100_000]).len(), MESSAGE);
    }

    #[test]
    fn a_long_message_is_cut_at_a_character() {
        let message = "é".repeat(2000);
        let decoded = decode_message(encode_message(&message).as_bytes());
        assert_eq!(decoded, "é".repeat(MESSAGE / 2));
        assert!(decode_message(encode_message(&format!("x{message}")).as_bytes()).ends_with('é'));
    }

    #[test]
    fn every_code_has_its_number_and_name() {
        for (number, (code, name)) in CODES.iter().enumerate() {
            assert_eq!(*code as usize, number);
            assert_eq!(Code::from_number(number), *code);
            assert_eq!(code.name(), *name);
        }
        assert_eq!(Code::from_number(17), Code::Unknown);
        assert_eq!(Code::from_number(usize::MAX), Code::Unknown);
    }

    #[test]
    fn a_status_is_read_from_trailers() {
        let mut headers = HeaderMap::new();
        assert_eq!(Status::from_headers(&headers), None);
        let status = Status::new(Code::PermissionDenied, "nö");
        status.put(&mut headers);
        assert_eq!(Status::from_headers(&headers), Some(status));
        for odd in ["99999999999999999999999", "-1", "x", ""] {
            headers.insert("grpc-status", HeaderValue::from_str(odd).unwrap());
            assert_eq!(Status::from_headers(&headers).unwrap().code, Code::Unknown);
        }
    }

    #[test]
    fn http_answers_map_as_grpc_says() {
        for (http, code) in [
            (400, Code::Internal),
            (401, Code::Unauthenticated),
            (403, Code::PermissionDenied),
            (404, Code::Unimplemented),
            (429, Code::Unavailable),
            (502, Code::Unavailable),
            (503, Code::Unavailable),
            (504, Code::Unavailable),
            (500, Code::Unknown),
            (302, Code::Unknown),
        ] {
            assert_eq!(
                Code::from_http(http::StatusCode::from_u16(http).unwrap()),
                code
            );
        }
    }
}
