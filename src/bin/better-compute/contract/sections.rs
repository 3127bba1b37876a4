//! Spec sections: what an operator writes, and the message a node gets.

use bcd::crypto::base64;
use bcd::proto::{DaemonSection, LogSection, Message};

use super::given::Given;
use super::kinds::raw;
use crate::json::{Json, Object};

const LEVELS: &[&str] = &["debug", "info", "warn", "error"];
const MANIFEST_MAX: usize = 64 * 1024;

/// A section's encoded message.
///
/// # Errors
/// What is wrong with it, in words.
pub fn encode_section(name: &str, value: &Json) -> Result<Vec<u8>, String> {
    let mut given = Given::new(format!("the members of section {name}"), value)?;
    match name {
        "log" => {
            let level = given.text("level", 16)?;
            if !level.is_empty() && !LEVELS.contains(&level.as_str()) {
                return Err(format!(
                    "level of section log must be one of {}",
                    LEVELS.join(", ")
                ));
            }
            given.finish(&["level"])?;
            Ok(LogSection { level }.encode_to_vec())
        }
        "daemon" => Ok(daemon(given)?.encode_to_vec()),
        _ => Err(format!(
            "section {} is not known here, only log and daemon: give its message encoded, in base64, as bodyBase64 (--raw)",
            bcd::crypto::json::quote(name)
        )),
    }
}

/// What bcd shall run: a section, and the parameters of a command.
pub fn daemon(mut given: Given) -> Result<DaemonSection, String> {
    let section = DaemonSection {
        version: given.text("version", 64)?,
        url: given.text("url", 1024)?,
        sha256: given.text("sha256", 64)?,
        signature: given.text("signature", MANIFEST_MAX)?.into_bytes(),
    };
    given.finish(&["version", "url", "sha256", "signature"])?;
    let hex = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
    if section.version.is_empty() {
        return Err("version of what bcd shall run is missing".to_owned());
    }
    if !section.url.starts_with("https://") {
        return Err("url of what bcd shall run must begin with https://".to_owned());
    }
    if section.sha256.len() != 64 || !section.sha256.bytes().all(hex) {
        return Err("sha256 of what bcd shall run must be 64 lower-case hex digits".to_owned());
    }
    Ok(section)
}

pub fn show_daemon(section: &DaemonSection) -> Json {
    let shown = Object::new()
        .with("version", section.version.as_str())
        .with("url", section.url.as_str())
        .with("sha256", section.sha256.as_str());
    match std::str::from_utf8(&section.signature) {
        Ok(text) => shown.with_text("signature", text),
        Err(_) => shown.with("signatureBase64", base64::encode(&section.signature)),
    }
    .into()
}

/// A section's message as an operator reads it.
pub fn show_section(name: &str, body: &[u8]) -> Json {
    let shown = match name {
        "log" => LogSection::decode(body)
            .ok()
            .map(|section| Object::new().with("level", section.level).into()),
        "daemon" => DaemonSection::decode(body)
            .ok()
            .map(|section| show_daemon(&section)),
        _ => None,
    };
    shown.unwrap_or_else(|| raw(body))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(name: &str, value: &str) -> Result<Vec<u8>, String> {
        encode_section(name, &Json::parse(value.as_bytes(), 10_000, 8).unwrap())
    }

    #[test]
    fn a_section_reads_back_as_it_was_given() {
        let digest = "ab".repeat(32);
        let daemon = format!(
            r#"{{"version":"1.2.3","url":"https://x/y","sha256":"{digest}","signature":"{{}}"}}"#
        );
        for (name, given) in [
            ("log", r#"{"level":"debug"}"#),
            ("log", r#"{"level":""}"#),
            ("daemon", &daemon),
        ] {
            let body = encode(name, given).unwrap();
            assert_eq!(show_section(name, &body).to_string(), given);
        }
        assert_eq!(show_section("site", &[1]).text("base64"), "AQ==");
        assert_eq!(show_section("log", &[0xff]).text("base64"), "/w==");
    }

    #[test]
    fn a_section_that_is_wrong_is_refused_by_name() {
        for (name, given, says) in [
            ("log", r#"{"level":"loud"}"#, "debug, info, warn, error"),
            (
                "log",
                r#"{"lvl":"info"}"#,
                r#"have no "lvl": there are level"#,
            ),
            ("log", "[]", "JSON object"),
            ("daemon", "{}", "version"),
            ("daemon", r#"{"version":"1","url":"http://x"}"#, "https://"),
            (
                "daemon",
                r#"{"version":"1","url":"https://x","sha256":"AB"}"#,
                "sha256",
            ),
            ("site", "{}", "--raw"),
        ] {
            let refused = encode(name, given).unwrap_err();
            assert!(refused.contains(says), "{given}: {refused}");
        }
    }
}
