//! DER (X.690), as much of it as keys, requests and certificates need. The reader takes the
//! distinguished form alone (definite, shortest lengths), bounds size and depth, and never
//! panics; the writer concatenates.
use std::fmt;

/// The longest element read: no certificate or key here comes near.
const MAX_LENGTH: usize = 1 << 16;
/// The deepest nesting read.
const MAX_DEPTH: u8 = 16;

pub const BOOLEAN: u8 = 0x01;
pub const INTEGER: u8 = 0x02;
pub const BIT_STRING: u8 = 0x03;
pub const OCTET_STRING: u8 = 0x04;
pub const NULL: u8 = 0x05;
pub const OID: u8 = 0x06;
pub const UTF8_STRING: u8 = 0x0c;
pub const PRINTABLE_STRING: u8 = 0x13;
pub const IA5_STRING: u8 = 0x16;
pub const UTC_TIME: u8 = 0x17;
pub const GENERALIZED_TIME: u8 = 0x18;
pub const SEQUENCE: u8 = 0x30;
pub const SET: u8 = 0x31;

/// The tag of a context-specific element that holds others, `[number]`.
pub const fn constructed(number: u8) -> u8 {
    0xa0 | number
}

/// The tag of a context-specific element that is a value, `[number] IMPLICIT`.
pub const fn primitive(number: u8) -> u8 {
    0x80 | number
}

/// Why bytes are not the DER expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// They end inside an element.
    Truncated,
    /// A length in another than the shortest form, or above 64 KiB.
    Length,
    /// Another element than the one expected.
    Tag { expected: u8, found: u8 },
    /// Bytes are left after the last element expected.
    Trailing,
    /// Nested deeper than 16.
    Depth,
    /// A value that its type does not allow.
    Value,
}

/// Reads elements one after the other.
#[derive(Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
    depth: u8,
}

/// One element, as it stood.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Element<'a> {
    pub tag: u8,
    /// What it holds.
    pub content: &'a [u8],
    /// All of it: tag, length and content.
    pub raw: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self {
            rest: bytes,
            depth: 0,
        }
    }

    /// Reads one element that `bytes` hold and nothing else, by `parse`.
    ///
    /// # Errors
    /// What `parse` says, or bytes are left.
    pub fn whole<T>(
        bytes: &'a [u8],
        parse: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut reader = Self::new(bytes);
        let value = parse(&mut reader)?;
        reader.finish()?;
        Ok(value)
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// That nothing is left.
    ///
    /// # Errors
    /// Something is.
    pub fn finish(&self) -> Result<(), Error> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(Error::Trailing)
        }
    }

    /// The tag of the next element, if there is one.
    pub fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    /// The next element, whatever it is.
    ///
    /// # Errors
    /// There is none, or its head is malformed.
    pub fn any(&mut self) -> Result<Element<'a>, Error> {
        let all = self.rest;
        let (&tag, rest) = all.split_first().ok_or(Error::Truncated)?;
        // Tag numbers above 30 are used by nothing read here.
        if tag & 0x1f == 0x1f {
            return Err(Error::Value);
        }
        let (length, rest) = length(rest)?;
        let (content, rest) = rest.split_at_checked(length).ok_or(Error::Truncated)?;
        let raw = all.get(..all.len() - rest.len()).ok_or(Error::Truncated)?;
        self.rest = rest;
        Ok(Element { tag, content, raw })
    }

    /// The next element, which must have `tag`.
    ///
    /// # Errors
    /// As [`any`](Self::any), or it has another.
    pub fn element(&mut self, tag: u8) -> Result<Element<'a>, Error> {
        match self.peek() {
            Some(found) if found != tag => Err(Error::Tag {
                expected: tag,
                found,
            }),
            _ => self.any(),
        }
    }

    /// What the next element holds, which must have `tag`.
    ///
    /// # Errors
    /// As [`element`](Self::element).
    pub fn content(&mut self, tag: u8) -> Result<&'a [u8], Error> {
        Ok(self.element(tag)?.content)
    }

    /// What the next element holds, when it has `tag`.
    ///
    /// # Errors
    /// It has the tag and is malformed.
    pub fn optional(&mut self, tag: u8) -> Result<Option<&'a [u8]>, Error> {
        match self.peek() {
            Some(found) if found == tag => self.content(tag).map(Some),
            _ => Ok(None),
        }
    }

    /// A reader of what the next element holds, which must have `tag`.
    ///
    /// # Errors
    /// As [`element`](Self::element), or nested too deep.
    pub fn enter(&mut self, tag: u8) -> Result<Self, Error> {
        let rest = self.content(tag)?;
        let depth = self.depth + 1;
        if depth > MAX_DEPTH {
            Err(Error::Depth)
        } else {
            Ok(Self { rest, depth })
        }
    }

    /// The bytes of a BIT STRING without unused bits.
    ///
    /// # Errors
    /// As [`element`](Self::element), or it has unused bits.
    pub fn bit_string(&mut self) -> Result<&'a [u8], Error> {
        match self.content(BIT_STRING)?.split_first() {
            Some((0, bytes)) => Ok(bytes),
            _ => Err(Error::Value),
        }
    }

    /// A BOOLEAN.
    ///
    /// # Errors
    /// As [`element`](Self::element), or neither 0x00 nor 0xff.
    pub fn boolean(&mut self) -> Result<bool, Error> {
        match self.content(BOOLEAN)? {
            [0xff] => Ok(true),
            [0x00] => Ok(false),
            _ => Err(Error::Value),
        }
    }

    /// The bytes of an INTEGER, two's complement and shortest.
    ///
    /// # Errors
    /// As [`element`](Self::element), or longer than it must be.
    pub fn integer(&mut self) -> Result<&'a [u8], Error> {
        match self.content(INTEGER)? {
            [] | [0x00, 0x00..=0x7f, ..] | [0xff, 0x80..=0xff, ..] => Err(Error::Value),
            bytes => Ok(bytes),
        }
    }
}

