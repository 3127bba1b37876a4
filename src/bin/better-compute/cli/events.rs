//! `better-compute events`: what nodes' journals said.

use std::path::Path;
use std::process::ExitCode;

use bcd::cli::flags::{Args, Command, Flag};
use bcd::cli::{Failure, one_line, print};
use bcd::sys::utc::Utc;

use super::ago::parse_span;
use super::client::{self, DIR, JSON, Patient};
use crate::json::Json;
use crate::registry::now_ms;
use crate::simulation::{Ledger, Seen};

const WAIT_S: u32 = 25;
/// How many events are asked for at once.
const PAGE: u32 = 500;
const LIMIT_MAX: u32 = 1_000;

pub(super) const COMMAND: Command = Command::new(
    "events",
    "show what nodes reported, the newest last",
    &[
        Flag::switch("follow", "Go on with each event as it comes, until ended"),
        Flag::value("kind", "KIND", "Only events of this kind, such as command_update"),
        Flag::value("since", "SPAN", "Only those that came within this span, such as 90m"),
        Flag::value("limit", "N", "At most so many, 1 to 1000 (default 100)"),
        Flag::value(
            "check",
            "FILE",
            "Show nothing, and hold all of them against what bcd sim --ledger wrote",
        ),
        DIR,
        JSON,
    ],
    run,
)
.details(
    "Each line: when it came, the node, its sequence in the node's journal, the kind, what it says.\n\
     With --json each line is an object. With --follow it goes on through restarts of the control plane.\n\
     With --check it says whether the control plane has each event of each simulated node, and has it once;\n\
     the exit code is 1 when one is missing or doubled.",
)
.positionals(&["[NODE]"]);

fn run(args: &Args) -> Result<ExitCode, Failure> {
    if let Some(path) = args.value("check") {
        return check(args, Path::new(path));
    }
    let mut asked = String::new();
    if !args.positional(0).is_empty() {
        let id = client::id(args, "node", "node")?;
        asked.push_str(&format!("&node={id}"));
    }
    if let Some(kind) = args.value("kind") {
        let plain = |b: u8| b.is_ascii_lowercase() || b == b'_';
        if !kind.bytes().all(plain) {
            return Err(Failure::refused(
                "--kind is lower-case letters and '_', such as command_update",
            ));
        }
        asked.push_str(&format!("&kind={kind}"));
    }
    if let Some(since) = args.value("since") {
        let span = parse_span(since).ok_or_else(|| {
            Failure::refused("--since is a number and one of s, m, h, d, such as 90m")
        })?;
        asked.push_str(&format!("&since={}", (now_ms() - span).max(0)));
    }
    let limit = match args.value("limit") {
        None => 100,
        Some(text) => text
            .parse()
            .ok()
            .filter(|limit| (1..=LIMIT_MAX).contains(limit))
            .ok_or_else(|| Failure::refused("--limit is a number from 1 to 1000"))?,
    };
    let json = args.has("json");
    let mut patient = Patient::new(args)?;
    let mut answer = patient.get(&format!("events?limit={limit}{asked}"), true)?;
    loop {
        let mut lines = String::new();
        for event in answer.get("events").map(Json::items).unwrap_or_default() {
            match json {
                true => lines.push_str(&format!("{event}\n")),
                false => lines.push_str(&line(event)),
            }
        }
        print(&lines)?;
        if !args.has("follow") {
            return Ok(ExitCode::SUCCESS);
        }
        let next = answer.number("next").unwrap_or(0);
        let path = format!("events?after={next}&limit={PAGE}&wait={WAIT_S}{asked}");
        answer = patient.get(&path, false)?;
    }
}

