//! Joining a fleet (docs/protocol.md 5): one request, made until there is an answer, and every
//! check on that answer.
//!
//! [`request`] makes the request once: a CSR for a key that is on the disk already, and the token
//! sealed to the JoinService. [`run`] sends the same bytes until they are answered, as `machine`
//! decides, and hands the answer to `verdict`. Storing the outcome is the caller's: nothing here
//! writes. It refuses to parse what no pinned key signed, to send anything to a gateway that the
//! pins do not vouch for, and to ask again what was answered.
use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;

use self::machine::{Event, State, Step};
pub use self::verdict::{Accepted, Expected, Refused, role_word};
pub(super) use self::verdict::{judge, role_named};
use super::gateway::Gateway;
use super::provisioned::Provisioned;
use crate::config::mac::Mac;
use crate::crypto::digest::sha256;
use crate::crypto::gateway_verifier::Failure;
use crate::crypto::jwk::PublicKey;
use crate::crypto::key::{self, NodeKey};
use crate::crypto::{csr, hpke};
use crate::facts::nics;
use crate::identity::record::Identity;
use crate::proto::{
    Envelope, Facts, HardwareClaims, JoinRequest, JoinRequestCredential, JoinResponse,
    JoinResponseOutcome, NetworkInterface, Role, SealedToken, join_service,
};
use crate::rt::{self, tls::TlsError};
use crate::sys::{clock, random};
use crate::wire::grpc::Code;
use crate::wire::grpc::client::{CallError, Cause, Client};

mod machine;
pub mod verdict;

/// HPKE's info.
const INFO: &[u8] = b"better-compute join v1";

/// One whole call.
const CALL: Duration = Duration::from_secs(30);

/// How long a gateway may be out of reach, unless `--timeout` says otherwise.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Of network cards in the claims, lest a host with thousands of them fill the request.
const MACS: usize = 64;

/// What a request says besides key and proof.
pub struct Asked<'a> {
    pub role: Role,
    /// Empty when the node does not know it.
    pub site: &'a str,
    /// The node this machine claims to be, or empty.
    pub node_id: &'a str,
    /// The attestor discovery, with this and a token; `None`: the attestor of the proof.
    pub discovery: Option<Discovery<'a>>,
}

/// What a ramdisk has besides its token.
pub struct Discovery<'a> {
    /// The site agent's word that this machine boots now.
    pub assertion: &'a Envelope,
    /// The NIC it booted from, as far as the boot loader said.
    pub boot_nic: Option<Mac>,
}

