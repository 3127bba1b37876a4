//! The strict subset of TOML 1.0 that `config.toml` is written in.
//!
//! Accepted: bare keys with basic or literal strings, decimal integers and booleans, at the top level or
//! below a bare `[section]`; comments and blank lines; LF or CRLF. Everything accepted here means the
//! same to any TOML 1.0 reader. Refused, each with its line: arrays, inline tables, floats, dates, other
//! integer bases, multi-line strings, dotted or quoted keys and sections, a key or section given twice.
//!
//! All slips of a document are reported, not the first only, up to [`MAX_SYNTAX_ERRORS`].

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;

/// Reading stops after this many slips: what follows is then noise.
pub const MAX_SYNTAX_ERRORS: usize = 20;

/// A value and the line it stands on, counted from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    pub value: Value,
    pub line: usize,
}

/// The values of the subset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    String(String),
    Integer(i64),
    Boolean(bool),
}

impl Value {
    /// What the value is, for "must be a string, not an integer".
    pub fn kind(&self) -> &'static str {
        match self {
            Self::String(_) => "a string",
            Self::Integer(_) => "an integer",
            Self::Boolean(_) => "a boolean",
        }
    }
}

/// A document: sections by name (`""` is the top level), each with the line of its header.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Document {
    pub sections: BTreeMap<String, Section>,
}

/// One section.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Section {
    /// The line of `[name]`; 0 for the top level.
    pub line: usize,
    pub items: BTreeMap<String, Item>,
}

/// A slip, and the line it is on.
#[derive(Debug, PartialEq, Eq)]
pub struct SyntaxError {
    pub line: usize,
    /// The key whose value is wrong, as `section.key`, when the line got that far.
    pub key: Option<String>,
    pub what: Slip,
}

/// What is wrong with a line.
#[derive(Debug, PartialEq, Eq)]
pub enum Slip {
    NotUtf8,
    ByteOrderMark,
    /// A control character, by its code point.
    Control(u32),
    NoEquals,
    NoKey,
    QuotedKey,
    DottedKey,
    KeyCharacter(char),
    NoValue,
    DuplicateKey {
        first: usize,
    },
    DuplicateSection {
        first: usize,
    },
    SectionIsKey {
        first: usize,
    },
    SectionUnclosed,
    SectionName,
    ArrayOfTables,
    Array,
    InlineTable,
    MultiLineString,
    UnclosedString,
    Escape,
    CodePoint,
    Float,
    Date,
    OtherBase,
    LeadingZero,
    Underscore,
    IntegerRange,
    Bareword,
    AfterValue,
    AfterSection,
}

impl fmt::Display for Slip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::NotUtf8 => "is not UTF-8",
            Self::ByteOrderMark => "starts with a byte order mark; save the file without one",
            Self::Control(code) => return write!(f, "holds the control character U+{code:04X}"),
            Self::NoEquals => "is neither `key = value`, `[section]` nor a comment",
            Self::NoKey => "has no key before `=`",
            Self::QuotedKey => "has a quoted key; write it bare, from letters, digits, `_` and `-`",
            Self::DottedKey => "has a dotted key; write it below its `[section]`",
            Self::KeyCharacter(c) => {
                return write!(
                    f,
                    "has a key with {c:?}; keys are letters, digits, `_` and `-`"
                );
            }
            Self::NoValue => "has no value after `=`",
            Self::DuplicateKey { first } => {
                return write!(f, "is given twice, first on line {first}");
            }
            Self::DuplicateSection { first } => {
                return write!(f, "opens a section a second time, first on line {first}");
            }
            Self::SectionIsKey { first } => {
                return write!(
                    f,
                    "opens a section with the name of the key on line {first}"
                );
            }
            Self::SectionUnclosed => "opens a section without closing it with `]`",
            Self::SectionName => "has a section name that is not bare letters, digits, `_` and `-`",
            Self::ArrayOfTables => "has an array of tables; write `[section]` once",
            Self::Array => "is an array; write a string with commas between the entries",
            Self::InlineTable => "is an inline table; write a `[section]`",
            Self::MultiLineString => "is a multi-line string; write it on one line",
            Self::UnclosedString => "is a string that does not end on its line",
            Self::Escape => {
                "has an unknown escape; `\\b \\t \\n \\f \\r \\\" \\\\ \\uXXXX \\UXXXXXXXX` exist"
            }
            Self::CodePoint => "has a `\\u` escape that is no Unicode character",
            Self::Float => "is a float; write an integer",
            Self::Date => "is a date or time; write a string",
            Self::OtherBase => "is not decimal; write the integer in decimal",
            Self::LeadingZero => "is an integer with a leading zero",
            Self::Underscore => "has a `_` that is not between two digits",
            Self::IntegerRange => "is an integer beyond 64 bits",
            Self::Bareword => {
                "is not a value; strings need quotes, booleans are `true` and `false`"
            }
            Self::AfterValue => "has something after its value",
            Self::AfterSection => "has something after `]`",
        };
        f.write_str(text)
    }
}

