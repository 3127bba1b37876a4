//! `bcd join`: this machine joins a fleet.
//!
//! The order of its steps makes a crash at any instant harmless. The key is on the disk before the
//! first call; the identity is stored, in one rename, only after every check; a configuration
//! written by the join comes after the identity, and the token file goes last of all. Whatever was
//! cut off, the same command run again ends in the same identity, with the same token.
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

pub(super) use self::terms::Going;
use self::terms::Terms;
use super::flags::{Args, Command, Flag};
use super::{CONFIG_FLAG, DEFAULT_CONFIG, Failure, block_on, chain, print, take_proxy, warn};
use crate::attest::gateway;
use crate::attest::ids::is_ulid_of;
use crate::attest::join::{self, Asked, Expected, Notice, Proof};
use crate::attest::join_token::{self, JoinToken, TokenFile};
use crate::attest::provisioned::{self, Provisioned};
use crate::config::Config;
use crate::crypto::jwk::PublicKey;
use crate::crypto::key::NodeKey;
use crate::facts;
use crate::identity::record::Identity;
use crate::identity::store::{State, Store, StoreError};
use crate::identity::trust::{Configured, Trust};
use crate::proto::Role;
use crate::status::Form;
use crate::status::client::Daemon;
use crate::status::server::Request;
use crate::sys::fs::{self, Lock};
use crate::sys::{clock, process, user};

use zeroize::Zeroizing;

mod terms;

pub(super) const COMMAND: Command = Command::new(
    "join",
    "join this machine to a fleet with a single-use token",
    &[
        CONFIG_FLAG,
        Flag::value(
            "token-file",
            "PATH",
            "Read the join token from this file (0600 or 0400), and delete it once joined",
        ),
        Flag::value(
            "role",
            "ROLE",
            "Join as node (the default), site or ramdisk",
        ),
        Flag::value(
            "node-id",
            "ID",
            "The node this machine claims to be (an OS that deploy.image installed)",
        ),
        Flag::value(
            "attestor",
            "NAME",
            "What proves that this machine may join: join-token (the default) or provisioned",
        ),
        Flag::value(
            "server",
            "URL",
            "The control plane, for what config.toml or join-encryption.jwk does not say",
        ),
        Flag::value(
            "serving-ca-pin",
            "PIN",
            "With --server: the pin of the gateway's serving CA",
        ),
        Flag::value(
            "join-signing-pin",
            "PIN",
            "With --server: the pin of the JoinService's signing key",
        ),
        Flag::value(
            "join-encryption-pin",
            "PIN",
            "With --server: the pin of the JoinService's encryption key",
        ),
        Flag::value(
            "timeout",
            "SECONDS",
            "Give up when the gateway was out of reach for so long (default 300)",
        ),
        Flag::switch(
            "reset",
            "First move this machine's identity and journal aside (nothing is deleted)",
        ),
        Flag::switch("yes", "Confirm --reset"),
    ],
    run,
)
.details(
    "The token is read from BCD_JOIN_TOKEN, from --token-file or from standard input, never from\n\
     an argument. A machine that has joined already says so and exits 0, so this can run at every\n\
     boot. A join that was cut off anywhere is finished by running it again with the same token.\n\
     An OS that machines deploy --join installed joins with --attestor provisioned, once: by the key that the\n\
     deploy left beside config.toml, which is deleted once joined.\n\
     \n\
     Exit codes: 0 joined, 1 failed, 2 refused (usage, configuration, token).",
)
.stray("bcd join reads the join token from BCD_JOIN_TOKEN or stdin, never from arguments");

/// What the flags ask for, besides the terms.
struct Options<'a> {
    role: Role,
    node_id: &'a str,
    /// Where the key is that a deploy left, for the attestor provisioned.
    provisioned: Option<PathBuf>,
    token_file: Option<TokenFile>,
    patience: Duration,
    reset: bool,
    yes: bool,
}

