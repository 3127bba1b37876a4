//! Ids: a prefix, an underscore and a ULID in lower case (26 characters of Crockford's base 32), and
//! the ids operators choose themselves for pools and sites.

pub use bcd::attest::ids::is_ulid_of;
use bcd::attest::ids::{DIGITS, ULID};
use ring::rand::{SecureRandom, SystemRandom};

/// A new id, `<prefix>_<ulid>`; `now_ms` is Unix time and gives the ULID its order.
///
/// # Panics
/// When the kernel has no randomness to give, without which no key or token could be made either.
pub fn new(prefix: &str, now_ms: i64) -> String {
    let mut random = [0u8; 10];
    fill_random(&mut random);
    let mut value = u128::from(now_ms.max(0).cast_unsigned() & 0xffff_ffff_ffff) << 80;
    for (index, byte) in random.iter().enumerate() {
        value |= u128::from(*byte) << (8 * index);
    }
    let mut id = String::with_capacity(prefix.len() + 1 + ULID);
    id.push_str(prefix);
    id.push('_');
    for place in (0..ULID).rev() {
        let digit = usize::try_from((value >> (5 * place)) & 31).unwrap_or(0);
        id.push(char::from(DIGITS[digit]));
    }
    id
}

/// Fills `bytes` from the kernel's generator.
///
/// # Panics
/// When it has none to give.
pub fn fill_random(bytes: &mut [u8]) {
    #[allow(clippy::expect_used)]
    SystemRandom::new()
        .fill(bytes)
        .expect("the kernel gives no randomness");
}

/// Whether `id` may name a pool or a site: letters, digits, `.`, `_`, `-`, starting with a letter or a
/// digit, at most 128 characters.
pub fn is_chosen(id: &str) -> bool {
    id.len() <= 128
        && id.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric())
        && id
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_a_lower_case_ulid_that_sorts_by_time() {
        let early = new("node", 1_700_000_000_000);
        let late = new("node", 1_700_000_000_001);
        assert!(is_ulid_of("node", &early), "{early}");
        assert!(early < late);
        assert_eq!(early.len(), "node_".len() + ULID);
        // The time's own digits: 1700000000000 ms in Crockford's base 32.
        assert!(early.starts_with("node_01hf7yat00"), "{early}");
        assert_ne!(new("jt", 0), new("jt", 0));
    }

    #[test]
    fn chosen_ids_are_plain() {
        for good in ["a", "fsn1", "pool_01", "eu-west.1", "9"] {
            assert!(is_chosen(good), "{good}");
        }
        for bad in ["", "-a", ".a", "a b", "a/b", "ä", "a\n", &"x".repeat(129)] {
            assert!(!is_chosen(bad), "{bad}");
        }
    }
}
