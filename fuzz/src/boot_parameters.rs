//! The `bc.*` parameters: what is read keeps the configuration's rules, and what is said of a refused line
//! holds no token and no assertion.
use std::path::Path;

use bcd::attest::boot_parameters::BootParameters;
use bcd::config::cmdline::CommandLine;
use bcd::crypto::envelope::{self, Purpose};

/// Of the parameters.
const SECRETS: [&str; 2] = ["bc.token", "bc.assertion"];

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
            let secrets = SECRETS.iter().flat_map(|name| line.values(name));
            for secret in secrets.filter(|secret| secret.len() >= 24) {
                assert!(
                    !said.contains(secret) || may_be_shown(&line, secret),
                    "{said}"
                );
            }
        }
    }
}

/// Whether a value without the mark of a token is also what another parameter is called or holds.
fn may_be_shown(line: &CommandLine, value: &str) -> bool {
    let others = line.parameters().iter();
    let mut others = others.filter(|other| !SECRETS.contains(&other.name.as_str()));
    !value.contains("bcjt_")
        && others.any(|other| {
            let its = [Some(other.name.as_str()), other.value.as_deref()];
            its.into_iter().flatten().any(|text| text.contains(value))
        })
}
