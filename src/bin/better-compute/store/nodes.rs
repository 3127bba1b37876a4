//! Nodes: who joined, what they claim to be, and their sessions.

use bcd::proto::Role;
use rusqlite::{OptionalExtension, Row, params};

use super::{Store, StoreError};

/// Where a node is between its join and its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Its certificate is issued; it never opened a session.
    Joining,
    /// Its session is open, no heartbeat came yet.
    Adopting,
    /// Its session is open and heartbeats come.
    Connected,
    /// Its session is over.
    Disconnected,
}

impl State {
    pub fn name(self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::Adopting => "adopting",
            Self::Connected => "connected",
            Self::Disconnected => "disconnected",
        }
    }

    fn parse(name: &str) -> Option<Self> {
        [
            Self::Joining,
            Self::Adopting,
            Self::Connected,
            Self::Disconnected,
        ]
        .into_iter()
        .find(|state| state.name() == name)
    }
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub id: String,
    /// A `Role`'s number.
    pub role: i32,
    pub pool: String,
    pub site: String,
    /// SHA-256 of the SubjectPublicKeyInfo whose certificate opens its sessions.
    pub spki_sha256: [u8; 32],
    pub token_id: String,
    /// Unix time, milliseconds.
    pub joined_at_ms: i64,
    pub certificate_until_ms: i64,
    pub cordoned: bool,
    pub deleted: bool,
    /// `HardwareClaims`, encoded.
    pub claims: Vec<u8>,
    pub hostname: String,
    pub state: State,
    pub session_id: String,
    pub daemon_version: String,
    pub boot_id: String,
    pub capabilities: Vec<String>,
    /// Where its session comes from.
    pub address: String,
    pub last_seen_ms: Option<i64>,
    /// A key that was certified by a renewal and has opened no session yet, and until when.
    pub next: Option<([u8; 32], i64)>,
    /// When its sessions last showed that two machines use its identity.
    pub shared_ms: Option<i64>,
}

/// What a session's `Hello` says of a node.
pub struct SessionFacts<'a> {
    pub node_id: &'a str,
    pub session_id: &'a str,
    pub daemon_version: &'a str,
    pub boot_id: &'a str,
    pub capabilities: &'a [String],
    pub address: &'a str,
    pub now_ms: i64,
}

/// A hardware claim that another node makes too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Duplicate {
    /// `serial`, `uuid` or `mac`.
    pub kind: String,
    pub value: String,
    pub other_node: String,
}

const COLUMNS: &str = "SELECT id, role, pool, site, spki_sha256, token_id, joined_at_ms, \
     certificate_until_ms, cordoned, deleted_at_ms IS NOT NULL, claims, hostname, state, session_id, \
     daemon_version, boot_id, capabilities, address, last_seen_ms, next_spki_sha256, next_until_ms, \
     shared_ms FROM nodes";

/// How often it is said that two machines use one identity.
const SHARED_AGAIN_MS: i64 = 3_600_000;

fn node(row: &Row<'_>) -> rusqlite::Result<Node> {
    let state: String = row.get(12)?;
    let capabilities: String = row.get(16)?;
    let (next, until): (Option<[u8; 32]>, Option<i64>) = (row.get(19)?, row.get(20)?);
    Ok(Node {
        id: row.get(0)?,
        role: row.get(1)?,
        pool: row.get(2)?,
        site: row.get(3)?,
        spki_sha256: row.get(4)?,
        token_id: row.get(5)?,
        joined_at_ms: row.get(6)?,
        certificate_until_ms: row.get(7)?,
        cordoned: row.get(8)?,
        deleted: row.get(9)?,
        claims: row.get(10)?,
        hostname: row.get(11)?,
        state: State::parse(&state).unwrap_or(State::Disconnected),
        session_id: row.get(13)?,
        daemon_version: row.get(14)?,
        boot_id: row.get(15)?,
        capabilities: capabilities
            .split_terminator('\n')
            .map(str::to_owned)
            .collect(),
        address: row.get(17)?,
        last_seen_ms: row.get(18)?,
        next: next.zip(until),
        shared_ms: row.get(21)?,
    })
}

