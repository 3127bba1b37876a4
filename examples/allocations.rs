//! Counts the allocations of what happens most often, for tests/numbers/test_allocations.py: SPECIFICATION.md has their bounds.
//!
//! ```text
//! allocations DIR      prints {"journal": …, "session": …, …}: how often memory was asked for, each time; DIR is for a journal
//! ```
//! Counted is every call of the allocator, growing included, of all threads.
use std::alloc::{GlobalAlloc, Layout, System};
use std::error::Error;
use std::hint::black_box;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use bcd::journal::{Class, Entry, Journal, Limits, Stored};
use bcd::proto::{
    Ack, Event, EventBody, GatewayFrame, GatewayFrameKind, Heartbeat, Message, NodeFrame,
    NodeFrameKind, SectionStatus,
};
use bcd::session::outbox::Outbox;
use bcd::sys::fs::Dir;
use bcd::wire::grpc::{MESSAGE_LIMIT, seams};

type Failure = Box<dyn Error + Send + Sync>;

/// Times each of them is done; what happens once in a while is shared by so many.
const TIMES: u64 = 1000;

struct Counting;

static ASKED: AtomicU64 = AtomicU64::new(0);

// SAFETY: all of it is the system's allocator, to which the caller's promises go on unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ASKED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ASKED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of one of TIMES runs, after as many that do not count.
fn count(mut work: impl FnMut(u64) -> Result<(), Failure>) -> Result<f64, Failure> {
    (0..TIMES).try_for_each(&mut work)?;
    let before = ASKED.load(Ordering::Relaxed);
    (TIMES..2 * TIMES).try_for_each(&mut work)?;
    Ok((ASKED.load(Ordering::Relaxed) - before) as f64 / TIMES as f64)
}

fn main() -> Result<(), Failure> {
    let directory = std::env::args().nth(1).ok_or("usage: allocations DIR")?;
    let body = Event {
        body: Some(EventBody::SectionStatus(SectionStatus {
            section: "log".to_owned(),
            message: "x".repeat(300),
            ..SectionStatus::default()
        })),
        ..Event::default()
    }
    .encode_to_vec();
    println!(
        "{{\"journal\": {}, \"session\": {}, \"ack\": {}, \"heartbeat\": {}, \"gateway\": {}}}",
        journal(&directory, &body)?,
        session(&body)?,
        ack()?,
        heartbeat()?,
        gateway(&body)?,
    );
    Ok(())
}

/// A commit of one event, to the disk and back, acknowledged a hundred events later.
fn journal(directory: &str, body: &[u8]) -> Result<f64, Failure> {
    let limits = Limits {
        max_bytes: 8 << 20,
        max_events: 10_000,
    };
    let (journal, _) = Journal::open(&Dir::open(Path::new(directory))?, "node_count", limits)?;
    let entry = || {
        vec![Entry::Event {
            class: Class::Result,
            body: body.to_vec(),
        }]
    };
    // What is to be stored is the caller's, and made before.
    let mut ready: Vec<Vec<Entry>> = (0..2 * TIMES).map(|_| entry()).collect();
    count(|_| {
        let done = journal.commit_blocking(ready.pop().ok_or("too few")?)?;
        journal.ack(done.last.saturating_sub(100));
        Ok(())
    })
}

/// An event that was read from the journal goes out as a frame of HTTP/2's data, and is acknowledged.
fn session(body: &[u8]) -> Result<f64, Failure> {
    let mut outbox = Outbox::resume(0, 0, 0);
    let mut read: Vec<Stored> = (1..=2 * TIMES)
        .rev()
        .map(|sequence| Stored {
            sequence,
            time_ms: 1_764_500_000_000,
            body: body.to_vec(),
        })
        .collect();
    count(|number| {
        outbox.fill(read.pop());
        let frame = outbox.next(MESSAGE_LIMIT).ok_or("nothing to send")?;
        black_box(seams::frame(&frame, MESSAGE_LIMIT)?);
        outbox
            .ack(number + 1)
            .map_err(|_| "it was never sent".into())
    })
}

/// What the gateway says then, read by the node.
fn ack() -> Result<f64, Failure> {
    let frame = GatewayFrame {
        kind: Some(GatewayFrameKind::Ack(Ack { position: 70_000 })),
    }
    .encode_to_vec();
    count(|_| {
        black_box(GatewayFrame::decode(&frame)?);
        Ok(())
    })
}

/// A heartbeat, made and framed.
fn heartbeat() -> Result<f64, Failure> {
    let beat = NodeFrame {
        kind: Some(NodeFrameKind::Heartbeat(Heartbeat::default())),
    };
    count(|_| {
        black_box(seams::frame(&beat.encode_to_vec(), MESSAGE_LIMIT)?);
        Ok(())
    })
}

/// A node's frame with an event, read by the gateway.
fn gateway(body: &[u8]) -> Result<f64, Failure> {
    let frame = NodeFrame {
        kind: Some(NodeFrameKind::Event(Event {
            sequence: 70_000,
            time_ms: 1_764_500_000_000,
            ..Event::decode(body)?
        })),
    }
    .encode_to_vec();
    count(|_| {
        black_box(NodeFrame::decode(&frame)?);
        Ok(())
    })
}
