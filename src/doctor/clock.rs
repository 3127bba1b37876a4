//! Whether this host's clock is right, as far as that can be known.
use super::{Seen, Verdict};
use crate::sys::clock;
use crate::sys::utc::Utc;

/// A clock that is off by less is right enough.
const CLOSE_MS: u64 = 60_000;

const SET: &str = "set this host's clock, and keep it set: timedatectl set-ntp true, or chrony";

pub(super) fn run(seen: &mut Seen<'_>) -> Verdict {
    let now_ms = clock::wall_ms();
    let by_gateway = seen.gateway_s.map(|seconds| seconds.saturating_mul(1000));
    judge(
        now_ms,
        seen.offset_ms,
        by_gateway,
        seen.signed_ms.max(clock::build_time_ms()),
        clock::is_synchronised(),
    )
}

fn judge(
    now_ms: u64,
    offset_ms: Option<i64>,
    gateway_ms: Option<u64>,
    known_ms: u64,
    synchronised: bool,
) -> Verdict {
    let now = Utc::from_ms(now_ms);
    let signed = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX);
    let by_gateway = gateway_ms.map(|ms| (signed(ms).saturating_sub(signed(now_ms)), "gateway"));
    let by_session = offset_ms.map(|offset| (offset, "control plane"));
    if let Some((offset, whose)) = by_session.or(by_gateway) {
        let by = offset.unsigned_abs();
        if by < CLOSE_MS {
            return Verdict::ok(format!("{now}, as the {whose} has it"));
        }
        let way = if offset > 0 { "behind" } else { "ahead of" };
        let evidence = format!("{now} is {} s {way} the {whose}'s time", by / 1000);
        return Verdict::warn(evidence, SET);
    }
    if now_ms.saturating_add(CLOSE_MS) < known_ms {
        let known = Utc::from_ms(known_ms);
        let evidence = format!("{now} is before {known}, which has been");
        return Verdict::warn(evidence, SET);
    }
    if synchronised {
        Verdict::ok(format!("{now}, and the kernel says that it is kept set"))
    } else {
        Verdict::warn(
            format!(
                "{now}; there is nothing to compare with, and the kernel says that nothing keeps it set"
            ),
            SET,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn a_wrong_clock_is_told_by_whatever_is_known() {
        const NOW: u64 = 1_790_000_000_000;
        for (offset, gateway, known, synchronised, level, part) in [
            (Some(59_999), None, 0, false, Level::Ok, "control plane"),
            (Some(90_000), Some(NOW), 0, true, Level::Warn, "90 s behind"),
            (Some(-90_000), None, 0, true, Level::Warn, "90 s ahead"),
            (None, None, NOW - 5, true, Level::Ok, "kept set"),
            (
                None,
                None,
                NOW - 5,
                false,
                Level::Warn,
                "nothing to compare",
            ),
            (None, Some(NOW + 900), 0, false, Level::Ok, "gateway"),
            (
                None,
                Some(NOW - 90_000),
                0,
                true,
                Level::Warn,
                "90 s ahead of the gateway",
            ),
            (
                None,
                None,
                NOW + 3_600_000,
                true,
                Level::Warn,
                "which has been",
            ),
        ] {
            let verdict = judge(NOW, offset, gateway, known, synchronised);
            assert_eq!(verdict.level, level, "{verdict:?}");
            assert!(verdict.evidence.contains(part), "{verdict:?}");
        }
    }
}
