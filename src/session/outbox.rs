//! What of the journal's events goes over a session, and how far it has come. Pure.
//!
//! Events leave in the order of their sequence, each once a session, the next session's from where
//! the control plane says it stands. At most [`EVENTS`] events or [`BYTES`] bytes of them are on
//! their way without an acknowledgement; the rest waits on the disk.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]
use std::collections::VecDeque;

use crate::journal::Stored;
use crate::proto::{Event, EventBody, EventsDropped, Message};

/// Events sent and not acknowledged. Each may lie as a small DATA frame with a gateway that has
/// stopped reading, and common HTTP/2 servers take more than a hundred of those for an attack.
pub const EVENTS: usize = 64;

/// Bytes of the frames they were sent in. A single event may be larger.
pub const BYTES: usize = 512 * 1024;

/// Bytes of events that are read from the journal at once.
const BATCH: usize = 64 * 1024;

/// `NodeFrame.event`: field 5, a message.
const EVENT_FIELD: u8 = 5 << 3 | 2;

/// An acknowledgement of something that was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotSent {
    /// What was acknowledged.
    pub position: u64,
    /// The last event sent.
    pub sent: u64,
}

/// The events of one session.
#[derive(Debug)]
pub struct Outbox {
    /// Of the last event taken from the journal.
    read: u64,
    /// Taken from the journal and not sent yet.
    ready: VecDeque<Stored>,
    /// Of the last event sent, or stored by the control plane before.
    sent: u64,
    /// Sequence and bytes of what was sent and not acknowledged.
    flight: VecDeque<(u64, usize)>,
    /// The bytes of `flight`.
    bytes: usize,
}

impl Outbox {
    /// A session whose control plane has stored the events up to `resume`, of a journal that has
    /// forgotten those up to `forgotten` (it was told that they were stored). Where the control
    /// plane stands before that, it has lost events, and an `EventsDropped` names them.
    pub fn resume(resume: u64, forgotten: u64, now_ms: u64) -> Self {
        let mut ready = VecDeque::new();
        if forgotten > resume {
            let lost = EventsDropped {
                first: resume.saturating_add(1),
                last: forgotten,
                count: forgotten.saturating_sub(resume),
            };
            ready.push_back(dropped(forgotten, now_ms, lost));
        }
        Self {
            read: resume.max(forgotten),
            ready,
            sent: resume,
            flight: VecDeque::new(),
            bytes: 0,
        }
    }

    /// What to read from the journal now: events after the first number, of about so many bytes.
    pub fn wants(&self) -> Option<(u64, usize)> {
        self.ready.is_empty().then_some((self.read, BATCH))
    }

    /// Takes what was read.
    pub fn fill(&mut self, events: impl IntoIterator<Item = Stored>) {
        for event in events {
            // What is out of order is not sent: the control plane could not place it.
            if event.sequence > self.read {
                self.read = event.sequence;
                self.ready.push_back(event);
            }
        }
    }

    /// The next frame to send, encoded, unless too much is on its way. A frame over `limit`
    /// bytes is replaced by an `EventsDropped`, or no later event would ever get through.
    pub fn next(&mut self, limit: usize) -> Option<Vec<u8>> {
        if self.flight.len() >= EVENTS || self.bytes >= BYTES {
            return None;
        }
        let event = self.ready.front()?;
        let mut frame = encode(event);
        if frame.len() > limit {
            let lost = EventsDropped {
                first: event.sequence,
                last: event.sequence,
                count: 1,
            };
            frame = encode(&dropped(event.sequence, event.time_ms, lost));
        }
        if !self.flight.is_empty() && self.bytes.saturating_add(frame.len()) > BYTES {
            return None;
        }
        self.sent = event.sequence;
        self.bytes = self.bytes.saturating_add(frame.len());
        self.flight.push_back((event.sequence, frame.len()));
        self.ready.pop_front();
        Some(frame)
    }

