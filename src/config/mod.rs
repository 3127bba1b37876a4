//! The configuration: `config.toml`, checked whole before anything starts.
//!
//! [`toml`] reads the strict subset, [`reader`] takes typed values out of it, [`Config`] has every key
//! of docs/config.md with its default. Everything wrong with a file is reported at once, each problem with
//! its line and key. A key this version does not know is an error, so that a typo fails loudly, unless
//! `newer_keys` lists it: a newer bcd writes that, so that the binary rolled back to still starts.

#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]

pub mod cmdline;
pub mod fresh;
pub mod mac;
pub mod spelling;
pub mod toml;
pub mod values;

mod file;
mod reader;
mod sections;

use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::crypto::pin::Pin;

pub use self::file::{MAX_BYTES, ReadError, exposure};
pub use self::reader::{NewerKey, Problem, Setting};
use self::reader::{NewerKeys, Reader, quoted};
pub use self::sections::{
    Boot, GpuApi, Helper, Host, Imds, Instances, Journal, Kubernetes, Log, Metrics, Plugins, Site,
    Update, WebSocket,
};
use crate::wire::url::Url;

/// `site` is a required key and `[site]` a section at once. TOML has one or the other, so
/// a file with `[site]` is the one kind that bcd reads and other TOML readers refuse.
const SHARED_NAMES: &[&str] = &["site"];

/// The effective configuration; docs/config.md has the meaning of each key.
#[derive(Clone, Debug)]
pub struct Config {
    /// The file it was read from.
    pub path: PathBuf,
    pub gateway_url: Url,
    /// The name the gateway's certificate must carry instead of the host in `gateway_url`.
    pub gateway_server_name: Option<String>,
    /// The site's id.
    pub site: String,
    pub serving_ca_spki_pin: Pin,
    pub join_signing_key_pin: Pin,
    pub join_encryption_key_pin: Pin,
    pub data_dir: PathBuf,
    pub socket_path: PathBuf,
    pub dev_insecure_h2c: bool,
    pub approver_set_sha256: Option<[u8; 32]>,
    pub command_root_sha256: Vec<[u8; 32]>,
    pub journal: Journal,
    pub log: Log,
    pub metrics: Metrics,
    pub update: Update,
    /// `Some` when `[helper] socket` is set: `bcd node` runs unprivileged.
    pub helper: Option<Helper>,
    pub site_agent: Site,
    /// `Some` when `[websocket] url` is set.
    pub websocket: Option<WebSocket>,
    pub instances: Instances,
    pub imds: Imds,
    pub host: Host,
    pub kubernetes: Kubernetes,
    /// `Some` when `[boot] listen` is set.
    pub boot: Option<Boot>,
    /// `Some` when `[plugins] dir` is set.
    pub plugins: Option<Plugins>,
    settings: Vec<Setting>,
    newer: Vec<NewerKey>,
}

