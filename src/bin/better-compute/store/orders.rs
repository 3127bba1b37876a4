//! One-time orders, and the receipts of what was done on them.
//!
//! An order is made with its command, in one transaction, and goes to one claim: the node that asks first. That is
//! on the disk before the node is answered, so nothing that is played back, restored or booted again can do the work
//! of an order twice. Orders and receipts are never forgotten.

use bcd::config::mac::Mac;
use bcd::proto::{AnyReceipt, Message, OrderAnswer, OrderClaim, SignedReceipt};
use rusqlite::{OptionalExtension, Row, params};

use super::{Added, NewCommand, Store, StoreError};

/// Bytes of a claim's nonce.
const NONCE: usize = 16;

/// A receipt that was stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Receipt {
    pub order_id: String,
    /// The order's kind of command: `disks.wipe` ...
    pub kind: String,
    pub node_id: String,
    pub command_id: String,
    /// The machine the order was for.
    pub mac: Option<Mac>,
    pub received_ms: i64,
    /// As it came.
    pub receipt: SignedReceipt,
}

/// Which receipts are asked for, the newest first.
#[derive(Debug, Clone, Default)]
pub struct ReceiptsAsked {
    pub mac: Option<Mac>,
    pub order_id: Option<String>,
    pub limit: u32,
}

fn receipt(row: &Row<'_>) -> rusqlite::Result<Receipt> {
    let mac: Option<[u8; 6]> = row.get(4)?;
    let body: Vec<u8> = row.get(6)?;
    Ok(Receipt {
        order_id: row.get(0)?,
        kind: row.get(1)?,
        node_id: row.get(2)?,
        command_id: row.get(3)?,
        mac: mac.map(Mac),
        received_ms: row.get(5)?,
        // Only what decodes is stored.
        receipt: SignedReceipt::decode(&body).unwrap_or_default(),
    })
}

impl Store {
    /// Makes an order and the command that stands on it, inside a transaction. The command goes out with `signed`, an
    /// encoded `SignedOrder`. Another order has this id: [`Added::OtherHasId`].
    pub fn add_order(
        &self,
        order_id: &str,
        mac: Mac,
        command: &NewCommand,
        signed: &[u8],
    ) -> Result<Added, StoreError> {
        let known: Option<String> = self
            .connection
            .prepare_cached("SELECT command_id FROM orders WHERE id = ?1")?
            .query_row([order_id], |row| row.get(0))
            .optional()?;
        if let Some(known) = known {
            return Ok(match known == command.id {
                true => Added::Again,
                false => Added::OtherHasId,
            });
        }
        let added = self.add_command(command)?;
        if added == Added::Made {
            self.connection
                .prepare_cached(
                    "INSERT INTO orders (id, node_id, mac, command_id, kind, made_ms, expires_ms, signed) \
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                )?
                .execute(params![
                    order_id,
                    command.node_id,
                    mac.0,
                    command.id,
                    command.kind,
                    command.created_ms,
                    command.deadline_ms,
                    signed
                ])?;
        }
        Ok(added)
    }

    /// Decides on a node's claim, inside a transaction: what is granted is durable before it is answered.
    pub fn claim_order(
        &self,
        node_id: &str,
        claim: &OrderClaim,
        now_ms: i64,
    ) -> Result<OrderAnswer, StoreError> {
        let answer = |reason: &str, message: String| OrderAnswer {
            order_id: claim.order_id.clone(),
            nonce: claim.nonce.clone(),
            granted: reason.is_empty(),
            reason: reason.to_owned(),
            message,
        };
        let unknown = || {
            let message = "the control plane gave this node no such order for this command";
            answer("OrderUnknown", message.to_owned())
        };
        if claim.nonce.len() != NONCE {
            return Ok(unknown());
        }
        type Known = (i64, Option<Vec<u8>>, Option<i64>);
        let known: Option<Known> = self
            .connection
            .prepare_cached(
                "SELECT expires_ms, claim, claimed_ms FROM orders \
                 WHERE id = ?1 AND node_id = ?2 AND command_id = ?3",
            )?
            .query_row(params![claim.order_id, node_id, claim.command_id], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })
            .optional()?;
        let Some((expires_ms, claimed, claimed_ms)) = known else {
            return Ok(unknown());
        };
        match claimed {
            // Its answer was lost on the way.
            Some(nonce) if nonce == claim.nonce => return Ok(answer("", String::new())),
            Some(_) => {
                let before = (now_ms - claimed_ms.unwrap_or(now_ms)).max(0) / 1000;
                let message = format!(
                    "the order was claimed {before} s ago already, and is good for once: make another one"
                );
                return Ok(answer("OrderSpent", message));
            }
            None => {}
        }
        if expires_ms <= now_ms {
            let message = "the order was not claimed by its command's deadline";
            return Ok(answer("OrderExpired", message.to_owned()));
        }
        let command = self.command(&claim.command_id)?;
        if command.is_none_or(|command| command.cancelled || command.is_over(now_ms)) {
            let message = "its command was cancelled, or is over";
            return Ok(answer("OrderCancelled", message.to_owned()));
        }
        self.connection
            .prepare_cached("UPDATE orders SET claim = ?2, claimed_ms = ?3 WHERE id = ?1")?
            .execute(params![claim.order_id, claim.nonce, now_ms])?;
        Ok(answer("", String::new()))
    }

