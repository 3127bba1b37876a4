//! The schema of the control plane's database, version by version.
//!
//! `PRAGMA user_version` says which one a file has. Opening runs what is missing, each step in a
//! transaction of its own; a file of a newer version is refused and left alone. A step is never changed
//! once released: what comes next is a new step.

use rusqlite::{Connection, TransactionBehavior};

use super::StoreError;

/// Step `n` brings a file from version `n` to `n + 1`.
const STEPS: &[&str] = &[
    "
CREATE TABLE tokens (
    id            TEXT PRIMARY KEY,      -- jt_<ulid>
    digest        BLOB NOT NULL,         -- SHA-256 of the whole token; the token itself is kept nowhere
    role          INTEGER NOT NULL,
    pool          TEXT NOT NULL,
    site          TEXT NOT NULL,
    allow_reclaim INTEGER NOT NULL,
    created_at_ms INTEGER NOT NULL,
    expires_at_ms INTEGER NOT NULL,
    revoked_at_ms INTEGER
) STRICT;

-- What a token was redeemed for: kept so that a lost reply can be given again, to the same key only.
CREATE TABLE redemptions (
    token_id       TEXT PRIMARY KEY REFERENCES tokens (id),
    spki_sha256    BLOB NOT NULL,
    node_id        TEXT NOT NULL,
    chain          BLOB NOT NULL,        -- certificates in DER, one after the other, leaf first
    redeemed_at_ms INTEGER NOT NULL,
    until_ms       INTEGER NOT NULL
) STRICT;

-- What was tried with a token that exists. Guesses at tokens are logged, not kept.
CREATE TABLE join_attempts (
    seq         INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms       INTEGER NOT NULL,
    token_id    TEXT NOT NULL,
    spki_sha256 BLOB NOT NULL,
    outcome     TEXT NOT NULL,           -- issued, reissued, refused
    reason      TEXT NOT NULL,
    node_id     TEXT,
    hostname    TEXT NOT NULL,
    address     TEXT NOT NULL
) STRICT;
CREATE INDEX join_attempts_by_token ON join_attempts (token_id);

CREATE TABLE nodes (
    id                   TEXT PRIMARY KEY,   -- node_<ulid>
    role                 INTEGER NOT NULL,
    pool                 TEXT NOT NULL,
    site                 TEXT NOT NULL,
    spki_sha256          BLOB NOT NULL,      -- the key whose certificate opens sessions
    token_id             TEXT NOT NULL,
    joined_at_ms         INTEGER NOT NULL,
    certificate_until_ms INTEGER NOT NULL,
    cordoned             INTEGER NOT NULL DEFAULT 0,
    deleted_at_ms        INTEGER,
    claims               BLOB NOT NULL,      -- HardwareClaims, encoded: what the machine says of itself
    hostname             TEXT NOT NULL,
    state                TEXT NOT NULL,      -- joining, adopting, connected, disconnected
    session_id           TEXT NOT NULL DEFAULT '',
    daemon_version       TEXT NOT NULL,
    boot_id              TEXT NOT NULL DEFAULT '',
    capabilities         TEXT NOT NULL DEFAULT '',
    address              TEXT NOT NULL DEFAULT '',
    last_seen_ms         INTEGER
) STRICT;
CREATE INDEX nodes_by_key ON nodes (spki_sha256);

-- Claimed serials, UUIDs and MACs, to find machines that claim the same. Never an identity.
CREATE TABLE hardware (
    kind    TEXT NOT NULL,
    value   TEXT NOT NULL,
    node_id TEXT NOT NULL REFERENCES nodes (id),
    PRIMARY KEY (kind, value, node_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX hardware_by_node ON hardware (node_id);
",
    "
-- A renewal that was answered and whose key has opened no session yet; all four or none.
ALTER TABLE nodes ADD COLUMN next_spki_sha256   BLOB;
ALTER TABLE nodes ADD COLUMN next_chain         BLOB;
ALTER TABLE nodes ADD COLUMN next_until_ms      INTEGER;
ALTER TABLE nodes ADD COLUMN next_issuer_sha256 BLOB;
-- SHA-256 of the SubjectPublicKeyInfo of the node CA that issued the present certificate.
ALTER TABLE nodes ADD COLUMN issuer_sha256      BLOB;
-- The version of the trust bundle that the node said it holds.
ALTER TABLE nodes ADD COLUMN trust_version      INTEGER NOT NULL DEFAULT 0;

-- What was asked by renewals of nodes that exist.
CREATE TABLE renewals (
    seq         INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms       INTEGER NOT NULL,
    node_id     TEXT NOT NULL,
    spki_sha256 BLOB NOT NULL,           -- of the new key
    outcome     TEXT NOT NULL,           -- issued, reissued, refused
    reason      TEXT NOT NULL,
    address     TEXT NOT NULL
) STRICT;
CREATE INDEX renewals_by_node ON renewals (node_id, spki_sha256);
",
    "
-- A node's journals and how far each is stored.
CREATE TABLE journals (
    id         INTEGER PRIMARY KEY,
    node_id    TEXT NOT NULL,
    journal_id BLOB NOT NULL,            -- 16 bytes
    position   INTEGER NOT NULL,         -- every event up to here is stored, or known to be lost
    UNIQUE (node_id, journal_id)
) STRICT;

CREATE TABLE events (
    number      INTEGER PRIMARY KEY AUTOINCREMENT, -- the order they came in: what a reader follows
    journal     INTEGER NOT NULL,
    sequence    INTEGER NOT NULL,
    node_id     TEXT NOT NULL,
    time_ms     INTEGER NOT NULL,        -- by the node's clock
    received_ms INTEGER NOT NULL,
    kind        TEXT NOT NULL,
    body        BLOB NOT NULL,           -- the Event as it came
    UNIQUE (journal, sequence)
) STRICT;
CREATE INDEX events_by_node ON events (node_id, number);
CREATE INDEX events_by_kind ON events (kind, number);
CREATE INDEX events_by_age ON events (received_ms);

CREATE TABLE commands (
    number          INTEGER PRIMARY KEY AUTOINCREMENT,
    id              TEXT NOT NULL UNIQUE, -- cmd_<ulid>
    node_id         TEXT NOT NULL,
    kind            TEXT NOT NULL,
    params          BLOB NOT NULL,
    deadline_ms     INTEGER NOT NULL,
    created_ms      INTEGER NOT NULL,
    sent_ms         INTEGER,              -- when a session first took it
    state           TEXT NOT NULL,        -- queued, pending, running, succeeded, failed, unsupported
    reason          TEXT NOT NULL DEFAULT '',
    message         TEXT NOT NULL DEFAULT '',
    result          BLOB NOT NULL DEFAULT x'',
    changed_ms      INTEGER NOT NULL,
    finished_ms     INTEGER,
    cancel_order    INTEGER,              -- grows with every cancellation
    output_size     INTEGER,              -- what the node keeps to be fetched
    output_received INTEGER NOT NULL DEFAULT 0,
    output_state    TEXT NOT NULL DEFAULT 'none' -- none, fetching, stored, released, gone, damaged
) STRICT;
CREATE INDEX commands_by_node ON commands (node_id, number);
CREATE INDEX commands_by_state ON commands (state, number);
CREATE INDEX commands_open ON commands (node_id, number) WHERE finished_ms IS NULL;
CREATE INDEX commands_with_output ON commands (node_id, number) WHERE output_state IN ('fetching', 'stored');

CREATE TABLE outputs (
    command INTEGER NOT NULL,            -- commands.number
    start   INTEGER NOT NULL,            -- the piece's offset
    data    BLOB NOT NULL,
    UNIQUE (command, start)
) STRICT;

CREATE TABLE specs (
    node_id    TEXT PRIMARY KEY,
    generation INTEGER NOT NULL,
    envelope   BLOB NOT NULL,            -- Envelope, encoded
    changed_ms INTEGER NOT NULL
) STRICT;

CREATE TABLE spec_sections (
    node_id             TEXT NOT NULL,
    name                TEXT NOT NULL,
    place               INTEGER NOT NULL,
    body                BLOB NOT NULL,
    changed_generation  INTEGER NOT NULL, -- the generation that brought this body
    state               TEXT NOT NULL DEFAULT '', -- as last reported: pending, applied, failed, unsupported
    reason              TEXT NOT NULL DEFAULT '',
    message             TEXT NOT NULL DEFAULT '',
    reported_generation INTEGER NOT NULL DEFAULT 0,
    reported_ms         INTEGER,
    PRIMARY KEY (node_id, name)
) STRICT;

-- What a machine is made of, as it last said.
CREATE TABLE facts (
    node_id     TEXT PRIMARY KEY,
    body        BLOB NOT NULL,           -- Facts, encoded
    time_ms     INTEGER NOT NULL,
    received_ms INTEGER NOT NULL
) STRICT;

-- Grows with every change that a list of nodes shows, whoever makes it: what a watcher follows.
ALTER TABLE nodes ADD COLUMN change INTEGER NOT NULL DEFAULT 0;
CREATE INDEX nodes_by_change ON nodes (change);
CREATE TRIGGER nodes_added AFTER INSERT ON nodes BEGIN
    UPDATE nodes SET change = (SELECT max(change) FROM nodes) + 1 WHERE id = new.id;
END;
CREATE TRIGGER nodes_changed AFTER UPDATE OF
    role, pool, site, certificate_until_ms, cordoned, deleted_at_ms, hostname, state, session_id,
    daemon_version, boot_id, address ON nodes
BEGIN
    UPDATE nodes SET change = (SELECT max(change) FROM nodes) + 1 WHERE id = new.id;
END;
",
    "
-- The boot before `boot_id`, and when a boot last came back after another one: two machines.
ALTER TABLE nodes ADD COLUMN former_boot_id TEXT NOT NULL DEFAULT '';
ALTER TABLE nodes ADD COLUMN shared_ms      INTEGER;
",
    "
-- The machine a token of the attestor discovery is for, 6 bytes; NULL: the attestor join-token.
ALTER TABLE tokens ADD COLUMN mac BLOB;
CREATE INDEX tokens_by_mac ON tokens (mac) WHERE mac IS NOT NULL;

-- Keys whose signature says that a machine boots at a site. Never forgotten: a revoked one stays revoked.
CREATE TABLE site_keys (
    spki_sha256   BLOB PRIMARY KEY,
    spki          BLOB NOT NULL,         -- SubjectPublicKeyInfo, DER
    site          TEXT NOT NULL,
    name          TEXT NOT NULL,         -- what operators call it
    added_at_ms   INTEGER NOT NULL,
    revoked_at_ms INTEGER
) STRICT;
",
    "
-- What may be done to a machine once. Never forgotten: what is spent stays spent.
CREATE TABLE orders (
    id         TEXT PRIMARY KEY,         -- ord_<ulid>
    node_id    TEXT NOT NULL,
    mac        BLOB,                     -- the machine it is for, 6 bytes
    command_id TEXT NOT NULL UNIQUE,
    kind       TEXT NOT NULL,            -- of the command
    made_ms    INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL,
    claim      BLOB,                     -- 16 bytes: which run of the command it went to
    claimed_ms INTEGER
) STRICT;
CREATE INDEX orders_by_mac ON orders (mac);

CREATE TABLE receipts (
    number      INTEGER PRIMARY KEY AUTOINCREMENT,
    order_id    TEXT NOT NULL UNIQUE REFERENCES orders (id),
    received_ms INTEGER NOT NULL,
    body        BLOB NOT NULL            -- SignedReceipt, as it came
) STRICT;
",
    "
-- What the node is shown: a SignedOrder, encoded. An order from before has none, and is not followed.
ALTER TABLE orders ADD COLUMN signed BLOB;
",
    "
-- What an installed system started from, held against the last deploy to its machine.
CREATE TABLE booted (
    node_id  TEXT PRIMARY KEY,
    mac      BLOB NOT NULL,              -- the machine, by the deploy's order
    order_id TEXT NOT NULL,
    verdict  TEXT NOT NULL,
    message  TEXT NOT NULL,
    at_ms    INTEGER NOT NULL
) STRICT;
CREATE INDEX booted_by_mac ON booted (mac, at_ms);
",
    "
-- What joined with the key that a deploy left on its disk: once for each, and again only with the same key.
CREATE TABLE provisioned (
    order_id    TEXT PRIMARY KEY REFERENCES orders (id),
    mac         BLOB,                    -- the machine, 6 bytes: its next OS is the same node
    spki_sha256 BLOB NOT NULL,
    node_id     TEXT NOT NULL,
    chain       BLOB NOT NULL,           -- certificates in DER, one after the other, leaf first
    joined_ms   INTEGER NOT NULL,
    until_ms    INTEGER NOT NULL
) STRICT;
CREATE INDEX provisioned_by_mac ON provisioned (mac);
",
];

/// The version this program writes.
pub const VERSION: i64 = STEPS.len() as i64;

/// Brings the file behind `connection` to [`VERSION`].
pub fn migrate(connection: &mut Connection) -> Result<(), StoreError> {
    loop {
        // Read inside the transaction: two threads of one process may open the file together.
        let step = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let found: i64 = step.pragma_query_value(None, "user_version", |row| row.get(0))?;
        if found == VERSION {
            return Ok(());
        }
        let sql = usize::try_from(found)
            .ok()
            .and_then(|index| STEPS.get(index))
            .ok_or(StoreError::NewerSchema {
                found,
                known: VERSION,
            })?;
        step.execute_batch(sql)?;
        step.pragma_update(None, "user_version", found + 1)?;
        step.commit()?;
    }
}
