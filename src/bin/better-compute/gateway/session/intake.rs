//! What a session does with its node's events: which it takes, which it has already, which end it.
//!
//! Promises: an event is acknowledged only once it is stored; what a session holds of events that are not
//! stored yet is bounded, and a session that has its fill reads no more frames.

use bcd::proto::{Event, EventBody, Message};
use bcd::wire::grpc::{Code, Status};

use crate::store::Incoming;

/// Bytes of events that wait while earlier ones are stored. One more event, as large as a frame may be,
/// can lie on top.
const WAITING_MAX: usize = 16 * 1024;
/// What an event costs beside its bytes.
const OVERHEAD: usize = 64;

/// Where a session stands in its node's journal.
#[derive(Debug)]
pub struct Intake {
    /// Whether the node keeps a journal.
    journal: bool,
    /// Up to here the journal is stored.
    stored: u64,
    /// The last event that this session brought.
    heard: Option<u64>,
    /// The last position that was acknowledged in this session.
    acknowledged: Option<u64>,
    waiting: Vec<Incoming>,
    bytes: usize,
    /// Whether a command's report is among those that wait.
    reports: bool,
    /// Whether one is among those that were given to be stored since this was last asked.
    reported: bool,
}

impl Intake {
    pub fn new(journal: bool, resume_position: u64) -> Self {
        Self {
            journal,
            stored: resume_position,
            heard: None,
            acknowledged: None,
            waiting: Vec::new(),
            bytes: 0,
            reports: false,
            reported: false,
        }
    }

    /// Takes an event's bytes: it waits to be stored, or it is stored already.
    ///
    /// # Errors
    /// The status that ends the session.
    pub fn take(&mut self, bytes: Vec<u8>) -> Result<(), Status> {
        let event = Event::decode(&bytes).map_err(|error| {
            Status::new(
                Code::InvalidArgument,
                format!("an event cannot be decoded: {error}"),
            )
        })?;
        let sequence = self.judge(&event)?;
        self.heard = Some(sequence);
        if sequence <= self.stored {
            // It came again: what was acknowledged is said once more.
            self.acknowledged = None;
            return Ok(());
        }
        self.reports |= matches!(event.body, Some(EventBody::CommandUpdate(_)));
        self.bytes += bytes.len() + OVERHEAD;
        self.waiting.push(Incoming { sequence, bytes });
        Ok(())
    }

    /// The sequence of an event that may be taken.
    fn judge(&self, event: &Event) -> Result<u64, Status> {
        let invalid = |message: &str| Err(Status::new(Code::InvalidArgument, message));
        if !self.journal {
            return invalid("an event came, but Hello named no journal");
        }
        let sequence = event.sequence;
        if sequence == 0 || i64::try_from(sequence).is_err() {
            return invalid("an event's sequence is 0 or over 2^63 - 1");
        }
        let first = match &event.body {
            Some(EventBody::EventsDropped(dropped)) => {
                let span = (dropped.last.checked_sub(dropped.first))
                    .and_then(|more| more.checked_add(1))
                    .unwrap_or(0);
                if dropped.first == 0
                    || dropped.last != sequence
                    || !(1..=span).contains(&dropped.count)
                {
                    return invalid(
                        "an EventsDropped names no range that ends with its own sequence",
                    );
                }
                dropped.first
            }
            _ => sequence,
        };
        // The first event of a session goes on wherever the node's journal begins: a control plane that
        // was restored from a backup asks for what its nodes have long forgotten.
        let Some(heard) = self.heard else {
            return Ok(sequence);
        };
        if sequence <= heard {
            return Err(Status::new(
                Code::OutOfRange,
                format!("event {sequence} came after event {heard}"),
            ));
        }
        if first - 1 > heard.max(self.stored) {
            return Err(Status::new(
                Code::DataLoss,
                format!(
                    "event {sequence} came after event {heard}, and no EventsDropped names those between"
                ),
            ));
        }
        Ok(sequence)
    }

