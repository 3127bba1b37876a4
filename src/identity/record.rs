//! `identity.json`: what a join gave this node.
//!
//! ```json
//! {
//!   "version": 1,
//!   "spiffe_id": "spiffe://better-compute/node/node_01…",
//!   "node_id": "node_01…", "role": "node", "site": "fsn1", "pool": "pool_01…",
//!   "certificate_chain": ["-----BEGIN CERTIFICATE-----\n…"],
//!   "trust_bundle": {"payload": "…", "payloadType": "…", "signatures": […]},
//!   "trust_chain": [{"payload": …}, …],
//!   "server_time_ms": 1790000000000
//! }
//! ```
//!
//! The leaf comes first in the chain. `trust_chain` has the bundles that lead from the configured signing
//! pin to `trust_bundle`, oldest first; it is absent when the pin's own key signed that. Members that this version does not know are kept when the file is
//! written again, so that a binary rolled back to loses nothing of a newer one's. `version` grows only
//! when an older binary must not use the file at all.

use std::error::Error;
use std::fmt::{self, Write as _};

use nanoserde::DeJson;

use super::trust::{self, Configured, Trust};
use crate::crypto::certificate::Certificate;
use crate::crypto::envelope;
use crate::crypto::json::{self, quote};
use crate::crypto::pem;

/// The version written, and the highest read.
pub const VERSION: u64 = 1;
/// The longest file read: a full chain of the longest certificates and the longest bundle fit.
pub const MAX_LENGTH: usize = 1 << 20;
/// The most certificates in a chain.
pub const MAX_CHAIN: usize = 10;
const MAX_DEPTH: usize = 32;

/// An identity, as verified when it was stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    pub spiffe_id: String,
    pub node_id: String,
    /// `node`, `site` or `ramdisk`.
    pub role: String,
    pub site: String,
    pub pool: String,
    /// DER, the leaf first; never empty.
    pub certificate_chain: Vec<Vec<u8>>,
    /// The signed trust bundle, a DSSE envelope in JSON; empty when the join brought none.
    pub trust_bundle: String,
    /// The bundles that lead to it, oldest first, each a DSSE envelope in JSON.
    pub trust_chain: Vec<String>,
    /// The latest time a server is known to have given, Unix milliseconds.
    pub server_time_ms: u64,
    /// Members of the file this version does not know: name and value, both as JSON.
    pub(super) unknown: Vec<(String, String)>,
}

/// Why a text is no identity.
#[derive(Debug, PartialEq, Eq)]
pub enum RecordError {
    Json(json::Error),
    NotAnObject,
    /// A member is missing or of the wrong type.
    Member(&'static str),
    /// Written by a newer bcd in a form this one must not use.
    Newer(u64),
    Chain(pem::Error),
    /// The chain is longer than [`MAX_CHAIN`].
    LongChain,
    /// The leaf is not a certificate.
    Leaf,
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json(_) => f.write_str("it is not a JSON document"),
            Self::NotAnObject => f.write_str("it is not a JSON object"),
            Self::Member(name) => write!(f, "its member {name:?} is missing or of another type"),
            Self::Newer(version) => {
                write!(
                    f,
                    "it is of version {version}, and this bcd reads version {VERSION} at most: run a newer bcd"
                )
            }
            Self::Chain(_) => f.write_str("its certificate chain is not PEM"),
            Self::LongChain => write!(
                f,
                "its certificate chain has more than {MAX_CHAIN} certificates"
            ),
            Self::Leaf => f.write_str("its first certificate is malformed"),
        }
    }
}

impl Error for RecordError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Json(error) => Some(error),
            Self::Chain(error) => Some(error),
            _ => None,
        }
    }
}

