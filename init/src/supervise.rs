//! PID 1 itself. It does little, so that little can go wrong: it mounts, starts the children that do the
//! work (`init modules`, `init network`, `bcd ramdisk`, shells where `bc.debug` asks for them), starts each again when
//! it ends, with growing pauses, takes in orphans, and puts what they all say on every console. It never
//! returns, powers off or writes to a disk.
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use bcd::config::cmdline::CommandLine;
use bcd::sys::clock::{build_time_ms, monotonic, wall_ms};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, WaitOptions, WaitStatus, wait};

use crate::console::Consoles;
use crate::options::Options;
use crate::{edge, mounts};

/// How long bcd waits for a network before it starts without one, to say what it has to say.
const NETWORK_WAIT: Duration = Duration::from_secs(60);
/// The pauses before a child is started again.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(60);
/// After this long a child counts as having worked, and its pauses begin anew.
const WORKED: Duration = Duration::from_secs(120);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Job {
    Modules,
    Network,
    Bcd,
    /// A shell on the console of this name.
    Shell(String),
}

enum State {
    /// To be started at this time.
    Waits(Duration),
    Runs(Pid, Duration),
    /// Not to be started.
    Rests,
}

struct Child {
    job: Job,
    state: State,
    pause: Duration,
}

struct Supervisor {
    consoles: Consoles,
    children: Vec<Child>,
    signals: Option<OwnedFd>,
    /// What the children print comes out of the first; they get the second.
    output: Option<(File, OwnedFd)>,
    /// `init network` says "up" here.
    news: Option<File>,
}

/// Runs the machine.
pub fn run() -> ! {
    let mut complaints = mounts::all();
    let line = fs::read("/proc/cmdline").unwrap_or_default();
    let line = CommandLine::parse(&line);
    let options = Options::new(&line);
    let (consoles, closed) = Consoles::open(&options.consoles);
    complaints.extend(closed);
    complaints.extend(options.complaints.iter().cloned());
    let now = monotonic();
    let mut supervisor = Supervisor {
        consoles,
        children: Vec::new(),
        signals: None,
        output: None,
        news: None,
    };
    supervisor.say(&format!(
        "bcd's init {} on {}",
        env!("CARGO_PKG_VERSION"),
        rustix::system::uname().release().to_string_lossy()
    ));
    match edge::children() {
        Ok(fd) => supervisor.signals = Some(fd),
        Err(error) => complaints.push(format!("cannot hear of children that end: {error}")),
    }
    match std::io::pipe() {
        Ok((from, to)) => {
            let from: OwnedFd = from.into();
            if let Err(error) = rustix::io::ioctl_fionbio(&from, true) {
                complaints.push(format!("reading the children's output may block: {error}"));
            }
            supervisor.output = Some((from.into(), to.into()));
        }
        Err(error) => complaints.push(format!("the children's output is lost: {error}")),
    }
    if let Some(complaint) = set_clock_floor() {
        complaints.push(complaint);
    }
    for complaint in &complaints {
        supervisor.say(complaint);
    }
    let start = |job, at| Child {
        job,
        state: State::Waits(at),
        pause: FIRST_PAUSE,
    };
    supervisor.children.push(start(Job::Modules, now));
    supervisor.children.push(start(Job::Network, now));
    supervisor
        .children
        .push(start(Job::Bcd, now + NETWORK_WAIT));
    if options.debug {
        let names: Vec<String> = supervisor.consoles.names().map(str::to_owned).collect();
        if Path::new("/bin/sh").exists() {
            let shells = names.into_iter().map(|name| start(Job::Shell(name), now));
            supervisor.children.extend(shells);
        } else {
            supervisor.say("bc.debug asks for a shell, and this image has none (/bin/sh)");
        }
    }
    loop {
        supervisor.step();
    }
}

