//! Which bytes of a file a request gets (RFC 9110, sections 13 and 14).
//!
//! Promises: one range a request; whatever is no single range of bytes is read over, as the RFC allows,
//! and the whole is served.

use bcd::wire::http1::server::Request;

/// What a request gets of a file that is there.
#[derive(Debug, PartialEq, Eq)]
pub enum Part {
    Whole,
    /// These bytes: the first and the last.
    Bytes(u64, u64),
    /// The client has it already.
    NotModified,
    /// The range begins behind the end.
    OutOfRange,
}

impl Part {
    /// For a file of `length` bytes with this entity tag.
    pub fn of(request: &Request, length: u64, etag: Option<&str>) -> Self {
        if let (Some(known), Some(etag)) = (request.header("if-none-match"), etag) {
            let mut known = known.split(',').map(|tag| tag.trim());
            if known.any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == etag) {
                return Self::NotModified;
            }
        }
        let Some(range) = request.header("range") else {
            return Self::Whole;
        };
        // A date is no tag of ours: it gets the whole.
        let same = match request.header("if-range") {
            Some(tag) => etag == Some(tag.trim()),
            None => true,
        };
        match request.method == "GET" && same {
            true => Self::range(range, length).unwrap_or(Self::Whole),
            false => Self::Whole,
        }
    }

    /// `bytes=FIRST-LAST`, `bytes=FIRST-` or `bytes=-LENGTH`; `None` for anything else.
    pub fn range(range: &str, length: u64) -> Option<Self> {
        let (unit, range) = range.split_once('=')?;
        if !unit.trim().eq_ignore_ascii_case("bytes") {
            return None;
        }
        let (first, last) = range.trim().split_once('-')?;
        let bytes = match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => (first, last),
            (Some(first), None) if last.is_empty() => (first, u64::MAX),
            (None, Some(tail)) if first.is_empty() => match tail {
                0 => return Some(Self::OutOfRange),
                _ => (length.saturating_sub(tail), u64::MAX),
            },
            _ => return None,
        };
        Some(match bytes.0 < length {
            true => Self::Bytes(bytes.0, bytes.1.min(length - 1)),
            false => Self::OutOfRange,
        })
    }
}

/// Digits alone; more than a number holds are behind every end.
fn number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(method: &str, headers: &[(&str, &str)], length: u64) -> Part {
        let headers = headers.iter();
        let request = Request {
            method: method.to_owned(),
            path: "/".to_owned(),
            query: String::new(),
            headers: headers
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            body: Vec::new(),
            peer: None,
        };
        Part::of(&request, length, Some("\"tag\""))
    }

    #[test]
    fn a_single_range_is_served_and_anything_else_gets_the_whole() {
        for (range, part) in [
            ("bytes=0-0", Part::Bytes(0, 0)),
            ("bytes=2-5", Part::Bytes(2, 5)),
            ("Bytes = 2-5", Part::Bytes(2, 5)),
            ("bytes=2-", Part::Bytes(2, 9)),
            ("bytes=-3", Part::Bytes(7, 9)),
            ("bytes=-30", Part::Bytes(0, 9)),
            ("bytes=9-99999999999999999999999", Part::Bytes(9, 9)),
            ("bytes=10-", Part::OutOfRange),
            ("bytes=99999999999999999999999-", Part::OutOfRange),
            ("bytes=-0", Part::OutOfRange),
            ("bytes=5-2", Part::Whole),
            ("bytes=-", Part::Whole),
            ("bytes=", Part::Whole),
            ("bytes=0-1,3-4", Part::Whole),
            ("bytes=+1-2", Part::Whole),
            ("bytes=1-2x", Part::Whole),
            ("lines=1-2", Part::Whole),
            ("bytes", Part::Whole),
            ("", Part::Whole),
        ] {
            assert_eq!(asked("GET", &[("range", range)], 10), part, "{range}");
        }
        assert_eq!(asked("GET", &[("range", "bytes=0-")], 0), Part::OutOfRange);
        assert_eq!(asked("GET", &[("range", "bytes=-1")], 0), Part::OutOfRange);
        assert_eq!(asked("HEAD", &[("range", "bytes=0-1")], 10), Part::Whole);
    }

    #[test]
    fn a_part_is_of_the_file_the_client_began_with() {
        let asked = |tag| asked("GET", &[("range", "bytes=1-2"), ("if-range", tag)], 10);
        assert_eq!(asked("\"tag\""), Part::Bytes(1, 2));
        for other in ["\"other\"", "W/\"tag\"", "Mon, 30 Nov 2026 10:00:00 GMT"] {
            assert_eq!(asked(other), Part::Whole, "{other}");
        }
    }

    #[test]
    fn what_the_client_has_is_not_sent_again() {
        for (tags, part) in [
            ("\"tag\"", Part::NotModified),
            ("\"a\", W/\"tag\"", Part::NotModified),
            ("*", Part::NotModified),
            ("\"a\"", Part::Whole),
        ] {
            let headers = [("if-none-match", tags)];
            assert_eq!(asked("GET", &headers, 10), part, "{tags}");
            assert_eq!(asked("HEAD", &headers, 10), part, "{tags}");
        }
    }
}