/// What is to prove that this machine may join.
pub enum Proof<'a> {
    /// A join token, with the assertion of [`Asked::discovery`] or without.
    Token(&'a [u8]),
    /// The key that a deploy left.
    Provisioned(&'a Provisioned),
}

/// Why a request could not be made.
#[derive(Debug)]
pub enum RequestError {
    Csr(key::Error),
    Seal(hpke::Error),
}

/// Makes the request: the CSR of `key`, and its proof, a token sealed to `recipient`.
///
/// # Errors
/// The system gives no random bytes, or the recipient's key is no point on the curve.
pub fn request(
    asked: &Asked<'_>,
    key: &NodeKey,
    proof: &Proof<'_>,
    recipient: &PublicKey,
    facts: Facts,
) -> Result<JoinRequest, RequestError> {
    let csr = csr::build(key).map_err(RequestError::Csr)?;
    let mut attestor = "join-token";
    let (mut credential, mut provisioned_proof) = (None, None);
    match proof {
        Proof::Token(token) => {
            let sealed = hpke::seal(recipient, INFO, &sha256(&csr), token);
            let sealed = sealed.map_err(RequestError::Seal)?;
            credential = Some(JoinRequestCredential::SealedToken(SealedToken {
                key_pin: recipient.pin().to_string(),
                enc: sealed.enc.to_vec(),
                ciphertext: sealed.ciphertext,
            }));
        }
        Proof::Provisioned(left) => {
            attestor = "provisioned";
            provisioned_proof = Some(left.prove(&csr).map_err(RequestError::Csr)?);
        }
    }
    let mut claims = claims(facts);
    let mut assertion = None;
    if let Some(discovery) = &asked.discovery {
        attestor = "discovery";
        claims.0.boot_mac = nics::boot_mac(&claims.1, discovery.boot_nic);
        assertion = Some(discovery.assertion.clone());
    }
    Ok(JoinRequest {
        attestor: attestor.to_owned(),
        role: asked.role,
        site: asked.site.to_owned(),
        csr,
        credential,
        claims: Some(claims.0),
        daemon_version: env!("CARGO_PKG_VERSION").to_owned(),
        node_id: asked.node_id.to_owned(),
        discovery_assertion: assertion,
        provisioned_proof,
    })
}

/// The claims, and the interfaces they were made of.
fn claims(facts: Facts) -> (HardwareClaims, Vec<NetworkInterface>) {
    let firmware = facts.firmware.unwrap_or_default();
    let kernel = facts.kernel.unwrap_or_default();
    let claims = HardwareClaims {
        hostname: facts.hostname,
        machine_id: facts.machine_id,
        system_vendor: firmware.system_vendor,
        system_product: firmware.system_product,
        system_serial: firmware.system_serial,
        system_uuid: firmware.system_uuid,
        macs: nics::card_macs(&facts.interfaces, MACS),
        architecture: kernel.architecture,
        kernel: kernel.release,
        cpus: facts.cpu.map_or(0, |cpu| cpu.threads),
        memory_bytes: facts.memory_bytes,
        has_tpm: facts.has_tpm,
        boot_mac: String::new(),
    };
    (claims, facts.interfaces)
}

/// What is worth telling while a join goes on.
pub enum Notice<'a> {
    /// The control plane has not decided yet; asked again after the wait.
    Deferred { reason: &'a str, wait: Duration },
    /// The call failed; made again after the wait.
    Failed {
        error: &'a CallError,
        wait: Duration,
    },
}

/// Why there was no identity.
#[derive(Debug)]
pub enum Error {
    /// A call failed in a way that asking again does not heal.
    Call(CallError),
    /// Calls failed for as long as was allowed, and this is the last failure.
    GaveUp { after: Duration, last: CallError },
    /// The answer does not hold.
    Answer(Refused),
}

/// Calls until there is an answer, and checks it.
///
/// # Errors
/// See [`Error`].
pub async fn run(
    gateway: &Gateway,
    tls: &Arc<ClientConfig>,
    request: &JoinRequest,
    expected: &Expected<'_>,
    patience: Duration,
    tell: &mut dyn FnMut(&Notice<'_>),
) -> Result<Accepted, Error> {
    let call = || async {
        let client = Client::connect(&gateway.endpoint(tls)).await?;
        client.unary(&join_service::JOIN, request, CALL).await
    };
    let response = ask(call, patience, tell).await?;
    match response.outcome {
        Some(JoinResponseOutcome::Signed(envelope)) => {
            verdict::judge(&envelope, expected).map_err(Error::Answer)
        }
        _ => Err(Error::Answer(Refused::Empty)),
    }
}

impl Accepted {
    /// The identity it makes.
    pub fn identity(&self) -> Identity {
        let result = &self.result;
        let mut identity = Identity::default();
        identity.spiffe_id.clone_from(&result.spiffe_id);
        identity.node_id.clone_from(&result.node_id);
        identity.role = role_word(result.role).unwrap_or_default().to_owned();
        identity.site.clone_from(&result.site);
        identity.pool.clone_from(&result.pool);
        identity
            .certificate_chain
            .clone_from(&result.certificate_chain);
        identity.set_trust(&self.trust);
        identity.server_time_ms = self.time_ms;
        identity
    }
}

/// Drives the machine: `call` is one try.
async fn ask<F, C>(
    call: F,
    patience: Duration,
    tell: &mut dyn FnMut(&Notice<'_>),
) -> Result<JoinResponse, Error>
where
    F: Fn() -> C,
    C: Future<Output = Result<JoinResponse, CallError>>,
{
    let begun = clock::monotonic();
    let (mut state, _) = State::start(begun);
    loop {
        let outcome = call().await;
        let event = match &outcome {
            Ok(JoinResponse {
                outcome: Some(JoinResponseOutcome::Deferral(deferral)),
            }) => Event::Deferred {
                after_ms: deferral.retry_after_ms,
            },
            Ok(_) => Event::Answered,
            Err(error) if may_pass(error) => Event::Failed,
            Err(_) => Event::Refused,
        };
        // Without random bytes the shortest waits are taken.
        let draw = random::below(u64::MAX).unwrap_or(0);
        let (next, step) = state.next(event, clock::monotonic(), patience, draw);
        state = next;
        match (step, outcome) {
            (Step::Wait(wait), outcome) => {
                match &outcome {
                    Err(error) => tell(&Notice::Failed { error, wait }),
                    Ok(JoinResponse {
                        outcome: Some(JoinResponseOutcome::Deferral(deferral)),
                    }) => {
                        tell(&Notice::Deferred {
                            reason: &deferral.reason,
                            wait,
                        });
                    }
                    Ok(_) => {}
                }
                drop(outcome);
                rt::sleep(wait).await;
                (state, _) = state.next(Event::Waited, clock::monotonic(), patience, draw);
            }
            (Step::GiveUp, Err(last)) => {
                let after = clock::monotonic().saturating_sub(begun);
                return Err(Error::GaveUp { after, last });
            }
            (_, Ok(response)) => return Ok(response),
            (_, Err(error)) => return Err(Error::Call(error)),
        }
    }
}

/// Whether a failed call may succeed when it is made again: passing trouble at the server, and the
/// network's, but no certificate that does not hold and no answer that is none.
pub fn may_pass(error: &CallError) -> bool {
    match &error.cause {
        Cause::TimedOut(_)
        | Cause::Connect(_)
        | Cause::Alert(_)
        | Cause::Altered(_)
        | Cause::Http2(_) => true,
        Cause::Hop(error) => !error.is_refusal(),
        Cause::Tls(TlsError::Refused(rustls::Error::InvalidCertificate(_))) => false,
        Cause::Tls(_) => true,
        Cause::Status(status) => matches!(
            status.code,
            Code::Unavailable | Code::ResourceExhausted | Code::DeadlineExceeded | Code::Aborted
        ),
        Cause::NoHttp2 | Cause::Decode(_) => false,
    }
}

impl Error {
    /// The key of the configuration whose pin the gateway or the answer does not have.
    pub fn pin_at_fault(&self) -> Option<&'static str> {
        match self {
            Self::Call(CallError {
                cause: Cause::Tls(error),
                ..
            }) => match Failure::find(error) {
                Some(Failure::NotPinned { .. }) => Some("serving_ca_spki_pin"),
                _ => None,
            },
            Self::Answer(Refused::Signature { .. } | Refused::BundleSignature { .. }) => {
                Some("join_signing_key_pin")
            }
            _ => None,
        }
    }

    /// What to do about it.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::GaveUp { last, .. } => last.cause.remedy().unwrap_or(
                "check that this host reaches the gateway, and run bcd join again: the token is not used up",
            ),
            Self::Answer(Refused::Signature { .. } | Refused::BundleSignature { .. }) => {
                "nothing was stored: put the pins that `better-compute pki pins` prints into config.toml, where they \
                 come from whoever runs the control plane, and try again with the same token"
            }
            Self::Answer(_) => {
                "nothing was stored; report it to whoever runs the control plane, and try again with the same token"
            }
            Self::Call(error) => call_remedy(error),
        }
    }
}

