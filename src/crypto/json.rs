//! A JSON text is checked whole (RFC 8259: syntax, size, depth, repeated names in one object)
//! before the lenient JSON reader sees it: that one takes comments, stops at the first value, and
//! aborts on some malformed texts. What passes here it reads as any other JSON reader would.
use std::fmt;

pub use writer::Writer;

mod writer;

/// Why a text is refused; offsets are bytes from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// Longer than the caller takes.
    TooLong { max: usize },
    /// Not UTF-8.
    Utf8,
    /// Not JSON from this byte on.
    Syntax { at: usize },
    /// Nested deeper than the caller takes.
    Depth { max: usize },
    /// An object has the name that ends here twice.
    Repeated { at: usize },
}

/// Checks that `bytes` are one JSON value, at most `max_length` bytes long and nested at most
/// `max_depth` deep, and gives them as text.
///
/// # Errors
/// See [`Error`].
pub fn check(bytes: &[u8], max_length: usize, max_depth: usize) -> Result<&str, Error> {
    if bytes.len() > max_length {
        return Err(Error::TooLong { max: max_length });
    }
    let text = std::str::from_utf8(bytes).map_err(|_| Error::Utf8)?;
    let mut scan = Scan {
        bytes,
        at: 0,
        depth: 0,
        max_depth,
    };
    scan.blanks();
    scan.value()?;
    scan.blanks();
    if scan.at == bytes.len() {
        Ok(text)
    } else {
        Err(scan.syntax())
    }
}

/// `text` as a JSON string, quoted.
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\0'..='\x1f' | '\x7f'..='\u{9f}' => {
                out.push_str("\\u00");
                out.push_str(&super::digest::hex(&[c as u8]));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
    depth: usize,
    max_depth: usize,
}

