//! `bcd ramdisk`: what a bare machine runs before anything is installed on it. The kernel command line
//! says where its control plane is and lets it join, once; then it runs the same agent as `bcd node`.
//!
//! The data directory is on tmpfs: every boot is a new key, and so a new node. Started again within one
//! boot, it goes on as who it was.
use std::fs::File;
use std::process::ExitCode;

use super::flags::{Args, Command, Flag};
use super::join::{self, Credential, Going, said, short};
use super::node::{self, Booted};
use super::{Failure, take_proxy};
use crate::attest::boot_parameters::BootParameters;
use crate::attest::gateway::Gateway;
use crate::attest::join::{Asked, Discovery, Error, Notice, PATIENCE};
use crate::config::Config;
use crate::config::cmdline::{self, CommandLine};
use crate::deploy::files::Site;
use crate::identity::store::{Joined, State, Store, StoreError};
use crate::proto::Role;
use crate::sys::log::{self, Level, Value};
use crate::sys::{fs, process};
use crate::wire::grpc::Code;
use crate::wire::grpc::client::{CallError, Cause};

/// The kernel's.
const CMDLINE: &str = "/proc/cmdline";
/// On tmpfs.
const DATA_DIR: &str = "/run/bcd";

pub(super) const COMMAND: Command = Command::new(
    "ramdisk",
    "run in a ramdisk: join by discovery, then be the daemon",
    &[
        Flag::value(
            "cmdline",
            "PATH",
            "Where the bc.* boot parameters are (default /proc/cmdline)",
        ),
        Flag::value(
            "data-dir",
            "DIR",
            "Key, identity and journal, on tmpfs (default /run/bcd)",
        ),
    ],
    run,
)
.details(
    "Takes everything from the kernel command line: bc.gateway, bc.site, bc.pins, bc.jwk, bc.token and\n\
     bc.assertion, and if they are there bc.server_name and bc.cache. Runs until SIGTERM or SIGINT.\n\
     \n\
     Exit codes: 0 ended by a signal, 1 failed, 2 refused (usage, boot parameters).",
);

fn run(args: &Args) -> Result<ExitCode, Failure> {
    process::keep_memory_private();
    take_proxy()?;
    log::start(Level::Info, true);
    let path = args.path_or("cmdline", CMDLINE);
    let line = File::open(path)
        .map_err(|error| Failure::failed(format!("cannot open {}: {error}", path.display())))?;
    let line = fs::read_bounded(line, path, cmdline::MAX_BYTES).map_err(Failure::failed)?;
    let parameters = BootParameters::read(&CommandLine::parse(&line)).map_err(Failure::refused)?;
    drop(line);
    let booted = Booted {
        image_cache: parameters.cache.clone(),
        site: Site {
            config: parameters.for_an_os(),
            jwk: parameters.encryption_key.to_json() + "\n",
        },
    };
    let config = parameters
        .config(args.path_or("data-dir", DATA_DIR))
        .map_err(Failure::refused)?;
    let store = Store::create(&config.data_dir).map_err(kept)?;
    let joined = match store.load().map_err(kept)? {
        State::Joined(joined) => *joined,
        _ => join(parameters, &config, &store)?,
    };
    node::agent(config, store, joined, Some(booted))
}

fn join(parameters: BootParameters, config: &Config, store: &Store) -> Result<Joined, Failure> {
    let _lock = join::lock(store)?;
    // Kept from an earlier try of this boot: the token may be redeemed for it already.
    let key = join::key(store, store.load().map_err(kept)?)?;
    let going = Going {
        gateway: Gateway::of(config).map_err(Failure::refused)?,
        site: parameters.site,
        serving_ca: parameters.serving_ca,
        signing: parameters.signing,
        encryption_key: parameters.encryption_key,
        unwritten: None,
    };
    let asked = Asked {
        role: Role::RAMDISK,
        site: &going.site,
        node_id: "",
        discovery: Some(Discovery {
            assertion: &parameters.assertion,
            boot_nic: parameters.boot_nic,
        }),
    };
    let token = parameters.token;
    let token = Credential::Token(token);
    let identity = join::ask(&going, &asked, &key, token, PATIENCE, &mut notice)?
        .map_err(|error| refusal(&going, &error))?;
    store.save_identity(&identity).map_err(kept)?;
    let fields = [
        ("node", Value::Text(&identity.node_id)),
        ("site", Value::Text(&identity.site)),
    ];
    log::event(Level::Info, "ramdisk.joined", &fields);
    Ok(Joined { identity, key })
}

/// A failure of the store.
fn kept(error: StoreError) -> Failure {
    let remedy = error
        .remedy()
        .unwrap_or("correct that; it is tried again where init runs it");
    Failure::failed(format!("{}; {remedy}", said(&error)))
}

/// Progress, in the log.
fn notice(notice: &Notice<'_>) {
    // Both may hold what a peer sent: bounded.
    let (event, why, wait) = match notice {
        Notice::Deferred { reason, wait } => ("join.deferred", short(reason), wait),
        Notice::Failed { error, wait } => ("join.failed", said(*error), wait),
    };
    let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
    let fields = [
        ("reason", Value::Text(&why)),
        ("wait_ms", Value::Number(wait_ms)),
    ];
    log::event(Level::Warn, event, &fields);
}

/// A refused join, and what to do at a machine that has nothing but its command line.
fn refusal(going: &Going, error: &Error) -> Failure {
    let remedy = match error {
        Error::GaveUp { .. } => "check that this machine reaches the gateway; it is tried again",
        Error::Answer(_) => {
            "nothing was stored; compare bc.pins with `better-compute pki pins`, and boot the machine again"
        }
        Error::Call(CallError {
            cause: Cause::Tls(_) | Cause::NoHttp2,
            ..
        }) => {
            "compare bc.gateway, bc.server_name and bc.pins with the control plane's (`better-compute pki pins`)"
        }
        Error::Call(CallError {
            cause: Cause::Status(status),
            ..
        }) if matches!(status.code, Code::Unauthenticated | Code::PermissionDenied) => {
            "asking again with these boot parameters brings the same"
        }
        Error::Call(_) => {
            "check that the site agent and the control plane are of fitting versions, and boot the machine again"
        }
    };
    Failure::failed(format!(
        "cannot join through {}: {}; {remedy}",
        going.gateway.url().origin(),
        said(error)
    ))
}
