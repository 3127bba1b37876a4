//! Join tokens, what they were redeemed for, and what was tried with them.

use bcd::config::mac::Mac;
use rusqlite::{OptionalExtension, Row, Statement, params};

use super::{Store, StoreError};

/// How many join attempts are kept; the oldest go first.
const ATTEMPTS_KEPT: i64 = 100_000;

/// A token to be kept.
pub struct NewToken<'a> {
    /// `jt_<ulid>`.
    pub id: &'a str,
    /// SHA-256 of the whole token string.
    pub digest: [u8; 32],
    /// A `Role`'s number.
    pub role: i32,
    pub pool: &'a str,
    pub site: &'a str,
    /// The machine it is for: the attestor discovery. `None`: the attestor join-token.
    pub mac: Option<Mac>,
    pub allow_reclaim: bool,
    /// Unix time, milliseconds.
    pub created_at_ms: i64,
    pub expires_at_ms: i64,
}

/// A token as it is kept: everything but its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    pub id: String,
    pub digest: [u8; 32],
    pub role: i32,
    pub pool: String,
    pub site: String,
    /// As [`NewToken::mac`].
    pub mac: Option<Mac>,
    pub allow_reclaim: bool,
    pub created_at_ms: i64,
    pub expires_at_ms: i64,
    pub revoked_at_ms: Option<i64>,
    /// The node it was redeemed for.
    pub node_id: Option<String>,
    /// Refused attempts with this token.
    pub refusals: i64,
}

/// What a token is good for now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenState {
    Unused,
    Redeemed,
    Expired,
    Revoked,
}

impl TokenState {
    pub fn name(self) -> &'static str {
        match self {
            Self::Unused => "unused",
            Self::Redeemed => "redeemed",
            Self::Expired => "expired",
            Self::Revoked => "revoked",
        }
    }
}

impl Token {
    /// Its state at `now_ms`.
    pub fn state(&self, now_ms: i64) -> TokenState {
        if self.revoked_at_ms.is_some() {
            TokenState::Revoked
        } else if self.node_id.is_some() {
            TokenState::Redeemed
        } else if now_ms >= self.expires_at_ms {
            TokenState::Expired
        } else {
            TokenState::Unused
        }
    }
}

/// What a token was redeemed for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redemption {
    /// SHA-256 of the key's SubjectPublicKeyInfo.
    pub spki_sha256: [u8; 32],
    pub node_id: String,
    /// DER, the leaf first.
    pub chain: Vec<Vec<u8>>,
    /// Until when the same key gets the same answer.
    pub until_ms: i64,
}

/// One join with a token that exists, and what came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    pub at_ms: i64,
    pub token_id: String,
    pub spki_sha256: [u8; 32],
    /// `issued`, `reissued` or `refused`.
    pub outcome: &'static str,
    pub reason: String,
    pub node_id: Option<String>,
    pub hostname: String,
    pub address: String,
}

const TOKEN_COLUMNS: &str = "SELECT t.id, t.digest, t.role, t.pool, t.site, t.allow_reclaim, \
     t.created_at_ms, t.expires_at_ms, t.revoked_at_ms, r.node_id, \
     (SELECT count(*) FROM join_attempts a WHERE a.token_id = t.id AND a.outcome = 'refused'), t.mac \
     FROM tokens t LEFT JOIN redemptions r ON r.token_id = t.id";

fn token(row: &Row<'_>) -> rusqlite::Result<Token> {
    Ok(Token {
        id: row.get(0)?,
        digest: row.get(1)?,
        role: row.get(2)?,
        pool: row.get(3)?,
        site: row.get(4)?,
        allow_reclaim: row.get(5)?,
        created_at_ms: row.get(6)?,
        expires_at_ms: row.get(7)?,
        revoked_at_ms: row.get(8)?,
        node_id: row.get(9)?,
        refusals: row.get(10)?,
        mac: row.get::<_, Option<[u8; 6]>>(11)?.map(Mac),
    })
}

/// The redemption that `statement` finds by `id`: its key's digest, node, certificates and end.
pub(super) fn redeemed(
    statement: &mut Statement<'_>,
    id: &str,
) -> Result<Option<Redemption>, StoreError> {
    let row = statement.query_row([id], |row| {
        let chain: Vec<u8> = row.get(2)?;
        Ok((row.get(0)?, row.get(1)?, chain, row.get(3)?))
    });
    let row = row.optional()?;
    row.map(|(spki_sha256, node_id, chain, until_ms)| {
        let chain = split_chain(&chain);
        Ok(Redemption {
            spki_sha256,
            node_id,
            chain: chain.ok_or(StoreError::Damaged("a redemption's certificates"))?,
            until_ms,
        })
    })
    .transpose()
}

