//! Joining without a `config.toml`: what the control plane's well-known document says
//! (docs/protocol.md 8), held against the pins that came with the install.
//!
//! The document is believed only for what pins cannot say, which is where the gateway is. A pin it
//! publishes that differs from one given, or a key that does not have its pin, ends the join. The
//! document itself is authenticated by the control plane's certificate under the system's roots
//! alone; that is why a host build needs all three pins.
// The readers' derive writes a match where clippy wants a question mark.
#![allow(clippy::question_mark)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]
use std::error::Error;
use std::fmt;

use nanoserde::DeJson;

pub use self::fetch::{FetchError, fetch};
use crate::crypto::json;
use crate::crypto::jwk::{self, PublicKey};
use crate::crypto::pin::{self, Pin};
use crate::wire::url::{Url, UrlError};

mod fetch;

/// Where the document is, below the server's URL.
pub const PATH: &str = "/.well-known/better-compute";

/// The longest document read.
pub const MAX_LENGTH: usize = 64 * 1024;

/// The pins that came with the install.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Given {
    pub serving_ca: Option<Pin>,
    pub signing: Option<Pin>,
    pub encryption: Option<Pin>,
}

/// What a join without a configuration goes by.
#[derive(Clone, PartialEq, Eq)]
pub struct Settled {
    pub gateway_url: Url,
    /// `None`: the URL's host.
    pub gateway_server_name: Option<String>,
    pub serving_ca: Pin,
    pub signing: Pin,
    pub encryption: Pin,
    /// The key that has `encryption` as its pin.
    pub encryption_key: PublicKey,
}

/// Which of the three pins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    ServingCa,
    Signing,
    Encryption,
}

/// Why a document is not gone by.
#[derive(Debug)]
pub enum Refused {
    /// No JSON, too long, or too deep.
    Json(json::Error),
    /// JSON, but a member has another type than the document's.
    Shape,
    /// Another version than 1.
    Version(u64),
    /// No `gateway.url`.
    NoGateway,
    /// `gateway.url` is no URL.
    Url(UrlError),
    /// `gateway.url` is not `https://`.
    NotHttps,
    /// `gateway.serverName` is no name.
    ServerName,
    /// A published pin cannot be read.
    Pin(Which, pin::Error),
    /// Neither given nor published: there is no pin at all.
    NoPin(Which),
    /// The document publishes another pin than the one given.
    Differs {
        which: Which,
        published: Pin,
        given: Pin,
    },
    /// No `join.encryptionJwk`.
    NoKey,
    /// `join.encryptionJwk` cannot be read.
    Key(jwk::Error),
    /// `join.encryptionJwk` has another pin than `--join-encryption-pin`.
    KeyDiffers { found: Pin, given: Pin },
}

#[derive(DeJson)]
struct Document {
    version: Option<u64>,
    gateway: Option<Gateway>,
    join: Option<Join>,
}

#[derive(DeJson)]
#[allow(non_snake_case)]
struct Gateway {
    url: Option<String>,
    serverName: Option<String>,
    servingCaPin: Option<String>,
}

#[derive(DeJson)]
#[allow(non_snake_case)]
struct Join {
    signingKeyPin: Option<String>,
    encryptionKeyPin: Option<String>,
    encryptionJwk: Option<Jwk>,
}

#[derive(DeJson)]
struct Jwk {
    kty: String,
    crv: String,
    x: String,
    y: String,
}

