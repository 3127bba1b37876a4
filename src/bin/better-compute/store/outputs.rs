//! What commands put out, fetched from the nodes piece by piece.
//!
//! A piece and how much is stored are one transaction: what is asked for next is never more than one
//! piece away from what is on the disk.

use bcd::crypto::digest;
use bcd::proto::LogsCollectResult;
use proto_gen::codec::Message;
use rusqlite::{OptionalExtension, params};

use super::{Store, StoreError};

/// An output that is not stored whole yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetch {
    /// The command's number and id.
    pub command: i64,
    pub id: String,
    pub size: u64,
    pub received: u64,
}

/// How an output stands after a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// Stored up to here.
    Part(u64),
    /// All of it is stored, and it is what the node said it is.
    Whole,
    /// All of it came, and it is not what the node said: nothing of it is kept.
    Damaged,
    /// It is not being fetched, or not from there.
    Unwanted,
}

impl Store {
    /// The node's next output to fetch.
    pub fn next_fetch(&self, node_id: &str) -> Result<Option<Fetch>, StoreError> {
        let mut statement = self.connection.prepare_cached(
            "SELECT number, id, output_size, output_received FROM commands \
             WHERE node_id = ?1 AND output_state = 'fetching' ORDER BY number LIMIT 1",
        )?;
        Ok(statement
            .query_row([node_id], |row| {
                Ok(Fetch {
                    command: row.get(0)?,
                    id: row.get(1)?,
                    size: row.get::<_, i64>(2)?.unsigned_abs(),
                    received: row.get::<_, i64>(3)?.unsigned_abs(),
                })
            })
            .optional()?)
    }

    /// Keeps a piece, inside a transaction.
    pub fn keep_output(&self, command: i64, start: u64, data: &[u8]) -> Result<Kept, StoreError> {
        let known = self
            .connection
            .prepare_cached(
                "SELECT output_size, output_received, result FROM commands \
                 WHERE number = ?1 AND output_state = 'fetching'",
            )?
            .query_row([command], |row| {
                Ok((
                    row.get::<_, i64>(0)?,
                    row.get::<_, i64>(1)?,
                    row.get::<_, Vec<u8>>(2)?,
                ))
            })
            .optional()?;
        let Some((size, received, result)) = known else {
            return Ok(Kept::Unwanted);
        };
        let end = received + i64::try_from(data.len()).unwrap_or(i64::MAX - received);
        if received.unsigned_abs() != start || end > size || data.is_empty() {
            return Ok(Kept::Unwanted);
        }
        self.connection
            .prepare_cached("INSERT INTO outputs (command, start, data) VALUES (?1, ?2, ?3)")?
            .execute(params![command, received, data])?;
        let (kept, state) = match end == size {
            false => (Kept::Part(end.unsigned_abs()), "fetching"),
            true if self.output_holds(command, &result)? => (Kept::Whole, "stored"),
            true => {
                self.connection
                    .execute("DELETE FROM outputs WHERE command = ?1", [command])?;
                (Kept::Damaged, "damaged")
            }
        };
        let received = match kept {
            Kept::Damaged => 0,
            _ => end,
        };
        self.connection
            .prepare_cached(
                "UPDATE commands SET output_received = ?2, output_state = ?3 WHERE number = ?1",
            )?
            .execute(params![command, received, state])?;
        Ok(kept)
    }

    fn output_holds(&self, command: i64, result: &[u8]) -> Result<bool, StoreError> {
        let promised = LogsCollectResult::decode(result).unwrap_or_default().sha256;
        let mut hasher = digest::Sha256::new();
        let mut statement = self
            .connection
            .prepare_cached("SELECT data FROM outputs WHERE command = ?1 ORDER BY start")?;
        let mut rows = statement.query([command])?;
        while let Some(row) = rows.next()? {
            hasher.update(row.get_ref(0)?.as_blob().unwrap_or_default());
        }
        Ok(hasher.finish().as_slice() == promised)
    }

    /// The node has this output no more.
    pub fn output_gone(&self, command: i64) -> Result<(), StoreError> {
        self.connection
            .prepare_cached(
                "UPDATE commands SET output_state = 'gone' \
                 WHERE number = ?1 AND output_state = 'fetching'",
            )?
            .execute([command])?;
        Ok(())
    }

    /// Outputs of a node that are stored here and may be deleted there: numbers and ids.
    pub fn to_release(&self, node_id: &str, after: i64) -> Result<Vec<(i64, String)>, StoreError> {
        let mut statement = self.connection.prepare_cached(
            "SELECT number, id FROM commands WHERE node_id = ?1 AND number > ?2 \
             AND output_state = 'stored' ORDER BY number LIMIT 16",
        )?;
        let rows = statement.query_map(params![node_id, after], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// The node has heard that it may delete this output.
    pub fn output_released(&self, command: i64) -> Result<(), StoreError> {
        self.connection
            .prepare_cached(
                "UPDATE commands SET output_state = 'released' \
                 WHERE number = ?1 AND output_state = 'stored'",
            )?
            .execute([command])?;
        Ok(())
    }

    /// The stored piece that holds this offset, from there on; empty at the end of what is stored.
    pub fn output(&self, command: i64, offset: u64) -> Result<Vec<u8>, StoreError> {
        let offset = i64::try_from(offset).unwrap_or(i64::MAX);
        let piece = self
            .connection
            .prepare_cached(
                "SELECT start, data FROM outputs WHERE command = ?1 AND start <= ?2 \
                 ORDER BY start DESC LIMIT 1",
            )?
            .query_row(params![command, offset], |row| {
                Ok((row.get::<_, i64>(0)?, row.get::<_, Vec<u8>>(1)?))
            })
            .optional()?;
        let Some((start, mut data)) = piece else {
            return Ok(Vec::new());
        };
        let skip = usize::try_from(offset - start).unwrap_or(usize::MAX);
        data.drain(..skip.min(data.len()));
        Ok(data)
    }
}
