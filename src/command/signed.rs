//! What a command that destroys has to bring: an order for it, signed by a key of the control plane that the gateway
//! has not (docs/protocol.md 6.4). Pure.
use std::error::Error;
use std::fmt;

use super::kinds::explained;
use super::machine::Failure;
use crate::crypto::digest::sha256;
use crate::crypto::envelope::{self, Purpose};
use crate::crypto::pin::Pin;
use crate::proto::{Command, DecodeError, Message, Order};

/// The longest time between an order's making and its end.
const LASTS_MS: i64 = 86_400_000;

/// Why an order is not followed. Nothing was asked and nothing written.
#[derive(Debug)]
pub enum Refused {
    /// The command came without one.
    Missing,
    Signature(envelope::Error),
    Malformed(DecodeError),
    /// It is not for this: another node, command, kind, or other params.
    Other(&'static str),
    /// It is good for longer than any may be.
    Lasting,
    /// Its time is over, by this node's trusted time, since so many milliseconds.
    Expired(i64),
}

/// Holds the order that came with `command` against who signs for this node (`signers`), which node it is, and its
/// trusted time. Gives the order's id.
///
/// # Errors
/// The first check that fails.
pub fn verify(
    command: &Command,
    signers: &[Pin],
    node_id: &str,
    now_ms: i64,
) -> Result<String, Refused> {
    let signed = command.order.as_ref().ok_or(Refused::Missing)?;
    let payload = envelope::verify_pinned(signed, Purpose::Order, signers);
    let order = Order::decode(payload.map_err(Refused::Signature)?).map_err(Refused::Malformed)?;
    let differs = [
        (order.node_id != node_id, "another node"),
        (order.command_id != command.id, "another command"),
        (order.kind != command.kind, "another kind of command"),
        (
            order.params_sha256 != sha256(&command.params),
            "other params than came with it",
        ),
    ];
    if let Some((_, what)) = differs.into_iter().find(|(differs, _)| *differs) {
        return Err(Refused::Other(what));
    }
    // Saturating: an end before the beginning is past, whatever the clock says.
    let lasts = order.expires_ms.saturating_sub(order.made_ms);
    if lasts > LASTS_MS {
        return Err(Refused::Lasting);
    }
    match now_ms.saturating_sub(order.expires_ms) {
        ..0 if lasts > 0 => Ok(order.order_id),
        late => Err(Refused::Expired(late.max(0))),
    }
}

impl Refused {
    /// What the command ends with.
    pub fn failure(&self) -> Failure {
        let word = match self {
            Self::Missing | Self::Signature(_) | Self::Malformed(_) => "OrderUnsigned",
            Self::Other(_) | Self::Lasting => "OrderMismatch",
            Self::Expired(_) => "OrderExpired",
        };
        let mut failure = explained(word, self);
        failure
            .message
            .push_str("; nothing was written: make another order with better-compute machines");
        failure
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("the command came without a signed order"),
            Self::Signature(_) => {
                f.write_str("the order is not signed by a JoinService key that this node trusts")
            }
            Self::Malformed(_) => f.write_str("the order is signed, and cannot be read"),
            Self::Other(what) => write!(f, "the order is for {what}"),
            Self::Lasting => f.write_str("the order is good for more than a day"),
            Self::Expired(late_ms) => write!(
                f,
                "the order's time was over {} s ago, by this node's trusted time",
                late_ms / 1000
            ),
        }
    }
}

impl Error for Refused {
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
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::crypto::key::NodeKey;

    const NOW: i64 = 1_790_000_000_000;

    /// A command on an order of a minute ago, for ten minutes, before it is signed.
    fn ordered() -> (Command, Order) {
        let command = Command {
            id: "cmd_01kb7w3x9qn5v8m2r6t4y0sdfh".to_owned(),
            kind: "disks.wipe".to_owned(),
            params: vec![1, 2, 3],
            deadline_ms: NOW + 540_000,
            order: None,
        };
        let order = Order {
            order_id: "ord_01kb7w3x9qn5v8m2r6t4y0sdfh".to_owned(),
            command_id: command.id.clone(),
            kind: command.kind.clone(),
            params_sha256: sha256(&command.params).to_vec(),
            node_id: "node_1".to_owned(),
            made_ms: NOW - 60_000,
            expires_ms: NOW + 540_000,
        };
        (command, order)
    }