impl Store {
    /// Keeps a node as it joins, or joins again under its id, with what hardware it claims (kind and
    /// value). A cordon outlives a reclaim; role and site are those it has.
    pub fn put_node(&self, node: &Node, hardware: &[(&str, String)]) -> Result<(), StoreError> {
        let mut put = self.connection.prepare_cached(
            "INSERT INTO nodes (id, role, pool, site, spki_sha256, token_id, joined_at_ms, \
                 certificate_until_ms, claims, hostname, state, daemon_version) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12) \
             ON CONFLICT (id) DO UPDATE SET pool = excluded.pool, spki_sha256 = excluded.spki_sha256, \
                 token_id = excluded.token_id, joined_at_ms = excluded.joined_at_ms, \
                 certificate_until_ms = excluded.certificate_until_ms, claims = excluded.claims, \
                 hostname = excluded.hostname, state = excluded.state, \
                 daemon_version = excluded.daemon_version, session_id = '', \
                 next_spki_sha256 = NULL, next_chain = NULL, next_until_ms = NULL, \
                 next_issuer_sha256 = NULL, issuer_sha256 = NULL, trust_version = 0, \
                 former_boot_id = '', shared_ms = NULL",
        )?;
        put.execute(params![
            node.id,
            node.role,
            node.pool,
            node.site,
            node.spki_sha256,
            node.token_id,
            node.joined_at_ms,
            node.certificate_until_ms,
            node.claims,
            node.hostname,
            node.state.name(),
            node.daemon_version
        ])?;
        self.connection
            .prepare_cached("DELETE FROM hardware WHERE node_id = ?1")?
            .execute([&node.id])?;
        for (kind, value) in hardware {
            self.connection
                .prepare_cached(
                    "INSERT OR IGNORE INTO hardware (kind, value, node_id) VALUES (?1, ?2, ?3)",
                )?
                .execute(params![kind, value, node.id])?;
        }
        Ok(())
    }

    /// The node with this id, a deleted one too.
    pub fn node(&self, id: &str) -> Result<Option<Node>, StoreError> {
        let sql = format!("{COLUMNS} WHERE id = ?1");
        let mut statement = self.connection.prepare_cached(&sql)?;
        Ok(statement.query_row([id], node).optional()?)
    }

