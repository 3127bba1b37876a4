//! `bcd node`: the daemon. Loads the configuration and the identity, and holds the session until
//! SIGTERM or SIGINT.
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;

use super::flags::{Args, Command};
use super::{CONFIG_FLAG, Failure, block_on, chain, load_config, take_proxy};
use crate::attest::member::Member;
use crate::attest::renewal;
use crate::command::parting::Parting;
use crate::command::{Clocks, Engine, Parts};
use crate::config::{self, Config};
use crate::converge::{Configured, Converge};
use crate::deploy::files::Site;
use crate::deploy::receipt;
use crate::facts::report::{Duty, Reporter};
use crate::helper::client::Client;
use crate::identity::store::{Joined, State, Store, StoreError};
use crate::journal::{Entry, Journal, Limits, Recovered};
use crate::proto::{EventBody, Role};
use crate::rt::{self, UnixListener};
use crate::session::{self, Frames};
use crate::status::{Board, Source, server, textfile};
use crate::sys::fs::Dir;
use crate::sys::log::{self, Level, Value};
#[cfg(not(feature = "fakehw"))]
use crate::sys::power;
use crate::sys::power::Ending;
use crate::sys::{clock, local, memory, process, user};
use crate::wire::proxy::Proxy;
use crate::wire::url::Url;

mod work;

use work::Work;

pub(super) const COMMAND: Command = Command::new(
    "node",
    "run the daemon: hold the session with the control plane",
    &[CONFIG_FLAG],
    run,
)
.details(
    "Runs in the foreground until SIGTERM or SIGINT, which end the session cleanly (exit code 0).\n\
     The machine must have joined (bcd join). Events go to standard error, as [log] says.",
);

fn run(args: &Args) -> Result<ExitCode, Failure> {
    process::keep_memory_private();
    take_proxy()?;
    let config = load_config(args)?;
    log::start(config.log.level, config.log.json);
    if let Ok(Some(exposed)) = config::exposure(&config.path, config.helper.is_some()) {
        let fields = [("warning", Value::Text(&exposed))];
        log::event(Level::Warn, "node.config_open_to_others", &fields);
    }
    say_whose(&config);
    let (store, joined) = identity(&config)?;
    agent(config, store, joined, None)
}

/// Under `[helper]` it is to run as that account: the helper hears no other, and what root writes there the
/// account cannot read.
fn say_whose(config: &Config) {
    let Some(helper) = &config.helper else {
        return;
    };
    let euid = user::euid();
    let what = match user::lookup(&helper.user) {
        Ok(account) if account.uid == euid => return,
        Ok(_) => format!("bcd node runs as user {euid}, not as {}", helper.user),
        Err(error) => chain(&error),
    };
    let fields = [
        ("warning", Value::Text(&what)),
        (
            "do",
            Value::Text(
                "run the install script again, or see that bcd.service.d/unprivileged.conf names that user",
            ),
        ),
    ];
    log::event(Level::Warn, "node.not_as_helper_user", &fields);
}

/// What a ramdisk's boot parameters say besides the configuration.
pub(super) struct Booted {
    pub image_cache: Option<Url>,
    pub site: Site,
}

/// The agent of a machine that has joined, until a signal ends it: `bcd node`'s and `bcd ramdisk`'s.
pub(super) fn agent(
    config: Config,
    store: Store,
    joined: Joined,
    booted: Option<Booted>,
) -> Result<ExitCode, Failure> {
    // What ran until now is not needed again; below, neither is what opens the journal and what connects.
    memory::give_back_program();
    let (image_cache, site) = booted.map_or((None, None), |booted| {
        (booted.image_cache, Some(Arc::new(booted.site)))
    });
    let node_id = joined.identity.node_id.clone();
    let role = match joined.identity.role.as_str() {
        "ramdisk" => Role::RAMDISK,
        "site" => Role::SITE,
        _ => Role::NODE,
    };
    let mut start = vec![
        ("node", Value::Text(&node_id)),
        ("version", Value::Text(env!("CARGO_PKG_VERSION"))),
        ("gateway", Value::Shown(&config.gateway_url)),
    ];
    let way = config.websocket.as_ref().map(|websocket| &websocket.url);
    if let Some(url) = way {
        start.push(("websocket", Value::Shown(url)));
    }
    let proxy = way.unwrap_or(&config.gateway_url).proxy();
    let proxy = proxy.map(Proxy::name);
    if let Some(proxy) = &proxy {
        start.push(("proxy", Value::Text(proxy)));
    }
    log::event(Level::Info, "node.start", &start);
    let limits = Limits {
        max_bytes: config.journal.max_bytes,
        max_events: config.journal.max_events,
    };
    let journal_dir = store.dir().reopen().map_err(Failure::failed)?;
    let configured = Configured {
        log_level: config.log.level,
    };
    let data_dir = config.data_dir.clone();
    let socket_path = config.socket_path.clone();
    let textfile = config.metrics.textfile.clone();
    let helper = config
        .helper
        .as_ref()
        .map(|helper| Client::new(&helper.socket));
    let member = Member::new(&config, store, joined).map_err(Failure::failed)?;
    // The rest of the configuration is of no use to the session.
    drop(config);
    block_on(async {
        let stop = rt::termination().map_err(Failure::failed)?;
        // After the signals are blocked: a thread inherits that.
        let (journal, recovered) = journal(&journal_dir, &node_id, limits)?;
        drop(journal_dir);
        let frames = Frames::new();
        let converge = Converge::new(journal.clone(), &recovered.entries, configured);
        let reporter = Reporter::new(journal.clone(), &recovered.entries);
        let (signer, to_sign) = receipt::signer();
        let trusting = member.clone();
        let parting = Parting::default();
        let parts = Parts {
            facts: reporter.clone(),
            journal: journal.clone(),
            clocks: clocks(&member),
            data_dir,
            boot_id: clock::boot_id().unwrap_or_default(),
            frames: frames.sender.clone(),
            node_id: member.node_id().clone(),
            role,
            image_cache,
            signers: Box::new(move || trusting.signers()),
            site,
            signer,
            parting: parting.clone(),
            helper,
            machine: None,
        };
        let (engine, commands) = Engine::new(parts, &recovered);
        drop(recovered);
        rt::spawn(converge.clone().run());
        rt::spawn(engine.run());
        let signing = member.clone();
        rt::spawn(to_sign.serve(move |purpose, payload| signing.sign_receipt(purpose, payload)));
        rt::spawn(renewals(member.clone(), journal.clone()));
        let board = Board::new();
        let source = Source {
            member: member.clone(),
            journal: journal.clone(),
            converge: converge.clone(),
            commands: commands.clone(),
            board: board.clone(),
            started: clock::monotonic(),
        };
        let source = Rc::new(source);
        let _socket = serve(&socket_path, source.clone());
        drop(socket_path);
        if let Some(path) = textfile {
            rt::spawn(textfile::write(path, source));
        }
        let work = Rc::new(Work::new(
            role,
            converge,
            commands,
            Duty::new(reporter),
            board,
        ));
        memory::give_back_program();
        session::run(member, journal, work, frames, stop).await;
        log::event(Level::Info, "node.stop", &[("node", Value::Text(&node_id))]);
        match parting.ending() {
            None => Ok(ExitCode::SUCCESS),
            Some(ending) => Err(go(ending)),
        }
    })?
}

