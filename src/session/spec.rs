//! Which specs are taken: signed by a key this node trusts, for this node, not older than the one
//! held (docs/protocol.md 6). Pure.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]
use std::collections::BTreeSet;
use std::error::Error;
use std::fmt;

use super::duties::Signed;
use crate::crypto::envelope::{self, Purpose};
use crate::crypto::pin::Pin;
use crate::proto::{DecodeError, Envelope, Message, NodeSpec};

/// docs/protocol.md 3.
const SECTIONS: usize = 256;
const SECTION_NAME: usize = 64;

/// Why a spec is dropped.
#[derive(Debug)]
pub enum SpecRefused {
    Signature(envelope::Error),
    Malformed(DecodeError),
    OtherNode(String),
    Older { held: u64, got: u64 },
    Sections,
}

/// Holds a spec against who signs for this node (`signers`), which node it is, and the generation
/// held (0: none).
///
/// # Errors
/// The first check that fails; the spec gets no answer.
pub fn verify(
    envelope: Envelope,
    signers: &[Pin],
    node_id: &str,
    held: u64,
) -> Result<Signed, SpecRefused> {
    let payload = envelope::verify_pinned(&envelope, Purpose::NodeSpec, signers)
        .map_err(SpecRefused::Signature)?;
    let spec = NodeSpec::decode(payload).map_err(SpecRefused::Malformed)?;
    if spec.node_id != node_id {
        return Err(SpecRefused::OtherNode(spec.node_id));
    }
    let got = spec.generation;
    if got < held {
        return Err(SpecRefused::Older { held, got });
    }
    let mut names = BTreeSet::new();
    let fits = |name: &str| !name.is_empty() && name.len() <= SECTION_NAME;
    if spec.sections.len() > SECTIONS
        || !spec
            .sections
            .iter()
            .all(|section| fits(&section.name) && names.insert(section.name.as_str()))
    {
        return Err(SpecRefused::Sections);
    }
    Ok(Signed { envelope, spec })
}

impl fmt::Display for SpecRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signature(_) => f.write_str("the spec is not signed by a key this node trusts"),
            Self::Malformed(_) => f.write_str("the spec cannot be read"),
            Self::OtherNode(node) => write!(f, "the spec is for another node, {node:?}"),
            Self::Older { held, got } => {
                write!(
                    f,
                    "the spec is of generation {got}, older than the one held, {held}"
                )
            }
            Self::Sections => {
                f.write_str("the spec has too many sections, one twice, or a name without sense")
            }
        }
    }
}

impl Error for SpecRefused {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Signature(error) => Some(error),
            Self::Malformed(error) => Some(error),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;
    use crate::crypto::key::NodeKey;
    use crate::proto::SpecSection;

    fn signed(
        key: &NodeKey,
        purpose: Purpose,
        node_id: &str,
        generation: u64,
        names: &[&str],
    ) -> Envelope {
        let section = |name: &&str| SpecSection {
            name: (*name).to_owned(),
            body: vec![1],
        };
        let sections = names.iter().map(section).collect();
        let spec = NodeSpec {
            node_id: node_id.to_owned(),
            generation,
            sections,
        };
        envelope::sign(spec.encode_to_vec(), purpose, key).unwrap()
    }

    fn judged(key: &NodeKey, envelope: Envelope) -> Result<Signed, SpecRefused> {
        verify(envelope, &[key.pin()], "node_1", 5)
    }

    #[test]
    fn a_spec_of_this_node_not_older_than_the_one_held_is_taken() {
        let key = NodeKey::generate().unwrap();
        for generation in [5, 7] {
            let names = ["host", "later"];
            let envelope = signed(&key, Purpose::NodeSpec, "node_1", generation, &names);
            let taken = judged(&key, envelope.clone()).unwrap();
            assert_eq!(taken.spec.generation, generation);
            assert_eq!(taken.envelope, envelope);
        }
    }

    #[test]
    fn a_spec_that_does_not_hold_is_dropped() {
        let key = NodeKey::generate().unwrap();
        let other = NodeKey::generate().unwrap();
        let long = "x".repeat(65);
        let spec = |key, node, generation, names: &[&str]| {
            signed(key, Purpose::NodeSpec, node, generation, names)
        };
        for (envelope, said) in [
            (spec(&other, "node_1", 7, &["host"]), "not signed"),
            (
                signed(&key, Purpose::TrustBundle, "node_1", 7, &["host"]),
                "not signed",
            ),
            (spec(&key, "node_2", 7, &["host"]), "another node"),
            (spec(&key, "node_1", 4, &["host"]), "older"),
            (spec(&key, "node_1", 7, &[&long]), "sections"),
            (spec(&key, "node_1", 7, &[""]), "sections"),
            (
                spec(&key, "node_1", 7, &["host", "log", "host"]),
                "one twice",
            ),
            (spec(&key, "node_1", 7, &["x"; 257]), "sections"),
            (
                envelope::sign(vec![0xff], Purpose::NodeSpec, &key).unwrap(),
                "cannot be read",
            ),
        ] {
            let text = judged(&key, envelope).unwrap_err().to_string();
            assert!(text.contains(said), "{text}");
        }
    }
}
