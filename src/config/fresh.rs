//! Writing a new `config.toml`: what a join from the well-known document and `better-compute dev` leave.

use std::fmt::Write as _;
use std::path::PathBuf;

use crate::crypto::pin::Pin;

/// The keys of a new configuration; everything else keeps its default.
#[derive(Clone, Debug)]
pub struct FreshConfig {
    /// Who writes it, for the first line's comment.
    pub written_by: String,
    pub gateway_url: String,
    pub gateway_server_name: Option<String>,
    pub site: String,
    pub serving_ca_spki_pin: Pin,
    pub join_signing_key_pin: Pin,
    pub join_encryption_key_pin: Pin,
    pub data_dir: Option<PathBuf>,
    pub socket_path: Option<PathBuf>,
    /// Written only when true.
    pub dev_insecure_h2c: bool,
}

impl FreshConfig {
    /// The file's text. [`Config::parse`](super::Config::parse) reads it back if the values keep the rules.
    pub fn to_toml(&self) -> String {
        let comment: String = self
            .written_by
            .chars()
            .filter(|c| !c.is_control())
            .collect();
        let mut text = format!("# Written by {comment}. bcd refuses unknown keys.\n");
        let mut line = |key: &str, value: &str| {
            let _ = writeln!(text, "{key} = {}", string(value));
        };
        line("gateway_url", &self.gateway_url);
        if let Some(name) = &self.gateway_server_name {
            line("gateway_server_name", name);
        }
        line("site", &self.site);
        line("serving_ca_spki_pin", &self.serving_ca_spki_pin.to_string());
        line(
            "join_signing_key_pin",
            &self.join_signing_key_pin.to_string(),
        );
        line(
            "join_encryption_key_pin",
            &self.join_encryption_key_pin.to_string(),
        );
        for (key, path) in [
            ("data_dir", &self.data_dir),
            ("socket_path", &self.socket_path),
        ] {
            if let Some(path) = path {
                line(key, &path.to_string_lossy());
            }
        }
        if self.dev_insecure_h2c {
            text.push_str("dev_insecure_h2c = true\n");
        }
        text
    }
}

/// A basic string with its quotes, escaped as TOML 1.0 wants it.
pub fn string(value: &str) -> String {
    let mut text = String::with_capacity(value.len() + 2);
    text.push('"');
    for c in value.chars() {
        match c {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\t' => text.push_str("\\t"),
            '\r' => text.push_str("\\r"),
            c if c.is_control() => {
                let _ = write!(text, "\\u{:04X}", u32::from(c));
            }
            c => text.push(c),
        }
    }
    text.push('"');
    text
}
