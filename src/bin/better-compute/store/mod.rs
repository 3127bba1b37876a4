//! The control plane's durable state: one SQLite file.
//!
//! Promises: what a method has returned `Ok` for survives `kill -9` and a power cut (write-ahead log,
//! `synchronous=FULL`: the commit is on the disk before the call returns); a redemption, its node and
//! its record are one transaction; a secret never enters the file, only its digest. Each thread opens a
//! [`Store`] of its own; transactions are written in the order their threads came.

mod booted;
mod commands;
mod events;
mod machines;
mod nodes;
mod orders;
mod outputs;
mod provisioned;
mod renewals;
mod schema;
mod sites;
mod specs;
mod tokens;
mod turn;

use std::error::Error;
use std::fmt;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

pub use self::booted::Booted;
pub use self::commands::{Added, Cancelled, Command, CommandsAsked, Due, NewCommand, OPEN_MAX};
pub use self::events::{
    DIAG_REPORT, EVENTS_PER_NODE, EventsAsked, Incoming, KINDS as EVENT_KINDS, MISSING, StoredEvent,
};
pub use self::machines::Machine;
#[cfg(test)]
pub use self::nodes::tests::joined as node_for_tests;
pub use self::nodes::{Duplicate, Node, SessionFacts, State};
pub use self::orders::{Receipt, ReceiptsAsked};
pub use self::outputs::{Fetch, Kept};
pub use self::provisioned::Deployed;
pub use self::renewals::{Behind, Issued, Laggards, Renewal};
pub use self::sites::{NewSiteKey, SiteKey};
pub use self::specs::{NAME_MAX, SECTIONS_MAX, SPEC_BYTES_MAX, Section, Spec};
pub use self::tokens::{Attempt, NewToken, Redemption, Token};

/// How long a writer waits for another one.
const BUSY: Duration = Duration::from_secs(10);

/// Statements that stay prepared: more than there are.
const STATEMENTS: usize = 256;

/// An open database.
pub struct Store {
    connection: Connection,
}

/// Why the database could not be used.
#[derive(Debug)]
pub enum StoreError {
    /// The file was written by a newer version of this program.
    NewerSchema {
        found: i64,
        known: i64,
    },
    /// A row holds what no version of this program writes.
    Damaged(&'static str),
    Sqlite(rusqlite::Error),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NewerSchema { found, known } => write!(
                f,
                "the database has schema {found}, this better-compute knows {known}: start the newer version again"
            ),
            Self::Damaged(what) => write!(
                f,
                "the database is damaged ({what}): restore it from a backup"
            ),
            Self::Sqlite(_) => write!(f, "the database failed"),
        }
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Sqlite(error) => Some(error),
            _ => None,
        }
    }
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl Store {
    /// Opens the database at `path`, creating it with mode 0600 or bringing an older one up to date.
    ///
    /// # Errors
    /// [`StoreError::NewerSchema`] for a file of a later version, else what SQLite says.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        // SQLite gives the log and the shared memory the mode of the database.
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create(true).truncate(false);
        options.mode(0o600);
        // SQLite would wait for a FIFO in the database's place for ever.
        options.custom_flags(libc::O_NONBLOCK);
        let regular = options.open(path).and_then(|file| {
            let regular = file.metadata()?.is_file();
            regular.then_some(()).ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")
            })
        });
        regular.map_err(|error| {
            rusqlite::Error::SqliteFailure(
                rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CANTOPEN),
                Some(format!("{}: {error}", path.display())),
            )
        })?;
        let connection = Connection::open_with_flags(
            path,
            OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX,
        )?;
        connection.busy_timeout(BUSY)?;
        // A file that lost its end opens as if nothing were wrong, and fails at some later query.
        let found: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
        if found != "ok" {
            return Err(rusqlite::Error::SqliteFailure(
                rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT),
                Some(format!("it is damaged: {found}; put a copy of it back")),
            )
            .into());
        }
        Self::set_up(connection)
    }

    fn set_up(mut connection: Connection) -> Result<Self, StoreError> {
        connection.busy_timeout(BUSY)?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS);
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.pragma_update(None, "synchronous", "full")?;
        connection.pragma_update(None, "foreign_keys", true)?;
        schema::migrate(&mut connection)?;
        Ok(Self { connection })
    }

    /// Runs `work` as one transaction: all of what it wrote is durable when this returns `Ok`, none of
    /// it otherwise.
    pub fn together<T>(
        &mut self,
        work: impl FnOnce(&Store) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let _turn = turn::take();
        self.connection.execute_batch("BEGIN IMMEDIATE")?;
        match work(self).and_then(|value| {
            self.connection.execute_batch("COMMIT")?;
            Ok(value)
        }) {
            Ok(value) => Ok(value),
            Err(error) => {
                // After a failed COMMIT the transaction may already be gone.
                let _ = self.connection.execute_batch("ROLLBACK");
                Err(error)
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A directory of its own for one test, removed at its end.
    pub struct TempDir(pub std::path::PathBuf);

    impl TempDir {
        pub fn new() -> Self {
            let path = std::env::temp_dir().join(crate::ids::new("better-compute-test", 0));
            std::fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for TempDir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_database_of_a_newer_version_is_refused_and_left_alone() {
        let dir = TempDir::new();
        let path = dir.0.join("state.db");
        drop(Store::open(&path).unwrap());
        let raw = Connection::open(&path).unwrap();
        raw.pragma_update(None, "user_version", schema::VERSION + 1)
            .unwrap();
        drop(raw);
        let error = Store::open(&path).err().unwrap();
        assert!(matches!(error, StoreError::NewerSchema { .. }), "{error}");
    }

    /// A database that version 0.1.0 wrote: a node that joined and was cordoned, three tokens.
    #[test]
    fn a_database_of_the_first_version_is_brought_up_to_date_with_all_it_holds() {
        let dir = TempDir::new();
        let path = dir.0.join("state.db");
        std::fs::write(&path, include_bytes!("frozen/schema1.db")).unwrap();
        let store = Store::open(&path).unwrap();
        let nodes = store.nodes().unwrap();
        assert_eq!(nodes.len(), 1);
        let node = &nodes[0];
        assert_eq!(node.id, "node_01m8mjh3yv0q9406p465vrsfq0");
        assert!(node.cordoned);
        assert_eq!(node.state, State::Disconnected);
        let tokens = store.tokens().unwrap();
        assert_eq!(tokens.len(), 3);
        assert!(tokens.iter().all(|token| token.mac.is_none()));
        let redemption = store.redemption(&node.token_id).unwrap().unwrap();
        assert_eq!(redemption.spki_sha256, node.spki_sha256);
        assert_eq!(store.journal_position(&node.id, &[1; 16]).unwrap(), 0);
        let version: i64 = store
            .connection
            .pragma_query_value(None, "user_version", |row| row.get(0))
            .unwrap();
        assert_eq!(version, schema::VERSION);
    }

    #[test]
    fn the_database_is_its_owners_alone_and_every_commit_is_synced() {
        use std::os::unix::fs::PermissionsExt;
        let dir = TempDir::new();
        let path = dir.0.join("state.db");
        let store = Store::open(&path).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let pragma = |name: &str| {
            store
                .connection
                .pragma_query_value(None, name, |row| row.get::<_, rusqlite::types::Value>(0))
                .unwrap()
        };
        assert_eq!(pragma("synchronous"), rusqlite::types::Value::Integer(2));
        assert_eq!(
            pragma("journal_mode"),
            rusqlite::types::Value::Text("wal".to_owned())
        );
    }
}
