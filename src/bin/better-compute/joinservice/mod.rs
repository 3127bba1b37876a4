//! The JoinService: opens sealed tokens, decides who joins, issues node certificates, and signs the
//! answer.
//!
//! It alone holds the node CA's key and the JoinService keys. A request passes three steps:
//! [`Keys::read`] says everything that can be said without the database, [`JoinService::decide`] decides
//! all that wait in one transaction, [`Decision::answer`] signs. Bytes of a request, where it came from and
//! the time go in; bytes of an answer or a [`Refusal`] come out. The steps run on threads of their own
//! ([`threads::start`]), the first and the last on as many as there are cores; a gateway sees only
//! [`threads::Relay`].
//!
//! Promises: a token is redeemed by one key, once; the same key gets the same certificate again until
//! the token's end and an hour more; node, redemption and record are durable before the answer is
//! signed; nothing is granted for what a machine claims, save the id of its own earlier node when the
//! token says `allow-reclaim`, and that of the machine that an OS was installed on ([`provisioned`]). A token made for a MAC is redeemed only with a site's signed word
//! ([`discovery`]).

#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)
)]

mod claims;
pub mod discovery;
mod keys;
mod provisioned;
mod recipient;
mod redeem;
mod refusal;
mod renewal;
mod specs;
pub mod threads;
pub mod token;

use std::sync::Arc;

use bcd::crypto::envelope::Purpose;
use bcd::crypto::{csr, digest};
use bcd::proto::{
    Envelope, JoinRequest, JoinRequestCredential, JoinResponse, JoinResponseOutcome, JoinResult,
    Role, ServerTime,
};
use proto_gen::codec::Message;

use self::keys::sign;
pub use self::keys::{Keys, Trust};
pub use self::recipient::Recipient;
pub use self::refusal::{DELETED, REPLACED, Refusal};
use self::token::Presented;
use crate::store::{Attempt, Store, StoreError, Token};

/// Bytes of a `JoinRequest`.
pub const REQUEST_MAX: usize = 64 * 1024;
const CSR_MAX: usize = 4096;
const CIPHERTEXT_MAX: usize = 4096;
const TEXT_MAX: usize = 256;
const HPKE_INFO: &[u8] = b"better-compute join v1";

/// The name of a role, as tokens, SPIFFE ids and the command line have it.
pub fn role_name(role: i32) -> Option<&'static str> {
    match Role(role) {
        Role::NODE => Some("node"),
        Role::SITE => Some("site"),
        Role::RAMDISK => Some("ramdisk"),
        _ => None,
    }
}

/// The role of this name.
pub fn role_named(name: &str) -> Option<i32> {
    [Role::NODE, Role::SITE, Role::RAMDISK]
        .into_iter()
        .map(|role| role.0)
        .find(|role| role_name(*role) == Some(name))
}

/// What an operator decides about certificates.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    /// How long a node's certificate is valid.
    pub certificate_seconds: i64,
    /// How long after its end a certificate is still renewed; 0: never.
    pub renewal_grace_ms: i64,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            certificate_seconds: 30 * 86_400,
            renewal_grace_ms: 30 * 86_400_000,
        }
    }
}

/// An answered join.
pub struct Answered {
    /// An encoded `JoinResponse`.
    pub response: Vec<u8>,
    pub node_id: String,
    /// `issued` or `reissued`.
    pub outcome: &'static str,
}

/// What a node asks of a JoinService.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    Join,
    Renew,
}

/// A request that only the records can decide.
pub struct Question {
    asked: What,
    address: String,
    now_ms: i64,
}

enum What {
    Join(Box<Asked>),
    Renew(Box<renewal::Asked>),
}

/// What was decided, durably, and is to be signed.
pub struct Decision {
    keys: Arc<Keys>,
    csr_sha256: [u8; 32],
    role: i32,
    grant: Grant,
    now_ms: i64,
}

