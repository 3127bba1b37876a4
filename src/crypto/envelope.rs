//! Signed envelopes: DSSE (<https://github.com/secure-systems-lab/dsse>). A signature covers the
//! payload together with its purpose, and is checked before anything parses the payload; what was
//! signed for one purpose never verifies for another. Protobuf on the wire, DSSE's JSON on disk.
use std::fmt;

use nanoserde::DeJson;

use super::key::{self, NodeKey};
use super::pin::Pin;
use super::spki::PublicKey;
use super::{base64, json};
use crate::proto::{Envelope, Signature};

/// The most signatures looked at.
const MAX_SIGNATURES: usize = 16;
/// The longest JSON read: a message of 1 MiB in base64, and its signatures.
const MAX_JSON: usize = 3 << 19;

/// What an envelope is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    JoinResponse,
    TrustBundle,
    NodeSpec,
    Order,
    ProvisionedProof,
    DiscoveryAssertion,
    ReleaseManifest,
    ServerTime,
    Renewal,
    WipeReceipt,
    DeployReceipt,
}

/// Why an envelope is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// It is for another purpose; this payloadType stands on it.
    Purpose { expected: Purpose, found: String },
    /// It has no signature at all.
    Unsigned,
    /// More signatures than are looked at.
    TooMany(usize),
    /// None of its signatures is by a trusted key.
    Untrusted {
        expected: Vec<Pin>,
        found: Vec<String>,
    },
    /// The signature of this trusted key does not hold.
    BadSignature(Pin),
    /// Fewer trusted keys signed than have to.
    Threshold { signed: usize, needed: usize },
}

/// Why a JSON text is not an envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonError {
    /// Not JSON, or too long or too deep.
    Json(json::Error),
    /// Not an object with the members of an envelope.
    Members,
    /// This member is not base64.
    Base64(&'static str, base64::Error),
}

/// The payloadType of a purpose.
pub fn payload_type(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::JoinResponse => "application/vnd.better-compute.join-response.v1+protobuf",
        Purpose::TrustBundle => "application/vnd.better-compute.trust-bundle.v1+protobuf",
        Purpose::NodeSpec => "application/vnd.better-compute.node-spec.v1+protobuf",
        Purpose::Order => "application/vnd.better-compute.order.v1+protobuf",
        Purpose::ProvisionedProof => "application/vnd.better-compute.provisioned-proof.v1+protobuf",
        Purpose::DiscoveryAssertion => {
            "application/vnd.better-compute.discovery-assertion.v1+protobuf"
        }
        Purpose::ReleaseManifest => "application/vnd.better-compute.release-manifest.v1+json",
        Purpose::ServerTime => "application/vnd.better-compute.server-time.v1+protobuf",
        Purpose::Renewal => "application/vnd.better-compute.renewal.v1+protobuf",
        Purpose::WipeReceipt => "application/vnd.better-compute.wipe-receipt.v1+protobuf",
        Purpose::DeployReceipt => "application/vnd.better-compute.deploy-receipt.v1+protobuf",
    }
}

/// What a signature covers: DSSE's pre-authentication encoding.
pub fn pae(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let (type_length, length) = (payload_type.len(), payload.len());
    let mut out = format!("DSSEv1 {type_length} {payload_type} {length} ").into_bytes();
    out.extend_from_slice(payload);
    out
}

/// Checks that one of `keys` (DER SubjectPublicKeyInfo) signed the envelope for `purpose`, and
/// gives its payload. A keyid selects a key; a signature without one is tried with each.
///
/// # Errors
/// See [`Error`].
pub fn verify<'a>(
    envelope: &'a Envelope,
    purpose: Purpose,
    keys: &[impl AsRef<[u8]>],
) -> Result<&'a [u8], Error> {
    let pins: Vec<Pin> = keys.iter().map(|key| Pin::of_spki(key.as_ref())).collect();
    let named: Vec<String> = pins.iter().map(Pin::to_string).collect();
    check(envelope, purpose, &pins, |signature| {
        let keyed = keys.iter().zip(&pins).zip(&named);
        let selected =
            keyed.filter(|(_, name)| signature.keyid.is_empty() || signature.keyid == **name);
        selected
            .map(|((key, pin), _)| (key.as_ref().to_vec(), *pin))
            .collect()
    })?;
    Ok(&envelope.payload)
}

