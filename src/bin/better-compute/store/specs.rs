//! Specs: what each node is to be, signed, and what it says of each section.

use bcd::proto::{SectionState, SectionStatus};
use bcd::sys::log::cut;
use rusqlite::{OptionalExtension, params};

use super::{Store, StoreError};

/// Sections of a spec, and bytes of all their bodies: a spec fits in a frame.
pub const SECTIONS_MAX: usize = 256;
pub const SPEC_BYTES_MAX: usize = 512 * 1024;
pub const NAME_MAX: usize = 64;
const REASON_MAX: usize = 64;
const MESSAGE_MAX: usize = 1024;

/// A section.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Section {
    pub name: String,
    pub body: Vec<u8>,
    /// The generation that brought this body.
    pub changed_generation: u64,
    /// As last reported: `pending`, `applied`, `failed`, `unsupported`, or empty.
    pub state: String,
    pub reason: String,
    pub message: String,
    /// The generation it was reported for.
    pub reported_generation: u64,
    pub reported_ms: Option<i64>,
}

/// A node's spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    pub generation: u64,
    /// The signed envelope, encoded.
    pub envelope: Vec<u8>,
    pub changed_ms: i64,
    /// In the order they are applied.
    pub sections: Vec<Section>,
}

/// The name of a state, as operators see it.
fn state_name(state: SectionState) -> Option<&'static str> {
    match state {
        SectionState::PENDING => Some("pending"),
        SectionState::APPLIED => Some("applied"),
        SectionState::FAILED => Some("failed"),
        SectionState::UNSUPPORTED => Some("unsupported"),
        _ => None,
    }
}

impl Store {
    /// A node's spec, if it has one.
    pub fn spec(&self, node_id: &str) -> Result<Option<Spec>, StoreError> {
        let head = self
            .connection
            .prepare_cached(
                "SELECT generation, envelope, changed_ms FROM specs WHERE node_id = ?1",
            )?
            .query_row([node_id], |row| {
                Ok((row.get::<_, i64>(0)?, row.get(1)?, row.get(2)?))
            })
            .optional()?;
        let Some((generation, envelope, changed_ms)) = head else {
            return Ok(None);
        };
        let mut statement = self.connection.prepare_cached(
            "SELECT name, body, changed_generation, state, reason, message, reported_generation, reported_ms \
             FROM spec_sections WHERE node_id = ?1 ORDER BY place",
        )?;
        let rows = statement.query_map([node_id], |row| {
            Ok(Section {
                name: row.get(0)?,
                body: row.get(1)?,
                changed_generation: row.get::<_, i64>(2)?.unsigned_abs(),
                state: row.get(3)?,
                reason: row.get(4)?,
                message: row.get(5)?,
                reported_generation: row.get::<_, i64>(6)?.unsigned_abs(),
                reported_ms: row.get(7)?,
            })
        })?;
        Ok(Some(Spec {
            generation: generation.unsigned_abs(),
            envelope,
            changed_ms,
            sections: rows.collect::<Result<_, _>>()?,
        }))
    }

    /// Generation and envelope of a spec above `held`.
    pub fn newer_spec(
        &self,
        node_id: &str,
        held: u64,
    ) -> Result<Option<(u64, Vec<u8>)>, StoreError> {
        let mut statement = self.connection.prepare_cached(
            "SELECT generation, envelope FROM specs WHERE node_id = ?1 AND generation > ?2",
        )?;
        let held = i64::try_from(held).unwrap_or(i64::MAX);
        Ok(statement
            .query_row(params![node_id, held], |row| {
                Ok((row.get::<_, i64>(0)?.unsigned_abs(), row.get(1)?))
            })
            .optional()?)
    }

