//! What this version answers to specs and commands: it knows no section and no command kind yet,
//! and says so for each, as docs/protocol.md 6 wants it. Pure.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]
use std::error::Error;
use std::fmt;

use crate::crypto::envelope::{self, Purpose};
use crate::crypto::pin::Pin;
use crate::proto::{
    Command, CommandState, CommandUpdate, DecodeError, Envelope, Message, NodeFrame, NodeFrameKind,
    NodeSpec, SectionState, SectionStatus,
};

/// docs/protocol.md 3.
const SECTIONS: usize = 256;
const SECTION_NAME: usize = 64;

/// What a spec is held against.
pub struct Held {
    pub node_id: String,
    /// Of the keys that may sign specs.
    pub signers: Vec<Pin>,
    /// Of the last spec taken; 0: none.
    pub generation: u64,
}

/// Why a spec is dropped.
#[derive(Debug)]
pub enum SpecRefused {
    Signature(envelope::Error),
    Malformed(DecodeError),
    OtherNode(String),
    Older { held: u64, got: u64 },
    Sections,
}

/// The answer to a spec that holds: a status for each section. Notes its generation.
///
/// # Errors
/// The first check that fails; the spec gets no answer.
pub fn spec(spec: &Envelope, held: &mut Held) -> Result<Vec<NodeFrame>, SpecRefused> {
    let payload = envelope::verify_pinned(spec, Purpose::NodeSpec, &held.signers)
        .map_err(SpecRefused::Signature)?;
    let spec = NodeSpec::decode(payload).map_err(SpecRefused::Malformed)?;
    if spec.node_id != held.node_id {
        return Err(SpecRefused::OtherNode(spec.node_id));
    }
    if spec.generation < held.generation {
        return Err(SpecRefused::Older {
            held: held.generation,
            got: spec.generation,
        });
    }
    let fits = |name: &str| !name.is_empty() && name.len() <= SECTION_NAME;
    if spec.sections.len() > SECTIONS || !spec.sections.iter().all(|section| fits(&section.name)) {
        return Err(SpecRefused::Sections);
    }
    held.generation = spec.generation;
    let status = |name: String| SectionStatus {
        generation: spec.generation,
        message: format!("bcd {} knows no section {name}", env!("CARGO_PKG_VERSION")),
        section: name,
        state: SectionState::UNSUPPORTED,
        reason: "SectionUnsupported".to_owned(),
    };
    let frame = |name| NodeFrame {
        kind: Some(NodeFrameKind::SectionStatus(status(name))),
    };
    Ok(spec
        .sections
        .into_iter()
        .map(|section| frame(section.name))
        .collect())
}

/// The answer to a command.
pub fn command(command: &Command) -> NodeFrame {
    let update = CommandUpdate {
        id: command.id.clone(),
        state: CommandState::UNSUPPORTED,
        reason: "CommandUnsupported".to_owned(),
        message: format!("bcd {} knows no such command", env!("CARGO_PKG_VERSION")),
        result: Vec::new(),
    };
    NodeFrame {
        kind: Some(NodeFrameKind::CommandUpdate(update)),
    }
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
                f.write_str("the spec has too many sections, or a name without sense")
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

    fn held(key: &NodeKey) -> Held {
        Held {
            node_id: "node_1".to_owned(),
            signers: vec![key.pin()],
            generation: 5,
        }
    }

    #[test]
    fn each_section_of_a_spec_that_holds_is_answered_unsupported() {
        let key = NodeKey::generate().unwrap();
        let mut held = held(&key);
        let envelope = signed(&key, Purpose::NodeSpec, "node_1", 7, &["host", "later"]);
        let frames = spec(&envelope, &mut held).unwrap();
        assert_eq!(held.generation, 7);
        let sections: Vec<_> = frames
            .into_iter()
            .map(|frame| match frame.kind {
                Some(NodeFrameKind::SectionStatus(status)) => {
                    assert_eq!(
                        (status.generation, status.state),
                        (7, SectionState::UNSUPPORTED)
                    );
                    assert_eq!(status.reason, "SectionUnsupported");
                    status.section
                }
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(sections, ["host", "later"]);
    }

    #[test]
    fn a_spec_that_does_not_hold_is_dropped_and_changes_nothing() {
        let key = NodeKey::generate().unwrap();
        let other = NodeKey::generate().unwrap();
        let mut held = held(&key);
        let long = "x".repeat(65);
        for (envelope, said) in [
            (
                signed(&other, Purpose::NodeSpec, "node_1", 7, &["host"]),
                "not signed",
            ),
            (
                signed(&key, Purpose::TrustBundle, "node_1", 7, &["host"]),
                "not signed",
            ),
            (
                signed(&key, Purpose::NodeSpec, "node_2", 7, &["host"]),
                "another node",
            ),
            (
                signed(&key, Purpose::NodeSpec, "node_1", 4, &["host"]),
                "older",
            ),
            (
                signed(&key, Purpose::NodeSpec, "node_1", 7, &[&long]),
                "sections",
            ),
            (
                envelope::sign(vec![0xff], Purpose::NodeSpec, &key).unwrap(),
                "cannot be read",
            ),
        ] {
            let text = spec(&envelope, &mut held).unwrap_err().to_string();
            assert!(text.contains(said), "{text}");
            assert_eq!(held.generation, 5);
        }
    }

    #[test]
    fn the_same_generation_is_answered_again() {
        let key = NodeKey::generate().unwrap();
        let mut held = held(&key);
        let envelope = signed(&key, Purpose::NodeSpec, "node_1", 5, &["host"]);
        assert_eq!(spec(&envelope, &mut held).unwrap().len(), 1);
        assert_eq!(spec(&envelope, &mut held).unwrap().len(), 1);
    }
}