impl fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.key {
            Some(key) => write!(f, "line {}: {key} {}", self.line, self.what),
            None => write!(f, "line {} {}", self.line, self.what),
        }
    }
}

impl Error for SyntaxError {}

/// Parses a document. The names of `shared` may be a top-level key and a section at once, which TOML
/// forbids; pass none for documents that any TOML reader takes.
///
/// # Errors
/// All slips, in the order of their lines.
pub fn parse(bytes: &[u8], shared: &'static [&'static str]) -> Result<Document, Vec<SyntaxError>> {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let before = bytes.get(..error.valid_up_to()).unwrap_or_default();
            let line = 1 + before.iter().filter(|&&b| b == b'\n').count();
            return Err(vec![SyntaxError {
                line,
                key: None,
                what: Slip::NotUtf8,
            }]);
        }
    };
    if text.starts_with('\u{feff}') {
        return Err(vec![SyntaxError {
            line: 1,
            key: None,
            what: Slip::ByteOrderMark,
        }]);
    }
    let mut reader = Reader {
        shared,
        document: Document::default(),
        section: String::new(),
    };
    reader
        .document
        .sections
        .insert(String::new(), Section::default());
    let mut errors = Vec::new();
    for (index, line) in text.split_inclusive('\n').enumerate() {
        // Only CRLF is a line end; a bare CR is a control character like any other.
        let line = match line.strip_suffix('\n') {
            Some(line) => line.strip_suffix('\r').unwrap_or(line),
            None => line,
        };
        if let Err((key, what)) = reader.line(line, index + 1) {
            // What follows a value of several lines cannot be told from keys.
            let lost = matches!(
                what,
                Slip::MultiLineString | Slip::Array | Slip::InlineTable
            );
            errors.push(SyntaxError {
                line: index + 1,
                key,
                what,
            });
            if lost || errors.len() == MAX_SYNTAX_ERRORS {
                break;
            }
        }
    }
    if errors.is_empty() {
        Ok(reader.document)
    } else {
        Err(errors)
    }
}

type LineError = (Option<String>, Slip);

struct Reader {
    shared: &'static [&'static str],
    document: Document,
    section: String,
}

impl Reader {
    fn line(&mut self, line: &str, number: usize) -> Result<(), LineError> {
        let trimmed = line.trim_start_matches(is_blank);
        if trimmed.is_empty() {
            return Ok(());
        }
        if let Some(comment) = trimmed.strip_prefix('#') {
            return no_controls(comment).map_err(|what| (None, what));
        }
        match trimmed.strip_prefix('[') {
            Some(rest) => self.header(rest, number).map_err(|what| (None, what)),
            None => self.key_value(trimmed, number),
        }
    }