    /// The control plane has stored everything up to `position`.
    ///
    /// # Errors
    /// That was never sent. What it said before is left as it was.
    pub fn ack(&mut self, position: u64) -> Result<(), NotSent> {
        if position > self.sent {
            let sent = self.sent;
            return Err(NotSent { position, sent });
        }
        while let Some((sequence, bytes)) = self.flight.front().copied() {
            if sequence > position {
                break;
            }
            self.bytes = self.bytes.saturating_sub(bytes);
            self.flight.pop_front();
        }
        Ok(())
    }
}

fn dropped(sequence: u64, time_ms: u64, lost: EventsDropped) -> Stored {
    let event = Event {
        body: Some(EventBody::EventsDropped(lost)),
        ..Event::default()
    };
    Stored {
        sequence,
        time_ms,
        body: event.encode_to_vec(),
    }
}

/// The `NodeFrame` of an event. The body is not looked into: one that a newer bcd wrote arrives as
/// it was written.
fn encode(event: &Stored) -> Vec<u8> {
    let head = Event {
        sequence: event.sequence,
        time_ms: i64::try_from(event.time_ms).unwrap_or(i64::MAX),
        body: None,
    }
    .encode_to_vec();
    let length = head.len().saturating_add(event.body.len());
    let mut frame = Vec::with_capacity(length.saturating_add(8));
    frame.push(EVENT_FIELD);
    varint(&mut frame, length);
    frame.extend_from_slice(&head);
    frame.extend_from_slice(&event.body);
    frame
}

