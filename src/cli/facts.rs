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
    let mut out = String::new();
    if args.has("json") {
        out = facts.serialize_json();
        out.push('\n');
    } else {
        for (label, text) in facts.lines() {
            out.push_str(label);
            out.push(':');
            out.push_str(
                " ".repeat(14_usize.saturating_sub(label.len() + 1))
                    .as_str(),
            );
            out.push_str(&one_line(&text));
            out.push('\n');
        }
    }
    print(&out)?;
    Ok(ExitCode::SUCCESS)
}
