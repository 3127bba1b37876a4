//! `node.reboot`: the machine restarts, once. That it did is decided afterwards, by the boot id.
//!
//! RUNNING is on the disk before this code begins, and the control plane has acknowledged it if a few
//! seconds are enough for that. What follows is seen by the next start of the daemon: another boot id
//! is success. In the same boot nothing is tried again: the command fails once the machine had time
//! enough to go down.
use std::time::Duration;

use super::kinds::decode;
use super::machine::{Failure, Outcome};
use super::work::Context;
use crate::proto::{Message, RebootParams, RebootResult};
use crate::sys::log::{self, Level, Value};

/// docs/protocol.md 6: the longest delay, in seconds.
const DELAY: u32 = 600;
/// Of the reason, in bytes.
const REASON: usize = 256;
/// How long to wait for the acknowledgement of RUNNING.
const ACKNOWLEDGED: Duration = Duration::from_secs(10);

/// A reboot that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reboot {
    delay: Duration,
    reason: String,
}

impl Reboot {
    /// # Errors
    /// What is wrong with the params.
    pub fn read(params: &[u8]) -> Result<Self, String> {
        let params: RebootParams = decode(params)?;
        if params.delay_s > DELAY {
            return Err(format!("delay_s is {}, more than {DELAY}", params.delay_s));
        }
        if params.reason.len() > REASON {
            return Err(format!("reason is longer than {REASON} bytes"));
        }
        Ok(Self {
            delay: Duration::from_secs(params.delay_s.into()),
            reason: params.reason,
        })
    }

    /// # Errors
    /// The machine stays up.
    pub fn run(self, context: &Context) -> Result<Outcome, Failure> {
        if context.boot_id.is_empty() {
            let message = "this boot's id cannot be read, so nothing could tell that it ended";
            return Err(Failure::new("RebootRefused", message));
        }
        if context.stop.wait(self.delay) {
            return Ok(Outcome::Stopped);
        }
        context.await_acknowledgement(ACKNOWLEDGED);
        if context.stop.is_said() {
            return Ok(Outcome::Stopped);
        }
        log::event(
            Level::Warn,
            "node.reboot",
            &[
                ("command", Value::Shown(&context.id)),
                ("boot", Value::Text(&context.boot_id)),
                ("reason", Value::Text(&self.reason)),
            ],
        );
        restart(context)?;
        Ok(Outcome::GoingDown)
    }
}

/// The result of a machine that came back.
pub fn result(before: &str, after: &str) -> Vec<u8> {
    let result = RebootResult {
        boot_id_before: before.to_owned(),
        boot_id_after: after.to_owned(),
    };
    result.encode_to_vec()
}

#[cfg(not(feature = "fakehw"))]
fn restart(context: &Context) -> Result<(), Failure> {
    use super::kinds::explained;
    use crate::helper::client::AskError;
    use crate::helper::protocol::Operation;

    const REFUSED: &str = "RebootRefused";
    let Some(helper) = &context.helper else {
        return crate::sys::power::reboot(&context.stop)
            .map_err(|error| explained(REFUSED, &error));
    };
    match helper.ask(Operation::Reboot, &context.id.to_string(), &context.stop) {
        Ok(()) => Ok(()),
        // It may be going down: whether it did is decided afterwards, as ever.
        Err(error @ AskError::Unanswered(..)) => {
            let fields = [
                ("command", Value::Shown(&context.id)),
                ("error", Value::Chain(&error)),
                ("do", Value::Text(error.remedy())),
            ];
            log::event(Level::Warn, "helper.unanswered", &fields);
            Ok(())
        }
        Err(error) => {
            let mut failure = explained(REFUSED, &error);
            if let AskError::NotReached(..) | AskError::Foreign(_) = error {
                failure.message.push_str("; ");
                failure.message.push_str(error.remedy());
            }
            Err(failure)
        }
    }
}

/// Notes in the data directory that a machine would have restarted, and for whom.
#[cfg(feature = "fakehw")]
fn restart(context: &Context) -> Result<(), Failure> {
    use std::io::Write;

    let path = context.data_dir.join("fakehw-reboot");
    let note = || {
        let mut file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)?;
        writeln!(file, "{} {}", context.id, context.boot_id)?;
        file.sync_all()
    };
    note().map_err(|error| super::kinds::explained("RebootRefused", &error))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn params_within_their_bounds_are_taken() {
        let params = RebootParams {
            delay_s: 600,
            reason: "kernel 6.1.0-28".to_owned(),
        };
        let reboot = Reboot::read(&params.encode_to_vec()).unwrap();
        assert_eq!(reboot.delay, Duration::from_secs(600));
        assert_eq!(Reboot::read(&[]).unwrap().delay, Duration::ZERO);
    }

    #[test]
    fn params_past_their_bounds_are_refused_in_words() {
        let long = RebootParams {
            delay_s: 601,
            reason: String::new(),
        };
        let said = Reboot::read(&long.encode_to_vec()).unwrap_err();
        assert_eq!(said, "delay_s is 601, more than 600");
        let wordy = RebootParams {
            delay_s: 0,
            reason: "x".repeat(257),
        };
        assert!(Reboot::read(&wordy.encode_to_vec()).is_err());
        assert!(
            Reboot::read(&[0xff])
                .unwrap_err()
                .contains("cannot be read")
        );
    }
}
