//! Members of an object that an operator wrote, taken one by one; what is left over is refused.

use crate::cli::ago::parse_span;
use crate::json::Json;

/// What was given, and for what.
pub struct Given {
    what: String,
    members: Vec<(String, Json)>,
}

impl Given {
    /// # Errors
    /// It is not an object.
    pub fn new(what: String, value: &Json) -> Result<Self, String> {
        match value {
            Json::Object(members) => Ok(Self {
                what,
                members: members.clone(),
            }),
            Json::Null => Ok(Self {
                what,
                members: Vec::new(),
            }),
            _ => Err(format!("{what} are a JSON object")),
        }
    }

    /// Whether a member is there still.
    pub fn has(&self, name: &str) -> bool {
        self.members.iter().any(|(known, _)| known == name)
    }

    fn take(&mut self, name: &str) -> Option<Json> {
        let index = self.members.iter().position(|(known, _)| known == name)?;
        Some(self.members.remove(index).1)
    }

    fn wrong(&self, name: &str, must: &str) -> String {
        format!("{name} of {} must be {must}", self.what)
    }

    /// A text of at most `max` bytes without control characters; empty when it is not given.
    pub fn text(&mut self, name: &str, max: usize) -> Result<String, String> {
        match self.take(name) {
            None => Ok(String::new()),
            Some(Json::Text(text)) if text.len() <= max && !text.chars().any(char::is_control) => {
                Ok(text)
            }
            Some(_) => Err(self.wrong(
                name,
                &format!("a text of at most {max} bytes without control characters"),
            )),
        }
    }

    /// A whole number in these bounds, as a number or in a text.
    pub fn number(&mut self, name: &str, min: i64, max: i64) -> Result<Option<i64>, String> {
        let given = match self.take(name) {
            None => return Ok(None),
            Some(Json::Number(text) | Json::Text(text)) => text.parse::<i64>().ok(),
            Some(_) => None,
        };
        match given {
            Some(number) if (min..=max).contains(&number) => Ok(Some(number)),
            _ => Err(self.wrong(name, &format!("a whole number from {min} to {max}"))),
        }
    }

    /// A switch, also in a text; off when it is not given.
    pub fn flag(&mut self, name: &str) -> Result<bool, String> {
        match self.take(name) {
            None => Ok(false),
            Some(Json::Bool(value)) => Ok(value),
            Some(Json::Text(text)) if text == "true" => Ok(true),
            Some(Json::Text(text)) if text == "false" => Ok(false),
            Some(_) => Err(self.wrong(name, "true or false")),
        }
    }

    /// A moment as Unix time in milliseconds, in `<name>_ms` or, as a span before now, in `<name>`.
    pub fn moment(&mut self, name: &str, now_ms: i64) -> Result<i64, String> {
        let exact = self.number(&format!("{name}_ms"), 0, i64::MAX)?;
        let before = match self.take(name) {
            None => None,
            Some(given) => Some(
                given
                    .as_text()
                    .and_then(parse_span)
                    .ok_or_else(|| self.wrong(name, "a span before now, such as 90m"))?,
            ),
        };
        match (exact, before) {
            (Some(_), Some(_)) => Err(format!(
                "{name} and {name}_ms of {} say the same: give one",
                self.what
            )),
            (Some(exact), None) => Ok(exact),
            (None, Some(before)) => Ok((now_ms - before).max(1)),
            (None, None) => Ok(0),
        }
    }

    /// # Errors
    /// Something is left that nothing takes.
    pub fn finish(self, known: &[&str]) -> Result<(), String> {
        match self.members.first() {
            None => Ok(()),
            Some((name, _)) => Err(format!(
                "{} have no {}: {}",
                self.what,
                bcd::crypto::json::quote(name),
                match known {
                    [] => "there are none".to_owned(),
                    known => format!("there are {}", known.join(", ")),
                }
            )),
        }
    }
}
