//! Receipts: what a node says of its work on disks, under its own key, so that it can be verified without the node,
//! its control plane or a network.
//!
//! Trust comes from the node-identity CA alone: it issued the certificate beside the receipt, that certificate names
//! the node and its key, and that key signed. [`verify`] checks this; what is in the receipt is the node's word.
use std::error::Error as StdError;
use std::fmt;

use crate::crypto::certificate::Certificate;
use crate::crypto::der;
use crate::crypto::envelope::{self, Purpose};
use crate::crypto::key;
use crate::crypto::pin::Pin;
use crate::proto::{AnyReceipt, DecodeError, Message, ReceiptHead, SignedReceipt};
use crate::rt::channel::{Receiver, Sender, channel};

/// The longest payload, and the most certificates looked at.
pub const PAYLOAD: usize = 768 * 1024;
const CERTIFICATES: usize = 8;
/// Receipts that wait to be signed.
const WAITING: usize = 4;

/// Something to be signed, and where the signature goes.
type Ask = (Purpose, Vec<u8>, Sender<Result<SignedReceipt, key::Error>>);

/// The way to the node's key, for work on a thread.
#[derive(Clone)]
pub struct Signer(Sender<Ask>);

/// What waits to be signed.
pub struct ToSign(Receiver<Ask>);

/// A way to a key, and its end.
pub fn signer() -> (Signer, ToSign) {
    let (sender, receiver) = channel(WAITING);
    (Signer(sender), ToSign(receiver))
}

/// Why a receipt was not signed.
#[derive(Debug)]
pub enum SignError {
    TooLong(usize),
    Key(key::Error),
    /// Nobody is there to sign: the daemon ends.
    Gone,
}

impl Signer {
    /// Has `receipt` signed for `purpose`. Blocks: for threads.
    ///
    /// # Errors
    /// See [`SignError`].
    pub fn sign(&self, purpose: Purpose, payload: Vec<u8>) -> Result<SignedReceipt, SignError> {
        if payload.len() > PAYLOAD {
            return Err(SignError::TooLong(payload.len()));
        }
        let (answer, answered) = channel(1);
        let asked = self.0.send_blocking((purpose, payload, answer));
        asked.map_err(|_| SignError::Gone)?;
        let signed = answered.recv_blocking().ok_or(SignError::Gone)?;
        signed.map_err(SignError::Key)
    }
}

impl ToSign {
    /// Has everything that comes signed by `sign`; ends with the last [`Signer`].
    pub async fn serve(
        mut self,
        sign: impl Fn(Purpose, Vec<u8>) -> Result<SignedReceipt, key::Error>,
    ) {
        while let Some((purpose, payload, answer)) = self.0.recv().await {
            let _ = answer.try_send(sign(purpose, payload));
        }
    }
}

/// What holds of a receipt that was verified.
#[derive(Debug, PartialEq)]
pub struct Verified {
    pub purpose: Purpose,
    pub payload: Vec<u8>,
    pub head: ReceiptHead,
    /// The key that signed, and the CA that says whose it is.
    pub key: Pin,
    pub ca: Pin,
    /// The role in the certificate's SPIFFE id: "ramdisk", "node" ...
    pub role: String,
}

/// Why a receipt proves nothing.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    /// It has no envelope, or one of another purpose.
    NoReceipt,
    /// It has no certificate, or one that cannot be read.
    Certificate(Option<der::Error>),
    /// No trusted CA issued the certificate.
    Issuer {
        trusted: Vec<Pin>,
    },
    /// The certificate is no node's.
    NoNode,
    Signature(envelope::Error),
    Payload(DecodeError),
    /// The certificate is another node's than the receipt names.
    OtherNode {
        certified: String,
        named: String,
    },
    /// It was not valid when the receipt was made: from, until, and when, Unix time in seconds.
    Time {
        from: i64,
        until: i64,
        at: i64,
    },
}

