//! When a certificate is renewed. Pure: the time, its validity and randomness come in.
use std::time::Duration;

use crate::rt::backoff::{Backoff, share};

/// A look at the clock at least so often: a host's clock may be set meanwhile.
const LOOK: Duration = Duration::from_secs(12 * 3600);

/// Passing trouble.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(300));

/// Somebody said no: asked again after this and up to as much more.
const REFUSED: (Duration, Duration) = (Duration::from_secs(300), Duration::from_secs(3600));

/// How a try ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// It may pass: the network, the gateway, a full disk.
    Passing,
    /// It will not pass by itself soon.
    Refused,
}

/// From when to when a certificate is valid, Unix time in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Validity {
    pub(super) from_ms: u64,
    pub(super) until_ms: u64,
}

impl Validity {
    /// When it is to be renewed: at two thirds of its life, a twentieth of it earlier or later, so that
    /// nodes that joined together do not come together.
    pub(super) fn due_ms(self, draw: u64) -> u64 {
        let life = self.until_ms.saturating_sub(self.from_ms);
        let spread = Duration::from_millis(life / 10);
        let jitter = u64::try_from(share(spread, draw).as_millis()).unwrap_or(0);
        let early = (life / 3).saturating_mul(2).saturating_sub(life / 20);
        self.from_ms.saturating_add(early).saturating_add(jitter)
    }

    /// How long to wait before the next look, at `now_ms`; nothing: it is due.
    pub(super) fn wait(self, now_ms: u64, draw: u64) -> Duration {
        Duration::from_millis(self.due_ms(draw).saturating_sub(now_ms)).min(LOOK)
    }

    /// How long to wait after `failures` tries in a row that failed, at `now_ms`.
    pub(super) fn again(self, trouble: Trouble, failures: u32, now_ms: u64, draw: u64) -> Duration {
        let left = Duration::from_millis(self.until_ms.saturating_sub(now_ms));
        match trouble {
            // What is left of a short life is not slept through.
            Trouble::Passing if !left.is_zero() => BACKOFF
                .wait(failures, draw)
                .min((left / 4).max(Duration::from_secs(1))),
            Trouble::Passing => BACKOFF.wait(failures, draw),
            Trouble::Refused => {
                let base = (left / 16).clamp(REFUSED.0, REFUSED.1);
                base + share(base, draw)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400_000;
    const MONTH: Validity = Validity {
        from_ms: 0,
        until_ms: 30 * DAY,
    };

    fn days(days: u64) -> Duration {
        Duration::from_millis(days * DAY)
    }

    #[test]
    fn a_certificate_is_renewed_at_two_thirds_of_its_life_with_jitter() {
        let earliest = MONTH.due_ms(0);
        assert_eq!(earliest, 20 * DAY - 36 * 3_600_000);
        let latest = MONTH.due_ms(3 * DAY);
        assert_eq!(latest, 20 * DAY + 36 * 3_600_000);
        let due: Vec<u64> = (0..1000_u64)
            .map(|n| MONTH.due_ms(n.wrapping_mul(0x9E37_79B9_7F4A_7C15)))
            .collect();
        assert!(due.iter().all(|at| (earliest..=latest).contains(at)));
        for quarter in 0..4 {
            let low = earliest + quarter * (latest - earliest) / 4;
            let inside = |at: &&u64| (low..low + (latest - earliest) / 4).contains(*at);
            assert!(due.iter().filter(inside).count() > 150, "{quarter}");
        }
    }

    #[test]
    fn the_wait_ends_when_it_is_due_and_looks_at_the_clock_twice_a_day() {
        for (now, wait) in [
            (0, LOOK),
            (18 * DAY, LOOK),
            (18 * DAY + 10 * 3_600_000, Duration::from_secs(2 * 3600)),
            (19 * DAY, Duration::ZERO),
            (31 * DAY, Duration::ZERO),
            (u64::MAX, Duration::ZERO),
        ] {
            assert_eq!(MONTH.wait(now, 0), wait, "{now}");
        }
    }

    #[test]
    fn trouble_that_passes_is_tried_again_soon_and_sooner_near_the_end() {
        let most = |failures, now| {
            (0..200_000)
                .step_by(997)
                .map(|draw| MONTH.again(Trouble::Passing, failures, now, draw))
                .max()
        };
        assert!(most(1, 20 * DAY) <= Some(Duration::from_secs(1)));
        assert!(most(30, 20 * DAY) > Some(Duration::from_secs(190)));
        // A minute is left.
        assert!(most(30, 30 * DAY - 60_000) <= Some(Duration::from_secs(15)));
        assert!(most(30, 30 * DAY - 1) <= Some(Duration::from_secs(1)));
        // It is over: there is no hurry any more, and no giving up.
        assert!(most(30, 31 * DAY) > Some(Duration::from_secs(190)));
        assert!(most(u32::MAX, 31 * DAY) <= Some(Duration::from_secs(300)));
    }

    #[test]
    fn a_refusal_is_asked_about_again_slowly() {
        for (now, least) in [
            (0, Duration::from_secs(3600)),
            (29 * DAY, Duration::from_secs(86_400 / 16)),
            (30 * DAY, Duration::from_secs(300)),
            (90 * DAY, Duration::from_secs(300)),
        ] {
            let least = least.min(Duration::from_secs(3600));
            assert_eq!(MONTH.again(Trouble::Refused, 1, now, 0), least);
            let most = u64::try_from(least.as_millis()).unwrap_or(0);
            assert_eq!(MONTH.again(Trouble::Refused, 9, now, most), least * 2);
        }
        assert!(days(1) > LOOK);
    }

    #[test]
    fn a_validity_without_sense_is_due_and_never_overflows() {
        let odd = Validity {
            from_ms: u64::MAX,
            until_ms: 0,
        };
        assert_eq!(odd.wait(5, 7), LOOK);
        assert_eq!(odd.again(Trouble::Refused, 1, 5, 0), REFUSED.0);
    }
}
