//! Every check on a JoinService's answer (docs/protocol.md 5.3). Pure: the answer and what it is
//! held against come in; an accepted answer or the first check that failed comes out. Nothing of
//! the payload is parsed before the signature over it holds.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]
use std::error::Error;
use std::fmt;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, UnixTime};

use crate::attest::ids::is_ulid_of;
use crate::crypto::certificate::Certificate;
use crate::crypto::der;
use crate::crypto::digest::sha256;
use crate::crypto::envelope::{self, Purpose};
use crate::crypto::pin::Pin;
use crate::identity::trust::{Trust, TrustError};
use crate::proto::{DecodeError, Envelope, JoinResult, Message, Role};
use crate::sys::utc::Utc;

/// Certificates in a chain, and bytes of each: docs/protocol.md 3.
const CHAIN: usize = 8;
const CERTIFICATE_BYTES: usize = 16 * 1024;

/// What an answer is held against.
pub struct Expected<'a> {
    /// The request's CSR, DER.
    pub csr: &'a [u8],
    /// The node key's SubjectPublicKeyInfo, DER.
    pub node_key: &'a [u8],
    /// The role asked for.
    pub role: Role,
    /// The configured site; empty when the node does not know it.
    pub site: &'a str,
    /// The node's SPIFFE id, when it has one: a renewal.
    pub spiffe_id: Option<&'a str>,
    /// Whom the node trusts so far.
    pub trust: &'a Trust,
    /// When this program was built, Unix time in milliseconds.
    pub build_time_ms: u64,
}

/// An answer that passed every check.
#[derive(Debug)]
pub struct Accepted {
    pub result: JoinResult,
    /// Whom the node trusts from now on: with `result.trust_bundle`, unless it held a later one.
    pub trust: Trust,
    /// The time by the JoinService's signed word, Unix time in milliseconds. The answer is for
    /// this very CSR, so it is no older than the request.
    pub time_ms: u64,
}

/// The check that an answer failed.
#[derive(Debug)]
pub enum Refused {
    /// The answer holds neither a result nor a deferral.
    Empty,
    /// No signature of a trusted signing key holds for this purpose.
    Signature {
        trusted: Vec<Pin>,
        source: envelope::Error,
    },
    /// Signed, but not a `JoinResult`.
    Malformed(DecodeError),
    /// It answers another CSR.
    OtherCsr,
    /// No certificates, too many, or too large.
    Chain { certificates: usize },
    /// A certificate of the chain cannot be read.
    Unreadable { position: usize, source: der::Error },
    /// The leaf certifies another key than this node's.
    OtherKey,
    /// The SPIFFE id has not the shape `spiffe://<trust domain>/<role>/<node id>`.
    SpiffeShape { spiffe_id: String },
    /// The SPIFFE id does not end in the answer's node id.
    OtherNode { spiffe_id: String, node_id: String },
    /// The SPIFFE id is not the leaf's only URI name.
    LeafNames {
        spiffe_id: String,
        names: Vec<String>,
    },
    /// A renewal's answer is for another node than this.
    OtherIdentity { own: String, got: String },
    /// It is for another role.
    OtherRole { asked: &'static str, got: String },
    /// It is for another site.
    OtherSite { configured: String, got: String },
    /// There is no trust bundle.
    NoTrustBundle,
    /// The trust bundle is not signed by a trusted signing key.
    BundleSignature {
        trusted: Vec<Pin>,
        source: envelope::Error,
    },
    /// The trust bundle is signed, but not one to use.
    Bundle(TrustError),
    /// The chain leads to no node CA of the trust bundle.
    Untrusted(webpki::Error),
    /// The leaf is not valid at the signed time.
    NotValidNow {
        not_before: i64,
        not_after: i64,
        at: i64,
    },
}

/// The word for a role, as SPIFFE ids and `--role` have it.
pub fn role_word(role: Role) -> Option<&'static str> {
    match role {
        Role::NODE => Some("node"),
        Role::SITE => Some("site"),
        Role::RAMDISK => Some("ramdisk"),
        _ => None,
    }
}

/// The role of this word; unspecified for another.
pub fn role_named(word: &str) -> Role {
    [Role::NODE, Role::SITE, Role::RAMDISK]
        .into_iter()
        .find(|role| role_word(*role) == Some(word))
        .unwrap_or_default()
}

