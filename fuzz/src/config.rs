//! config.toml: what is accepted has a value for every required key; what is refused says why on
//! one line a problem.
use std::path::Path;

use bcd::config::{Config, ConfigError, MAX_BYTES};

pub const HEAP: super::Heap = super::Heap {
    base: 128 << 10,
    per_byte: 1024,
};

pub fn run(data: &[u8]) {
    match Config::parse(data, Path::new("/etc/bcd/config.toml")) {
        Ok(config) => {
            assert!(data.len() <= MAX_BYTES);
            assert!(config.gateway_url.https || config.dev_insecure_h2c);
            assert!(!config.site.is_empty() && config.site.len() <= 128);
            assert!(config.data_dir.is_absolute() && config.socket_path.is_absolute());
            assert!(!config.gateway_name().is_empty());
            let _ = config.whereabouts("", "site");
            assert!(
                config
                    .settings()
                    .iter()
                    .any(|setting| setting.key == "site")
            );
        }
        Err(ConfigError::Invalid(_, problems)) => {
            assert!(!problems.is_empty());
            for problem in &problems {
                let said = problem.to_string();
                assert!(!said.chars().any(char::is_control), "{said:?}");
            }
        }
        Err(_) => assert!(data.len() > MAX_BYTES),
    }
}