/// See the module's head.
pub struct JoinService {
    keys: Arc<Keys>,
    policy: Policy,
    store: Store,
}

/// What is to prove that a machine may join.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attestor {
    JoinToken,
    Discovery,
    Provisioned,
}

impl Attestor {
    fn name(self) -> &'static str {
        match self {
            Self::JoinToken => "join-token",
            Self::Discovery => "discovery",
            Self::Provisioned => "provisioned",
        }
    }

    /// The one that a token is for.
    fn of(token: &Token) -> Self {
        match token.mac {
            None => Self::JoinToken,
            Some(_) => Self::Discovery,
        }
    }
}

/// What a request brings: a token that opened, or a proof whose signature holds.
enum Credential {
    Token(Presented),
    Provisioned(provisioned::Proof),
}

/// A request that is well-formed, over a CSR that holds.
struct Asked {
    role: i32,
    role_name: &'static str,
    site: String,
    node_id: String,
    attestor: Attestor,
    /// A `SignedDiscoveryAssertion`, not looked at yet.
    assertion: Option<Envelope>,
    csr_sha256: [u8; 32],
    spki: Vec<u8>,
    spki_sha256: [u8; 32],
    credential: Credential,
    claims: Vec<u8>,
    hostname: String,
    /// The MACs that the machine says are its own.
    macs: Vec<String>,
    hardware: claims::Hardware,
    daemon_version: String,
}

/// What is granted.
struct Grant {
    node_id: String,
    pool: String,
    site: String,
    role_name: &'static str,
    chain: Vec<Vec<u8>>,
    /// For the record: `issued` or `reissued`, and why.
    outcome: &'static str,
    reason: &'static str,
}

impl JoinService {
    pub fn new(keys: Keys, policy: Policy, store: Store) -> Self {
        Self {
            keys: Arc::new(keys),
            policy,
            store,
        }
    }

    /// The time, signed for nodes that judge certificates by it. An encoded `ServerTime`'s envelope.
    ///
    /// # Errors
    /// It could not be signed.
    pub fn server_time(&self, now_ms: i64) -> Result<Envelope, Refusal> {
        let time = ServerTime { time_ms: now_ms };
        self.keys.sign(time.encode_to_vec(), Purpose::ServerTime)
    }

    /// Decides and signs with other keys from now on.
    pub fn use_keys(&mut self, keys: Keys) {
        self.keys = Arc::new(keys);
    }

    /// The keys in use.
    pub fn keys(&self) -> Arc<Keys> {
        self.keys.clone()
    }

    /// The trust bundle in force.
    pub fn trust(&self) -> Arc<Trust> {
        self.keys.trust.clone()
    }

    /// Decides all of these in one transaction: one flush of the disk for however many wait. When that
    /// fails, each alone: what is wrong with one does not hold up the others.
    ///
    /// # Errors
    /// A [`Refusal`] each; those of a known token, or of a node that exists and was asked for with its
    /// key, are recorded.
    pub fn decide(&mut self, questions: &[Question]) -> Vec<Result<Decision, Refusal>> {
        let (keys, policy) = (&self.keys, &self.policy);
        let decided = self.store.together(|store| {
            let each = questions
                .iter()
                .map(|question| decide(store, keys, policy, question));
            each.collect::<Result<Vec<_>, StoreError>>()
        });
        match (decided, questions) {
            (Ok(decided), _) => decided,
            (Err(error), [_]) => vec![Err(Refusal::Store(error))],
            (Err(_), questions) => {
                let alone = questions.chunks(1).flat_map(|one| self.decide(one));
                alone.collect()
            }
        }
    }
}

