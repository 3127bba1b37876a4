//! Commands: what a node is to do once, from the operator's word to the node's result.
//!
//! A command's state moves with the node's reports, in the transaction that stores them, and only
//! forward: a final state stays. What no node has been sent can be ended here; everything else only the
//! node ends.

use bcd::proto::{CommandState, CommandUpdate, LogsCollectResult};
use bcd::sys::log::cut;
use proto_gen::codec::Message;
use rusqlite::{OptionalExtension, Row, params};

use super::{Store, StoreError};

/// Commands of a node that are not over, at once.
pub const OPEN_MAX: i64 = 256;
/// The newest commands of a node that are kept once they are over.
const KEPT_PER_NODE: i64 = 1_000;
/// Bytes of an output that is fetched.
pub const OUTPUT_MAX: u64 = 16 * 1024 * 1024;
const REASON_MAX: usize = 64;
const MESSAGE_MAX: usize = 1024;

/// What is known of a command's way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Stored here; the node has not said that it has it.
    Queued,
    Pending,
    Running,
    Succeeded,
    Failed,
    Unsupported,
}

impl Stage {
    const ALL: [Self; 6] = [
        Self::Queued,
        Self::Pending,
        Self::Running,
        Self::Succeeded,
        Self::Failed,
        Self::Unsupported,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Unsupported => "unsupported",
        }
    }

    fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|stage| stage.name() == name)
    }

    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Unsupported)
    }

    /// The stage after a node's report; `None` when it changes nothing.
    fn after(self, report: CommandState) -> Option<Self> {
        let next = match report {
            CommandState::PENDING => Self::Pending,
            CommandState::RUNNING => Self::Running,
            CommandState::SUCCEEDED => Self::Succeeded,
            CommandState::FAILED => Self::Failed,
            CommandState::UNSUPPORTED => Self::Unsupported,
            _ => return None,
        };
        let forward = match (self, next) {
            (Self::Queued, _) => true,
            (Self::Pending, next) => next != Self::Pending,
            (Self::Running, next) => next.is_final(),
            _ => false,
        };
        forward.then_some(next)
    }
}

/// A command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// The order they were made in.
    pub number: i64,
    pub id: String,
    pub node_id: String,
    pub kind: String,
    pub params: Vec<u8>,
    pub deadline_ms: i64,
    pub created_ms: i64,
    /// When a session first took it.
    pub sent_ms: Option<i64>,
    pub stage: Stage,
    pub reason: String,
    pub message: String,
    /// The kind's result message, encoded.
    pub result: Vec<u8>,
    pub changed_ms: i64,
    pub finished_ms: Option<i64>,
    pub cancelled: bool,
    pub output_size: Option<i64>,
    pub output_received: i64,
    /// `none`, `fetching`, `stored`, `released`, `gone` or `damaged`.
    pub output_state: String,
    /// The `SignedOrder` it stands on, encoded.
    pub order: Option<Vec<u8>>,
}

impl Command {
    /// Its state as an operator is shown it: a command that was never sent and is past its deadline will
    /// not start any more, whether or not the records say so yet.
    pub fn state(&self, now_ms: i64) -> &'static str {
        match (self.stage, self.sent_ms) {
            (Stage::Queued, None) if self.is_expired(now_ms) => Stage::Failed.name(),
            (Stage::Queued, Some(_)) => "sent",
            (stage, _) => stage.name(),
        }
    }

    /// The word for programs beside a final state.
    pub fn reason(&self, now_ms: i64) -> &str {
        match (self.stage, self.sent_ms) {
            (Stage::Queued, None) if self.is_expired(now_ms) => EXPIRED.0,
            _ => &self.reason,
        }
    }

    /// The sentence for people.
    pub fn message(&self, now_ms: i64) -> &str {
        match (self.stage, self.sent_ms) {
            (Stage::Queued, None) if self.is_expired(now_ms) => EXPIRED.1,
            (Stage::Queued, Some(_)) if self.is_expired(now_ms) => {
                "it was sent, its deadline has passed, and the node has not said what became of it"
            }
            (Stage::Queued | Stage::Pending | Stage::Running, _) if self.cancelled => {
                "its cancellation was asked for"
            }
            _ => &self.message,
        }
    }

    /// Whether nothing more will be heard of it.
    pub fn is_over(&self, now_ms: i64) -> bool {
        self.stage.is_final()
            || (self.stage == Stage::Queued && self.sent_ms.is_none() && self.is_expired(now_ms))
    }

    pub fn is_expired(&self, now_ms: i64) -> bool {
        self.deadline_ms <= now_ms
    }
}

