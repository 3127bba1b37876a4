//! Why is this node not there? One check a file, each of which looks at one thing and says what it
//! saw, or why it could not, and what a person can do about it.
//!
//! The checks run in the order of [`CHECKS`], and one that fails hides none of the others. Nothing
//! is changed, nothing is sent but what opens a connection, and each wait for the network has a bound.
//! Everything but those waits takes milliseconds, so that it can be run from a script on every boot.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic
    )
)]
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::config::{Config, ConfigError};
use crate::rt;
use crate::sys::log;
use crate::wire::proxy::ProxyError;

mod clock;
mod config;
mod daemon;
mod data_dir;
mod dns;
mod gateway;
mod helper;
mod identity;
mod join_key;
mod journal;
mod leftovers;
mod mtu;
mod proxy;
mod release_pins;
mod sandbox;
mod space;
mod tls;
mod unit;

/// What checks read of texts that others wrote, for fuzzing: systemctl's, resolv.conf's, a daemon's answer, the kernel's.
pub fn read_texts(text: &str) -> [Verdict; 4] {
    [
        unit::judge(text, true),
        Verdict::ok(dns::nameservers(text)),
        daemon::read(text),
        sandbox::read(text),
    ]
}

/// For each wait for the network.
const WAIT: Duration = Duration::from_secs(5);

/// How a check came out. The worst is the largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Ok,
    Warn,
    Fail,
}

impl Level {
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// What a check saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub level: Level,
    pub evidence: String,
    /// What to do; empty when there is nothing to do.
    pub remedy: String,
}

/// A check by its name.
pub struct Check {
    pub name: &'static str,
    run: fn(&mut Seen<'_>) -> Verdict,
}

/// What is looked at, and what checks before have found.
pub struct Seen<'a> {
    path: &'a Path,
    config: &'a Result<Config, ConfigError>,
    data_dir: PathBuf,
    socket_path: PathBuf,
    joined: bool,
    /// Of the bcd node that runs.
    pid: Option<u32>,
    /// Empty while it is not known.
    node_id: String,
    /// By how much the control plane's time is ahead of this host's, in milliseconds.
    offset_ms: Option<i64>,
    /// The gateway's own clock, Unix seconds.
    gateway_s: Option<u64>,
    /// When a server signed the time last; 0: never.
    signed_ms: u64,
    addresses: Vec<SocketAddr>,
    reached: Option<SocketAddr>,
    /// Whether the environment names a proxy, or what is wrong with it.
    environment: Result<(), (&'static str, ProxyError)>,
    /// What the gateway is reached through; empty: nothing.
    through: String,
}

/// All checks, in their order.
pub static CHECKS: [Check; 19] = [
    check("config", config::run),
    check("mode", config::mode),
    check("data-dir", data_dir::run),
    check("space", space::run),
    check("identity", identity::run),
    check("join-key", join_key::run),
    check("journal", journal::run),
    check("leftovers", leftovers::run),
    check("helper", helper::run),
    check("release-pins", release_pins::run),
    check("unit", unit::run),
    check("daemon", daemon::run),
    check("sandbox", sandbox::run),
    check("proxy", proxy::run),
    check("dns", dns::run),
    check("gateway", gateway::run),
    check("tls", tls::run),
    check("clock", clock::run),
    check("mtu", mtu::run),
];

const fn check(name: &'static str, run: fn(&mut Seen<'_>) -> Verdict) -> Check {
    Check { name, run }
}

/// Runs all checks, handing on each as it ends. `config` is what came of reading the one at `path`:
/// without one, what does not need it is still looked at, at its default places. `environment` is what came
/// of looking there for a proxy.
pub fn run(
    path: &Path,
    config: &Result<Config, ConfigError>,
    environment: Result<(), (&'static str, ProxyError)>,
    each: &mut dyn FnMut(&'static str, Verdict),
) {
    let place = |of: fn(&Config) -> &PathBuf, default: &str| match config {
        Ok(config) => of(config).clone(),
        Err(_) => PathBuf::from(default),
    };
    let mut seen = Seen {
        path,
        config,
        data_dir: place(|config| &config.data_dir, "/var/lib/bcd"),
        socket_path: place(|config| &config.socket_path, "/run/bcd/bcd.sock"),
        joined: false,
        pid: None,
        node_id: String::new(),
        offset_ms: None,
        gateway_s: None,
        signed_ms: 0,
        addresses: Vec::new(),
        reached: None,
        environment,
        through: String::new(),
    };
    for check in &CHECKS {
        let verdict = (check.run)(&mut seen);
        each(check.name, verdict);
    }
}

impl Verdict {
    fn ok(evidence: impl Into<String>) -> Self {
        Self {
            level: Level::Ok,
            evidence: evidence.into(),
            remedy: String::new(),
        }
    }

    fn warn(evidence: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            level: Level::Warn,
            evidence: evidence.into(),
            remedy: remedy.into(),
        }
    }

    fn fail(evidence: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            level: Level::Fail,
            ..Self::warn(evidence, remedy)
        }
    }

    /// It could not be seen.
    fn unseen(why: &str, remedy: &str) -> Self {
        Self::warn(["not checked: ", why].concat(), remedy)
    }

    fn no_config() -> Self {
        Self::unseen("it needs a configuration", "see the check config")
    }
}

/// What to do about a path that cannot be looked at.
fn look_again(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "run it as root, or as the user bcd node runs as",
        _ => "look at that path: what it names is not what bcd puts there",
    }
}

/// An error with all its causes.
fn chain(error: &dyn Error) -> String {
    log::one_line_chain(error)
}

/// Runs `work` on a loop of its own.
fn wait<T>(work: impl Future<Output = T>) -> Result<T, Verdict> {
    rt::try_block_on(work).map_err(|error| {
        Verdict::unseen(&chain(&error), "raise the limit of open files (ulimit -n)")
    })
}
