//! What a site agent puts on the kernel command line of a ramdisk it boots: the `bc.*` parameters
//! (docs/boot-parameters.md), within the 2048 bytes that every x86 kernel takes.

use bcd::config::mac::Mac;
use bcd::crypto::base64;
use bcd::crypto::jwk::PublicKey;
use bcd::crypto::pin::Pin;
use bcd::proto::Envelope;
use proto_gen::codec::Message;

/// The longest command line: COMMAND_LINE_SIZE of x86 and arm64 kernels, without its NUL.
pub const LINE_MAX: usize = 2047;

/// All that [`BootParameters::line`] writes.
pub const NAMES: [&str; 9] = [
    "bc.gateway",
    "bc.server_name",
    "bc.cache",
    "bc.site",
    "bc.pins",
    "bc.jwk",
    "bc.token",
    "bc.assertion",
    "BOOTIF",
];

/// What a machine's ramdisk is told.
pub struct BootParameters<'a> {
    pub gateway: &'a str,
    pub server_name: Option<&'a str>,
    pub cache: Option<&'a str>,
    pub site: &'a str,
    /// Serving CA, join signing, join encryption.
    pub pins: [Pin; 3],
    pub encryption_key: &'a PublicKey,
    pub token: &'a str,
    pub assertion: &'a Envelope,
    pub mac: Mac,
}

impl BootParameters<'_> {
    /// The line: `bc.*` first, as a line that is too long is cut at its end.
    pub fn line(&self) -> String {
        let mut line = format!("bc.gateway={}", self.gateway);
        if let Some(name) = self.server_name {
            line.push_str(&format!(" bc.server_name={name}"));
        }
        if let Some(cache) = self.cache {
            line.push_str(&format!(" bc.cache={cache}"));
        }
        let [serving_ca, signing, encryption] = self.pins;
        let jwk = base64::encode_url(self.encryption_key.to_json().as_bytes());
        let assertion = base64::encode_url(&self.assertion.encode_to_vec());
        line.push_str(&format!(
            " bc.site={} bc.pins={serving_ca},{signing},{encryption} bc.jwk={jwk} bc.token={} bc.assertion={assertion}",
            self.site, self.token
        ));
        let bootif = self.mac.to_string().replace(':', "-");
        line.push_str(&format!(" BOOTIF=01-{bootif}"));
        line
    }
}

#[cfg(test)]
mod tests {
    use bcd::config::cmdline::CommandLine;
    use bcd::crypto::key::NodeKey;
    use bcd::proto::DiscoveryAssertion;

    use super::*;
    use crate::joinservice::{discovery, token};

    const MAC: Mac = Mac([0x52, 0x54, 0, 0x12, 0x34, 0x56]);

    fn line(gateway: &str, name: Option<&str>, cache: Option<&str>, site: &str) -> String {
        let key = NodeKey::generate().unwrap();
        let minted = token::mint(1_800_000_000_000);
        // ECDSA signatures differ in length by a few bytes: the longest of some.
        let assertion = DiscoveryAssertion {
            site: site.to_owned(),
            mac: MAC.0.to_vec(),
            token_id: minted.id.clone(),
            signed_at_ms: 1_800_000_000_000,
        };
        (0..40)
            .map(|_| {
                let parameters = BootParameters {
                    gateway,
                    server_name: name,
                    cache,
                    site,
                    pins: [key.pin(); 3],
                    encryption_key: &PublicKey::from_point(*key.point()),
                    token: &minted.token,
                    assertion: &discovery::sign(&assertion, &key).unwrap(),
                    mac: MAC,
                };
                parameters.line()
            })
            .max_by_key(String::len)
            .unwrap()
    }

    /// The arithmetic of docs/boot-parameters.md, each number.
    #[test]
    fn the_line_leaves_a_site_half_of_what_a_kernel_takes() {
        let (gateway, cache) = (
            "https://gateway.eu.example.com:8443",
            "http://10.20.0.2:8080/cache",
        );
        let text = line(gateway, Some("gateway.example.com"), Some(cache), "fsn1");
        let parsed = CommandLine::parse(text.as_bytes());
        let length = |name: &str| {
            let value = parsed.one(name).unwrap().unwrap();
            name.len() + 1 + value.len()
        };
        assert_eq!(length("bc.gateway"), 46);
        assert_eq!(length("bc.server_name"), 34);
        assert_eq!(length("bc.cache"), 36);
        assert_eq!(length("bc.site"), 12);
        assert_eq!(length("bc.pins"), 163);
        assert_eq!(length("bc.jwk"), 175);
        assert_eq!(length("bc.token"), 87);
        assert!((340..=343).contains(&length("bc.assertion")), "{text}");
        assert_eq!(length("BOOTIF"), 27);
        assert!(text.len() <= LINE_MAX / 2, "{} characters", text.len());
        let names: Vec<&str> = parsed
            .parameters()
            .iter()
            .map(|one| one.name.as_str())
            .collect();
        assert_eq!(names, NAMES);
    }

    #[test]
    fn the_longest_names_fit_too() {
        let host = format!("{0}.{0}.{0}.{1}", "a".repeat(63), "b".repeat(61));
        let url = format!("https://{host}:65535");
        let cache = format!("http://{host}:65535/cache");
        let text = line(&url, Some(&host), Some(&cache), &"s".repeat(128));
        assert!(text.len() <= LINE_MAX, "{} characters", text.len());
    }
}
