//! `diag.*`: how the machine's hardware is, asked of the hardware itself.
//!
//! What it promises:
//! - Nothing is changed: no self-test is begun, no counter reset, no byte of a disk written.
//! - Whatever hangs, hangs alone: memory and disks are asked by a child of ours that yields to everybody
//!   and is ended at once, and a disk that does not answer costs its own time and no other's result.
//! - What could not be asked is told as that, with the reason, and never as well.
//!
//! How the parts fit: each kind makes [`Finding`]s, one for a disk, an interface, a test. [`Report`] tells
//! them by events as they come, and makes the command's result of them. [`nvme`], [`ata`], [`scsi`] and [`dcgm`] read
//! what devices and programs say, and are pure; [`disks`] and [`memory`] ask, in the child that
//! [`worker`](super::worker) starts.
use std::fmt::Write as _;

use super::machine::{Failure, Outcome};
use super::work::Context;
use crate::facts::tree::clean;
use crate::proto::{
    DiagFinding, DiagReading, DiagReport, DiagResult, DiagVerdict, Event, EventBody, Message,
};

pub mod ata;
pub mod dcgm;
pub(super) mod disks;
pub mod ethtool;
pub mod memory;
pub mod network;
pub mod nvme;
pub mod scsi;

pub use self::dcgm::Dcgm;
pub use self::disks::Disks;
pub use self::memory::Test;
pub use self::network::Network;

/// docs/protocol.md 6: of a finding, and of a result.
const PROBLEMS: usize = 16;
const READINGS: usize = 128;
const SUMMED: usize = 32;
/// An event is told once it has this many bytes. The largest finding is smaller still.
const PART: usize = 64 * 1024;

/// How one thing is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Finding(pub DiagFinding);

impl Finding {
    pub fn new(subject: &str) -> Self {
        Self(DiagFinding {
            subject: subject.to_owned(),
            ..DiagFinding::default()
        })
    }

    /// It was asked: well, unless something is said.
    pub fn asked(&mut self) {
        self.raise(DiagVerdict::OK);
    }

    /// Something is wrong, or not known; `parts` together are the sentence.
    pub fn say(&mut self, verdict: DiagVerdict, parts: &[&str]) {
        self.raise(verdict);
        if self.0.problems.len() < PROBLEMS {
            self.0.problems.push(clean(parts.concat().as_bytes()));
        }
    }

    fn raise(&mut self, verdict: DiagVerdict) {
        if verdict.0 > self.0.verdict.0 {
            self.0.verdict = verdict;
        }
    }

    /// A number that was read. What is beyond 2^63 is shown as that.
    pub fn number(&mut self, name: &str, number: u64) {
        self.signed(name, i64::try_from(number).unwrap_or(i64::MAX));
    }

    pub fn signed(&mut self, name: &str, number: i64) {
        self.read(name, number, String::new());
    }

    /// A text that was read; an empty one is none.
    pub fn text(&mut self, name: &str, text: &str) {
        let text = clean(text.as_bytes());
        if !text.is_empty() {
            self.read(name, 0, text);
        }
    }

    fn read(&mut self, name: &str, number: i64, text: String) {
        let name = clean(name.as_bytes());
        let readings = &mut self.0.readings;
        if readings.len() < READINGS && !readings.iter().any(|known| known.name == name) {
            readings.push(DiagReading { name, number, text });
        }
    }
}

/// A number for a sentence.
fn shown(number: u64) -> String {
    number.to_string()
}

/// A number in hexadecimal, for a sentence.
fn hex(number: u64) -> String {
    let mut text = String::new();
    let _ = write!(text, "{number:#x}");
    text
}

/// What a command found so far.
pub struct Report<'a> {
    command_id: String,
    kind: &'static str,
    /// Makes an event of each part.
    tell: &'a mut dyn FnMut(Event) -> Result<(), Failure>,
    held: Vec<DiagFinding>,
    bytes: usize,
    result: DiagResult,
    /// All that is told of in the result, with how grave it is.
    problems: Vec<(i32, String)>,
}

impl<'a> Report<'a> {
    pub fn new(
        command_id: String,
        kind: &'static str,
        tell: &'a mut dyn FnMut(Event) -> Result<(), Failure>,
    ) -> Self {
        Self {
            command_id,
            kind,
            tell,
            held: Vec::new(),
            bytes: 0,
            result: DiagResult::default(),
            problems: Vec::new(),
        }
    }

    /// # Errors
    /// The journal does not take it.
    pub fn add(&mut self, finding: Finding) -> Result<(), Failure> {
        let mut finding = finding.0;
        finding.subject = clean(finding.subject.as_bytes());
        let result = &mut self.result;
        let count = match finding.verdict {
            DiagVerdict::OK => &mut result.ok,
            DiagVerdict::WARN => &mut result.warn,
            DiagVerdict::FAIL => &mut result.fail,
            _ => {
                // Nothing was read of it, and nothing said.
                finding.verdict = DiagVerdict::UNKNOWN;
                &mut result.unknown
            }
        };
        *count += 1;
        if finding.verdict.0 > result.verdict.0 {
            result.verdict = finding.verdict;
        }
        for problem in &finding.problems {
            let problem = [&finding.subject, ": ", problem].concat();
            // The gravest first, and those as they came.
            let at = self
                .problems
                .partition_point(|(grave, _)| *grave >= finding.verdict.0);
            if at < SUMMED {
                self.problems.insert(at, (finding.verdict.0, problem));
                self.problems.truncate(SUMMED);
            }
        }
        self.bytes += finding.encoded_len();
        self.held.push(finding);
        match self.bytes >= PART {
            true => self.flush(),
            false => Ok(()),
        }
    }

