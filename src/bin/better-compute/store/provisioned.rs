//! What joined with the key that a deploy left on its disk.

use bcd::config::mac::Mac;
use bcd::proto::SignedReceipt;
use proto_gen::codec::Message;
use rusqlite::{OptionalExtension, params};

use super::tokens::redeemed;
use super::{Redemption, Store, StoreError};

/// What is known of a deploy.
#[derive(Debug, Clone, PartialEq)]
pub struct Deployed {
    /// The node of the ramdisk it was ordered of.
    pub node_id: String,
    pub mac: Option<Mac>,
    /// `DeployImageParams`, encoded.
    pub params: Vec<u8>,
    /// As it came, and when.
    pub receipt: Option<(SignedReceipt, i64)>,
}

impl Store {
    /// The deploy of this order.
    pub fn deployed(&self, order_id: &str) -> Result<Option<Deployed>, StoreError> {
        let mut statement = self.connection.prepare_cached(
            "SELECT o.node_id, o.mac, c.params, r.body, r.received_ms FROM orders o \
             JOIN commands c ON c.id = o.command_id LEFT JOIN receipts r ON r.order_id = o.id \
             WHERE o.id = ?1 AND o.kind = 'deploy.image'",
        )?;
        let row = statement.query_row([order_id], |row| {
            let mac: Option<[u8; 6]> = row.get(1)?;
            let receipt: (Option<Vec<u8>>, Option<i64>) = (row.get(3)?, row.get(4)?);
            Ok(Deployed {
                node_id: row.get(0)?,
                mac: mac.map(Mac),
                params: row.get(2)?,
                receipt: match receipt {
                    (Some(body), Some(at)) => SignedReceipt::decode(&body).ok().map(|r| (r, at)),
                    _ => None,
                },
            })
        });
        Ok(row.optional()?)
    }

    /// What the OS of this order's deploy joined as.
    pub fn provisioned(&self, order_id: &str) -> Result<Option<Redemption>, StoreError> {
        let mut statement = self.connection.prepare_cached(
            "SELECT spki_sha256, node_id, chain, until_ms FROM provisioned WHERE order_id = ?1",
        )?;
        redeemed(&mut statement, order_id)
    }

    /// The node that the OS deployed last on this machine joined as.
    pub fn provisioned_node(&self, mac: Mac) -> Result<Option<String>, StoreError> {
        let mut statement = self.connection.prepare_cached(
            "SELECT node_id FROM provisioned WHERE mac = ?1 ORDER BY joined_ms DESC, order_id DESC LIMIT 1",
        )?;
        Ok(statement.query_row([mac.0], |row| row.get(0)).optional()?)
    }

    /// Keeps what an OS joined as. Part of the transaction that keeps the node.
    pub fn add_provisioned(
        &self,
        order_id: &str,
        mac: Option<Mac>,
        redemption: &Redemption,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        self.connection
            .prepare_cached(
                "INSERT INTO provisioned (order_id, mac, spki_sha256, node_id, chain, joined_ms, until_ms) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            )?
            .execute(params![
                order_id,
                mac.map(|mac| mac.0),
                redemption.spki_sha256,
                redemption.node_id,
                redemption.chain.concat(),
                now_ms,
                redemption.until_ms
            ])?;
        Ok(())
    }
}
