//! The `bc.*` parameters: what is read keeps the configuration's rules, and what is said of a refused line
//! holds no token and no assertion.
use std::path::Path;

use bcd::attest::boot_parameters::BootParameters;
use bcd::config::cmdline::CommandLine;
use bcd::crypto::envelope::{self, Purpose};

pub const HEAP: super::Heap = super::Heap {
    base: 128 << 10,
    per_byte: 512,
};

pub fn run(data: &[u8]) {
    let line = CommandLine::parse(data);
    match BootParameters::read(&line) {
        Ok(parameters) => {
            let config = parameters.config(Path::new("/run/bcd"));
            let config = config.expect("parameters that keep the rules");
            assert_eq!(config.site, parameters.site);
            assert_eq!(config.gateway_url.origin(), parameters.gateway_url.origin());
            assert_eq!(parameters.encryption_key.pin(), parameters.encryption);
            assert_eq!(
                parameters.assertion.payload_type,
                envelope::payload_type(Purpose::DiscoveryAssertion)
            );
        }
        Err(refused) => {
            let said = refused.to_string();
            assert!(!said.is_empty() && said.len() < 4096, "{said}");
            let secret = ["bc.token", "bc.assertion"];
            // What another parameter is called or holds, without the mark of a token, is that one's to be shown.
            let shown = |value: &str| {
                let others = line.parameters().iter();
                let mut others = others.filter(|other| !secret.contains(&other.name.as_str()));
                let holds = |text: &str| text.contains(value);
                !value.contains("bcjt_")
                    && others.any(|other| {
                        other.name.starts_with("bc.") && holds(&other.name)
                            || other.value.as_deref().is_some_and(holds)
                    })
            };
            for value in secret.into_iter().flat_map(|name| line.values(name)) {
                assert!(
                    value.len() < 24 || !said.contains(value) || shown(value),
                    "{said}"
                );
            }
        }
    }
}