/// A development build leaves the machine as it is.
#[cfg(feature = "fakehw")]
fn go(ending: Ending) -> Failure {
    let would = match ending {
        Ending::Kexec => "start another kernel",
        Ending::Restart => "restart",
        Ending::PowerOff => "go off",
    };
    Failure::failed(format!("a machine that is none would {would} now"))
}

/// Ends this boot, as it was ordered. It returns only if the machine stays up.
#[cfg(not(feature = "fakehw"))]
fn go(ending: Ending) -> Failure {
    let mut error = power::end(ending);
    if ending == Ending::Kexec {
        let fields = [("error", Value::Chain(&error))];
        log::event(Level::Error, "machine.kexec_failed", &fields);
        error = power::end(Ending::Restart);
    }
    Failure::failed(format!("the machine does not go down: {error}"))
}

/// Answers on the status socket. Without one the session goes on.
fn serve(path: &Path, source: Rc<Source>) -> Option<local::Place> {
    let listening = local::listen(path).and_then(|(socket, place)| {
        let listener = UnixListener::from_std(socket)?;
        Ok((listener, place))
    });
    match listening {
        Ok((listener, place)) => {
            rt::spawn(server::serve(listener, source));
            Some(place)
        }
        Err(error) => {
            let fields = [
                ("path", Value::Shown(&path.display())),
                ("error", Value::Chain(&error)),
                (
                    "do",
                    Value::Text(
                        "make socket_path writable for bcd node, or choose another, and restart it",
                    ),
                ),
            ];
            log::event(Level::Warn, "status.not_served", &fields);
            None
        }
    }
}

fn clocks(member: &Member) -> Clocks {
    let (now, trusted, signed) = (member.clone(), member.clone(), member.clone());
    Clocks {
        now_ms: Box::new(move || now.now_ms()),
        trusted_ms: Box::new(move || trusted.trusted_ms()),
        signed_ms: Box::new(move || signed.signed_ms()),
    }
}

/// Renews the certificate in time, and says so to the control plane.
async fn renewals(member: Member, journal: Journal) {
    let renewed = async |renewed| {
        let entry = Entry::status(EventBody::IdentityRenewed(renewed));
        if let Err(error) = journal.commit(vec![entry]).await {
            let fields = [("error", Value::Chain(&error))];
            log::event(Level::Warn, "identity.renewal_not_told", &fields);
        }
    };
    renewal::run(member, renewed).await;
}

fn journal(dir: &Dir, node_id: &str, limits: Limits) -> Result<(Journal, Recovered), Failure> {
    Journal::open(dir, node_id, limits).map_err(|error| {
        let remedy = error
            .remedy()
            .unwrap_or("correct that and start bcd node again");
        Failure::failed(format!("{}; {remedy}", chain(&error)))
    })
}

fn identity(config: &Config) -> Result<(Store, Joined), Failure> {
    const NOT_JOINED: &str = "this machine has not joined: run bcd join first";
    let failed = |error: StoreError| {
        let remedy = error
            .remedy()
            .unwrap_or("correct that and start bcd node again");
        Failure::failed(format!("{}; {remedy}", chain(&error)))
    };
    let store = match Store::open(&config.data_dir) {
        Ok(store) => store,
        Err(StoreError::File(error)) if error.is_missing() => {
            return Err(Failure::failed(NOT_JOINED));
        }
        Err(error) => return Err(failed(error)),
    };
    store.close_to_others();
    match store.load().map_err(failed)? {
        State::Joined(joined) => Ok((store, *joined)),
        State::NotJoined | State::PendingKey(_) => Err(Failure::failed(NOT_JOINED)),
        State::Damaged(damage) => Err(Failure::failed(format!(
            "the identity in {} does not load: {}; run bcd join --reset --yes, then bcd join",
            config.data_dir.display(),
            chain(&damage)
        ))),
    }
}