    /// Puts a node's spec in place of the one of generation `before` (0: of none), inside a transaction;
    /// `false` when that is not the one in force any more. What was reported of a section stays with it.
    pub fn set_spec(&self, node_id: &str, before: u64, spec: &Spec) -> Result<bool, StoreError> {
        let now = self
            .newer_spec(node_id, 0)?
            .map_or(0, |(generation, _)| generation);
        if now != before || spec.generation <= before {
            return Ok(false);
        }
        self.connection
            .prepare_cached(
                "INSERT INTO specs (node_id, generation, envelope, changed_ms) VALUES (?1, ?2, ?3, ?4) \
                 ON CONFLICT (node_id) DO UPDATE SET generation = excluded.generation, \
                     envelope = excluded.envelope, changed_ms = excluded.changed_ms",
            )?
            .execute(params![
                node_id,
                spec.generation.cast_signed(),
                spec.envelope,
                spec.changed_ms
            ])?;
        self.connection
            .execute("DELETE FROM spec_sections WHERE node_id = ?1", [node_id])?;
        let mut insert = self.connection.prepare_cached(
            "INSERT INTO spec_sections (node_id, name, place, body, changed_generation, state, reason, \
                 message, reported_generation, reported_ms) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
        )?;
        for (place, section) in spec.sections.iter().enumerate() {
            insert.execute(params![
                node_id,
                section.name,
                i64::try_from(place).unwrap_or(i64::MAX),
                section.body,
                section.changed_generation.cast_signed(),
                section.state,
                section.reason,
                section.message,
                section.reported_generation.cast_signed(),
                section.reported_ms
            ])?;
        }
        Ok(true)
    }