fn run(args: &Args) -> Result<ExitCode, Failure> {
    process::keep_memory_private();
    take_proxy()?;
    let options = options(args)?;
    let terms = Terms::of(args, args.path_or("config", DEFAULT_CONFIG))?;
    let store = Store::create(terms.data_dir()).map_err(stored)?;
    store.close_to_others();
    if !options.reset
        && let State::Joined(joined) = store.load().map_err(stored)?
    {
        return already(&terms, &store, &options, &joined.identity);
    }
    // One at a time: two joins would make two keys, and the token fits one.
    let _lock = lock(&store)?;
    if options.reset && !reset(&store, options.yes)? {
        return Ok(ExitCode::from(2));
    }
    match store.load().map_err(stored)? {
        State::Joined(joined) => already(&terms, &store, &options, &joined.identity),
        state => {
            let attempted = attempt(&terms, &store, &options, state);
            if attempted.is_err() && options.reset {
                tell("what was moved aside stays so: bcd join, without --reset, joins");
            }
            let identity = attempted?;
            finish(&terms, &store, &options)?;
            print(&format!("joined as {}\n", identity.spiffe_id))?;
            tell_of_daemon(&terms);
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The key that tokens are sealed to, from beside the configuration.
///
/// # Errors
/// It is not there, or another than the pinned one.
pub(super) fn join_key(config: &Config) -> Result<PublicKey, Failure> {
    terms::read_jwk(config)?.ok_or_else(|| terms::no_jwk(config))
}

/// A daemon that runs while its machine joins anew goes on as the node of before.
fn tell_of_daemon(terms: &Terms) {
    let Some(config) = terms.config() else { return };
    let request = Request {
        form: Form::Json,
        watch: false,
    };
    if Daemon::ask(&config.socket_path, request).is_ok() {
        tell("bcd node runs, and goes on as it was: restart it (systemctl restart bcd.service)");
    }
}

/// Nothing is left to do but what an earlier join was cut off before.
fn already(
    terms: &Terms,
    store: &Store,
    options: &Options<'_>,
    identity: &Identity,
) -> Result<ExitCode, Failure> {
    if let Terms::Bootstrap { .. } = terms
        && let Some(settled) = terms.settle()?.unwritten
    {
        terms.write(&settled, &identity.site)?;
    }
    finish(terms, store, options)?;
    print(&format!("already joined as {}\n", identity.spiffe_id))?;
    Ok(ExitCode::SUCCESS)
}

/// The directory for this process alone. `bcd node` takes it for an instant now and then.
pub(super) fn lock(store: &Store) -> Result<Lock, Failure> {
    let mut tries = 0;
    loop {
        match store.dir().lock() {
            Ok(lock) => return Ok(lock),
            Err(error) if error.is_locked() && tries < 10 => {
                tries += 1;
                std::thread::sleep(Duration::from_millis(100));
            }
            Err(error) => return Err(stored(error.into())),
        }
    }
}

fn options(args: &Args) -> Result<Options<'_>, Failure> {
    let role = match args.value("role").unwrap_or("node") {
        "node" => Role::NODE,
        "site" => Role::SITE,
        "ramdisk" => Role::RAMDISK,
        _ => return Err(Failure::refused("--role must be node, site or ramdisk")),
    };
    let mut provisioned = None;
    match args.value("attestor").unwrap_or("join-token") {
        "join-token" => {}
        "provisioned" => {
            let config = args.path_or("config", DEFAULT_CONFIG);
            provisioned = Some(config.with_file_name(provisioned::FILE));
        }
        "discovery" => {
            return Err(Failure::refused(
                "a machine joins by discovery as it boots: bcd ramdisk, which the ramdisk's init runs",
            ));
        }
        "tpm" => {
            return Err(Failure::refused(
                "the attestor tpm is not in this build yet; join with a token, or install a newer bcd",
            ));
        }
        _ => {
            return Err(Failure::refused(
                "--attestor must be join-token, tpm, discovery or provisioned",
            ));
        }
    }
    let node_id = args.value("node-id").unwrap_or_default();
    if args.value("node-id").is_some() && !is_ulid_of("node", node_id) {
        return Err(Failure::refused(
            "--node-id must be a node id: node_ and 26 characters",
        ));
    }
    let patience = match args.value("timeout") {
        None => join::PATIENCE,
        Some(text) => match text.parse::<u32>() {
            Ok(seconds) if seconds > 0 => Duration::from_secs(seconds.into()),
            _ => {
                return Err(Failure::refused(
                    "--timeout must be a number of seconds, 1 or more",
                ));
            }
        },
    };
    let (reset, yes) = (args.has("reset"), args.has("yes"));
    if yes && !reset {
        return Err(Failure::refused(
            "--yes confirms --reset: give both or neither",
        ));
    }
    let token_file = args.value("token-file").map(TokenFile::new);
    if provisioned.is_some() && (token_file.is_some() || role != Role::NODE) {
        return Err(Failure::refused(
            "--attestor provisioned goes with neither a token nor another role than node: leave those out",
        ));
    }
    Ok(Options {
        role,
        node_id,
        provisioned,
        token_file,
        patience,
        reset,
        yes,
    })
}

/// Moves the identity aside, or says what it would move; `false` when the join must not go on.
fn reset(store: &Store, yes: bool) -> Result<bool, Failure> {
    if user::euid() != 0 && !cfg!(feature = "fakehw") {
        return Err(Failure::failed(
            "--reset moves this machine's identity aside: run it as root",
        ));
    }
    let there = store.resettable().map_err(stored)?;
    if there.is_empty() {
        return Ok(true);
    }
    let now_ms = clock::wall_ms();
    if !yes {
        let mut text = format!(
            "bcd join --reset would move these files in {} aside:\n",
            store.dir().path().display()
        );
        for name in there {
            text.push_str("  ");
            text.push_str(name);
            text.push('\n');
        }
        text.push_str(
            "Nothing is deleted. The join that follows makes a new key: a new node, unless the attestor\n\
             proves this machine and reclaims it. Run it again with --yes to do it.\n",
        );
        print(&text)?;
        return Ok(false);
    }
    for moved in store.reset(now_ms).map_err(stored)? {
        tell(&format!("moved {} to {}", moved.from, moved.to));
    }
    Ok(true)
}

/// Joins and stores the identity.
fn attempt(
    terms: &Terms,
    store: &Store,
    options: &Options<'_>,
    state: State,
) -> Result<Identity, Failure> {
    // Before anything starts a thread: the variable is wiped from the environment.
    let credential = match &options.provisioned {
        Some(path) => Credential::Provisioned(Box::new(left_by_deploy(path)?)),
        None => join_token::obtain(options.token_file.as_ref())
            .map(Credential::Token)
            .map_err(|error| Failure::refused(said(&error)))?,
    };
    let going = terms.settle()?;
    let key = key(store, state)?;
    let asked = Asked {
        role: options.role,
        site: &going.site,
        node_id: options.node_id,
        discovery: None,
    };
    let identity = ask(
        &going,
        &asked,
        &key,
        credential,
        options.patience,
        &mut notice,
    )?
    .map_err(|error| refusal(terms, &going, &error))?;
    let kept = |error: StoreError| {
        let remedy = error.remedy().unwrap_or("mend that");
        failed(
            &error,
            &format!("{remedy}; then run bcd join again with the same token, which is not used up"),
        )
    };
    if let Some(moved) = store.move_journal_aside(clock::wall_ms()).map_err(kept)? {
        tell(&format!(
            "moved the journal of an earlier identity to {}",
            moved.to
        ));
    }
    store.save_identity(&identity).map_err(kept)?;
    if let Some(settled) = &going.unwritten {
        terms.write(settled, &identity.site)?;
    }
    Ok(identity)
}

/// The key that a deploy left at `path`.
fn left_by_deploy(path: &Path) -> Result<Provisioned, Failure> {
    let refused = |why: &str| {
        Failure::refused(format!(
            "{}: {why}; machines deploy --join leaves it there for one join: join with a token, or deploy again",
            path.display()
        ))
    };
    let text = fs::read_foreign(path, provisioned::MAX_LENGTH);
    let text = Zeroizing::new(text.map_err(|error| refused(&said(&error)))?);
    Provisioned::parse(&text).map_err(|error| refused(&error.to_string()))
}

/// What proves that this machine may join.
pub(super) enum Credential {
    Token(JoinToken),
    Provisioned(Box<Provisioned>),
}

/// Asks until there is an answer, and gives the identity that a good one makes; nothing is stored yet.
pub(super) fn ask(
    going: &Going,
    asked: &Asked<'_>,
    key: &NodeKey,
    credential: Credential,
    patience: Duration,
    notice: &mut dyn FnMut(&Notice<'_>),
) -> Result<Result<Identity, join::Error>, Failure> {
    let proof = match &credential {
        Credential::Token(token) => Proof::Token(token.as_str().as_bytes()),
        Credential::Provisioned(left) => Proof::Provisioned(left),
    };
    let claims = facts::collect_claims();
    let request = join::request(asked, key, &proof, &going.encryption_key, claims)
        .map_err(Failure::failed)?;
    drop(credential);

    let node_key = key.spki_der();
    let expected = Expected {
        csr: &request.csr,
        node_key: &node_key,
        role: asked.role,
        site: asked.site,
        spiffe_id: None,
        trust: &Trust::of(Configured {
            serving_ca: going.serving_ca,
            join_signing: going.signing,
        }),
        build_time_ms: clock::build_time_ms(),
    };
    let tls = gateway::tls(vec![going.serving_ca], || clock::trusted_ms(0), None)
        .map_err(Failure::failed)?;
    let run = join::run(&going.gateway, &tls, &request, &expected, patience, notice);
    Ok(block_on(run)?.map(|accepted| accepted.identity()))
}

/// The key of a join that was cut off, or a new one; on the disk when this returns.
pub(super) fn key(store: &Store, state: State) -> Result<NodeKey, Failure> {
    if let State::Damaged(damage) = &state {
        warn("bcd join", &format!("{}; it is moved aside", said(damage)));
        for moved in store.set_aside(damage, clock::wall_ms()).map_err(stored)? {
            tell(&format!("moved {} to {}", moved.from, moved.to));
        }
    }
    let state = match state {
        State::Damaged(_) => store.load().map_err(stored)?,
        state => state,
    };
    if let State::PendingKey(key) = state {
        return Ok(key);
    }
    let key = NodeKey::generate().map_err(Failure::failed)?;
    store.save_key(&key).map_err(stored)?;
    Ok(key)
}

/// What follows a join, a fresh one or an earlier one: the files go to the unprivileged node's
/// account, and the token file goes away.
fn finish(terms: &Terms, store: &Store, options: &Options<'_>) -> Result<(), Failure> {
    if let Some(helper) = terms
        .config()
        .and_then(|config: &Config| config.helper.as_ref())
        && user::euid() == 0
    {
        let account = user::lookup(&helper.user).map_err(|error| {
            failed(
                &error,
                "create the account that helper.user names, and run bcd join again",
            )
        })?;
        store.hand_over(account).map_err(stored)?;
    }
    if let Some(path) = &options.provisioned
        && let Err(error) = std::fs::remove_file(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        warn(
            "bcd join",
            &format!(
                "{}: {error}; it is of no use any more: delete it yourself",
                path.display()
            ),
        );
    }
    if let Some(file) = &options.token_file
        && let Err(error) = file.delete()
    {
        warn(
            "bcd join",
            &format!(
                "{}; a token is single use: delete it yourself",
                said(&error)
            ),
        );
    }
    Ok(())
}

/// Progress, for whoever watches.
fn notice(notice: &Notice<'_>) {
    match notice {
        Notice::Deferred { reason, wait } => {
            let reason = if reason.is_empty() {
                "not decided yet"
            } else {
                reason
            };
            tell(&format!(
                "the control plane answers: {}; asking again in {} s",
                short(reason),
                wait.as_secs()
            ));
        }
        Notice::Failed { error, wait } => {
            let wait = wait.as_millis();
            tell(&format!(
                "{}; trying again in {}.{} s",
                said(*error),
                wait / 1000,
                wait % 1000 / 100
            ));
        }
    }
}

fn tell(text: &str) {
    // Nothing is lost when nobody listens.
    let _ = std::io::Write::write_all(
        &mut std::io::stderr(),
        format!("bcd join: {}\n", short(text)).as_bytes(),
    );
}

/// A refused join, with the pin's place in the configuration where a pin is at fault.
fn refusal(terms: &Terms, going: &Going, error: &join::Error) -> Failure {
    let mut text = format!(
        "cannot join through {}: {}",
        going.gateway.url().origin(),
        said(error)
    );
    if let (Some(config), Some(key)) = (terms.config(), error.pin_at_fault()) {
        text.push_str(&format!(" ({})", config.whereabouts("", key)));
    }
    Failure::failed(format!("{text}; {}", error.remedy()))
}

/// A failure of the store.
fn stored(error: StoreError) -> Failure {
    let remedy = error
        .remedy()
        .unwrap_or("correct that and run bcd join again");
    failed(&error, remedy)
}

/// A failure with what to do about it, on one line.
fn failed(error: &dyn std::error::Error, remedy: &str) -> Failure {
    Failure::failed(format!("{}; {remedy}", said(error)))
}

/// An error with its causes, bounded: a peer may have sent any part of it.
pub(super) fn said(error: &dyn std::error::Error) -> String {
    short(&chain(error))
}

/// `text`, at most some lines of a terminal long, without what rearranges one.
pub(super) fn short(text: &str) -> String {
    const LONGEST: usize = 1000;
    let invisible = |c: &char| {
        c.is_control()
            || matches!(*c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
    };
    let mut line: String = text
        .chars()
        .take(LONGEST)
        .map(|c| if invisible(&c) { '\u{fffd}' } else { c })
        .collect();
    if text.chars().nth(LONGEST).is_some() {
        line.push('…');
    }
    line
}