/// Checks `answer`.
///
/// # Errors
/// The first check that fails, in the order of docs/protocol.md 5.3.
pub fn judge(answer: &Envelope, expected: &Expected<'_>) -> Result<Accepted, Refused> {
    let trusted = expected.trust.signers();
    let payload = match envelope::verify_pinned(answer, Purpose::JoinResponse, &trusted) {
        Ok(payload) => payload,
        Err(source) => return Err(Refused::Signature { trusted, source }),
    };
    let result = JoinResult::decode(payload).map_err(Refused::Malformed)?;
    if result.csr_sha256 != sha256(expected.csr) {
        return Err(Refused::OtherCsr);
    }
    let leaf = leaf(&result)?;
    if leaf.spki != expected.node_key {
        return Err(Refused::OtherKey);
    }
    names(&result, &leaf)?;
    if let Some(own) = expected.spiffe_id
        && own != result.spiffe_id
    {
        return Err(Refused::OtherIdentity {
            own: own.to_owned(),
            got: result.spiffe_id.clone(),
        });
    }
    role_and_site(&result, expected)?;

    let signed = result.trust_bundle.as_ref().ok_or(Refused::NoTrustBundle)?;
    let trust = match expected.trust.take(signed) {
        Ok(Some(trust)) => trust,
        // A control plane that was set back: what is held stays, and the chain must lead to its CAs.
        Ok(None) | Err(TrustError::Older { .. }) => expected.trust.clone(),
        Err(TrustError::Signature(source)) => {
            return Err(Refused::BundleSignature { trusted, source });
        }
        Err(error) => return Err(Refused::Bundle(error)),
    };

    // The answer is made for this CSR, so its clock is right now, and this host's may not be.
    let server_time_ms = u64::try_from(result.server_time_ms).unwrap_or(0);
    let time_ms = server_time_ms.max(expected.build_time_ms);
    let signed_s = i64::try_from(time_ms / 1000).unwrap_or(i64::MAX);
    if !leaf.is_valid_at(signed_s) {
        let (not_before, not_after) = (leaf.not_before, leaf.not_after);
        return Err(Refused::NotValidNow {
            not_before,
            not_after,
            at: signed_s,
        });
    }
    chain(&result, &trust, time_ms).map_err(Refused::Untrusted)?;
    Ok(Accepted {
        result,
        trust,
        time_ms,
    })
}

fn leaf(result: &JoinResult) -> Result<Certificate<'_>, Refused> {
    let chain = &result.certificate_chain;
    let fits = chain.len() <= CHAIN && chain.iter().all(|der| der.len() <= CERTIFICATE_BYTES);
    let first = chain.first().filter(|_| fits);
    let first = first.ok_or(Refused::Chain {
        certificates: chain.len(),
    })?;
    for (position, der) in chain.iter().enumerate().skip(1) {
        Certificate::parse(der).map_err(|source| Refused::Unreadable { position, source })?;
    }
    Certificate::parse(first).map_err(|source| Refused::Unreadable {
        position: 0,
        source,
    })
}

/// The SPIFFE id, the node id and the leaf's name say the same.
fn names(result: &JoinResult, leaf: &Certificate<'_>) -> Result<(), Refused> {
    let spiffe_id = || result.spiffe_id.clone();
    let Some((_, _, node_id)) = spiffe_parts(&result.spiffe_id) else {
        return Err(Refused::SpiffeShape {
            spiffe_id: spiffe_id(),
        });
    };
    if node_id != result.node_id {
        let node_id = result.node_id.clone();
        return Err(Refused::OtherNode {
            spiffe_id: spiffe_id(),
            node_id,
        });
    }
    let names = &leaf.uri_names;
    if names.len() != 1 || names.first().is_none_or(|name| *name != result.spiffe_id) {
        let names = names.iter().map(|name| (*name).to_string()).collect();
        return Err(Refused::LeafNames {
            spiffe_id: spiffe_id(),
            names,
        });
    }
    Ok(())
}

fn role_and_site(result: &JoinResult, expected: &Expected<'_>) -> Result<(), Refused> {
    let asked = role_word(expected.role).unwrap_or("unknown");
    let named = spiffe_parts(&result.spiffe_id).map_or("", |(_, role, _)| role);
    if result.role != expected.role || named != asked {
        let got = if result.role == expected.role {
            named.to_owned()
        } else {
            role_word(result.role)
                .map_or_else(|| format!("number {}", result.role.0), str::to_owned)
        };
        return Err(Refused::OtherRole { asked, got });
    }
    if !expected.site.is_empty() && result.site != expected.site {
        let configured = expected.site.to_owned();
        return Err(Refused::OtherSite {
            configured,
            got: result.site.clone(),
        });
    }
    Ok(())
}

/// Trust domain, role and node id of a SPIFFE id of ours.
fn spiffe_parts(id: &str) -> Option<(&str, &str, &str)> {
    let mut parts = id.strip_prefix("spiffe://")?.split('/');
    let (domain, role, node) = (parts.next()?, parts.next()?, parts.next()?);
    let domain_byte = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-._".contains(&b);
    let domain_fits = !domain.is_empty() && domain.len() <= 255 && domain.bytes().all(domain_byte);
    let role_fits = matches!(role, "node" | "site" | "ramdisk");
    (parts.next().is_none() && domain_fits && role_fits && is_ulid_of("node", node))
        .then_some((domain, role, node))
}

