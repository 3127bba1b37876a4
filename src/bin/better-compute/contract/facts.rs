//! What a machine is made of, as an operator reads it. Names are the contract's.

use bcd::facts::view::FactsView;
use bcd::proto::{Facts, Message};
use nanoserde::SerJson;

use super::kinds::raw;
use crate::json::Json;

/// Encoded facts as an operator reads them.
pub fn show_facts(bytes: &[u8]) -> Json {
    match Facts::decode(bytes) {
        Ok(facts) => show(facts),
        Err(_) => raw(bytes),
    }
}

/// As `bcd facts --json` prints them on the machine itself.
pub fn show(facts: Facts) -> Json {
    let json = FactsView::from(facts).serialize_json();
    Json::parse(json.as_bytes(), json.len(), 8).unwrap_or(Json::Null)
}
