//! Random bytes from the kernel's generator, for identifiers and jitter. It waits until the
//! generator is seeded, so that a machine at its first boot makes no guessable key.
use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// Fills `out` with random bytes.
///
/// # Errors
/// Only when the kernel has no `getrandom` or forbids it.
pub fn fill(out: &mut [u8]) -> io::Result<()> {
    let mut rest = out;
    while !rest.is_empty() {
        match getrandom(&mut *rest, GetRandomFlags::empty()) {
            Ok(count) => rest = rest.get_mut(count..).unwrap_or_default(),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// `N` random bytes.
///
/// # Errors
/// As [`fill`].
pub fn bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut out = [0; N];
    fill(&mut out)?;
    Ok(out)
}

/// A random number in `0..bound` (0 when `bound` is 0), for jitter: its bias, below 2^-32 for
/// bounds under 2^32, matters to nothing else.
///
/// # Errors
/// As [`fill`].
pub fn below(bound: u64) -> io::Result<u64> {
    let draw = u64::from_le_bytes(bytes()?);
    Ok(draw.checked_rem(bound).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_draws_differ_and_long_buffers_are_filled_to_the_end() {
        assert_ne!(bytes::<16>().unwrap(), bytes::<16>().unwrap());
        let mut long = vec![0; 100_000];
        fill(&mut long).unwrap();
        assert!(long[99_900..].iter().any(|byte| *byte != 0));
    }

    #[test]
    fn a_draw_stays_below_its_bound() {
        for bound in [1, 2, 7, u64::MAX] {
            assert!(below(bound).unwrap() < bound);
        }
        assert_eq!(below(0).unwrap(), 0);
    }
}