fn decide(
    store: &Store,
    keys: &Arc<Keys>,
    policy: &Policy,
    question: &Question,
) -> Result<Result<Decision, Refusal>, StoreError> {
    let (address, now_ms) = (question.address.as_str(), question.now_ms);
    let (csr_sha256, decided) = match &question.asked {
        What::Join(asked) => {
            let grant = decide_join(store, keys, policy, asked, address, now_ms)?;
            (asked.csr_sha256, grant.map(|grant| (asked.role, grant)))
        }
        What::Renew(asked) => {
            let decided = renewal::decide(store, keys, policy, asked, address, now_ms)?;
            (asked.csr_sha256, decided)
        }
    };
    Ok(decided.map(|(role, grant)| Decision {
        keys: keys.clone(),
        csr_sha256,
        role,
        grant,
        now_ms,
    }))
}

impl Decision {
    /// The signed answer.
    ///
    /// # Errors
    /// It could not be signed.
    pub fn answer(self) -> Result<Answered, Refusal> {
        let Self { keys, grant, .. } = self;
        let result = JoinResult {
            csr_sha256: self.csr_sha256.to_vec(),
            spiffe_id: keys.spiffe_id(grant.role_name, &grant.node_id),
            node_id: grant.node_id.clone(),
            role: Role(self.role),
            site: grant.site,
            pool: grant.pool,
            certificate_chain: grant.chain,
            trust_bundle: Some(keys.trust.signed.clone()),
            server_time_ms: self.now_ms,
        };
        let response = JoinResponse {
            outcome: Some(JoinResponseOutcome::Signed(
                keys.sign(result.encode_to_vec(), Purpose::JoinResponse)?,
            )),
        };
        Ok(Answered {
            response: response.encode_to_vec(),
            node_id: grant.node_id,
            outcome: grant.outcome,
        })
    }
}

impl Keys {
    /// Everything that can be said of a request without the database. `request` is an encoded
    /// `JoinRequest` or `RenewRequest` from `address`.
    ///
    /// # Errors
    /// A [`Refusal`].
    pub fn read(
        &self,
        call: Call,
        request: &[u8],
        address: &str,
        now_ms: i64,
    ) -> Result<Question, Refusal> {
        let asked = match call {
            Call::Join => What::Join(Box::new(self.read_join(request)?)),
            Call::Renew => What::Renew(Box::new(renewal::read(request)?)),
        };
        Ok(Question {
            asked,
            address: address.to_owned(),
            now_ms,
        })
    }

    fn sign(&self, payload: Vec<u8>, purpose: Purpose) -> Result<Envelope, Refusal> {
        sign(&payload, purpose, &self.signing)
    }

    fn spiffe_id(&self, role: &str, node_id: &str) -> String {
        format!("spiffe://{}/{role}/{node_id}", self.trust_domain)
    }

    fn read_join(&self, bytes: &[u8]) -> Result<Asked, Refusal> {
        let malformed = |what: &str| Refusal::Malformed(what.to_owned());
        if bytes.len() > REQUEST_MAX {
            return Err(malformed("it is over 64 KiB"));
        }
        let request = JoinRequest::decode(bytes)
            .map_err(|error| Refusal::Malformed(format!("it cannot be decoded: {error}")))?;
        let attestors = [
            Attestor::JoinToken,
            Attestor::Discovery,
            Attestor::Provisioned,
        ];
        let attestor = attestors
            .into_iter()
            .find(|attestor| attestor.name() == request.attestor)
            .ok_or(Refusal::UnknownAttestor)?;
        let role = request.role.0;
        let role_name = role_name(role).ok_or(Refusal::UnknownRole)?;
        for (text, what) in [
            (&request.site, "site is over 256 bytes"),
            (&request.node_id, "node_id is over 256 bytes"),
            (&request.daemon_version, "daemon_version is over 256 bytes"),
        ] {
            if text.len() > TEXT_MAX {
                return Err(malformed(what));
            }
        }
        let claims = request.claims.unwrap_or_default();
        if let Some(name) = claims::over_limit(&claims) {
            return Err(Refusal::Malformed(format!(
                "claims.{name} is over its limit"
            )));
        }
        if request.csr.len() > CSR_MAX {
            return Err(malformed("csr is over 4 KiB"));
        }
        let spki = csr::verify(&request.csr).map_err(|error| Refusal::BadCsr(error.to_string()))?;
        let csr_sha256 = digest::sha256(&request.csr);

        let credential = match attestor {
            Attestor::Provisioned => {
                let proof = request.provisioned_proof.as_ref();
                Credential::Provisioned(provisioned::read(proof, &csr_sha256)?)
            }
            _ => Credential::Token(self.open(request.credential, &csr_sha256)?),
        };
        Ok(Asked {
            role,
            role_name,
            site: request.site,
            node_id: request.node_id,
            attestor,
            assertion: request.discovery_assertion,
            csr_sha256,
            spki_sha256: digest::sha256(&spki),
            spki,
            credential,
            hostname: claims.hostname.clone(),
            macs: claims::own_macs(&claims),
            hardware: claims::Hardware::of(&claims),
            claims: claims.encode_to_vec(),
            daemon_version: request.daemon_version,
        })
    }

