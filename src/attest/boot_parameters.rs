//! The `bc.*` parameters of the kernel command line, by which a ramdisk joins: docs/boot-parameters.md.
//!
//! All that is wrong is said at once. A loader or kernel cuts a line that is too long without a word;
//! every value here can be told from one that was cut, so that a cut line is called one, and never a bad
//! signature. No message holds a token or an assertion.
use std::error::Error;
use std::fmt;
use std::path::Path;

use super::join_token::JoinToken;
use crate::config::cmdline::{CommandLine, brief};
use crate::config::fresh::FreshConfig;
use crate::config::mac::Mac;
use crate::config::{Config, ConfigError, checked_site, gateway_url_of, values};
use crate::crypto::base64;
use crate::crypto::envelope::{self, Purpose};
use crate::crypto::jwk::PublicKey;
use crate::crypto::pin::Pin;
use crate::proto::{Envelope, Message};
use crate::wire::url::Url;

/// Development builds also take `http://` gateways.
const INSECURE: bool = cfg!(feature = "fakehw");

/// What a site agent wrote for this boot.
pub struct BootParameters {
    pub gateway_url: Url,
    /// `None`: the URL's host.
    pub server_name: Option<String>,
    /// The site's image cache.
    pub cache: Option<Url>,
    pub site: String,
    pub serving_ca: Pin,
    pub signing: Pin,
    pub encryption: Pin,
    /// The key that has `encryption` as its pin.
    pub encryption_key: PublicKey,
    pub token: JoinToken,
    /// A `SignedDiscoveryAssertion`, whole; whose it is only the control plane can tell.
    pub assertion: Envelope,
    /// `BOOTIF`, when it stands there and is a MAC: the NIC that the machine booted from.
    pub boot_nic: Option<Mac>,
}

/// What is wrong with the parameters, all of it.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused {
    missing: Vec<&'static str>,
    /// Sentences.
    wrong: Vec<String>,
    /// Why the line seems to have been cut off.
    cut: Option<String>,
}

impl BootParameters {
    /// Reads them.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn read(line: &CommandLine) -> Result<Self, Refused> {
        let mut reader = Reader {
            line,
            refused: Refused {
                missing: Vec::new(),
                wrong: Vec::new(),
                cut: None,
            },
        };
        match reader.parameters() {
            Some(parameters) if reader.refused.is_sound() => Ok(parameters),
            _ => {
                let mut refused = reader.refused;
                refused.cut = line.cut().map(|cut| cut.to_string()).or_else(|| {
                    // Firmware cuts where it likes: then one of ours stands last.
                    let last = line.parameters().last()?;
                    last.name.starts_with("bc.").then(|| {
                        [
                            "the line ends in ",
                            &brief(&last.name),
                            ": if it is longer where it was made, a loader has cut it off",
                        ]
                        .concat()
                    })
                });
                Err(refused)
            }
        }
    }

    /// The configuration these parameters stand for, with the defaults of config.toml for all else.
    ///
    /// # Errors
    /// The data directory is none that config.toml could name.
    pub fn config(&self, data_dir: &Path) -> Result<Config, ConfigError> {
        let text = FreshConfig {
            data_dir: Some(data_dir.to_owned()),
            socket_path: Some(data_dir.join("bcd.sock")),
            ..self.fresh("")
        }
        .to_toml();
        // One reader knows the defaults and the rules.
        let mut config = Config::parse(text.as_bytes(), Path::new("bc.*"))?;
        config.log.json = true;
        Ok(config)
    }

    /// The `config.toml` of an OS that is installed on this machine.
    pub fn for_an_os(&self) -> String {
        self.fresh("bcd ramdisk, as it deployed this image")
            .to_toml()
    }

    fn fresh(&self, written_by: &str) -> FreshConfig {
        FreshConfig {
            written_by: written_by.to_owned(),
            gateway_url: self.gateway_url.origin(),
            gateway_server_name: self.server_name.clone(),
            site: self.site.clone(),
            serving_ca_spki_pin: self.serving_ca,
            join_signing_key_pin: self.signing,
            join_encryption_key_pin: self.encryption,
            data_dir: None,
            socket_path: None,
            dev_insecure_h2c: !self.gateway_url.https,
        }
    }
}

struct Reader<'a> {
    line: &'a CommandLine,
    refused: Refused,
}