/// Reason and message of a command that nobody sent in time.
const EXPIRED: (&str, &str) = (
    "DeadlineExceeded",
    "the node had no session before the command's deadline",
);

/// A command to be made.
#[derive(Debug, Clone)]
pub struct NewCommand {
    pub id: String,
    pub node_id: String,
    pub kind: String,
    pub params: Vec<u8>,
    pub deadline_ms: i64,
    pub created_ms: i64,
}

/// What became of a command that was to be made.
#[derive(Debug, PartialEq, Eq)]
pub enum Added {
    Made,
    /// The same command was made before.
    Again,
    /// Another command has this id.
    OtherHasId,
    NoNode,
    /// The node has its fill of commands that are not over.
    TooMany,
}

/// What became of a cancellation.
#[derive(Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// Nobody was sent it: it is over.
    Ended,
    /// The node is asked.
    Asked,
    /// It was over already.
    Over,
    NoCommand,
}

/// Which commands are asked for.
#[derive(Debug, Clone, Default)]
pub struct CommandsAsked {
    pub node_id: Option<String>,
    /// A state as [`Command::state`] has it.
    pub state: Option<String>,
    /// Only those made before the one with this number.
    pub before: Option<i64>,
    pub limit: u32,
}

/// Frames that a session owes its node, beside the spec.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Due {
    pub commands: Vec<Command>,
    /// The order of each cancellation, and the command's id.
    pub cancels: Vec<(i64, String)>,
    /// There may be more than these.
    pub more: bool,
}

const COLUMNS: &str = "SELECT number, id, node_id, kind, params, deadline_ms, created_ms, sent_ms, state, \
     reason, message, result, changed_ms, finished_ms, cancel_order IS NOT NULL, output_size, \
     output_received, output_state, \
     (SELECT signed FROM orders WHERE command_id = commands.id) FROM commands";

fn command(row: &Row<'_>) -> rusqlite::Result<Command> {
    let stage: String = row.get(8)?;
    Ok(Command {
        number: row.get(0)?,
        id: row.get(1)?,
        node_id: row.get(2)?,
        kind: row.get(3)?,
        params: row.get(4)?,
        deadline_ms: row.get(5)?,
        created_ms: row.get(6)?,
        sent_ms: row.get(7)?,
        stage: Stage::parse(&stage).unwrap_or(Stage::Failed),
        reason: row.get(9)?,
        message: row.get(10)?,
        result: row.get(11)?,
        changed_ms: row.get(12)?,
        finished_ms: row.get(13)?,
        cancelled: row.get(14)?,
        output_size: row.get(15)?,
        output_received: row.get(16)?,
        output_state: row.get(17)?,
        order: row.get(18)?,
    })
}

impl Store {
    /// Makes a command, inside a transaction.
    pub fn add_command(&self, new: &NewCommand) -> Result<Added, StoreError> {
        if let Some(known) = self.command(&new.id)? {
            let same = known.node_id == new.node_id
                && known.kind == new.kind
                && known.params == new.params;
            return Ok(if same {
                Added::Again
            } else {
                Added::OtherHasId
            });
        }
        if self.node(&new.node_id)?.is_none_or(|node| node.deleted) {
            return Ok(Added::NoNode);
        }
        let open: i64 = self
            .connection
            .prepare_cached(
                "SELECT count(*) FROM commands WHERE node_id = ?1 AND finished_ms IS NULL \
                 AND (deadline_ms > ?2 OR state <> 'queued')",
            )?
            .query_row(params![new.node_id, new.created_ms], |row| row.get(0))?;
        if open >= OPEN_MAX {
            return Ok(Added::TooMany);
        }
        self.connection
            .prepare_cached(
                "INSERT INTO commands (id, node_id, kind, params, deadline_ms, created_ms, state, changed_ms) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, 'queued', ?6)",
            )?
            .execute(params![
                new.id,
                new.node_id,
                new.kind,
                new.params,
                new.deadline_ms,
                new.created_ms
            ])?;
        self.prune_commands(&new.node_id, new.created_ms)?;
        Ok(Added::Made)
    }

