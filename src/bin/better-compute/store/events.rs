//! Events: what nodes' journals held, stored in order and once, and how far each journal is stored.
//!
//! A journal's position moves in the transaction that stores its events, so an acknowledgement never
//! runs ahead of what is on the disk. What an event says (a command's state, a section's) is taken down
//! in the same transaction.

use std::ops::ControlFlow;

use bcd::proto::{Event, EventBody, EventsDropped};
use proto_gen::codec::Message;
use rusqlite::{OptionalExtension, Row, params};

use super::booted::BOOTED_FROM;
use super::{Store, StoreError};

/// The newest events of a node that are kept.
pub const EVENTS_PER_NODE: i64 = 2_000;
/// The bytes of them that are kept.
pub const EVENT_BYTES_PER_NODE: i64 = 16 * 1024 * 1024;
/// How long events are kept.
pub const EVENTS_FOR_MS: i64 = 30 * 86_400_000;
/// The kind of the record that stands for events which never came.
pub const MISSING: &str = "events_missing";
/// The kind of the events that diagnoses tell by.
pub const DIAG_REPORT: &str = "diag_report";

/// An event as it came: encoded, with what this program does not know of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incoming {
    pub sequence: u64,
    pub bytes: Vec<u8>,
}

/// A stored event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEvent {
    /// The order it came in, over all nodes.
    pub number: i64,
    pub node_id: String,
    pub journal_id: Vec<u8>,
    pub sequence: i64,
    pub time_ms: i64,
    pub received_ms: i64,
    pub kind: String,
    pub body: Vec<u8>,
}

/// Which events are asked for.
#[derive(Debug, Clone, Default)]
pub struct EventsAsked {
    pub node_id: Option<String>,
    pub kind: Option<String>,
    pub since_ms: Option<i64>,
    /// Only those with a higher number, the oldest first; without it the newest.
    pub after: Option<i64>,
    pub limit: u32,
}

/// The kinds of events, each in one place: the list that operators' questions are held against, and an event's own name.
macro_rules! kinds {
    ($($body:ident: $name:expr,)*) => {
        /// All kinds that [`kind_of`] names, and those that the control plane makes itself.
        pub const KINDS: &[&str] = &[$($name,)* "unknown", MISSING, BOOTED_FROM];

        /// The name of an event's kind, as operators see it.
        pub fn kind_of(event: &Event) -> &'static str {
            match &event.body {
                $(Some(EventBody::$body(_)) => $name,)*
                // No node has that word.
                Some(EventBody::BootedFrom(_)) | None => "unknown",
            }
        }
    };
}

kinds! {
    SectionStatus: "section_status",
    CommandUpdate: "command_update",
    Facts: "facts",
    EventsDropped: "events_dropped",
    JournalDamaged: "journal_damaged",
    StorageFault: "storage_fault",
    IdentityRenewed: "identity_renewed",
    DiagReport: DIAG_REPORT,
    Receipt: "receipt",
}

fn stored(row: &Row<'_>) -> rusqlite::Result<StoredEvent> {
    Ok(StoredEvent {
        number: row.get(0)?,
        node_id: row.get(1)?,
        journal_id: row.get::<_, Option<Vec<u8>>>(2)?.unwrap_or_default(),
        sequence: row.get(3)?,
        time_ms: row.get(4)?,
        received_ms: row.get(5)?,
        kind: row.get(6)?,
        body: row.get(7)?,
    })
}

impl Store {
    /// Up to where the events of this journal are stored; 0 for a journal not known.
    pub fn journal_position(&self, node_id: &str, journal_id: &[u8]) -> Result<u64, StoreError> {
        Ok(self
            .journal(node_id, journal_id)?
            .map_or(0, |(_, position)| position.unsigned_abs()))
    }