impl Config {
    /// Reads and checks the file at `path`.
    ///
    /// # Errors
    /// The file cannot be read or is over [`MAX_BYTES`]; else everything that is wrong with it.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let bytes = file::read(path).map_err(|error| ConfigError::Read(path.to_owned(), error))?;
        Self::parse(&bytes, path)
    }

    /// Checks the text of a file; `path` is for messages and for what lies beside it.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn parse(bytes: &[u8], path: &Path) -> Result<Self, ConfigError> {
        if bytes.len() > MAX_BYTES {
            return Err(ConfigError::Read(path.to_owned(), ReadError::TooLarge));
        }
        let document = match toml::parse(bytes, SHARED_NAMES) {
            Ok(document) => document,
            Err(slips) => {
                let problem = |slip: toml::SyntaxError| Problem {
                    line: Some(slip.line),
                    key: slip.key.unwrap_or_default(),
                    what: slip.what.to_string(),
                };
                return Err(ConfigError::Invalid(
                    path.to_owned(),
                    slips.into_iter().map(problem).collect(),
                ));
            }
        };
        let mut reader = Reader::new(document);
        match Self::read(&mut reader, path) {
            Some(config) if reader.problems.is_empty() => Ok(config),
            _ => {
                let mut problems = reader.problems;
                problems.sort_by_key(|problem| problem.line);
                Err(ConfigError::Invalid(path.to_owned(), problems))
            }
        }
    }

    /// Every key of the table with its effective value, in the table's order.
    pub fn settings(&self) -> &[Setting] {
        &self.settings
    }

    /// The keys ignored because `newer_keys` lists them.
    pub fn newer_keys(&self) -> &[NewerKey] {
        &self.newer
    }

    /// Where a key is set, for messages: "site in /etc/bcd/config.toml, line 3".
    pub fn whereabouts(&self, section: &str, key: &str) -> String {
        let name = toml::qualify(section, key);
        let setting = self
            .settings
            .iter()
            .find(|setting| setting.section == section && setting.key == key);
        match setting.and_then(|setting| setting.line) {
            Some(line) => format!("{name} in {}, line {line}", self.path.display()),
            None => format!("{name} in {}", self.path.display()),
        }
    }

    /// The JoinService's encryption key, beside the configuration.
    pub fn join_encryption_jwk(&self) -> PathBuf {
        self.path.with_file_name("join-encryption.jwk")
    }

    /// The name the gateway's certificate must carry.
    pub fn gateway_name(&self) -> &str {
        self.gateway_server_name
            .as_deref()
            .unwrap_or(&self.gateway_url.host)
    }

    fn read(r: &mut Reader, path: &Path) -> Option<Self> {
        let gateway_url = r.required("", "gateway_url");
        let gateway_server_name = read_server_name(r);
        let site = r.required("", "site");
        let site = site.and_then(|text| r.check("", "site", checked_site(&text)));
        let serving_ca_spki_pin = read_pin(r, "serving_ca_spki_pin");
        let join_signing_key_pin = read_pin(r, "join_signing_key_pin");
        let join_encryption_key_pin = read_pin(r, "join_encryption_key_pin");
        let data_dir = r.path("", "data_dir", Some("/var/lib/bcd"));
        let socket_path = r.path("", "socket_path", Some("/run/bcd/bcd.sock"));
        let socket_path = socket_path
            .and_then(|path| r.check("", "socket_path", sections::checked_status_socket(path)));
        let approver_set_sha256 = r.filled("", "approver_set_sha256");
        let approver_set_sha256 = approver_set_sha256.and_then(|text| {
            let digest = values::hex_digest(&text)
                .ok_or_else(|| "must be 64 lower-case hex digits".to_owned());
            r.check("", "approver_set_sha256", digest)
        });
        let command_root_sha256 = r.list("", "command_root_sha256", None, |entry| {
            values::hex_digest(entry)
                .ok_or_else(|| format!("{} is not 64 lower-case hex digits", quoted(entry)))
        });
        if command_root_sha256.len() > 16 {
            r.problem("", "command_root_sha256", "lists more than 16 digests");
        }
        let insecure = sections::read_insecure(r);
        let gateway_url = gateway_url.and_then(|text| {
            let url = gateway_url_of(&text, insecure);
            r.check("", "gateway_url", url)
        });
        let newer_keys = NewerKeys::new(r.list("", "newer_keys", None, NewerKeys::parse_entry));
        let journal = Journal::read(r);
        let log = Log::read(r);
        let metrics = Metrics::read(r);
        let helper = Helper::read(r);
        let update = Update::read(r, data_dir.as_deref(), helper.is_some());
        let site_agent = Site::read(r);
        let websocket = WebSocket::read(r, insecure, gateway_server_name.as_deref());
        let instances = Instances::read(r);
        let imds = Imds::read(r);
        let host = Host::read(r);
        let kubernetes = Kubernetes::read(r);
        let boot = Boot::read(r);
        let plugins = Plugins::read(r);
        let newer = r.finish(&newer_keys);
        Some(Self {
            path: path.to_owned(),
            gateway_url: gateway_url?,
            gateway_server_name,
            site: site?,
            serving_ca_spki_pin: serving_ca_spki_pin?,
            join_signing_key_pin: join_signing_key_pin?,
            join_encryption_key_pin: join_encryption_key_pin?,
            data_dir: data_dir?,
            socket_path: socket_path?,
            dev_insecure_h2c: insecure,
            approver_set_sha256,
            command_root_sha256,
            journal,
            log,
            metrics,
            update: update?,
            helper,
            site_agent,
            websocket,
            instances,
            imds,
            host,
            kubernetes,
            boot,
            plugins,
            settings: std::mem::take(&mut r.settings),
            newer,
        })
    }
}

/// A gateway's URL: `https://`, or `http://` where `insecure` allows it, without credentials, and without a
/// path, which gRPC has no use for.
///
/// # Errors
/// What is wrong, as the rest of a sentence that begins with the name of the value.
pub fn gateway_url_of(text: &str, insecure: bool) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| format!(": {error}"))?;
    if !url.https && !insecure {
        #[cfg(feature = "fakehw")]
        return Err("is an http:// URL, which needs dev_insecure_h2c = true".to_owned());
        #[cfg(not(feature = "fakehw"))]
        return Err("must be an https:// URL".to_owned());
    }
    if url.path != "/" {
        return Err("must not have a path, a query or a fragment".to_owned());
    }
    Ok(url)
}

/// A site's id: something, without whitespace or control characters.
///
/// # Errors
/// What is wrong, as the rest of a sentence that begins with the name of the value.
pub fn checked_site(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > 128 {
        return Err("must have 1 to 128 bytes".to_owned());
    }
    if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err("must not contain whitespace".to_owned());
    }
    Ok(text.to_owned())
}

fn read_server_name(r: &mut Reader) -> Option<String> {
    let name = r.filled("", "gateway_server_name")?;
    let checked = if values::is_server_name(&name) {
        Ok(name)
    } else {
        Err("is not a DNS name or an address".to_owned())
    };
    r.check("", "gateway_server_name", checked)
}

fn read_pin(r: &mut Reader, key: &'static str) -> Option<Pin> {
    let text = r.required("", key)?;
    let pin = Pin::parse(&text).map_err(|error| format!("is not a pin: {error}"));
    r.check("", key, pin)
}

/// Why there is no configuration.
#[derive(Debug)]
pub enum ConfigError {
    /// The file could not be read.
    Read(PathBuf, ReadError),
    /// The file is wrong, in these places.
    Invalid(PathBuf, Vec<Problem>),
}

impl ConfigError {
    /// Whether there is no such file, as before an install.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Read(_, error) if error.is_missing())
    }

    /// The places where the file is wrong.
    pub fn problems(&self) -> &[Problem] {
        match self {
            Self::Read(..) => &[],
            Self::Invalid(_, problems) => problems,
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(path, _) => write!(f, "cannot read the configuration {}", path.display()),
            Self::Invalid(path, problems) => {
                write!(f, "the configuration {} is refused", path.display())?;
                for (index, problem) in problems.iter().enumerate() {
                    write!(f, "{} {problem}", if index == 0 { ":" } else { ";" })?;
                }
                Ok(())
            }
        }
    }
}

impl Error for ConfigError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Read(_, error) => Some(error),
            Self::Invalid(..) => None,
        }
    }
}

#[cfg(test)]
mod tests;
