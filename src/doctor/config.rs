//! Whether the configuration reads, and who else may read it.
use super::{Seen, Verdict, chain, look_again};
use crate::config::{self, ConfigError, ReadError};

pub(super) fn run(seen: &mut Seen<'_>) -> Verdict {
    match seen.config {
        Ok(config) => {
            let mut evidence = format!("{} holds", seen.path.display());
            for key in config.newer_keys() {
                evidence.push_str("; ignores ");
                evidence.push_str(&key.name);
            }
            Verdict::ok(evidence)
        }
        Err(error) => {
            let remedy = match error {
                _ if error.is_missing() => {
                    "install bcd on this machine, or name the file with --config"
                }
                ConfigError::Invalid(..) => "correct these lines; bcd config check reads it again",
                ConfigError::Read(_, ReadError::Io(error)) => look_again(error),
                ConfigError::Read(..) => "it must be a regular file of at most 64 KiB",
            };
            Verdict::fail(chain(error), remedy)
        }
    }
}

pub(super) fn mode(seen: &mut Seen<'_>) -> Verdict {
    let helper = seen
        .config
        .as_ref()
        .is_ok_and(|config| config.helper.is_some());
    match config::exposure(seen.path, helper) {
        Ok(None) => Verdict::ok("the configuration is for its owner alone"),
        Ok(Some(warning)) => match warning.split_once("; ") {
            Some((what, remedy)) => Verdict::warn(what, remedy),
            None => Verdict::warn(warning, ""),
        },
        Err(error) => Verdict::unseen(&chain(&error), "see the check config"),
    }
}