    fn header(&mut self, rest: &str, number: usize) -> Result<(), Slip> {
        if rest.starts_with('[') {
            return Err(Slip::ArrayOfTables);
        }
        let (name, after) = rest.split_once(']').ok_or(Slip::SectionUnclosed)?;
        let name = name.trim_matches(is_blank);
        if name.is_empty() || !name.chars().all(is_bare) {
            return Err(Slip::SectionName);
        }
        end_of_line(after, Slip::AfterSection)?;
        let top = self.document.sections.get("");
        if let Some(key) = top.and_then(|top| top.items.get(name))
            && !self.shared.contains(&name)
        {
            return Err(Slip::SectionIsKey { first: key.line });
        }
        if let Some(section) = self.document.sections.get(name) {
            return Err(Slip::DuplicateSection {
                first: section.line,
            });
        }
        let section = Section {
            line: number,
            items: BTreeMap::new(),
        };
        self.document.sections.insert(name.to_owned(), section);
        self.section = name.to_owned();
        Ok(())
    }

    fn key_value(&mut self, line: &str, number: usize) -> Result<(), LineError> {
        let key = key_of(line).map_err(|what| (None, what))?;
        let rest = line
            .get(key.len()..)
            .unwrap_or_default()
            .trim_start_matches(is_blank);
        let qualified = || Some(qualify(&self.section, key));
        let rest = match rest.chars().next() {
            Some('=') => rest.get(1..).unwrap_or_default(),
            Some('.') => return Err((None, Slip::DottedKey)),
            Some(c) if c.is_control() => return Err((None, Slip::Control(c.into()))),
            Some(c) if !c.is_ascii() => return Err((None, Slip::KeyCharacter(c))),
            _ => return Err((None, Slip::NoEquals)),
        };
        let rest = rest.trim_start_matches(is_blank);
        let (value, after) = value_of(rest).map_err(|what| (qualified(), what))?;
        end_of_line(after, Slip::AfterValue).map_err(|what| (qualified(), what))?;
        let items = &mut self
            .document
            .sections
            .entry(self.section.clone())
            .or_default()
            .items;
        if let Some(first) = items.get(key) {
            let what = Slip::DuplicateKey { first: first.line };
            return Err((Some(qualify(&self.section, key)), what));
        }
        items.insert(
            key.to_owned(),
            Item {
                value,
                line: number,
            },
        );
        Ok(())
    }
}

/// `section.key`, or the key alone at the top level.
pub fn qualify(section: &str, key: &str) -> String {
    if section.is_empty() {
        key.to_owned()
    } else {
        format!("{section}.{key}")
    }
}

fn is_blank(c: char) -> bool {
    c == ' ' || c == '\t'
}

