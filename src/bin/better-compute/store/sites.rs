//! The keys of sites: whose word counts for which machines boot where.

use rusqlite::{OptionalExtension, Row, params};

use super::{Store, StoreError};

/// A key to be registered.
pub struct NewSiteKey<'a> {
    /// SHA-256 of `spki`.
    pub spki_sha256: [u8; 32],
    /// SubjectPublicKeyInfo, DER.
    pub spki: &'a [u8],
    pub site: &'a str,
    /// What operators call it; may be empty.
    pub name: &'a str,
    /// Unix time, milliseconds.
    pub added_at_ms: i64,
}

/// A registered key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SiteKey {
    pub spki_sha256: [u8; 32],
    pub spki: Vec<u8>,
    pub site: String,
    pub name: String,
    pub added_at_ms: i64,
    pub revoked_at_ms: Option<i64>,
}

const COLUMNS: &str =
    "SELECT spki_sha256, spki, site, name, added_at_ms, revoked_at_ms FROM site_keys";

fn site_key(row: &Row<'_>) -> rusqlite::Result<SiteKey> {
    Ok(SiteKey {
        spki_sha256: row.get(0)?,
        spki: row.get(1)?,
        site: row.get(2)?,
        name: row.get(3)?,
        added_at_ms: row.get(4)?,
        revoked_at_ms: row.get(5)?,
    })
}

impl Store {
    /// Registers a key, unless it is there already, and gives what is registered then.
    pub fn add_site_key(&self, key: &NewSiteKey<'_>) -> Result<SiteKey, StoreError> {
        self.connection.execute(
            "INSERT INTO site_keys (spki_sha256, spki, site, name, added_at_ms) \
             VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO NOTHING",
            params![
                key.spki_sha256,
                key.spki,
                key.site,
                key.name,
                key.added_at_ms
            ],
        )?;
        self.site_key(&key.spki_sha256)?.ok_or(StoreError::Damaged(
            "a site key that was just added is gone",
        ))
    }

    /// The key with this digest, a revoked one too.
    pub fn site_key(&self, spki_sha256: &[u8; 32]) -> Result<Option<SiteKey>, StoreError> {
        let sql = format!("{COLUMNS} WHERE spki_sha256 = ?1");
        let mut statement = self.connection.prepare_cached(&sql)?;
        Ok(statement.query_row([spki_sha256], site_key).optional()?)
    }

    /// All keys, by site, the revoked ones too.
    pub fn site_keys(&self) -> Result<Vec<SiteKey>, StoreError> {
        let sql = format!("{COLUMNS} ORDER BY site, added_at_ms, spki_sha256");
        let mut statement = self.connection.prepare_cached(&sql)?;
        let rows = statement.query_map([], site_key)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Revokes a key; `false` when there is none. Revoking again keeps the first time.
    pub fn revoke_site_key(&self, spki_sha256: &[u8; 32], now_ms: i64) -> Result<bool, StoreError> {
        let changed = self.connection.execute(
            "UPDATE site_keys SET revoked_at_ms = coalesce(revoked_at_ms, ?2) WHERE spki_sha256 = ?1",
            params![spki_sha256, now_ms],
        )?;
        Ok(changed == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::TempDir;
    use super::*;

    #[test]
    fn a_revoked_key_cannot_be_registered_anew_and_no_key_changes_its_site() {
        let dir = TempDir::new();
        let store = Store::open(&dir.0.join("state.db")).unwrap();
        let mut key = NewSiteKey {
            spki_sha256: [5; 32],
            spki: b"spki",
            site: "fsn1",
            name: "agent",
            added_at_ms: 10,
        };
        let added = store.add_site_key(&key).unwrap();
        assert_eq!((added.site.as_str(), added.revoked_at_ms), ("fsn1", None));
        assert!(store.revoke_site_key(&[5; 32], 20).unwrap());
        assert!(store.revoke_site_key(&[5; 32], 30).unwrap());
        assert!(!store.revoke_site_key(&[6; 32], 30).unwrap());
        key.site = "hel1";
        let again = store.add_site_key(&key).unwrap();
        assert_eq!(
            (again.site.as_str(), again.revoked_at_ms),
            ("fsn1", Some(20))
        );
        assert_eq!(store.site_keys().unwrap(), [again]);
    }
}