impl Identity {
    /// Reads the file's bytes.
    ///
    /// # Errors
    /// See [`RecordError`].
    pub fn from_json(bytes: &[u8]) -> Result<Self, RecordError> {
        let text = json::check(bytes, MAX_LENGTH, MAX_DEPTH).map_err(RecordError::Json)?;
        let mut members = members(text).ok_or(RecordError::NotAnObject)?;
        let version: u64 = take(&mut members, "version")?;
        if version > VERSION {
            return Err(RecordError::Newer(version));
        }
        let chain: Vec<String> = take(&mut members, "certificate_chain")?;
        if chain.len() > MAX_CHAIN {
            return Err(RecordError::LongChain);
        }
        let mut certificate_chain = Vec::with_capacity(chain.len());
        for block in &chain {
            let mut der = pem::decode(block, pem::CERTIFICATE).map_err(RecordError::Chain)?;
            certificate_chain.push(std::mem::take(&mut *der));
        }
        let leaf = certificate_chain
            .first()
            .ok_or(RecordError::Member("certificate_chain"))?;
        Certificate::parse(leaf).map_err(|_| RecordError::Leaf)?;
        let trust_bundle = match take_raw(&mut members, "trust_bundle") {
            None | Some("null") => String::new(),
            Some(raw) if raw.starts_with('{') => raw.to_owned(),
            Some(_) => return Err(RecordError::Member("trust_bundle")),
        };
        let trust_chain = match take_raw(&mut members, "trust_chain") {
            None | Some("null") => Vec::new(),
            Some(raw) => objects(raw).ok_or(RecordError::Member("trust_chain"))?,
        };
        Ok(Self {
            spiffe_id: take(&mut members, "spiffe_id")?,
            node_id: take(&mut members, "node_id")?,
            role: take(&mut members, "role")?,
            site: take(&mut members, "site")?,
            pool: take(&mut members, "pool")?,
            certificate_chain,
            trust_bundle,
            trust_chain,
            server_time_ms: take(&mut members, "server_time_ms")?,
            unknown: members
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
        })
    }

    /// The file's text.
    pub fn to_json(&self) -> String {
        let mut text = format!("{{\n  \"version\": {VERSION}");
        let mut member = |name: &str, value: &str| {
            let _ = write!(text, ",\n  {name}: {value}");
        };
        member("\"spiffe_id\"", &quote(&self.spiffe_id));
        member("\"node_id\"", &quote(&self.node_id));
        member("\"role\"", &quote(&self.role));
        member("\"site\"", &quote(&self.site));
        member("\"pool\"", &quote(&self.pool));
        let chain: Vec<String> = self
            .certificate_chain
            .iter()
            .map(|der| quote(&pem::encode(pem::CERTIFICATE, der)))
            .collect();
        member("\"certificate_chain\"", &format!("[{}]", chain.join(", ")));
        if !self.trust_bundle.is_empty() {
            member("\"trust_bundle\"", self.trust_bundle.trim());
        }
        if !self.trust_chain.is_empty() {
            let links = self.trust_chain.join(", ");
            member("\"trust_chain\"", &format!("[{links}]"));
        }
        member("\"server_time_ms\"", &self.server_time_ms.to_string());
        for (name, value) in &self.unknown {
            member(name, value);
        }
        text.push_str("\n}\n");
        text
    }

    /// Whom this node trusts, by its bundles and its configuration; and why not by all of them.
    pub fn trust(&self, configured: Configured) -> (Trust, Option<Box<dyn Error>>) {
        let bundles = self.trust_chain.iter().chain(Some(&self.trust_bundle));
        let bundles = bundles.filter(|json| !json.is_empty());
        let envelopes: Result<Vec<_>, _> = bundles
            .map(|json| envelope::from_json(json.as_bytes()))
            .collect();
        match envelopes {
            Ok(chain) => {
                let (trust, error) = Trust::read(configured, chain);
                (trust, error.map(Into::into))
            }
            Err(error) => (Trust::of(configured), Some(error.into())),
        }
    }