fn call_remedy(error: &CallError) -> &'static str {
    if let Some(remedy) = error.cause.remedy() {
        return remedy;
    }
    match &error.cause {
        Cause::Tls(TlsError::Refused(error)) => match Failure::find(error) {
            Some(Failure::NotPinned { .. } | Failure::NotIssued { .. }) => {
                "compare serving_ca_spki_pin in config.toml with `better-compute pki pins`, and check that \
                 gateway_url names this control plane's gateway; through a proxy that opens TLS it needs [websocket]"
            }
            Some(Failure::WrongName { .. }) => {
                "correct gateway_url, or set gateway_server_name in config.toml to the name the certificate carries"
            }
            Some(Failure::Expired { .. }) => {
                "have the gateway's certificate renewed, or set this host's clock if it is wrong"
            }
            _ => "check that gateway_url in config.toml names a gateway of this control plane",
        },
        Cause::NoHttp2 => {
            "check that gateway_url in config.toml names a gateway, not a web server or a proxy"
        }
        Cause::Status(status) => match status.code {
            Code::Unauthenticated => "create a new token with `better-compute tokens create`",
            Code::PermissionDenied => {
                "where that does not say what to do, ask whoever runs the control plane"
            }
            Code::FailedPrecondition => {
                "take join_encryption_key_pin from `better-compute pki pins`, and join-encryption.jwk from the control \
                 plane's install; then try again with the same token"
            }
            Code::InvalidArgument | Code::Unimplemented => {
                "check that bcd and the control plane are of fitting versions"
            }
            _ => "report it to whoever runs the control plane, and try again with the same token",
        },
        _ => "report it to whoever runs the control plane, and try again with the same token",
    }
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Csr(_) => f.write_str("cannot make the certificate request"),
            Self::Seal(_) => {
                f.write_str("cannot seal the token to the JoinService's encryption key")
            }
        }
    }
}

impl StdError for RequestError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Csr(error) => Some(error),
            Self::Seal(error) => Some(error),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call(_) => f.write_str("the join was not done"),
            Self::GaveUp { after, .. } => {
                write!(f, "no answer to the join in {} s", after.as_secs())
            }
            Self::Answer(_) => f.write_str("the answer to the join is refused"),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            // A certificate that does not hold says why itself; what wraps it on the way from the
            // handshake has only its fields to show.
            Self::Call(error) | Self::GaveUp { last: error, .. } => match Failure::find(error) {
                Some(failure) => Some(failure),
                None => Some(error),
            },
            Self::Answer(refused) => Some(refused),
        }
    }
}
