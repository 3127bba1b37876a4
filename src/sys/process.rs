//! Outside programs: run directly, never by a shell, and never left behind.
//!
//! A program runs in a process group of its own, which is killed with it when its time is over,
//! when its caller is told to stop, and when it has ended and left children. Its standard input is
//! /dev/null, its environment a fixed one, its directory `/`, and no descriptor of ours reaches it.
//! What it prints is handed on as it comes; of what it complains, the end is kept.
use std::error::Error as StdError;
use std::fmt;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group,
    pidfd_open, set_dumpable_behavior, waitid,
};

use super::stop::{Stop, timespec};

/// Where programs are looked for, whatever the environment says.
const PLACES: [&str; 4] = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// How much of standard error is kept.
const COMPLAINT: usize = 1024;
/// What children that outlive the program may still add to its output.
const LEFTOVER: usize = 1024 * 1024;
/// How long a killed process is waited for: one that hangs in the kernel ends when the kernel lets it.
const REAP: Duration = Duration::from_secs(2);
/// How often a kernel without pidfd_open (before Linux 5.3) is asked whether a program has ended.
const STEP: Duration = Duration::from_millis(20);

/// A program to run.
pub struct Run<'a> {
    pub program: &'a Path,
    pub arguments: &'a [String],
    /// How long it may take.
    pub within: Duration,
    pub stop: &'a Stop,
}

/// How a program that ended by itself did.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    /// The end of what it wrote to standard error, on one line.
    pub complaint: String,
}

/// Why a program did not come to its own end.
#[derive(Debug)]
pub enum RunError {
    /// It could not be started.
    Start { program: PathBuf, error: io::Error },
    /// It took longer than it may, and was killed.
    TimedOut { program: PathBuf, after: Duration },
    /// The caller was told to stop; it was killed.
    Stopped,
    /// What it printed could not be taken; it was killed.
    Output(io::Error),
}

