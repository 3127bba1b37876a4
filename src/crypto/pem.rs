//! PEM (RFC 7468): labelled base64 blocks in a text. Text around blocks is skipped, as openssl
//! writes some there. Blank lines, other line lengths and CRLF are read; headers inside a block
//! (the old encrypted form) are refused.
use std::fmt;

use zeroize::Zeroizing;

use super::base64;

/// The longest text read.
const MAX_TEXT: usize = 1 << 20;

/// Why a text holds no such block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// It is longer than 1 MiB.
    TooLong,
    /// No block has the label asked for.
    Missing(&'static str),
    /// A block begins and does not end.
    Unfinished(&'static str),
    /// More than the one block asked for.
    Several(&'static str),
    /// What stands in the block is not base64.
    Base64(&'static str, base64::Error),
}

pub const CERTIFICATE: &str = "CERTIFICATE";
pub const PRIVATE_KEY: &str = "PRIVATE KEY";
pub const PUBLIC_KEY: &str = "PUBLIC KEY";

/// One block: `label` around `der`, in lines of 64. Wiped when dropped, as it may be a key.
pub fn encode(label: &str, der: &[u8]) -> Zeroizing<String> {
    let body = Zeroizing::new(base64::encode(der));
    let length = body.len() + body.len() / 64 + 2 * label.len() + 40;
    let mut out = Zeroizing::new(String::with_capacity(length));
    for part in ["-----BEGIN ", label, "-----\n"] {
        out.push_str(part);
    }
    let mut rest = body.as_str();
    while !rest.is_empty() {
        let (line, tail) = rest.split_at_checked(64).unwrap_or((rest, ""));
        out.push_str(line);
        out.push('\n');
        rest = tail;
    }
    for part in ["-----END ", label, "-----\n"] {
        out.push_str(part);
    }
    out
}

/// The one block with `label`.
///
/// # Errors
/// There is none or more than one; see [`Error`].
pub fn decode(text: &str, label: &'static str) -> Result<Zeroizing<Vec<u8>>, Error> {
    let mut blocks = Blocks::new(text, label)?;
    let block = blocks.next().ok_or(Error::Missing(label))??;
    match blocks.next() {
        None => Ok(block),
        Some(_) => Err(Error::Several(label)),
    }
}

/// All blocks with `label`, in order; at least one.
///
/// # Errors
/// There is none, or one of them is malformed; see [`Error`].
pub fn decode_all(text: &str, label: &'static str) -> Result<Vec<Vec<u8>>, Error> {
    let blocks = Blocks::new(text, label)?
        .map(|block| block.map(|mut der| std::mem::take(&mut *der)))
        .collect::<Result<Vec<_>, _>>()?;
    if blocks.is_empty() {
        Err(Error::Missing(label))
    } else {
        Ok(blocks)
    }
}

struct Blocks<'a> {
    lines: std::str::Lines<'a>,
    length: usize,
    label: &'static str,
}

impl<'a> Blocks<'a> {
    fn new(text: &'a str, label: &'static str) -> Result<Self, Error> {
        if text.len() > MAX_TEXT {
            return Err(Error::TooLong);
        }
        Ok(Self {
            lines: text.lines(),
            length: text.len(),
            label,
        })
    }

    fn is_boundary(&self, line: &str, kind: &str) -> bool {
        line.trim()
            .strip_prefix(kind)
            .and_then(|rest| rest.strip_suffix("-----"))
            .is_some_and(|label| label == self.label)
    }
}

impl Iterator for Blocks<'_> {
    type Item = Result<Zeroizing<Vec<u8>>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let line = self.lines.next()?;
            if self.is_boundary(line, "-----BEGIN ") {
                break;
            }
        }
        // Room for the whole rest, so that growing leaves no copy of a key behind.
        let mut body = Zeroizing::new(String::with_capacity(self.length));
        loop {
            match self.lines.next() {
                None => return Some(Err(Error::Unfinished(self.label))),
                Some(line) if self.is_boundary(line, "-----END ") => break,
                Some(line) if line.starts_with("-----") => {
                    return Some(Err(Error::Unfinished(self.label)));
                }
                Some(line) => body.push_str(line.trim()),
            }
        }
        self.length = self.length.saturating_sub(body.len());
        let der = base64::decode_secret(&body);
        Some(der.map_err(|error| Error::Base64(self.label, error)))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => f.write_str("longer than 1 MiB, which no PEM file here is"),
            Self::Missing(label) => write!(f, "no PEM block \"BEGIN {label}\""),
            Self::Unfinished(label) => write!(f, "the PEM block {label} has no end"),
            Self::Several(label) => write!(f, "more than one PEM block {label}"),
            Self::Base64(label, _) => write!(f, "the PEM block {label} is damaged"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Base64(_, error) => Some(error),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_of_any_length_reads_back() {
        for length in 0..200 {
            let der = vec![0xa5; length];
            let text = encode(CERTIFICATE, &der);
            assert_eq!(*decode(&text, CERTIFICATE).unwrap(), der);
            assert!(text.lines().all(|line| line.len() <= 64));
            assert_eq!(
                *decode(&text.replace('\n', "\r\n"), CERTIFICATE).unwrap(),
                der
            );
        }
    }

    #[test]
    fn a_chain_reads_in_order_with_text_around_it() {
        let text = format!(
            "subject=x\n{}\nissuer=y\n{}{}trailing",
            *encode(CERTIFICATE, b"one"),
            *encode(PRIVATE_KEY, b"other"),
            *encode(CERTIFICATE, b"two")
        );
        let chain = decode_all(&text, CERTIFICATE).unwrap();
        assert_eq!(chain, [b"one".to_vec(), b"two".to_vec()]);
        assert_eq!(*decode(&text, PRIVATE_KEY).unwrap(), b"other");
        assert_eq!(decode(&text, CERTIFICATE), Err(Error::Several(CERTIFICATE)));
    }

    #[test]
    fn what_is_not_a_block_is_refused() {
        let good = encode(CERTIFICATE, b"some bytes");
        assert_eq!(decode("", CERTIFICATE), Err(Error::Missing(CERTIFICATE)));
        assert_eq!(decode(&good, PRIVATE_KEY), Err(Error::Missing(PRIVATE_KEY)));
        let cut = &good[..good.len() - 10];
        assert_eq!(
            decode(cut, CERTIFICATE),
            Err(Error::Unfinished(CERTIFICATE))
        );
        let nested = good.replace("-----END", "-----BEGIN");
        assert_eq!(
            decode(&nested, CERTIFICATE),
            Err(Error::Unfinished(CERTIFICATE))
        );
        let header = good.replacen('\n', "\nProc-Type: 4,ENCRYPTED\n", 1);
        assert!(matches!(
            decode(&header, CERTIFICATE),
            Err(Error::Base64(..))
        ));
        assert_eq!(
            decode(&"x".repeat(MAX_TEXT + 1), CERTIFICATE),
            Err(Error::TooLong)
        );
    }
}
