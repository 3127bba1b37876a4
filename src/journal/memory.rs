//! A journal that no disk has: for nodes that live only as long as their process, thousands of them in
//! one. Sequences, acknowledgements, keys and limits are those of the file; what goes away with the process
//! is said by nobody.
use std::collections::{BTreeMap, VecDeque};

use super::writer::fits;
use super::{Committed, Entry, JournalError, Keyed, Kind, Recovered, Status, Stored};
use crate::sys::clock::Wall;

pub(super) struct Memory {
    wall: Wall,
    journal_id: [u8; 16],
    position: u64,
    acked: u64,
    max_events: usize,
    /// Those that are not acknowledged.
    events: VecDeque<Stored>,
    keys: BTreeMap<(Kind, String), Vec<u8>>,
    commits: u64,
}

impl Memory {
    pub fn new(journal_id: [u8; 16], max_events: usize, wall: Wall) -> Self {
        Self {
            wall,
            journal_id,
            position: 0,
            acked: 0,
            max_events,
            events: VecDeque::new(),
            keys: BTreeMap::new(),
            commits: 0,
        }
    }

    /// As the writer's `append`, of one commit. Beyond the caps nothing is dropped, and nothing taken.
    pub fn commit(&mut self, entries: Vec<Entry>) -> Result<Committed, JournalError> {
        fits(&entries)?;
        let is_event = |entry: &&Entry| matches!(entry, Entry::Event { .. });
        let events = entries.iter().filter(is_event).count();
        if self.events.len().saturating_add(events) > self.max_events {
            return Err(JournalError::Full);
        }
        let time_ms = self.wall.ms();
        for entry in entries {
            match entry {
                Entry::Event { body, .. } => {
                    self.position = self.position.saturating_add(1);
                    self.events.push_back(Stored {
                        sequence: self.position,
                        time_ms,
                        body,
                    });
                }
                Entry::Put { kind, key, value } => {
                    self.keys.insert((kind, key), value);
                }
                Entry::Delete { kind, key } => {
                    self.keys.remove(&(kind, key));
                }
            }
        }
        self.commits = self.commits.saturating_add(1);
        let last = self.position;
        Ok(Committed { last })
    }

    pub fn read(&self, after: u64, max_bytes: usize) -> Vec<Stored> {
        let mut bytes = 0_usize;
        let mut read = Vec::new();
        for event in self.events.iter().filter(|event| event.sequence > after) {
            bytes = bytes.saturating_add(event.body.len());
            if bytes > max_bytes && !read.is_empty() {
                break;
            }
            read.push(event.clone());
        }
        read
    }

    pub fn ack(&mut self, position: u64) {
        self.acked = self.acked.max(position.min(self.position));
        while self
            .events
            .front()
            .is_some_and(|event| event.sequence <= self.acked)
        {
            self.events.pop_front();
        }
        if self.events.is_empty() {
            // An hour without a gateway leaves no memory behind.
            self.events.shrink_to(8);
        }
    }

    /// Another journal, with what is not acknowledged.
    pub fn rebase(&mut self, journal_id: [u8; 16]) {
        self.journal_id = journal_id;
        (self.position, self.acked) = (0, 0);
        for event in &mut self.events {
            self.position = self.position.saturating_add(1);
            event.sequence = self.position;
        }
    }

    /// What a daemon would find that is started now.
    pub fn recovered(&self) -> Recovered {
        let entries = self.keys.iter().map(|((kind, key), value)| Keyed {
            kind: *kind,
            key: key.clone(),
            value: value.clone(),
        });
        Recovered {
            journal_id: self.journal_id,
            position: self.position,
            acked: self.acked,
            entries: entries.collect(),
            damage: None,
            tail_cut: 0,
        }
    }

    pub fn status(&self) -> Status {
        Status {
            journal_id: self.journal_id,
            position: self.position,
            acked: self.acked,
            unacknowledged: self.events.len() as u64,
            keys: self.keys.len() as u64,
            commits: self.commits,
            ..Status::default()
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::journal::{Class, Journal, Limits, MAX_BODY};
    use crate::rt::block_on;
    use crate::sys::fs::Dir;
    use crate::sys::fs::tests::scratch;

    const LIMITS: Limits = Limits {
        max_bytes: 1 << 20,
        max_events: 20,
    };

    fn event(text: &str) -> Entry {
        Entry::Event {
            class: Class::Result,
            body: text.as_bytes().to_vec(),
        }
    }

    /// What can be seen of it, save ids and times.
    async fn seen(journal: &Journal) -> impl PartialEq + std::fmt::Debug + use<> {
        let status = journal.status();
        let read = |events: Vec<Stored>| {
            let events = events.into_iter();
            events
                .map(|event| (event.sequence, event.body))
                .collect::<Vec<_>>()
        };
        (
            (status.position, status.acked),
            (status.unacknowledged, status.keys),
            read(journal.read(0, 1 << 20).await.unwrap()),
            read(journal.read(status.acked + 1, 1).await.unwrap()),
            journal.news(0).await.unwrap(),
        )
    }

    #[test]
    fn it_counts_keeps_and_forgets_as_the_file_does() {
        block_on(async {
            let dir = Dir::open(&scratch("memory")).unwrap();
            let (file, _) = Journal::open(&dir, "node_1", LIMITS).unwrap();
            let memory = Journal::in_memory(LIMITS, Wall::default()).unwrap();
            let put = |value: &str| Entry::Put {
                kind: Kind::Mark,
                key: "a".to_owned(),
                value: value.into(),
            };
            let delete = Entry::Delete {
                kind: Kind::Mark,
                key: "a".to_owned(),
            };
            for commit in [
                vec![event("one")],
                vec![event("two"), put("x"), event("three")],
                vec![put("y")],
                vec![],
                vec![event("four"), delete],
                vec![event(&"x".repeat(MAX_BODY + 1))],
            ] {
                let of_file = file.commit(commit.clone()).await.map(|done| done.last);
                let of_memory = memory.commit(commit).await.map(|done| done.last);
                assert_eq!(of_file.ok(), of_memory.ok());
                assert_eq!(seen(&file).await, seen(&memory).await);
            }
            for position in [0, 2, 1, 4] {
                for journal in [&file, &memory] {
                    journal.ack(position);
                    // The file's thread has heard of it once it answers.
                    journal.commit(vec![put("z")]).await.unwrap();
                }
                assert_eq!(seen(&file).await, seen(&memory).await, "{position}");
            }
            for journal in [&file, &memory] {
                journal.commit(vec![event("five")]).await.unwrap();
                let before = journal.status().journal_id;
                assert_ne!(journal.rebase().await.unwrap(), before);
            }
            assert_eq!(seen(&file).await, seen(&memory).await);
        });
    }

    #[test]
    fn it_takes_nothing_beyond_its_caps_and_stamps_by_its_clock() {
        block_on(async {
            let ahead_ms = 86_400_000;
            let journal = Journal::in_memory(LIMITS, Wall { ahead_ms }).unwrap();
            for _ in 0..LIMITS.max_events {
                journal.commit(vec![event("x")]).await.unwrap();
            }
            let over = journal.commit(vec![event("x")]).await;
            assert!(matches!(over, Err(JournalError::Full)));
            let first = journal.read(0, 1).await.unwrap();
            assert!(
                first
                    .iter()
                    .all(|event| event.time_ms >= crate::sys::clock::wall_ms() + 86_300_000)
            );
            journal.ack(1);
            journal.commit(vec![event("x")]).await.unwrap();
            let recovered = journal.recovered().unwrap();
            assert_eq!((recovered.position, recovered.acked), (21, 1));
        });
    }
}
