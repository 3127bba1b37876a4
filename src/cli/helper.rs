//! `bcd helper`: the privileged half of a node that runs without rights.
use std::process::ExitCode;

use super::flags::{Args, Command};
use super::{CONFIG_FLAG, Failure, block_on, chain, load_config};
use crate::helper::guard::Guard;
use crate::helper::{places, server};
use crate::rt::{self, UnixListener};
use crate::sys::log::{self, Level, Value};
use crate::sys::{local, user};

pub(super) const COMMAND: Command = Command::new(
    "helper",
    "do as root what bcd node, under [helper] without rights, may not",
    &[CONFIG_FLAG],
    run,
)
.details(
    "Serves the account that [helper] user names, and root, on [helper] socket: reboots, and reloads of the\n\
     SSH server. Starts only as root, and only where nobody else can change its configuration or a directory it\n\
     goes by. Runs in the foreground until SIGTERM or SIGINT (exit code 0). bcd-helper.service starts it.",
);

fn run(args: &Args) -> Result<ExitCode, Failure> {
    let config = load_config(args)?;
    log::start(config.log.level, config.log.json);
    let Some(helper) = &config.helper else {
        let why = format!("{} has no [helper] section", config.path.display());
        return Err(Failure::refused(why)
            .hint("bcd node does its own work there: systemctl disable --now bcd-helper.service"));
    };
    if user::euid() != 0 {
        let why = format!("it runs as user {}, not as root", user::euid());
        return Err(
            Failure::failed(why).hint("systemctl start bcd-helper.service starts it as root")
        );
    }
    let problems = places::problems(&config);
    if !problems.is_empty() {
        let said: Vec<String> = problems.iter().map(ToString::to_string).collect();
        return Err(Failure::failed(said.join("; ")));
    }
    let account = user::lookup(&helper.user).map_err(|error| {
        Failure::failed(error).hint("create the account that helper.user names")
    })?;
    let guard = Guard::new(account, &config.update).map_err(Failure::failed)?;
    let (socket, place) = local::listen_for(account.gid, &helper.socket).map_err(|error| {
        Failure::failed(format!(
            "cannot listen at {}: {}",
            helper.socket.display(),
            chain(&error)
        ))
    })?;
    let start = [
        ("version", Value::Text(env!("CARGO_PKG_VERSION"))),
        ("user", Value::Text(&helper.user)),
        ("socket", Value::Shown(&helper.socket.display())),
    ];
    log::event(Level::Info, "helper.start", &start);
    drop(config);
    block_on(async {
        let stop = rt::termination().map_err(Failure::failed)?;
        let listener = UnixListener::from_std(socket).map_err(Failure::failed)?;
        let ended = rt::select(stop, server::serve(listener, guard)).await;
        drop(place);
        match ended {
            rt::Either::Left(_) => {
                log::event(Level::Info, "helper.stop", &[]);
                Ok(ExitCode::SUCCESS)
            }
            rt::Either::Right(()) => Err(Failure::silent(1)),
        }
    })?
}
