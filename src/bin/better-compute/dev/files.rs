//! The files of a state directory: keys and token made once, and what a node and the operator's commands
//! on this host need, written at every start.
//!
//! | name | mode | what |
//! | --- | --- | --- |
//! | `pki.json`, `pki.key` | 0600 | the PKI bundle and the key that opens it |
//! | `state.db` | 0600 | the database |
//! | `admin.token` | 0600 | the API's token |
//! | `site.key` | 0600 | a site agent's key, registered for the site, for `machines boot-params` |
//! | `serving-ca.pem` | 0644 | the CA of the gateway's and the API's certificates; two while it is rotated |
//! | `dev.json` | 0600 | where everything is, for programs |
//! | `node/config.toml` | 0600 | a configuration for bcd on this host |
//! | `node/join-encryption.jwk` | 0644 | the key a token is sealed to |

use std::path::Path;

use bcd::config::fresh::FreshConfig;
use bcd::crypto::key::NodeKey;
use bcd::crypto::{base64, digest, pem};
use bcd::sys::fs::Dir;
use nanoserde::{DeJson, SerJson};
use zeroize::Zeroizing;

use super::{DevError, Options};
use crate::api::wellknown;
use crate::ids;
use crate::pki::{Bundle, Kind, Lock, PkiError, Private, Public};
use crate::registry::now_ms;
use crate::store::{NewSiteKey, Store};

pub const DEV_FILE: &str = "dev.json";
/// The PKI bundle.
pub const BUNDLE: &str = "pki.json";
/// A development site's key.
pub const SITE_KEY: &str = "site.key";
pub(super) const ADMIN_TOKEN: &str = "admin.token";

/// Where a running control plane is, as `dev.json` says it.
#[derive(Clone, DeJson, SerJson)]
pub struct DevFile {
    pub version: u32,
    pub pid: u32,
    #[nserde(rename = "gatewayUrl")]
    pub gateway_url: String,
    /// What `bcd join --server` takes.
    #[nserde(rename = "serverUrl")]
    pub server_url: String,
    /// The server's URL with the base path.
    #[nserde(rename = "apiUrl")]
    pub api_url: String,
    #[nserde(rename = "caFile")]
    pub ca_file: String,
    #[nserde(rename = "adminTokenFile")]
    pub admin_token_file: String,
    #[nserde(rename = "nodeConfig")]
    pub node_config: String,
}

/// The bundle, made with a key file on the first start.
pub(super) fn open_pki(dir: &Dir, trust_domain: &str) -> Result<(Public, Private), DevError> {
    let lock = Lock::from_key_file_or_new(&dir.join("pki.key"))
        .map_err(|error| DevError::Pki(PkiError::Seal(error)))?;
    let path = dir.join("pki.json");
    if !dir.exists("pki.json")? {
        Bundle::generate(trust_domain, false, &lock, now_ms())
            .and_then(|bundle| bundle.write_new(&path))
            .map_err(DevError::Pki)?;
    }
    let bundle = Bundle::read(&path).map_err(DevError::Pki)?;
    let private = bundle
        .open(&lock)
        .map_err(|error| DevError::Pki(PkiError::Seal(error)))?;
    Ok((bundle.public, private))
}

/// SHA-256 of the admin token, which is made on the first start.
pub(super) fn admin_token(dir: &Dir) -> Result<[u8; 32], DevError> {
    let token = match dir.read_optional(ADMIN_TOKEN, 1024)? {
        Some(token) => Zeroizing::new(token),
        None => {
            let mut secret = Zeroizing::new([0u8; 32]);
            ids::fill_random(&mut *secret);
            let token = format!("bcadm_{}", base64::encode_url(&*secret));
            let token = Zeroizing::new(token.into_bytes());
            dir.write_atomic(ADMIN_TOKEN, &token, 0o600)?;
            token
        }
    };
    match token.trim_ascii() {
        [] => Err(DevError::Unusable(
            "admin.token is empty: remove it, and the next start makes a new one",
        )),
        token => Ok(digest::sha256(token)),
    }
}

/// The development site's key, made on the first start, is one of `site` unless it is another's or revoked.
pub(super) fn register_site_key(dir: &Dir, store: &Store, site: &str) -> Result<(), DevError> {
    let key = match dir.read_optional(SITE_KEY, 16 * 1024)? {
        Some(text) => {
            let text = Zeroizing::new(text);
            let key = std::str::from_utf8(&text)
                .ok()
                .and_then(|text| NodeKey::from_pem(text).ok());
            key.ok_or(DevError::Unusable(
                "site.key is no P-256 key in PEM: remove it, and the next start makes a new one",
            ))?
        }
        None => {
            let key = NodeKey::generate()
                .map_err(|_| DevError::Unusable("there is no randomness to make site.key"))?;
            dir.write_atomic(SITE_KEY, key.to_pem().as_bytes(), 0o600)?;
            key
        }
    };
    store
        .add_site_key(&NewSiteKey {
            spki_sha256: key.pin().0,
            spki: &key.spki_der(),
            site,
            name: "better-compute dev",
            added_at_ms: now_ms(),
        })
        .map(|_| ())
        .map_err(|error| DevError::Store(dir.join(super::STATE), error))
}

