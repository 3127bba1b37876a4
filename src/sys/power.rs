//! Restarting the machine.
//!
//! Where systemd is PID 1 it is asked for an orderly reboot by `systemctl reboot`: units are
//! stopped, and what an administrator inhibits is not done. The other ways are worse: a real-time
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

/// `systemctl reboot` only queues a job.
const ASKING: Duration = Duration::from_secs(60);

/// Why the machine does not restart.
#[derive(Debug)]
pub enum RebootError {
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
        rustix::fs::sync();
        return rustix::system::reboot(RebootCommand::Restart)
            .map_err(|error| RebootError::Kernel(error.into()));
    }
    let program = find("systemctl").ok_or(RebootError::NoSystemctl)?;
    let arguments = ["--no-ask-password".to_owned(), "reboot".to_owned()];
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

impl fmt::Display for RebootError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
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
            Self::NoSystemctl | Self::Refused(_) => None,
        }
    }
}
