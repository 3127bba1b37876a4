//! Memory: what the kernel has of it, in bytes (MemTotal; what firmware and kernel keep is not in it).
use super::tree::Tree;
use super::{Area, Problems};

const MEMINFO: usize = 1024;

/// MemTotal of `/proc/meminfo`, in bytes.
pub fn total(bytes: &[u8]) -> Option<u64> {
    let text = String::from_utf8_lossy(bytes);
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let (number, unit) = line.trim().split_once(' ')?;
    let number: u64 = number.parse().ok()?;
    (unit.trim() == "kB").then(|| number.saturating_mul(1024))
}

pub(super) fn read(tree: &Tree, problems: &mut Problems) -> u64 {
    match tree.bytes("proc/meminfo", MEMINFO) {
        Ok(bytes) => total(&bytes).unwrap_or_else(|| {
            problems.say(Area::Memory, "/proc/meminfo has no MemTotal");
            0
        }),
        Err(error) => {
            problems.unread(Area::Memory, "/proc/meminfo", &error);
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_in_bytes_and_nonsense_is_none() {
        let real = b"MemTotal:        8146880 kB\nMemFree:         6311544 kB\n";
        assert_eq!(total(real), Some(8_146_880 * 1024));
        assert_eq!(total(b"MemTotal: 18446744073709551615 kB"), Some(u64::MAX));
        for bytes in [
            &b""[..],
            b"MemTotal:",
            b"MemTotal: 1",
            b"MemTotal: 1 MB",
            b"MemTotal: -1 kB",
            b"MemFree: 1 kB",
            b"\xff\xfe",
        ] {
            assert_eq!(total(bytes), None);
        }
    }
}