    fn journal(&self, node_id: &str, journal_id: &[u8]) -> Result<Option<(i64, i64)>, StoreError> {
        let mut statement = self.connection.prepare_cached(
            "SELECT id, position FROM journals WHERE node_id = ?1 AND journal_id = ?2",
        )?;
        Ok(statement
            .query_row(params![node_id, journal_id], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .optional()?)
    }

    /// Stores events of one journal, in the order of their sequences, and gives its new position. Those
    /// stored already are passed over. `note` hears of each new one, in the same transaction.
    ///
    /// What lies between the position and the first event, and no `EventsDropped` names, never comes any
    /// more: a record says so in its place.
    pub fn add_events(
        &self,
        node_id: &str,
        journal_id: &[u8],
        events: &[Incoming],
        now_ms: i64,
        mut note: impl FnMut(&Store, &Event) -> Result<(), StoreError>,
    ) -> Result<u64, StoreError> {
        let (journal, before) = match self.journal(node_id, journal_id)? {
            Some(known) => known,
            None => {
                self.connection
                    .prepare_cached(
                        "INSERT INTO journals (node_id, journal_id, position) VALUES (?1, ?2, 0)",
                    )?
                    .execute(params![node_id, journal_id])?;
                (self.connection.last_insert_rowid(), 0)
            }
        };
        let mut position = before;
        let mut insert = self.connection.prepare_cached(
            "INSERT INTO events (journal, sequence, node_id, time_ms, received_ms, kind, body) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?;
        for Incoming { sequence, bytes } in events {
            // The session took only what decodes and counts this far.
            let (Ok(sequence), Ok(event)) = (i64::try_from(*sequence), Event::decode(bytes)) else {
                continue;
            };
            if sequence <= position {
                continue;
            }
            if let Some(missing) = missing(position.unsigned_abs(), &event) {
                let place = missing.last;
                let body = Event {
                    sequence: place,
                    time_ms: event.time_ms,
                    body: Some(EventBody::EventsDropped(missing)),
                };
                insert.execute(params![
                    journal,
                    place.cast_signed(),
                    node_id,
                    event.time_ms,
                    now_ms,
                    MISSING,
                    body.encode_to_vec()
                ])?;
            }
            insert.execute(params![
                journal,
                sequence,
                node_id,
                event.time_ms,
                now_ms,
                kind_of(&event),
                bytes
            ])?;
            note(self, &event)?;
            position = sequence;
        }
        if position != before {
            self.connection
                .prepare_cached("UPDATE journals SET position = ?2 WHERE id = ?1")?
                .execute([journal, position])?;
        }
        Ok(position.unsigned_abs())
    }

    /// Stored events: those after a number, the oldest first, or else the newest, in the order they came.
    pub fn events(&self, asked: &EventsAsked) -> Result<Vec<StoredEvent>, StoreError> {
        let sql = Self::events_sql(asked);
        let mut statement = self.connection.prepare_cached(&sql)?;
        let rows = statement.query_map(
            params![
                asked.node_id,
                asked.after.unwrap_or(0),
                asked.kind,
                asked.since_ms,
                asked.limit
            ],
            stored,
        )?;
        let mut events: Vec<_> = rows.collect::<Result<_, _>>()?;
        if asked.after.is_none() {
            events.reverse();
        }
        Ok(events)
    }

    /// The question for these events: each form of it is answered from an index, since a fleet has
    /// millions of events and the thread that reads them stores them as well.
    fn events_sql(asked: &EventsAsked) -> String {
        let order = match asked.after {
            Some(_) => "ASC",
            None => "DESC",
        };
        // A node's share of events is small enough to be looked through for a kind.
        let (node, kind) = match (&asked.node_id, &asked.kind) {
            (Some(_), Some(_)) => ("e.node_id = ?1", "+e.kind = ?3"),
            (Some(_), None) => ("e.node_id = ?1", "?3 IS NULL"),
            (None, Some(_)) => ("?1 IS NULL", "e.kind = ?3"),
            (None, None) => ("?1 IS NULL", "?3 IS NULL"),
        };
        // Events are numbered as they come: where the span begins is where their numbers begin.
        let since = match asked.since_ms {
            Some(_) => {
                "+e.received_ms >= ?4 AND e.number >= coalesce((SELECT number FROM events \
                 WHERE received_ms >= ?4 ORDER BY received_ms LIMIT 1), 9223372036854775807)"
            }
            None => "?4 IS NULL",
        };
        format!(
            "SELECT e.number, e.node_id, j.journal_id, e.sequence, e.time_ms, e.received_ms, e.kind, e.body \
             FROM events e LEFT JOIN journals j ON j.id = e.journal \
             WHERE {node} AND {kind} AND {since} AND e.number > ?2 \
             ORDER BY e.number {order} LIMIT ?5"
        )
    }

    /// The number of the newest event; 0 without one.
    pub fn last_event(&self) -> Result<i64, StoreError> {
        let mut statement = self
            .connection
            .prepare_cached("SELECT coalesce(max(number), 0) FROM events")?;
        Ok(statement.query_row([], |row| row.get(0))?)
    }

    /// Forgets what is beyond a node's share: the oldest events first.
    pub fn prune_node_events(&self, node_id: &str) -> Result<usize, StoreError> {
        let pruned = self.connection.execute(
            "DELETE FROM events WHERE node_id = ?1 AND number <= coalesce((SELECT max(number) FROM ( \
                 SELECT number, row_number() OVER newest AS place, \
                     sum(length(body)) OVER newest AS bytes \
                 FROM events WHERE node_id = ?1 WINDOW newest AS (ORDER BY number DESC)) \
             WHERE place > ?2 OR bytes > ?3), 0)",
            params![node_id, EVENTS_PER_NODE, EVENT_BYTES_PER_NODE],
        )?;
        // A journal that a newer one followed and nothing is left of is over. Its node, should it come
        // back with it, goes on where it stands: see `add_events`.
        self.connection.execute(
            "DELETE FROM journals WHERE node_id = ?1 \
                 AND id <> (SELECT max(id) FROM journals WHERE node_id = ?1) \
                 AND NOT EXISTS (SELECT 1 FROM events WHERE journal = journals.id)",
            [node_id],
        )?;
        Ok(pruned)
    }

    /// Forgets events that are too old, at most `limit` at once; whether there may be more.
    pub fn prune_old_events(&self, now_ms: i64, limit: u32) -> Result<ControlFlow<()>, StoreError> {
        let pruned = self.connection.execute(
            "DELETE FROM events WHERE number IN \
                 (SELECT number FROM events WHERE received_ms < ?1 ORDER BY received_ms LIMIT ?2)",
            params![now_ms - EVENTS_FOR_MS, limit],
        )?;
        Ok(match pruned < limit as usize {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        })
    }
}

/// The events between `position` and this one that nothing accounts for.
fn missing(position: u64, event: &Event) -> Option<EventsDropped> {
    let first = position.checked_add(1)?;
    let start = match &event.body {
        Some(EventBody::EventsDropped(dropped)) => dropped.first.min(event.sequence),
        _ => event.sequence,
    };
    let last = start.checked_sub(1)?;
    (first <= last).then(|| EventsDropped {
        first,
        last,
        count: last - first + 1,
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::TempDir;
    use super::*;

    const JOURNAL: [u8; 16] = [7; 16];

    fn event(sequence: u64, body: Option<EventBody>) -> Incoming {
        let event = Event {
            sequence,
            time_ms: 5,
            body,
        };
        Incoming {
            sequence,
            bytes: event.encode_to_vec(),
        }
    }

    fn dropped(first: u64, last: u64) -> Incoming {
        let dropped = EventsDropped {
            first,
            last,
            count: 1,
        };
        event(last, Some(EventBody::EventsDropped(dropped)))
    }

    fn store() -> (TempDir, Store) {
        let dir = TempDir::new();
        let store = Store::open(&dir.0.join("state.db")).unwrap();
        (dir, store)
    }

    fn add(store: &Store, events: &[Incoming]) -> u64 {
        store
            .add_events("node_a", &JOURNAL, events, 100, |_, _| Ok(()))
            .unwrap()
    }

    fn listed(store: &Store, after: Option<i64>) -> Vec<(i64, String)> {
        let asked = EventsAsked {
            after,
            limit: 100,
            ..EventsAsked::default()
        };
        let events = store.events(&asked).unwrap();
        events.into_iter().map(|e| (e.sequence, e.kind)).collect()
    }

    fn kinds(rows: &[(i64, &str)]) -> Vec<(i64, String)> {
        rows.iter()
            .map(|(sequence, kind)| (*sequence, (*kind).to_owned()))
            .collect()
    }

    #[test]
    fn events_are_stored_once_and_a_journal_goes_on_where_it_stands() {
        let (_dir, store) = store();
        assert_eq!(store.journal_position("node_a", &JOURNAL).unwrap(), 0);
        assert_eq!(add(&store, &[event(1, None), event(2, None)]), 2);
        assert_eq!(add(&store, &[event(2, None), event(3, None)]), 3);
        assert_eq!(add(&store, &[event(1, None)]), 3);
        assert_eq!(store.journal_position("node_a", &JOURNAL).unwrap(), 3);
        assert_eq!(store.journal_position("node_a", &[8; 16]).unwrap(), 0);
        assert_eq!(store.journal_position("node_b", &JOURNAL).unwrap(), 0);
        let rows = listed(&store, None);
        assert_eq!(
            rows,
            kinds(&[(1, "unknown"), (2, "unknown"), (3, "unknown")])
        );
        assert_eq!(store.last_event().unwrap(), 3);
        assert_eq!(listed(&store, Some(2)).len(), 1);
    }

    #[test]
    fn what_never_came_has_a_record_in_its_place_unless_the_node_named_it() {
        let (_dir, store) = store();
        add(&store, &[event(1, None), dropped(2, 4), event(5, None)]);
        let named = kinds(&[(1, "unknown"), (4, "events_dropped"), (5, "unknown")]);
        assert_eq!(listed(&store, None), named);
        assert_eq!(add(&store, &[event(9, None)]), 9);
        let rows = listed(&store, None);
        assert_eq!(rows[3..], kinds(&[(8, MISSING), (9, "unknown")]));
        assert_eq!(add(&store, &[dropped(12, 14)]), 14);
        let rows = listed(&store, None);
        assert_eq!(rows[5..], kinds(&[(11, MISSING), (14, "events_dropped")]));
    }

    #[test]
    fn every_form_of_the_question_is_answered_from_an_index() {
        let (_dir, store) = store();
        let some = |text: &str| Some(text.to_owned());
        for (node_id, kind, wanted) in [
            (None, None, "INTEGER PRIMARY KEY"),
            (some("node_a"), None, "events_by_node"),
            (None, some("facts"), "events_by_kind"),
            (some("node_a"), some("facts"), "events_by_node"),
        ] {
            for since_ms in [None, Some(5)] {
                for after in [None, Some(7)] {
                    let asked = EventsAsked {
                        node_id: node_id.clone(),
                        kind: kind.clone(),
                        since_ms,
                        after,
                        limit: 10,
                    };
                    let sql = format!("EXPLAIN QUERY PLAN {}", Store::events_sql(&asked));
                    let mut statement = store.connection.prepare(&sql).unwrap();
                    let steps: Vec<String> = statement
                        .query_map(
                            params![asked.node_id, 0, asked.kind, asked.since_ms, 10],
                            |row| row.get(3),
                        )
                        .unwrap()
                        .collect::<Result<_, _>>()
                        .unwrap();
                    let plan = steps.join("; ");
                    assert!(plan.starts_with("SEARCH e USING"), "{asked:?}: {plan}");
                    assert!(plan.contains(wanted), "{asked:?}: {plan}");
                    assert!(!plan.contains("TEMP B-TREE"), "{asked:?}: {plan}");
                }
            }
        }
    }

    #[test]
    fn events_are_found_by_node_kind_and_time() {
        let (_dir, store) = store();
        let add = |node: &str, sequence: u64, body: Option<EventBody>, at: i64| {
            let events = [event(sequence, body)];
            store
                .add_events(node, &JOURNAL, &events, at, |_, _| Ok(()))
                .unwrap();
        };
        let facts = || Some(EventBody::Facts(bcd::proto::Facts::default()));
        add("node_a", 1, facts(), 10);
        add("node_b", 1, None, 20);
        add("node_a", 2, None, 30);
        add("node_b", 2, facts(), 40);
        let found = |node: Option<&str>, kind: Option<&str>, since_ms: Option<i64>| {
            let asked = EventsAsked {
                node_id: node.map(str::to_owned),
                kind: kind.map(str::to_owned),
                since_ms,
                after: None,
                limit: 10,
            };
            let events = store.events(&asked).unwrap();
            events.iter().map(|event| event.number).collect::<Vec<_>>()
        };
        assert_eq!(found(None, None, None), [1, 2, 3, 4]);
        assert_eq!(found(Some("node_a"), None, None), [1, 3]);
        assert_eq!(found(None, Some("facts"), None), [1, 4]);
        assert_eq!(found(Some("node_b"), Some("facts"), None), [4]);
        assert_eq!(found(None, None, Some(20)), [2, 3, 4]);
        assert_eq!(found(Some("node_a"), None, Some(20)), [3]);
        assert_eq!(found(None, Some("facts"), Some(11)), [4]);
        assert_eq!(found(None, None, Some(41)), [0i64; 0]);
    }

    #[test]
    fn an_event_of_a_later_version_is_kept_as_it_came() {
        let (_dir, store) = store();
        let mut later = event(1, None);
        later.bytes.extend([0xfa, 0x3e, 2, 1, 2]);
        add(&store, &[later.clone()]);
        let asked = EventsAsked {
            limit: 1,
            ..EventsAsked::default()
        };
        assert_eq!(store.events(&asked).unwrap()[0].body, later.bytes);
    }

    #[test]
    fn a_transaction_that_fails_moves_no_position() {
        let (_dir, mut store) = store();
        let failed = store.together(|store| {
            store.add_events("node_a", &JOURNAL, &[event(1, None)], 1, |_, _| {
                Err(StoreError::Damaged("a test"))
            })
        });
        assert!(failed.is_err());
        assert_eq!(store.journal_position("node_a", &JOURNAL).unwrap(), 0);
        assert!(listed(&store, None).is_empty());
    }

    #[test]
    fn a_node_keeps_its_newest_events_and_a_journal_that_is_over_goes() {
        let (_dir, mut store) = store();
        let count = u64::try_from(EVENTS_PER_NODE).unwrap();
        let all: Vec<_> = (1..=count + 5).map(|n| event(n, None)).collect();
        store
            .together(|store| {
                store.add_events("node_b", &[1; 16], &[event(1, None)], 1, |_, _| Ok(()))
            })
            .unwrap();
        store
            .together(|store| {
                store.add_events("node_a", &[1; 16], &[event(1, None)], 1, |_, _| Ok(()))?;
                store.add_events("node_a", &JOURNAL, &all, 1, |_, _| Ok(()))
            })
            .unwrap();
        assert_eq!(store.prune_node_events("node_a").unwrap(), 6);
        assert_eq!(store.prune_node_events("node_a").unwrap(), 0);
        assert_eq!(store.journal_position("node_a", &[1; 16]).unwrap(), 0);
        assert_eq!(store.journal_position("node_b", &[1; 16]).unwrap(), 1);
        assert_eq!(
            store.journal_position("node_a", &JOURNAL).unwrap(),
            count + 5
        );
        let more = store.prune_old_events(EVENTS_FOR_MS + 2, 100).unwrap();
        assert_eq!(more, ControlFlow::Continue(()));
        let more = store.prune_old_events(EVENTS_FOR_MS + 2, 10_000).unwrap();
        assert_eq!(more, ControlFlow::Break(()));
        assert!(listed(&store, None).is_empty());
        assert_eq!(
            store.journal_position("node_a", &JOURNAL).unwrap(),
            count + 5
        );
    }
}
