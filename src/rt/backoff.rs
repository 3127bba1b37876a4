//! How long to wait before trying again: exponential, with full jitter, so that ten thousand
//! machines that lost the same server do not come back together.
use std::time::Duration;

/// Waits between `floor` and a bound that doubles with each failure, up to `ceiling`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    floor: Duration,
    ceiling: Duration,
}

impl Backoff {
    /// Waits of `floor` at least and `ceiling` at most.
    pub const fn new(floor: Duration, ceiling: Duration) -> Self {
        Self { floor, ceiling }
    }

    /// The wait after `failures` failures in a row; `draw` is a random number.
    pub fn wait(self, failures: u32, draw: u64) -> Duration {
        let doubled = self
            .floor
            .saturating_mul(1_u32.checked_shl(failures).unwrap_or(u32::MAX));
        self.floor + share(doubled.min(self.ceiling).saturating_sub(self.floor), draw)
    }
}

/// A random share of `whole`, between nothing and all of it; `draw` is a random number.
pub fn share(whole: Duration, draw: u64) -> Duration {
    let whole = u64::try_from(whole.as_millis()).unwrap_or(u64::MAX);
    Duration::from_millis(draw.checked_rem(whole.saturating_add(1)).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));

    #[test]
    fn the_bound_doubles_up_to_the_ceiling_and_never_overflows() {
        for (failures, bound_ms) in [
            (0, 500),
            (1, 1000),
            (4, 8000),
            (6, 30_000),
            (31, 30_000),
            (u32::MAX, 30_000),
        ] {
            // The largest share: a draw one below a multiple of the width plus one.
            assert_eq!(
                BACKOFF.wait(failures, bound_ms - 500),
                Duration::from_millis(bound_ms),
                "{failures}"
            );
            assert_eq!(BACKOFF.wait(failures, 0), Duration::from_millis(500));
        }
    }

    #[test]
    fn waits_are_spread_over_the_whole_width() {
        let waits: Vec<_> = (0..1000_u64)
            .map(|n| BACKOFF.wait(10, n.wrapping_mul(0x9E37_79B9_7F4A_7C15)))
            .collect();
        for quarter in 0..4_u64 {
            let low = Duration::from_millis(500 + quarter * 7375);
            let inside = waits
                .iter()
                .filter(|wait| **wait >= low && **wait < low + Duration::from_millis(7375));
            assert!(inside.count() > 150);
        }
    }

    #[test]
    fn a_share_is_between_nothing_and_all() {
        assert_eq!(share(Duration::ZERO, u64::MAX), Duration::ZERO);
        assert!(share(Duration::from_secs(3), u64::MAX) <= Duration::from_secs(3));
    }
}