fn varint(bytes: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        bytes.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;
    use crate::proto::{NodeFrame, NodeFrameKind, SectionStatus};

    const LIMIT: usize = 1024 * 1024;

    fn event(sequence: u64, size: usize) -> Stored {
        let status = SectionStatus {
            message: "x".repeat(size),
            ..SectionStatus::default()
        };
        let body = Event {
            body: Some(EventBody::SectionStatus(status)),
            ..Event::default()
        };
        Stored {
            sequence,
            time_ms: 1000 + sequence,
            body: body.encode_to_vec(),
        }
    }

    fn decoded(frame: &[u8]) -> Event {
        match NodeFrame::decode(frame).unwrap().kind {
            Some(NodeFrameKind::Event(event)) => event,
            other => panic!("{other:?}"),
        }
    }

    /// Sends all that may be sent; the sequences.
    fn drain(outbox: &mut Outbox) -> Vec<u64> {
        std::iter::from_fn(|| outbox.next(LIMIT))
            .map(|frame| decoded(&frame).sequence)
            .collect()
    }

    #[test]
    fn events_go_out_whole_once_and_in_order() {
        let mut outbox = Outbox::resume(4, 4, 0);
        assert_eq!(outbox.wants(), Some((4, BATCH)));
        outbox.fill([event(5, 3), event(6, 300), event(9, 70_000)]);
        assert_eq!(outbox.wants(), None);
        let frame = outbox.next(LIMIT).unwrap();
        let sent = decoded(&frame);
        assert_eq!((sent.sequence, sent.time_ms), (5, 1005));
        let Some(EventBody::SectionStatus(status)) = sent.body else {
            panic!("{:?}", sent.body)
        };
        assert_eq!(status.message, "xxx");
        assert_eq!(drain(&mut outbox), [6, 9]);
        assert_eq!(outbox.wants(), Some((9, BATCH)));
        // Read again after a slip of whoever reads: nothing goes out twice.
        outbox.fill([event(8, 1), event(9, 1), event(10, 1)]);
        assert_eq!(drain(&mut outbox), [10]);
    }

    #[test]
    fn a_body_that_a_newer_bcd_wrote_arrives_as_it_was_written() {
        let mut outbox = Outbox::resume(0, 0, 0);
        let body = vec![0x9a, 0x06, 0x02, b'h', b'i'];
        outbox.fill([Stored {
            sequence: 1,
            time_ms: 7,
            body: body.clone(),
        }]);
        let frame = outbox.next(LIMIT).unwrap();
        assert!(frame.ends_with(&body));
        assert_eq!(decoded(&frame).sequence, 1);
    }

    #[test]
    fn no_more_than_the_bound_is_on_its_way() {
        let mut outbox = Outbox::resume(0, 0, 0);
        outbox.fill((1..=1000).map(|n| event(n, 10)));
        assert_eq!(drain(&mut outbox).len(), EVENTS);
        outbox.ack(10).unwrap();
        assert_eq!(drain(&mut outbox), (65..=74).collect::<Vec<_>>());

        let mut outbox = Outbox::resume(0, 0, 0);
        outbox.fill((1..=100).map(|n| event(n, 100_000)));
        assert_eq!(drain(&mut outbox).len(), 5);
        assert!(outbox.bytes <= BYTES);
        outbox.ack(1).unwrap();
        assert_eq!(drain(&mut outbox), [6]);
    }

    #[test]
    fn one_event_larger_than_the_bound_goes_alone() {
        let mut outbox = Outbox::resume(0, 0, 0);
        outbox.fill([event(1, 10), event(2, 900_000), event(3, 10)]);
        assert_eq!(drain(&mut outbox), [1]);
        outbox.ack(1).unwrap();
        assert_eq!(drain(&mut outbox), [2]);
        outbox.ack(2).unwrap();
        assert_eq!(drain(&mut outbox), [3]);
    }

    #[test]
    fn an_event_that_no_frame_can_hold_is_named_as_dropped() {
        let mut outbox = Outbox::resume(0, 0, 0);
        outbox.fill([event(1, LIMIT), event(2, 10)]);
        let sent = decoded(&outbox.next(LIMIT).unwrap());
        let lost = EventsDropped {
            first: 1,
            last: 1,
            count: 1,
        };
        assert_eq!(sent.sequence, 1);
        assert_eq!(sent.body, Some(EventBody::EventsDropped(lost)));
        assert_eq!(drain(&mut outbox), [2]);
    }

    #[test]
    fn acks_are_cumulative_may_be_repeated_and_never_run_ahead() {
        let mut outbox = Outbox::resume(3, 3, 0);
        assert_eq!(
            outbox.ack(4),
            Err(NotSent {
                position: 4,
                sent: 3
            })
        );
        outbox.fill((4..=9).map(|n| event(n, 10)));
        assert_eq!(
            outbox.ack(4),
            Err(NotSent {
                position: 4,
                sent: 3
            }),
            "read is not sent"
        );
        assert_eq!(drain(&mut outbox).len(), 6);
        for position in [6, 6, 2, 0, 8] {
            outbox.ack(position).unwrap();
        }
        assert_eq!(outbox.flight.len(), 1);
        assert_eq!(
            outbox.ack(10),
            Err(NotSent {
                position: 10,
                sent: 9
            })
        );
        outbox.ack(9).unwrap();
        assert_eq!((outbox.flight.len(), outbox.bytes), (0, 0));
    }

    #[test]
    fn what_a_control_plane_lost_after_it_acknowledged_is_named() {
        let mut outbox = Outbox::resume(3, 10, 77);
        assert_eq!(outbox.wants(), None);
        let sent = decoded(&outbox.next(LIMIT).unwrap());
        assert_eq!((sent.sequence, sent.time_ms), (10, 77));
        let lost = EventsDropped {
            first: 4,
            last: 10,
            count: 7,
        };
        assert_eq!(sent.body, Some(EventBody::EventsDropped(lost)));
        assert_eq!(outbox.wants(), Some((10, BATCH)));
        outbox.ack(10).unwrap();
        // One that is behind nothing names nothing.
        assert_eq!(Outbox::resume(10, 3, 0).next(LIMIT), None);
    }
}
