//! Machines: what booted a ramdisk and joined by discovery, by the MAC its token was for. Each boot
//! is a node of its own; a machine's is the one that joined last.

use bcd::config::mac::Mac;
use rusqlite::params;

use super::{Store, StoreError};

/// A machine that has joined by discovery, and whose last node is not deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    pub mac: Mac,
    /// How often it joined.
    pub boots: i64,
    /// The node of its last boot.
    pub node_id: String,
}

impl Store {
    /// All machines by their MAC, or the one with `mac`.
    pub fn machines(&self, mac: Option<Mac>) -> Result<Vec<Machine>, StoreError> {
        // With max(), SQLite takes the bare column from the row that has the greatest value.
        let mut statement = self.connection.prepare_cached(
            "SELECT t.mac, count(*), r.node_id, max(r.redeemed_at_ms) \
             FROM tokens t JOIN redemptions r ON r.token_id = t.id \
             JOIN nodes n ON n.id = r.node_id AND n.deleted_at_ms IS NULL \
             WHERE t.mac IS NOT NULL AND (?1 IS NULL OR t.mac = ?1) GROUP BY t.mac ORDER BY t.mac",
        )?;
        let rows = statement.query_map(params![mac.map(|mac| mac.0)], |row| {
            Ok(Machine {
                mac: Mac(row.get(0)?),
                boots: row.get(1)?,
                node_id: row.get(2)?,
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }
}