/// As [`verify`], by the pins of the trusted keys: the key itself comes with the signature and is
/// used only when it has one of these pins.
///
/// # Errors
/// See [`Error`].
pub fn verify_pinned<'a>(
    envelope: &'a Envelope,
    purpose: Purpose,
    pins: &[Pin],
) -> Result<&'a [u8], Error> {
    verify_pinned_by(envelope, purpose, pins).map(|_| envelope.payload.as_slice())
}

/// As [`verify_pinned`], where at least `threshold` different keys of `pins` must have signed.
///
/// # Errors
/// See [`Error`].
pub fn verify_threshold<'a>(
    envelope: &'a Envelope,
    purpose: Purpose,
    pins: &[Pin],
    threshold: usize,
) -> Result<&'a [u8], Error> {
    let mut left = pins.to_vec();
    let mut signed = 0;
    // Each round takes away the key that has just been found, however often it stands in the list.
    while signed < threshold.max(1) {
        match verify_pinned_by(envelope, purpose, &left) {
            Ok(pin) => left.retain(|other| *other != pin),
            Err(_) if signed > 0 => {
                let needed = threshold;
                return Err(Error::Threshold { signed, needed });
            }
            Err(error) => return Err(error),
        }
        signed += 1;
    }
    Ok(&envelope.payload)
}

/// Which of `pins` signed the envelope; the first found.
fn verify_pinned_by(envelope: &Envelope, purpose: Purpose, pins: &[Pin]) -> Result<Pin, Error> {
    check(envelope, purpose, pins, |signature| {
        let pin = Pin::of_spki(&signature.public_key);
        if pins.contains(&pin) {
            vec![(signature.public_key.clone(), pin)]
        } else {
            Vec::new()
        }
    })
}

/// Signs `payload` for `purpose`; the signature names its key and carries it.
///
/// # Errors
/// Signing failed for want of random bytes.
pub fn sign(payload: Vec<u8>, purpose: Purpose, key: &NodeKey) -> Result<Envelope, key::Error> {
    let payload_type = payload_type(purpose);
    let signature = Signature {
        sig: key.sign(&pae(payload_type, &payload))?,
        keyid: key.pin().to_string(),
        public_key: key.spki_der(),
    };
    let payload_type = payload_type.to_owned();
    Ok(Envelope {
        payload,
        payload_type,
        signatures: vec![signature],
    })
}

/// The pin of the first key that signed. `candidates` gives the trusted keys that a signature may be by, with their pins.
fn check(
    envelope: &Envelope,
    purpose: Purpose,
    expected: &[Pin],
    candidates: impl Fn(&Signature) -> Vec<(Vec<u8>, Pin)>,
) -> Result<Pin, Error> {
    if envelope.payload_type != payload_type(purpose) {
        let found = shown(&envelope.payload_type);
        return Err(Error::Purpose {
            expected: purpose,
            found,
        });
    }
    match envelope.signatures.len() {
        0 => return Err(Error::Unsigned),
        count if count > MAX_SIGNATURES => return Err(Error::TooMany(count)),
        _ => {}
    }
    let message = pae(&envelope.payload_type, &envelope.payload);
    let mut bad = None;
    for signature in &envelope.signatures {
        for (spki, pin) in candidates(signature) {
            let holds = match PublicKey::parse(&spki) {
                // Release keys alone may be Ed25519.
                Ok(PublicKey::Ed25519(_)) if purpose != Purpose::ReleaseManifest => false,
                Ok(key) => key.verify(&message, &signature.sig).is_ok(),
                Err(_) => false,
            };
            if holds {
                return Ok(pin);
            }
            bad = Some(pin);
        }
    }
    Err(bad.map_or_else(
        || Error::Untrusted {
            expected: expected.to_vec(),
            found: envelope.signatures.iter().map(signer).collect(),
        },
        Error::BadSignature,
    ))
}

/// Who a signature says, or by its key proves, to be by.
fn signer(signature: &Signature) -> String {
    if !signature.public_key.is_empty() {
        Pin::of_spki(&signature.public_key).to_string()
    } else if signature.keyid.is_empty() {
        "a key not named".to_owned()
    } else {
        shown(&signature.keyid)
    }
}

/// A text from outside, fit for one line of a message.
fn shown(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .take(100)
        .collect()
}

