//! The commands of better-compute: one file a subcommand.
//!
//! Parsing, printing and exit codes are bcd's ([`bcd::cli`]): 0 done, 1 failed, 2 refused.

pub mod ago;
mod client;
mod commands;
mod dev;
mod events;
mod nodes;
mod pki;
mod rotate;
mod spec;
mod table;
mod tokens;
mod version;
mod watch;

use bcd::cli::flags::Command;

pub static BETTER_COMPUTE: Command = Command::group(
    "better-compute",
    "the operator's side of a bcd fleet: keys, join tokens, nodes, commands, and a control plane",
    &[
        dev::COMMAND,
        pki::COMMAND,
        tokens::COMMAND,
        nodes::COMMAND,
        commands::COMMAND,
        spec::COMMAND,
        events::COMMAND,
        version::COMMAND,
    ],
);
