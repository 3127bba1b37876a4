//! JSON: what passes the check is read by the lenient reader behind it without a panic or an abort,
//! within bounds, and a text is written so that it reads back.
#![allow(clippy::question_mark)]
use std::collections::HashMap;

use bcd::crypto::json;
use nanoserde::DeJson;

pub const HEAP: super::Heap = super::Heap {
    base: 64 << 10,
    per_byte: 160,
};

/// Every shape the program reads, and some it does not.
#[derive(DeJson)]
#[allow(dead_code)]
struct Sink {
    text: Option<String>,
    number: Option<u64>,
    signed: Option<i64>,
    float: Option<f64>,
    flag: Option<bool>,
    list: Option<Vec<String>>,
    lists: Option<Vec<Vec<u64>>>,
    map: Option<HashMap<String, String>>,
    inner: Option<Box<Sink>>,
}

pub fn run(data: &[u8]) {
    const LENGTH: usize = 1 << 16;
    for depth in [2, 32] {
        let Ok(text) = json::check(data, LENGTH, depth) else {
            continue;
        };
        assert!(text.len() <= LENGTH);
        let _ = Sink::deserialize_json(text).is_ok();
        let _ = <Vec<Sink>>::deserialize_json(text).is_ok();
        let _ = <HashMap<String, Sink>>::deserialize_json(text).is_ok();
        let _ = String::deserialize_json(text).is_ok();
        let _ = f64::deserialize_json(text).is_ok();
        let _ = bool::deserialize_json(text).is_ok();
        if let Ok(number) = u64::deserialize_json(text) {
            assert!(
                text.trim().starts_with(|c: char| c.is_ascii_digit()),
                "{number}"
            );
        }
    }
    if let Ok(text) = std::str::from_utf8(data) {
        let quoted = json::quote(text);
        let checked =
            json::check(quoted.as_bytes(), usize::MAX, 1).expect("what is written passes");
        assert!(!checked.chars().any(|c| c < ' '));
        assert_eq!(
            String::deserialize_json(checked).ok().as_deref(),
            Some(text)
        );
    }
}
