//! No line is written more than once a minute: what repeats is counted, and the count is told with the
//! next such line, or by itself once the minute is over and anything else is written. There is no timer.
use std::time::Duration;

use super::Level;

/// For so long a line keeps its likes back.
const WINDOW: Duration = Duration::from_secs(60);

/// Lines that are remembered. The one written longest ago makes place.
const LINES: usize = 32;

/// A line that was written.
#[derive(Clone, Copy)]
struct Line {
    key: u64,
    name: &'static str,
    level: Level,
    at: Duration,
    /// Its likes that were kept back since.
    kept: u32,
}

/// The lines of the last minute.
pub struct Repeats {
    lines: Vec<Line>,
}

/// What becomes of a line.
#[derive(Debug, PartialEq, Eq)]
pub enum Said {
    /// It is written; so many of its likes were not.
    Write(u32),
    KeptBack,
}

impl Repeats {
    pub const fn new() -> Self {
        Self { lines: Vec::new() }
    }

    /// A line comes, whose text has the hash `key`.
    pub fn take(&mut self, key: u64, name: &'static str, level: Level, now: Duration) -> Said {
        let mut kept = 0;
        if let Some(at) = self.lines.iter().position(|line| line.key == key) {
            if let Some(line) = self.lines.get_mut(at)
                && now.saturating_sub(line.at) < WINDOW
            {
                line.kept = line.kept.saturating_add(1);
                return Said::KeptBack;
            }
            kept = self.lines.remove(at).kept;
        } else if self.lines.len() >= LINES {
            // The oldest stands first; with one that has a count something is lost only when 32
            // different lines repeat within a minute.
            let place = self.lines.iter().position(|line| line.kept == 0);
            self.lines.remove(place.unwrap_or(0));
        }
        self.lines.push(Line {
            key,
            name,
            level,
            at: now,
            kept: 0,
        });
        Said::Write(kept)
    }

    /// A line whose minute is over and whose likes were kept back: its name, its level and their count,
    /// once.
    pub fn overdue(&mut self, now: Duration) -> Option<(&'static str, Level, u32)> {
        let over = |line: &Line| line.kept > 0 && now.saturating_sub(line.at) >= WINDOW;
        let at = self.lines.iter().position(over)?;
        let line = self.lines.remove(at);
        Some((line.name, line.level, line.kept))
    }
}

/// FNV-1a: the same for the same text.
pub struct Hash(pub u64);

impl Hash {
    pub const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    pub fn add(&mut self, text: &str) {
        for byte in text.bytes().chain([0xff]) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn a_line_that_repeats_is_written_once_a_minute_with_a_count() {
        let mut repeats = Repeats::new();
        assert_eq!(repeats.take(1, "a", Level::Warn, secs(0)), Said::Write(0));
        for second in 1..60 {
            assert_eq!(
                repeats.take(1, "a", Level::Warn, secs(second)),
                Said::KeptBack
            );
            assert_eq!(repeats.overdue(secs(second)), None);
        }
        assert_eq!(repeats.take(2, "a", Level::Warn, secs(59)), Said::Write(0));
        assert_eq!(repeats.take(1, "a", Level::Warn, secs(60)), Said::Write(59));
        assert_eq!(repeats.take(1, "a", Level::Warn, secs(119)), Said::KeptBack);
        assert_eq!(repeats.take(1, "a", Level::Warn, secs(120)), Said::Write(1));
        assert_eq!(repeats.overdue(secs(500)), None);
    }

    #[test]
    fn a_count_is_told_once_by_whatever_is_written_after_the_minute() {
        let mut repeats = Repeats::new();
        assert_eq!(repeats.take(1, "a", Level::Warn, secs(0)), Said::Write(0));
        assert_eq!(repeats.take(1, "a", Level::Warn, secs(1)), Said::KeptBack);
        assert_eq!(repeats.overdue(secs(59)), None);
        assert_eq!(repeats.overdue(secs(60)), Some(("a", Level::Warn, 1)));
        assert_eq!(repeats.overdue(secs(61)), None);
        assert_eq!(repeats.take(1, "a", Level::Warn, secs(61)), Said::Write(0));
    }

    #[test]
    fn many_different_lines_fill_no_memory_and_the_ones_that_repeat_stay() {
        let mut repeats = Repeats::new();
        assert_eq!(repeats.take(0, "a", Level::Warn, secs(0)), Said::Write(0));
        assert_eq!(repeats.take(0, "a", Level::Warn, secs(0)), Said::KeptBack);
        for key in 1..1000 {
            assert_eq!(repeats.take(key, "b", Level::Warn, secs(1)), Said::Write(0));
        }
        assert!(repeats.lines.len() <= LINES);
        assert_eq!(repeats.take(0, "a", Level::Warn, secs(2)), Said::KeptBack);
    }
}
