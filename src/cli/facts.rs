//! `bcd facts`: what this machine is made of, as the control plane is told.
use std::process::ExitCode;

use nanoserde::SerJson;

use super::flags::{Args, Command, Flag};
use super::{Failure, one_line, print};
use crate::facts;
use crate::facts::view::FactsView;

pub(super) const COMMAND: Command = Command::new(
    "facts",
    "say what this machine is made of, as the control plane is told",
    &[Flag::switch(
        "json",
        "Print one JSON object instead of text",
    )],
    run,
)
.details(
    "Needs no configuration and sends nothing. What cannot be read is a line of its own: serial\n\
     numbers, for one, are shown to root alone.",
);

fn run(args: &Args) -> Result<ExitCode, Failure> {
    let facts = FactsView::from(facts::collect());
    let out = if args.has("json") {
        facts.serialize_json() + "\n"
    } else {
        facts_text(&facts)
    };
    print(&out)?;
    Ok(ExitCode::SUCCESS)
}

/// Facts as text: a line each, the labels in a column.
pub fn facts_text(facts: &FactsView) -> String {
    const COLUMN: usize = 14;
    let mut out = String::new();
    for (label, text) in facts.lines() {
        let begin = out.len();
        out.push_str(label);
        out.push(':');
        while out.len() - begin < COLUMN {
            out.push(' ');
        }
        out.push_str(&one_line(&text));
        out.push('\n');
    }
    out
}
