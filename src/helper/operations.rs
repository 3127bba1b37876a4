//! What is done, as root. Nothing in it comes from the peer.
use std::path::Path;
use std::time::Duration;

use super::protocol::{Answer, Operation};
use crate::sys::log;
use crate::sys::process::{Ended, Run, find};
use crate::sys::stop::Stop;

/// For each of `sshd -t` and systemctl, which waits for the reload.
const WITHIN: Duration = Duration::from_secs(30);

/// As Debian and as Red Hat call it.
const SSH_UNITS: [&str; 2] = ["ssh.service", "sshd.service"];

/// Does it. Blocks: for a thread.
pub(super) fn run(operation: Operation, stop: &Stop) -> Answer {
    match operation {
        Operation::Reboot => reboot(stop),
        Operation::SshdReload => sshd_reload(stop).unwrap_or_else(|refused| refused),
    }
}

#[cfg(not(feature = "fakehw"))]
fn reboot(stop: &Stop) -> Answer {
    match crate::sys::power::reboot(stop) {
        Ok(()) => Answer::Done,
        Err(error) => Answer::refused("RebootRefused", &log::one_line_chain(&error)),
    }
}

#[cfg(feature = "fakehw")]
fn reboot(_: &Stop) -> Answer {
    Answer::refused("RebootRefused", "a development build restarts no machine")
}

/// A server that finds a mistake in its configuration ends at a reload, and nobody can log in any more: it is
/// asked to look at it first.
fn sshd_reload(stop: &Stop) -> Result<Answer, Answer> {
    // sd_booted(3).
    if !Path::new("/run/systemd/system").is_dir() {
        return Err(refused("systemd does not run here"));
    }
    let mut runs = None;
    for unit in SSH_UNITS {
        let active = program("systemctl", &["--quiet", "is-active", unit], stop)?;
        if active.status.success() {
            runs = Some(unit);
            break;
        }
    }
    let Some(unit) = runs else {
        return Err(Answer::refused(
            "NotRunning",
            "neither ssh.service nor sshd.service runs; the next start reads the configuration",
        ));
    };
    let sshd = program("sshd", &["-t"], stop)?;
    if !sshd.status.success() {
        const MISTAKE: &str = "sshd -t finds a mistake, and nothing was reloaded: ";
        return Err(refused(&[MISTAKE, &sshd.complaint].concat()));
    }
    let reloaded = program("systemctl", &["--no-ask-password", "reload", unit], stop)?;
    match reloaded.status.success() {
        true => Ok(Answer::Done),
        false => Err(refused(&reloaded.complaint)),
    }
}

fn refused(why: &str) -> Answer {
    Answer::refused("ReloadRefused", why)
}

fn program(name: &str, arguments: &[&str], stop: &Stop) -> Result<Ended, Answer> {
    let Some(program) = find(name) else {
        return Err(refused(&[name, " is not on this machine"].concat()));
    };
    let arguments: Vec<String> = arguments.iter().map(|&it| it.to_owned()).collect();
    let run = Run {
        program: &program,
        arguments: &arguments,
        within: WITHIN,
        stop,
    };
    run.run(&mut |_| Ok(()))
        .map_err(|error| refused(&log::one_line_chain(&error)))
}