    fn prune_commands(&self, node_id: &str, now_ms: i64) -> Result<(), StoreError> {
        let floor: Option<i64> = self
            .connection
            .prepare_cached(
                "SELECT number FROM commands WHERE node_id = ?1 ORDER BY number DESC LIMIT 1 OFFSET ?2",
            )?
            .query_row(params![node_id, KEPT_PER_NODE], |row| row.get(0))
            .optional()?;
        let Some(floor) = floor else {
            return Ok(());
        };
        let over =
            "node_id = ?1 AND number <= ?2 AND (finished_ms IS NOT NULL OR deadline_ms <= ?3)";
        self.connection.execute(
            &format!(
                "DELETE FROM outputs WHERE command IN (SELECT number FROM commands WHERE {over})"
            ),
            params![node_id, floor, now_ms],
        )?;
        self.connection.execute(
            &format!("DELETE FROM commands WHERE {over}"),
            params![node_id, floor, now_ms],
        )?;
        Ok(())
    }

    /// The command with this id.
    pub fn command(&self, id: &str) -> Result<Option<Command>, StoreError> {
        let sql = format!("{COLUMNS} WHERE id = ?1");
        let mut statement = self.connection.prepare_cached(&sql)?;
        Ok(statement.query_row([id], command).optional()?)
    }

