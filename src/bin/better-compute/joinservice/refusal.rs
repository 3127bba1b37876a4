//! Why a join is refused: one variant a reason, each with its gRPC code and its line for a person.

use std::error::Error;
use std::fmt;

use bcd::config::mac::Mac;
use bcd::crypto::json::quote;
use bcd::crypto::pin::Pin;
use bcd::wire::grpc::{Code, Status};

use crate::store::StoreError;

/// What a node that was deleted is told, at its session and at its renewal.
pub const DELETED: &str =
    "this node was deleted: join again with bcd join --reset --yes and a new token";
/// What a node is told whose key has been replaced.
pub const REPLACED: &str = "another key has taken the place of this one, by a renewal or a new join: join again with bcd join --reset --yes and a new token";

/// What a machine is told whose boot parameters are not for it, or for now.
const BOOT_AGAIN: &str =
    "boot it again through its site agent, since each boot needs parameters of its own";

/// A refused join or renewal.
#[derive(Debug)]
pub enum Refusal {
    /// The request is not well-formed or over a limit: what is wrong with it.
    Malformed(String),
    /// The attestor is none this JoinService has.
    UnknownAttestor,
    /// The role is none this JoinService knows.
    UnknownRole,
    /// The CSR does not hold: why.
    BadCsr(String),
    /// The token is sealed to a key that is not this JoinService's.
    OtherEncryptionKey,
    /// What was sealed does not open.
    DoesNotOpen,
    /// What was sealed is no token.
    MalformedToken,
    /// No such token, or the secret is another's.
    UnknownToken,
    Revoked,
    Expired {
        /// How long ago, in milliseconds.
        ago_ms: i64,
    },
    /// The token was redeemed by another key.
    UsedByOtherKey,
    /// The token of a machine was redeemed by another key: an earlier boot's, or another machine's.
    UsedByOtherBoot,
    /// The token was redeemed by this key, and the time in which the answer is given again is over.
    RetriedTooLate,
    OtherRole {
        token: &'static str,
        asked: &'static str,
    },
    OtherSite {
        token: String,
        asked: String,
    },
    /// The token is for another attestor than the request's.
    OtherAttestor {
        token: &'static str,
        asked: &'static str,
    },
    /// A join by discovery carries no assertion.
    NoAssertion,
    /// No signature of the assertion names a site key that is registered.
    UnknownSiteKey,
    /// The assertion is signed by this key, which is revoked.
    RevokedSiteKey(Pin),
    /// The site key's signature does not hold for an assertion: why.
    AssertionUnsigned(String),
    /// It is signed, but no assertion: why.
    AssertionMalformed(String),
    /// The assertion, or the key that signed it, is of another site than the token.
    AssertionOtherSite {
        token: String,
        assertion: String,
    },
    /// The assertion goes with another token.
    AssertionOtherToken,
    /// The assertion is for another MAC than the token's, which is this.
    AssertionOtherMac(Mac),
    /// The assertion was signed too long ago.
    AssertionStale {
        age_ms: i64,
    },
    /// The assertion was signed in the future.
    AssertionAhead {
        by_ms: i64,
    },
    /// The machine names no NIC with the token's MAC, which is this.
    OtherMachine(Mac),
    /// The node this machine claims to be cannot be joined with this token.
    NotReclaimable(&'static str),
    /// The signature of a proof does not hold for this request.
    ProofUnsigned,
    /// No deploy left this key, as far as is known here.
    UnknownDeploy,
    /// The OS of a deploy may not join: why not.
    Provisioned(&'static str),
    /// The node the token was redeemed for is deleted.
    NodeDeleted,
    /// A renewal is not well-formed or over a limit: what is wrong with it.
    MalformedRenewal(String),
    /// No signature of a renewal holds.
    Unsigned,
    /// There is no node that this key may renew.
    UnknownNode,
    /// The node that asks for a renewal is deleted.
    Deleted,
    /// The node has another key by now.
    Replaced,
    /// A renewal for the key the node has.
    SameKey,
    /// A renewal for a key that a later renewal took the place of.
    Superseded,
    /// The certificate ended too long ago.
    RenewedTooLate {
        ago_ms: i64,
        /// How long after its end one is renewed.
        grace_ms: i64,
    },
    /// The control plane's own trouble; the caller may try again.
    Store(StoreError),
    /// The control plane's own trouble: signing or issuing failed.
    Fault(&'static str),
}

impl Refusal {
    /// The gRPC code docs/protocol.md gives this refusal.
    pub fn code(&self) -> Code {
        match self {
            Self::Malformed(_)
            | Self::UnknownAttestor
            | Self::UnknownRole
            | Self::BadCsr(_)
            | Self::NoAssertion
            | Self::AssertionMalformed(_)
            | Self::MalformedRenewal(_)
            | Self::SameKey => Code::InvalidArgument,
            Self::OtherEncryptionKey => Code::FailedPrecondition,
            Self::DoesNotOpen
            | Self::MalformedToken
            | Self::UnknownToken
            | Self::UnknownSiteKey
            | Self::AssertionUnsigned(_)
            | Self::ProofUnsigned
            | Self::UnknownDeploy
            | Self::Unsigned => Code::Unauthenticated,
            Self::Revoked
            | Self::Expired { .. }
            | Self::UsedByOtherKey
            | Self::UsedByOtherBoot
            | Self::RetriedTooLate
            | Self::OtherRole { .. }
            | Self::OtherSite { .. }
            | Self::OtherAttestor { .. }
            | Self::RevokedSiteKey(_)
            | Self::AssertionOtherSite { .. }
            | Self::AssertionOtherToken
            | Self::AssertionOtherMac(_)
            | Self::AssertionStale { .. }
            | Self::AssertionAhead { .. }
            | Self::OtherMachine(_)
            | Self::NotReclaimable(_)
            | Self::Provisioned(_)
            | Self::NodeDeleted
            | Self::UnknownNode
            | Self::Deleted
            | Self::Replaced
            | Self::Superseded
            | Self::RenewedTooLate { .. } => Code::PermissionDenied,
            Self::Store(_) => Code::Unavailable,
            Self::Fault(_) => Code::Internal,
        }
    }

    /// What the node is told. The control plane's own trouble is named, not explained.
    pub fn status(&self) -> Status {
        Status::new(self.code(), self.to_string())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(what) => write!(f, "malformed join request: {what}"),
            Self::UnknownAttestor => {
                write!(
                    f,
                    "the attestor is not known here; this control plane takes join-token, discovery and provisioned"
                )
            }
            Self::UnknownRole => write!(f, "the role is not one of node, site and ramdisk"),
            Self::BadCsr(why) => write!(f, "the certificate request does not hold: {why}"),
            Self::OtherEncryptionKey => write!(
                f,
                "the token is sealed to a key that is not this control plane's"
            ),
            Self::DoesNotOpen => write!(
                f,
                "the sealed token does not open: it was damaged on its way or made for another request"
            ),
            Self::MalformedToken => write!(
                f,
                "this is no join token: it must be bcjt_jt_<id>.<secret>, whole"
            ),
            Self::UnknownToken => write!(
                f,
                "the join token is not known here: check that it is whole and was made by this control plane"
            ),
            Self::Revoked => write!(
                f,
                "the join token is revoked: make a new one with better-compute tokens create"
            ),
            Self::Expired { ago_ms } => write!(
                f,
                "the join token expired {} ago: make a new one with better-compute tokens create",
                crate::cli::ago::span(*ago_ms)
            ),
            Self::UsedByOtherKey => write!(
                f,
                "the join token was already used by another key: make a new one with better-compute tokens create"
            ),
            Self::UsedByOtherBoot => write!(
                f,
                "the join token was already used, by an earlier boot or by another machine: {BOOT_AGAIN}"
            ),
            Self::RetriedTooLate => write!(
                f,
                "the join token was used by this key, but too long ago to answer again: make a new one with better-compute tokens create"
            ),
            Self::OtherRole { token, asked } => write!(
                f,
                "the join token is for role {token}, not {asked}: join with --role {token} or make a token with --role {asked}"
            ),
            // What a node calls its site may be any text.
            Self::OtherSite { token, asked } => write!(
                f,
                "the join token is for site {token}, not {}: correct its site (site in config.toml, bc.site in a ramdisk), or make a token for that site",
                quote(asked)
            ),
            Self::OtherAttestor { token, asked } => write!(
                f,
                "the join token is for the attestor {token}, not {asked}: make one {} --mac with better-compute tokens create",
                match *token {
                    "discovery" => "without",
                    _ => "with",
                }
            ),
            Self::NoAssertion => write!(
                f,
                "a join by discovery needs the site agent's assertion (bc.assertion), and this one has none"
            ),
            Self::UnknownSiteKey => write!(
                f,
                "the assertion is signed by no site key that is registered here: register the site agent's with better-compute sites add-key"
            ),
            Self::RevokedSiteKey(pin) => write!(
                f,
                "the assertion is signed by the site key {pin}, which is revoked: give the site agent a new key"
            ),
            Self::AssertionUnsigned(why) => {
                write!(f, "the assertion's signature does not hold: {why}")
            }
            Self::AssertionMalformed(why) => write!(f, "the assertion cannot be read: {why}"),
            Self::AssertionOtherSite { token, assertion } => write!(
                f,
                "the assertion is of site {assertion}, and the join token is for site {token}"
            ),
            Self::AssertionOtherToken => write!(
                f,
                "the assertion goes with another join token: {BOOT_AGAIN}"
            ),
            Self::AssertionOtherMac(mac) => write!(
                f,
                "the join token is for the machine with the MAC {mac}, and the assertion for another: {BOOT_AGAIN}"
            ),
            Self::AssertionStale { age_ms } => write!(
                f,
                "the assertion was signed {} ago and is good for {}: {BOOT_AGAIN}, and compare the site agent's clock",
                crate::cli::ago::span(*age_ms),
                crate::cli::ago::span(super::discovery::FRESH_MS)
            ),
            Self::AssertionAhead { by_ms } => write!(
                f,
                "the assertion was signed {} in the future: set the site agent's clock",
                crate::cli::ago::span(*by_ms)
            ),
            Self::OtherMachine(mac) => write!(
                f,
                "the join token is for the machine with the MAC {mac}, and this machine has no NIC with it: {BOOT_AGAIN}"
            ),
            Self::NotReclaimable(why) | Self::Provisioned(why) => f.write_str(why),
            Self::ProofUnsigned => f.write_str(
                "the signature of provisioned_proof does not hold for this request: it was damaged on its way",
            ),
            Self::UnknownDeploy => f.write_str(
                "no deploy that this control plane has a good receipt of left this key: join with a token, or deploy again",
            ),
            Self::NodeDeleted => write!(
                f,
                "the node this token joined was deleted: make a new token with better-compute tokens create and join with --reset"
            ),
            Self::MalformedRenewal(what) => write!(f, "malformed renewal: {what}"),
            Self::Unsigned => write!(f, "the renewal is not signed by the key it carries"),
            Self::UnknownNode => write!(
                f,
                "no node of this control plane has this id and key: join again with bcd join --reset --yes and a new token"
            ),
            Self::Deleted => f.write_str(DELETED),
            Self::Replaced => f.write_str(REPLACED),
            Self::SameKey => write!(f, "a renewal needs a new key"),
            Self::Superseded => write!(
                f,
                "a later renewal took this key's place: ask with a new key"
            ),
            Self::RenewedTooLate { ago_ms, grace_ms } => write!(
                f,
                "the certificate expired {} ago, and this control plane renews {}: join again with bcd join --reset --yes and a new token",
                crate::cli::ago::span(*ago_ms),
                match grace_ms {
                    ..=0 => "none that has expired".to_owned(),
                    grace => format!("for {} after that", crate::cli::ago::span(*grace)),
                }
            ),
            Self::Store(_) => write!(
                f,
                "the control plane cannot use its database: try again later"
            ),
            Self::Fault(what) => write!(f, "the control plane cannot {what}"),
        }
    }
}

impl Error for Refusal {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Store(error) => Some(error),
            _ => None,
        }
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_calls_its_site_drives_no_terminal() {
        let refusal = Refusal::OtherSite {
            token: "fsn1".to_owned(),
            asked: "a\u{1b}[1m\n\u{9b}1m; x".to_owned(),
        };
        let said = refusal.to_string();
        assert!(!said.chars().any(char::is_control), "{said:?}");
        assert!(said.contains(r#"not "a\u001b[1m\n\u009b1m; x":"#), "{said}");
    }
}
