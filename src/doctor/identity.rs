//! Whether this machine has joined, as whom, and for how long that is good.
use super::{Seen, Verdict};
use crate::status::{Identity, JOIN_AGAIN};
use crate::sys::clock;
use crate::sys::utc::Utc;

pub(super) fn run(seen: &mut Seen<'_>) -> Verdict {
    let (identity, signed_ms) = Identity::on_disk(&seen.data_dir);
    seen.signed_ms = signed_ms;
    let until = Utc::from_seconds(identity.not_after);
    match identity.state {
        "joined" => {
            seen.joined = true;
            seen.node_id.clone_from(&identity.node_id);
            let node = &identity.node_id;
            if identity.expired {
                let evidence = format!("the certificate of {node} expired on {until}");
                let remedy = format!(
                    "let bcd node run: it asks for a new one by itself; where it is refused, {JOIN_AGAIN}"
                );
                return Verdict::fail(evidence, remedy);
            }
            let now = i64::try_from(clock::trusted_ms(signed_ms) / 1000).unwrap_or(i64::MAX);
            let evidence = format!("{node}, valid until {until}");
            if is_late(identity.not_before, identity.not_after, now) {
                return Verdict::warn(
                    evidence + ", and should have been renewed by now",
                    "see that bcd node runs; identity.renewal_failed in its log says why it gets no new certificate",
                );
            }
            Verdict::ok(evidence)
        }
        "not joined" => Verdict::warn(identity.problem, identity.remedy),
        "damaged" => {
            let where_ = seen.data_dir.display();
            Verdict::fail(format!("{} in {where_}", identity.problem), identity.remedy)
        }
        _ if identity.is_hidden => Verdict::unseen(&identity.problem, &identity.remedy),
        _ => Verdict::fail(identity.problem, identity.remedy),
    }
}

/// Past five sixths of its life: it is renewed at two thirds.
fn is_late(not_before: i64, not_after: i64, now: i64) -> bool {
    let life = not_after.saturating_sub(not_before);
    now > not_after.saturating_sub(life / 6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_late_in_its_life_is_noticed() {
        assert!(!is_late(0, 600, 400));
        assert!(!is_late(0, 600, 500));
        assert!(is_late(0, 600, 501));
    }
}
