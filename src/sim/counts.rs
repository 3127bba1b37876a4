//! What a simulation counts, and how it is told. All threads share one [`Counts`].
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Pieces of a doubling: what a percentile says is at most an eighth too much.
const PIECES: u32 = 8;
/// Doublings of a millisecond: up to some 36 hours.
const DOUBLINGS: u32 = 27;

/// A number that many threads count up, and some down.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub fn sub(&self, less: u64) {
        self.0.fetch_sub(less, Ordering::Relaxed);
    }

    pub fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How long something took, over all nodes.
pub struct Times(Box<[AtomicU32]>);

impl Default for Times {
    fn default() -> Self {
        let pieces = 0..PIECES * DOUBLINGS;
        Self(pieces.map(|_| AtomicU32::new(0)).collect())
    }
}

impl Times {
    pub fn add(&self, took: Duration) {
        let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let last = self.0.len().saturating_sub(1);
        if let Some(piece) = self.0.get(piece(ms).min(last)) {
            piece.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What so many percent of all took at most, in milliseconds; 0 of none.
    pub fn percentile(&self, percent: u64) -> u64 {
        let load = |piece: &AtomicU32| u64::from(piece.load(Ordering::Relaxed));
        let all: u64 = self.0.iter().map(load).sum();
        let wanted = all.saturating_mul(percent).div_ceil(100);
        let mut seen = 0;
        for (number, piece) in self.0.iter().enumerate() {
            seen += load(piece);
            if seen > 0 && seen >= wanted {
                return most(number);
            }
        }
        0
    }
}

/// The piece that holds so many milliseconds: the first 8 one each, then 8 to each doubling.
fn piece(ms: u64) -> usize {
    let pieces = u64::from(PIECES);
    if ms < pieces {
        return usize::try_from(ms).unwrap_or(0);
    }
    let doubling = ms.ilog2() - PIECES.ilog2();
    let within = (ms >> doubling) - pieces;
    let piece = pieces * u64::from(doubling + 1) + within;
    usize::try_from(piece).unwrap_or(usize::MAX)
}

/// The most milliseconds that a piece holds.
fn most(piece: usize) -> u64 {
    let piece = u64::try_from(piece).unwrap_or(u64::MAX);
    let pieces = u64::from(PIECES);
    match (piece / pieces).checked_sub(1) {
        None => piece,
        Some(doubling) => ((pieces + piece % pieces + 1) << doubling) - 1,
    }
}

/// See the module's head.
#[derive(Default)]
pub struct Counts {
    /// Nodes that joined, and those that could not.
    pub joined: Count,
    pub not_joined: Count,
    /// Nodes with a session now.
    pub connected: Count,
    /// Sessions that were opened, and those among them that took the place of one that was lost.
    pub sessions: Count,
    pub reconnects: Count,
    /// Tries that led to no session.
    pub failed_tries: Count,
    /// Faults that were brought about.
    pub cuts: Count,
    pub crashes: Count,
    pub joins_lost: Count,
    pub acks_lost: Count,
    /// Events that journals took, and those of them that the control plane acknowledged; among these the
    /// ones whose acknowledgement came with the next `Welcome` alone.
    pub events: Count,
    pub acknowledged: Count,
    pub resumed: Count,
    /// Commands whose work was begun.
    pub commands: Count,
    /// Acknowledged events that the control plane has lost.
    pub lost: Count,
    /// Joins that gave a second identity, commands begun twice, journals of which the control plane has more
    /// than was ever written.
    pub doubled: Count,
    pub join: Times,
    /// From a session's end to the next one's `Welcome`, the wait that the gateway asks for included.
    pub back: Times,
}

impl Counts {
    /// Events that are not acknowledged.
    pub fn open_events(&self) -> u64 {
        self.events.now().saturating_sub(self.acknowledged.now())
    }

    /// One line, for people.
    pub fn line(&self, nodes: u64, elapsed: Duration) -> String {
        let mut line = format!(
            "{} s, joined {} of {nodes}",
            elapsed.as_secs(),
            self.joined.now()
        );
        for (word, count) in [
            ("not joined", &self.not_joined),
            ("connected", &self.connected),
            ("reconnects", &self.reconnects),
            ("events", &self.events),
            ("acknowledged", &self.acknowledged),
            ("lost", &self.lost),
            ("doubled", &self.doubled),
        ] {
            if word != "not joined" || count.now() > 0 {
                let _ = write!(line, ", {word} {}", count.now());
            }
        }
        for (name, times) in [("join", &self.join), ("back", &self.back)] {
            let (half, most) = (times.percentile(50), times.percentile(99));
            let _ = write!(line, ", {name} p50 {half} ms p99 {most} ms");
        }
        line
    }

    /// The members of a JSON object, without its braces.
    pub fn members(&self) -> String {
        let mut text = String::new();
        for (name, count) in [
            ("joined", &self.joined),
            ("not_joined", &self.not_joined),
            ("connected", &self.connected),
            ("sessions", &self.sessions),
            ("reconnects", &self.reconnects),
            ("failed_tries", &self.failed_tries),
            ("cuts", &self.cuts),
            ("crashes", &self.crashes),
            ("joins_lost", &self.joins_lost),
            ("acks_lost", &self.acks_lost),
            ("events", &self.events),
            ("acknowledged", &self.acknowledged),
            ("resumed", &self.resumed),
            ("commands", &self.commands),
            ("lost", &self.lost),
            ("doubled", &self.doubled),
        ] {
            let _ = write!(text, "\"{name}\":{},", count.now());
        }
        for (name, times) in [("join_ms", &self.join), ("back_ms", &self.back)] {
            let _ = write!(text, "\"{name}\":{{");
            for percent in [50, 90, 99, 100] {
                let comma = if percent == 100 { "" } else { "," };
                let _ = write!(text, "\"p{percent}\":{}{comma}", times.percentile(percent));
            }
            text.push_str("},");
        }
        text.pop();
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_holds_what_is_at_most_an_eighth_apart() {
        let mut before = 0;
        for ms in (0..5000).chain([1 << 20, 1 << 26, (1 << 30) - 1]) {
            let its = piece(ms);
            assert!(its >= before, "{ms}");
            before = its;
            assert!(
                most(its) >= ms && most(its) <= ms + ms / 8,
                "{ms}: {}",
                most(its)
            );
            assert!(its == 0 || most(its - 1) < ms, "{ms}");
        }
        assert!(piece((1 << 30) - 1) < (PIECES * DOUBLINGS) as usize + 8);
    }

    #[test]
    fn percentiles_are_of_all_that_was_counted() {
        let times = Times::default();
        assert_eq!(times.percentile(99), 0);
        for ms in 1..=100 {
            times.add(Duration::from_millis(ms));
        }
        assert_eq!(times.percentile(1), 1);
        assert_eq!(times.percentile(50), 51);
        assert!((99..=103).contains(&times.percentile(99)));
        times.add(Duration::MAX);
        assert!(times.percentile(100) > 100_000_000);
        assert!(times.percentile(99) < 110);
    }

    #[test]
    fn the_members_make_a_json_object() {
        use crate::crypto::json;
        let counts = Counts::default();
        counts.events.add(7);
        let text = format!("{{{}}}", counts.members());
        assert!(json::check(text.as_bytes(), 4096, 4).is_ok(), "{text}");
        assert!(text.contains("\"events\":7,"));
    }
}
