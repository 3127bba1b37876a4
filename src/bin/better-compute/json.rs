//! JSON values whose form is not known beforehand: a command's parameters, a spec's section, an event.
//!
//! What is read was checked whole by [`bcd::crypto::json`] first: size, depth, syntax, repeated names.

#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::indexing_slicing))]

use std::fmt;

use bcd::crypto::json;

/// A JSON value. Numbers keep their text, so that none loses digits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Json {
    Null,
    Bool(bool),
    Number(String),
    Text(String),
    List(Vec<Json>),
    /// In the order they stood.
    Object(Vec<(String, Json)>),
}

/// An object that is put together member by member.
#[derive(Debug, Default)]
pub struct Object(Vec<(String, Json)>);

impl Object {
    pub fn new() -> Self {
        Self::default()
    }

    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Json>) -> Self {
        self.0.push((name.to_owned(), value.into()));
        self
    }

    /// Leaves the member out when there is nothing to say.
    #[must_use]
    pub fn with_some(self, name: &str, value: Option<impl Into<Json>>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// Leaves the member out when the text is empty.
    #[must_use]
    pub fn with_text(self, name: &str, text: &str) -> Self {
        match text {
            "" => self,
            text => self.with(name, text),
        }
    }
}

impl From<Object> for Json {
    fn from(object: Object) -> Self {
        Self::Object(object.0)
    }
}

impl From<&str> for Json {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Json {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<bool> for Json {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

macro_rules! from_numbers {
    ($($number:ty)*) => {
        $(impl From<$number> for Json {
            fn from(number: $number) -> Self {
                Self::Number(number.to_string())
            }
        })*
    };
}

from_numbers!(i32 u32 i64 u64 usize);

impl From<Vec<Json>> for Json {
    fn from(list: Vec<Json>) -> Self {
        Self::List(list)
    }
}

impl Json {
    /// Reads one value of at most `max_length` bytes, nested at most `max_depth` deep.
    ///
    /// # Errors
    /// It is not JSON, or over a limit.
    pub fn parse(bytes: &[u8], max_length: usize, max_depth: usize) -> Result<Self, json::Error> {
        let text = json::check(bytes, max_length, max_depth)?;
        let mut rest = text.trim_start();
        read(&mut rest).ok_or(json::Error::Syntax {
            at: text.len() - rest.len(),
        })
    }

    /// A member of an object.
    pub fn get(&self, name: &str) -> Option<&Self> {
        match self {
            Self::Object(members) => members
                .iter()
                .find(|(known, _)| known == name)
                .map(|(_, value)| value),
            _ => None,
        }
    }

    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(value) => Some(*value),
            _ => None,
        }
    }

    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Self::Number(number) => number.parse().ok(),
            _ => None,
        }
    }

    /// The values of a list; none of anything else.
    pub fn items(&self) -> &[Self] {
        match self {
            Self::List(items) => items,
            _ => &[],
        }
    }

    /// The text of a member; empty when there is none.
    pub fn text(&self, name: &str) -> &str {
        self.get(name).and_then(Self::as_text).unwrap_or_default()
    }

    /// The number of a member.
    pub fn number(&self, name: &str) -> Option<i64> {
        self.get(name).and_then(Self::as_i64)
    }

    /// Whether a member is `true`.
    pub fn flag(&self, name: &str) -> bool {
        self.get(name).and_then(Self::as_bool) == Some(true)
    }
}

/// On one line, without blanks.
impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Number(number) => f.write_str(number),
            Self::Text(text) => f.write_str(&json::quote(text)),
            Self::List(items) => {
                f.write_str("[")?;
                for (index, item) in items.iter().enumerate() {
                    let comma = if index > 0 { "," } else { "" };
                    write!(f, "{comma}{item}")?;
                }
                f.write_str("]")
            }
            Self::Object(members) => {
                f.write_str("{")?;
                for (index, (name, value)) in members.iter().enumerate() {
                    let comma = if index > 0 { "," } else { "" };
                    write!(f, "{comma}{}:{value}", json::quote(name))?;
                }
                f.write_str("}")
            }
        }
    }
}

