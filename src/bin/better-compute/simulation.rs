//! Whether the control plane has each event of a simulated fleet, and has it once: what it stored, held
//! against what the nodes' journals took. Pure.
//!
//! Sequences are checked, and so is what the simulation's own events say: an event that came twice under two
//! numbers is found too.

use std::collections::BTreeMap;

use bcd::sim::Outcome;

use crate::json::Json;
use crate::store::{EVENTS_PER_NODE, MISSING};

/// Nodes named in a verdict.
const NAMED: usize = 5;

/// What the nodes say.
pub struct Ledger(BTreeMap<String, Held>);

struct Held {
    journal_id: String,
    events: u64,
    said: u64,
    /// The last sequence seen, and the number of the simulation's last event.
    last: u64,
    last_said: u64,
    missing: u64,
    doubled: u64,
}

/// A stored event.
pub struct Seen<'a> {
    pub node_id: &'a str,
    /// In hexadecimal.
    pub journal_id: &'a str,
    pub sequence: u64,
    pub kind: &'a str,
    /// What an event of the simulation says.
    pub said: Option<&'a str>,
}

/// What was found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    pub nodes: u64,
    pub events: u64,
    pub missing: u64,
    pub doubled: u64,
    /// Some of the nodes that something is wrong with.
    pub of: Vec<String>,
}

impl Verdict {
    pub fn is_good(&self) -> bool {
        self.missing == 0 && self.doubled == 0
    }

    /// For people.
    pub fn line(&self) -> String {
        let mut line = format!(
            "the control plane has {} events of {} nodes: {} missing, {} doubled",
            self.events, self.nodes, self.missing, self.doubled
        );
        if !self.of.is_empty() {
            line.push_str(&format!(" (of {})", self.of.join(", ")));
        }
        line
    }
}

impl Ledger {
    pub fn new(outcomes: impl IntoIterator<Item = Outcome>) -> Self {
        let held = |one: Outcome| {
            let held = Held {
                journal_id: one.journal_id,
                events: one.events,
                said: one.said,
                last: 0,
                last_said: 0,
                missing: 0,
                doubled: 0,
            };
            (one.node_id, held)
        };
        Self(outcomes.into_iter().map(held).collect())
    }

    /// Reads what `bcd sim --ledger` wrote; else the number of the line that is none of it.
    pub fn parse(text: &str) -> Result<Self, usize> {
        let outcomes = text.lines().enumerate().map(|(number, line)| {
            let json = Json::parse(line.as_bytes(), 4096, 4).map_err(|_| number + 1)?;
            let count = |name| {
                json.number(name)
                    .and_then(|count| u64::try_from(count).ok())
            };
            let counts = count("events")
                .zip(count("acknowledged"))
                .zip(count("said"));
            let ((events, acknowledged), said) = counts.ok_or(number + 1)?;
            Ok::<_, usize>(Outcome {
                node_id: json.text("node").to_owned(),
                journal_id: json.text("journal").to_owned(),
                events,
                acknowledged,
                said,
            })
        });
        Ok(Self::new(outcomes.collect::<Result<Vec<_>, _>>()?))
    }

    /// Takes the next stored event, in the order they came.
    pub fn take(&mut self, seen: &Seen<'_>) {
        let Some(held) = self.0.get_mut(seen.node_id) else {
            return;
        };
        if seen.journal_id != held.journal_id {
            held.doubled += 1;
            return;
        }
        if seen.kind == MISSING || seen.kind == "events_dropped" {
            held.missing += 1;
        }
        // The oldest events of a node are forgotten.
        let forgotten = held.events > EVENTS_PER_NODE.unsigned_abs();
        let step = |last: &mut u64, number: u64, missing: &mut u64, doubled: &mut u64| {
            match number.checked_sub(*last + 1) {
                None => *doubled += 1,
                Some(_) if forgotten && *last == 0 => {}
                Some(gap) => *missing += gap,
            }
            *last = (*last).max(number);
        };
        let (missing, doubled) = (&mut held.missing, &mut held.doubled);
        step(&mut held.last, seen.sequence, missing, doubled);
        let number = seen.said.and_then(|said| said.strip_prefix("event "));
        if let Some(number) = number.and_then(|number| number.parse().ok()) {
            step(&mut held.last_said, number, missing, doubled);
        }
    }