    /// Whether there is room for another event.
    pub fn has_room(&self) -> bool {
        self.bytes < WAITING_MAX
    }

    /// The events that wait, to be stored now.
    pub fn next_batch(&mut self) -> Option<Vec<Incoming>> {
        if self.waiting.is_empty() {
            return None;
        }
        self.bytes = 0;
        self.reported |= std::mem::take(&mut self.reports);
        Some(std::mem::take(&mut self.waiting))
    }

    /// Whether reports on commands were stored since this was last asked: for when a batch is. One that
    /// came meanwhile waits for its own.
    pub fn reports(&mut self) -> bool {
        std::mem::take(&mut self.reported)
    }

    /// The journal is stored up to here.
    pub fn stored(&mut self, position: u64) {
        self.stored = self.stored.max(position);
    }

    /// The acknowledgement that is due. It never names a position that this session did not bring.
    pub fn acknowledgement(&mut self) -> Option<u64> {
        let position = self.stored.min(self.heard?);
        if self.acknowledged == Some(position) {
            return None;
        }
        self.acknowledged = Some(position);
        Some(position)
    }
}

#[cfg(test)]
mod tests {
    use bcd::proto::EventsDropped;

    use super::*;

    fn event(sequence: u64) -> Event {
        Event {
            sequence,
            ..Event::default()
        }
    }

    fn dropped(first: u64, last: u64, count: u64, sequence: u64) -> Event {
        let dropped = EventsDropped { first, last, count };
        Event {
            sequence,
            time_ms: 0,
            body: Some(EventBody::EventsDropped(dropped)),
        }
    }

    /// What becomes of `events` in a session that resumes after `resume`: the sequences to be stored, or
    /// the code it ends with.
    fn outcome(resume: u64, events: &[Event]) -> Result<Vec<u64>, Code> {
        let mut intake = Intake::new(true, resume);
        for event in events {
            intake
                .take(event.encode_to_vec())
                .map_err(|status| status.code)?;
        }
        let batch = intake.next_batch().unwrap_or_default();
        Ok(batch.iter().map(|incoming| incoming.sequence).collect())
    }

    #[test]
    fn a_report_that_comes_while_others_are_stored_is_looked_after_once_it_is_stored_itself() {
        let report = |sequence| Event {
            body: Some(EventBody::CommandUpdate(Default::default())),
            ..event(sequence)
        };
        let mut intake = Intake::new(true, 0);
        intake.take(report(1).encode_to_vec()).unwrap();
        assert!(intake.next_batch().is_some());
        // The first is being stored.
        intake.take(report(2).encode_to_vec()).unwrap();
        intake.stored(1);
        assert!(intake.reports());
        assert!(intake.next_batch().is_some());
        intake.stored(2);
        assert!(intake.reports(), "the second would never be looked after");
        assert!(!intake.reports());
    }