/// Keeps this process's memory, and the keys in it, out of core files and from other processes of its
/// account.
pub fn keep_memory_private() {
    // The only failure is a kernel that does not know it; nothing else depends on it.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

/// Makes this process one that nothing is lost with: it yields to all others, is the first that the kernel
/// ends when memory is short, and ends with the thread that started it.
pub fn become_expendable() {
    // Best effort, each: where the kernel refuses one the work can still be done.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let _ = rustix::process::setpriority_process(None, 19);
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
}

/// The program called `name` (no path), in the system's own directories.
pub fn find(name: &str) -> Option<PathBuf> {
    let paths = PLACES.iter().map(|place| Path::new(place).join(name));
    paths.into_iter().find(|path| path.is_file())
}

impl Run<'_> {
    /// Runs it to its end, handing what it prints to `output`. Blocks: for threads.
    ///
    /// # Errors
    /// It could not be started, or was killed; a program that ends with a failure is none.
    pub fn run(&self, output: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> Result<Ended, RunError> {
        self.run_with(&[], output)
    }

    /// As [`run`](Self::run), with more in its environment than all programs have.
    ///
    /// # Errors
    /// As there.
    pub fn run_with(
        &self,
        environment: &[(&str, &str)],
        output: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<Ended, RunError> {
        let start = |error| RunError::Start {
            program: self.program.to_owned(),
            error,
        };
        let deadline = Instant::now() + self.within;
        seal_descriptors();
        let mut child = Command::new(self.program)
            .args(self.arguments)
            .env_clear()
            .envs([("PATH", PATH), ("LC_ALL", "C"), ("TERM", "dumb")])
            .envs(environment.iter().copied())
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(start)?;
        let mut group = Group::of(&child);
        let followed = self.follow(&mut child, &group, deadline, output);
        let status = group.end(&mut child);
        let complaint = followed?;
        Ok(Ended { status, complaint })
    }

    /// Until the program has ended; what it complained.
    fn follow(
        &self,
        child: &mut Child,
        group: &Group,
        deadline: Instant,
        output: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<String, RunError> {
        let mut stdout = child.stdout.take();
        let mut stderr = child.stderr.take();
        for fd in [
            stdout.as_ref().map(AsFd::as_fd),
            stderr.as_ref().map(AsFd::as_fd),
        ]
        .into_iter()
        .flatten()
        {
            rustix::io::ioctl_fionbio(fd, true).map_err(|error| RunError::Output(error.into()))?;
        }
        let mut complaint = Tail::default();
        let mut complain = |bytes: &[u8]| {
            complaint.push(bytes);
            Ok(())
        };
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(RunError::TimedOut {
                    program: self.program.to_owned(),
                    after: self.within,
                });
            }
            self.wait(group, stdout.as_ref(), stderr.as_ref(), left);
            if self.stop.is_said() {
                return Err(RunError::Stopped);
            }
            // Asked before the pipes are read: all that it wrote is in them then.
            let ended = group.has_ended();
            let budget = if ended { LEFTOVER } else { Tail::CHUNK };
            drain(&mut stdout, budget, output).map_err(RunError::Output)?;
            drain(&mut stderr, budget, &mut complain).map_err(RunError::Output)?;
            if ended {
                return Ok(complaint.text());
            }
        }
    }

    /// Sleeps until there is something to read, the program ended or is to end, at most `left` long.
    fn wait(
        &self,
        group: &Group,
        stdout: Option<&impl AsFd>,
        stderr: Option<&impl AsFd>,
        left: Duration,
    ) {
        let mut fds = vec![PollFd::new(self.stop, PollFlags::IN)];
        if let Some(stdout) = stdout {
            fds.push(PollFd::new(stdout, PollFlags::IN));
        }
        if let Some(stderr) = stderr {
            fds.push(PollFd::new(stderr, PollFlags::IN));
        }
        let left = match &group.pidfd {
            Some(pidfd) => {
                fds.push(PollFd::new(pidfd, PollFlags::IN));
                left
            }
            None => left.min(STEP),
        };
        // Interrupted or refused: the caller looks and comes again.
        let _ = poll(&mut fds, Some(&timespec(left)));
    }
}

/// The program and all it started.
struct Group {
    pid: Option<Pid>,
    pidfd: Option<OwnedFd>,
}

impl Group {
    fn of(child: &Child) -> Self {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pidfd = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        Self { pid, pidfd }
    }

    /// Whether the program has ended. It is not reaped: its number stays its own, and its group's.
    fn has_ended(&self) -> bool {
        let Some(pid) = self.pid else { return true };
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        !matches!(
            waitid(WaitId::Pid(pid), options),
            Ok(None) | Err(Errno::INTR)
        )
    }

    /// Kills whatever is left of the group, and reaps the program.
    fn end(&mut self, child: &mut Child) -> ExitStatus {
        let killed = ExitStatus::from_raw(libc::SIGKILL);
        if let Some(pid) = self.pid {
            let _ = kill_process_group(pid, Signal::KILL);
        }
        let deadline = Instant::now() + REAP;
        while !self.has_ended() {
            if Instant::now() > deadline {
                return killed;
            }
            std::thread::sleep(STEP);
        }
        child.wait().unwrap_or(killed)
    }
}

/// Reads what is there, up to `budget`; the end of the stream closes it.
fn drain(
    from: &mut Option<impl Read>,
    budget: usize,
    to: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut chunk = [0_u8; Tail::CHUNK];
    let mut taken = 0;
    while let Some(stream) = from
        && taken < budget
    {
        match stream.read(&mut chunk) {
            Ok(0) => *from = None,
            Ok(length) => {
                taken += length;
                to(chunk.get(..length).unwrap_or_default())?;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The end of what is pushed.
#[derive(Default)]
struct Tail(Vec<u8>);

impl Tail {
    const CHUNK: usize = 8 * 1024;

    fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
        let over = self.0.len().saturating_sub(COMPLAINT);
        self.0.drain(..over);
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0)
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    }
}

/// Whatever this process was started with, or holds, stays out of the programs it starts. Ours are
/// all close-on-exec already; those inherited from who started us may not be.
fn seal_descriptors() {
    const CLOSE_RANGE_CLOEXEC: libc::c_uint = 1 << 2;
    // SAFETY: it only sets a flag on descriptors and touches no memory. Kernels before 5.11 refuse it.
    unsafe {
        libc::syscall(
            libc::SYS_close_range,
            3 as libc::c_uint,
            libc::c_uint::MAX,
            CLOSE_RANGE_CLOEXEC,
        );
    }
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start { program, .. } => write!(f, "cannot start {}", program.display()),
            Self::TimedOut { program, after } => write!(
                f,
                "{} took longer than {} s and was killed",
                program.display(),
                after.as_secs()
            ),
            Self::Stopped => f.write_str("stopped"),
            Self::Output(_) => f.write_str("cannot keep what the program prints"),
        }
    }
}

impl StdError for RunError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Start { error, .. } | Self::Output(error) => Some(error),
            Self::TimedOut { .. } | Self::Stopped => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    fn shell(script: &str, within: Duration) -> (Result<Ended, RunError>, Vec<u8>) {
        let arguments = ["-c".to_owned(), script.to_owned()];
        let stop = Stop::new().unwrap();
        let mut out = Vec::new();
        let run = Run {
            program: Path::new("/bin/sh"),
            arguments: &arguments,
            within,
            stop: &stop,
        };
        let ended = run.run(&mut |bytes| {
            out.extend_from_slice(bytes);
            Ok(())
        });
        (ended, out)
    }

    const LONG: Duration = Duration::from_secs(30);

    fn is_alive(pid: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        !stat.is_empty() && !stat.contains(") Z")
    }

    fn dies(pid: &str) -> bool {
        (0..100).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            !is_alive(pid)
        })
    }

    #[test]
    fn its_output_its_complaint_and_its_status_come_back() {
        let (ended, out) = shell("printf out; echo a  bad >&2; echo thing >&2; exit 3", LONG);
        let ended = ended.unwrap();
        assert_eq!(out, b"out");
        assert_eq!(ended.complaint, "a bad thing");
        assert_eq!(ended.status.code(), Some(3));
    }

    #[test]
    fn output_larger_than_any_pipe_is_whole() {
        let (ended, out) = shell(
            "head -c 3000000 /dev/zero; head -c 300000 /dev/zero >&2",
            LONG,
        );
        let ended = ended.unwrap();
        assert!(ended.status.success());
        assert_eq!(out.len(), 3_000_000);
        assert!(ended.complaint.len() <= COMPLAINT * 3);
    }

    #[test]
    fn it_inherits_nothing_of_ours() {
        // Inheritable, as from a careless parent.
        let file = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: it copies a descriptor of ours; nobody else knows the copy, which leaks.
        let inheritable = unsafe { libc::dup(file.as_raw_fd()) };
        let script = "ls /proc/self/fd | tr '\\n' ' '; cat; env | sort | tr '\\n' ' '; pwd";
        let (ended, out) = shell(script, LONG);
        ended.unwrap();
        let out = String::from_utf8(out).unwrap();
        let (fds, rest) = out.split_once(" L").unwrap();
        // 3 is the directory that ls reads.
        assert_eq!(fds.trim(), "0 1 2 3", "{inheritable} leaked");
        assert!(rest.starts_with("C_ALL=C PATH=/usr/sbin:"), "{rest}");
        assert!(rest.ends_with("/\n"), "{rest}");
    }

    #[test]
    fn its_whole_group_dies_when_its_time_is_over() {
        let started = Instant::now();
        let (ended, out) = shell("sleep 600 & echo $!; sleep 600", Duration::from_millis(300));
        assert!(matches!(ended, Err(RunError::TimedOut { .. })), "{ended:?}");
        assert!(started.elapsed() < Duration::from_secs(10));
        assert!(dies(String::from_utf8(out).unwrap().trim()));
    }

    #[test]
    fn a_child_that_keeps_the_pipe_open_neither_delays_the_end_nor_outlives_it() {
        let started = Instant::now();
        let (ended, out) = shell("sleep 600 & echo $!", LONG);
        assert!(ended.unwrap().status.success());
        assert!(started.elapsed() < Duration::from_secs(10));
        assert!(dies(String::from_utf8(out).unwrap().trim()));
    }

    #[test]
    fn one_that_closes_its_pipes_is_still_waited_for() {
        let (ended, _) = shell("exec >&- 2>&-; sleep 0.3; exit 4", LONG);
        assert_eq!(ended.unwrap().status.code(), Some(4));
    }

    #[test]
    fn the_callers_stop_kills_it_at_once() {
        let stop = Stop::new().unwrap();
        let word = stop.clone();
        let arguments = ["600".to_owned()];
        let thread = std::thread::spawn(move || {
            Run {
                program: &find("sleep").unwrap(),
                arguments: &arguments,
                within: LONG,
                stop: &stop,
            }
            .run(&mut |_| Ok(()))
        });
        std::thread::sleep(Duration::from_millis(100));
        let said = Instant::now();
        word.say();
        assert!(matches!(thread.join().unwrap(), Err(RunError::Stopped)));
        assert!(said.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn output_that_cannot_be_kept_kills_it() {
        let arguments = ["/dev/zero".to_owned()];
        let stop = Stop::new().unwrap();
        let run = Run {
            program: &find("cat").unwrap(),
            arguments: &arguments,
            within: LONG,
            stop: &stop,
        };
        let ended = run.run(&mut |_| Err(io::Error::from(io::ErrorKind::StorageFull)));
        assert!(matches!(ended, Err(RunError::Output(_))), "{ended:?}");
    }

    #[test]
    fn a_missing_program_is_named() {
        assert_eq!(find("no-such-program"), None);
        let stop = Stop::new().unwrap();
        let run = Run {
            program: Path::new("/usr/bin/no-such-program"),
            arguments: &[],
            within: LONG,
            stop: &stop,
        };
        let error = run.run(&mut |_| Ok(())).unwrap_err();
        assert_eq!(error.to_string(), "cannot start /usr/bin/no-such-program");
        assert!(error.source().is_some());
    }
}
