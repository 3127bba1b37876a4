//! Renewed certificates: the key a node is moving to beside the one it has, and what was asked.

use rusqlite::{OptionalExtension, params};

use super::tokens::split_chain;
use super::{Store, StoreError};

/// How many renewals are kept; the oldest go first.
const RENEWALS_KEPT: i64 = 100_000;

/// A certificate as it was issued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issued {
    /// SHA-256 of the certified key's SubjectPublicKeyInfo.
    pub spki_sha256: [u8; 32],
    /// DER, the leaf first.
    pub chain: Vec<Vec<u8>>,
    /// When the certificate ends, Unix time in milliseconds.
    pub until_ms: i64,
    /// SHA-256 of the issuing CA's SubjectPublicKeyInfo.
    pub issuer_sha256: [u8; 32],
}

/// The keys that may speak for a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeKeys {
    /// Of the present key.
    pub spki_sha256: [u8; 32],
    pub until_ms: i64,
    /// Of the CA that issued the present certificate; `None` for one from before this was kept.
    pub issuer_sha256: Option<[u8; 32]>,
    /// What was issued by a renewal and has opened no session yet.
    pub next: Option<Issued>,
    /// The version of the trust bundle that the node said it holds.
    pub trust_version: u64,
}

/// A renewal that a node which exists asked for, and what came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renewal {
    pub at_ms: i64,
    pub node_id: String,
    /// Of the new key.
    pub spki_sha256: [u8; 32],
    /// `issued`, `reissued` or `refused`.
    pub outcome: &'static str,
    pub reason: String,
    pub address: String,
}

/// Which nodes have not followed a rotation.
#[derive(Debug, Clone, Copy)]
pub enum Behind {
    /// Those that hold no trust bundle of this version or a later one.
    Trust(u64),
    /// Those whose certificate another CA issued than the one whose key has this SHA-256.
    Issuer([u8; 32]),
}

/// Nodes that have not followed: how many, and the first of them.
#[derive(Debug, Default)]
pub struct Laggards {
    pub count: u64,
    pub nodes: Vec<Laggard>,
}

/// A node that has not followed.
#[derive(Debug)]
pub struct Laggard {
    pub id: String,
    pub hostname: String,
    pub state: String,
    pub last_seen_ms: Option<i64>,
}

impl Store {
    /// The nodes, not deleted, that have not followed.
    pub fn behind(&self, behind: Behind) -> Result<Laggards, StoreError> {
        const LISTED: usize = 1000;
        let (condition, value): (_, Box<dyn rusqlite::ToSql>) = match behind {
            Behind::Trust(version) => (
                "trust_version < ?1",
                Box::new(i64::try_from(version).unwrap_or(i64::MAX)),
            ),
            Behind::Issuer(sha256) => ("issuer_sha256 IS NOT ?1", Box::new(sha256)),
        };
        let sql = format!(
            "SELECT id, hostname, state, last_seen_ms FROM nodes \
             WHERE deleted_at_ms IS NULL AND {condition} ORDER BY id"
        );
        let mut statement = self.connection.prepare_cached(&sql)?;
        let mut rows = statement.query(params![value])?;
        let mut found = Laggards::default();
        while let Some(row) = rows.next()? {
            found.count += 1;
            if found.nodes.len() < LISTED {
                found.nodes.push(Laggard {
                    id: row.get(0)?,
                    hostname: row.get(1)?,
                    state: row.get(2)?,
                    last_seen_ms: row.get(3)?,
                });
            }
        }
        Ok(found)
    }

    /// The keys of a node, a deleted one too.
    pub fn node_keys(&self, id: &str) -> Result<Option<NodeKeys>, StoreError> {
        let row = self
            .connection
            .prepare_cached(
                "SELECT spki_sha256, certificate_until_ms, issuer_sha256, trust_version, \
                 next_spki_sha256, next_chain, next_until_ms, next_issuer_sha256 \
                 FROM nodes WHERE id = ?1",
            )?
            .query_row([id], |row| {
                let next: Option<[u8; 32]> = row.get(4)?;
                let next = match next {
                    None => None,
                    Some(spki) => Some((spki, row.get::<_, Vec<u8>>(5)?, row.get(6)?, row.get(7)?)),
                };
                Ok((
                    row.get(0)?,
                    row.get(1)?,
                    row.get(2)?,
                    row.get::<_, i64>(3)?,
                    next,
                ))
            })
            .optional()?;
        row.map(
            |(spki_sha256, until_ms, issuer_sha256, trust_version, next)| {
                let next = next
                    .map(|(spki_sha256, chain, until_ms, issuer_sha256)| {
                        let chain = split_chain(&chain)
                            .ok_or(StoreError::Damaged("a renewal's certificates"))?;
                        Ok::<_, StoreError>(Issued {
                            spki_sha256,
                            chain,
                            until_ms,
                            issuer_sha256,
                        })
                    })
                    .transpose()?;
                Ok(NodeKeys {
                    spki_sha256,
                    until_ms,
                    issuer_sha256,
                    next,
                    trust_version: u64::try_from(trust_version).unwrap_or(0),
                })
            },
        )
        .transpose()
    }

    /// Notes which CA issued the present certificate of a node that has just joined.
    pub fn note_issuer(&self, id: &str, issuer_sha256: &[u8; 32]) -> Result<(), StoreError> {
        self.connection
            .prepare_cached("UPDATE nodes SET issuer_sha256 = ?2 WHERE id = ?1")?
            .execute(params![id, issuer_sha256])?;
        Ok(())
    }

