//! A command's id: `cmd_` and a ULID in lower case, held as the number it is.
use std::fmt;

const PREFIX: &str = "cmd_";
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// Digits of 5 bits each: 130 bits, of which the first digit gives only 3.
const DIGITS: usize = 26;

/// The id of a command. Its text is a file's name without further checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id(u128);

impl Id {
    /// `None` when `text` has another form.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(PREFIX)?.as_bytes();
        if digits.len() != DIGITS || *digits.first()? > b'7' {
            return None;
        }
        let mut value = 0_u128;
        for digit in digits {
            let digit = ALPHABET.iter().position(|known| known == digit)?;
            value = value << 5 | u128::try_from(digit).ok()?;
        }
        Some(Self(value))
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        for place in (0..DIGITS).rev() {
            let digit = usize::try_from(self.0 >> (5 * place) & 31).unwrap_or(0);
            let digit = ALPHABET.get(digit).copied().unwrap_or(b'0');
            fmt::Write::write_char(f, char::from(digit))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_id_is_the_text_it_was_read_from() {
        for text in [
            "cmd_00000000000000000000000000",
            "cmd_7zzzzzzzzzzzzzzzzzzzzzzzzz",
            "cmd_01kb7w3x9qn5v8m2r6t4y0sdfh",
        ] {
            assert_eq!(Id::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn every_other_form_is_refused() {
        for text in [
            "",
            "cmd_",
            "cmd_01kb7w3x9qn5v8m2r6t4y0sdf",
            "cmd_01kb7w3x9qn5v8m2r6t4y0sdfhh",
            "cmd_81kb7w3x9qn5v8m2r6t4y0sdfh",
            "cmd_01KB7W3X9QN5V8M2R6T4Y0SDFH",
            "cmd_01kb7w3x9qn5v8m2r6t4y0sdfi",
            "cmd_../../../../../etc/passwd0",
            "job_01kb7w3x9qn5v8m2r6t4y0sdfh",
            " cmd_01kb7w3x9qn5v8m2r6t4y0sdfh",
            "cmd_01kb7w3x9qn5v8m2r6t4y0sdf\u{e9}",
        ] {
            assert_eq!(Id::parse(text), None, "{text}");
        }
    }
}