    /// All have been taken.
    pub fn verdict(self) -> Verdict {
        let mut verdict = Verdict::default();
        for (node_id, held) in self.0 {
            let ends = [(held.events, held.last), (held.said, held.last_said)];
            let missing: u64 = ends.iter().map(|(own, its)| own.saturating_sub(*its)).sum();
            let more: u64 = ends.iter().map(|(own, its)| its.saturating_sub(*own)).sum();
            let (missing, doubled) = (held.missing + missing, held.doubled + more);
            if missing + doubled > 0 && verdict.of.len() < NAMED {
                verdict.of.push(node_id);
            }
            verdict.nodes += 1;
            verdict.events += held.last;
            verdict.missing += missing;
            verdict.doubled += doubled;
        }
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(events: u64, said: u64) -> Ledger {
        let line = format!(
            r#"{{"node":"node_a","journal":"0a","events":{events},"acknowledged":{events},"said":{said}}}"#
        );
        Ledger::parse(&line).unwrap()
    }

    fn judged(mut ledger: Ledger, seen: &[(u64, &str, &str)]) -> (u64, u64) {
        for (sequence, journal_id, said) in seen {
            let (kind, said) = match *said {
                MISSING => (MISSING, None),
                said => ("section_status", Some(said)),
            };
            ledger.take(&Seen {
                node_id: "node_a",
                journal_id,
                sequence: *sequence,
                kind,
                said,
            });
        }
        let verdict = ledger.verdict();
        (verdict.missing, verdict.doubled)
    }

    #[test]
    fn every_event_once_and_in_order_is_good() {
        let seen = [
            (1, "0a", "event 1"),
            (2, "0a", "other"),
            (3, "0a", "event 2"),
        ];
        assert_eq!(judged(ledger(3, 2), &seen), (0, 0));
        assert_eq!(judged(ledger(0, 0), &[]), (0, 0));
    }

    #[test]
    fn what_is_missing_or_came_twice_is_found() {
        let one = (1, "0a", "event 1");
        let two = (2, "0a", "event 2");
        for (events, seen, found) in [
            (2, vec![one], (2, 0)),
            (2, vec![two], (2, 0)),
            (2, vec![one, two, two], (0, 2)),
            (2, vec![one, two, (3, "0a", "event 2")], (0, 2)),
            (2, vec![one, two, (3, "0a", "event 3")], (0, 2)),
            (2, vec![one, two, (1, "0b", "event 1")], (0, 1)),
            (3, vec![one, two, (3, "0a", MISSING)], (2, 0)),
        ] {
            assert_eq!(judged(ledger(events, events), &seen), found, "{seen:?}");
        }
    }

    #[test]
    fn the_oldest_events_may_be_forgotten_where_there_were_many() {
        let many = EVENTS_PER_NODE.unsigned_abs() + 2;
        let told: Vec<_> = (3..=many).map(|n| format!("event {n}")).collect();
        let seen: Vec<_> = (3..)
            .zip(&told)
            .map(|(n, said)| (n, "0a", said.as_str()))
            .collect();
        assert_eq!(judged(ledger(many, many), &seen), (0, 0));
        assert_eq!(judged(ledger(2, 2), &seen[..0]), (4, 0));
    }

    #[test]
    fn a_line_that_is_no_ledgers_is_named() {
        let good = r#"{"node":"node_a","journal":"0a","events":1,"acknowledged":1,"said":1}"#;
        for (text, line) in [
            ("x".to_owned(), 1),
            (format!("{good}\n{{}}"), 2),
            (
                format!("{good}\n{good}\n{}", good.replace(":1,", ":-1,")),
                3,
            ),
        ] {
            assert_eq!(Ledger::parse(&text).err(), Some(line));
        }
    }
}
