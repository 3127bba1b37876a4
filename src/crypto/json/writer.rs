//! JSON written member by member: the commas, and text that breaks nothing.
use super::quote;

/// A JSON object, or one value of it, as it grows. Every `begin` has its `end`.
#[derive(Default)]
pub struct Writer {
    out: String,
    open: Vec<char>,
}

impl Writer {
    /// An object begins: as the member `name`, or without a name (the outermost one, or in a list).
    pub fn begin(&mut self, name: &str) {
        self.key(name);
        self.out.push('{');
        self.open.push('}');
    }

    /// A list begins, as the member `name`.
    pub fn begin_list(&mut self, name: &str) {
        self.key(name);
        self.out.push('[');
        self.open.push(']');
    }

    /// What was begun last ends.
    pub fn end(&mut self) {
        self.out.extend(self.open.pop());
    }

    pub fn text(&mut self, name: &str, value: &str) {
        self.raw(name, &quote(value));
    }

    /// Text, or null when it is empty.
    pub fn text_or_null(&mut self, name: &str, value: &str) {
        match value {
            "" => self.raw(name, "null"),
            value => self.text(name, value),
        }
    }

    pub fn number(&mut self, name: &str, value: impl Into<Option<i64>>) {
        match value.into() {
            Some(value) => self.raw(name, &value.to_string()),
            None => self.raw(name, "null"),
        }
    }

    pub fn flag(&mut self, name: &str, value: bool) {
        self.raw(name, if value { "true" } else { "false" });
    }

    /// A value that is JSON.
    pub fn raw(&mut self, name: &str, value: &str) {
        self.key(name);
        self.out.push_str(value);
    }

    /// All of it.
    pub fn finish(self) -> String {
        self.out
    }

    fn key(&mut self, name: &str) {
        if !(self.out.is_empty() || self.out.ends_with(['{', '['])) {
            self.out.push(',');
        }
        if !name.is_empty() {
            self.out.push_str(&quote(name));
            self.out.push(':');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_json() {
        let mut json = Writer::default();
        json.begin("");
        json.text("a", "x\"y\n");
        json.begin("b");
        json.end();
        json.begin_list("c");
        json.begin("");
        json.number("n", -3);
        json.number("none", None);
        json.end();
        json.text("", "{");
        json.text("", "[");
        json.end();
        json.flag("d", true);
        json.text_or_null("e", "");
        json.end();
        let text = json.finish();
        assert_eq!(
            text,
            r#"{"a":"x\"y\n","b":{},"c":[{"n":-3,"none":null},"{","["],"d":true,"e":null}"#
        );
        super::super::check(text.as_bytes(), 1000, 4).unwrap();
    }
}