    /// Commands, the newest first.
    pub fn commands(&self, asked: &CommandsAsked, now_ms: i64) -> Result<Vec<Command>, StoreError> {
        let by_node = match asked.node_id {
            Some(_) => "node_id = ?1",
            None => "?1 IS NULL",
        };
        let by_state = match asked.state.as_deref() {
            None => "?2 IS NULL AND ?3 = ?3",
            Some("queued") => {
                "?2 = ?2 AND state = 'queued' AND sent_ms IS NULL AND deadline_ms > ?3"
            }
            Some("sent") => "?2 = ?2 AND ?3 = ?3 AND state = 'queued' AND sent_ms IS NOT NULL",
            Some("failed") => {
                "?2 = ?2 AND (state = 'failed' \
                 OR (state = 'queued' AND sent_ms IS NULL AND deadline_ms <= ?3))"
            }
            Some(_) => "state = ?2 AND ?3 = ?3",
        };
        let sql = format!(
            "{COLUMNS} WHERE {by_node} AND {by_state} AND number < ?4 ORDER BY number DESC LIMIT ?5"
        );
        let mut statement = self.connection.prepare_cached(&sql)?;
        let rows = statement.query_map(
            params![
                asked.node_id,
                asked.state,
                now_ms,
                asked.before.unwrap_or(i64::MAX),
                asked.limit
            ],
            command,
        )?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// The commands and cancellations that a session owes its node after these, and notes that they
    /// leave now. A command goes out until the node has reported on it; never past its deadline, and
    /// never once it is cancelled.
    pub fn due(
        &self,
        node_id: &str,
        after: (i64, i64),
        kind: Option<&str>,
        limit: u32,
        now_ms: i64,
    ) -> Result<Due, StoreError> {
        let sql = format!(
            "{COLUMNS} WHERE node_id = ?1 AND finished_ms IS NULL AND state = 'queued' \
                 AND cancel_order IS NULL AND number > ?2 AND deadline_ms > ?3 \
                 AND (?4 IS NULL OR kind = ?4) ORDER BY number LIMIT ?5"
        );
        let mut statement = self.connection.prepare_cached(&sql)?;
        let commands: Vec<Command> = statement
            .query_map(params![node_id, after.0, now_ms, kind, limit], command)?
            .collect::<Result<_, _>>()?;
        for command in commands.iter().filter(|command| command.sent_ms.is_none()) {
            self.connection
                .prepare_cached(
                    "UPDATE commands SET sent_ms = ?2, changed_ms = ?2 WHERE number = ?1",
                )?
                .execute(params![command.number, now_ms])?;
        }
        let cancels: Vec<(i64, String)> = self
            .connection
            .prepare_cached(
                "SELECT cancel_order, id FROM commands WHERE node_id = ?1 AND finished_ms IS NULL \
                 AND cancel_order > ?2 ORDER BY cancel_order LIMIT ?3",
            )?
            .query_map(params![node_id, after.1, limit], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?
            .collect::<Result<_, _>>()?;
        let limit = limit as usize;
        Ok(Due {
            more: commands.len() == limit || cancels.len() == limit,
            commands,
            cancels,
        })
    }

    /// Cancels a command, inside a transaction.
    pub fn cancel_command(&self, id: &str, now_ms: i64) -> Result<Cancelled, StoreError> {
        let Some(command) = self.command(id)? else {
            return Ok(Cancelled::NoCommand);
        };
        if command.is_over(now_ms) {
            return Ok(Cancelled::Over);
        }
        if command.stage == Stage::Queued && command.sent_ms.is_none() {
            self.end(
                command.number,
                ("Cancelled", "it was cancelled before it was sent"),
                now_ms,
            )?;
            return Ok(Cancelled::Ended);
        }
        if !command.cancelled {
            self.connection
                .prepare_cached(
                    "UPDATE commands SET changed_ms = ?2, cancel_order = \
                         (SELECT coalesce(max(cancel_order), 0) + 1 FROM commands WHERE node_id = ?3) \
                     WHERE number = ?1",
                )?
                .execute(params![command.number, now_ms, command.node_id])?;
        }
        Ok(Cancelled::Asked)
    }

    /// Ends, as failed, commands that nobody was sent before their deadline; at most `limit`.
    pub fn expire_commands(&self, now_ms: i64, limit: u32) -> Result<usize, StoreError> {
        let expired: Vec<i64> = self
            .connection
            .prepare_cached(
                "SELECT number FROM commands WHERE finished_ms IS NULL AND state = 'queued' \
                 AND sent_ms IS NULL AND deadline_ms <= ?1 LIMIT ?2",
            )?
            .query_map(params![now_ms, limit], |row| row.get(0))?
            .collect::<Result<_, _>>()?;
        for number in &expired {
            self.end(*number, EXPIRED, now_ms)?;
        }
        Ok(expired.len())
    }

    fn end(&self, number: i64, why: (&str, &str), now_ms: i64) -> Result<(), StoreError> {
        self.connection
            .prepare_cached(
                "UPDATE commands SET state = 'failed', reason = ?2, message = ?3, changed_ms = ?4, \
                 finished_ms = ?4 WHERE number = ?1",
            )?
            .execute(params![number, why.0, why.1, now_ms])?;
        Ok(())
    }

    /// Takes down what a node reports of a command; `false` when the node has no such command.
    pub fn note_update(
        &self,
        node_id: &str,
        update: &CommandUpdate,
        now_ms: i64,
    ) -> Result<bool, StoreError> {
        let known = match self.command(&update.id)? {
            Some(command) if command.node_id == node_id => command,
            _ => return Ok(false),
        };
        let Some(stage) = known.stage.after(update.state) else {
            return Ok(true);
        };
        let output = output_of(&known.kind, stage, &update.result);
        self.connection
            .prepare_cached(
                "UPDATE commands SET state = ?2, reason = ?3, message = ?4, result = ?5, changed_ms = ?6, \
                 finished_ms = ?7, output_size = ?8, output_state = ?9, \
                 sent_ms = coalesce(sent_ms, ?6) WHERE number = ?1",
            )?
            .execute(params![
                known.number,
                stage.name(),
                cut(&update.reason, REASON_MAX),
                cut(&update.message, MESSAGE_MAX),
                update.result,
                now_ms,
                stage.is_final().then_some(now_ms),
                output,
                if output.is_some() { "fetching" } else { "none" },
            ])?;
        Ok(true)
    }
}

/// The size of what a node keeps to be fetched after this report.
fn output_of(kind: &str, stage: Stage, result: &[u8]) -> Option<i64> {
    if kind != "logs.collect" || !stage.is_final() {
        return None;
    }
    let result = LogsCollectResult::decode(result).ok()?;
    let fits = (1..=OUTPUT_MAX).contains(&result.size) && result.sha256.len() == 32;
    fits.then(|| result.size.cast_signed())
}

#[cfg(test)]
mod tests;