fn is_bare(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

fn no_controls(text: &str) -> Result<(), Slip> {
    match text
        .bytes()
        .find(|&b| (b < 0x20 && b != b'\t') || b == 0x7f)
    {
        Some(byte) => Err(Slip::Control(byte.into())),
        None => Ok(()),
    }
}

/// Nothing but blanks and a comment may follow.
fn end_of_line(rest: &str, otherwise: Slip) -> Result<(), Slip> {
    let rest = rest.trim_start_matches(is_blank);
    match rest.strip_prefix('#') {
        Some(comment) => no_controls(comment),
        None if rest.is_empty() => Ok(()),
        None => Err(otherwise),
    }
}

/// The bare key a line starts with.
fn key_of(line: &str) -> Result<&str, Slip> {
    let end = line.find(|c| !is_bare(c)).unwrap_or(line.len());
    let key = line.get(..end).unwrap_or_default();
    if !key.is_empty() {
        return Ok(key);
    }
    Err(match line.chars().next() {
        Some('"' | '\'') => Slip::QuotedKey,
        Some('=') => Slip::NoKey,
        Some('.') => Slip::DottedKey,
        Some(c) if c.is_control() => Slip::Control(c.into()),
        Some(c) => Slip::KeyCharacter(c),
        None => Slip::NoKey,
    })
}

/// The value at the start of `text`, and what follows it.
fn value_of(text: &str) -> Result<(Value, &str), Slip> {
    if text.starts_with("\"\"\"") || text.starts_with("'''") {
        return Err(Slip::MultiLineString);
    }
    match text.chars().next() {
        None | Some('#') => Err(Slip::NoValue),
        Some('"') => basic_string(text.get(1..).unwrap_or_default()),
        Some('\'') => literal_string(text.get(1..).unwrap_or_default()),
        Some('[') => Err(Slip::Array),
        Some('{') => Err(Slip::InlineTable),
        Some(_) => {
            let end = text
                .find(|c: char| is_blank(c) || c == '#')
                .unwrap_or(text.len());
            let (word, after) = text.split_at_checked(end).unwrap_or((text, ""));
            no_controls(word)?;
            Ok((word_value(word)?, after))
        }
    }
}

fn literal_string(text: &str) -> Result<(Value, &str), Slip> {
    let (body, after) = text.split_once('\'').ok_or(Slip::UnclosedString)?;
    no_controls(body)?;
    Ok((Value::String(body.to_owned()), after))
}

fn basic_string(text: &str) -> Result<(Value, &str), Slip> {
    let mut value = String::new();
    let mut chars = text.chars();
    loop {
        match chars.next().ok_or(Slip::UnclosedString)? {
            '"' => return Ok((Value::String(value), chars.as_str())),
            '\\' => value.push(match chars.next().ok_or(Slip::UnclosedString)? {
                'b' => '\u{8}',
                't' => '\t',
                'n' => '\n',
                'f' => '\u{c}',
                'r' => '\r',
                '"' => '"',
                '\\' => '\\',
                'u' => code_point(&mut chars, 4)?,
                'U' => code_point(&mut chars, 8)?,
                _ => return Err(Slip::Escape),
            }),
            c if (c < ' ' && c != '\t') || c == '\u{7f}' => return Err(Slip::Control(c.into())),
            c => value.push(c),
        }
    }
}

fn code_point(chars: &mut std::str::Chars<'_>, digits: u32) -> Result<char, Slip> {
    let mut code = 0_u32;
    for _ in 0..digits {
        let digit = chars
            .next()
            .and_then(|c| c.to_digit(16))
            .ok_or(Slip::Escape)?;
        code = code.wrapping_mul(16).wrapping_add(digit);
    }
    char::from_u32(code).ok_or(Slip::CodePoint)
}

/// A value that is one word: a boolean, an integer, or something to be refused by its name.
fn word_value(word: &str) -> Result<Value, Slip> {
    match word {
        "true" => return Ok(Value::Boolean(true)),
        "false" => return Ok(Value::Boolean(false)),
        "inf" | "+inf" | "-inf" | "nan" | "+nan" | "-nan" => return Err(Slip::Float),
        _ => {}
    }
    let digits = word.strip_prefix(['+', '-']).unwrap_or(word);
    if !digits.starts_with(|c: char| c.is_ascii_digit() || c == '_') {
        return Err(Slip::Bareword);
    }
    if digits.bytes().all(|b| b.is_ascii_digit() || b == b'_') {
        if digits.starts_with('_') || digits.ends_with('_') || digits.contains("__") {
            return Err(Slip::Underscore);
        }
        if digits.len() > 1 && digits.starts_with('0') {
            return Err(Slip::LeadingZero);
        }
        let plain: String = word.chars().filter(|&c| c != '_').collect();
        return plain
            .parse()
            .map(Value::Integer)
            .map_err(|_| Slip::IntegerRange);
    }
    Err(match digits.as_bytes() {
        [b'0', b'x' | b'o' | b'b', ..] => Slip::OtherBase,
        _ if is_date(digits) => Slip::Date,
        _ if digits
            .bytes()
            .all(|b| b.is_ascii_digit() || b"._eE+-".contains(&b)) =>
        {
            Slip::Float
        }
        _ => Slip::Bareword,
    })
}

/// Whether digits are laid out as `1979-…` or `07:…`.
fn is_date(word: &str) -> bool {
    let bytes = word.as_bytes();
    let separated = |at: usize, by: u8| {
        bytes.get(at) == Some(&by) && bytes.iter().take(at).all(u8::is_ascii_digit)
    };
    separated(4, b'-') || separated(2, b':')
}

#[cfg(test)]
mod tests;