    /// Takes down whom this node trusts.
    pub fn set_trust(&mut self, trust: &Trust) {
        let mut chain: Vec<String> = trust.chain().iter().map(envelope::to_json).collect();
        self.trust_bundle = chain.pop().unwrap_or_default();
        self.trust_chain = chain;
    }

    /// The node's own certificate.
    ///
    /// # Errors
    /// [`RecordError::Leaf`], for an identity that was never read by [`from_json`](Self::from_json).
    pub fn leaf(&self) -> Result<Certificate<'_>, RecordError> {
        let der = self.certificate_chain.first().ok_or(RecordError::Leaf)?;
        Certificate::parse(der).map_err(|_| RecordError::Leaf)
    }
}

fn take<'a, T: DeJson>(
    members: &mut Vec<(&'a str, &'a str)>,
    name: &'static str,
) -> Result<T, RecordError> {
    let raw = take_raw(members, name).ok_or(RecordError::Member(name))?;
    T::deserialize_json(raw).map_err(|_| RecordError::Member(name))
}

fn take_raw<'a>(members: &mut Vec<(&'a str, &'a str)>, name: &str) -> Option<&'a str> {
    let at = members
        .iter()
        .position(|(quoted, _)| quoted.trim_matches('"') == name)?;
    Some(members.remove(at).1)
}

/// The members of a JSON object, each name (with its quotes) and value as they stand. `text` must have
/// passed [`json::check`].
fn members(text: &str) -> Option<Vec<(&str, &str)>> {
    let inner = text
        .trim_matches(is_blank)
        .strip_prefix('{')?
        .strip_suffix('}')?;
    let mut members = Vec::new();
    let mut rest = inner.trim_matches(is_blank);
    while !rest.is_empty() {
        let (name, after) = rest.split_at_checked(value_length(rest))?;
        let after = after
            .trim_start_matches(is_blank)
            .strip_prefix(':')?
            .trim_start_matches(is_blank);
        let (value, after) = after.split_at_checked(value_length(after))?;
        members.push((name, value.trim_end_matches(is_blank)));
        let after = after.trim_start_matches(is_blank);
        rest = after
            .strip_prefix(',')
            .unwrap_or(after)
            .trim_start_matches(is_blank);
    }
    Some(members)
}

/// The objects of a JSON array, each as it stands; `None` for other elements, and for too many.
fn objects(text: &str) -> Option<Vec<String>> {
    let inner = text.strip_prefix('[')?.strip_suffix(']')?;
    let mut objects = Vec::new();
    let mut rest = inner.trim_matches(is_blank);
    while !rest.is_empty() {
        let (object, after) = rest.split_at_checked(value_length(rest))?;
        let object = object.trim_end_matches(is_blank);
        if !object.starts_with('{') || objects.len() >= trust::LINKS {
            return None;
        }
        objects.push(object.to_owned());
        rest = after
            .strip_prefix(',')
            .unwrap_or(after)
            .trim_start_matches(is_blank);
    }
    Some(objects)
}

fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r')
}

