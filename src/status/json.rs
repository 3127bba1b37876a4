//! A snapshot as one line of JSON; docs/operations.md explains each member.
use std::time::Duration;

use super::Snapshot;
use crate::crypto::json::Writer;
use crate::sys::utc::Utc;

pub(super) fn render(seen: &Snapshot) -> String {
    let mut json = Writer::default();
    json.begin("");
    json.flag("connected", seen.is_connected());
    json.flag("running", seen.running.is_some());
    json.text("version", env!("CARGO_PKG_VERSION"));
    if let Some((pid, started)) = seen.running {
        json.number("pid", i64::from(pid));
        time(&mut json, "started", seen.wall_of(started));
    }
    json.text("gateway", &seen.gateway);
    identity(&mut json, seen);
    if let Some(session) = &seen.session {
        json.begin("session");
        json.text("state", session.state.word());
        time(&mut json, "since", seen.wall_of(session.since));
        let address = session.address.map(|address| address.to_string());
        json.text_or_null("address", &address.unwrap_or_default());
        json.text_or_null("session_id", &session.session_id);
        json.number("protocol_version", i64::from(session.version));
        json.flag("upgrade_required", session.upgrade_required);
        json.number("heartbeat_interval_ms", i64::from(session.heartbeat_ms));
        json.number("opened", count(session.opened));
        json.number("failed", count(session.failed));
        json.number("failures_in_a_row", count(session.failures));
        let wait = session.next_try.map(|at| at.saturating_sub(seen.now));
        json.number("next_try_in_ms", wait.map(millis));
        match &session.trouble {
            None => json.raw("last_error", "null"),
            Some(trouble) => {
                json.begin("last_error");
                time(&mut json, "time", seen.wall_of(trouble.at));
                json.text("error", &trouble.error);
                json.text("do", trouble.remedy);
                json.end();
            }
        }
        json.end();
        json.begin("spec");
        json.number("generation", count(seen.generation));
        json.begin_list("sections");
        for section in &seen.sections {
            json.begin("");
            json.text("name", &section.section);
            json.text("state", super::text::section_state(section));
            json.number("generation", count(section.generation));
            json.text_or_null("reason", &section.reason);
            json.text_or_null("message", &section.message);
            json.end();
        }
        json.end();
        json.end();
    }
    if let Some(commands) = &seen.commands {
        json.begin("commands");
        json.number("remembered", count(commands.done as u64));
        json.begin_list("active");
        for command in &commands.active {
            json.begin("");
            json.text("id", &command.id);
            json.text("kind", command.kind);
            json.text("state", command.state);
            json.end();
        }
        json.end();
        json.end();
    }
    journal(&mut json, seen);
    json.begin("clock");
    time(&mut json, "host", seen.now_ms);
    time(&mut json, "trusted", seen.clock.trusted_ms);
    time(&mut json, "signed", seen.clock.signed_ms);
    json.number("offset_ms", seen.clock.offset_ms);
    json.end();
    json.end();
    json.finish() + "\n"
}

fn identity(json: &mut Writer, seen: &Snapshot) {
    let identity = &seen.identity;
    json.begin("identity");
    json.text("state", identity.state);
    if identity.state == "joined" {
        json.text("node_id", &identity.node_id);
        json.text("spiffe_id", &identity.spiffe_id);
        json.text("role", &identity.role);
        json.text("site", &identity.site);
        json.text("pool", &identity.pool);
        let seconds = |at| Utc::from_seconds(at).to_string();
        json.text("not_before", &seconds(identity.not_before));
        json.text("not_after", &seconds(identity.not_after));
        json.flag("expired", identity.expired);
        json.number("trust_version", identity.trust_version.and_then(count));
    }
    json.text_or_null("problem", &identity.problem);
    json.text_or_null("do", &identity.remedy);
    json.end();
}

fn journal(json: &mut Writer, seen: &Snapshot) {
    let Some(journal) = &seen.journal else {
        return json.raw("journal", "null");
    };
    let status = &journal.status;
    json.begin("journal");
    json.text_or_null("id", &journal.id);
    for (name, number) in [
        ("position", status.position),
        ("acknowledged", status.acked),
        ("unacknowledged", status.unacknowledged),
        ("keys", status.keys),
        ("live_bytes", status.live_bytes),
        ("used_bytes", status.used_bytes),
        ("dropped", status.dropped),
    ] {
        json.number(name, count(number));
    }
    if let Some(fault) = &status.fault {
        json.text("fault", fault.reason);
        time(json, "fault_since", fault.since_ms);
        json.number("refused_commands", i64::from(fault.refused_commands));
    }
    json.text_or_null("problem", &journal.problem);
    json.text_or_null("do", &journal.remedy);
    json.end();
}

/// A time, or null for none.
fn time(json: &mut Writer, name: &str, ms: u64) {
    match ms {
        0 => json.raw(name, "null"),
        ms => json.text(name, &Utc::from_ms(ms).to_string()),
    }
}

fn count(number: u64) -> Option<i64> {
    i64::try_from(number).ok()
}

fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}
