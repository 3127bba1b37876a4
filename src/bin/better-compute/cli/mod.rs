//! The commands of better-compute: one file a subcommand.
//!
//! Parsing, printing and exit codes are bcd's ([`bcd::cli`]): 0 done, 1 failed, 2 refused.

pub mod ago;
mod boot;
mod client;
mod commands;
mod daemon;
mod dev;
mod events;
mod files;
mod machines;
mod man;
mod nodes;
mod pki;
mod receipts;
mod release;
mod rotate;
mod sites;
mod spec;
mod table;
mod tokens;
mod version;
mod watch;

use std::process::ExitCode;

use bcd::cli::flags::{Args, Command};
use bcd::cli::{Failure, completions};

pub static BETTER_COMPUTE: Command = Command::group(
    "better-compute",
    "the operator's side of a bcd fleet: keys, join tokens, machines, nodes, commands, and a control plane",
    &[
        dev::COMMAND,
        pki::COMMAND,
        tokens::COMMAND,
        sites::COMMAND,
        machines::COMMAND,
        nodes::COMMAND,
        commands::COMMAND,
        receipts::COMMAND,
        spec::COMMAND,
        events::COMMAND,
        daemon::COMMAND,
        release::COMMAND,
        completions::command(complete),
        man::COMMAND,
        version::COMMAND,
    ],
);

fn complete(args: &Args) -> Result<ExitCode, Failure> {
    completions::run(&BETTER_COMPUTE, args)
}
