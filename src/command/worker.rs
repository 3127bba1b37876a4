//! The child that asks hardware which may hang: this very program again, with [`ARGUMENT`] as its first
//! argument. It yields to everybody, is the first to go when memory is short, and ends with who started it.
//!
//! What it says to its parent is frames on standard output: a tag of one byte, a length of four,
//! little-endian, and a message: `p` a `CommandProgress`, `f` a `DiagFinding`, `w` a `WipedDisk`; or `h` and none: what it
//! asks hangs, and it will not end by itself.
use std::io::{self, Write};
use std::path::Path;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use super::diag::{Finding, disks, memory};
use super::wipe;
use super::work::UNKNOWN;
use crate::proto::{CommandProgress, DiagFinding, Message, WipedDisk};
use crate::sys::process::{Run, RunError, become_expendable};
use crate::sys::stop::Stop;

/// What makes this program the child. It is for no one else, and in no help.
pub const ARGUMENT: &str = "worker";

/// This program, whatever stands at its path by now.
const SELF: &str = "/proc/self/exe";
/// The longest frame, and the most findings of one child.
const FRAME: usize = 64 * 1024;
const FINDINGS: usize = 64;
const HEAD: usize = 5;

/// What a child found, and how it ended.
pub struct Done {
    pub findings: Vec<DiagFinding>,
    pub wiped: Option<WipedDisk>,
    pub status: ExitStatus,
    /// What it, or the kernel for it, complained of.
    pub complaint: String,
}

/// Runs a child to its end.
///
/// # Errors
/// It could not be started, took longer than `within`, was stopped, or said what no child says. [`Output`](RunError::Output)
/// of the kind `TimedOut`: it said that what it asks hangs.
pub fn run(
    arguments: &[&str],
    within: Duration,
    stop: &Stop,
    progress: &mut dyn FnMut(CommandProgress),
) -> Result<Done, RunError> {
    let mut all = vec![ARGUMENT.to_owned()];
    all.extend(arguments.iter().map(|&argument| argument.to_owned()));
    follow(Path::new(SELF), &all, within, stop, progress)
}

fn follow(
    program: &Path,
    arguments: &[String],
    within: Duration,
    stop: &Stop,
    progress: &mut dyn FnMut(CommandProgress),
) -> Result<Done, RunError> {
    let run = Run {
        program,
        arguments,
        within,
        stop,
    };
    let mut frames = Frames::default();
    let (mut findings, mut wiped) = (Vec::new(), None);
    let ended = run.run(&mut |bytes| {
        let nonsense = || io::Error::other("it says what no child of bcd says");
        let mut hangs = false;
        let mut take = |said| match said {
            Said::Hangs => hangs = true,
            Said::Progress(said) => progress(said),
            Said::Wiped(disk) => wiped = Some(*disk),
            Said::Finding(finding) if findings.len() < FINDINGS => findings.push(finding),
            Said::Finding(_) => {}
        };
        frames.push(bytes, &mut take).ok_or_else(nonsense)?;
        match hangs {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => Ok(()),
        }
    })?;
    Ok(Done {
        findings,
        wiped,
        status: ended.status,
        complaint: ended.complaint,
    })
}

/// What a child says.
#[derive(Debug, PartialEq)]
pub enum Said {
    Progress(CommandProgress),
    Finding(DiagFinding),
    Wiped(Box<WipedDisk>),
    Hangs,
}

/// Frames as they come, in pieces.
#[derive(Default)]
pub struct Frames(Vec<u8>);

impl Frames {
    /// Takes `bytes`, and gives what is whole to `take`; `None` when they are no frames. Between two calls less
    /// than a frame is held.
    pub fn push(&mut self, bytes: &[u8], take: &mut dyn FnMut(Said)) -> Option<()> {
        self.0.extend_from_slice(bytes);
        let mut rest = self.0.as_slice();
        while let Some((&[tag, a, b, c, d], body)) = rest.split_first_chunk::<HEAD>() {
            let length = usize::try_from(u32::from_le_bytes([a, b, c, d])).ok()?;
            if length > FRAME {
                return None;
            }
            let Some((body, next)) = body.split_at_checked(length) else {
                break;
            };
            take(match tag {
                b'p' => Said::Progress(CommandProgress::decode(body).ok()?),
                b'w' => Said::Wiped(Box::new(WipedDisk::decode(body).ok()?)),
                b'h' if body.is_empty() => Said::Hangs,
                b'f' => Said::Finding(DiagFinding::decode(body).ok()?),
                _ => return None,
            });
            rest = next;
        }
        let taken = self.0.len() - rest.len();
        self.0.drain(..taken);
        Some(())
    }
}

/// A child's way to its parent.
pub struct Parent<W>(W);

impl<W: Write> Parent<W> {
    pub fn new(way: W) -> Self {
        Self(way)
    }

    /// # Errors
    /// The parent is gone.
    pub fn progress(&mut self, percent: u32, message: &str) -> io::Result<()> {
        let progress = CommandProgress {
            percent: percent.min(UNKNOWN),
            message: message.to_owned(),
            ..CommandProgress::default()
        };
        self.say(b'p', &progress.encode_to_vec())
    }

