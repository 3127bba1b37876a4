//! Whether the journal is whole, this node's, and far from its caps.
use super::{Seen, Verdict};
use crate::status::JournalSeen;

pub(super) fn run(seen: &mut Seen<'_>) -> Verdict {
    let Some(journal) = JournalSeen::on_disk(&seen.data_dir) else {
        return Verdict::ok("none yet: bcd node makes it when it first runs");
    };
    if journal.is_hidden {
        return Verdict::unseen(&journal.problem, &journal.remedy);
    }
    if !journal.problem.is_empty() {
        return Verdict::fail(journal.problem, journal.remedy);
    }
    if !seen.node_id.is_empty() && journal.node_id != seen.node_id {
        return Verdict::fail(
            format!("it is of {}, and this is {}", journal.node_id, seen.node_id),
            "move journal.db away: bcd node takes none of another node",
        );
    }
    let status = &journal.status;
    let waiting = status.unacknowledged;
    let evidence = format!(
        "whole, {} KiB, position {}, {waiting} events not acknowledged",
        status.used_bytes.div_ceil(1024),
        status.position
    );
    let Ok(config) = seen.config else {
        return Verdict::ok(evidence);
    };
    let near = waiting >= config.journal.max_events / 5 * 4
        || status.live_bytes >= config.journal.max_bytes / 5 * 4;
    if near {
        return Verdict::warn(
            evidence + ": soon the oldest are dropped",
            "see that the node is connected and the control plane stores its events",
        );
    }
    Verdict::ok(evidence)
}
