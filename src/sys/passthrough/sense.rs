//! What a SCSI disk says of a command that did not simply succeed: sense data (SPC-5 4.4). Pure.

/// What sense data says: key and additional code.
pub fn sense(bytes: &[u8]) -> Option<(u8, [u8; 2])> {
    let at = |at: usize| bytes.get(at).copied();
    match at(0)? & 0x7f {
        0x70 | 0x71 => Some((at(2)? & 15, [at(12).unwrap_or(0), at(13).unwrap_or(0)])),
        0x72 | 0x73 => Some((at(1)? & 15, [at(2)?, at(3)?])),
        _ => None,
    }
}

/// Sense keys, from 0 on.
const KEYS: [&str; 9] = [
    "nothing",
    "recovered error",
    "not ready",
    "medium error",
    "hardware error",
    "illegal request",
    "unit attention",
    "data protected",
    "blank",
];
/// It does not know the command, or what is in it.
pub const ILLEGAL_REQUEST: u8 = 5;

/// Sense data for people.
pub fn sense_text(bytes: &[u8]) -> String {
    match sense(bytes) {
        None => "no reason given".to_owned(),
        Some((key, additional)) => {
            let name = KEYS.get(usize::from(key)).copied().unwrap_or("aborted");
            let code = format!("{:#x}", u16::from_be_bytes(additional));
            [name, " (", &code, ")"].concat()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sense_data_is_read_in_both_forms() {
        let fixed = [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x20, 0];
        assert_eq!(sense(&fixed), Some((ILLEGAL_REQUEST, [0x20, 0])));
        assert_eq!(sense(&[0x72, 2, 4, 1]), Some((2, [4, 1])));
        assert_eq!(sense_text(&[0x72, 2, 4, 1]), "not ready (0x401)");
        assert_eq!(sense_text(&fixed), "illegal request (0x2000)");
        for bytes in [&[][..], &[0x70], &[0x72, 1], &[0x12, 1, 2, 3]] {
            assert_eq!(sense(bytes), None);
        }
        assert_eq!(sense_text(&[]), "no reason given");
    }
}
