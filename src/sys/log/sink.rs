//! The way out of the log: a line is written whole, or dropped, but never waited for without end.
//!
//! Standard error may be a pipe whose reader has stopped, and the daemon has one thread. What is not taken
//! is counted, and told once something is taken again.
use std::io::Write;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use crate::sys::stop::timespec;

/// A pipe that can be written takes this much at once.
const PIECE: usize = 4096;
/// How long a reader is waited for that was not slow before.
const PATIENCE: Duration = Duration::from_millis(100);

/// For one thread at a time.
pub struct Sink {
    /// Lines that were dropped and not told of.
    lost: AtomicU32,
    /// The last line has no end.
    cut: AtomicBool,
}

impl Sink {
    pub const fn new() -> Self {
        Self {
            lost: AtomicU32::new(0),
            cut: AtomicBool::new(false),
        }
    }

    /// Writes `line`; before it what `told` says of the lines that were dropped since.
    pub fn put<W: Write + AsFd>(&self, to: &mut W, line: String, told: &dyn Fn(u32) -> String) {
        let lost = self.lost.load(Ordering::Relaxed);
        let telling = lost == 0 || self.write(to, told(lost), Duration::ZERO);
        if telling {
            self.lost.fetch_sub(lost, Ordering::Relaxed);
        }
        if !telling || !self.write(to, line, PATIENCE) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Writes a line, unless it would have to be waited for. One that cannot be written for another
    /// reason counts as written: there is nowhere to say that standard error is gone.
    fn write<W: Write + AsFd>(&self, to: &mut W, mut line: String, patience: Duration) -> bool {
        let cut = self.cut.load(Ordering::Relaxed);
        if cut {
            line.insert(0, '\n');
        }
        line.push('\n');
        for (number, piece) in line.as_bytes().chunks(PIECE).enumerate() {
            if !takes(to, patience) {
                self.cut.store(cut || number > 0, Ordering::Relaxed);
                return false;
            }
            let _ = to.write_all(piece);
        }
        self.cut.store(false, Ordering::Relaxed);
        true
    }
}

fn takes(to: &impl AsFd, patience: Duration) -> bool {
    let mut fds = [PollFd::new(to, PollFlags::OUT)];
    // What is no descriptor, or fails to be asked, fails to be written too.
    !matches!(poll(&mut fds, Some(&timespec(patience))), Ok(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_does_not_read_stops_nothing_and_hears_what_it_missed() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let (mut reader, mut writer) = (std::fs::File::from(reader), std::fs::File::from(writer));
        let sink = Sink::new();
        let told = |lost: u32| format!("lost {lost}");
        let line = |n: usize| format!("line {n} {}", "x".repeat(n % 7 * 1500));
        let began = std::time::Instant::now();
        for n in 0..2000 {
            sink.put(&mut writer, line(n), &told);
        }
        assert!(began.elapsed() < Duration::from_secs(5));
        let mut got = vec![0; 1 << 20];
        let length = std::io::Read::read(&mut reader, &mut got).unwrap();
        got.truncate(length);
        sink.put(&mut writer, line(2000), &told);
        drop(writer);
        std::io::Read::read_to_end(&mut reader, &mut got).unwrap();
        let text = String::from_utf8(got).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let (whole, end) = lines.split_at(lines.len() - 2);
        // All but the one that was cut are whole.
        let cut = usize::from(*whole.last().unwrap() != line(whole.len() - 1));
        for (n, one) in whole[..whole.len() - cut].iter().enumerate() {
            assert_eq!(*one, line(n));
        }
        let lost = 2000 - (whole.len() - cut);
        assert_eq!(end[0], told(u32::try_from(lost).unwrap()));
        assert_eq!(end[1], line(2000));
    }
}
