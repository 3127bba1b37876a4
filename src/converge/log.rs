//! The section "log": how much the daemon logs while the spec is held.
use super::Failed;
use crate::proto::{LogSection, Message};
use crate::sys::log::{self, Level};

/// Sets the level that `body` asks for; an empty one is `configured`, as config.toml has it.
///
/// # Errors
/// The body is no `LogSection`, or names no level. The level stays as it was.
pub fn apply(body: &[u8], configured: Level) -> Result<(), Failed> {
    log::set_level(wanted(body, configured)?);
    Ok(())
}

/// The spec has no such section any more.
pub fn release(configured: Level) {
    log::set_level(configured);
}

fn wanted(body: &[u8], configured: Level) -> Result<Level, Failed> {
    let section = LogSection::decode(body).map_err(|_| Failed {
        reason: "InvalidSection",
        message: "the section's body is not a LogSection".to_owned(),
    })?;
    if section.level.is_empty() {
        return Ok(configured);
    }
    Level::named(&section.level).ok_or_else(|| {
        let shown: String = section.level.chars().take(32).collect();
        Failed {
            reason: "InvalidSection",
            message: format!("the level {shown:?} is none of debug, info, warn, error"),
        }
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn body(level: &str) -> Vec<u8> {
        let level = level.to_owned();
        LogSection { level }.encode_to_vec()
    }

    #[test]
    fn a_level_is_taken_by_its_name_and_an_empty_one_is_the_configured() {
        for (name, level) in [
            ("debug", Level::Debug),
            ("info", Level::Info),
            ("warn", Level::Warn),
            ("error", Level::Error),
            ("", Level::Warn),
        ] {
            assert_eq!(wanted(&body(name), Level::Warn).unwrap(), level);
        }
        assert_eq!(wanted(&[], Level::Info).unwrap(), Level::Info);
    }

    #[test]
    fn anything_else_is_an_invalid_section_and_says_why() {
        let long = "x".repeat(5000);
        for bad in [
            &body("loud")[..],
            &body("INFO"),
            &body(&long),
            &[0xff],
            b"\x0a\x09x",
        ] {
            let failed = wanted(bad, Level::Info).unwrap_err();
            assert_eq!(failed.reason, "InvalidSection");
            assert!(!failed.message.is_empty() && failed.message.len() < 200);
        }
    }
}