/// Reads the document and holds it against `given`. `insecure` (development builds only) also
/// takes `http://` gateways.
///
/// # Errors
/// See [`Refused`].
pub fn settle(document: &[u8], given: &Given, insecure: bool) -> Result<Settled, Refused> {
    let text = json::check(document, MAX_LENGTH, 16).map_err(Refused::Json)?;
    let document = Document::deserialize_json(text).map_err(|_| Refused::Shape)?;
    if let Some(version) = document.version.filter(|version| *version != 1) {
        return Err(Refused::Version(version));
    }
    let gateway = document.gateway.ok_or(Refused::NoGateway)?;
    let url = gateway
        .url
        .filter(|url| !url.is_empty())
        .ok_or(Refused::NoGateway)?;
    let gateway_url = Url::parse(&url).map_err(Refused::Url)?;
    if !gateway_url.https && !insecure {
        return Err(Refused::NotHttps);
    }
    let gateway_server_name = gateway.serverName.filter(|name| !name.is_empty());
    if let Some(name) = &gateway_server_name {
        rustls::pki_types::ServerName::try_from(name.as_str()).map_err(|_| Refused::ServerName)?;
    }
    let join = document.join.unwrap_or(Join {
        signingKeyPin: None,
        encryptionKeyPin: None,
        encryptionJwk: None,
    });
    let serving_ca = agree(Which::ServingCa, given.serving_ca, gateway.servingCaPin)?;
    let signing = agree(Which::Signing, given.signing, join.signingKeyPin)?;
    let encryption = agree(Which::Encryption, given.encryption, join.encryptionKeyPin)?;
    let key = join.encryptionJwk.ok_or(Refused::NoKey)?;
    let key = format!(
        r#"{{"kty":{},"crv":{},"x":{},"y":{}}}"#,
        json::quote(&key.kty),
        json::quote(&key.crv),
        json::quote(&key.x),
        json::quote(&key.y),
    );
    let encryption_key = PublicKey::parse(key.as_bytes()).map_err(Refused::Key)?;
    let found = encryption_key.pin();
    if found != encryption {
        return Err(Refused::KeyDiffers {
            found,
            given: encryption,
        });
    }
    Ok(Settled {
        gateway_url,
        gateway_server_name,
        serving_ca,
        signing,
        encryption,
        encryption_key,
    })
}

/// The pin given, else the one published; both must be the same.
fn agree(which: Which, given: Option<Pin>, published: Option<String>) -> Result<Pin, Refused> {
    let published = published.map(|text| Pin::parse(&text)).transpose();
    let published = published.map_err(|error| Refused::Pin(which, error))?;
    match (given, published) {
        (Some(given), Some(published)) if given != published => Err(Refused::Differs {
            which,
            published,
            given,
        }),
        (Some(pin), _) | (None, Some(pin)) => Ok(pin),
        (None, None) => Err(Refused::NoPin(which)),
    }
}

impl Which {
    /// The flag that gives it.
    pub const fn flag(self) -> &'static str {
        match self {
            Self::ServingCa => "serving-ca-pin",
            Self::Signing => "join-signing-pin",
            Self::Encryption => "join-encryption-pin",
        }
    }

    /// Its member of the document.
    pub const fn member(self) -> &'static str {
        match self {
            Self::ServingCa => "gateway.servingCaPin",
            Self::Signing => "join.signingKeyPin",
            Self::Encryption => "join.encryptionKeyPin",
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json(_) | Self::Shape => {
                f.write_str("it is no well-known document; is this the URL of the control plane?")
            }
            Self::Version(version) => {
                write!(f, "it is of version {version}, and this bcd reads version 1; install a newer bcd")
            }
            Self::NoGateway => f.write_str(
                "it has no gateway.url, so it does not say where to join; install /etc/bcd/config.toml instead",
            ),
            Self::Url(_) => f.write_str("its gateway.url is no URL a node can dial"),
            Self::NotHttps => f.write_str("its gateway.url is not https://"),
            Self::ServerName => f.write_str("its gateway.serverName is neither a DNS name nor an address"),
            Self::Pin(which, _) => write!(f, "its {} is no pin", which.member()),
            Self::NoPin(which) => {
                write!(f, "it has no {}, and --{} was not given", which.member(), which.flag())
            }
            Self::Differs { which, published, given } => write!(
                f,
                "refusing to join: its {} is {published}, and --{} is {given}; somebody else may be \
                 answering for the control plane, or the install is of another one",
                which.member(),
                which.flag()
            ),
            Self::NoKey => f.write_str("it has no join.encryptionJwk, so the token cannot be sealed"),
            Self::Key(_) => f.write_str("its join.encryptionJwk cannot be used"),
            Self::KeyDiffers { found, given } => write!(
                f,
                "refusing to join: its join.encryptionJwk has the pin {found}, and the join encryption pin \
                 is {given}"
            ),
        }
    }
}

impl Error for Refused {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Json(error) => Some(error),
            Self::Url(error) => Some(error),
            Self::Pin(_, error) => Some(error),
            Self::Key(error) => Some(error),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;
    use crate::crypto::key::NodeKey;

    fn pin(byte: u8) -> Pin {
        Pin([byte; 32])
    }

    struct Parts {
        key: PublicKey,
        given: Given,
    }

    fn parts() -> Parts {
        let key = PublicKey::from_point(*NodeKey::generate().unwrap().point());
        let given = Given {
            serving_ca: Some(pin(1)),
            signing: Some(pin(2)),
            encryption: Some(key.pin()),
        };
        Parts { key, given }
    }

