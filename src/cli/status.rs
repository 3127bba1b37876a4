//! `bcd status`: how this node is, from the running daemon, or from the disk when none runs.
use std::collections::BTreeSet;
use std::process::ExitCode;

use nanoserde::DeJson;

use super::flags::{Args, Command, Flag};
use super::{CONFIG_FLAG, Failure, chain, load_config, one_line, print};
use crate::crypto::json;
use crate::status::client::{AskError, Daemon, FOREIGN};
use crate::status::server::Request;
use crate::status::{Form, Snapshot};
use crate::sys::clock;
use crate::sys::utc::Utc;

pub(super) const COMMAND: Command = Command::new(
    "status",
    "say how this node is: identity, session, last error, sections, commands, journal, clock",
    &[
        CONFIG_FLAG,
        Flag::switch("json", "Print one JSON object instead of text"),
        Flag::switch("metrics", "Print OpenMetrics instead of text"),
        Flag::switch("watch", "Go on, with what changes as it changes"),
    ],
    run,
)
.details(
    "Asks bcd node on its status socket (socket_path). Where none runs it says so, and shows what\n\
     the disk tells. Exits 0 when the node is connected, 1 when it is not or cannot be asked.",
);

#[derive(DeJson, Default)]
#[nserde(default)]
struct Answer {
    connected: bool,
    text: String,
    error: String,
}

fn run(args: &Args) -> Result<ExitCode, Failure> {
    let form = match (args.has("json"), args.has("metrics")) {
        (true, true) => {
            return Err(Failure::refused("--json and --metrics exclude each other"));
        }
        (true, false) => Form::Json,
        (false, true) => Form::Metrics,
        (false, false) => Form::Text,
    };
    let watch = args.has("watch");
    let config = load_config(args)?;
    let path = &config.socket_path;
    let failed = |error: AskError| Failure::failed(chain(&error)).hint(error.remedy());
    let mut daemon = match Daemon::ask(path, Request { form, watch }) {
        Ok(daemon) => daemon,
        Err(error) => {
            if let AskError::NotRunning(_) = error {
                print(&Snapshot::of_disk(&config).show(form))?;
            }
            return Err(failed(error));
        }
    };
    let mut before = BTreeSet::new();
    loop {
        let line = daemon.line(path).map_err(failed)?;
        let mut answer = read(&line)?;
        // Whoever answers there: what is shown drives no terminal.
        answer.text.retain(|c| c == '\n' || !c.is_control());
        match form {
            Form::Json => print(&line)?,
            Form::Text if !before.is_empty() => print(&changes(&before, &answer.text))?,
            Form::Text | Form::Metrics => print(&answer.text)?,
        }
        if !watch {
            return Ok(ExitCode::from(u8::from(!answer.connected)));
        }
        before = answer.text.lines().map(str::to_owned).collect();
        daemon.wait_long();
    }
}

fn read(line: &str) -> Result<Answer, Failure> {
    let answer = json::check(line.as_bytes(), line.len(), 8)
        .ok()
        .and_then(|text| Answer::deserialize_json(text).ok());
    match answer {
        Some(answer) if answer.error.is_empty() => Ok(answer),
        Some(answer) => {
            let said = one_line(&answer.error);
            Err(Failure::failed(format!("bcd node answered: {said}")))
        }
        None => Err(Failure::failed("what bcd node answered cannot be read").hint(FOREIGN)),
    }
}

/// The lines that were not there before, each with the time.
fn changes(before: &BTreeSet<String>, text: &str) -> String {
    let now = Utc::from_ms(clock::wall_ms()).to_string();
    let mut out = String::new();
    for line in text.lines().filter(|line| !before.contains(*line)) {
        for part in [now.as_str(), " ", line, "\n"] {
            out.push_str(part);
        }
    }
    out
}