impl<'a> Scan<'a> {
    fn syntax(&self) -> Error {
        Error::Syntax { at: self.at }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn take(&mut self, wanted: u8) -> bool {
        let is = self.peek() == Some(wanted);
        self.at += usize::from(is);
        is
    }

    fn expect(&mut self, wanted: u8) -> Result<(), Error> {
        if self.take(wanted) {
            Ok(())
        } else {
            Err(self.syntax())
        }
    }

    fn blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn value(&mut self) -> Result<(), Error> {
        match self.peek() {
            Some(b'{') => self.nested(Self::object),
            Some(b'[') => self.nested(Self::array),
            Some(b'"') => self.string().map(drop),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.word(b"true"),
            Some(b'f') => self.word(b"false"),
            Some(b'n') => self.word(b"null"),
            _ => Err(self.syntax()),
        }
    }

    fn nested(&mut self, body: fn(&mut Self) -> Result<(), Error>) -> Result<(), Error> {
        if self.depth == self.max_depth {
            return Err(Error::Depth {
                max: self.max_depth,
            });
        }
        self.depth += 1;
        self.at += 1;
        self.blanks();
        body(self)?;
        self.depth -= 1;
        Ok(())
    }

    fn object(&mut self) -> Result<(), Error> {
        let mut names: Vec<&'a [u8]> = Vec::new();
        if self.take(b'}') {
            return Ok(());
        }
        loop {
            names.push(self.string()?);
            self.blanks();
            self.expect(b':')?;
            self.blanks();
            self.value()?;
            self.blanks();
            if self.take(b',') {
                self.blanks();
                continue;
            }
            self.expect(b'}')?;
            names.sort_unstable();
            let repeated = names.windows(2).any(|pair| pair.first() == pair.last());
            return if repeated {
                Err(Error::Repeated { at: self.at })
            } else {
                Ok(())
            };
        }
    }

    fn array(&mut self) -> Result<(), Error> {
        if self.take(b']') {
            return Ok(());
        }
        loop {
            self.value()?;
            self.blanks();
            if !self.take(b',') {
                return self.expect(b']');
            }
            self.blanks();
        }
    }

    /// What stands between the quotes, as written. Two spellings of one name are not noticed as
    /// a repetition: they differ for the reader behind this one in nothing but which it keeps.
    fn string(&mut self) -> Result<&'a [u8], Error> {
        self.expect(b'"')?;
        let start = self.at;
        loop {
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => self.escape()?,
                Some(0..=0x1f) | None => return Err(self.syntax()),
                Some(_) => self.at += 1,
            }
        }
        let text = self.bytes.get(start..self.at).unwrap_or_default();
        self.at += 1;
        Ok(text)
    }

    fn escape(&mut self) -> Result<(), Error> {
        self.at += 1;
        match self.peek() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.at += 1;
                Ok(())
            }
            Some(b'u') => {
                let unit = self.unit()?;
                match unit {
                    0xd800..=0xdbff => {
                        self.expect(b'\\')?;
                        match self.unit()? {
                            0xdc00..=0xdfff => Ok(()),
                            _ => Err(self.syntax()),
                        }
                    }
                    0xdc00..=0xdfff => Err(self.syntax()),
                    _ => Ok(()),
                }
            }
            _ => Err(self.syntax()),
        }
    }

    /// The `uXXXX` of an escape.
    fn unit(&mut self) -> Result<u32, Error> {
        self.expect(b'u')?;
        let mut unit = 0;
        for _ in 0..4 {
            let digit = self.peek().and_then(|byte| char::from(byte).to_digit(16));
            unit = unit * 16 + digit.ok_or(self.syntax())?;
            self.at += 1;
        }
        Ok(unit)
    }

    fn number(&mut self) -> Result<(), Error> {
        self.take(b'-');
        if !self.take(b'0') {
            self.digits()?;
        }
        if self.take(b'.') {
            self.digits()?;
        }
        if self.take(b'e') || self.take(b'E') {
            if !self.take(b'+') {
                self.take(b'-');
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), Error> {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at > start {
            Ok(())
        } else {
            Err(self.syntax())
        }
    }

    fn word(&mut self, word: &[u8]) -> Result<(), Error> {
        for byte in word {
            self.expect(*byte)?;
        }
        Ok(())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { max } => write!(f, "the JSON is longer than {max} bytes"),
            Self::Utf8 => f.write_str("the JSON is not UTF-8"),
            Self::Syntax { at } => write!(f, "not JSON, at byte {}", at + 1),
            Self::Depth { max } => write!(f, "the JSON is nested deeper than {max}"),
            Self::Repeated { at } => {
                write!(
                    f,
                    "a name stands twice in the JSON object that ends at byte {at}"
                )
            }
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_json(text: &str) -> bool {
        check(text.as_bytes(), 1000, 4).is_ok()
    }

    #[test]
    fn json_passes() {
        for text in [
            "null",
            " {} ",
            "[]",
            "\"\"",
            "0",
            "-0",
            "-1.5e+10",
            "1E5",
            "[1,2 , 3]",
            "true",
            "false",
            r#"{"a":{"b":[{}]},"c":"\u00e9\ud83d\ude00\"\\\/\b\f\n\r\t"}"#,
            "\t{\r\n\"\u{1f600}\" : 1}\n",
        ] {
            assert!(is_json(text), "{text}");
        }
    }

    #[test]
    fn what_is_not_json_is_refused() {
        for text in [
            "",
            " ",
            "nul",
            "nullx",
            "{} {}",
            "{",
            "[",
            "[1,]",
            "{,}",
            r#"{"a":1,}"#,
            r#"{"a"}"#,
            r#"{"a":}"#,
            "{a:1}",
            "01",
            "1.",
            ".5",
            "-",
            "+1",
            "1e",
            "'x'",
            "\"",
            "\"\\x\"",
            "\"\\u12\"",
            r#""\ud800""#,
            r#""\udc00""#,
            r#""\ud800\u0041""#,
            "\"\n\"",
            "\"\0\"",
            "// c\n{}",
            "/* c */{}",
            "[1 2]",
            "\u{feff}{}",
            "NaN",
            r#"{"a":1,"a":2}"#,
        ] {
            assert!(!is_json(text), "{text:?}");
        }
        assert_eq!(check(b"\"\xff\"", 10, 1), Err(Error::Utf8));
        assert_eq!(check(b"[[]]", 10, 1), Err(Error::Depth { max: 1 }));
        assert_eq!(check(b"[1]", 2, 1), Err(Error::TooLong { max: 2 }));
        assert_eq!(check(b"[1,x]", 9, 1), Err(Error::Syntax { at: 3 }));
    }

    #[test]
    fn a_quoted_text_is_json_and_means_the_text() {
        use nanoserde::DeJson;
        let text: String = (0..0x250)
            .filter_map(char::from_u32)
            .chain(['\u{1f600}'])
            .collect();
        let quoted = quote(&text);
        assert_eq!(check(quoted.as_bytes(), 10_000, 0), Ok(quoted.as_str()));
        assert_eq!(String::deserialize_json(&quoted).unwrap(), text);
    }
}