    /// The token that was sealed for the request with `csr_sha256`.
    fn open(
        &self,
        credential: Option<JoinRequestCredential>,
        csr_sha256: &[u8; 32],
    ) -> Result<Presented, Refusal> {
        let malformed = |what: &str| Refusal::Malformed(what.to_owned());
        let Some(JoinRequestCredential::SealedToken(sealed)) = credential else {
            return Err(malformed("it carries no sealed token"));
        };
        if sealed.ciphertext.len() > CIPHERTEXT_MAX {
            return Err(malformed("sealed_token.ciphertext is over 4 KiB"));
        }
        let key = self
            .encryption
            .iter()
            .find(|key| key.pin == sealed.key_pin)
            .ok_or(Refusal::OtherEncryptionKey)?;
        let (key, text) = (&key.recipient, &sealed.ciphertext);
        let token = key
            .open(&sealed.enc, HPKE_INFO, csr_sha256, text)
            .map_err(|_| Refusal::DoesNotOpen)?;
        Presented::parse(&token).ok_or(Refusal::MalformedToken)
    }
}

/// Decides inside one transaction; a refusal is a decision too, and its record is kept.
fn decide_join(
    store: &Store,
    keys: &Keys,
    policy: &Policy,
    asked: &Asked,
    address: &str,
    now_ms: i64,
) -> Result<Result<Grant, Refusal>, StoreError> {
    let (credential, decision) = match &asked.credential {
        Credential::Token(presented) => match store.token(&presented.id)? {
            Some(token) if presented.is(&token.digest) => {
                let decision = redeem::grant(store, keys, policy, asked, &token, now_ms);
                (token.id, decision)
            }
            _ => return Ok(Err(Refusal::UnknownToken)),
        },
        Credential::Provisioned(proof) => match provisioned::deployed(store, keys, proof) {
            Ok(deployed) => {
                let decision =
                    provisioned::grant(store, keys, policy, asked, proof, &deployed, now_ms);
                (proof.order_id.clone(), decision)
            }
            Err(Refusal::Store(error)) => return Err(error),
            Err(refusal) => return Ok(Err(refusal)),
        },
    };
    let decision = match decision {
        Err(Refusal::Store(error)) => return Err(error),
        decision => decision,
    };
    let (outcome, reason, node_id) = match &decision {
        Ok(grant) => (
            grant.outcome,
            grant.reason.to_owned(),
            Some(grant.node_id.clone()),
        ),
        Err(refusal) => ("refused", refusal.to_string(), None),
    };
    store.record_attempt(&Attempt {
        at_ms: now_ms,
        token_id: credential,
        spki_sha256: asked.spki_sha256,
        outcome,
        reason,
        node_id,
        hostname: asked.hostname.clone(),
        address: address.to_owned(),
    })?;
    Ok(decision)
}

#[cfg(test)]
mod tests;