    /// Keeps a receipt that a node sends, if it names an order of this node; `false` when it does not. The first one of
    /// an order stays.
    pub fn note_receipt(
        &self,
        node_id: &str,
        receipt: &SignedReceipt,
        now_ms: i64,
    ) -> Result<bool, StoreError> {
        let envelope = receipt.envelope.as_ref();
        let head = envelope
            .and_then(|envelope| AnyReceipt::decode(&envelope.payload).ok()?.head)
            .unwrap_or_default();
        let known: bool = self
            .connection
            .prepare_cached(
                "SELECT count(*) FROM orders WHERE id = ?1 AND node_id = ?2 AND command_id = ?3",
            )?
            .query_row(params![head.order_id, node_id, head.command_id], |row| {
                row.get::<_, i64>(0)
            })?
            > 0;
        if known {
            self.connection
                .prepare_cached(
                    "INSERT INTO receipts (order_id, received_ms, body) VALUES (?1, ?2, ?3) \
                     ON CONFLICT DO NOTHING",
                )?
                .execute(params![head.order_id, now_ms, receipt.encode_to_vec()])?;
        }
        Ok(known)
    }

    /// Receipts, the newest first.
    pub fn receipts(&self, asked: &ReceiptsAsked) -> Result<Vec<Receipt>, StoreError> {
        let mut statement = self.connection.prepare_cached(
            "SELECT o.id, o.kind, o.node_id, o.command_id, o.mac, r.received_ms, r.body \
             FROM receipts r JOIN orders o ON o.id = r.order_id \
             WHERE (?1 IS NULL OR o.mac = ?1) AND (?2 IS NULL OR o.id = ?2) \
             ORDER BY r.number DESC LIMIT ?3",
        )?;
        let rows = statement.query_map(
            params![asked.mac.map(|mac| mac.0), asked.order_id, asked.limit],
            receipt,
        )?;
        Ok(rows.collect::<Result<_, _>>()?)
    }
}

#[cfg(test)]
mod tests {
    use bcd::proto::{Envelope, ReceiptHead};

    use super::super::node_for_tests as joined;
    use super::super::tests::TempDir;
    use super::*;