/// How many bytes the JSON value at the start of `text` has, up to a comma or colon of its own level.
fn value_length(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut in_string = false;
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        if in_string {
            in_string = escaped || byte != b'"';
            escaped = byte == b'\\' && !escaped;
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b',' | b':' if depth == 0 => return at,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
pub(crate) mod tests {
    use super::*;

    /// An identity whose leaf certifies `key`.
    pub(crate) fn identity_of(key: &crate::crypto::key::NodeKey) -> Identity {
        Identity {
            spiffe_id: "spiffe://better-compute/node/node_01".to_owned(),
            node_id: "node_01".to_owned(),
            role: "node".to_owned(),
            site: "fsn1".to_owned(),
            pool: "pool_01".to_owned(),
            certificate_chain: vec![certificate_of(key)],
            trust_bundle: "{\"payload\":\"AA==\",\"signatures\":[{\"sig\":\"x,}:\"}]}".to_owned(),
            trust_chain: vec!["{\"payload\":\"AQ==\", \"x\": [1, {}]}".to_owned(); 2],
            server_time_ms: 1_790_000_000_000,
            unknown: Vec::new(),
        }
    }

    /// The least of a certificate for `key`, signed by nobody.
    pub(crate) fn certificate_of(key: &crate::crypto::key::NodeKey) -> Vec<u8> {
        fn tlv(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
            let body = parts.concat();
            let mut out = vec![tag];
            match u8::try_from(body.len()) {
                Ok(short) if short < 128 => out.push(short),
                Ok(byte) => out.extend([0x81, byte]),
                Err(_) => out.extend([0x82, (body.len() >> 8) as u8, body.len() as u8]),
            }
            out.extend(body);
            out
        }
        let algorithm = tlv(
            0x30,
            &[&tlv(
                0x06,
                &[&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02]],
            )],
        );
        let name = tlv(
            0x30,
            &[&tlv(
                0x31,
                &[&tlv(
                    0x30,
                    &[&tlv(0x06, &[&[0x55, 0x04, 0x03]]), &tlv(0x0c, &[b"n"])],
                )],
            )],
        );
        let validity = tlv(
            0x30,
            &[
                &tlv(0x17, &[b"250101000000Z"]),
                &tlv(0x17, &[b"350101000000Z"]),
            ],
        );
        let tbs = tlv(
            0x30,
            &[
                &tlv(0xa0, &[&tlv(0x02, &[&[2]])]),
                &tlv(0x02, &[&[1]]),
                &algorithm,
                &name,
                &validity,
                &name,
                &key.spki_der(),
                &tlv(
                    0xa3,
                    &[&tlv(
                        0x30,
                        &[&tlv(
                            0x30,
                            &[
                                &tlv(0x06, &[&[0x55, 0x1d, 0x13]]),
                                &tlv(0x04, &[&tlv(0x30, &[])]),
                            ],
                        )],
                    )],
                ),
            ],
        );
        tlv(
            0x30,
            &[
                &tbs,
                &algorithm,
                &tlv(
                    0x03,
                    &[&[0, 0x30, 0x06, 0x02, 0x01, 0x01, 0x02, 0x01, 0x01]],
                ),
            ],
        )
    }

    fn sample() -> Identity {
        identity_of(&crate::crypto::key::NodeKey::generate().unwrap())
    }

    #[test]
    fn an_identity_reads_back_as_it_was_written() {
        let identity = sample();
        assert_eq!(
            Identity::from_json(identity.to_json().as_bytes()).unwrap(),
            identity
        );
    }

    /// Files as they were written once. They are never changed: who reads them today must read them
    /// for ever.
    #[test]
    fn identities_of_every_version_so_far_are_read_trust_and_all_and_written_alike() {
        use crate::crypto::pin::Pin;
        // From before renewals, and after the keys of the fleet were rotated.
        let joined = include_str!("frozen/identity-1-joined.json");
        let rotated = include_str!("frozen/identity-1-rotated.json");
        let configured = Configured {
            serving_ca: Pin::parse("sha256/4Um89kSsOnVFqBZUF80JmLagL5viFlCV9QLy0d90e1s=").unwrap(),
            join_signing: Pin::parse("sha256/oIo7uNLgM8NEjeCuq3HpaXKi+ecZ2Kj6L7OZ7zZm0Vc=")
                .unwrap(),
        };
        for (text, version, links, configured_stands) in
            [(joined, 1, 0, true), (rotated, 7, 1, false)]
        {
            let identity = Identity::from_json(text.as_bytes()).unwrap();
            assert_eq!(identity.node_id, "node_01m8mp6xds1d372sw5b9d9rnyw");
            assert_eq!(identity.trust_chain.len(), links);
            assert_eq!(identity.to_json(), text);
            let (trust, error) = identity.trust(configured);
            assert!(error.is_none());
            assert_eq!(trust.version(), version);
            assert_eq!(
                trust.signers().contains(&configured.join_signing),
                configured_stands
            );
            assert_eq!(
                trust.serving_pins().contains(&configured.serving_ca),
                configured_stands
            );
        }
    }

    #[test]
    fn members_of_a_newer_version_survive_being_written_again() {
        let mut identity = sample();
        let text = identity.to_json().replacen(
            '{',
            "{\"ak_name\": [1, {\"a\": \"}\\\"],\"}], \"later\":true,",
            1,
        );
        identity = Identity::from_json(text.as_bytes()).unwrap();
        let again = Identity::from_json(identity.to_json().as_bytes()).unwrap();
        assert_eq!(again, identity);
        assert_eq!(
            again.unknown,
            [
                (
                    "\"ak_name\"".to_owned(),
                    "[1, {\"a\": \"}\\\"],\"}]".to_owned()
                ),
                ("\"later\"".to_owned(), "true".to_owned())
            ]
        );
    }

    #[test]
    fn every_damage_is_told_apart_and_none_panics() {
        let text = sample().to_json();
        let read = |text: &str| Identity::from_json(text.as_bytes()).unwrap_err();
        assert!(matches!(read(""), RecordError::Json(_)));
        assert!(matches!(read("[]"), RecordError::NotAnObject));
        assert!(matches!(read("{}"), RecordError::Member("version")));
        assert!(matches!(
            read(&text.replace("\"version\": 1", "\"version\": 2")),
            RecordError::Newer(2)
        ));
        assert!(matches!(
            read(&text.replace("node_id", "node_ix")),
            RecordError::Member("node_id")
        ));
        assert!(matches!(
            read(&text.replace("1790000000000", "-1")),
            RecordError::Member("server_time_ms")
        ));
        assert!(matches!(
            read(&text.replace("BEGIN", "BEGUN")),
            RecordError::Chain(_)
        ));
        assert!(matches!(
            read(
                &text
                    .replace("{\"payload\"", "[{\"payload\"")
                    .replace("}]}", "}]}]")
            ),
            RecordError::Member("trust_bundle")
        ));
        for other in [
            "{}",
            "[1]",
            "[{}, []]",
            &format!("[{}{{}}]", "{},".repeat(16)),
        ] {
            let text = text.replace("\"server_time_ms\"", "\"trust_chain_\"");
            let text = text.replacen("\"trust_chain\": [", "\"gone\": [", 1);
            let text = text.replace(
                "\"trust_chain_\": 1790000000000",
                &format!("\"trust_chain\": {other}"),
            );
            assert!(
                matches!(read(&text), RecordError::Member("trust_chain")),
                "{other}"
            );
        }
        for end in 0..text.len() - 1 {
            if text.is_char_boundary(end) && end + 1 < text.trim_end().len() {
                let _ = read(&text[..end]);
            }
        }
        assert!(matches!(read(&"[".repeat(10_000)), RecordError::Json(_)));
        let bytes = vec![b' '; MAX_LENGTH + 1];
        assert!(matches!(
            Identity::from_json(&bytes),
            Err(RecordError::Json(_))
        ));
    }

    #[test]
    fn damage_of_any_kind_never_panics_and_what_reads_is_written_back_alike() {
        let good = sample().to_json().into_bytes();
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below as u64) as usize
        };
        let pieces: [&[u8]; 8] = [b"\"", b"\\", b"{", b"}", b"[", b",", b":", b"0"];
        for _ in 0..20_000 {
            let mut bytes = good.clone();
            for _ in 0..1 + random(3) {
                let at = random(bytes.len());
                let end = (at + random(3)).min(bytes.len());
                bytes.splice(at..end, pieces[random(pieces.len())].iter().copied());
            }
            if let Ok(identity) = Identity::from_json(&bytes) {
                assert_eq!(
                    Identity::from_json(identity.to_json().as_bytes()),
                    Ok(identity)
                );
            }
        }
    }
}
