//! Restarting the machine.
//!
//! Where systemd is PID 1 it is asked for an orderly reboot by `systemctl reboot`: units are
//! stopped. What blocks a shutdown (firmware that is being written, an administrator's
//! `systemd-inhibit`) is asked for first: without a terminal `systemctl` does not look at it for root, and
//! its `--check-inhibitors` would be stopped by anybody's forgotten login too. The other ways are worse: a real-time
//! signal to PID 1 has another number in a systemd built on musl (SIGRTMIN is 35 there, not 34), and
//! reboot(2) would pull the rug from under everything that runs. `systemctl` falls back to PID 1's
//! private socket by itself where D-Bus is down. Everywhere else (a ramdisk, a busybox init) there is
//! nobody to ask: the disks are flushed and the kernel restarts.
use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::system::RebootCommand;

use super::process::{Run, RunError, find};
use super::stop::Stop;
use super::thread;

/// `systemctl reboot` only queues a job.
const ASKING: Duration = Duration::from_secs(60);

/// Disks get this long to take what is theirs: one that hangs never does.
const FLUSHING: Duration = Duration::from_secs(60);

/// How much is read of what logind lists.
const LIST: usize = 64 * 1024;

/// Why the machine does not restart.
#[derive(Debug)]
pub enum RebootError {
    /// Somebody blocks it for now.
    Inhibited { who: String, why: String },
    /// systemd is PID 1, and there is no systemctl.
    NoSystemctl,
    /// systemctl did not come to an end.
    Systemctl(RunError),
    /// systemd said no.
    Refused(String),
    /// The kernel said no.
    Kernel(io::Error),
}

/// Restarts the machine, or has it restarted: it may go on for minutes after this returns.
///
/// # Errors
/// The machine stays up.
pub fn reboot(stop: &Stop) -> Result<(), RebootError> {
    // sd_booted(3): this directory is there when systemd is PID 1.
    if !Path::new("/run/systemd/system").is_dir() {
        flush();
        return rustix::system::reboot(RebootCommand::Restart)
            .map_err(|error| RebootError::Kernel(error.into()));
    }
    if let Some((who, why)) = inhibited(stop) {
        return Err(RebootError::Inhibited { who, why });
    }
    let program = find("systemctl").ok_or(RebootError::NoSystemctl)?;
    let arguments = ["--no-ask-password", "reboot"].map(str::to_owned);
    let run = Run {
        program: &program,
        arguments: &arguments,
        within: ASKING,
        stop,
    };
    let ended = run.run(&mut |_| Ok(())).map_err(RebootError::Systemctl)?;
    if ended.status.success() {
        Ok(())
    } else {
        Err(RebootError::Refused(ended.complaint))
    }
}

/// How a machine without an init to ask ends this boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The kernel that was loaded is started.
    Kexec,
    Restart,
    PowerOff,
}

/// Ends this boot: the disks are flushed, and nobody else is asked.
///
/// # Errors
/// The machine stays up. It returns for no other reason.
pub fn end(ending: Ending) -> io::Error {
    flush();
    let command = match ending {
        Ending::Kexec => RebootCommand::Kexec,
        Ending::Restart => RebootCommand::Restart,
        Ending::PowerOff => RebootCommand::PowerOff,
    };
    match rustix::system::reboot(command) {
        // Nothing comes after it.
        Ok(()) => loop {
            std::thread::park();
        },
        Err(error) => error.into(),
    }
}

/// Has the disks take what was written to them, as far as they do.
fn flush() {
    let Ok(done) = Stop::new() else {
        return rustix::fs::sync();
    };
    let said = done.clone();
    let sync = move || {
        rustix::fs::sync();
        said.say();
    };
    match thread::start("flush", Box::new(sync)) {
        Ok(()) => drop(done.wait(FLUSHING)),
        Err(_) => rustix::fs::sync(),
    }
}

/// Has this process end in order, as its supervisor would.
pub fn stop_myself() {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM);
}

/// Who blocks a shutdown, and why. Nobody can where logind or D-Bus does not run.
fn inhibited(stop: &Stop) -> Option<(String, String)> {
    let program = find("busctl")?;
    let arguments = [
        "--system",
        "call",
        "org.freedesktop.login1",
        "/org/freedesktop/login1",
        "org.freedesktop.login1.Manager",
        "ListInhibitors",
    ]
    .map(str::to_owned);
    let run = Run {
        program: &program,
        arguments: &arguments,
        within: ASKING,
        stop,
    };
    let mut list = Vec::new();
    let ended = run.run(&mut |bytes| {
        let room = LIST.saturating_sub(list.len()).min(bytes.len());
        list.extend_from_slice(bytes.get(..room).unwrap_or_default());
        Ok(())
    });
    ended.ok().filter(|ended| ended.status.success())?;
    blocker(&String::from_utf8_lossy(&list))
}

/// The first that blocks a shutdown in `a(ssssuu) 2 "shutdown:sleep" "who" "why" "block" 0 607 …`.
pub fn blocker(list: &str) -> Option<(String, String)> {
    let texts = quoted(list);
    texts.chunks_exact(4).find_map(|inhibitor| {
        let [what, who, why, mode] = inhibitor else {
            return None;
        };
        let blocks = mode == "block" && what.split(':').any(|one| one == "shutdown");
        blocks.then(|| (who.clone(), why.clone()))
    })
}

/// The texts in quotes; what a backslash stands before is taken as it is.
fn quoted(line: &str) -> Vec<String> {
    let mut texts = Vec::new();
    let mut open: Option<String> = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match (c, &mut open) {
            ('"', None) => open = Some(String::new()),
            ('"', Some(_)) => texts.extend(open.take()),
            ('\\', Some(text)) => text.extend(chars.next()),
            (c, Some(text)) => text.push(c),
            (_, None) => {}
        }
    }
    texts
}

impl fmt::Display for RebootError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inhibited { who, why } => {
                write!(
                    f,
                    "{who:?} blocks it for now ({why:?}): try again when systemd-inhibit --list is without it"
                )
            }
            Self::NoSystemctl => f.write_str("systemd is PID 1, but there is no systemctl"),
            Self::Systemctl(_) => f.write_str("systemctl reboot did not end"),
            Self::Refused(said) => write!(f, "systemctl reboot failed: {said}"),
            Self::Kernel(_) => f.write_str("the kernel refused to restart"),
        }
    }
}

impl StdError for RebootError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Systemctl(error) => Some(error),
            Self::Kernel(error) => Some(error),
            Self::Inhibited { .. } | Self::NoSystemctl | Self::Refused(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_blocks_a_shutdown_is_found_among_those_who_inhibit_other_things() {
        let delay = r#""shutdown" "Unattended Upgrades" "Stop \"nicely\"" "delay" 0 607"#;
        let sleep = r#""sleep:idle" "shutdown" "shutdown" "block" 0 608"#;
        let flash = r#""shutdown:sleep" "fwupd" "writing \"firmware\"" "block" 0 609"#;
        for (list, wanted) in [
            (String::new(), None),
            ("a(ssssuu) 0".to_owned(), None),
            (format!("a(ssssuu) 2 {delay} {sleep}\n"), None),
            (
                format!("a(ssssuu) 3 {delay} {sleep} {flash}\n"),
                Some(("fwupd".to_owned(), "writing \"firmware\"".to_owned())),
            ),
            (r#"a(ssssuu) 1 "shutdown" "cut"#.to_owned(), None),
            (r#"a(ssssuu) 1 "shutdown" "x" "y" "bl\"#.to_owned(), None),
        ] {
            assert_eq!(blocker(&list), wanted, "{list}");
        }
    }
}