    /// Keeps what a renewal issued beside the present key; what was kept so before is replaced.
    pub fn set_next(&self, id: &str, next: &Issued) -> Result<(), StoreError> {
        self.connection
            .prepare_cached(
                "UPDATE nodes SET next_spki_sha256 = ?2, next_chain = ?3, next_until_ms = ?4, \
                 next_issuer_sha256 = ?5 WHERE id = ?1",
            )?
            .execute(params![
                id,
                next.spki_sha256,
                next.chain.concat(),
                next.until_ms,
                next.issuer_sha256
            ])?;
        Ok(())
    }

    /// Makes the renewed key the present one; the former speaks for the node no more. `false` when
    /// this is not the renewed key.
    pub fn promote_next(&self, id: &str, spki_sha256: &[u8; 32]) -> Result<bool, StoreError> {
        let changed = self
            .connection
            .prepare_cached(
                "UPDATE nodes SET spki_sha256 = next_spki_sha256, \
                 certificate_until_ms = next_until_ms, issuer_sha256 = next_issuer_sha256, \
                 next_spki_sha256 = NULL, next_chain = NULL, next_until_ms = NULL, \
                 next_issuer_sha256 = NULL WHERE id = ?1 AND next_spki_sha256 = ?2",
            )?
            .execute(params![id, spki_sha256])?;
        Ok(changed == 1)
    }

    /// Notes the trust bundle that a node said it holds; written only when it has changed.
    pub fn note_trust(&self, id: &str, version: u64) -> Result<(), StoreError> {
        self.connection
            .prepare_cached(
                "UPDATE nodes SET trust_version = ?2 WHERE id = ?1 AND trust_version <> ?2",
            )?
            .execute(params![id, i64::try_from(version).unwrap_or(i64::MAX)])?;
        Ok(())
    }

    /// Whether a certificate was ever issued for this key by a renewal of the node.
    pub fn was_renewed_for(&self, id: &str, spki_sha256: &[u8; 32]) -> Result<bool, StoreError> {
        Ok(self
            .connection
            .prepare_cached(
                "SELECT 1 FROM renewals WHERE node_id = ?1 AND spki_sha256 = ?2 AND outcome = 'issued'",
            )?
            .exists(params![id, spki_sha256])?)
    }

    /// Records a renewal of a node that exists.
    pub fn record_renewal(&self, renewal: &Renewal) -> Result<(), StoreError> {
        self.connection
            .prepare_cached(
                "INSERT INTO renewals (at_ms, node_id, spki_sha256, outcome, reason, address) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            )?
            .execute(params![
                renewal.at_ms,
                renewal.node_id,
                renewal.spki_sha256,
                renewal.outcome,
                renewal.reason,
                renewal.address
            ])?;
        self.connection
            .prepare_cached("DELETE FROM renewals WHERE seq <= ?1")?
            .execute([self.connection.last_insert_rowid() - RENEWALS_KEPT])?;
        Ok(())
    }

    /// The latest renewals of a node, the newest first, at most `limit`.
    #[cfg(test)]
    pub fn renewals(&self, id: &str, limit: u32) -> Result<Vec<Renewal>, StoreError> {
        let mut statement = self.connection.prepare_cached(
            "SELECT at_ms, node_id, spki_sha256, outcome, reason, address \
             FROM renewals WHERE node_id = ?1 ORDER BY seq DESC LIMIT ?2",
        )?;
        let rows = statement.query_map(params![id, limit], |row| {
            Ok(Renewal {
                at_ms: row.get(0)?,
                node_id: row.get(1)?,
                spki_sha256: row.get(2)?,
                outcome: super::tokens::outcome(&row.get::<_, String>(3)?),
                reason: row.get(4)?,
                address: row.get(5)?,
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }
}

#[cfg(test)]
mod tests {
    use super::super::nodes::tests::joined;
    use super::super::tests::TempDir;
    use super::*;

    fn issued(byte: u8) -> Issued {
        Issued {
            spki_sha256: [byte; 32],
            chain: vec![vec![0x30, 1, byte], vec![0x30, 0]],
            until_ms: 100 + i64::from(byte),
            issuer_sha256: [byte + 1; 32],
        }
    }

    #[test]
    fn a_renewed_key_stands_beside_the_present_one_until_it_is_promoted() {
        let dir = TempDir::new();
        let path = dir.0.join("state.db");
        let store = Store::open(&path).unwrap();
        store.put_node(&joined("node_a"), &[]).unwrap();
        let keys = |store: &Store| store.node_keys("node_a").unwrap().unwrap();
        assert_eq!(keys(&store).next, None);
        store.note_issuer("node_a", &[8; 32]).unwrap();
        store.set_next("node_a", &issued(3)).unwrap();
        store.set_next("node_a", &issued(4)).unwrap();
        drop(store);
        let store = Store::open(&path).unwrap();
        assert_eq!(keys(&store).next, Some(issued(4)));
        assert_eq!(keys(&store).issuer_sha256, Some([8; 32]));
        assert!(!store.promote_next("node_a", &[3; 32]).unwrap());
        assert!(store.promote_next("node_a", &[4; 32]).unwrap());
        let after = keys(&store);
        assert_eq!((after.spki_sha256, after.until_ms), ([4; 32], 104));
        assert_eq!((after.issuer_sha256, after.next), (Some([5; 32]), None));
        assert_eq!(store.node_keys("node_b").unwrap(), None);
    }

    #[test]
    fn a_node_that_joins_again_has_no_renewal_pending() {
        let dir = TempDir::new();
        let store = Store::open(&dir.0.join("state.db")).unwrap();
        store.put_node(&joined("node_a"), &[]).unwrap();
        store.set_next("node_a", &issued(3)).unwrap();
        store.note_trust("node_a", 7).unwrap();
        store.put_node(&joined("node_a"), &[]).unwrap();
        let keys = store.node_keys("node_a").unwrap().unwrap();
        assert_eq!((keys.next, keys.trust_version), (None, 0));
    }
}
