//! Commits on their way into one write.
use super::super::Entry;
use super::super::format::{Content, Encoder, Record, total};
use super::{Trouble, message, reason};
use crate::proto::{EventBody, StorageFault};

/// Commits on their way into one write.
pub(super) struct Group {
    pub(super) encoder: Encoder,
    pub(super) records: Vec<Record>,
    pub(super) position: u64,
    pub(super) now_ms: u64,
    pub(super) events: usize,
    pub(super) keys: usize,
    pub(super) keyed: u64,
}

impl Group {
    /// Adds a commit; returns the sequence of its last event, or the position.
    pub(super) fn push(&mut self, commit: &[Entry]) -> u64 {
        let count = commit.len();
        for (index, entry) in commit.iter().enumerate() {
            let ends = (index == 0, index + 1 == count);
            match entry {
                Entry::Event { class, body } => {
                    self.position += 1;
                    self.events += 1;
                    let time = self.now_ms.to_le_bytes();
                    self.record(Content::Event(*class), self.position, ends, &[&time, body]);
                }
                Entry::Put { kind, key, value } => {
                    self.keys += 1;
                    self.keyed += total(key.len() + value.len()) as u64;
                    let content = Content::Put(*kind, key.clone());
                    self.record(content, self.position, ends, &[value]);
                }
                Entry::Delete { kind, key } => {
                    let content = Content::Delete(*kind, key.clone());
                    self.record(content, self.position, ends, &[]);
                }
            }
        }
        self.position
    }

    /// Says that a fault is over.
    pub(super) fn recovered(&mut self, trouble: Option<&Trouble>) {
        let Some(trouble) = trouble else {
            return;
        };
        let ms = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX);
        self.push(&[Entry::status(EventBody::StorageFault(StorageFault {
            reason: reason(&trouble.error).to_owned(),
            message: message(&trouble.error),
            since_ms: ms(trouble.since_ms),
            until_ms: ms(self.now_ms),
            refused_commands: trouble.refused_commands,
        }))]);
    }

    pub(super) fn record(
        &mut self,
        content: Content,
        sequence: u64,
        ends: (bool, bool),
        payload: &[&[u8]],
    ) {
        let record = self.encoder.push(content, sequence, ends, payload);
        self.records.push(record);
    }
}