    /// # Errors
    /// The parent is gone.
    pub fn finding(&mut self, finding: &Finding) -> io::Result<()> {
        self.say(b'f', &finding.0.encode_to_vec())
    }

    /// # Errors
    /// The parent is gone.
    pub fn wiped(&mut self, disk: &WipedDisk) -> io::Result<()> {
        self.say(b'w', &disk.encode_to_vec())
    }

    /// # Errors
    /// The parent is gone.
    pub fn hangs(&mut self) -> io::Result<()> {
        self.say(b'h', &[])
    }

    fn say(&mut self, tag: u8, body: &[u8]) -> io::Result<()> {
        let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
        let mut frame = vec![tag];
        frame.extend_from_slice(&length.to_le_bytes());
        frame.extend_from_slice(body);
        self.0.write_all(&frame)?;
        self.0.flush()
    }
}

/// Is the child: `arguments` are those behind [`ARGUMENT`].
pub fn serve(arguments: &[String]) -> ExitCode {
    become_expendable();
    let mut parent = Parent::new(io::stdout().lock());
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let said = match arguments.as_slice() {
        ["memory", rest @ ..] => memory::serve(rest, &mut parent),
        ["disk", way, name] => disks::serve(way, name, &mut parent),
        ["wipe", work, methods, now_ms] => wipe::serve(work, methods, now_ms, &mut parent),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    };
    // A parent that is gone has no use for words; what else fails is told it.
    match said {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use std::time::Instant;

    use super::*;
    use crate::command::id::Id;
    use crate::command::work::Progress;
    use crate::rt::channel::channel;

    fn said() -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut parent = Parent::new(&mut bytes);
        parent.progress(40, "half").unwrap();
        let mut finding = Finding::new("disk");
        finding.number("temperature_c", 31);
        parent.finding(&finding).unwrap();
        parent.progress(999, "").unwrap();
        bytes
    }

    #[test]
    fn what_a_child_says_is_heard_however_it_is_cut() {
        let bytes = said();
        for step in [1, 2, 7, bytes.len()] {
            let (mut frames, mut heard) = (Frames::default(), Vec::new());
            for piece in bytes.chunks(step) {
                frames.push(piece, &mut |said| heard.push(said)).unwrap();
            }
            assert_eq!(heard.len(), 3);
            assert!(
                matches!(&heard[0], Said::Progress(p) if p.percent == 40 && p.message == "half")
            );
            assert!(matches!(&heard[1], Said::Finding(f) if f.subject == "disk"));
            assert!(matches!(&heard[2], Said::Progress(p) if p.percent == UNKNOWN));
            assert!(frames.0.is_empty());
        }
    }

    #[test]
    fn nonsense_is_no_frame() {
        for bytes in [
            &b"hello"[..],
            b"p\xff\xff\xff\xff",
            b"f\x01\0\0\0\xff",
            b"x\0\0\0\0",
            b"h\x01\0\0\0 ",
        ] {
            assert_eq!(
                Frames::default().push(bytes, &mut |_| ()),
                None,
                "{bytes:?}"
            );
        }
    }

    fn shell(script: &str, within: Duration) -> Result<Done, RunError> {
        let (frames, _kept) = channel(1);
        let id = Id::parse("cmd_00000000000000000000000000").unwrap();
        follow(
            Path::new("/bin/sh"),
            &["-c".to_owned(), script.to_owned()],
            within,
            &Stop::new().unwrap(),
            &mut Progress::new(id, frames).taker(),
        )
    }

    /// As the shell's printf takes it.
    fn octal(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("\\{byte:03o}")).collect()
    }

    #[test]
    fn a_child_that_hangs_is_ended_in_its_time_and_one_that_lies_or_tells_it_at_once() {
        let begun = Instant::now();
        let script = format!("printf '{}'; sleep 600", octal(&said()));
        let hung = shell(&script, Duration::from_millis(300));
        assert!(matches!(hung, Err(RunError::TimedOut { .. })));
        let lied = shell("echo hello, parent; sleep 600", Duration::from_secs(60));
        assert!(
            matches!(lied, Err(RunError::Output(error)) if error.kind() != io::ErrorKind::TimedOut)
        );
        let mut told = Vec::new();
        Parent::new(&mut told).hangs().unwrap();
        let script = format!("printf '{}'; sleep 600", octal(&[said(), told].concat()));
        let left = shell(&script, Duration::from_secs(60));
        assert!(
            matches!(left, Err(RunError::Output(error)) if error.kind() == io::ErrorKind::TimedOut)
        );
        assert!(begun.elapsed() < Duration::from_secs(20));
        let script = format!("printf '{}'; kill -BUS $$", octal(&said()));
        let ended = shell(&script, Duration::from_secs(60)).unwrap();
        assert_eq!(ended.findings.len(), 1);
        assert!(!ended.status.success());
    }
}
