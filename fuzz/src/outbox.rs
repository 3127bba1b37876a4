//! A session's outbox under any order of reading, sending and acknowledging: events go out once and in
//! order, never more than the bound are on their way, and an acknowledgement of what was not sent is refused.
use bcd::journal::Stored;
use bcd::session::outbox::{BYTES, EVENTS, Outbox};

pub const HEAP: super::Heap = super::Heap {
    base: 4 << 20,
    per_byte: 96 << 10,
};

const LIMIT: usize = 1 << 20;

pub fn run(data: &[u8]) {
    let (resume, forgotten) = match data {
        [resume, forgotten, ..] => (u64::from(*resume), u64::from(*forgotten)),
        _ => (0, 0),
    };
    let mut outbox = Outbox::resume(resume, forgotten, 0);
    let mut written = resume.max(forgotten);
    let mut sent = resume;
    let mut flight: Vec<(u64, usize)> = Vec::new();
    for pair in data.chunks_exact(2).skip(1) {
        let (what, size) = (pair[0] % 4, pair[1]);
        match what {
            0 | 1 => {
                written += 1 + u64::from(what);
                outbox.fill([Stored {
                    sequence: written,
                    time_ms: 0,
                    body: vec![0; usize::from(size) << (what * 8)],
                }]);
            }
            2 => {
                while let Some(frame) = outbox.next(LIMIT) {
                    assert!(frame.len() <= LIMIT);
                    let sequence = sequence(&frame);
                    assert!(
                        sequence > sent && sequence <= written,
                        "{sequence} after {sent}"
                    );
                    sent = sequence;
                    flight.push((sequence, frame.len()));
                    let bytes: usize = flight.iter().map(|(_, bytes)| bytes).sum();
                    assert!(flight.len() <= EVENTS && (bytes <= BYTES || flight.len() == 1));
                }
            }
            _ => {
                let position = sent.saturating_sub(100) + u64::from(size);
                assert_eq!(outbox.ack(position).is_ok(), position <= sent);
                if position <= sent {
                    flight.retain(|(sequence, _)| *sequence > position);
                }
            }
        }
    }
}

/// Of the event in a frame: `NodeFrame.event`, its length, `Event.sequence`.
fn sequence(frame: &[u8]) -> u64 {
    let skip = |bytes: &[u8]| bytes.iter().position(|b| b & 0x80 == 0).expect("an end") + 1;
    let rest = &frame[1 + skip(&frame[1..])..];
    assert_eq!(rest[0], 8, "the sequence comes first");
    let digits = &rest[1..][..skip(&rest[1..])];
    digits
        .iter()
        .rev()
        .fold(0, |n, b| n << 7 | u64::from(b & 0x7f))
}