/// A clock before this program was built is wrong: it starts at the build's time. Certificates are judged by better
/// evidence; this is for logs and for programs that know no better.
fn set_clock_floor() -> Option<String> {
    let (now, floor) = (wall_ms(), build_time_ms());
    if now >= floor {
        return None;
    }
    let time = rustix::time::Timespec {
        tv_sec: i64::try_from(floor / 1000).ok()?,
        tv_nsec: 0,
    };
    Some(
        match rustix::time::clock_settime(rustix::time::ClockId::Realtime, time) {
            Ok(()) => format!(
                "the clock stood at {}, before this program was built; it is set to {}",
                bcd::sys::utc::Utc::from_ms(now),
                bcd::sys::utc::Utc::from_ms(floor)
            ),
            Err(error) => {
                let error = std::io::Error::from(error);
                format!("the clock is wrong and cannot be set: {error}")
            }
        },
    )
}

impl Supervisor {
    fn say(&mut self, text: &str) {
        let line = format!("init: {}\n", bcd::cli::one_line(text));
        self.consoles.write(line.as_bytes());
    }

    /// Starts what is due, then waits for an end, for output, or for the next time.
    fn step(&mut self) {
        let now = monotonic();
        for index in 0..self.children.len() {
            let due = matches!(
                self.children.get(index),
                Some(Child { state: State::Waits(at), .. }) if *at <= now
            );
            if due {
                self.start(index, now);
            }
        }
        let next = self
            .children
            .iter()
            .filter_map(|child| match child.state {
                State::Waits(at) => Some(at),
                _ => None,
            })
            .min();
        // Without the signal's descriptor, ends are looked for.
        let ask = self.signals.is_none().then_some(Duration::from_secs(1));
        let until = next.map(|at| at.saturating_sub(monotonic()));
        let timeout = [ask, until]
            .into_iter()
            .flatten()
            .min()
            .map(|wait| Timespec {
                tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: wait.subsec_nanos().into(),
            });
        {
            let mut fds: Vec<PollFd<'_>> = [
                self.signals.as_ref().map(AsFd::as_fd),
                self.output.as_ref().map(|(from, _)| from.as_fd()),
                self.news.as_ref().map(AsFd::as_fd),
            ]
            .into_iter()
            .flatten()
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
            let _ = poll(&mut fds, timeout.as_ref());
        }
        self.take_output();
        self.take_news();
        self.reap();
    }

    fn take_output(&mut self) {
        let mut buffer = [0; 4096];
        // A child that never stops printing must not keep the others from being looked after.
        for _ in 0..16 {
            let Some((from, _)) = &mut self.output else {
                return;
            };
            match from.read(&mut buffer) {
                Ok(length @ 1..) => {
                    let text = buffer.get(..length).unwrap_or_default();
                    self.consoles.write(text);
                }
                _ => return,
            }
        }
    }

    fn take_news(&mut self) {
        let mut buffer = [0; 64];
        let read = self.news.as_mut().map(|news| news.read(&mut buffer));
        match read {
            Some(Ok(1..)) => {
                let now = monotonic();
                for child in &mut self.children {
                    // Only the first start waits for the network.
                    if child.job == Job::Bcd
                        && child.pause == FIRST_PAUSE
                        && let State::Waits(at) = &mut child.state
                    {
                        *at = now;
                    }
                }
            }
            Some(Err(error)) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Some(_) => self.news = None,
            None => {}
        }
    }

    fn reap(&mut self) {
        if let Some(signals) = &self.signals {
            let _ = rustix::io::read(signals, &mut [0; 512]);
        }
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            let now = monotonic();
            let ended = self
                .children
                .iter_mut()
                .find(|child| matches!(child.state, State::Runs(running, _) if running == pid));
            let Some(child) = ended else {
                // An orphan.
                continue;
            };
            let State::Runs(_, since) = child.state else {
                continue;
            };
            if now.saturating_sub(since) >= WORKED {
                child.pause = FIRST_PAUSE;
            }
            let pause = child.pause;
            child.state = State::Waits(now + pause);
            child.pause = (pause * 2).min(LAST_PAUSE);
            let text = ended_text(&child.job, status, pause);
            self.take_output();
            self.say(&text);
        }
    }

    fn start(&mut self, index: usize, now: Duration) {
        let Some(job) = self.children.get(index).map(|child| child.job.clone()) else {
            return;
        };
        let result = self.spawn(&job);
        let mut complaint = None;
        if let Some(child) = self.children.get_mut(index) {
            match result {
                Ok(pid) => child.state = State::Runs(pid, now),
                Err(error) => {
                    complaint = Some(format!("cannot start {}: {error}", name(&job)));
                    child.state = State::Waits(now + child.pause);
                    child.pause = (child.pause * 2).min(LAST_PAUSE);
                    if matches!(job, Job::Shell(_)) {
                        child.state = State::Rests;
                    }
                }
            }
        }
        if let Some(complaint) = complaint {
            self.say(&complaint);
        }
    }

    fn spawn(&mut self, job: &Job) -> std::io::Result<Pid> {
        let mut command = match job {
            Job::Modules | Job::Network => {
                let mut command = Command::new("/proc/self/exe");
                command.arg0("init").arg(if *job == Job::Modules {
                    "modules"
                } else {
                    "network"
                });
                command
            }
            Job::Bcd => {
                let mut command = Command::new("/usr/bin/bcd");
                command.arg("ramdisk");
                command
            }
            Job::Shell(_) => {
                let mut command = Command::new("/bin/sh");
                command.arg("-i");
                command
            }
        };
        command
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", "/root")
            .env("TERM", "linux")
            .current_dir("/");
        let mut news = None;
        if let Job::Shell(console) = job {
            let terminal = OpenOptions::new()
                .read(true)
                .write(true)
                .open(Path::new("/dev").join(console))?;
            command
                .stdin(terminal.try_clone()?)
                .stdout(terminal.try_clone()?)
                .stderr(terminal);
        } else {
            let output = || match &self.output {
                Some((_, to)) => to.try_clone().map(Stdio::from),
                None => Ok(Stdio::null()),
            };
            command
                .stdin(Stdio::null())
                .stdout(output()?)
                .stderr(output()?);
            if *job == Job::Network {
                let (from, to) = std::io::pipe()?;
                let from: OwnedFd = from.into();
                rustix::io::ioctl_fionbio(&from, true)?;
                command.stdout(to);
                news = Some(File::from(from));
            }
        }
        let child = edge::unblocked(&mut command, matches!(job, Job::Shell(_))).spawn()?;
        if news.is_some() {
            self.news = news;
        }
        i32::try_from(child.id())
            .ok()
            .and_then(Pid::from_raw)
            .ok_or_else(|| std::io::Error::other("the child has no process id"))
    }
}