    fn flush(&mut self) -> Result<(), Failure> {
        self.result.reports += 1;
        self.bytes = 0;
        let report = DiagReport {
            command_id: self.command_id.clone(),
            kind: self.kind.to_owned(),
            part: self.result.reports,
            findings: std::mem::take(&mut self.held),
        };
        (self.tell)(Event {
            body: Some(EventBody::DiagReport(report)),
            ..Event::default()
        })
    }

    /// Tells what is left, and gives the result.
    ///
    /// # Errors
    /// The journal does not take it.
    pub fn finish(mut self) -> Result<DiagResult, Failure> {
        if !self.held.is_empty() {
            self.flush()?;
        }
        self.result.problems = self.problems.into_iter().map(|(_, text)| text).collect();
        Ok(self.result)
    }
}

/// A diagnosis: it finds, and reports.
pub type Run<'a> = &'a mut dyn FnMut(&mut Context, &mut Report<'_>) -> Result<(), Failure>;

/// Runs a diagnosis of `kind` to its result.
///
/// # Errors
/// Nothing could be found, or the journal does not take what was.
pub fn run(kind: &'static str, context: &mut Context, run: Run<'_>) -> Result<Outcome, Failure> {
    let journal = context.journal.clone();
    let mut tell = |event: Event| {
        let event = crate::journal::Entry::Event {
            class: crate::journal::Class::Status,
            body: event.encode_to_vec(),
        };
        journal
            .commit_blocking(vec![event])
            .map(drop)
            .map_err(|error| super::kinds::explained("StorageFault", &error))
    };
    let mut report = Report::new(context.id.to_string(), kind, &mut tell);
    run(context, &mut report)?;
    let result = report.finish()?;
    Ok(Outcome::Succeeded(result.encode_to_vec()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    fn finding(subject: &str, verdict: DiagVerdict, problem: &str) -> Finding {
        let mut finding = Finding::new(subject);
        finding.asked();
        if !problem.is_empty() {
            finding.say(verdict, &[problem]);
        }
        finding
    }

    fn reported(findings: Vec<Finding>) -> (DiagResult, Vec<DiagReport>) {
        let mut parts = Vec::new();
        let mut tell = |event: Event| {
            assert!(event.encode_to_vec().len() < 256 * 1024);
            if let Some(EventBody::DiagReport(report)) = event.body {
                parts.push(report);
            }
            Ok(())
        };
        let mut report = Report::new("cmd_x".to_owned(), "diag.disks", &mut tell);
        for finding in findings {
            report.add(finding).unwrap();
        }
        (report.finish().unwrap(), parts)
    }

    #[test]
    fn the_result_is_as_bad_as_the_worst_finding_and_names_the_gravest_first() {
        let (result, parts) = reported(vec![
            finding("a", DiagVerdict::OK, ""),
            finding("b", DiagVerdict::WARN, "worn"),
            Finding::new("c"),
            finding("d", DiagVerdict::FAIL, "dead"),
            finding("e", DiagVerdict::WARN, "hot"),
            finding("f", DiagVerdict::UNKNOWN, "silent"),
        ]);
        assert_eq!(result.verdict, DiagVerdict::FAIL);
        let counts = [result.ok, result.unknown, result.warn, result.fail];
        assert_eq!(counts, [1, 2, 2, 1]);
        assert_eq!(
            result.problems,
            ["d: dead", "b: worn", "e: hot", "f: silent"]
        );
        assert_eq!((parts.len(), parts[0].part, result.reports), (1, 1, 1));
        assert_eq!(parts[0].findings[2].verdict, DiagVerdict::UNKNOWN);
        let (nothing, parts) = reported(Vec::new());
        assert_eq!((nothing, parts), (DiagResult::default(), Vec::new()));
    }

    #[test]
    fn hundreds_of_full_findings_are_several_events_each_within_its_bound() {
        let full = |n: usize| {
            let mut finding = Finding::new(&format!("{n:0300}"));
            for m in 0..200 {
                finding.text(&format!("reading_{m}"), &"x".repeat(300));
                finding.say(DiagVerdict::WARN, &[&"y".repeat(300)]);
            }
            assert_eq!(
                (finding.0.readings.len(), finding.0.problems.len()),
                (128, 16)
            );
            finding
        };
        let (result, parts) = reported((0..256).map(full).collect());
        assert!(parts.len() > 10);
        assert_eq!(result.reports as usize, parts.len());
        let numbers: Vec<u32> = parts.iter().map(|part| part.part).collect();
        assert_eq!(numbers, (1..=result.reports).collect::<Vec<_>>());
        assert_eq!(
            parts.iter().map(|part| part.findings.len()).sum::<usize>(),
            256
        );
        assert_eq!(result.problems.len(), SUMMED);
        assert!(result.encode_to_vec().len() < 32 * 1024);
    }

    #[test]
    fn a_reading_is_there_once_and_fits() {
        let mut finding = Finding::new("x");
        finding.number("a", u64::MAX);
        finding.number("a", 1);
        finding.text("b", "");
        finding.text("c", "two\nlines");
        let readings = finding.0.readings;
        assert_eq!(readings.len(), 2);
        assert_eq!(readings[0].number, i64::MAX);
        assert_eq!(readings[1].text, "two");
    }
}