    #[test]
    fn every_order_of_events_has_its_outcome() {
        let e = event;
        type Row<'a> = (&'a str, u64, &'a [Event], Result<Vec<u64>, Code>);
        let table: &[Row<'_>] = &[
            ("in order", 0, &[e(1), e(2)], Ok(vec![1, 2])),
            ("resumed", 5, &[e(6)], Ok(vec![6])),
            ("all came before", 5, &[e(4), e(5)], Ok(vec![])),
            ("some came before", 5, &[e(3), e(4), e(6)], Ok(vec![6])),
            ("replayed with a hole", 5, &[e(2), e(5), e(6)], Ok(vec![6])),
            ("begins later", 5, &[e(9), e(10)], Ok(vec![9, 10])),
            ("a hole", 5, &[e(6), e(8)], Err(Code::DataLoss)),
            (
                "a hole after a replay",
                5,
                &[e(5), e(7)],
                Err(Code::DataLoss),
            ),
            ("twice", 0, &[e(1), e(1)], Err(Code::OutOfRange)),
            ("backwards", 0, &[e(1), e(2), e(1)], Err(Code::OutOfRange)),
            ("backwards, stored", 9, &[e(5), e(4)], Err(Code::OutOfRange)),
            ("sequence 0", 0, &[e(0)], Err(Code::InvalidArgument)),
            ("huge", 0, &[e(1 << 63)], Err(Code::InvalidArgument)),
            (
                "named",
                0,
                &[e(1), dropped(2, 6, 5, 6), e(7)],
                Ok(vec![1, 6, 7]),
            ),
            (
                "named in part",
                0,
                &[e(3), dropped(2, 6, 1, 6)],
                Ok(vec![3, 6]),
            ),
            (
                "not all named",
                0,
                &[e(1), dropped(3, 6, 4, 6)],
                Err(Code::DataLoss),
            ),
            (
                "ends elsewhere",
                0,
                &[dropped(1, 5, 1, 6)],
                Err(Code::InvalidArgument),
            ),
            (
                "from 0",
                0,
                &[dropped(0, 6, 1, 6)],
                Err(Code::InvalidArgument),
            ),
            (
                "of none",
                0,
                &[dropped(1, 6, 0, 6)],
                Err(Code::InvalidArgument),
            ),
            (
                "of too many",
                0,
                &[dropped(5, 6, 3, 6)],
                Err(Code::InvalidArgument),
            ),
            (
                "turned round",
                0,
                &[dropped(7, 6, 1, 6)],
                Err(Code::InvalidArgument),
            ),
            (
                "all there is",
                0,
                &[dropped(1, u64::MAX, 1, u64::MAX)],
                Err(Code::InvalidArgument),
            ),
        ];
        for (name, resume, events, wanted) in table {
            assert_eq!(&outcome(*resume, events), wanted, "{name}");
        }
    }

    #[test]
    fn only_what_is_stored_and_was_brought_is_acknowledged() {
        let mut intake = Intake::new(true, 5);
        assert_eq!(intake.acknowledgement(), None, "nothing came");
        intake.take(event(3).encode_to_vec()).unwrap();
        assert_eq!(intake.acknowledgement(), Some(3), "not 5: it did not come");
        assert_eq!(intake.acknowledgement(), None, "said once");
        intake.take(event(6).encode_to_vec()).unwrap();
        intake.take(event(7).encode_to_vec()).unwrap();
        assert_eq!(intake.acknowledgement(), Some(5));
        assert_eq!(intake.next_batch().unwrap().len(), 2);
        assert_eq!(intake.acknowledgement(), None, "not stored yet");
        intake.stored(7);
        assert_eq!(intake.acknowledgement(), Some(7));
        assert_eq!(intake.next_batch(), None);
    }

    #[test]
    fn a_replay_is_acknowledged_again() {
        let mut intake = Intake::new(true, 2);
        intake.take(event(1).encode_to_vec()).unwrap();
        intake.take(event(2).encode_to_vec()).unwrap();
        assert_eq!(intake.acknowledgement(), Some(2));
        assert_eq!(intake.next_batch(), None);
    }

    #[test]
    fn a_session_has_its_fill_and_room_again_once_the_batch_is_under_way() {
        let mut intake = Intake::new(true, 0);
        let mut sequence = 0;
        while intake.has_room() {
            sequence += 1;
            intake.take(event(sequence).encode_to_vec()).unwrap();
        }
        assert!(sequence < 1_000, "small events count too: {sequence}");
        intake.next_batch().unwrap();
        assert!(intake.has_room());
    }

    #[test]
    fn what_is_no_event_or_has_no_journal_ends_the_session() {
        let mut intake = Intake::new(true, 0);
        let status = intake.take(vec![0x08]).unwrap_err();
        assert_eq!(status.code, Code::InvalidArgument);
        let mut intake = Intake::new(false, 0);
        let status = intake.take(event(1).encode_to_vec()).unwrap_err();
        assert_eq!(status.code, Code::InvalidArgument);
        assert!(status.message.contains("journal"), "{}", status.message);
    }
}