fn length(bytes: &[u8]) -> Result<(usize, &[u8]), Error> {
    let (length, rest) = match bytes {
        [] => return Err(Error::Truncated),
        [short @ 0..=0x7f, rest @ ..] => return Ok((usize::from(*short), rest)),
        [0x81, a, rest @ ..] if *a >= 0x80 => (usize::from(*a), rest),
        [0x82, a, b, rest @ ..] if *a > 0 => (usize::from(u16::from_be_bytes([*a, *b])), rest),
        [0x81] | [0x82] | [0x82, _] => return Err(Error::Truncated),
        _ => return Err(Error::Length),
    };
    if length > MAX_LENGTH {
        Err(Error::Length)
    } else {
        Ok((length, rest))
    }
}

/// An element with `tag` that holds `parts`, one after the other.
pub fn element(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut out = Vec::with_capacity(length + 6);
    out.push(tag);
    if length < 0x80 {
        out.push(length as u8);
    } else {
        let bytes = length.to_be_bytes();
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        out.push(0x80 | (bytes.len() - zeros) as u8);
        out.extend(bytes.iter().skip(zeros));
    }
    for part in parts {
        out.extend_from_slice(part);
    }
    out
}

/// A SEQUENCE of `parts`.
pub fn sequence(parts: &[&[u8]]) -> Vec<u8> {
    element(SEQUENCE, parts)
}

/// A BIT STRING of whole bytes.
pub fn bit_string(bytes: &[u8]) -> Vec<u8> {
    element(BIT_STRING, &[&[0], bytes])
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => f.write_str("the DER is cut off"),
            Self::Length => f.write_str("a DER length is not in its shortest form, or too long"),
            Self::Tag { expected, found } => {
                write!(
                    f,
                    "the DER has tag {found:#04x} where {expected:#04x} must be"
                )
            }
            Self::Trailing => f.write_str("the DER has more than it should"),
            Self::Depth => f.write_str("the DER is nested too deep"),
            Self::Value => f.write_str("a DER value is not allowed"),
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_back_at_every_length_form() {
        for length in [0, 1, 127, 128, 255, 256, 1000, 65_535] {
            let content = vec![7; length];
            let bytes = element(OCTET_STRING, &[&content]);
            let read = Reader::whole(&bytes, |r| r.element(OCTET_STRING)).unwrap();
            assert_eq!(read.content, content);
            assert_eq!(read.raw, bytes);
        }
    }

    #[test]
    fn only_the_shortest_definite_length_is_read() {
        for head in [
            &[0x30, 0x80][..],
            &[0x30, 0x81, 0x7f],
            &[0x30, 0x82, 0x00, 0xff],
            &[0x30, 0x83, 0x01, 0x00, 0x00],
            &[0x30, 0x84, 0xff, 0xff, 0xff, 0xff],
            &[0x30, 0xff],
        ] {
            let mut bytes = head.to_vec();
            bytes.resize(70_000, 0);
            assert_eq!(
                Reader::new(&bytes).any().err(),
                Some(Error::Length),
                "{head:02x?}"
            );
        }
        for head in [
            &[][..],
            &[0x30],
            &[0x30, 0x81],
            &[0x30, 0x82, 0x01],
            &[0x30, 0x02, 0x00],
        ] {
            assert_eq!(
                Reader::new(head).any().err(),
                Some(Error::Truncated),
                "{head:02x?}"
            );
        }
        assert_eq!(
            Reader::new(&[0x3f, 0x01, 0x00]).any().err(),
            Some(Error::Value)
        );
    }

    #[test]
    fn nesting_is_bounded() {
        let mut bytes = Vec::new();
        for _ in 0..20 {
            bytes = sequence(&[&bytes]);
        }
        let mut reader = Reader::new(&bytes);
        let mut depth = 0;
        let error = loop {
            match reader.enter(SEQUENCE) {
                Ok(inner) => reader = inner,
                Err(error) => break error,
            }
            depth += 1;
        };
        assert_eq!((error, depth), (Error::Depth, 16));
    }

    #[test]
    fn values_must_be_distinguished() {
        assert!(Reader::new(&[1, 1, 0xff]).boolean().unwrap());
        for bytes in [&[1, 1, 1][..], &[1, 0], &[1, 2, 0xff, 0xff]] {
            assert_eq!(Reader::new(bytes).boolean(), Err(Error::Value));
        }
        assert_eq!(
            Reader::new(&[2, 2, 0x00, 0x80]).integer().unwrap(),
            [0, 0x80]
        );
        for bytes in [&[2, 0][..], &[2, 2, 0x00, 0x7f], &[2, 2, 0xff, 0x80]] {
            assert_eq!(Reader::new(bytes).integer(), Err(Error::Value));
        }
        assert_eq!(
            Reader::new(&[3, 2, 1, 0xfe]).bit_string(),
            Err(Error::Value)
        );
        assert_eq!(Reader::new(&[3, 0]).bit_string(), Err(Error::Value));
    }

    #[test]
    fn bytes_left_over_are_refused() {
        let error = Reader::whole(&[5, 0, 0], |r| r.content(NULL)).err();
        assert_eq!(error, Some(Error::Trailing));
    }
}
