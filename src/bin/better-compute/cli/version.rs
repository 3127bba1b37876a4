//! `better-compute version`: which build this is.

use std::process::ExitCode;

use bcd::cli::flags::{Args, Command, Flag};
use bcd::cli::{Failure, print};

pub(super) const COMMAND: Command = Command::new(
    "version",
    "say the version, the commit and the target",
    &[Flag::switch(
        "json",
        "Print one JSON object instead of text",
    )],
    run,
);

fn run(args: &Args) -> Result<ExitCode, Failure> {
    let version = env!("CARGO_PKG_VERSION");
    let commit = option_env!("BCD_COMMIT").unwrap_or("unknown");
    let target = option_env!("BCD_TARGET").unwrap_or("unknown");
    let text = match args.has("json") {
        true => format!(
            "{{\"version\":\"{version}\",\"commit\":\"{commit}\",\"target\":\"{target}\"}}\n"
        ),
        false => format!("better-compute {version}\ncommit:   {commit}\ntarget:   {target}\n"),
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}