    /// The nodes, not deleted, whose key this is, the oldest first.
    pub fn nodes_with_key(&self, spki_sha256: &[u8; 32]) -> Result<Vec<Node>, StoreError> {
        let sql = format!("{COLUMNS} WHERE spki_sha256 = ?1 AND deleted_at_ms IS NULL ORDER BY id");
        let mut statement = self.connection.prepare_cached(&sql)?;
        let rows = statement.query_map([spki_sha256], node)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// All nodes that are not deleted, the oldest first.
    pub fn nodes(&self) -> Result<Vec<Node>, StoreError> {
        let sql = format!("{COLUMNS} WHERE deleted_at_ms IS NULL ORDER BY id");
        let mut statement = self.connection.prepare_cached(&sql)?;
        let rows = statement.query_map([], node)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// How many nodes were heard of since `since_ms` and are not deleted.
    pub fn nodes_since(&self, since_ms: i64) -> Result<usize, StoreError> {
        let mut statement = self.connection.prepare_cached(
            "SELECT count(*) FROM nodes WHERE deleted_at_ms IS NULL AND last_seen_ms >= ?1",
        )?;
        let count: i64 = statement.query_row([since_ms], |row| row.get(0))?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// The nodes that changed after this change, deleted ones too, in the order they changed.
    pub fn changed_nodes(&self, after: i64) -> Result<Vec<Node>, StoreError> {
        let sql = format!("{COLUMNS} WHERE change > ?1 ORDER BY change");
        let mut statement = self.connection.prepare_cached(&sql)?;
        let rows = statement.query_map([after], node)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// The latest change of any node.
    pub fn last_change(&self) -> Result<i64, StoreError> {
        let mut statement = self
            .connection
            .prepare_cached("SELECT coalesce(max(change), 0) FROM nodes")?;
        Ok(statement.query_row([], |row| row.get(0))?)
    }

    /// The hardware claims that a node shares with other nodes, at most 100. Ramdisks do not count: each
    /// boot of a machine is a node, and so is what is installed on it.
    pub fn duplicates(&self, node_id: &str) -> Result<Vec<Duplicate>, StoreError> {
        let mut statement = self.connection.prepare_cached(
            "SELECT mine.kind, mine.value, other.node_id FROM hardware mine \
             JOIN hardware other ON other.kind = mine.kind AND other.value = mine.value \
                 AND other.node_id <> mine.node_id \
             JOIN nodes n ON n.id = other.node_id AND n.deleted_at_ms IS NULL AND n.role <> ?2 \
             JOIN nodes m ON m.id = mine.node_id AND m.role <> ?2 \
             WHERE mine.node_id = ?1 ORDER BY mine.kind, mine.value, other.node_id LIMIT 100",
        )?;
        let rows = statement.query_map(params![node_id, Role::RAMDISK.0], |row| {
            Ok(Duplicate {
                kind: row.get(0)?,
                value: row.get(1)?,
                other_node: row.get(2)?,
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// The nodes, not deleted, that claim this serial, this UUID and one of these MACs, all three.
    pub fn nodes_with_hardware(
        &self,
        serial: &str,
        uuid: &str,
        macs: &[String],
    ) -> Result<Vec<Node>, StoreError> {
        let mut statement = self.connection.prepare_cached(
            "SELECT s.node_id FROM hardware s \
             JOIN hardware u ON u.node_id = s.node_id AND u.kind = 'uuid' AND u.value = ?2 \
             WHERE s.kind = 'serial' AND s.value = ?1 LIMIT 100",
        )?;
        let ids: Vec<String> = statement
            .query_map(params![serial, uuid], |row| row.get(0))?
            .collect::<Result<_, _>>()?;
        let mut shares_mac = self.connection.prepare_cached(
            "SELECT 1 FROM hardware WHERE kind = 'mac' AND value = ?1 AND node_id = ?2",
        )?;
        let mut found = Vec::new();
        for id in ids {
            for mac in macs {
                if shares_mac.exists(params![mac, id])? {
                    found.extend(self.node(&id)?.filter(|node| !node.deleted));
                    break;
                }
            }
        }
        Ok(found)
    }

    /// Cordons or uncordons; `false` when there is no such node.
    pub fn set_cordoned(&self, id: &str, cordoned: bool) -> Result<bool, StoreError> {
        let changed = self.connection.execute(
            "UPDATE nodes SET cordoned = ?2 WHERE id = ?1 AND deleted_at_ms IS NULL",
            params![id, cordoned],
        )?;
        Ok(changed == 1)
    }

    /// Deletes a node: its sessions are refused from now on. `false` when there is no such node.
    pub fn delete_node(&self, id: &str, now_ms: i64) -> Result<bool, StoreError> {
        let changed = self.connection.execute(
            "UPDATE nodes SET deleted_at_ms = ?2, state = 'disconnected', session_id = '' \
             WHERE id = ?1 AND deleted_at_ms IS NULL",
            params![id, now_ms],
        )?;
        Ok(changed == 1)
    }

    /// Whether a node was deleted. One that never was is not.
    pub fn is_deleted(&self, id: &str) -> Result<bool, StoreError> {
        let mut statement = self
            .connection
            .prepare_cached("SELECT 1 FROM nodes WHERE id = ?1 AND deleted_at_ms IS NOT NULL")?;
        Ok(statement.exists([id])?)
    }

    /// Takes down what `Hello` says; the node is adopting. A boot's id never comes back: a node that was in
    /// one boot, then in another, and in the first one again is two machines. `true` when that is news.
    pub fn session_opened(&self, facts: &SessionFacts<'_>) -> Result<bool, StoreError> {
        let known = self
            .connection
            .prepare_cached("SELECT boot_id, former_boot_id, shared_ms FROM nodes WHERE id = ?1")?
            .query_row([facts.node_id], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })
            .optional()?;
        let (last, former, mut shared_ms): (String, String, Option<i64>) =
            known.unwrap_or_default();
        let another = last != facts.boot_id && !last.is_empty();
        let back = another && former == facts.boot_id;
        let news = back && shared_ms.is_none_or(|at| facts.now_ms - at >= SHARED_AGAIN_MS);
        if back {
            shared_ms = Some(facts.now_ms);
        }
        self.connection
            .prepare_cached(
                "UPDATE nodes SET state = 'adopting', session_id = ?2, daemon_version = ?3, boot_id = ?4, \
                 capabilities = ?5, address = ?6, last_seen_ms = ?7, former_boot_id = ?8, shared_ms = ?9 \
                 WHERE id = ?1",
            )?
            .execute(params![
                facts.node_id,
                facts.session_id,
                facts.daemon_version,
                facts.boot_id,
                facts.capabilities.join("\n"),
                facts.address,
                facts.now_ms,
                if another { last } else { former },
                shared_ms
            ])?;
        Ok(news)
    }

    /// The node was heard in this session; it is connected. Nothing happens when another session took
    /// its place.
    pub fn session_seen(
        &self,
        node_id: &str,
        session_id: &str,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        self.connection
            .prepare_cached(
                "UPDATE nodes SET state = 'connected', last_seen_ms = ?3 WHERE id = ?1 AND session_id = ?2",
            )?
            .execute(params![node_id, session_id, now_ms])?;
        Ok(())
    }

    /// The session is over. Nothing happens when another session took its place.
    pub fn session_closed(&self, node_id: &str, session_id: &str) -> Result<(), StoreError> {
        self.connection
            .prepare_cached(
                "UPDATE nodes SET state = 'disconnected', session_id = '' WHERE id = ?1 AND session_id = ?2",
            )?
            .execute([node_id, session_id])?;
        Ok(())
    }

    /// No session outlives its gateway: what a killed process left open is over.
    pub fn close_all_sessions(&self) -> Result<(), StoreError> {
        self.connection.execute(
            "UPDATE nodes SET state = 'disconnected', session_id = '' WHERE state IN ('adopting', 'connected')",
            [],
        )?;
        Ok(())
    }
}

#[cfg(test)]
pub mod tests {
    use super::super::tests::TempDir;
    use super::*;

    pub fn joined(id: &str) -> Node {
        Node {
            id: id.to_owned(),
            role: 1,
            pool: "pool_a".to_owned(),
            site: "fsn1".to_owned(),
            spki_sha256: [1; 32],
            token_id: "jt_a".to_owned(),
            joined_at_ms: 5,
            certificate_until_ms: 50,
            cordoned: false,
            deleted: false,
            claims: vec![1, 2],
            hostname: "host".to_owned(),
            state: State::Joining,
            session_id: String::new(),
            daemon_version: "0.1.0".to_owned(),
            boot_id: String::new(),
            capabilities: vec![],
            address: String::new(),
            last_seen_ms: None,
            next: None,
            shared_ms: None,
        }
    }

    fn facts<'a>(session_id: &'a str, capabilities: &'a [String]) -> SessionFacts<'a> {
        SessionFacts {
            node_id: "node_a",
            session_id,
            daemon_version: "0.2.0",
            boot_id: "boot",
            capabilities,
            address: "192.0.2.7",
            now_ms: 100,
        }
    }

    #[test]
    fn a_node_goes_from_joining_over_adopting_to_connected_and_away() {
        let dir = TempDir::new();
        let store = Store::open(&dir.0.join("state.db")).unwrap();
        store.put_node(&joined("node_a"), &[]).unwrap();
        let node = |store: &Store| store.node("node_a").unwrap().unwrap();
        assert_eq!(node(&store), joined("node_a"));

        let capabilities = vec!["a.b".to_owned(), "c.d".to_owned()];
        store
            .session_opened(&facts("sess_1", &capabilities))
            .unwrap();
        assert_eq!(node(&store).state, State::Adopting);
        assert_eq!(node(&store).capabilities, capabilities);
        store.session_seen("node_a", "sess_1", 110).unwrap();
        assert_eq!(node(&store).state, State::Connected);
        assert_eq!(node(&store).last_seen_ms, Some(110));
        assert_eq!(store.nodes_since(110).unwrap(), 1);
        assert_eq!(store.nodes_since(111).unwrap(), 0);

        // An older session ends after a newer one took its place: nothing changes.
        store.session_opened(&facts("sess_2", &[])).unwrap();
        store.session_seen("node_a", "sess_1", 120).unwrap();
        store.session_closed("node_a", "sess_1").unwrap();
        assert_eq!(node(&store).state, State::Adopting);
        store.session_closed("node_a", "sess_2").unwrap();
        assert_eq!(node(&store).state, State::Disconnected);
    }

    #[test]
    fn a_boot_that_comes_back_after_another_one_is_a_second_machine() {
        let dir = TempDir::new();
        let store = Store::open(&dir.0.join("state.db")).unwrap();
        store.put_node(&joined("node_a"), &[]).unwrap();
        let open = |boot_id: &str, now_ms: i64| {
            let facts = SessionFacts {
                boot_id,
                now_ms,
                ..facts("sess_1", &[])
            };
            let news = store.session_opened(&facts).unwrap();
            (news, store.node("node_a").unwrap().unwrap().shared_ms)
        };
        let hour = SHARED_AGAIN_MS;
        for (boot, now_ms, wanted) in [
            // Boots, one after the other, each with a few sessions; a node that cannot read its boot's id.
            ("one", 1, (false, None)),
            ("one", 2, (false, None)),
            ("two", 3, (false, None)),
            ("three", 4, (false, None)),
            ("three", 5, (false, None)),
            // Two machines; said once an hour, and known as of the last time.
            ("two", 6, (true, Some(6))),
            ("three", 7, (false, Some(7))),
            ("two", 8, (false, Some(8))),
            ("two", 9, (false, Some(8))),
            ("three", 8 + hour, (true, Some(8 + hour))),
            // One of them is gone.
            ("four", 9 + hour, (false, Some(8 + hour))),
        ] {
            assert_eq!(open(boot, now_ms), wanted, "{boot} at {now_ms}");
        }
        store.put_node(&joined("node_a"), &[]).unwrap();
        assert_eq!(open("five", 2 * hour), (false, None));
        assert_eq!(open("", 2 * hour), (false, None));
        assert_eq!(open("five", 2 * hour), (false, None));
    }

    #[test]
    fn sessions_of_a_killed_process_are_over() {
        let dir = TempDir::new();
        let store = Store::open(&dir.0.join("state.db")).unwrap();
        store.put_node(&joined("node_a"), &[]).unwrap();
        store.put_node(&joined("node_b"), &[]).unwrap();
        store.session_opened(&facts("sess_1", &[])).unwrap();
        store.close_all_sessions().unwrap();
        let states: Vec<_> = store.nodes().unwrap().iter().map(|n| n.state).collect();
        assert_eq!(states, [State::Disconnected, State::Joining]);
    }

    #[test]
    fn a_deleted_node_is_remembered_but_not_listed() {
        let dir = TempDir::new();
        let store = Store::open(&dir.0.join("state.db")).unwrap();
        store.put_node(&joined("node_a"), &[]).unwrap();
        assert!(store.set_cordoned("node_a", true).unwrap());
        assert!(store.node("node_a").unwrap().unwrap().cordoned);
        assert!(store.delete_node("node_a", 9).unwrap());
        assert!(!store.delete_node("node_a", 9).unwrap());
        assert!(!store.set_cordoned("node_a", false).unwrap());
        assert!(store.node("node_a").unwrap().unwrap().deleted);
        assert!(store.nodes().unwrap().is_empty());
    }

    #[test]
    fn every_change_that_a_list_shows_is_seen_whoever_makes_it() {
        let dir = TempDir::new();
        let path = dir.0.join("state.db");
        let store = Store::open(&path).unwrap();
        assert_eq!(store.last_change().unwrap(), 0);
        store.put_node(&joined("node_a"), &[]).unwrap();
        store.put_node(&joined("node_b"), &[]).unwrap();
        let mut seen = store.last_change().unwrap();
        let mut changed = |what: &str, wanted: &[&str]| {
            let nodes = store.changed_nodes(seen).unwrap();
            let ids: Vec<_> = nodes.iter().map(|node| node.id.as_str()).collect();
            assert_eq!(ids, wanted, "{what}");
            seen = store.last_change().unwrap();
        };
        changed("nothing", &[]);
        store.session_opened(&facts("sess_1", &[])).unwrap();
        changed("a session", &["node_a"]);
        store.session_seen("node_a", "sess_1", 110).unwrap();
        changed("its first frame", &["node_a"]);
        store.session_seen("node_a", "sess_2", 120).unwrap();
        changed("a session that is over", &[]);
        Store::open(&path)
            .unwrap()
            .set_cordoned("node_b", true)
            .unwrap();
        changed("another connection's change", &["node_b"]);
        store.session_closed("node_a", "sess_1").unwrap();
        store.delete_node("node_b", 5).unwrap();
        changed("two changes", &["node_a", "node_b"]);
        store.put_node(&joined("node_c"), &[]).unwrap();
        changed("a join", &["node_c"]);
    }

    #[test]
    fn hardware_claimed_twice_is_reported_on_both_until_one_is_deleted() {
        let dir = TempDir::new();
        let store = Store::open(&dir.0.join("state.db")).unwrap();
        let hardware = [
            ("serial", "S1".to_owned()),
            ("uuid", "U1".to_owned()),
            ("mac", "02:00:00:00:00:01".to_owned()),
        ];
        store.put_node(&joined("node_a"), &hardware).unwrap();
        store.put_node(&joined("node_b"), &hardware[..2]).unwrap();
        let duplicates = store.duplicates("node_a").unwrap();
        assert_eq!(duplicates.len(), 2);
        assert_eq!(duplicates[0].other_node, "node_b");
        assert_eq!(store.duplicates("node_b").unwrap().len(), 2);
        let macs = ["02:00:00:00:00:01".to_owned()];
        let same = store.nodes_with_hardware("S1", "U1", &macs).unwrap();
        assert_eq!(same.len(), 1);
        assert_eq!(same[0].id, "node_a");
        store.delete_node("node_b", 9).unwrap();
        assert!(store.duplicates("node_a").unwrap().is_empty());
    }
}
