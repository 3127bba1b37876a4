//! `better-compute dev`: the control plane in one process.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use bcd::attest::join_token::JoinToken;
use bcd::cli::flags::{Args, Command, Flag};
use bcd::cli::{Failure, print, sim};
use bcd::crypto::digest;
use bcd::proto::{Event, EventBody, Message, Role};
use bcd::sys::log::{self, Level};

use super::ago::parse_span;
use crate::api::downloads::Settings;
use crate::dev::{self, DevError, DevFile, Listen, Meanwhile, Options};
use crate::ids;
use crate::joinservice::{Policy, token};
use crate::registry::{Registry, now_ms};
use crate::simulation::{Ledger, Seen};
use crate::store::{EventsAsked, NewToken};

/// More threads than this only wait for each other.
const LOOPS_MAX: usize = 256;
/// How long simulated nodes may take to join.
const TOKENS_FOR_MS: i64 = 86_400_000;
/// Events that are judged at once.
const PAGE: u32 = 1000;

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
        Flag::value("downloads", "DIR", "Serve the releases' files in this directory"),
        Flag::value(
            "downloads-blob",
            "STORE",
            "And before them those of a store, under PRODUCT/VERSION/FILE: a directory, or a bucket of any\n\
             S3-compatible service, https://HOST/BUCKET[/PREFIX]. AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and\n\
             AWS_SESSION_TOKEN are its credentials; without them it is read as anybody may",
        ),
        Flag::value(
            "downloads-region",
            "REGION",
            "The bucket's region (default AWS_REGION, else us-east-1)",
        ),
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
        Flag::value(
            "sim",
            "N",
            "Let so many simulated nodes join, as bcd sim does, and end with them",
        ),
        sim::FAULTS_FLAG,
        sim::DURATION_FLAG,
        sim::EVERY_FLAG,
        Flag::switch("json", "With --sim: print the report as JSON"),
        Flag::switch("verbose", "Log connections and requests too"),
    ],
    run,
)
.details(bcd::faults_details!(
    "Prints a line when it listens, and writes DIR/dev.json with its addresses, DIR/node/config.toml
and DIR/node/join-encryption.jwk for a node on this host. SIGTERM or SIGINT ends it; kill -9 at
any moment loses nothing it acknowledged.

With --sim it runs simulated nodes against itself, until a signal or for --duration. Then it waits
until each of their events is acknowledged, looks whether the records have each one once, and ends:
exit code 1 when an event is missing or doubled, or a node could not join. Of the log only errors
are written then, unless --verbose is given. better-compute nodes list and events show the nodes meanwhile.

"
));

fn run(args: &Args) -> Result<ExitCode, Failure> {
    let options = options(args)?;
    let fleet = sim::number(args, "sim", sim::NODES)?;
    let only_with_sim = ["faults", "duration", "event-every"];
    if fleet.is_none()
        && let Some(flag) = only_with_sim.iter().find(|flag| args.value(flag).is_some())
    {
        return Err(Failure::refused(format!(
            "--{flag} is of the simulation: give --sim N too"
        )));
    }
    let level = match (args.has("verbose"), fleet) {
        (true, _) => Level::Debug,
        (false, None) => Level::Info,
        (false, Some(_)) => Level::Error,
    };
    log::start(level, false);
    let outcome: Rc<Cell<Option<Result<ExitCode, Failure>>>> = Rc::default();
    let meanwhile = match fleet {
        Some(nodes) => {
            let chosen = sim::Options::of(args)?;
            let (outcome, site) = (outcome.clone(), options.site.clone());
            let json = args.has("json");
            let work: Meanwhile = Box::new(move |file, registry| {
                Box::pin(async move {
                    let done = simulate(nodes, chosen, &site, &file, &registry, json).await;
                    outcome.set(Some(done));
                })
            });
            Some(work)
        }
        None => None,
    };
    let ready = |file: &DevFile| {
        // Whoever started it may have closed standard output; that is no reason to stop.
        let _ = print(&format!(
            "better-compute dev: ready, gateway {} api {} node config {}\n",
            file.gateway_url, file.api_url, file.node_config
        ));
    };
    match dev::run(&options, ready, meanwhile) {
        Ok(()) => outcome.take().unwrap_or(Ok(ExitCode::SUCCESS)),
        Err(error @ (DevError::Locked(_) | DevError::Unusable(_) | DevError::Exposed { .. })) => {
            Err(Failure::refused(error))
        }
        Err(error) => Err(Failure::failed(error)),
    }
}

