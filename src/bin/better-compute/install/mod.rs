//! The install script: what turns a server into a node. docs/operations.md says how it is used.
//!
//! Promises: the script holds no secret; every value in it has passed a narrow pattern ([`values`]); a
//! download cut short runs nothing, since all of it is functions and the last line calls the first.

pub mod values;

use std::fmt::Write as _;

use bcd::crypto::pin::Pin;
use bcd::crypto::{jwk, spki};

use self::values::Invalid;
use crate::pki::{Pins, Public};

/// What the script does, in POSIX sh, after a paragraph for those who read it alone; what it is told stands in front.
const BODY: &str = include_str!("install.sh");
/// What installs plugins from the release, in scripts that do.
const INSTALL_PLUGINS: &str = include_str!("plugins.sh");
/// `bcd.service`; docs/operations.md says why each directive is there.
const UNIT: &str = include_str!("bcd.service");
/// Its drop-in for plugins, and what follows in that where `[plugins] privileged` names one.
const PLUGINS: &str = include_str!("plugins.conf");
const PRIVILEGED_PLUGINS: &str = include_str!("privileged-plugins.conf");
/// The helper of a node without rights, and what runs that node so.
const HELPER_UNIT: &str = include_str!("bcd-helper.service");
const UNPRIVILEGED: &str = include_str!("unprivileged.conf");
/// Ends every text in the script. No value can hold it: none may have an underscore after a newline.
const END: &str = "BCD_END";

/// What a script is told; each value has passed its pattern.
pub struct Options {
    pub pool: String,
    pub site: String,
    pub gateway_url: String,
    /// `{base-url}{base-path}/downloads`.
    pub downloads: String,
    pub version: String,
    /// Of the bare binaries: amd64, arm64.
    pub sha256: [Option<String>; 2],
    pub release: Option<Release>,
    pub websocket: Option<WebSocket>,
    pub bmc_networks: Option<String>,
    /// The names that run as root, maybe none.
    pub plugins: Option<String>,
    /// Plugins of the release to install.
    pub install_plugins: Vec<ReleasedPlugin>,
    /// bcd node without rights, beside bcd helper.
    pub unprivileged: bool,
    /// Comma-separated.
    pub instance_bridges: Option<String>,
    pub tpm: bool,
    pub approver_set_sha256: Option<String>,
    /// Comma-separated.
    pub command_root_sha256: Option<String>,
}

/// A plugin that a release ships.
pub struct ReleasedPlugin {
    pub name: &'static str,
    /// Of its archives: amd64, arm64.
    pub sha256: [Option<String>; 2],
}

/// `[update]`
pub struct Release {
    pub pins: Vec<Pin>,
    pub threshold: usize,
    pub sequence: Option<u64>,
}

/// `[websocket]`
pub struct WebSocket {
    pub url: String,
    pub audience: Option<String>,
    /// PEM certificates.
    pub proxy_ca: Option<String>,
}

/// The script for `options`, with the pins of `public`.
///
/// # Errors
/// The bundle's join key is not P-256.
pub fn script(options: &Options, public: &Public) -> Result<String, Invalid> {
    let jwk = join_key(public)?;
    let mut out = String::with_capacity(24 * 1024);
    head(&mut out, options);
    text(
        &mut out,
        "config_head",
        &config_head(options, &public.pins()),
    );
    sections(&mut out, options);
    text(&mut out, "jwk", &format!("{jwk}\n"));
    let proxy_ca = options
        .websocket
        .as_ref()
        .and_then(|it| it.proxy_ca.as_deref());
    text(&mut out, "proxy_ca_pem", proxy_ca.unwrap_or_default());
    text(&mut out, "unit", UNIT);
    text(&mut out, "plugins_dropin", PLUGINS);
    text(&mut out, "privileged_dropin", PRIVILEGED_PLUGINS);
    text(&mut out, "helper_unit", HELPER_UNIT);
    text(&mut out, "unprivileged_dropin", UNPRIVILEGED);
    body(&mut out, BODY);
    if !options.install_plugins.is_empty() {
        out.push('\n');
        plugin_digests(&mut out, &options.install_plugins);
        body(&mut out, INSTALL_PLUGINS);
    }
    out.push_str("\nmain \"$@\"\n");
    Ok(out)
}

/// What a file of the script does, without its head and its comments: those stand here for who changes it, and the
/// script has to stay small.
fn body(out: &mut String, text: &str) {
    let body = text.split_once("\n\n").map_or(text, |(_, body)| body);
    for line in body.trim_end().lines() {
        if !line.trim_start().starts_with("# ") {
            out.push_str(line);
            out.push('\n');
        }
    }
}

/// The key tokens are sealed to.
fn join_key(public: &Public) -> Result<String, Invalid> {
    match spki::PublicKey::parse(&public.join_encryption_key) {
        Ok(spki::PublicKey::P256(point)) => Ok(jwk::PublicKey::from_point(point).to_json()),
        _ => Err(Invalid::new(
            "pki",
            "names a bundle whose join encryption key is not P-256",
        )),
    }
}