/// Verifies a receipt by the pins of the node-identity CAs that are trusted. `cas` are such CAs' certificates, DER,
/// that need not be in the receipt.
///
/// # Errors
/// See [`Refused`].
pub fn verify(
    receipt: &SignedReceipt,
    trusted: &[Pin],
    cas: &[Vec<u8>],
) -> Result<Verified, Refused> {
    let envelope = receipt.envelope.as_ref().ok_or(Refused::NoReceipt)?;
    let purpose = [Purpose::WipeReceipt, Purpose::DeployReceipt]
        .into_iter()
        .find(|purpose| envelope::payload_type(*purpose) == envelope.payload_type)
        .ok_or(Refused::NoReceipt)?;
    let mut chain = receipt.certificate_chain.iter().take(CERTIFICATES);
    let leaf = chain.next().ok_or(Refused::Certificate(None))?;
    let leaf = Certificate::parse(leaf).map_err(|error| Refused::Certificate(Some(error)))?;
    let ca = chain
        .chain(cas)
        .filter_map(|ca| Certificate::parse(ca).ok())
        .find(|ca| trusted.contains(&ca.pin()) && leaf.is_issued_by(ca))
        .ok_or_else(|| Refused::Issuer {
            trusted: trusted.to_vec(),
        })?;
    let (role, certified) = match leaf.uri_names.as_slice() {
        [id] if !leaf.is_ca => node_of(id).ok_or(Refused::NoNode)?,
        _ => return Err(Refused::NoNode),
    };
    let payload = envelope::verify(envelope, purpose, &[leaf.spki]).map_err(Refused::Signature)?;
    let head = AnyReceipt::decode(payload)
        .map_err(Refused::Payload)?
        .head
        .unwrap_or_default();
    if head.node_id != certified {
        return Err(Refused::OtherNode {
            certified: certified.to_owned(),
            named: head.node_id,
        });
    }
    let at = head.finished_ms.div_euclid(1000);
    if !leaf.is_valid_at(at) {
        return Err(Refused::Time {
            from: leaf.not_before,
            until: leaf.not_after,
            at,
        });
    }
    Ok(Verified {
        purpose,
        payload: payload.to_vec(),
        head,
        key: leaf.pin(),
        ca: ca.pin(),
        role: role.to_owned(),
    })
}

/// Role and node of a SPIFFE id.
fn node_of(id: &str) -> Option<(&str, &str)> {
    let mut parts = id.strip_prefix("spiffe://")?.split('/');
    let (_, role, node) = (parts.next()?, parts.next()?, parts.next()?);
    (parts.next().is_none() && !node.is_empty()).then_some((role, node))
}

impl fmt::Display for SignError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong(length) => write!(
                f,
                "the receipt has {length} bytes, more than the {PAYLOAD} that are signed"
            ),
            Self::Key(_) => f.write_str("the receipt cannot be signed"),
            Self::Gone => f.write_str("the receipt cannot be signed: the daemon is ending"),
        }
    }
}

impl StdError for SignError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Key(error) => Some(error),
            Self::TooLong(_) | Self::Gone => None,
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoReceipt => f.write_str("it is no receipt that this version knows"),
            Self::Certificate(_) => f.write_str("there is no certificate with it that can be read"),
            Self::Issuer { trusted } => {
                let pins: Vec<String> = trusted.iter().map(Pin::to_string).collect();
                write!(
                    f,
                    "its certificate was not issued by a node CA that is trusted here ({})",
                    pins.join(" or ")
                )
            }
            Self::NoNode => f.write_str("its certificate is no node's"),
            Self::Signature(_) => f.write_str("its signature does not hold"),
            Self::Payload(_) => f.write_str("what was signed is no receipt"),
            Self::OtherNode { certified, named } => write!(
                f,
                "it speaks for {named}, and its certificate is that of {certified}"
            ),
            Self::Time { from, until, at } => write!(
                f,
                "it was made at {at}, and its certificate is valid from {from} until {until} (Unix time)"
            ),
        }
    }
}

impl StdError for Refused {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Certificate(Some(error)) => Some(error),
            Self::Signature(error) => Some(error),
            Self::Payload(error) => Some(error),
            _ => None,
        }
    }
}