    fn judged(command: &Command, signers: &[Pin]) -> Result<String, (&'static str, String)> {
        verify(command, signers, "node_1", NOW).map_err(|refused| {
            let failure = refused.failure();
            assert!(!failure.message.chars().any(char::is_control));
            assert!(failure.message.contains("make another order"));
            (failure.reason, failure.message)
        })
    }

    #[test]
    fn an_order_for_this_very_command_and_node_is_followed_until_its_end() {
        let key = NodeKey::generate().unwrap();
        let (mut command, order) = ordered();
        let signed = envelope::sign(order.encode_to_vec(), Purpose::Order, &key).unwrap();
        command.order = Some(signed);
        assert_eq!(judged(&command, &[key.pin()]), Ok(order.order_id));
        for (now_ms, holds) in [
            (NOW + 539_999, true),
            (NOW + 540_000, false),
            (i64::MAX, false),
            // A node whose clock is behind cannot know better: its trusted time is a lower bound.
            (0, true),
        ] {
            let outcome = verify(&command, &[key.pin()], "node_1", now_ms);
            assert_eq!(outcome.is_ok(), holds, "{now_ms}");
        }
    }

    #[test]
    fn whatever_differs_from_what_was_signed_is_refused_in_words() {
        let (key, stranger) = (NodeKey::generate().unwrap(), NodeKey::generate().unwrap());
        let refused = |change: &dyn Fn(&mut Command, &mut Order), purpose, by: &NodeKey| {
            let (mut command, mut order) = ordered();
            change(&mut command, &mut order);
            command.order = Some(envelope::sign(order.encode_to_vec(), purpose, by).unwrap());
            judged(&command, &[key.pin()]).unwrap_err()
        };
        type Change<'a> = &'a dyn Fn(&mut Command, &mut Order);
        let changes: [(Change<'_>, &str, &str); 9] = [
            (
                &|_, order| order.node_id.push('x'),
                "OrderMismatch",
                "another node",
            ),
            (
                &|command, _| command.id.push('x'),
                "OrderMismatch",
                "another command",
            ),
            (
                &|command, _| "deploy.image".clone_into(&mut command.kind),
                "OrderMismatch",
                "another kind",
            ),
            (
                &|command, _| command.params.push(4),
                "OrderMismatch",
                "other params",
            ),
            (
                &|_, order| order.params_sha256.clear(),
                "OrderMismatch",
                "other params",
            ),
            (
                &|_, order| order.made_ms -= LASTS_MS,
                "OrderMismatch",
                "more than a day",
            ),
            (
                &|_, order| order.expires_ms = NOW,
                "OrderExpired",
                "over 0 s ago",
            ),
            (
                &|_, order| order.expires_ms = NOW - 9_500,
                "OrderExpired",
                "over 9 s ago",
            ),
            (
                &|_, order| (order.made_ms, order.expires_ms) = (i64::MAX, i64::MAX),
                "OrderExpired",
                "over 0 s ago",
            ),
        ];
        for (change, reason, says) in changes {
            let found = refused(change, Purpose::Order, &key);
            assert_eq!(found.0, reason, "{}", found.1);
            assert!(found.1.contains(says), "{}", found.1);
        }
        for (purpose, by) in [(Purpose::Order, &stranger), (Purpose::NodeSpec, &key)] {
            let found = refused(&|_, _| (), purpose, by);
            assert_eq!(found.0, "OrderUnsigned", "{}", found.1);
            assert!(found.1.contains("not signed by"), "{}", found.1);
        }
        let (mut command, _) = ordered();
        let missing = judged(&command, &[key.pin()]).unwrap_err();
        assert!(missing.0 == "OrderUnsigned" && missing.1.contains("without"));
        command.order = Some(envelope::sign(vec![0xff], Purpose::Order, &key).unwrap());
        let garbage = judged(&command, &[key.pin()]).unwrap_err();
        assert!(garbage.0 == "OrderUnsigned" && garbage.1.contains("cannot be read"));
    }
}