/// The envelope as DSSE's JSON, on one line.
pub fn to_json(envelope: &Envelope) -> String {
    let payload = base64::encode(&envelope.payload);
    let payload_type = json::quote(&envelope.payload_type);
    let signatures = envelope.signatures.iter().map(|signature| {
        let sig = base64::encode(&signature.sig);
        let keyid = json::quote(&signature.keyid);
        let public_key = if signature.public_key.is_empty() {
            String::new()
        } else {
            format!(
                r#","publicKey":"{}""#,
                base64::encode(&signature.public_key)
            )
        };
        format!(r#"{{"sig":"{sig}","keyid":{keyid}{public_key}}}"#)
    });
    let signatures = signatures.collect::<Vec<_>>().join(",");
    format!(r#"{{"payload":"{payload}","payloadType":{payload_type},"signatures":[{signatures}]}}"#)
}

/// Reads DSSE's JSON; members not known are read over. Nothing is verified.
///
/// # Errors
/// See [`JsonError`].
pub fn from_json(text: &[u8]) -> Result<Envelope, JsonError> {
    let text = json::check(text, MAX_JSON, 8).map_err(JsonError::Json)?;
    let members = members::Envelope::deserialize_json(text).map_err(|_| JsonError::Members)?;
    from_members(members)
}

/// The part of a document that is an envelope, as its reader sees it: embed it in a structure
/// that derives `DeJson`, and turn it into an [`Envelope`] by [`from_members`].
pub use members::Envelope as JsonMembers;

/// The envelope that JSON members spell.
///
/// # Errors
/// [`JsonError::Base64`].
pub fn from_members(members: JsonMembers) -> Result<Envelope, JsonError> {
    let bytes = |name: &'static str, text: &str| {
        base64::decode(text).map_err(|error| JsonError::Base64(name, error))
    };
    let signature = |members: members::Signature| {
        Ok(Signature {
            sig: bytes("sig", &members.sig)?,
            keyid: members.keyid.unwrap_or_default(),
            public_key: bytes("publicKey", &members.public_key.unwrap_or_default())?,
        })
    };
    Ok(Envelope {
        payload: bytes("payload", &members.payload)?,
        payload_type: members.payload_type,
        signatures: members
            .signatures
            .into_iter()
            .map(signature)
            .collect::<Result<_, _>>()?,
    })
}

mod members {
    // The derive writes a match where clippy wants a question mark.
    #![allow(clippy::question_mark)]
    use nanoserde::DeJson;

    /// DSSE's members, base64 still.
    #[derive(DeJson)]
    pub struct Envelope {
        pub payload: String,
        #[nserde(rename = "payloadType")]
        pub payload_type: String,
        pub signatures: Vec<Signature>,
    }

    #[derive(DeJson)]
    pub struct Signature {
        pub sig: String,
        pub keyid: Option<String>,
        #[nserde(rename = "publicKey")]
        pub public_key: Option<String>,
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Purpose { expected, found } => {
                write!(
                    f,
                    "the envelope is for \"{found}\", not for \"{}\"",
                    payload_type(*expected)
                )
            }
            Self::Unsigned => f.write_str("the envelope is not signed"),
            Self::TooMany(count) => {
                write!(
                    f,
                    "the envelope has {count} signatures, more than {MAX_SIGNATURES}"
                )
            }
            Self::Untrusted { expected, found } => {
                let expected: Vec<String> = expected.iter().map(Pin::to_string).collect();
                let (found, expected) = (found.join(", "), expected.join(" or "));
                write!(
                    f,
                    "the envelope is signed by {found}, not by the trusted {expected}"
                )
            }
            Self::BadSignature(pin) => write!(f, "the envelope's signature by {pin} does not hold"),
            Self::Threshold { signed, needed } => write!(
                f,
                "the envelope is signed by {signed} of the trusted keys, and {needed} have to sign"
            ),
        }
    }
}

impl std::error::Error for Error {}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json(_) => f.write_str("not an envelope"),
            Self::Members => {
                f.write_str("not an envelope: it needs payload, payloadType and signatures")
            }
            Self::Base64(name, _) => write!(f, "not an envelope: its {name} is damaged"),
        }
    }
}

impl std::error::Error for JsonError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Json(error) => Some(error),
            Self::Base64(_, error) => Some(error),
            Self::Members => None,
        }
    }
}

#[cfg(test)]
mod tests;
