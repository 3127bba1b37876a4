//! Files that were set aside, or that a crash left.
use super::{Seen, Verdict, look_again};
use crate::sys::fs::entries;

/// Names that are told; of more only the count.
const TOLD: usize = 8;

pub(super) fn run(seen: &mut Seen<'_>) -> Verdict {
    let shown = seen.data_dir.display();
    let entries = match entries(&seen.data_dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Verdict::ok(format!("none: {shown} is missing"));
        }
        Err(error) => return Verdict::unseen(&format!("{shown}: {error}"), look_again(&error)),
    };
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| is_leftover(name))
        .collect();
    if names.is_empty() {
        return Verdict::ok(format!("none in {shown}"));
    }
    names.sort_unstable();
    let more = names.len().saturating_sub(TOLD);
    names.truncate(TOLD);
    let mut evidence = format!("in {shown}: {}", names.join(", "));
    if more > 0 {
        evidence.push_str(&format!(" and {more} more"));
    }
    Verdict::warn(
        evidence,
        "look at them, then remove them; a .new file is of a write that a crash cut off",
    )
}

/// `node.key.next` is a renewal under way, and none.
fn is_leftover(name: &str) -> bool {
    name.ends_with(".new")
        || [".corrupt-", ".reset-", ".old-"]
            .iter()
            .any(|part| name.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_set_aside_is_told_from_what_is_in_use() {
        for name in [
            "identity.json.new",
            "journal.db.corrupt-20261130T000000Z",
            "node.key.reset-20261130T000000Z-2",
            "journal.db.old-20261130T000000Z",
        ] {
            assert!(is_leftover(name), "{name}");
        }
        for name in [
            "identity.json",
            "node.key",
            "node.key.next",
            "journal.db",
            "outputs",
        ] {
            assert!(!is_leftover(name), "{name}");
        }
    }
}
