//! The form of ids: a prefix, an underscore and a ULID in lower case.

/// Characters of a ULID: 128 bits in Crockford's base 32.
pub const ULID: usize = 26;
/// The digits of Crockford's base 32, in lower case: without i, l, o and u.
pub const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// Whether `id` is `<prefix>_` and a ULID in lower case.
pub fn is_ulid_of(prefix: &str, id: &str) -> bool {
    let rest = id.strip_prefix(prefix);
    rest.and_then(|rest| rest.strip_prefix('_'))
        .is_some_and(is_ulid)
}

/// Whether `text` is a ULID in lower case.
pub fn is_ulid(text: &str) -> bool {
    // 26 digits of 5 bits hold 130: the first may not pass 7.
    text.len() == ULID && is_digits(text) && text.as_bytes().first() <= Some(&b'7')
}

/// Whether `text` has no other characters than [`DIGITS`].
pub fn is_digits(text: &str) -> bool {
    text.bytes().all(|byte| DIGITS.contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_ulid_is_refused() {
        let good = "jt_01hf7yat00000000000000zzzz";
        assert!(is_ulid_of("jt", good));
        for bad in [
            "",
            "jt_",
            "jt",
            &good[..good.len() - 1],
            &format!("{good}0"),
            &good.to_uppercase(),
            &format!("node{}", &good[2..]),
            "jt_8zzzzzzzzzzzzzzzzzzzzzzzzz",
            "jt_0000000000000000000000000l",
        ] {
            assert!(!is_ulid_of("jt", bad), "{bad}");
        }
    }
}
