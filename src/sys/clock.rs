//! Clocks. Timers use [`monotonic`] alone; the wall clock is for showing to people and, through
//! [`trusted_ms`], for judging certificates on machines whose clock is wrong.
use std::io;
use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};

/// The host's clock, Unix time in milliseconds; 0 when it stands before 1970.
pub fn wall_ms() -> u64 {
    milliseconds(clock_gettime(ClockId::Realtime))
}

/// The host's clock, or one that stands apart from it: what a simulated node goes by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wall {
    /// How far it is ahead of the host's, in milliseconds.
    pub ahead_ms: i64,
}

impl Wall {
    /// As [`wall_ms`].
    pub fn ms(self) -> u64 {
        wall_ms().saturating_add_signed(self.ahead_ms)
    }

    /// As [`trusted_ms`].
    pub fn trusted_ms(self, server_time_ms: u64) -> u64 {
        latest_credible(self.ms(), server_time_ms.max(build_time_ms()))
    }
}

/// Time since some fixed instant of this boot; never goes back, and stands still while the
/// machine is suspended.
pub fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(
        u64::try_from(now.tv_sec).unwrap_or(0),
        u32::try_from(now.tv_nsec).unwrap_or(0),
    )
}

/// Whether something keeps the host's clock set, by the kernel's word.
pub fn is_synchronised() -> bool {
    // SAFETY: all zeros is a value of timex, whose fields are numbers; with no modes it is only filled.
    let state = unsafe {
        let mut timex: libc::timex = std::mem::zeroed();
        libc::adjtimex(&mut timex)
    };
    (0..libc::TIME_ERROR).contains(&state)
}

/// When this program was built, Unix time in milliseconds; 0 when the build did not say.
pub const fn build_time_ms() -> u64 {
    match option_env!("BCD_BUILD_TIME") {
        Some(seconds) => decimal(seconds.as_bytes()).saturating_mul(1000),
        None => 0,
    }
}

/// The time certificates are judged by, Unix time in milliseconds: the latest of the host's
/// clock, the last time a server's signed answer gave (`server_time_ms`, 0 for none), and the
/// build time. A dead clock cannot stop a join, and one that jumped back revives nothing expired.
/// A clock more than ten years past the other two is as wrong as a dead one, and left out.
pub fn trusted_ms(server_time_ms: u64) -> u64 {
    Wall::default().trusted_ms(server_time_ms)
}

fn latest_credible(wall_ms: u64, known_ms: u64) -> u64 {
    const TEN_YEARS_MS: u64 = 3653 * 86_400_000;
    if known_ms > 0 && wall_ms > known_ms.saturating_add(TEN_YEARS_MS) {
        known_ms
    } else {
        wall_ms.max(known_ms)
    }
}

/// The kernel's id of this boot, a lower-case UUID.
///
/// # Errors
/// `/proc` is not mounted, or holds something else.
pub fn boot_id() -> io::Result<String> {
    #[cfg(feature = "fakehw")]
    if let Ok(id) = std::env::var("BCD_FAKEHW_BOOT_ID") {
        return Ok(id);
    }
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let id = text.trim_end();
    let plausible = id.len() == 36 && id.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    if plausible {
        Ok(id.to_owned())
    } else {
        Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "not a boot id: /proc/sys/kernel/random/boot_id",
        ))
    }
}

fn milliseconds(time: Timespec) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanoseconds = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds
        .saturating_mul(1000)
        .saturating_add(nanoseconds / 1_000_000)
}

/// Digits to a number, stopping at the first that is none.
const fn decimal(digits: &[u8]) -> u64 {
    let mut value = 0_u64;
    let mut rest = digits;
    while let [digit @ b'0'..=b'9', tail @ ..] = rest {
        value = value
            .saturating_mul(10)
            .saturating_add((*digit - b'0') as u64);
        rest = tail;
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn monotonic_time_never_goes_back() {
        let first = monotonic();
        assert!(monotonic() >= first);
    }

    #[test]
    fn trusted_time_is_the_latest_of_its_three_sources() {
        assert!(trusted_ms(0) >= build_time_ms());
        assert!(trusted_ms(0) >= 1_600_000_000_000);
        assert_eq!(trusted_ms(u64::MAX), u64::MAX);
    }

    #[test]
    fn a_clock_decades_off_either_way_is_left_out() {
        let known = 1_790_000_000_000;
        let year = 365 * 86_400_000;
        assert_eq!(latest_credible(0, known), known);
        assert_eq!(latest_credible(known + 9 * year, known), known + 9 * year);
        assert_eq!(latest_credible(known + 30 * year, known), known);
        assert_eq!(latest_credible(u64::MAX, known), known);
        assert_eq!(latest_credible(known, 0), known);
    }

    #[test]
    fn a_clock_before_1970_reads_as_zero() {
        let time = Timespec {
            tv_sec: -5,
            tv_nsec: 0,
        };
        assert_eq!(milliseconds(time), 0);
    }

    #[test]
    fn the_build_stamp_reads_as_decimal_seconds() {
        assert_eq!(decimal(b"1764000000"), 1_764_000_000);
        assert_eq!(decimal(b""), 0);
        assert_eq!(decimal(b"12x"), 12);
    }

    #[test]
    fn the_boot_id_is_the_same_each_time() {
        assert_eq!(boot_id().unwrap(), boot_id().unwrap());
    }
}
