//! Pins: `sha256/` and the standard base64 of SHA-256 over a SubjectPublicKeyInfo, as HPKP
//! (RFC 7469) and `curl --pinnedpubkey` have them. A pin names a key, whatever certificate
//! carries it.
use std::fmt;
use std::str::FromStr;

use super::{base64, digest};

const PREFIX: &str = "sha256/";

/// The digest of a key's SubjectPublicKeyInfo.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pin(pub [u8; 32]);

/// Why a text is not a pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// It does not begin with `sha256/`.
    Prefix,
    /// What follows is not base64.
    Base64(base64::Error),
    /// What follows is not 32 bytes.
    Length(usize),
}

impl Pin {
    /// The pin of a key, from its DER SubjectPublicKeyInfo.
    pub fn of_spki(spki: &[u8]) -> Self {
        Self(digest::sha256(spki))
    }

    /// Reads `sha256/…`.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn parse(text: &str) -> Result<Self, Error> {
        let encoded = text.strip_prefix(PREFIX).ok_or(Error::Prefix)?;
        let bytes = base64::decode(encoded).map_err(Error::Base64)?;
        let length = bytes.len();
        bytes
            .try_into()
            .map(Self)
            .map_err(|_| Error::Length(length))
    }

    /// Whether `spki` is the key this pin names.
    pub fn matches(&self, spki: &[u8]) -> bool {
        digest::equal(&self.0, &digest::sha256(spki))
    }
}

impl FromStr for Pin {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::parse(text)
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", base64::encode(&self.0))
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a pin is \"sha256/\" and 44 characters of base64: ")?;
        match self {
            Self::Prefix => f.write_str("it does not begin with \"sha256/\""),
            Self::Base64(error) => error.fmt(f),
            Self::Length(length) => write!(f, "it holds {length} bytes, not 32"),
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_reads_back_as_it_was_shown() {
        let pin = Pin::of_spki(b"a key");
        assert_eq!(Pin::parse(&pin.to_string()).unwrap(), pin);
        assert_eq!(pin.to_string().len(), 51);
        assert!(pin.matches(b"a key") && !pin.matches(b"another"));
    }

    #[test]
    fn each_malformed_pin_says_what_is_wrong() {
        let good = Pin([7; 32]).to_string();
        for (text, error) in [
            ("", Error::Prefix),
            ("SHA256/x", Error::Prefix),
            ("sha1/AAAA", Error::Prefix),
            (&format!(" {good}"), Error::Prefix),
            (&format!("{good} "), Error::Base64(base64::Error::Length)),
            ("sha256/", Error::Length(0)),
            ("sha256/AAAA", Error::Length(3)),
            (
                good.trim_end_matches('='),
                Error::Base64(base64::Error::Length),
            ),
            ("sha256//", Error::Base64(base64::Error::Length)),
            ("sha256/-_8=", Error::Base64(base64::Error::Character(0))),
        ] {
            assert_eq!(Pin::parse(text), Err(error), "{text:?}");
        }
    }
}
