//! `better-compute dev`: the control plane in one process.

use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use bcd::cli::flags::{Args, Command, Flag};
use bcd::cli::{Failure, print};
use bcd::sys::log::{self, Level};

use super::ago::parse_span;
use crate::dev::{self, DevError, DevFile, Listen, Options};
use crate::ids;
use crate::joinservice::Policy;

/// More threads than this only wait for each other.
const LOOPS_MAX: usize = 256;

pub(super) const COMMAND: Command = Command::new(
    "dev",
    "run gateway, JoinService and API in one process",
    &[
        Flag::value("dir", "DIR", "The state directory; made on the first start, keys and all"),
        Flag::value(
            "gateway",
            "HOST:PORT",
            "Where nodes connect (default 127.0.0.1:8443); port 0 takes a free one",
        ),
        Flag::value(
            "http",
            "HOST:PORT",
            "Where the HTTPS API listens (default 127.0.0.1:8080); port 0 takes a free one",
        ),
        Flag::value("downloads", "DIR", "Serve the released binaries in this directory"),
        Flag::value("base-path", "PATH", "The API's path (default /api/compute)"),
        Flag::value(
            "site",
            "SITE",
            "The site of the written node configuration (default dev)",
        ),
        Flag::value(
            "trust-domain",
            "NAME",
            "The trust domain of a new PKI (default better-compute)",
        ),
        Flag::value(
            "heartbeat",
            "SPAN",
            "How often nodes send heartbeats, 1s to 10m (default 45s)",
        ),
        Flag::value(
            "certificate-lifetime",
            "SPAN",
            "How long node certificates are valid, 10s to 825d (default 30d)",
        ),
        Flag::value(
            "renewal-grace",
            "SPAN",
            "How long after its end a certificate is still renewed (default 30d; 0s: never)",
        ),
        Flag::value(
            "serving-lifetime",
            "SPAN",
            "How long the gateway's and the API's certificates are valid, 9s to 825d (default 30d);\n\
             they are renewed at a third of it",
        ),
        Flag::value(
            "loops",
            "N",
            "Threads that hold the nodes' connections, 1 to 256 (default one a core)",
        ),
        Flag::switch("verbose", "Log connections and requests too"),
    ],
    run,
)
.details(
    "Prints a line when it listens, and writes DIR/dev.json with its addresses, DIR/node/config.toml\n\
     and DIR/node/join-encryption.jwk for a node on this host. SIGTERM or SIGINT ends it; kill -9 at\n\
     any moment loses nothing it acknowledged.",
);

fn run(args: &Args) -> Result<ExitCode, Failure> {
    let options = options(args)?;
    let level = match args.has("verbose") {
        true => Level::Debug,
        false => Level::Info,
    };
    log::start(level, false);
    let ready = |file: &DevFile| {
        // Whoever started it may have closed standard output; that is no reason to stop.
        let _ = print(&format!(
            "better-compute dev: ready, gateway {} api {} node config {}\n",
            file.gateway_url, file.api_url, file.node_config
        ));
    };
    match dev::run(&options, ready) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error @ (DevError::Locked(_) | DevError::Unusable(_) | DevError::Exposed { .. })) => {
            Err(Failure::refused(error))
        }
        Err(error) => Err(Failure::failed(error)),
    }
}

fn options(args: &Args) -> Result<Options, Failure> {
    let listen = |flag: &str, default: &str| {
        args.value(flag)
            .unwrap_or(default)
            .parse::<Listen>()
            .map_err(|error| Failure::refused(format!("--{flag}: {error}")))
    };
    let dir = args.value("dir").map(PathBuf::from).ok_or_else(|| {
        Failure::refused("--dir names the state directory: give it one, such as --dir ./dev")
    })?;
    let downloads = args.value("downloads").map(PathBuf::from);
    if let Some(path) = downloads.as_deref().filter(|path| !path.is_dir()) {
        return Err(Failure::refused(format!(
            "INVALID_CONFIG: --downloads {} is no directory",
            path.display()
        )));
    }
    let base_path = args.value("base-path").unwrap_or("/api/compute");
    let base_path = base_path.trim_end_matches('/');
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"/-_.~".contains(&b);
    if !(base_path.is_empty() || base_path.starts_with('/')) || !base_path.bytes().all(plain) {
        return Err(Failure::refused(
            "--base-path is a path of letters, digits and '/', '-', '_', '.', '~' that starts with '/'",
        ));
    }
    let site = args.value("site").unwrap_or("dev");
    if !ids::is_chosen(site) {
        return Err(Failure::refused(
            "--site is letters, digits, '.', '_' and '-', at most 128, and starts with a letter or digit",
        ));
    }
    let heartbeat = parse_span(args.value("heartbeat").unwrap_or("45s"))
        .filter(|ms| (1000..=600_000).contains(ms))
        .ok_or_else(|| Failure::refused("--heartbeat is from 1s to 10m"))?;
    let lifetime = parse_span(args.value("certificate-lifetime").unwrap_or("30d"))
        .filter(|ms| (10_000..=825 * 86_400_000).contains(ms))
        .ok_or_else(|| Failure::refused("--certificate-lifetime is from 10s to 825d"))?;
    let renewal_grace_ms = parse_span(args.value("renewal-grace").unwrap_or("30d"))
        .ok_or_else(|| Failure::refused("--renewal-grace is a span such as 30d, or 0s"))?;
    let serving_lifetime = parse_span(args.value("serving-lifetime").unwrap_or("30d"))
        .filter(|ms| (9_000..=825 * 86_400_000).contains(ms))
        .ok_or_else(|| Failure::refused("--serving-lifetime is from 9s to 825d"))?;
    let loops = match args.value("loops") {
        Some(text) => text
            .parse()
            .ok()
            .filter(|loops| (1..=LOOPS_MAX).contains(loops))
            .ok_or_else(|| Failure::refused(format!("--loops is from 1 to {LOOPS_MAX}")))?,
        None => thread::available_parallelism().map_or(1, |cores| cores.get().min(LOOPS_MAX)),
    };
    Ok(Options {
        dir,
        loops,
        gateway: listen("gateway", "127.0.0.1:8443")?,
        http: listen("http", "127.0.0.1:8080")?,
        downloads,
        base_path: base_path.to_owned(),
        site: site.to_owned(),
        trust_domain: args
            .value("trust-domain")
            .unwrap_or("better-compute")
            .to_owned(),
        heartbeat: Duration::from_millis(heartbeat.cast_unsigned()),
        policy: Policy {
            certificate_seconds: lifetime / 1000,
            renewal_grace_ms,
        },
        serving_lifetime: Duration::from_millis(serving_lifetime.cast_unsigned()),
    })
}
