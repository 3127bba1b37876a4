//! `bcd sim`: a fleet of simulated nodes against a real gateway.
use std::fs::File;
use std::io::{self, IsTerminal, Read, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use zeroize::Zeroizing;

use super::flags::{Args, Command, Flag};
use super::join::join_key;
use super::{CONFIG_FLAG, Failure, block_on, load_config, print};
use crate::attest::join_token::JoinToken;
use crate::config::Config;
use crate::crypto::jwk::PublicKey;
use crate::identity::trust::Configured;
use crate::rt;
use crate::rt::channel::{Receiver, channel};
use crate::sim::faults::{self, Faults};
use crate::sim::{self, Counts, QUIET, Report, Setup};
use crate::sys::fs::Dir;
use crate::sys::{log, process};

/// `--faults`, also of `better-compute dev --sim`.
pub const FAULTS_FLAG: Flag = Flag::value(
    "faults",
    "NAME[=VALUE],…",
    "What goes wrong, or all of it: see below (default nothing)",
);

/// `--duration`, likewise.
pub const DURATION_FLAG: Flag = Flag::value(
    "duration",
    "SPAN",
    "Go on for so long once all have joined, such as 90s (default until SIGINT)",
);

/// `--event-every`, likewise.
pub const EVERY_FLAG: Flag = Flag::value(
    "event-every",
    "SPAN",
    "About how often each node has an event to tell (default 10s)",
);

/// What `--faults` may say, for the details of both commands.
#[macro_export]
macro_rules! faults_details {
    ($before:literal) => {
        concat!(
            $before,
            "Faults, and what each is when no =VALUE is given:\n",
            "  storms=60s       all connections are reset at the same moment, so often\n",
            "  cuts=60s         each node's connection is cut, on average so often; each fourth\n",
            "                   time the gateway hears nothing of it\n",
            "  crashes=120s     each node's process is killed and started again, on average so often\n",
            "  slow-readers=10  so many percent of the nodes take 5 KiB a second from their gateway\n",
            "  clock-skew=1d    each node's clock is wrong by up to so much, either way\n",
            "  lost-joins=25    so many percent of the joins lose their answer, and are made again\n",
            "  lost-acks=2      after so many percent of the events, what the gateway says is lost\n",
            "                   until the connection is cut"
        )
    };
}

pub(super) const COMMAND: Command = Command::new(
    "sim",
    "run a fleet of simulated nodes against a gateway, with faults to choose",
    &[
        CONFIG_FLAG,
        Flag::value(
            "nodes",
            "N",
            "How many; each takes a token of its own (default one a token)",
        ),
        Flag::value(
            "token-file",
            "PATH",
            "Read the join tokens from this file, one a line (default standard input)",
        ),
        FAULTS_FLAG,
        DURATION_FLAG,
        EVERY_FLAG,
        Flag::value(
            "ledger",
            "PATH",
            "Write a line of JSON a node: what better-compute events --check holds the records against",
        ),
        Flag::switch("json", "Print the report as JSON"),
        Flag::switch("verbose", "Log what the nodes log, as [log] says"),
    ],
    run,
)
.details(faults_details!(
    "Gateway, site and pins are those of the configuration; data_dir is not touched. Each node has a
key, an identity, a journal and a session of its own, in memory: gone at the end, while the control
plane keeps them as nodes until they are deleted. Make the tokens with
better-compute tokens create --count N. SIGINT or SIGTERM stops the faults and waits for what is not
acknowledged; a second one ends it at once. Exit code 1 when a node could not join, or an event was
lost, doubled or never acknowledged.

"
));

/// Nodes of one process.
pub const NODES: usize = 65_536;

/// Bytes of a list of tokens.
const TOKENS: u64 = 16 << 20;

/// For looking the gateway's name up.
const LOOKUP: Duration = Duration::from_secs(10);

fn run(args: &Args) -> Result<ExitCode, Failure> {
    process::keep_memory_private();
    let config = load_config(args)?;
    let options = Options::of(args)?;
    let level = if args.has("verbose") {
        config.log.level
    } else {
        QUIET
    };
    log::start(level, config.log.json);
    let key = join_key(&config)?;
    let mut tokens = tokens(args.value("token-file").map(Path::new))?;
    if let Some(nodes) = number(args, "nodes", NODES)? {
        if tokens.len() < nodes {
            return Err(Failure::refused(format!(
                "there are {} tokens for {nodes} nodes: better-compute tokens create --count {nodes} makes as many",
                tokens.len()
            )));
        }
        tokens.truncate(nodes);
    }
    if tokens.is_empty() || tokens.len() > NODES {
        return Err(Failure::refused(format!(
            "give 1 to {NODES} join tokens, one a line"
        )));
    }
    let nodes = tokens.len();
    let report = block_on(async {
        let mut stop = signals()?;
        let setup = setup(&config, key, options).await?;
        let mut line = Line::new(nodes);
        let report = sim::run(setup, tokens, &mut stop, &mut |counts, elapsed| {
            line.tell(counts, elapsed);
        })
        .await
        .map_err(Failure::failed)?;
        line.end();
        Ok::<_, Failure>(report)
    })??;
    if let Some(path) = args.value("ledger").map(Path::new) {
        write(path, &report.ledger())?;
    }
    finish(&report, args.has("json"))
}

/// Says what a run came to.
///
/// # Errors
/// Standard output takes nothing.
pub fn finish(report: &Report, json: bool) -> Result<ExitCode, Failure> {
    if let Some(error) = &report.not_joined {
        super::complain("bcd sim", &format!("a node did not join: {error}"));
    }
    match json {
        true => print(&report.to_json())?,
        false => {
            let mut text = report.counts.line(report.nodes, report.took);
            text.push('\n');
            let open = report.counts.open_events();
            text.push_str(&match (report.is_good(), open) {
                (true, _) => "nothing lost, nothing doubled\n".to_owned(),
                (false, 0) => "not good: see what was not joined, lost or doubled\n".to_owned(),
                (false, open) => format!("not good: {open} events are not acknowledged\n"),
            });
            print(&text)?;
        }
    }
    Ok(ExitCode::from(u8::from(!report.is_good())))
}

/// What the flags say that `bcd sim` and `better-compute dev --sim` have in common.
pub struct Options {
    pub faults: Faults,
    pub duration: Option<Duration>,
    pub every: Duration,
}

impl Options {
    /// # Errors
    /// What a flag says is refused.
    pub fn of(args: &Args) -> Result<Self, Failure> {
        let faults = match args.value("faults") {
            Some(text) => Faults::parse(text)
                .map_err(|refused| Failure::refused(format!("--faults: {refused}")))?,
            None => Faults::default(),
        };
        let every = span(args, "event-every")?.unwrap_or(Duration::from_secs(10));
        if every < Duration::from_millis(10) {
            return Err(Failure::refused("--event-every is 10ms or more"));
        }
        Ok(Self {
            faults,
            duration: span(args, "duration")?,
            every,
        })
    }
}

fn span(args: &Args, flag: &str) -> Result<Option<Duration>, Failure> {
    let parse = |text| {
        let refused = || Failure::refused(format!("--{flag} is a span such as 500ms, 90s or 1h"));
        faults::span(text).ok_or_else(refused)
    };
    args.value(flag).map(parse).transpose()
}

/// A number from 1 to `most`.
///
/// # Errors
/// It is something else.
pub fn number(args: &Args, flag: &str, most: usize) -> Result<Option<usize>, Failure> {
    let parse = |text: &str| match text.parse() {
        Ok(number) if (1..=most).contains(&number) => Ok(number),
        _ => Err(Failure::refused(format!(
            "--{flag} is a number from 1 to {most}"
        ))),
    };
    args.value(flag).map(parse).transpose()
}

/// What a fleet of `config` goes by.
///
/// # Errors
/// The configuration has a WebSocket, or the gateway's name is not found.
async fn setup(config: &Config, key: PublicKey, options: Options) -> Result<Setup, Failure> {
    if config.websocket.is_some() {
        return Err(Failure::refused(
            "simulated nodes go to gateway_url itself: use a configuration without [websocket]",
        ));
    }
    let gateway = config.gateway_url.clone();
    let found = rt::resolve(&gateway.host, gateway.port, LOOKUP).await?;
    let address = found
        .first()
        .copied()
        .ok_or_else(|| Failure::failed(format!("the name {} has no address", gateway.host)))?;
    Ok(Setup {
        gateway,
        server_name: config.gateway_server_name.clone(),
        address,
        site: config.site.clone(),
        pins: Configured {
            serving_ca: config.serving_ca_spki_pin,
            join_signing: config.join_signing_key_pin,
        },
        encryption_key: key,
        faults: options.faults,
        every: options.every,
        duration: options.duration,
        log_level: config.log.level,
    })
}

/// As [`setup`], of the configuration at `path`.
///
/// # Errors
/// As [`setup`], and what is wrong with the configuration or the key beside it.
pub async fn prepare(path: &Path, options: Options) -> Result<Setup, Failure> {
    let config = Config::load(path).map_err(Failure::refused)?;
    let key = join_key(&config)?;
    setup(&config, key, options).await
}

/// A word for each signal that comes.
///
/// # Errors
/// The kernel gives no signalfd.
pub fn signals() -> Result<Receiver<()>, Failure> {
    let (sender, receiver) = channel(2);
    let mut next = Some(rt::termination()?);
    rt::spawn(async move {
        while let Some(signal) = next.take() {
            signal.await;
            let _ = sender.try_send(());
            next = rt::termination().ok();
        }
    });
    Ok(receiver)
}

/// The tokens of a file, or of standard input, one a line.
fn tokens(path: Option<&Path>) -> Result<Vec<JoinToken>, Failure> {
    let (file, name) = match path {
        Some(path) => {
            let cannot =
                |error| Failure::failed(format!("cannot read {}: {error}", path.display()));
            (
                File::open(path).map_err(cannot)?,
                path.display().to_string(),
            )
        }
        None if io::stdin().is_terminal() => {
            return Err(Failure::refused(
                "no join tokens: give --token-file PATH, or write them to standard input, one a line",
            ));
        }
        None => {
            use std::os::fd::AsFd;
            let stdin = io::stdin().as_fd().try_clone_to_owned()?;
            (File::from(stdin), "standard input".to_owned())
        }
    };
    let mut text = Zeroizing::new(String::new());
    let cannot = |error| Failure::failed(format!("cannot read {name}: {error}"));
    file.take(TOKENS)
        .read_to_string(&mut text)
        .map_err(cannot)?;
    let lines = text.lines().enumerate();
    let filled = lines.filter(|(_, line)| !line.trim().is_empty());
    filled
        .map(|(number, line)| {
            JoinToken::parse(line).map_err(|malformed| {
                let line = number + 1;
                Failure::refused(format!(
                    "the token on line {line} of {name} is refused: {malformed}"
                ))
            })
        })
        .collect()
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let dir = Dir::open(parent.unwrap_or(Path::new(".")))?;
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| Failure::refused("--ledger names no file"))?;
    Ok(dir.write_atomic(name, text.as_bytes(), 0o600)?)
}

/// The line of counts on standard error: over itself on a terminal, now and then elsewhere.
pub struct Line {
    nodes: u64,
    terminal: bool,
    seconds: u64,
}

impl Line {
    pub fn new(nodes: usize) -> Self {
        Self {
            nodes: nodes as u64,
            terminal: io::stderr().is_terminal(),
            seconds: 0,
        }
    }

    pub fn tell(&mut self, counts: &Counts, elapsed: Duration) {
        self.seconds += 1;
        if !self.terminal && self.seconds % 10 != 1 {
            return;
        }
        let line = counts.line(self.nodes, elapsed);
        let line = match self.terminal {
            true => ["\r\u{1b}[K", &line].concat(),
            false => [&line, "\n"].concat(),
        };
        // Nothing is lost when nobody reads it.
        let _ = io::stderr().write_all(line.as_bytes());
    }

    pub fn end(&self) {
        if self.terminal && self.seconds > 0 {
            let _ = io::stderr().write_all(b"\n");
        }
    }
}
