//! `bcd node`: the daemon. Loads the configuration and the identity, and holds the session until
//! SIGTERM or SIGINT.
use std::process::ExitCode;
use std::rc::Rc;

use super::flags::{Args, Command};
use super::{CONFIG_FLAG, Failure, block_on, chain, load_config};
use crate::config::Config;
use crate::identity::store::{Joined, State, Store, StoreError};
use crate::rt;
use crate::session::{self, Node};
use crate::sys::log::{self, Level, Value};

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
    let config = load_config(args)?;
    log::start(config.log.level, config.log.json);
    let (store, joined) = identity(&config)?;
    let node_id = joined.identity.node_id.clone();
    let start = [
        ("node", Value::Text(&node_id)),
        ("version", Value::Text(env!("CARGO_PKG_VERSION"))),
        ("gateway", Value::Shown(&config.gateway_url)),
    ];
    log::event(Level::Info, "node.start", &start);
    let node = Node::new(&config, store, joined).map_err(Failure::failed)?;
    // The rest of the configuration is of no use to the session.
    drop(config);
    block_on(async {
        let stop = rt::termination().map_err(Failure::failed)?;
        let (answers, frames) = session::frames();
        let work = Rc::new(Work::new(answers));
        session::run(node, work, frames, stop).await;
        log::event(Level::Info, "node.stop", &[("node", Value::Text(&node_id))]);
        Ok(ExitCode::SUCCESS)
    })?
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