fn head(out: &mut String, options: &Options) {
    let Options {
        version,
        pool,
        site,
        ..
    } = options;
    let joins = match options.tpm {
        false => {
            "# It joins with a single-use token, which travels apart:\n\
             #   BCD_JOIN_TOKEN=bcjt_... sudo -E sh install-bcd.sh\n\
             #   sudo sh install-bcd.sh < token-file\n\
             # Without a token it upgrades a host that has joined."
        }
        true => {
            "# It joins with this host's TPM; the attestor's policy at the control plane decides where:\n\
             #   sudo sh install-bcd.sh\n\
             # On a host that has joined, it upgrades."
        }
    };
    let _ = write!(
        out,
        "#!/bin/sh\n\
         # Installs bcd {version} as a node of pool {pool}, site {site}. Holds no secret.\n{joins}\n\
         # Written by better-compute {}.\nset -eu\numask 077\n\n",
        env!("CARGO_PKG_VERSION")
    );
    let flag = |set: bool| if set { "yes" } else { "" };
    let proxy_ca = options
        .websocket
        .as_ref()
        .is_some_and(|it| it.proxy_ca.is_some());
    let [amd64, arm64] = &options.sha256;
    let install_plugins = options.install_plugins.iter();
    let install_plugins: Vec<&str> = install_plugins.map(|plugin| plugin.name).collect();
    out.push_str("settings() {\n");
    for (name, value) in [
        ("version", version.as_str()),
        ("downloads", &options.downloads),
        ("sha256_amd64", amd64.as_deref().unwrap_or_default()),
        ("sha256_arm64", arm64.as_deref().unwrap_or_default()),
        ("attestor", if options.tpm { "tpm" } else { "join-token" }),
        ("plugins", flag(options.plugins.is_some())),
        ("install_plugins", &install_plugins.join(" ")),
        ("proxy_ca", flag(proxy_ca)),
        (
            "instance_bridges",
            options.instance_bridges.as_deref().unwrap_or_default(),
        ),
    ] {
        let _ = writeln!(out, "  {name}='{value}'");
    }
    out.push_str("}\n\n");
}

/// The function that prints a plugin's digest for an architecture.
fn plugin_digests(out: &mut String, plugins: &[ReleasedPlugin]) {
    out.push_str("plugin_digest() {\n  case $1 in\n");
    for plugin in plugins {
        for (arch, digest) in ["amd64", "arm64"].iter().zip(&plugin.sha256) {
            if let Some(digest) = digest {
                let _ = writeln!(out, "    {}-{arch}) echo {digest} ;;", plugin.name);
            }
        }
    }
    out.push_str("  esac\n}\n\n");
}

/// A function that prints `body`.
fn text(out: &mut String, name: &str, body: &str) {
    let _ = write!(out, "{name}() {{\n  cat <<'{END}'\n{body}{END}\n}}\n\n");
}

fn config_head(options: &Options, pins: &Pins) -> String {
    let mut text =
        "# Written by the better-compute install script. bcd refuses unknown keys.\n".to_owned();
    let (serving, signing, encryption) = (
        pins.serving_ca.to_string(),
        pins.join_signing.to_string(),
        pins.join_encryption.to_string(),
    );
    for (key, value) in [
        ("gateway_url", Some(&options.gateway_url)),
        ("site", Some(&options.site)),
        ("serving_ca_spki_pin", Some(&serving)),
        ("join_signing_key_pin", Some(&signing)),
        ("join_encryption_key_pin", Some(&encryption)),
        ("approver_set_sha256", options.approver_set_sha256.as_ref()),
        ("command_root_sha256", options.command_root_sha256.as_ref()),
    ] {
        if let Some(value) = value {
            let _ = writeln!(text, "{key} = \"{value}\"");
        }
    }
    text
}

/// The sections that are added where the configuration does not have them yet.
fn sections(out: &mut String, options: &Options) {
    out.push_str("config_sections() {\n");
    let mut section = |name: &str, flag: &str, lines: &[(&str, Option<String>)]| {
        let _ = writeln!(out, "  add_section {name} --{flag} <<'{END}'");
        for (key, value) in lines {
            if let Some(value) = value {
                let _ = writeln!(out, "{key} = {value}");
            }
        }
        let _ = writeln!(out, "{END}");
    };
    let quoted = |text: &str| Some(format!("\"{text}\""));
    if let Some(release) = &options.release {
        let pins: Vec<String> = release.pins.iter().map(Pin::to_string).collect();
        section(
            "update",
            "release-pins",
            &[
                ("release_pins", quoted(&pins.join(","))),
                ("release_threshold", Some(release.threshold.to_string())),
                (
                    "release_sequence",
                    release.sequence.map(|it| it.to_string()),
                ),
            ],
        );
    }
    if let Some(websocket) = &options.websocket {
        let proxy_ca = websocket.proxy_ca.as_ref();
        section(
            "websocket",
            "websocket-url",
            &[
                ("url", quoted(&websocket.url)),
                ("audience", websocket.audience.as_deref().and_then(quoted)),
                (
                    "proxy_ca_file",
                    proxy_ca.and_then(|_| quoted("/etc/bcd/websocket-proxy-ca.pem")),
                ),
            ],
        );
    }
    if let Some(networks) = &options.bmc_networks {
        section(
            "site",
            "bmc-networks",
            &[("bmc_networks", quoted(networks))],
        );
    }
    if options.unprivileged {
        section(
            "helper",
            "unprivileged",
            &[
                ("socket", quoted("/run/bcd-helper/helper.sock")),
                ("user", quoted("bcd")),
            ],
        );
    }
    if let Some(privileged) = &options.plugins {
        section(
            "plugins",
            "plugins",
            &[
                ("dir", quoted("/usr/local/lib/bcd/plugins")),
                (
                    "cgroup",
                    quoted("/sys/fs/cgroup/system.slice/bcd.service/plugins"),
                ),
                (
                    "privileged",
                    Some(privileged.as_str())
                        .filter(|it| !it.is_empty())
                        .and_then(quoted),
                ),
            ],
        );
    }
    // A function needs a command.
    out.push_str("  :\n}\n\n");
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
