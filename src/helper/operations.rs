//! What is done, as root. Nothing in it comes from the peer.
use std::path::Path;
use std::time::Duration;

use super::protocol::{Answer, Operation};
use crate::sys::log;
use crate::sys::process::{Ended, Run, RunError, find};
use crate::sys::stop::Stop;

/// For `sshd -t`, and for systemctl, which waits for the reload.
const WITHIN: Duration = Duration::from_secs(45);

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
        return Err(Answer::refused(
            "ReloadRefused",
            "systemd does not run here",
        ));
    }
    let sshd = program("sshd", &["-t"], stop)?;
    if !sshd.status.success() {
        let said = [
            "sshd -t finds a mistake, and nothing was reloaded: ",
            &sshd.complaint,
        ]
        .concat();
        return Err(Answer::refused("ReloadRefused", &said));
    }
    for unit in SSH_UNITS {
        let active = program("systemctl", &["--quiet", "is-active", unit], stop)?;
        if active.status.success() {
            let reloaded = program("systemctl", &["--no-ask-password", "reload", unit], stop)?;
            return match reloaded.status.success() {
                true => Ok(Answer::Done),
                false => Err(Answer::refused("ReloadRefused", &reloaded.complaint)),
            };
        }
    }
    Err(Answer::refused(
        "NotRunning",
        "neither ssh.service nor sshd.service runs; the next start reads the configuration",
    ))
}

fn program(name: &str, arguments: &[&str], stop: &Stop) -> Result<Ended, Answer> {
    let Some(program) = find(name) else {
        let said = [name, " is not on this machine"].concat();
        return Err(Answer::refused("ReloadRefused", &said));
    };
    let arguments: Vec<String> = arguments.iter().map(|&it| it.to_owned()).collect();
    let run = Run {
        program: &program,
        arguments: &arguments,
        within: WITHIN,
        stop,
    };
    run.run(&mut |_| Ok(()))
        .map_err(|error: RunError| Answer::refused("ReloadRefused", &log::one_line_chain(&error)))
}
