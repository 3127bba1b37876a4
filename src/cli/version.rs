//! `bcd version`: which build this is.

use std::process::ExitCode;

use super::flags::{Args, Command, Flag};
use super::{Failure, print};

pub(super) const COMMAND: Command = Command::new(
    "version",
    "say the version, the commit, the target and the build's features",
    &[Flag::switch(
        "json",
        "Print one JSON object instead of text",
    )],
    run,
);

/// The version, as `Hello.daemon_version` carries it.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The features this binary was built with.
const FEATURES: &[&str] = &[
    #[cfg(feature = "control-plane")]
    "control-plane",
    #[cfg(feature = "fakehw")]
    "fakehw",
];

fn run(args: &Args) -> Result<ExitCode, Failure> {
    let commit = option_env!("BCD_COMMIT").unwrap_or("unknown");
    let target = option_env!("BCD_TARGET").unwrap_or("unknown");
    let text = if args.has("json") {
        let features: Vec<String> = FEATURES.iter().map(|name| format!("\"{name}\"")).collect();
        format!(
            "{{\"version\":\"{VERSION}\",\"commit\":\"{commit}\",\"target\":\"{target}\",\"features\":[{}]}}\n",
            features.join(",")
        )
    } else {
        let features = if FEATURES.is_empty() {
            "none".to_owned()
        } else {
            FEATURES.join(", ")
        };
        format!("bcd {VERSION}\ncommit:   {commit}\ntarget:   {target}\nfeatures: {features}\n")
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}
