//! A snapshot as metrics: OpenMetrics 1.0 for whoever asks, and the older Prometheus text for
//! node_exporter's collector of text files, which knows no units and names counters as their samples.
use std::fmt::Write as _;

use super::Snapshot;
use crate::proto::SectionState;

/// In which of the two forms.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    OpenMetrics,
    Prometheus,
}

struct Page {
    out: String,
    dialect: Dialect,
}

impl Page {
    /// The lines before a family's samples. What a name ends in says the rest: `_total` a counter,
    /// `_bytes` and `_seconds` the unit.
    fn family(&mut self, name: &str, help: &str) {
        let family = name.strip_suffix("_total");
        let kind = if family.is_some() { "counter" } else { "gauge" };
        let open = self.dialect == Dialect::OpenMetrics;
        let family = family.filter(|_| open).unwrap_or(name);
        let out = &mut self.out;
        for (word, text) in [("TYPE", kind), ("HELP", help)] {
            for part in ["# ", word, " ", family, " ", text, "\n"] {
                out.push_str(part);
            }
        }
        if let Some((_, unit @ ("bytes" | "seconds"))) = family.rsplit_once('_')
            && open
        {
            for part in ["# UNIT ", family, " ", unit, "\n"] {
                out.push_str(part);
            }
        }
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: i64) {
        self.out.push_str(name);
        for (index, (label, text)) in labels.iter().enumerate() {
            self.out.push(if index == 0 { '{' } else { ',' });
            self.out.push_str(label);
            self.out.push_str("=\"");
            for c in text.chars() {
                match c {
                    '"' | '\\' => self.out.extend(['\\', c]),
                    '\n' => self.out.push_str("\\n"),
                    c => self.out.push(c),
                }
            }
            self.out.push('"');
        }
        if !labels.is_empty() {
            self.out.push('}');
        }
        let _ = writeln!(self.out, " {value}");
    }

    fn one(&mut self, name: &str, help: &str, value: impl TryInto<i64>) {
        self.family(name, help);
        self.sample(name, &[], value.try_into().unwrap_or(i64::MAX));
    }
}

pub(super) fn render(seen: &Snapshot) -> String {
    page(seen, Dialect::OpenMetrics)
}

/// The metrics in a dialect. While nothing happens two pages are the same: nothing in them counts time.
pub fn page(seen: &Snapshot, dialect: Dialect) -> String {
    let mut page = Page {
        out: String::with_capacity(4096),
        dialect,
    };
    let running = seen.running.is_some();
    page.one("bcd_up", "Whether bcd node runs.", i64::from(running));
    page.family("bcd_build_info", "Which bcd this is.");
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    page.sample("bcd_build_info", &version, 1);
    let identity = &seen.identity;
    let joined = identity.state == "joined";
    page.one(
        "bcd_identity_joined",
        "Whether this machine has an identity that loads.",
        i64::from(joined),
    );
    if joined {
        page.one(
            "bcd_identity_not_after_timestamp_seconds",
            "When the node's certificate ends.",
            identity.not_after,
        );
    }
    if let Some(version) = identity.trust_version {
        page.one(
            "bcd_trust_bundle_version",
            "The trust bundle in force, 0 for none.",
            version,
        );
    }
    if let Some((_, started)) = seen.running {
        page.one(
            "bcd_start_timestamp_seconds",
            "When bcd node started.",
            boot_second(seen, started),
        );
    }
    session(&mut page, seen);
    if let Some(commands) = &seen.commands {
        page.one(
            "bcd_commands_active",
            "Commands that have not ended.",
            commands.active.len() as u64,
        );
    }
    journal(&mut page, seen);
    if let Some(offset_ms) = seen.clock.offset_ms {
        page.family(
            "bcd_clock_offset_seconds",
            "The control plane's time less this host's, in whole seconds.",
        );
        page.sample("bcd_clock_offset_seconds", &[], offset_ms / 1000);
    }
    if dialect == Dialect::OpenMetrics {
        page.out.push_str("# EOF\n");
    }
    page.out
}

fn session(page: &mut Page, seen: &Snapshot) {
    let Some(session) = &seen.session else { return };
    for (name, help, value) in [
        (
            "bcd_session_connected",
            "Whether there is a session with the gateway.",
            i64::from(session.state.is_connected()),
        ),
        (
            "bcd_session_upgrade_required",
            "Whether the control plane takes nothing of this bcd but an upgrade.",
            i64::from(session.upgrade_required),
        ),
        (
            "bcd_session_change_timestamp_seconds",
            "Since when there is a session, or none.",
            boot_second(seen, session.since),
        ),
    ] {
        page.one(name, help, value);
    }
    for (name, help, value) in [
        (
            "bcd_sessions_opened_total",
            "Sessions that were opened since bcd node started.",
            session.opened,
        ),
        (
            "bcd_session_failures_total",
            "Sessions lost and tries that failed since bcd node started.",
            session.failed,
        ),
        (
            "bcd_spec_generation",
            "The generation of the spec held, 0 for none.",
            seen.generation,
        ),
    ] {
        page.one(name, help, value);
    }
    if !seen.sections.is_empty() {
        page.family(
            "bcd_section_applied",
            "Whether a section of the spec is applied.",
        );
        for section in &seen.sections {
            let applied = i64::from(section.state == SectionState::APPLIED);
            let labels = [("section", section.section.as_str())];
            page.sample("bcd_section_applied", &labels, applied);
        }
    }
}

fn journal(page: &mut Page, seen: &Snapshot) {
    let Some(journal) = &seen.journal else { return };
    page.one(
        "bcd_journal_faulty",
        "Whether the journal is damaged or refuses work.",
        i64::from(!journal.problem.is_empty()),
    );
    let status = &journal.status;
    for (name, help, value) in [
        (
            "bcd_journal_events_total",
            "Events that were written since the journal began.",
            status.position,
        ),
        (
            "bcd_journal_unacknowledged_events",
            "Events that the control plane has not acknowledged.",
            status.unacknowledged,
        ),
        (
            "bcd_journal_dropped_events_total",
            "Events dropped for want of room since bcd node started.",
            status.dropped,
        ),
        (
            "bcd_journal_used_bytes",
            "Bytes of the file that are written.",
            status.used_bytes,
        ),
        (
            "bcd_journal_live_bytes",
            "Bytes of the records that are needed.",
            status.live_bytes,
        ),
        (
            "bcd_journal_flushes_total",
            "Flushes of the journal to the disk since bcd node started.",
            status.syncs,
        ),
    ] {
        page.one(name, help, value);
    }
}

/// Unix time in seconds of a moment of the monotonic clock. The two clocks drift against each other by
/// less than a second between two pages, so half of one decides.
fn boot_second(seen: &Snapshot, at: std::time::Duration) -> i64 {
    i64::try_from(seen.wall_of(at).saturating_add(500) / 1000).unwrap_or(i64::MAX)
}
