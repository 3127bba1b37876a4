//! Takes typed values out of a parsed document, and remembers every key that was asked for: what is left
//! over is unknown, and what was asked for is the effective configuration.

use std::fmt;
use std::path::PathBuf;

use super::spelling::nearest;
use super::toml::{Document, Item, Value, qualify};

/// One thing that is wrong with the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Counted from 1; `None` for a key that is missing.
    pub line: Option<usize>,
    /// `section.key`, `key`, `[section]`, or empty when the slip is in the line's form.
    pub key: String,
    /// What is wrong, as the rest of a sentence that begins with the key.
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}")?;
            f.write_str(if self.key.is_empty() { " " } else { ": " })?;
        }
        f.write_str(&self.key)?;
        // An entry of a list is named behind a colon: "helper.instance_bridges: "a b" is not …".
        if !self.key.is_empty() && !self.what.starts_with(':') {
            f.write_str(" ")?;
        }
        f.write_str(&self.what)
    }
}

/// A key of the table with the value it has, set or by default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    pub section: &'static str,
    pub key: &'static str,
    /// `None` for an optional key that is not set and has no default.
    pub value: Option<Value>,
    /// The line that sets it; `None` for a default.
    pub line: Option<usize>,
}

/// A key this version does not know and `newer_keys` lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewerKey {
    pub name: String,
    pub value: Value,
    pub line: usize,
}

/// Reads a document key by key.
pub(super) struct Reader {
    document: Document,
    pub settings: Vec<Setting>,
    pub problems: Vec<Problem>,
}

impl Reader {
    pub fn new(document: Document) -> Self {
        Self {
            document,
            settings: Vec::new(),
            problems: Vec::new(),
        }
    }

    /// A string key; `default` stands in when it is not set or is no string.
    pub fn string(
        &mut self,
        section: &'static str,
        key: &'static str,
        default: Option<&str>,
    ) -> Option<String> {
        let default = default.map(|text| Value::String(text.to_owned()));
        match self.take(section, key, "a string", default) {
            Some(Value::String(text)) => Some(text),
            _ => None,
        }
    }

    /// As [`string`](Self::string) without a default; an empty string is a problem.
    pub fn filled(&mut self, section: &'static str, key: &'static str) -> Option<String> {
        let text = self.string(section, key, None)?;
        if text.is_empty() {
            self.problem(section, key, "is empty; leave the key out instead");
            return None;
        }
        Some(text)
    }

    /// A string key that must be there.
    pub fn required(&mut self, section: &'static str, key: &'static str) -> Option<String> {
        let before = self.problems.len();
        let text = self.string(section, key, None);
        match &text {
            None if self.problems.len() == before => self.problem(section, key, "is missing"),
            Some(text) if text.is_empty() => {
                self.problem(section, key, "is empty");
                return None;
            }
            _ => {}
        }
        text
    }

    /// A boolean key.
    pub fn boolean(&mut self, section: &'static str, key: &'static str, default: bool) -> bool {
        match self.take(section, key, "a boolean", Some(Value::Boolean(default))) {
            Some(Value::Boolean(value)) => value,
            _ => default,
        }
    }

    /// An integer key between `least` and `most`, both allowed.
    pub fn integer(
        &mut self,
        section: &'static str,
        key: &'static str,
        default: u64,
        least: u64,
        most: u64,
    ) -> u64 {
        let shown = Value::Integer(i64::try_from(default).unwrap_or(i64::MAX));
        let Some(Value::Integer(value)) = self.take(section, key, "an integer", Some(shown)) else {
            return default;
        };
        match u64::try_from(value) {
            Ok(value) if (least..=most).contains(&value) => value,
            Ok(value) if value > most => {
                self.problem(section, key, format!("must be at most {most}"));
                default
            }
            Err(_) if least == 0 => {
                self.problem(section, key, "must not be negative");
                default
            }
            _ => {
                self.problem(section, key, format!("must be at least {least}"));
                default
            }
        }
    }

    /// An absolute path, or `None` when it is not set and has no default.
    pub fn path(
        &mut self,
        section: &'static str,
        key: &'static str,
        default: Option<&str>,
    ) -> Option<PathBuf> {
        let text = self.string(section, key, default)?;
        if !text.starts_with('/') {
            self.problem(section, key, "must be an absolute path");
            return None;
        }
        if text.contains('\0') {
            self.problem(section, key, "holds a NUL byte");
            return None;
        }
        Some(PathBuf::from(text))
    }