impl Store {
    /// Keeps a new token; durable when this returns.
    pub fn add_token(&self, token: &NewToken<'_>) -> Result<(), StoreError> {
        self.connection.execute(
            "INSERT INTO tokens (id, digest, role, pool, site, allow_reclaim, created_at_ms, expires_at_ms, mac) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
            params![
                token.id,
                token.digest,
                token.role,
                token.pool,
                token.site,
                token.allow_reclaim,
                token.created_at_ms,
                token.expires_at_ms,
                token.mac.map(|mac| mac.0)
            ],
        )?;
        Ok(())
    }

    /// The token with this id.
    pub fn token(&self, id: &str) -> Result<Option<Token>, StoreError> {
        let sql = format!("{TOKEN_COLUMNS} WHERE t.id = ?1");
        let mut statement = self.connection.prepare_cached(&sql)?;
        Ok(statement.query_row([id], token).optional()?)
    }

    /// All tokens, the newest first.
    pub fn tokens(&self) -> Result<Vec<Token>, StoreError> {
        let sql = format!("{TOKEN_COLUMNS} ORDER BY t.id DESC");
        let mut statement = self.connection.prepare_cached(&sql)?;
        let rows = statement.query_map([], token)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Revokes a token; `false` when there is none. Revoking again keeps the first time.
    pub fn revoke_token(&self, id: &str, now_ms: i64) -> Result<bool, StoreError> {
        let changed = self.connection.execute(
            "UPDATE tokens SET revoked_at_ms = coalesce(revoked_at_ms, ?2) WHERE id = ?1",
            params![id, now_ms],
        )?;
        Ok(changed == 1)
    }

    /// What the token was redeemed for, if it was.
    pub fn redemption(&self, token_id: &str) -> Result<Option<Redemption>, StoreError> {
        let mut statement = self.connection.prepare_cached(
            "SELECT spki_sha256, node_id, chain, until_ms FROM redemptions WHERE token_id = ?1",
        )?;
        redeemed(&mut statement, token_id)
    }

    /// Keeps what a token was redeemed for. Part of the transaction that keeps the node.
    pub fn add_redemption(
        &self,
        token_id: &str,
        redemption: &Redemption,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        self.connection
            .prepare_cached(
                "INSERT INTO redemptions (token_id, spki_sha256, node_id, chain, redeemed_at_ms, until_ms) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            )?
            .execute(params![
                token_id,
                redemption.spki_sha256,
                redemption.node_id,
                redemption.chain.concat(),
                now_ms,
                redemption.until_ms
            ])?;
        Ok(())
    }

    /// Records a join with a known token.
    pub fn record_attempt(&self, attempt: &Attempt) -> Result<(), StoreError> {
        self.connection
            .prepare_cached(
                "INSERT INTO join_attempts (at_ms, token_id, spki_sha256, outcome, reason, node_id, hostname, address) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            )?
            .execute(params![
                attempt.at_ms,
                attempt.token_id,
                attempt.spki_sha256,
                attempt.outcome,
                attempt.reason,
                attempt.node_id,
                attempt.hostname,
                attempt.address
            ])?;
        self.connection
            .prepare_cached("DELETE FROM join_attempts WHERE seq <= ?1")?
            .execute([self.connection.last_insert_rowid() - ATTEMPTS_KEPT])?;
        Ok(())
    }

    /// The latest attempts with a token, the newest first, at most `limit`.
    pub fn attempts(&self, token_id: &str, limit: u32) -> Result<Vec<Attempt>, StoreError> {
        let mut statement = self.connection.prepare_cached(
            "SELECT at_ms, token_id, spki_sha256, outcome, reason, node_id, hostname, address \
             FROM join_attempts WHERE token_id = ?1 ORDER BY seq DESC LIMIT ?2",
        )?;
        let rows = statement.query_map(params![token_id, limit], |row| {
            Ok(Attempt {
                at_ms: row.get(0)?,
                token_id: row.get(1)?,
                spki_sha256: row.get(2)?,
                outcome: outcome(&row.get::<_, String>(3)?),
                reason: row.get(4)?,
                node_id: row.get(5)?,
                hostname: row.get(6)?,
                address: row.get(7)?,
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }
}

/// The word for what came of a join or a renewal, as it is kept.
pub(super) fn outcome(kept: &str) -> &'static str {
    match kept {
        "issued" => "issued",
        "reissued" => "reissued",
        _ => "refused",
    }
}

/// Cuts certificates that stand one after the other in DER apart.
pub(super) fn split_chain(mut bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut chain = Vec::new();
    while !bytes.is_empty() {
        let length = der_length(bytes)?;
        let (certificate, rest) = bytes.split_at_checked(length)?;
        chain.push(certificate.to_vec());
        bytes = rest;
    }
    (!chain.is_empty()).then_some(chain)
}

/// The length of the DER SEQUENCE at the start of `bytes`, its head included.
fn der_length(bytes: &[u8]) -> Option<usize> {
    match *bytes {
        [0x30, short @ 0..=0x7f, ..] => Some(2 + usize::from(short)),
        [0x30, 0x81, length, ..] => Some(3 + usize::from(length)),
        [0x30, 0x82, high, low, ..] => Some(4 + usize::from(u16::from_be_bytes([high, low]))),
        _ => None,
    }
}

#[cfg(test)]
impl Store {
    /// Makes a redemption one that no version of this program writes.
    pub fn damage_redemption(&self, token_id: &str) {
        let sql = "UPDATE redemptions SET chain = x'3005' WHERE token_id = ?1";
        self.connection.execute(sql, [token_id]).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::TempDir;
    use super::*;

    fn new_token(id: &str) -> NewToken<'_> {
        NewToken {
            id,
            digest: [7; 32],
            role: 1,
            pool: "pool_a",
            site: "fsn1",
            mac: None,
            allow_reclaim: true,
            created_at_ms: 10,
            expires_at_ms: 20,
        }
    }

    #[test]
    fn a_token_lives_from_unused_to_redeemed_expired_or_revoked() {
        let dir = TempDir::new();
        let path = dir.0.join("state.db");
        let mut store = Store::open(&path).unwrap();
        store.add_token(&new_token("jt_a")).unwrap();
        store.add_token(&new_token("jt_b")).unwrap();
        let state = |store: &Store, id: &str, now| store.token(id).unwrap().unwrap().state(now);
        assert_eq!(state(&store, "jt_a", 19), TokenState::Unused);
        assert_eq!(state(&store, "jt_a", 20), TokenState::Expired);

        let chain = vec![
            [&[0x30, 0x82, 0x01, 0x00][..], &[1; 256]].concat(),
            vec![0x30, 1, 9],
        ];
        let redemption = Redemption {
            spki_sha256: [3; 32],
            node_id: "node_x".to_owned(),
            chain,
            until_ms: 99,
        };
        store
            .together(|store| store.add_redemption("jt_a", &redemption, 15))
            .unwrap();
        // What was acknowledged is there for whoever opens the file next, without a clean close.
        std::mem::drop(store);
        let store = Store::open(&path).unwrap();
        assert_eq!(store.redemption("jt_a").unwrap(), Some(redemption));
        assert_eq!(state(&store, "jt_a", 100), TokenState::Redeemed);

        assert!(store.revoke_token("jt_b", 12).unwrap());
        assert!(store.revoke_token("jt_b", 13).unwrap());
        assert!(!store.revoke_token("jt_c", 13).unwrap());
        let revoked = store.token("jt_b").unwrap().unwrap();
        assert_eq!(revoked.revoked_at_ms, Some(12));
        assert_eq!(revoked.state(1), TokenState::Revoked);
        assert_eq!(store.tokens().unwrap().len(), 2);
    }

    #[test]
    fn a_failed_transaction_leaves_nothing_behind() {
        let dir = TempDir::new();
        let mut store = Store::open(&dir.0.join("state.db")).unwrap();
        let result = store.together(|store| {
            store.add_token(&new_token("jt_a"))?;
            Err::<(), _>(StoreError::Damaged("test"))
        });
        assert!(result.is_err());
        assert_eq!(store.token("jt_a").unwrap(), None);
        store.add_token(&new_token("jt_a")).unwrap();
    }

    #[test]
    fn refused_attempts_are_counted_on_their_token() {
        let dir = TempDir::new();
        let store = Store::open(&dir.0.join("state.db")).unwrap();
        store.add_token(&new_token("jt_a")).unwrap();
        let attempt = Attempt {
            at_ms: 11,
            token_id: "jt_a".to_owned(),
            spki_sha256: [9; 32],
            outcome: "refused",
            reason: "other key".to_owned(),
            node_id: None,
            hostname: "host".to_owned(),
            address: "192.0.2.1".to_owned(),
        };
        store.record_attempt(&attempt).unwrap();
        assert_eq!(store.token("jt_a").unwrap().unwrap().refusals, 1);
        assert_eq!(store.attempts("jt_a", 10).unwrap(), vec![attempt]);
    }

    #[test]
    fn a_damaged_chain_is_named_not_guessed() {
        for bad in [
            &[][..],
            &[0x30],
            &[0x30, 5, 1],
            &[0x31, 0],
            &[0x30, 0x83, 0, 0, 0],
        ] {
            assert_eq!(split_chain(bad), None, "{bad:?}");
        }
    }
}
