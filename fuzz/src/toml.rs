//! The TOML subset: what is read is written and read back the same; every slip names a line of the text.
use std::fmt::Write as _;

use bcd::config::fresh;
use bcd::config::toml::{self, Document, MAX_SYNTAX_ERRORS, Value};

pub const HEAP: super::Heap = super::Heap {
    base: 32 << 10,
    per_byte: 512,
};

pub fn run(data: &[u8]) {
    match toml::parse(data, &[]) {
        Ok(document) => {
            let text = written(&document);
            let again = toml::parse(text.as_bytes(), &[]).expect("what was read reads back");
            assert_eq!(values(&again), values(&document), "{text}");
        }
        Err(slips) => {
            let lines = data.iter().filter(|byte| **byte == b'\n').count() + 1;
            assert!((1..=MAX_SYNTAX_ERRORS).contains(&slips.len()));
            for slip in slips {
                assert!((1..=lines).contains(&slip.line));
                assert!(!slip.to_string().contains('\n'));
            }
        }
    }
}

fn values(document: &Document) -> Vec<(&str, &str, &Value)> {
    let sections = document.sections.iter();
    sections
        .flat_map(|(name, section)| {
            let items = section.items.iter();
            items.map(move |(key, item)| (name.as_str(), key.as_str(), &item.value))
        })
        .collect()
}

fn written(document: &Document) -> String {
    let mut text = String::new();
    for (name, section) in &document.sections {
        if !name.is_empty() {
            let _ = writeln!(text, "[{name}]");
        }
        for (key, item) in &section.items {
            let _ = match &item.value {
                Value::String(value) => writeln!(text, "{key} = {}", fresh::string(value)),
                Value::Integer(value) => writeln!(text, "{key} = {value}"),
                Value::Boolean(value) => writeln!(text, "{key} = {value}"),
            };
        }
    }
    text
}