/// Judges what a simulation left.
fn check(args: &Args, path: &Path) -> Result<ExitCode, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::refused(format!("cannot read {}: {error}", path.display())))?;
    let mut ledger = Ledger::parse(&text).map_err(|line| {
        Failure::refused(format!(
            "line {line} of {} is none that bcd sim --ledger writes",
            path.display()
        ))
    })?;
    let mut patient = Patient::new(args)?;
    let mut after = 0;
    loop {
        let answer = patient.get(
            &format!("events?after={after}&limit={LIMIT_MAX}"),
            after == 0,
        )?;
        let events = answer.get("events").map(Json::items).unwrap_or_default();
        for event in events {
            let said = event.get("body").map(|body| body.text("message"));
            ledger.take(&Seen {
                node_id: event.text("nodeId"),
                journal_id: event.text("journalId"),
                sequence: event.number("sequence").unwrap_or(0).unsigned_abs(),
                kind: event.text("kind"),
                said,
            });
            after = event.number("number").unwrap_or(after);
        }
        if events.is_empty() {
            break;
        }
    }
    let verdict = ledger.verdict();
    print(&format!("{}\n", verdict.line()))?;
    Ok(ExitCode::from(u8::from(!verdict.is_good())))
}

fn line(event: &Json) -> String {
    let received = event.number("receivedMs").unwrap_or(0);
    let body = event.get("body").unwrap_or(&Json::Null);
    let parts = [
        Utc::from_ms(received.unsigned_abs()).to_string(),
        event.text("nodeId").to_owned(),
        event.number("sequence").unwrap_or(0).to_string(),
        event.text("kind").to_owned(),
        said(event.text("kind"), body),
    ];
    format!("{}\n", one_line(&parts.join(" ")))
}

/// What an event says, in short.
fn said(kind: &str, body: &Json) -> String {
    let named = |names: &[&str]| {
        let mut words = Vec::new();
        for name in names {
            match body.get(name) {
                Some(Json::Text(text)) if !text.is_empty() => words.push(text.clone()),
                Some(Json::Number(number)) => words.push(format!("{name}={number}")),
                _ => {}
            }
        }
        words.join(" ")
    };
    match kind {
        "command_update" => named(&["id", "state", "reason", "message"]),
        "section_status" => named(&["section", "state", "generation", "reason", "message"]),
        "facts" => {
            let count = |name: &str| body.get(name).map_or(0, |list| list.items().len());
            format!(
                "{} disks={} interfaces={} gpus={}",
                named(&["hostname", "memory_bytes"]),
                count("disks"),
                count("interfaces"),
                count("gpus")
            )
        }
        "events_dropped" | "events_missing" => named(&["first", "last", "count"]),
        "journal_damaged" => named(&["kept_as", "records_kept", "bytes_lost", "damage"]),
        "storage_fault" => named(&["reason", "message", "refused_commands"]),
        "diag_report" => {
            let findings = body.get("findings").map(Json::items).unwrap_or_default();
            let bad = findings
                .iter()
                .filter(|finding| finding.text("verdict") != "ok");
            let bad: Vec<String> = bad
                .map(|finding| format!("{}={}", finding.text("subject"), finding.text("verdict")))
                .collect();
            format!(
                "{} findings={} {}",
                named(&["command_id", "kind"]),
                findings.len(),
                bad.join(" ")
            )
        }
        "booted_from" => named(&["message"]),
        "identity_renewed" => named(&["not_after_ms", "key_sha256"]),
        _ => body.to_string().chars().take(120).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line() {
        let event = Json::parse(
            br#"{"nodeId":"node_a","sequence":7,"receivedMs":0,"kind":"command_update",
                 "body":{"id":"cmd_a","state":"failed","reason":"TimedOut","message":"a\nb"}}"#,
            1000,
            8,
        )
        .unwrap();
        assert_eq!(
            line(&event),
            "1970-01-01T00:00:00.000Z node_a 7 command_update cmd_a failed TimedOut a\\nb\n"
        );
        let unknown = Json::parse(br#"{"base64":"AQ=="}"#, 100, 4).unwrap();
        assert_eq!(said("unknown", &unknown), r#"{"base64":"AQ=="}"#);
    }
}