/// Runs a fleet against the control plane of `file`, and judges what it left in the records.
async fn simulate(
    nodes: usize,
    chosen: sim::Options,
    site: &str,
    file: &DevFile,
    registry: &Registry,
    json: bool,
) -> Result<ExitCode, Failure> {
    let mut stop = sim::signals()?;
    let setup = sim::prepare(Path::new(&file.node_config), chosen).await?;
    let tokens = tokens(nodes, site, registry).await?;
    let mut line = sim::Line::new(nodes);
    let tell = &mut |counts: &bcd::sim::Counts, elapsed| line.tell(counts, elapsed);
    let mut report = bcd::sim::run(setup, tokens, &mut stop, tell).await?;
    line.end();
    let mut ledger = Ledger::new(std::mem::take(&mut report.outcomes));
    let mut after = 0;
    loop {
        let asked = EventsAsked {
            after: Some(after),
            limit: PAGE,
            ..EventsAsked::default()
        };
        let events = registry
            .with(move |records| records.store.events(&asked))
            .await?;
        let Some(last) = events.last() else { break };
        after = last.number;
        for event in &events {
            let said = Event::decode(&event.body).ok().and_then(|event| event.body);
            let said = match &said {
                Some(EventBody::SectionStatus(status)) => Some(status.message.as_str()),
                _ => None,
            };
            ledger.take(&Seen {
                node_id: &event.node_id,
                journal_id: &digest::hex(&event.journal_id),
                sequence: event.sequence.unsigned_abs(),
                kind: &event.kind,
                said,
            });
        }
    }
    let verdict = ledger.verdict();
    let code = sim::finish(&report, json)?;
    // Beside the JSON, which is for programs.
    match json {
        true => eprintln!("{}", verdict.line()),
        false => print(&format!("{}\n", verdict.line()))?,
    }
    match verdict.is_good() {
        true => Ok(code),
        false => Ok(ExitCode::FAILURE),
    }
}

/// So many join tokens for simulated nodes.
async fn tokens(nodes: usize, site: &str, registry: &Registry) -> Result<Vec<JoinToken>, Failure> {
    let now = now_ms();
    let minted: Vec<_> = (0..nodes).map(|_| token::mint(now)).collect();
    let tokens = minted.iter().map(|minted| JoinToken::parse(&minted.token));
    let tokens = tokens.collect::<Result<_, _>>()?;
    let site = site.to_owned();
    let stored = registry.with(move |records| {
        records.store.together(|store| {
            minted.iter().try_for_each(|minted| {
                store.add_token(&NewToken {
                    id: &minted.id,
                    digest: minted.digest,
                    role: Role::NODE.0,
                    pool: "sim",
                    site: &site,
                    mac: None,
                    allow_reclaim: false,
                    created_at_ms: now,
                    expires_at_ms: now + TOKENS_FOR_MS,
                })
            })
        })
    });
    stored.await?;
    Ok(tokens)
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
    let [files, blob, region] =
        ["downloads", "downloads-blob", "downloads-region"].map(|flag| args.value(flag));
    let downloads = match files.or(blob).or(region) {
        None => None,
        Some(_) => {
            let settings = Settings::new(files, blob, region, |name| std::env::var(name).ok());
            Some(settings.map_err(Failure::refused)?)
        }
    };
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