impl<'a> Reader<'a> {
    fn parameters(&mut self) -> Option<BootParameters> {
        let gateway = self.needed("bc.gateway");
        let server_name = self.filled("bc.server_name");
        let cache = self.filled("bc.cache");
        let site = self.needed("bc.site");
        let pins = self.needed("bc.pins");
        let jwk = self.needed("bc.jwk");
        let token = self.needed("bc.token");
        let assertion = self.needed("bc.assertion");

        let gateway_url = gateway.and_then(|text| {
            let url = gateway_url_of(text, INSECURE);
            self.right("bc.gateway", url)
        });
        if let Some(name) = server_name
            && !values::is_server_name(name)
        {
            self.wrong("bc.server_name", "is not a DNS name or an address");
        }
        let cache = cache.and_then(|text| match Url::parse(text) {
            Ok(url) => Some(url),
            Err(error) => {
                self.wrong("bc.cache", &[": ", &error.to_string()].concat());
                None
            }
        });
        let site = site.and_then(|text| self.right("bc.site", checked_site(text)));
        let pins = pins.and_then(|text| self.pins(text));
        let encryption_key = jwk.and_then(|text| self.jwk(text, pins.map(|[.., pin]| pin)));
        let token = token.and_then(|text| match JoinToken::parse(text) {
            Ok(token) => Some(token),
            Err(malformed) => {
                self.wrong("bc.token", &[": ", &malformed.to_string()].concat());
                None
            }
        });
        let assertion = assertion.and_then(|text| {
            let read = read_assertion(text);
            if read.is_none() {
                self.wrong(
                    "bc.assertion",
                    "is no whole assertion: it is damaged or cut off",
                );
            }
            read
        });
        let [serving_ca, signing, encryption] = pins?;
        Some(BootParameters {
            gateway_url: gateway_url?,
            server_name: server_name.map(str::to_owned),
            cache,
            site: site?,
            serving_ca,
            signing,
            encryption,
            encryption_key: encryption_key?,
            token: token?,
            assertion: assertion?,
            boot_nic: self.line.values("BOOTIF").find_map(Mac::parse),
        })
    }

    /// A value that must be there.
    fn needed(&mut self, name: &'static str) -> Option<&'a str> {
        let before = self.refused.wrong.len();
        let value = self.filled(name);
        if value.is_none() && self.refused.wrong.len() == before {
            self.refused.missing.push(name);
        }
        value
    }

    /// A value that may be there; an empty one is none.
    fn filled(&mut self, name: &'static str) -> Option<&'a str> {
        match self.line.one(name) {
            Ok(value) => value.filter(|value| !value.is_empty()),
            Err(doubled) => {
                self.refused.wrong.push(doubled.to_string());
                None
            }
        }
    }

    fn right<T>(&mut self, name: &'static str, read: Result<T, String>) -> Option<T> {
        match read {
            Ok(value) => Some(value),
            Err(why) => {
                self.wrong(name, &why);
                None
            }
        }
    }

    fn wrong(&mut self, name: &'static str, why: &str) {
        let gap = if why.starts_with(':') { "" } else { " " };
        self.refused.wrong.push([name, gap, why].concat());
    }

    fn pins(&mut self, text: &str) -> Option<[Pin; 3]> {
        let mut parts = text.split(',');
        let mut pins = [Pin([0; 32]); 3];
        for pin in &mut pins {
            match Pin::parse(parts.next().unwrap_or_default()) {
                Ok(read) => *pin = read,
                Err(_) => {
                    self.wrong("bc.pins", PINS);
                    return None;
                }
            }
        }
        if parts.next().is_some() {
            self.wrong("bc.pins", PINS);
            return None;
        }
        Some(pins)
    }

    fn jwk(&mut self, text: &str, pin: Option<Pin>) -> Option<PublicKey> {
        let key = base64::decode_url(text)
            .ok()
            .and_then(|json| PublicKey::parse(&json).ok());
        let Some(key) = key else {
            self.wrong(
                "bc.jwk",
                "is no P-256 JWK in base64url: it is damaged or cut off",
            );
            return None;
        };
        match pin {
            Some(pin) if pin != key.pin() => {
                self.wrong(
                    "bc.jwk",
                    "is not the key that the third pin of bc.pins names",
                );
                None
            }
            _ => Some(key),
        }
    }
}

const PINS: &str =
    "must be three pins, sha256/…, with commas between: serving CA, join signing, join encryption";

/// An envelope of the right purpose with everything that a site agent puts into one.
fn read_assertion(text: &str) -> Option<Envelope> {
    let bytes = base64::decode_url(text).ok()?;
    let signed = Envelope::decode(&bytes).ok()?;
    // A line that is cut between two fields leaves an envelope without its end.
    let whole = signed.payload_type == envelope::payload_type(Purpose::DiscoveryAssertion)
        && !signed.payload.is_empty()
        && !signed.signatures.is_empty()
        && signed
            .signatures
            .iter()
            .all(|signature| !signature.sig.is_empty() && !signature.keyid.is_empty());
    whole.then_some(signed)
}

impl Refused {
    fn is_sound(&self) -> bool {
        self.missing.is_empty() && self.wrong.is_empty()
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        if !self.missing.is_empty() {
            f.write_str("the kernel command line lacks ")?;
            for name in &self.missing {
                f.write_str(between)?;
                f.write_str(name)?;
                between = ", ";
            }
            between = "; ";
        }
        for sentence in self.wrong.iter().chain(&self.cut) {
            f.write_str(between)?;
            f.write_str(sentence)?;
            between = "; ";
        }
        Ok(())
    }
}

impl Error for Refused {}

#[cfg(test)]
mod tests;
