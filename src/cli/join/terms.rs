//! What a join goes by: the configuration, or, on a machine without one, the well-known document
//! and the pins that came with the install.
use std::path::{Path, PathBuf};

use super::{failed, said};
use crate::attest::bootstrap::{self, Given, Settled, Which};
use crate::attest::gateway::Gateway;
use crate::cli::flags::Args;
use crate::cli::{Failure, block_on};
use crate::config::fresh::FreshConfig;
use crate::config::{Config, ConfigError};
use crate::crypto::jwk::{self, PublicKey};
use crate::crypto::pin::Pin;
use crate::sys::fs::{self, Dir};
use crate::wire::url::Url;

/// `data_dir` where no configuration says otherwise.
const DATA_DIR: &str = "/var/lib/bcd";

/// Development builds also take `http://` servers and gateways, and join without pins.
const INSECURE: bool = cfg!(feature = "fakehw");

/// What a join goes by.
pub(super) enum Terms {
    /// `config.toml`, and where the control plane is, if that was said.
    Config {
        config: Box<Config>,
        server: Option<Url>,
    },
    /// No `config.toml` at `path` yet.
    Bootstrap {
        path: PathBuf,
        server: Url,
        given: Given,
    },
}

/// What the calls need of the terms.
pub(in crate::cli) struct Going {
    pub gateway: Gateway,
    pub site: String,
    pub serving_ca: Pin,
    pub signing: Pin,
    pub encryption_key: PublicKey,
    /// The configuration to write once the join is done.
    pub unwritten: Option<Settled>,
}

impl Terms {
    /// Reads the configuration and the flags about it; nothing is asked of anybody yet.
    pub(super) fn of(args: &Args, path: &Path) -> Result<Self, Failure> {
        let given = Given {
            serving_ca: pin(args, Which::ServingCa)?,
            signing: pin(args, Which::Signing)?,
            encryption: pin(args, Which::Encryption)?,
        };
        let server = args.value("server").map(server).transpose()?;
        match Config::load(path) {
            Ok(config) => {
                agrees(&config, &given)?;
                Ok(Self::Config {
                    config: Box::new(config),
                    server,
                })
            }
            Err(error) if error.is_missing() => match server {
                Some(server) => {
                    let all = given.serving_ca.is_some()
                        && given.signing.is_some()
                        && given.encryption.is_some();
                    if !all && !INSECURE {
                        return Err(Failure::refused(
                            "joining without config.toml needs --serving-ca-pin, --join-signing-pin and \
                             --join-encryption-pin from the install",
                        ));
                    }
                    Ok(Self::Bootstrap {
                        path: path.to_owned(),
                        server,
                        given,
                    })
                }
                None => Err(no_config(error)),
            },
            Err(error) => Err(Failure::refused(error)),
        }
    }

    pub(super) fn config(&self) -> Option<&Config> {
        match self {
            Self::Config { config, .. } => Some(config),
            Self::Bootstrap { .. } => None,
        }
    }

    pub(super) fn data_dir(&self) -> &Path {
        self.config()
            .map_or(Path::new(DATA_DIR), |config| &config.data_dir)
    }

    /// Finds out what is missing: the encryption key, and without a configuration everything.
    pub(super) fn settle(&self) -> Result<Going, Failure> {
        match self {
            Self::Config { config, server } => {
                let encryption_key = match read_jwk(config)? {
                    Some(key) => key,
                    None => match server {
                        Some(server) => jwk_of(config, server)?,
                        None => return Err(no_jwk(config)),
                    },
                };
                Ok(Going {
                    gateway: Gateway::of(config).map_err(Failure::refused)?,
                    site: config.site.clone(),
                    serving_ca: config.serving_ca_spki_pin,
                    signing: config.join_signing_key_pin,
                    encryption_key,
                    unwritten: None,
                })
            }
            Self::Bootstrap { server, given, .. } => {
                let settled = document(server, given)?;
                let name = settled.gateway_server_name.as_deref();
                Ok(Going {
                    gateway: Gateway::new(settled.gateway_url.clone(), name)
                        .map_err(Failure::refused)?,
                    site: String::new(),
                    serving_ca: settled.serving_ca,
                    signing: settled.signing,
                    encryption_key: settled.encryption_key,
                    unwritten: Some(settled),
                })
            }
        }
    }

    /// Writes `config.toml` and `join-encryption.jwk` of a machine that has joined without them.
    pub(super) fn write(&self, settled: &Settled, site: &str) -> Result<(), Failure> {
        let Self::Bootstrap { path, .. } = self else {
            return Ok(());
        };
        let text = FreshConfig {
            written_by: "bcd join --server".to_owned(),
            gateway_url: settled.gateway_url.origin(),
            gateway_server_name: settled.gateway_server_name.clone(),
            site: site.to_owned(),
            serving_ca_spki_pin: settled.serving_ca,
            join_signing_key_pin: settled.signing,
            join_encryption_key_pin: settled.encryption,
            data_dir: None,
            socket_path: None,
            dev_insecure_h2c: !settled.gateway_url.https,
        }
        .to_toml();
        let failed = |error: fs::Error| {
            let remedy = error.remedy().unwrap_or("mend that");
            failed(
                &error,
                &format!("this machine has joined; {remedy}, and run the same command again"),
            )
        };
        let parent = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        let dir = Dir::create(parent.unwrap_or(Path::new(".")), 0o700).map_err(failed)?;
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or("config.toml");
        // The key first: config.toml is what says that there is nothing left to write.
        let jwk = settled.encryption_key.to_json() + "\n";
        dir.write_atomic("join-encryption.jwk", jwk.as_bytes(), 0o644)
            .map_err(failed)?;
        dir.write_atomic(name, text.as_bytes(), 0o600)
            .map_err(failed)
    }
}