// rcgen, which makes their certificates, comes with the control plane.
#[cfg(all(test, feature = "control-plane"))]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use rcgen::{
        BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
        KeyUsagePurpose, SanType,
    };

    use super::*;
    use crate::crypto::key::NodeKey;
    use crate::proto::WipeReceipt;

    const NODE: &str = "node_01kb7w3x9qn5v8m2r6t4y0sdfh";

    struct Fleet {
        ca: Vec<u8>,
        key: NodeKey,
        leaf: Vec<u8>,
    }

    fn fleet(uri: &str) -> Fleet {
        let ca_key = KeyPair::generate().unwrap();
        let mut ca = CertificateParams::default();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let ca_der = ca.self_signed(&ca_key).unwrap().der().to_vec();
        let issuer = Issuer::new(ca, ca_key);
        let key = NodeKey::generate().unwrap();
        let pair = KeyPair::from_der_and_sign_algo(
            &key.pkcs8_der().to_vec().try_into().unwrap(),
            &rcgen::PKCS_ECDSA_P256_SHA256,
        )
        .unwrap();
        let mut leaf = CertificateParams::default();
        leaf.subject_alt_names = vec![SanType::URI(uri.try_into().unwrap())];
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let leaf = leaf.signed_by(&pair, &issuer).unwrap().der().to_vec();
        Fleet {
            ca: ca_der,
            key,
            leaf,
        }
    }

    fn good() -> Fleet {
        fleet(&["spiffe://better-compute/ramdisk/", NODE].concat())
    }

    fn payload(node: &str, at_ms: i64) -> Vec<u8> {
        let head = ReceiptHead {
            node_id: node.to_owned(),
            finished_ms: at_ms,
            ..ReceiptHead::default()
        };
        WipeReceipt {
            head: Some(head),
            disks: Vec::new(),
        }
        .encode_to_vec()
    }

    const AT_MS: i64 = 1_790_000_000_000;

    impl Fleet {
        fn pin(&self) -> Pin {
            Certificate::parse(&self.ca).unwrap().pin()
        }

        fn receipt(&self, purpose: Purpose, payload: Vec<u8>) -> SignedReceipt {
            SignedReceipt {
                envelope: Some(envelope::sign(payload, purpose, &self.key).unwrap()),
                certificate_chain: vec![self.leaf.clone(), self.ca.clone()],
            }
        }
    }

    #[test]
    fn a_receipt_is_verified_by_the_node_cas_pin_alone() {
        let fleet = good();
        let mut receipt = fleet.receipt(Purpose::WipeReceipt, payload(NODE, AT_MS));
        let verified = verify(&receipt, &[fleet.pin()], &[]).unwrap();
        assert_eq!(verified.head.node_id, NODE);
        assert_eq!(
            (verified.role.as_str(), verified.ca),
            ("ramdisk", fleet.pin())
        );
        assert_eq!(verified.key, fleet.key.pin());
        // A chain without the CA: by a CA of the verifier's own.
        receipt.certificate_chain.truncate(1);
        assert!(verify(&receipt, &[fleet.pin()], &[]).is_err());
        assert!(verify(&receipt, &[fleet.pin()], std::slice::from_ref(&fleet.ca)).is_ok());
    }

    #[test]
    fn whatever_is_wrong_with_a_receipt_has_its_words() {
        let (fleet, other) = (good(), good());
        let sound = fleet.receipt(Purpose::WipeReceipt, payload(NODE, AT_MS));
        let refused = |receipt: &SignedReceipt| {
            let refused = verify(receipt, &[fleet.pin()], &[]).unwrap_err();
            assert!(!refused.to_string().contains('\n'));
            refused
        };
        let mut tampered = sound.clone();
        tampered.envelope.as_mut().unwrap().payload[0] ^= 1;
        assert!(matches!(refused(&tampered), Refused::Signature(_)));
        let mut bare = sound.clone();
        bare.certificate_chain.clear();
        assert_eq!(refused(&bare), Refused::Certificate(None));
        bare.certificate_chain.push(vec![1, 2]);
        assert!(matches!(refused(&bare), Refused::Certificate(Some(_))));
        let theirs = other.receipt(Purpose::WipeReceipt, payload(NODE, AT_MS));
        assert!(matches!(refused(&theirs), Refused::Issuer { .. }));
        // Signed by one node, with the certificate of another.
        let mut borrowed = theirs;
        borrowed.certificate_chain = sound.certificate_chain.clone();
        assert!(matches!(refused(&borrowed), Refused::Signature(_)));
        let named = fleet.receipt(Purpose::WipeReceipt, payload("node_x", AT_MS));
        assert!(matches!(refused(&named), Refused::OtherNode { .. }));
        let late = fleet.receipt(Purpose::WipeReceipt, payload(NODE, i64::MAX));
        assert!(matches!(refused(&late), Refused::Time { .. }));
        let spec = fleet.receipt(Purpose::NodeSpec, payload(NODE, AT_MS));
        assert_eq!(refused(&spec), Refused::NoReceipt);
        let garbage = fleet.receipt(Purpose::DeployReceipt, vec![0xff]);
        assert!(matches!(refused(&garbage), Refused::Payload(_)));
        // The CA itself is no node.
        let mut ca = sound;
        ca.certificate_chain = vec![fleet.ca.clone(), fleet.ca.clone()];
        assert_eq!(refused(&ca), Refused::NoNode);
    }

    #[test]
    fn a_long_receipt_is_not_signed_and_neither_is_one_of_a_daemon_that_ends() {
        let (signer, to_sign) = signer();
        let long = signer.sign(Purpose::WipeReceipt, vec![0; PAYLOAD + 1]);
        assert!(matches!(long, Err(SignError::TooLong(_))));
        drop(to_sign);
        let gone = signer.sign(Purpose::WipeReceipt, vec![0]);
        assert!(matches!(gone, Err(SignError::Gone)));
    }
}