    fn document(parts: &Parts) -> String {
        format!(
            r#"{{"version":1,"later":{{"x":[1]}},"gateway":{{"url":"https://gw.example.com","serverName":"gw.internal",
                "servingCaPin":"{}"}},"join":{{"signingKeyPin":"{}","encryptionKeyPin":"{}","encryptionJwk":{}}}}}"#,
            pin(1),
            pin(2),
            parts.key.pin(),
            parts.key.to_json()
        )
    }

    fn refused(document: &str, given: &Given) -> Refused {
        settle(document.as_bytes(), given, false).err().unwrap()
    }

    #[test]
    fn a_document_that_agrees_says_where_the_gateway_is() {
        let parts = parts();
        for given in [parts.given, Given::default()] {
            let settled = settle(document(&parts).as_bytes(), &given, false)
                .unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(settled.gateway_url.origin(), "https://gw.example.com");
            assert_eq!(settled.gateway_server_name.as_deref(), Some("gw.internal"));
            assert_eq!((settled.serving_ca, settled.signing), (pin(1), pin(2)));
            assert!(settled.encryption_key == parts.key && settled.encryption == parts.key.pin());
        }
    }

    #[test]
    fn each_pin_that_differs_refuses_the_join_and_is_named() {
        let parts = parts();
        let wrong = Some(pin(9));
        for (given, flag) in [
            (
                Given {
                    serving_ca: wrong,
                    ..parts.given
                },
                "--serving-ca-pin",
            ),
            (
                Given {
                    signing: wrong,
                    ..parts.given
                },
                "--join-signing-pin",
            ),
            (
                Given {
                    encryption: wrong,
                    ..parts.given
                },
                "--join-encryption-pin",
            ),
        ] {
            let text = refused(&document(&parts), &given).to_string();
            assert!(
                text.contains("refusing to join") && text.contains(flag),
                "{text}"
            );
        }
    }

    #[test]
    fn a_key_without_its_pin_is_not_sealed_to() {
        let parts = parts();
        let other = PublicKey::from_point(*NodeKey::generate().unwrap().point());
        let swapped = document(&parts).replace(&parts.key.to_json(), &other.to_json());
        for given in [parts.given, Given::default()] {
            assert!(matches!(
                refused(&swapped, &given),
                Refused::KeyDiffers { .. }
            ));
        }
    }

    #[test]
    fn a_document_without_pins_still_serves_an_install_that_has_them() {
        let parts = parts();
        let bare = format!(
            r#"{{"gateway":{{"url":"https://gw.example.com"}},"join":{{"encryptionJwk":{}}}}}"#,
            parts.key.to_json()
        );
        assert!(settle(bare.as_bytes(), &parts.given, false).is_ok());
        assert!(matches!(
            refused(&bare, &Given::default()),
            Refused::NoPin(Which::ServingCa)
        ));
    }

    #[test]
    fn each_mistake_of_a_document_has_its_own_error() {
        let parts = parts();
        let good = document(&parts);
        let said = |text: &str| refused(text, &parts.given).to_string();
        assert!(said("<html>").contains("no well-known document"));
        assert!(said("[]").contains("no well-known document"));
        assert!(said("").contains("no well-known document"));
        assert!(said("{}").contains("install /etc/bcd/config.toml instead"));
        assert!(said(&good.replace("\"version\":1", "\"version\":2")).contains("version 2"));
        assert!(
            said(&good.replace("https://gw.example.com", ""))
                .contains("install /etc/bcd/config.toml")
        );
        assert!(said(&good.replace("https://gw", "http://gw")).contains("not https://"));
        assert!(said(&good.replace("https://gw", "gw")).contains("no URL"));
        assert!(said(&good.replace("gw.internal", "gw internal")).contains("serverName"));
        assert!(
            said(&good.replace(&pin(1).to_string(), "sha1/x")).contains("servingCaPin is no pin")
        );
        assert!(said(&good.replace("encryptionJwk", "other")).contains("no join.encryptionJwk"));
        assert!(said(&good.replace("P-256", "P-384")).contains("cannot be used"));
        let long = format!("{}{}", good, " ".repeat(MAX_LENGTH));
        assert!(matches!(refused(&long, &parts.given), Refused::Json(_)));
    }

    #[test]
    fn http_gateways_are_for_development_builds_alone() {
        let parts = parts();
        let plain = document(&parts).replace("https://gw", "http://gw");
        assert!(settle(plain.as_bytes(), &parts.given, true).is_ok());
        assert!(matches!(refused(&plain, &parts.given), Refused::NotHttps));
    }
}
