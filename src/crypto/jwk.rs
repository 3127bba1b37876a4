//! The JoinService's encryption key as a JWK (RFC 7517, RFC 7518 section 6.2): a P-256 point,
//! `{"kty":"EC","crv":"P-256","x":…,"y":…}`. Other members (`kid`, `use`, `alg`) are read over.
//! A JWK with a private half is refused: such a file must not lie on a node.
// The reader's derive writes a match where clippy wants a question mark.
#![allow(clippy::question_mark)]

use std::fmt;

use nanoserde::DeJson;

use super::pin::Pin;
use super::{base64, json, spki};

/// The longest JWK read.
pub const MAX_LENGTH: usize = 4096;

/// A P-256 public key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PublicKey {
    point: [u8; spki::POINT],
}

/// Why a text is not such a JWK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// Not JSON, or too long or too deep.
    Json(json::Error),
    /// Not an object with the text members `kty`, `crv`, `x` and `y`.
    Members,
    /// Another kind of key than EC on P-256.
    Kind,
    /// It has a private half, `d`.
    Private,
    /// This coordinate is not 32 bytes in URL-safe base64.
    Coordinate(&'static str),
}

#[derive(DeJson)]
struct Members {
    kty: String,
    crv: String,
    x: String,
    y: String,
    d: Option<String>,
}

impl PublicKey {
    /// The key at an uncompressed point.
    pub fn from_point(point: [u8; spki::POINT]) -> Self {
        Self { point }
    }

    /// Reads a JWK. That the point lies on the curve is not checked here: what is sealed to one
    /// off the curve fails, and so does its pin.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn parse(text: &[u8]) -> Result<Self, Error> {
        let text = json::check(text, MAX_LENGTH, 4).map_err(Error::Json)?;
        let members = Members::deserialize_json(text).map_err(|_| Error::Members)?;
        if members.kty != "EC" || members.crv != "P-256" {
            return Err(Error::Kind);
        }
        if members.d.is_some() {
            return Err(Error::Private);
        }
        let coordinate = |name, text: &str| {
            let bytes = base64::decode_url(text).map_err(|_| Error::Coordinate(name))?;
            <[u8; 32]>::try_from(bytes).map_err(|_| Error::Coordinate(name))
        };
        let x = coordinate("x", &members.x)?;
        let y = coordinate("y", &members.y)?;
        let mut point = [4; spki::POINT];
        point
            .iter_mut()
            .skip(1)
            .zip(x.iter().chain(&y))
            .for_each(|(to, from)| *to = *from);
        Ok(Self { point })
    }

    /// The point, uncompressed.
    pub fn point(&self) -> &[u8; spki::POINT] {
        &self.point
    }

    /// The DER SubjectPublicKeyInfo.
    pub fn spki_der(&self) -> Vec<u8> {
        spki::p256(&self.point)
    }

    /// The pin of this key.
    pub fn pin(&self) -> Pin {
        Pin::of_spki(&self.spki_der())
    }

    /// The JWK of this key, with the members in RFC 7638's order.
    pub fn to_json(&self) -> String {
        let (x, y) = self.point.split_at(33);
        let x = base64::encode_url(x.get(1..).unwrap_or_default());
        let y = base64::encode_url(y);
        format!(r#"{{"crv":"P-256","kty":"EC","x":"{x}","y":"{y}"}}"#)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json(_) => f.write_str("not a JWK"),
            Self::Members => f.write_str("not a JWK: it needs the texts kty, crv, x and y"),
            Self::Kind => f.write_str("the JWK is not a P-256 key (kty EC, crv P-256)"),
            Self::Private => {
                f.write_str("the JWK has a private half, which belongs to nobody here")
            }
            Self::Coordinate(name) => {
                write!(
                    f,
                    "the JWK's {name} is not 32 bytes of URL-safe base64 without padding"
                )
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Json(error) => Some(error),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::key::NodeKey;

    // RFC 7517, appendix A.1, the EC key.
    const RFC: &str = r#"{"kty":"EC", "crv":"P-256",
        "x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4",
        "y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM", "use":"enc", "kid":"1"}"#;

    fn refused(text: &str) -> Error {
        PublicKey::parse(text.as_bytes()).err().unwrap()
    }

    #[test]
    fn the_rfcs_key_is_read_and_written_back() {
        let key = PublicKey::parse(RFC.as_bytes()).ok().unwrap();
        assert!(PublicKey::parse(key.to_json().as_bytes()) == Ok(key));
        assert_eq!(key.point()[..3], [4, 0x30, 0xa0]);
        assert_eq!(key.point()[33], 0xe0);
    }

    #[test]
    fn a_key_has_the_same_pin_in_each_form() {
        let key = NodeKey::generate().unwrap();
        let jwk = PublicKey::from_point(*key.point());
        assert_eq!(jwk.pin(), key.pin());
        assert_eq!(jwk.spki_der(), key.spki_der());
    }

    #[test]
    fn each_mistake_has_its_own_error() {
        assert!(matches!(refused(""), Error::Json(_)));
        assert!(matches!(refused(&RFC.replace('}', "")), Error::Json(_)));
        assert!(matches!(
            refused(&" ".repeat(5000)),
            Error::Json(json::Error::TooLong { .. })
        ));
        assert_eq!(refused("[]"), Error::Members);
        assert_eq!(refused("null"), Error::Members);
        assert_eq!(refused(r#"{"kty":"EC"}"#), Error::Members);
        assert_eq!(refused(&RFC.replace("\"EC\"", "7")), Error::Members);
        assert_eq!(refused(&RFC.replace("P-256", "P-384")), Error::Kind);
        assert_eq!(refused(&RFC.replace("EC", "OKP")), Error::Kind);
        assert_eq!(refused(&RFC.replace("\"kid\"", "\"d\"")), Error::Private);
        assert_eq!(
            refused(&RFC.replace("IFyM", "IFyN")),
            Error::Coordinate("y")
        );
        assert_eq!(refused(&RFC.replace("MKBC", "MKB")), Error::Coordinate("x"));
        assert_eq!(refused(&RFC.replace("MKBC", "")), Error::Coordinate("x"));
    }
}
