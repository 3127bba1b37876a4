//! The keys a JoinService has, and the trust that goes with its answers.
use std::sync::Arc;

use bcd::crypto::envelope::{self, Purpose};
use bcd::crypto::key::NodeKey;
use bcd::proto::{Envelope, TrustBundle};
use proto_gen::codec::Message;

use super::Refusal;
use super::recipient::Recipient;
use crate::pki::{Kind, NodeIssuer, Phase, Private, Public};

/// The keys a JoinService decides and signs with.
pub struct Keys {
    pub(super) trust_domain: String,
    pub(super) issuer: NodeIssuer,
    /// SHA-256 of the issuing CA's SubjectPublicKeyInfo.
    pub(super) issuer_sha256: [u8; 32],
    /// All of them sign, so that whoever trusts one is served; several during a rotation.
    pub(super) signing: Vec<NodeKey>,
    /// Any of them opens.
    pub(super) encryption: Vec<Opener>,
    pub(super) trust: Arc<Trust>,
}

/// A key that tokens are sealed to, and its pin as requests name it.
pub(super) struct Opener {
    pub(super) pin: String,
    pub(super) recipient: Recipient,
}

impl Opener {
    fn new(pkcs8: &[u8]) -> Option<Self> {
        let recipient = Recipient::new(&NodeKey::from_pkcs8_der(pkcs8).ok()?)?;
        Some(Self {
            pin: recipient.pin().to_string(),
            recipient,
        })
    }
}

/// The trust bundle in force, as a gateway hands it on.
#[derive(Debug)]
pub struct Trust {
    pub version: u64,
    /// A `SignedTrustBundle`.
    pub signed: Envelope,
    /// The node CA that nodes shall move to, while it is rotated: SHA-256 of its
    /// SubjectPublicKeyInfo. Nodes with a certificate by another one shall renew.
    pub renew_to: Option<[u8; 32]>,
    /// SHA-256 of the SubjectPublicKeyInfo of each node CA.
    pub node_cas: Vec<[u8; 32]>,
}

impl Keys {
    /// From an opened bundle. Signs the trust bundle that goes with every answer.
    ///
    /// # Errors
    /// A [`Refusal::Fault`] that names the key that cannot be used.
    pub fn new(public: &Public, private: &Private, now_ms: i64) -> Result<Self, Refusal> {
        let fault = |_| Refusal::Fault("use its signing key");
        let key = |der: &[u8]| NodeKey::from_pkcs8_der(der);
        let both = |in_use, kind| std::iter::once(in_use).chain(private.other(kind));
        let signing = both(&private.join_signing, Kind::JoinSigning).map(|der| key(der));
        let signing: Vec<_> = signing.collect::<Result<_, _>>().map_err(fault)?;
        let encryption =
            both(&private.join_encryption, Kind::JoinEncryption).map(|der| Opener::new(der));
        let bundle = TrustBundle {
            version: public.trust_version,
            issued_at_ms: now_ms,
            serving_cas: public.both(Kind::ServingCa),
            node_cas: public.both(Kind::NodeCa),
            join_signing_keys: public.both(Kind::JoinSigning),
            join_encryption_keys: public.both(Kind::JoinEncryption),
            command_roots: public.command_root.iter().cloned().collect(),
            retired_pins: public.retired_pins.clone(),
            ..TrustBundle::default()
        };
        let signed = sign(&bundle.encode_to_vec(), Purpose::TrustBundle, &signing)?;
        let issuer_sha256 = public.node_ca_pin().0;
        let renew_to = public
            .rotation(Kind::NodeCa)
            .filter(|rotation| rotation.phase == Phase::Switched)
            .map(|_| issuer_sha256);
        Ok(Self {
            trust_domain: public.trust_domain.clone(),
            issuer_sha256,
            issuer: NodeIssuer::new(&public.node_ca, &private.node_ca)
                .map_err(|_| Refusal::Fault("use its node CA"))?,
            encryption: encryption
                .collect::<Option<_>>()
                .ok_or(Refusal::Fault("use its encryption key"))?,
            trust: Arc::new(Trust {
                version: public.trust_version,
                signed,
                renew_to,
                node_cas: public
                    .both(Kind::NodeCa)
                    .iter()
                    .map(|ca| Kind::NodeCa.pin(ca).0)
                    .collect(),
            }),
            signing,
        })
    }
}

/// An envelope with a signature of each key.
pub(super) fn sign(
    payload: &[u8],
    purpose: Purpose,
    keys: &[NodeKey],
) -> Result<Envelope, Refusal> {
    let mut signed = Envelope::default();
    for key in keys {
        let by = envelope::sign(payload.to_vec(), purpose, key)
            .map_err(|_| Refusal::Fault("sign the answer"))?;
        signed = Envelope {
            signatures: signed.signatures.into_iter().chain(by.signatures).collect(),
            ..by
        };
    }
    Ok(signed)
}