/// Writes what is for others, `dev.json` last.
pub(super) fn write(
    dir: &Dir,
    public: &Public,
    options: &Options,
    gateway_url: &str,
    server_url: &str,
) -> Result<DevFile, DevError> {
    let home = std::path::absolute(dir.path())
        .map_err(|error| DevError::Io("find the directory's absolute path".to_owned(), error))?;
    let node = Dir::create(&dir.join("node"), 0o700)?;
    Dir::create(&node.join("data"), 0o700)?;
    let cas: String = public
        .both(Kind::ServingCa)
        .iter()
        .map(|ca| pem::encode("CERTIFICATE", ca).to_string())
        .collect();
    dir.write_atomic("serving-ca.pem", cas.as_bytes(), 0o644)?;
    let jwk = wellknown::encryption_jwk(public)
        .ok_or(DevError::Unusable("the PKI's encryption key is not P-256"))?;
    node.write_atomic("join-encryption.jwk", jwk.as_bytes(), 0o644)?;
    let config = node_config(public, options, gateway_url, &home.join("node"));
    node.write_atomic("config.toml", config.as_bytes(), 0o600)?;
    let text = |name: &str| home.join(name).to_string_lossy().into_owned();
    let file = DevFile {
        version: 1,
        pid: std::process::id(),
        gateway_url: gateway_url.to_owned(),
        server_url: server_url.to_owned(),
        api_url: format!("{server_url}{}", options.base_path),
        ca_file: text("serving-ca.pem"),
        admin_token_file: text(ADMIN_TOKEN),
        node_config: text("node/config.toml"),
    };
    dir.write_atomic(DEV_FILE, file.serialize_json().as_bytes(), 0o600)?;
    Ok(file)
}

fn node_config(public: &Public, options: &Options, gateway_url: &str, home: &Path) -> String {
    let pins = public.pins();
    FreshConfig {
        written_by: "better-compute dev at every start".to_owned(),
        gateway_url: gateway_url.to_owned(),
        gateway_server_name: None,
        site: options.site.clone(),
        serving_ca_spki_pin: pins.serving_ca,
        join_signing_key_pin: pins.join_signing,
        join_encryption_key_pin: pins.join_encryption,
        data_dir: Some(home.join("data")),
        socket_path: Some(home.join("bcd.sock")),
        dev_insecure_h2c: false,
    }
    .to_toml()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::TempDir;

    fn options(dir: &Path) -> Options {
        Options {
            dir: dir.to_owned(),
            gateway: "127.0.0.1:0".parse().unwrap(),
            http: "127.0.0.1:0".parse().unwrap(),
            downloads: None,
            base_path: "/api/compute".to_owned(),
            site: "dev".to_owned(),
            trust_domain: "better-compute".to_owned(),
            heartbeat: std::time::Duration::from_secs(45),
            policy: crate::joinservice::Policy::default(),
            loops: 1,
            serving_lifetime: std::time::Duration::from_secs(86_400),
        }
    }

    #[test]
    fn a_second_start_finds_the_same_keys_and_token() {
        let temp = TempDir::new();
        let dir = Dir::open(&temp.0).unwrap();
        let (first, _) = open_pki(&dir, "example.org").unwrap();
        let (second, _) = open_pki(&dir, "other").unwrap();
        assert_eq!(first, second);
        assert_eq!(first.trust_domain, "example.org");
        assert_eq!(admin_token(&dir).unwrap(), admin_token(&dir).unwrap());
    }

    #[test]
    fn the_written_configuration_is_one_bcd_takes() {
        let temp = TempDir::new();
        let dir = Dir::open(&temp.0).unwrap();
        let (public, _) = open_pki(&dir, "better-compute").unwrap();
        let options = options(&temp.0);
        write(
            &dir,
            &public,
            &options,
            "https://127.0.0.1:1",
            "https://127.0.0.1:2",
        )
        .unwrap();
        let config = bcd::config::Config::load(&temp.0.join("node/config.toml")).unwrap();
        assert_eq!(config.site, "dev");
        let read = std::fs::read_to_string(temp.0.join(DEV_FILE)).unwrap();
        let file = DevFile::deserialize_json(&read).unwrap();
        assert_eq!(file.api_url, "https://127.0.0.1:2/api/compute");
        assert!(Path::new(&file.admin_token_file).is_absolute());
    }
}