    /// A comma-separated list, blanks around its entries dropped, each turned into a `T`.
    pub fn list<T>(
        &mut self,
        section: &'static str,
        key: &'static str,
        default: Option<&str>,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Vec<T> {
        let mut entries = Vec::new();
        self.entries(section, key, default, &mut |entry| {
            entries.push(parse(entry)?);
            Ok(())
        });
        entries
    }

    /// Gives each entry of such a list to `take`.
    fn entries(
        &mut self,
        section: &'static str,
        key: &'static str,
        default: Option<&str>,
        take: &mut dyn FnMut(&str) -> Result<(), String>,
    ) {
        let Some(text) = self.string(section, key, default) else {
            return;
        };
        if text.trim().is_empty() {
            return;
        }
        for entry in text.split(',').map(str::trim) {
            if entry.is_empty() {
                self.problem(section, key, "has an empty entry between commas");
            } else if let Err(what) = take(entry) {
                self.problem(section, key, format!(": {what}"));
            }
        }
    }

    /// The value of a check, or a problem of the key.
    pub fn check<T>(
        &mut self,
        section: &'static str,
        key: &'static str,
        result: Result<T, String>,
    ) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(what) => {
                self.problem(section, key, what);
                None
            }
        }
    }

    /// Notes that a key already asked for is wrong.
    pub fn problem(&mut self, section: &str, key: &str, what: impl Into<String>) {
        self.note(section, key, what.into());
    }

    fn note(&mut self, section: &str, key: &str, what: String) {
        let line = self.line(section, key);
        let key = qualify(section, key);
        self.problems.push(Problem { line, key, what });
    }

    /// Whether the file sets a key already asked for.
    pub fn is_set(&self, section: &str, key: &str) -> bool {
        self.line(section, key).is_some()
    }

    /// Corrects the default of a key that depends on others.
    pub fn set_default(&mut self, section: &str, key: &str, value: Option<String>) {
        let setting = self
            .settings
            .iter_mut()
            .find(|setting| setting.section == section && setting.key == key);
        if let Some(setting) = setting.filter(|setting| setting.line.is_none()) {
            setting.value = value.map(Value::String);
        }
    }

    fn line(&self, section: &str, key: &str) -> Option<usize> {
        self.settings
            .iter()
            .find(|setting| setting.section == section && setting.key == key)?
            .line
    }

    fn take(
        &mut self,
        section: &'static str,
        key: &'static str,
        kind: &str,
        default: Option<Value>,
    ) -> Option<Value> {
        let item = self
            .document
            .sections
            .get_mut(section)
            .and_then(|section| section.items.remove(key));
        let (value, line) = match item {
            None => (default, None),
            Some(Item { value, line }) => (Some(value), Some(line)),
        };
        self.settings.push(Setting {
            section,
            key,
            value: value.clone(),
            line,
        });
        let value = value?;
        if value.kind() == kind {
            return Some(value);
        }
        self.problem(
            section,
            key,
            format!("must be {kind}, not {}", value.kind()),
        );
        None
    }

    /// Everything the document holds that nobody asked for: a problem, unless `newer` lists it.
    pub fn finish(&mut self, newer: &NewerKeys) -> Vec<NewerKey> {
        let mut tolerated = Vec::new();
        for (section, left) in std::mem::take(&mut self.document.sections) {
            let known = section.is_empty()
                || self
                    .settings
                    .iter()
                    .any(|setting| setting.section == section);
            if !known && !newer.lists_section(&section) {
                let sections = self
                    .settings
                    .iter()
                    .map(|setting| setting.section)
                    .filter(|name| !name.is_empty());
                let what = match nearest(&section, sections) {
                    Some(name) => format!("is an unknown section; did you mean [{name}]?"),
                    None => "is an unknown section".to_owned(),
                };
                self.problems.push(Problem {
                    line: Some(left.line),
                    key: format!("[{section}]"),
                    what,
                });
                continue;
            }
            for (key, Item { value, line }) in left.items {
                let name = qualify(&section, &key);
                if newer.lists(&section, &key) {
                    tolerated.push(NewerKey { name, value, line });
                } else {
                    let what = self.unknown_key(&section, &key);
                    self.problems.push(Problem {
                        line: Some(line),
                        key: name,
                        what,
                    });
                }
            }
        }
        tolerated.sort_by_key(|key| key.line);
        tolerated
    }

    fn unknown_key(&self, section: &str, key: &str) -> String {
        let here = self
            .settings
            .iter()
            .filter(|setting| setting.section == section);
        if let Some(name) = nearest(key, here.map(|setting| setting.key)) {
            return format!(
                "is an unknown key; did you mean {}?",
                qualify(section, name)
            );
        }
        match self.settings.iter().find(|setting| setting.key == key) {
            Some(Setting { section: "", .. }) => {
                "is an unknown key; it belongs at the top of the file, above every [section]"
                    .to_owned()
            }
            Some(setting) => format!("is an unknown key; it belongs below [{}]", setting.section),
            None => "is an unknown key".to_owned(),
        }
    }
}

/// The value of `newer_keys`: the keys that only a newer bcd knows.
#[derive(Default)]
pub(super) struct NewerKeys(Vec<(String, String)>);

impl NewerKeys {
    /// From entries of the forms `key`, `section.key` and `section.*`.
    pub fn new(entries: Vec<(String, String)>) -> Self {
        Self(entries)
    }

    /// One entry, as (section, key), the key being `*` for a whole section.
    pub fn parse_entry(entry: &str) -> Result<(String, String), String> {
        let bare = |name: &str| {
            !name.is_empty()
                && name
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
        };
        match entry.split_once('.') {
            None if bare(entry) => Ok((String::new(), entry.to_owned())),
            Some((section, key)) if bare(section) && (key == "*" || bare(key)) => {
                Ok((section.to_owned(), key.to_owned()))
            }
            _ => Err(format!(
                "{} is not of the form key, section.key or section.*",
                quoted(entry)
            )),
        }
    }

    fn lists_section(&self, section: &str) -> bool {
        self.0.iter().any(|(listed, _)| listed == section)
    }

    fn lists(&self, section: &str, key: &str) -> bool {
        self.0
            .iter()
            .any(|(s, k)| s == section && (k == key || k == "*"))
    }
}

/// An entry of the file in quotes for a message: escaped, and cut when long.
pub(super) fn quoted(text: &str) -> String {
    let short: String = text.chars().take(60).collect();
    let dots = if short.len() < text.len() { "…" } else { "" };
    format!("\"{}{dots}\"", short.escape_debug())
}
