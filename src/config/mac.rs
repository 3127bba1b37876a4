//! Ethernet addresses as boot loaders, operators and the kernel write them.
use std::fmt;

/// The address of one network card: neither a group's nor all zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Reads `52:54:00:12:34:56`, with dashes too, and PXELINUX's `01-52-54-00-12-34-56`, whose first
    /// part is the type of hardware. `None` for everything else.
    pub fn parse(text: &str) -> Option<Self> {
        let text = match text.len() {
            20 => text.strip_prefix("01-").or(text.strip_prefix("01:"))?,
            _ => text,
        };
        let mut bytes = [0; 6];
        let mut parts = text.split(['-', ':']);
        for byte in &mut bytes {
            let part = parts.next()?;
            let fine = part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit());
            *byte = u8::from_str_radix(part, 16).ok().filter(|_| fine)?;
        }
        Self::from_bytes(&bytes).filter(|_| parts.next().is_none())
    }

    /// The address of these bytes, if they are one.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes = <[u8; 6]>::try_from(bytes).ok()?;
        let [first, ..] = bytes;
        (first & 1 == 0 && bytes != [0; 6]).then_some(Self(bytes))
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_address_is_read_in_every_spelling_and_written_in_one() {
        for text in [
            "52:54:00:12:34:ab",
            "52-54-00-12-34-AB",
            "01-52-54-00-12-34-ab",
            "01:52:54:00:12:34:ab",
        ] {
            let mac = Mac::parse(text).unwrap();
            assert_eq!(mac.to_string(), "52:54:00:12:34:ab", "{text}");
        }
    }

    #[test]
    fn what_is_no_address_of_a_card_is_none() {
        for text in [
            "",
            "52:54:00:12:34",
            "52:54:00:12:34:ab:cd",
            "02-52-54-00-12-34-ab",
            "5:254:00:12:34:ab",
            "+2:54:00:12:34:ab",
            "00:00:00:00:00:00",
            "01:00:5e:00:00:01",
            "ff:ff:ff:ff:ff:ff",
            "525400123456",
            "ää:54:00:12:34:ab",
        ] {
            assert_eq!(Mac::parse(text), None, "{text}");
        }
        assert_eq!(Mac::from_bytes(&[2, 0, 0, 0, 0]), None);
    }
}