/// Reads a value of checked JSON and the blanks behind it.
fn read(rest: &mut &str) -> Option<Json> {
    let value = match rest.bytes().next()? {
        b'{' => {
            let mut members = Vec::new();
            skip(rest, '{')?;
            while !rest.starts_with('}') {
                let name = string(rest)?;
                skip(rest, ':')?;
                members.push((name, read(rest)?));
                if !rest.starts_with('}') {
                    skip(rest, ',')?;
                }
            }
            skip(rest, '}')?;
            Json::Object(members)
        }
        b'[' => {
            let mut items = Vec::new();
            skip(rest, '[')?;
            while !rest.starts_with(']') {
                items.push(read(rest)?);
                if !rest.starts_with(']') {
                    skip(rest, ',')?;
                }
            }
            skip(rest, ']')?;
            Json::List(items)
        }
        b'"' => return string(rest).map(Json::Text),
        _ => {
            let end = rest
                .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.')))
                .unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            *rest = after;
            match word {
                "null" => Json::Null,
                "true" => Json::Bool(true),
                "false" => Json::Bool(false),
                number => Json::Number(number.to_owned()),
            }
        }
    };
    *rest = rest.trim_start();
    Some(value)
}

/// Past a character and the blanks behind it.
fn skip(rest: &mut &str, c: char) -> Option<()> {
    *rest = rest.strip_prefix(c)?.trim_start();
    Some(())
}

/// A string and the blanks behind it.
fn string(rest: &mut &str) -> Option<String> {
    let mut text = String::new();
    let mut chars = rest.strip_prefix('"')?.chars();
    loop {
        match chars.next()? {
            '"' => break,
            '\\' => match chars.next()? {
                'n' => text.push('\n'),
                'r' => text.push('\r'),
                't' => text.push('\t'),
                'b' => text.push('\u{8}'),
                'f' => text.push('\u{c}'),
                'u' => text.push(escaped(&mut chars)?),
                other => text.push(other),
            },
            other => text.push(other),
        }
    }
    *rest = chars.as_str().trim_start();
    Some(text)
}

/// What `\u` stands for; half a surrogate pair is a character that cannot be shown.
fn escaped(chars: &mut std::str::Chars<'_>) -> Option<char> {
    let unit = |chars: &mut std::str::Chars<'_>| {
        let text = chars.as_str().get(..4)?;
        let unit = u32::from_str_radix(text, 16).ok()?;
        *chars = chars.as_str().get(4..)?.chars();
        Some(unit)
    };
    let first = unit(chars)?;
    if (0xd800..0xdc00).contains(&first) && chars.as_str().starts_with("\\u") {
        let mut ahead = chars.as_str().get(2..)?.chars();
        if let Some(second @ 0xdc00..0xe000) = unit(&mut ahead) {
            *chars = ahead;
            return char::from_u32(0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00));
        }
    }
    Some(char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Json {
        Json::parse(text.as_bytes(), 1000, 8).unwrap()
    }

    #[test]
    fn what_is_written_reads_back() {
        for text in [
            "null",
            "true",
            "-1.5e+10",
            r#""""#,
            r#""a\"b\\\n""#,
            "[]",
            "[1,[2],{}]",
            r#"{"a":1,"b":[true,null],"c":{"d":"e"}}"#,
            "18446744073709551615",
        ] {
            assert_eq!(parse(text).to_string(), text);
        }
        assert_eq!(
            parse(" { \"a\" : [ 1 , 2 ] } ").to_string(),
            r#"{"a":[1,2]}"#
        );
        assert!(Json::parse(b"{", 10, 8).is_err());
        assert!(Json::parse(b"[1] 2", 10, 8).is_err());
    }

    #[test]
    fn escapes_stand_for_their_characters() {
        assert_eq!(
            parse(r#""\u00e4\ud83d\ude00\/\b\f""#),
            Json::from("ä😀/\u{8}\u{c}")
        );
    }

    #[test]
    fn members_are_found_by_name_and_kind() {
        let value = parse(r#"{"text":"a","number":-7,"flag":true,"list":[1,2]}"#);
        assert_eq!((value.text("text"), value.text("number")), ("a", ""));
        assert_eq!(
            (value.number("number"), value.number("text")),
            (Some(-7), None)
        );
        assert!(value.flag("flag") && !value.flag("text"));
        assert_eq!(value.get("list").unwrap().items().len(), 2);
        assert_eq!(Json::Null.items().len(), 0);
    }

    #[test]
    fn an_object_leaves_out_what_is_empty() {
        let object = Object::new()
            .with("a", 1u32)
            .with_text("b", "")
            .with_some("c", None::<bool>)
            .with_some("d", Some("x"));
        assert_eq!(Json::from(object).to_string(), r#"{"a":1,"d":"x"}"#);
    }
}
