//! Machines: what booted a ramdisk and joined by discovery, by the MAC its token was for. Each boot
//! is a node of its own; a machine's is the one that joined last.

use bcd::config::mac::Mac;
use bcd::proto::RebootResult;
use proto_gen::codec::Message;
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
    /// A machine that booted a ramdisk opens a session, in this boot: commands to restart that ran in an earlier
    /// boot of it have done so, and what ran there on an order is over. What ran there had its journal in memory,
    /// and cannot say it. Before the session is noted.
    pub fn note_restart(
        &self,
        node_id: &str,
        boot_id: &str,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        if boot_id.is_empty() {
            return Ok(());
        }
        let restarted: Vec<(i64, String, bool)> = self
            .connection
            .prepare_cached(
                "SELECT c.number, n.boot_id, c.kind = 'node.reboot' FROM nodes me \
                 CROSS JOIN tokens mine ON mine.id = me.token_id AND mine.mac IS NOT NULL \
                 CROSS JOIN tokens t ON t.mac = mine.mac AND t.mac IS NOT NULL \
                 CROSS JOIN redemptions r ON r.token_id = t.id \
                 CROSS JOIN nodes n ON n.id = r.node_id AND n.boot_id NOT IN ('', ?2) \
                 CROSS JOIN commands c ON c.node_id = n.id AND c.finished_ms IS NULL \
                     AND c.kind IN ('node.reboot', 'machine.boot') AND c.state = 'running' \
                 WHERE me.id = ?1",
            )?
            .query_map([node_id, boot_id], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })?
            .collect::<Result<_, _>>()?;
        for (number, before, is_reboot) in restarted {
            let result = RebootResult {
                boot_id_before: before,
                boot_id_after: boot_id.to_owned(),
            };
            self.connection
                .prepare_cached(
                    "UPDATE commands SET state = 'succeeded', reason = '', message = ?2, result = ?3, \
                     changed_ms = ?4, finished_ms = ?4 WHERE number = ?1",
                )?
                .execute(params![
                    number,
                    format!("the machine is back, as {node_id}"),
                    // The other kind's own result did not arrive.
                    if is_reboot { result.encode_to_vec() } else { Vec::new() },
                    now_ms
                ])?;
        }
        // What destroys on an order is not run again, and an earlier boot cannot say how far it came.
        self.connection
            .prepare_cached(
                "UPDATE commands SET state = 'failed', reason = 'Interrupted', message = ?3, \
                 changed_ms = ?4, finished_ms = ?4 \
                 WHERE finished_ms IS NULL AND state IN ('pending', 'running') AND number IN ( \
                     SELECT c.number FROM nodes me \
                     CROSS JOIN tokens mine ON mine.id = me.token_id AND mine.mac IS NOT NULL \
                     CROSS JOIN orders o ON o.mac = mine.mac \
                     CROSS JOIN nodes n ON n.id = o.node_id AND n.boot_id NOT IN ('', ?2) \
                     CROSS JOIN commands c ON c.id = o.command_id \
                     WHERE me.id = ?1)",
            )?
            .execute(params![
                node_id,
                boot_id,
                format!(
                    "the machine restarted while it ran, and is back as {node_id}; it is not run again, and \
                     without a receipt nothing is known of what it did"
                ),
                now_ms
            ])?;
        Ok(())
    }

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

#[cfg(test)]
mod tests {
    use bcd::proto::{CommandState, CommandUpdate};

    use super::super::nodes::tests::joined;
    use super::super::tests::TempDir;
    use super::super::{NewCommand, SessionFacts};
    use super::*;

