//! `bcd doctor`: why this node is not there, and what to do about it.
use std::process::ExitCode;

use super::flags::{Args, Command, Flag};
use super::{CONFIG_FLAG, DEFAULT_CONFIG, Failure, one_line, print};
use crate::config::Config;
use crate::crypto::json::Writer;
use crate::doctor::{self, Level};
use crate::wire::proxy;

pub(super) const COMMAND: Command = Command::new(
    "doctor",
    "look for what keeps this node from its control plane, and say what to do",
    &[
        CONFIG_FLAG,
        Flag::switch("json", "Print one JSON object instead of text"),
    ],
    run,
)
.details(
    "One line a check: ok, warn or fail, what was seen, what to do. Changes nothing, and works without\n\
     a network, a configuration or root: a check then says what it could not see. Exits 0 when\n\
     nothing failed, 1 when something did.",
);

/// Where a line's evidence begins.
const COLUMN: usize = 14;

fn run(args: &Args) -> Result<ExitCode, Failure> {
    let environment = proxy::from_environment();
    let path = args.path_or("config", DEFAULT_CONFIG);
    let config = Config::load(path);
    let json = args.has("json");
    let mut worst = Level::Ok;
    let mut printed = Ok(());
    let mut out = Writer::default();
    out.begin("");
    out.begin_list("checks");
    doctor::run(path, &config, environment, &mut |name, verdict| {
        worst = worst.max(verdict.level);
        let word = verdict.level.word();
        if json {
            out.begin("");
            out.text("name", name);
            out.text("level", word);
            out.text("evidence", &verdict.evidence);
            out.text_or_null("do", &verdict.remedy);
            out.end();
            return;
        }
        let mut line = format!("{word:<6}{name:<COLUMN$}{}", one_line(&verdict.evidence));
        if !verdict.remedy.is_empty() {
            line.push_str("; ");
            line.push_str(&one_line(&verdict.remedy));
        }
        line.push('\n');
        if printed.is_ok() {
            // At once: the next check may wait for the network.
            printed = print(&line);
        }
    });
    printed?;
    if json {
        out.end();
        out.text("worst", worst.word());
        out.flag("ok", worst < Level::Fail);
        out.end();
        print(&(out.finish() + "\n"))?;
    }
    Ok(ExitCode::from(u8::from(worst == Level::Fail)))
}
