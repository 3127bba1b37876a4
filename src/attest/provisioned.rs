//! The attestor `provisioned`: what a ramdisk leaves on the disk of an OS that it installs, so that this OS, and no other,
//! may join as this machine (docs/protocol.md 5.8).
//!
//! It is a key made for this one deploy. Its public half stands in the deploy's receipt, under the ramdisk's own
//! signature; its private half is in [`FILE`], and proves here that the request comes from that disk. It goes
//! away with the join.
use std::fmt;

use zeroize::Zeroizing;

use crate::crypto::digest::sha256;
use crate::crypto::envelope::{self, Purpose};
use crate::crypto::key::{Error, NodeKey};
use crate::proto::{Envelope, Message, ProvisionedProof};

/// Beside `config.toml`: the order's id on a line, and the key in PEM.
pub const FILE: &str = "provisioned.key";
/// Of the file.
pub const MAX_LENGTH: usize = 1024;

/// The order that installed this OS, and the key it left.
pub struct Provisioned {
    order_id: String,
    key: NodeKey,
}

/// A text is none.
#[derive(Debug, PartialEq, Eq)]
pub struct Malformed;

impl Provisioned {
    pub fn new(order_id: &str, key: NodeKey) -> Self {
        Self {
            order_id: order_id.to_owned(),
            key,
        }
    }

    /// Reads the file's text.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(text: &[u8]) -> Result<Self, Malformed> {
        let text = std::str::from_utf8(text).map_err(|_| Malformed)?;
        let (order_id, pem) = text.split_once('\n').ok_or(Malformed)?;
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        if !order_id.starts_with("ord_") || order_id.len() > 64 || !order_id.bytes().all(plain) {
            return Err(Malformed);
        }
        let key = NodeKey::from_pem(pem).map_err(|_| Malformed)?;
        Ok(Self::new(order_id, key))
    }

    /// The file's text.
    pub fn to_text(&self) -> Zeroizing<String> {
        let pem = self.key.to_pem();
        let mut text = String::with_capacity(self.order_id.len() + 1 + pem.len());
        text.push_str(&self.order_id);
        text.push('\n');
        text.push_str(&pem);
        Zeroizing::new(text)
    }

    /// Of the public key, as the receipt has it.
    pub fn key_sha256(&self) -> [u8; 32] {
        self.key.pin().0
    }

    /// Proves that whoever asks with `csr` has the key.
    ///
    /// # Errors
    /// There are no random bytes.
    pub fn prove(&self, csr: &[u8]) -> Result<Envelope, Error> {
        let proof = ProvisionedProof {
            order_id: self.order_id.clone(),
            csr_sha256: sha256(csr).to_vec(),
        };
        envelope::sign(proof.encode_to_vec(), Purpose::ProvisionedProof, &self.key)
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it is no key that a deploy left")
    }
}

impl std::error::Error for Malformed {}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_written_is_read_and_proves_a_request_and_no_other() {
        let left = Provisioned::new(
            "ord_01kb7w3x9qn5v8m2r6t4y0sdfh",
            NodeKey::generate().unwrap(),
        );
        let text = left.to_text();
        assert!(text.len() < MAX_LENGTH);
        let read = Provisioned::parse(text.as_bytes()).unwrap();
        assert_eq!(read.key_sha256(), left.key_sha256());
        let signed = read.prove(b"csr").unwrap();
        let key = [left.key.spki_der()];
        let payload = envelope::verify(&signed, Purpose::ProvisionedProof, &key).unwrap();
        let proof = ProvisionedProof::decode(payload).unwrap();
        assert_eq!(proof.order_id, left.order_id);
        assert_eq!(proof.csr_sha256, sha256(b"csr"));
        assert!(envelope::verify(&signed, Purpose::DeployReceipt, &key).is_err());
    }

    #[test]
    fn anything_else_is_malformed() {
        let pem = NodeKey::generate().unwrap().to_pem();
        for text in [
            String::new(),
            pem.to_string(),
            ["ord_1\n", "x"].concat(),
            ["order\n", &pem].concat(),
            ["ord_\u{1b}\n", &pem].concat(),
            ["ord_", &"1".repeat(61), "\n", &pem].concat(),
        ] {
            assert_eq!(
                Provisioned::parse(text.as_bytes()).err(),
                Some(Malformed),
                "{text:?}"
            );
        }
    }
}