fn no_config(error: ConfigError) -> Failure {
    let hint = "install it, or join with --server and the three pins from the install";
    Failure::refused(format!("{}; {hint}", said(&error)))
}

pub(super) fn no_jwk(config: &Config) -> Failure {
    Failure::failed(format!(
        "there is no {}, so the token cannot be sealed; copy it from the install, or give --server https://… to \
         take it from the control plane",
        config.join_encryption_jwk().display()
    ))
}

fn server(text: &str) -> Result<Url, Failure> {
    let refused = |why: &str| {
        Failure::refused(format!(
            "--server {why}: give the control plane's URL, https://…"
        ))
    };
    let url = Url::parse(text).map_err(|error| refused(&format!("is not used, {error}")))?;
    if !url.https && !INSECURE {
        return Err(refused("is not https://"));
    }
    Ok(url)
}

fn pin(args: &Args, which: Which) -> Result<Option<Pin>, Failure> {
    let parse = |text: &str| {
        Pin::parse(text).map_err(|error| {
            let flag = which.flag();
            Failure::refused(format!(
                "--{flag}: {error}; copy it from the install or `better-compute pki pins`"
            ))
        })
    };
    args.value(which.flag()).map(parse).transpose()
}

/// On a machine with a configuration, that wins, and flags that say otherwise are a mistake.
fn agrees(config: &Config, given: &Given) -> Result<(), Failure> {
    let pairs = [
        (
            Which::ServingCa,
            given.serving_ca,
            config.serving_ca_spki_pin,
            "serving_ca_spki_pin",
        ),
        (
            Which::Signing,
            given.signing,
            config.join_signing_key_pin,
            "join_signing_key_pin",
        ),
        (
            Which::Encryption,
            given.encryption,
            config.join_encryption_key_pin,
            "join_encryption_key_pin",
        ),
    ];
    for (which, given, configured, key) in pairs {
        if let Some(given) = given.filter(|given| *given != configured) {
            return Err(Failure::refused(format!(
                "--{} is {given}, and {} is {configured}; refusing to join: leave the flag out, or correct the \
                 configuration",
                which.flag(),
                config.whereabouts("", key),
            )));
        }
    }
    Ok(())
}

/// The key beside the configuration, if there is one. Another key than the pinned one is an error:
/// a stale file has to be noticed.
pub(super) fn read_jwk(config: &Config) -> Result<Option<PublicKey>, Failure> {
    let path = config.join_encryption_jwk();
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let stale = |error: &dyn std::error::Error| {
        failed(
            error,
            "copy join-encryption.jwk from the install again, or remove it and give --server",
        )
    };
    let dir = Dir::open(parent.unwrap_or(Path::new("."))).map_err(|error| stale(&error))?;
    let text = match dir.read_optional("join-encryption.jwk", jwk::MAX_LENGTH) {
        Ok(None) => return Ok(None),
        Ok(Some(text)) => text,
        Err(error) => return Err(stale(&error)),
    };
    let key = PublicKey::parse(&text).map_err(|error| {
        Failure::failed(format!(
            "{}: {}; copy it from the install again",
            path.display(),
            said(&error)
        ))
    })?;
    let (found, expected) = (key.pin(), config.join_encryption_key_pin);
    if found != expected {
        return Err(Failure::failed(format!(
            "the key in {} has the pin {found}, and {} is {expected}; copy both from the install again",
            path.display(),
            config.whereabouts("", "join_encryption_key_pin"),
        )));
    }
    Ok(Some(key))
}

/// The key from the document, held against the configuration's pins.
fn jwk_of(config: &Config, server: &Url) -> Result<PublicKey, Failure> {
    let given = Given {
        serving_ca: Some(config.serving_ca_spki_pin),
        signing: Some(config.join_signing_key_pin),
        encryption: Some(config.join_encryption_key_pin),
    };
    Ok(document(server, &given)?.encryption_key)
}

fn document(server: &Url, given: &Given) -> Result<Settled, Failure> {
    let shown = format!("{}{}", server.authority(), bootstrap::PATH);
    let bytes = block_on(bootstrap::fetch(server))?.map_err(|error| {
        Failure::failed(format!(
            "cannot read https://{shown}: {}; {}",
            said(&error),
            error.remedy()
        ))
    })?;
    bootstrap::settle(&bytes, given, INSECURE).map_err(|error| {
        Failure::failed(format!(
            "the document at https://{shown} is not used: {}; check --server",
            said(&error)
        ))
    })
}