/// The chain leads to a node CA of the bundle, and is for clients.
fn chain(result: &JoinResult, trust: &Trust, time_ms: u64) -> Result<(), webpki::Error> {
    let certificates: Vec<CertificateDer<'_>> = result
        .certificate_chain
        .iter()
        .map(|der| CertificateDer::from(der.as_slice()))
        .collect();
    let cas: Vec<CertificateDer<'_>> = trust
        .node_cas()
        .into_iter()
        .map(CertificateDer::from)
        .collect();
    let anchors: Vec<_> = cas
        .iter()
        .filter_map(|ca| webpki::anchor_from_trusted_cert(ca).ok())
        .collect();
    let (leaf, rest) = certificates
        .split_first()
        .ok_or(webpki::Error::UnknownIssuer)?;
    webpki::EndEntityCert::try_from(leaf)?
        .verify_for_usage(
            &[
                webpki::ring::ECDSA_P256_SHA256,
                webpki::ring::ECDSA_P384_SHA384,
            ],
            &anchors,
            rest,
            UnixTime::since_unix_epoch(Duration::from_millis(time_ms)),
            webpki::KeyUsage::client_auth(),
            None,
            None,
        )
        .map(|_| ())
}

fn listed(pins: &[Pin]) -> String {
    let pins: Vec<String> = pins.iter().map(Pin::to_string).collect();
    pins.join(" or ")
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("it holds neither a certificate nor a deferral"),
            Self::Signature { trusted, .. } => write!(
                f,
                "it is not signed by the JoinService key pinned by join_signing_key_pin ({}); compare the \
                 pin with `better-compute pki pins`",
                listed(trusted)
            ),
            Self::Malformed(_) => f.write_str("its signed payload is no JoinResult"),
            Self::OtherCsr => {
                f.write_str("it answers another certificate request than this node's")
            }
            Self::Chain { certificates } => write!(
                f,
                "its chain of {certificates} certificates is empty or too large (at most {CHAIN} of 16 KiB)"
            ),
            Self::Unreadable { position, .. } => {
                write!(
                    f,
                    "certificate {position} of its chain (0: the leaf) cannot be read"
                )
            }
            Self::OtherKey => f.write_str("its leaf certifies another key than this node's"),
            Self::SpiffeShape { spiffe_id } => write!(
                f,
                "its SPIFFE id {spiffe_id:?} is not of the form spiffe://<trust domain>/<role>/<node id>"
            ),
            Self::OtherNode { spiffe_id, node_id } => {
                write!(
                    f,
                    "its SPIFFE id {spiffe_id} is not for its node id {node_id:?}"
                )
            }
            Self::LeafNames { spiffe_id, names } => write!(
                f,
                "its leaf must carry the SPIFFE id {spiffe_id} as its only URI name, and carries {names:?}"
            ),
            Self::OtherIdentity { own, got } => {
                write!(f, "it is for {got:?}, and this node is {own}")
            }
            Self::OtherRole { asked, got } => {
                write!(f, "it is for the role {got}, and {asked} was asked for")
            }
            Self::OtherSite { configured, got } => write!(
                f,
                "it is for the site {got:?}, and this node is configured for {configured:?}"
            ),
            Self::NoTrustBundle => f.write_str("it has no trust bundle"),
            Self::BundleSignature { trusted, .. } => write!(
                f,
                "its trust bundle is not signed by the JoinService key pinned by join_signing_key_pin ({})",
                listed(trusted)
            ),
            Self::Bundle(TrustError::Malformed(_)) => {
                f.write_str("its trust bundle cannot be read")
            }
            Self::Bundle(_) => f.write_str("its trust bundle cannot be used"),
            Self::Untrusted(_) => {
                f.write_str("its certificate chain leads to no node CA of its trust bundle")
            }
            Self::NotValidNow {
                not_before,
                not_after,
                at,
            } => write!(
                f,
                "its leaf is valid from {} to {}, and not at {}, the JoinService's time; check the control \
                 plane's clock",
                Utc::from_seconds(*not_before),
                Utc::from_seconds(*not_after),
                Utc::from_seconds(*at),
            ),
        }
    }
}

impl Error for Refused {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Signature { source, .. } | Self::BundleSignature { source, .. } => Some(source),
            Self::Malformed(source) | Self::Bundle(TrustError::Malformed(source)) => Some(source),
            Self::Bundle(source) => Some(source),
            Self::Unreadable { source, .. } => Some(source),
            Self::Untrusted(source) => Some(source),
            _ => None,
        }
    }
}
