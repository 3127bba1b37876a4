//! Whether bcd node runs, and what it says of itself.

// What nanoserde derives is written so.
#![allow(clippy::question_mark)]

use nanoserde::DeJson;

use super::{Seen, Verdict, chain};
use crate::crypto::json;
use crate::status::Form;
use crate::status::client::{AskError, Daemon, FOREIGN};
use crate::status::server::Request;

#[derive(DeJson, Default)]
#[nserde(default)]
struct Status {
    pid: Option<u32>,
    connected: bool,
    error: String,
    identity: Identity,
    session: Session,
    clock: Clock,
    journal: Journal,
}

#[derive(DeJson, Default)]
#[nserde(default)]
struct Identity {
    node_id: String,
    problem: Option<String>,
    #[nserde(rename = "do")]
    remedy: Option<String>,
}

#[derive(DeJson, Default)]
#[nserde(default)]
struct Session {
    state: String,
    since: String,
    upgrade_required: bool,
    last_error: Option<LastError>,
}

#[derive(DeJson, Default)]
#[nserde(default)]
struct LastError {
    error: String,
    #[nserde(rename = "do")]
    remedy: String,
}

#[derive(DeJson, Default)]
#[nserde(default)]
struct Clock {
    offset_ms: Option<f64>,
}

#[derive(DeJson, Default)]
#[nserde(default)]
struct Journal {
    problem: Option<String>,
    #[nserde(rename = "do")]
    remedy: Option<String>,
}

pub(super) fn run(seen: &mut Seen<'_>) -> Verdict {
    let path = &seen.socket_path;
    let request = Request {
        form: Form::Json,
        watch: false,
    };
    let answer = Daemon::ask(path, request).and_then(|mut daemon| daemon.line(path));
    let line = match answer {
        Ok(line) => line,
        Err(error) => {
            let (evidence, remedy) = (chain(&error), error.remedy());
            return match error {
                AskError::NotRunning(_) if !seen.joined => {
                    Verdict::ok("bcd node does not run: this machine has not joined")
                }
                AskError::NotPermitted(_) => Verdict::unseen(&evidence, remedy),
                _ => Verdict::fail(evidence, remedy),
            };
        }
    };
    match parse(&line) {
        None => unreadable(),
        Some(status) => {
            seen.pid = status.pid;
            seen.offset_ms = status.clock.offset_ms.map(|ms| ms as i64);
            judge(status, &seen.node_id)
        }
    }
}

/// Reads and judges a daemon's answer.
pub(super) fn read(line: &str) -> Verdict {
    parse(line).map_or_else(unreadable, |status| judge(status, ""))
}

fn parse(line: &str) -> Option<Status> {
    let text = json::check(line.as_bytes(), line.len(), 8).ok()?;
    Status::deserialize_json(text).ok()
}

fn unreadable() -> Verdict {
    Verdict::unseen("its answer cannot be read", FOREIGN)
}

/// `on_disk` is the node that this machine has joined as; empty when that is not known.
fn judge(status: Status, on_disk: &str) -> Verdict {
    let (session, identity) = (status.session, status.identity);
    if !status.error.is_empty() {
        return Verdict::unseen(&status.error, "try again");
    }
    if let Some(problem) = status.journal.problem {
        return Verdict::fail(problem, status.journal.remedy.unwrap_or_default());
    }
    let runs_as = &identity.node_id;
    if !on_disk.is_empty() && !runs_as.is_empty() && runs_as != on_disk {
        return Verdict::fail(
            format!("it still runs as {runs_as}, and this machine has joined as {on_disk}"),
            "restart it: systemctl restart bcd.service",
        );
    }
    let mut evidence = format!("{} since {}", session.state, session.since);
    if let Some(problem) = identity.problem {
        if let Some(last) = session.last_error.filter(|_| !status.connected) {
            evidence = [&evidence, ": ", &last.error].concat();
        }
        let evidence = [&evidence, "; ", &problem].concat();
        let remedy = identity.remedy.unwrap_or_default();
        return match status.connected {
            true => Verdict::warn(evidence, remedy),
            false => Verdict::fail(evidence, remedy),
        };
    }
    match session.last_error {
        _ if status.connected && session.upgrade_required => Verdict::warn(
            evidence + ", and too old for its control plane: no spec is applied and no command run",
            "install a newer bcd",
        ),
        _ if status.connected => Verdict::ok(evidence),
        Some(last) => Verdict::fail(format!("{evidence}: {}", last.error), last.remedy),
        None => Verdict::warn(evidence, "wait a moment and look again"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn what_the_daemon_says_is_judged() {
        for (line, level, part) in [
            (
                r#"{"connected":true,"session":{"state":"connected","since":"T"}}"#,
                Level::Ok,
                "connected since T",
            ),
            (
                r#"{"connected":true,"session":{"state":"connected","upgrade_required":true}}"#,
                Level::Warn,
                "too old",
            ),
            (
                r#"{"connected":false,"session":{"state":"refused","since":"T","last_error":{"error":"no","do":"ask"}}}"#,
                Level::Fail,
                "refused since T: no",
            ),
            (
                r#"{"connected":false,"session":{"state":"connecting","last_error":null}}"#,
                Level::Warn,
                "connecting",
            ),
            (
                r#"{"connected":true,"journal":{"problem":"full","do":"free"}}"#,
                Level::Fail,
                "full",
            ),
            (r#"{"error":"too many clients"}"#, Level::Warn, "too many"),
            (
                r#"{"connected":true,"session":{"state":"connected","since":"T"},"identity":{"node_id":"node_1","problem":"not signed by our keys","do":"take the new pins"}}"#,
                Level::Warn,
                "connected since T; not signed by our keys",
            ),
            (
                r#"{"connected":false,"session":{"state":"refused","since":"T","last_error":{"error":"no","do":"ask"}},"identity":{"node_id":"node_1","problem":"expired","do":"join"}}"#,
                Level::Fail,
                "refused since T: no; expired",
            ),
            (
                r#"{"connected":true,"session":{"state":"connected"},"identity":{"node_id":"node_0"}}"#,
                Level::Fail,
                "runs as node_0, and this machine has joined as node_1",
            ),
        ] {
            let verdict = judge(Status::deserialize_json(line).unwrap(), "node_1");
            assert_eq!(verdict.level, level, "{line}");
            assert!(verdict.evidence.contains(part), "{verdict:?}");
            assert_eq!(verdict.remedy.is_empty(), level == Level::Ok);
        }
    }
}