fn name(job: &Job) -> String {
    match job {
        Job::Modules => "init modules".to_owned(),
        Job::Network => "init network".to_owned(),
        Job::Bcd => "bcd ramdisk".to_owned(),
        Job::Shell(console) => format!("the shell on /dev/{console}"),
    }
}

fn ended_text(job: &Job, status: WaitStatus, pause: Duration) -> String {
    let how = match (status.exit_status(), status.terminating_signal()) {
        (Some(0), _) => "ended".to_owned(),
        (Some(2), _) if *job == Job::Bcd => {
            "refused what it was given (exit code 2): see above; the bc.* parameters on the kernel command line are what to correct"
                .to_owned()
        }
        (Some(code), _) => format!("failed with exit code {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "ended".to_owned(),
    };
    format!(
        "{} {how}; it starts again in {} s",
        name(job),
        pause.as_secs()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_is_told_from_what_failed() {
        let status = |code| {
            std::process::Command::new("/bin/sh")
                .args(["-c", &format!("exit {code}")])
                .spawn()
                .unwrap()
                .id()
        };
        for (code, want) in [(2, "bc.* parameters"), (1, "exit code 1"), (0, "ended;")] {
            let pid = Pid::from_raw(i32::try_from(status(code)).unwrap());
            let (_, status) = rustix::process::waitpid(pid, WaitOptions::empty())
                .unwrap()
                .unwrap();
            let text = ended_text(&Job::Bcd, status, FIRST_PAUSE);
            assert!(text.contains(want), "{text}");
        }
    }
}