    const ORDER: &str = "ord_1";
    const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);

    fn store() -> (TempDir, Store) {
        let dir = TempDir::new();
        let store = Store::open(&dir.0.join("state.db")).unwrap();
        for node in ["node_a", "node_b"] {
            store.put_node(&joined(node), &[]).unwrap();
        }
        assert_eq!(ordered(&store, ORDER, "cmd_1"), Added::Made);
        (dir, store)
    }

    fn ordered(store: &Store, order: &str, command: &str) -> Added {
        let command = NewCommand {
            id: command.to_owned(),
            node_id: "node_a".to_owned(),
            kind: "disks.wipe".to_owned(),
            params: vec![1],
            deadline_ms: 1_000,
            created_ms: 10,
        };
        store.add_order(order, MAC, &command, &[7]).unwrap()
    }

    fn claim(store: &Store, node: &str, command: &str, nonce: u8, now_ms: i64) -> String {
        let claim = OrderClaim {
            order_id: ORDER.to_owned(),
            command_id: command.to_owned(),
            nonce: vec![nonce; NONCE],
        };
        let answer = store.claim_order(node, &claim, now_ms).unwrap();
        assert_eq!(
            (answer.order_id, answer.nonce),
            (claim.order_id, claim.nonce)
        );
        assert_eq!(answer.granted, answer.reason.is_empty());
        answer.reason
    }

    #[test]
    fn an_order_goes_to_one_claim_and_to_it_as_often_as_it_asks() {
        let (_dir, store) = store();
        assert_eq!(claim(&store, "node_a", "cmd_1", 1, 20), "");
        assert_eq!(claim(&store, "node_a", "cmd_1", 1, 30), "");
        assert_eq!(claim(&store, "node_a", "cmd_1", 2, 30), "OrderSpent");
        // The answer that was lost comes in time for work that began in time.
        assert_eq!(claim(&store, "node_a", "cmd_1", 1, 2_000), "");
    }

    #[test]
    fn an_order_is_for_one_node_and_one_command() {
        let (_dir, store) = store();
        assert_eq!(claim(&store, "node_b", "cmd_1", 1, 20), "OrderUnknown");
        assert_eq!(claim(&store, "node_a", "cmd_2", 1, 20), "OrderUnknown");
        assert_eq!(claim(&store, "node_a", "cmd_1", 1, 20), "");
        // The same request again is the same order; another command on it is none.
        assert_eq!(ordered(&store, ORDER, "cmd_1"), Added::Again);
        assert_eq!(ordered(&store, ORDER, "cmd_2"), Added::OtherHasId);
        // It goes out with what was signed, and nothing else does.
        let other = NewCommand {
            id: "cmd_3".to_owned(),
            node_id: "node_a".to_owned(),
            kind: "node.facts".to_owned(),
            params: Vec::new(),
            deadline_ms: 1_000,
            created_ms: 10,
        };
        store.add_command(&other).unwrap();
        let due = store.due("node_a", (0, 0), None, 8, 20).unwrap();
        let orders: Vec<_> = due.commands.into_iter().map(|due| due.order).collect();
        assert_eq!(orders, [Some(vec![7]), None]);
    }

    #[test]
    fn an_order_that_is_late_or_not_wanted_is_not_granted() {
        let (_dir, store) = store();
        assert_eq!(claim(&store, "node_a", "cmd_1", 1, 1_000), "OrderExpired");
        store.due("node_a", (0, 0), None, 8, 20).unwrap();
        store.cancel_command("cmd_1", 20).unwrap();
        assert_eq!(claim(&store, "node_a", "cmd_1", 1, 20), "OrderCancelled");
    }

    #[test]
    fn a_receipt_is_kept_for_an_order_of_the_node_that_sends_it_once() {
        let (_dir, store) = store();
        let made = |order: &str, mark: u8| {
            let any = AnyReceipt {
                head: Some(ReceiptHead {
                    order_id: order.to_owned(),
                    command_id: "cmd_1".to_owned(),
                    ..ReceiptHead::default()
                }),
            };
            SignedReceipt {
                envelope: Some(Envelope {
                    payload: any.encode_to_vec(),
                    ..Envelope::default()
                }),
                certificate_chain: vec![vec![mark]],
            }
        };
        let first = made(ORDER, 1);
        assert!(!store.note_receipt("node_b", &first, 50).unwrap());
        assert!(!store.note_receipt("node_a", &made("ord_2", 1), 50).unwrap());
        assert!(
            !store
                .note_receipt("node_a", &SignedReceipt::default(), 50)
                .unwrap()
        );
        assert!(store.note_receipt("node_a", &first, 50).unwrap());
        assert!(store.note_receipt("node_a", &made(ORDER, 2), 60).unwrap());
        let asked = |mac, order: Option<&str>| {
            let asked = ReceiptsAsked {
                mac,
                order_id: order.map(str::to_owned),
                limit: 10,
            };
            store.receipts(&asked).unwrap()
        };
        let all = asked(None, None);
        assert_eq!(all.len(), 1);
        assert_eq!((&all[0].receipt, all[0].received_ms), (&first, 50));
        assert_eq!(all[0].mac, Some(MAC));
        assert_eq!(asked(Some(MAC), Some(ORDER)), all);
        assert!(asked(Some(Mac([0; 6])), None).is_empty());
        assert!(asked(None, Some("ord_2")).is_empty());
    }
}