    /// Node, generation and envelope of the specs behind this node's, at most `limit`.
    pub fn envelopes(
        &self,
        after: &str,
        limit: u32,
    ) -> Result<Vec<(String, u64, Vec<u8>)>, StoreError> {
        let mut statement = self.connection.prepare_cached(
            "SELECT node_id, generation, envelope FROM specs WHERE node_id > ?1 ORDER BY node_id LIMIT ?2",
        )?;
        let rows = statement.query_map(params![after, limit], |row| {
            Ok((
                row.get(0)?,
                row.get::<_, i64>(1)?.unsigned_abs(),
                row.get(2)?,
            ))
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// The same spec, signed with another key.
    pub fn set_envelope(
        &self,
        node_id: &str,
        generation: u64,
        envelope: &[u8],
    ) -> Result<(), StoreError> {
        self.connection
            .prepare_cached(
                "UPDATE specs SET envelope = ?3 WHERE node_id = ?1 AND generation = ?2",
            )?
            .execute(params![node_id, generation.cast_signed(), envelope])?;
        Ok(())
    }

    /// Takes down what a node reports of a section. A report on an older generation than the last one, or
    /// on a section that is not in the spec, changes nothing.
    pub fn note_section(
        &self,
        node_id: &str,
        status: &SectionStatus,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        let (Some(state), Ok(generation)) =
            (state_name(status.state), i64::try_from(status.generation))
        else {
            return Ok(());
        };
        self.connection
            .prepare_cached(
                "UPDATE spec_sections SET state = ?3, reason = ?4, message = ?5, reported_generation = ?6, \
                     reported_ms = ?7 \
                 WHERE node_id = ?1 AND name = ?2 AND reported_generation <= ?6 \
                     AND ?6 <= (SELECT generation FROM specs WHERE node_id = ?1)",
            )?
            .execute(params![
                node_id,
                status.section,
                state,
                cut(&status.reason, REASON_MAX),
                cut(&status.message, MESSAGE_MAX),
                generation,
                now_ms
            ])?;
        Ok(())
    }

    /// Keeps what a machine says it is made of; the newest word counts.
    pub fn note_facts(
        &self,
        node_id: &str,
        facts: &[u8],
        time_ms: i64,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        self.connection
            .prepare_cached(
                "INSERT INTO facts (node_id, body, time_ms, received_ms) VALUES (?1, ?2, ?3, ?4) \
                 ON CONFLICT (node_id) DO UPDATE SET body = excluded.body, time_ms = excluded.time_ms, \
                     received_ms = excluded.received_ms",
            )?
            .execute(params![node_id, facts, time_ms, now_ms])?;
        Ok(())
    }

    /// What a machine last said it is made of: encoded `Facts`, and when it came.
    pub fn facts(&self, node_id: &str) -> Result<Option<(Vec<u8>, i64)>, StoreError> {
        let mut statement = self
            .connection
            .prepare_cached("SELECT body, received_ms FROM facts WHERE node_id = ?1")?;
        Ok(statement
            .query_row([node_id], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::TempDir;
    use super::*;

    fn section(name: &str, body: u8, changed_generation: u64) -> Section {
        Section {
            name: name.to_owned(),
            body: vec![body],
            changed_generation,
            ..Section::default()
        }
    }

    fn spec(generation: u64, sections: Vec<Section>) -> Spec {
        Spec {
            generation,
            envelope: vec![generation.to_le_bytes()[0]],
            changed_ms: 7,
            sections,
        }
    }

    fn status(generation: u64, section: &str, state: SectionState) -> SectionStatus {
        SectionStatus {
            generation,
            section: section.to_owned(),
            state,
            reason: "Reason".to_owned(),
            message: "text".to_owned(),
        }
    }

    #[test]
    fn a_spec_replaces_the_one_it_was_made_from_and_no_other() {
        let dir = TempDir::new();
        let store = Store::open(&dir.0.join("state.db")).unwrap();
        assert_eq!(store.spec("node_a").unwrap(), None);
        let first = spec(1, vec![section("log", 1, 1), section("host", 2, 1)]);
        assert!(store.set_spec("node_a", 0, &first).unwrap());
        assert!(
            !store.set_spec("node_a", 0, &first).unwrap(),
            "another came first"
        );
        assert_eq!(store.spec("node_a").unwrap(), Some(first.clone()));
        let second = spec(2, vec![section("log", 3, 2)]);
        assert!(
            !store.set_spec("node_a", 1, &spec(1, vec![])).unwrap(),
            "no growth"
        );
        assert!(store.set_spec("node_a", 1, &second).unwrap());
        assert_eq!(store.spec("node_a").unwrap(), Some(second));
        assert_eq!(store.newer_spec("node_a", 1).unwrap(), Some((2, vec![2])));
        assert_eq!(store.newer_spec("node_a", 2).unwrap(), None);
        assert_eq!(store.newer_spec("node_b", 0).unwrap(), None);
    }

    #[test]
    fn the_newest_report_on_a_section_counts() {
        let dir = TempDir::new();
        let store = Store::open(&dir.0.join("state.db")).unwrap();
        store
            .set_spec("node_a", 0, &spec(5, vec![section("log", 1, 5)]))
            .unwrap();
        let shown = |store: &Store| {
            let section = store.spec("node_a").unwrap().unwrap().sections.remove(0);
            (section.state, section.reported_generation)
        };
        for (node, generation, name, state, wanted) in [
            ("node_a", 4, "log", SectionState::APPLIED, ("applied", 4)),
            ("node_a", 5, "log", SectionState::PENDING, ("pending", 5)),
            ("node_a", 5, "log", SectionState::FAILED, ("failed", 5)),
            ("node_a", 4, "log", SectionState::APPLIED, ("failed", 5)),
            ("node_a", 6, "log", SectionState::APPLIED, ("failed", 5)),
            ("node_a", 5, "other", SectionState::APPLIED, ("failed", 5)),
            ("node_b", 5, "log", SectionState::APPLIED, ("failed", 5)),
            ("node_a", 5, "log", SectionState(99), ("failed", 5)),
        ] {
            store
                .note_section(node, &status(generation, name, state), 9)
                .unwrap();
            assert_eq!(shown(&store), (wanted.0.to_owned(), wanted.1));
        }
    }

    #[test]
    fn the_last_facts_of_a_node_are_kept() {
        let dir = TempDir::new();
        let store = Store::open(&dir.0.join("state.db")).unwrap();
        assert_eq!(store.facts("node_a").unwrap(), None);
        store.note_facts("node_a", &[1], 1, 10).unwrap();
        store.note_facts("node_a", &[2], 2, 20).unwrap();
        assert_eq!(store.facts("node_a").unwrap(), Some((vec![2], 20)));
    }
}