    const FIRST: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 9];

    /// A node that joined with a token for this machine.
    fn boot(store: &Store, node: &str, mac: Option<[u8; 6]>) {
        let mut joined = joined(node);
        joined.token_id = format!("jt_{node}");
        store.put_node(&joined, &[]).unwrap();
        let sql = "INSERT INTO tokens (id, digest, role, pool, site, allow_reclaim, created_at_ms, expires_at_ms, mac) \
                   VALUES (?1, x'00', 1, 'p', 's', 0, 0, 0, ?2)";
        let token = joined.token_id;
        store.connection.execute(sql, params![token, mac]).unwrap();
        let sql = "INSERT INTO redemptions VALUES (?1, x'00', ?2, x'00', 0, 0)";
        store.connection.execute(sql, params![token, node]).unwrap();
    }

    fn opened(store: &Store, node: &str, boot_id: &str) {
        store.note_restart(node, boot_id, 50).unwrap();
        store
            .session_opened(&SessionFacts {
                node_id: node,
                session_id: "sess_1",
                daemon_version: "0.1.0",
                boot_id,
                capabilities: &[],
                address: "192.0.2.1",
                now_ms: 50,
            })
            .unwrap();
    }

    fn command(store: &Store, node: &str, kind: &str, state: CommandState) -> String {
        let id = format!("cmd_{node}_{kind}_{}", state.0);
        let new = NewCommand {
            id: id.clone(),
            node_id: node.to_owned(),
            kind: kind.to_owned(),
            params: Vec::new(),
            deadline_ms: 1000,
            created_ms: 10,
        };
        store.add_command(&new).unwrap();
        let update = CommandUpdate {
            id: id.clone(),
            state,
            ..CommandUpdate::default()
        };
        store.note_update(node, &update, 20).unwrap();
        id
    }

    #[test]
    fn a_machines_next_boot_says_that_it_restarted() {
        let dir = TempDir::new();
        let store = Store::open(&dir.0.join("state.db")).unwrap();
        boot(&store, "node_a", Some(FIRST));
        boot(&store, "node_b", Some(FIRST));
        boot(&store, "node_c", Some(OTHER));
        boot(&store, "node_d", None);
        for node in ["node_a", "node_c", "node_d"] {
            opened(&store, node, &format!("boot of {node}"));
        }
        let running = |node: &str| command(&store, node, "node.reboot", CommandState::RUNNING);
        let (asked, other, disk) = (running("node_a"), running("node_c"), running("node_d"));
        let pending = command(&store, "node_a", "node.reboot", CommandState::PENDING);
        let logs = command(&store, "node_a", "logs.collect", CommandState::RUNNING);
        let state = |id: &str| store.command(id).unwrap().unwrap().state(60);
        // What stands on an order is over with the boot it ran in.
        let wipe = NewCommand {
            id: "cmd_wipe".to_owned(),
            node_id: "node_a".to_owned(),
            kind: "disks.wipe".to_owned(),
            params: Vec::new(),
            deadline_ms: 1000,
            created_ms: 10,
        };
        store.add_order("ord_1", Mac(FIRST), &wipe, &[]).unwrap();
        let update = CommandUpdate {
            id: wipe.id.clone(),
            state: CommandState::RUNNING,
            ..CommandUpdate::default()
        };
        store.note_update("node_a", &update, 20).unwrap();
        // Another session of the same boot, and one of a boot nobody can name, say nothing.
        opened(&store, "node_a", "boot of node_a");
        opened(&store, "node_b", "");
        assert_eq!(state(&asked), "running");
        assert_eq!(state(&wipe.id), "running");
        opened(&store, "node_b", "second boot");
        let interrupted = store.command(&wipe.id).unwrap().unwrap();
        assert_eq!(interrupted.state(60), "failed");
        assert_eq!(interrupted.reason, "Interrupted");
        assert_eq!(state(&asked), "succeeded");
        let command = store.command(&asked).unwrap().unwrap();
        let result = RebootResult::decode(&command.result).unwrap();
        assert_eq!(result.boot_id_before, "boot of node_a");
        assert_eq!(result.boot_id_after, "second boot");
        assert_eq!(
            (command.finished_ms, command.message.contains("node_b")),
            (Some(50), true)
        );
        // Nothing else is decided by it; a node with a disk says so itself.
        opened(&store, "node_d", "second boot");
        for (id, wanted) in [
            (other, "running"),
            (disk, "running"),
            (pending, "pending"),
            (logs, "running"),
        ] {
            assert_eq!(state(&id), wanted, "{id}");
        }
        // A machine that was taken for the same node again.
        opened(&store, "node_c", "second boot of c");
        assert_eq!(state("cmd_node_c_node.reboot_1"), "succeeded");
    }
}
