//! A snapshot for a person: a line each, the labels in a column.
use std::fmt::Display;
use std::time::Duration;

use super::Snapshot;
use super::board::State;
use crate::proto::{SectionState, SectionStatus};
use crate::sys::log::one_line;
use crate::sys::utc::Utc;

/// Where the text of a line begins.
const COLUMN: usize = 14;

/// A span as people say it: "3 d 2 h", "5 min", "12 s".
pub(super) fn span(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, minutes) => format!("{minutes} min"),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}

pub(super) fn section_state(section: &SectionStatus) -> &'static str {
    match section.state {
        SectionState::APPLIED => "applied",
        SectionState::FAILED => "failed",
        SectionState::UNSUPPORTED => "unsupported",
        _ => "pending",
    }
}

struct Lines(String);

impl Lines {
    fn line(&mut self, label: &str, text: &str) {
        self.0.push_str(label);
        for _ in label.len()..COLUMN {
            self.0.push(' ');
        }
        self.0.push_str(&one_line(text));
        self.0.push('\n');
    }

    fn trouble(&mut self, problem: &str, remedy: &str) {
        if !problem.is_empty() {
            self.line("  problem", problem);
        }
        if !remedy.is_empty() {
            self.line("  do", remedy);
        }
    }
}

pub(super) fn render(seen: &Snapshot) -> String {
    let mut lines = Lines(String::with_capacity(1024));
    match seen.running {
        None => lines.line("bcd node", "not running"),
        Some((pid, started)) => {
            let version = env!("CARGO_PKG_VERSION");
            let since = Utc::from_ms(seen.wall_of(started));
            lines.line("bcd node", &format!("{version}, pid {pid}, since {since}"));
        }
    }
    identity(&mut lines, seen);
    session(&mut lines, seen);
    for section in &seen.sections {
        let mut text = section_state(section).to_owned();
        for more in [&section.reason, &section.message] {
            if !more.is_empty() {
                text.push_str(": ");
                text.push_str(more);
            }
        }
        lines.line("section", &format!("{} {text}", section.section));
    }
    if let Some(commands) = &seen.commands {
        for command in &commands.active {
            let text = [&command.id, " ", command.kind, " ", command.state].concat();
            lines.line("command", &text);
        }
        if commands.active.is_empty() {
            let text = format!("none under way, {} remembered", commands.done);
            lines.line("commands", &text);
        }
    }
    match &seen.journal {
        None => lines.line("journal", "none yet: bcd node makes it when it first runs"),
        Some(journal) => {
            let status = &journal.status;
            if !journal.id.is_empty() {
                let text = format!(
                    "position {}, {} not acknowledged, {} KiB",
                    status.position,
                    status.unacknowledged,
                    status.used_bytes.div_ceil(1024)
                );
                lines.line("journal", &text);
            } else {
                lines.line("journal", "cannot be read");
            }
            lines.trouble(&journal.problem, &journal.remedy);
        }
    }
    clock(&mut lines, seen);
    lines.0
}

fn identity(lines: &mut Lines, seen: &Snapshot) {
    let identity = &seen.identity;
    if identity.state == "joined" {
        let text = format!(
            "{} ({}, site {}, pool {})",
            identity.node_id, identity.role, identity.site, identity.pool
        );
        lines.line("node", &text);
        let until = Utc::from_seconds(identity.not_after);
        let now = i64::try_from(seen.clock.trusted_ms / 1000).unwrap_or(i64::MAX);
        let left = span(now.abs_diff(identity.not_after));
        if identity.expired {
            lines.line("identity", &format!("expired {left} ago, on {until}"));
            if identity.problem.is_empty() {
                let remedy = "bcd node asks for a new certificate by itself; where that fails, \
                              bcd join --reset --yes, then bcd join";
                lines.trouble("", remedy);
            }
        } else {
            lines.line("identity", &format!("valid until {until}, {left} more"));
        }
    } else {
        lines.line("identity", identity.state);
    }
    lines.trouble(&identity.problem, &identity.remedy);
}

fn session(lines: &mut Lines, seen: &Snapshot) {
    lines.line("gateway", &seen.gateway);
    let Some(session) = &seen.session else {
        return;
    };
    let ago = |at: Duration| span(seen.now.saturating_sub(at).as_secs());
    let since = Utc::from_ms(seen.wall_of(session.since));
    let mut text = format!(
        "{} since {since}, {}",
        session.state.word(),
        ago(session.since)
    );
    let mut more = |label: &str, value: &dyn Display| {
        text.push_str(label);
        text.push_str(&value.to_string());
    };
    if let Some(address) = &session.address {
        more(", address ", address);
    }
    match (session.state, session.next_try) {
        (State::Waiting | State::Refused, Some(at)) => {
            more(
                ", next try in ",
                &span(at.saturating_sub(seen.now).as_secs()),
            );
        }
        (State::Moving, _) => more(", another one is being opened", &""),
        _ => {}
    }
    if !session.state.is_connected() && session.failures > 0 {
        more(", failed tries ", &session.failures);
    }
    if session.upgrade_required {
        more(
            "; this bcd must be upgraded: no spec is applied and no command run",
            &"",
        );
    }
    lines.line("session", &text);
    if let Some(trouble) = &session.trouble {
        let at = Utc::from_ms(seen.wall_of(trouble.at));
        lines.line("last error", &format!("{at} {}", trouble.error));
        let over = session.state == State::Connected;
        lines.trouble(
            "",
            if over {
                "nothing, it has passed"
            } else {
                trouble.remedy
            },
        );
    }
}

fn clock(lines: &mut Lines, seen: &Snapshot) {
    let clock = &seen.clock;
    let text = match (clock.offset_ms, clock.signed_ms) {
        (Some(offset), _) if offset.unsigned_abs() < 1000 => {
            "agrees with the control plane".to_owned()
        }
        (Some(offset), _) => {
            let way = if offset > 0 { "behind" } else { "ahead of" };
            let by = span(offset.unsigned_abs() / 1000);
            format!("{by} {way} the control plane's: set this host's clock")
        }
        (None, 0) => "no time was signed yet".to_owned(),
        (None, signed) => format!(
            "trusted time {}, last signed {}",
            Utc::from_ms(clock.trusted_ms),
            Utc::from_ms(signed)
        ),
    };
    lines.line("clock", &text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_said_in_two_units_at_most() {
        for (seconds, said) in [
            (0, "0 s"),
            (59, "59 s"),
            (60, "1 min"),
            (3599, "59 min"),
            (3600, "1 h 0 min"),
            (86_399, "23 h 59 min"),
            (86_400 * 29 + 7200, "29 d 2 h"),
        ] {
            assert_eq!(span(seconds), said);
        }
    }
}
