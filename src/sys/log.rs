//! The log: events with fields, one line each on standard error, as JSON or logfmt from the same
//! call. What is secret has no way in: a field is a word, a number or a display of an error.
//!
//! ```text
//! {"time":"2026-09-26T11:42:00.125Z","level":"info","event":"session.welcome","version":1}
//! time=2026-09-26T11:42:00.125Z level=info event=session.welcome version=1
//! ```
use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::sync::atomic::{AtomicU8, Ordering};

use super::clock;
use super::utc::Utc;

/// How much an event matters; what is below `[log] level` is not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

impl Level {
    /// The level of this name, as `[log] level` has them.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "debug" => Some(Self::Debug),
            "info" => Some(Self::Info),
            "warn" => Some(Self::Warn),
            "error" => Some(Self::Error),
            _ => None,
        }
    }
}

/// A field's value.
#[derive(Clone, Copy)]
pub enum Value<'a> {
    Text(&'a str),
    Number(u64),
    Flag(bool),
    /// Written as text.
    Shown(&'a dyn fmt::Display),
    /// An error with all its causes, "a: b: c".
    Chain(&'a dyn std::error::Error),
}

/// Level in the low bits, JSON in bit 7. JSON lines from info on, until [`start`] says otherwise.
static FORM: AtomicU8 = AtomicU8::new(Level::Info as u8 | JSON);
const JSON: u8 = 0x80;

/// Sets the level and the form, as `[log]` has them.
pub fn start(level: Level, json: bool) {
    FORM.store(level as u8 | if json { JSON } else { 0 }, Ordering::Relaxed);
}

/// Sets the level alone.
pub fn set_level(level: Level) {
    let json = FORM.load(Ordering::Relaxed) & JSON;
    FORM.store(level as u8 | json, Ordering::Relaxed);
}

/// Whether events of `level` are written: for fields that cost something to collect.
pub fn enabled(level: Level) -> bool {
    level as u8 >= FORM.load(Ordering::Relaxed) & !JSON
}

/// Writes the event `name` ("session.welcome") with its fields.
pub fn event(level: Level, name: &str, fields: &[(&str, Value<'_>)]) {
    #[cfg(test)]
    if tests::QUIET.get() {
        return;
    }
    if enabled(level) {
        let json = FORM.load(Ordering::Relaxed) & JSON != 0;
        let mut line = render(clock::wall_ms(), level, name, fields, json);
        line.push('\n');
        // One write a line; there is nowhere to say that standard error is gone.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

fn render(
    now_ms: u64,
    level: Level,
    name: &str,
    fields: &[(&str, Value<'_>)],
    json: bool,
) -> String {
    let level = match level {
        Level::Debug => "debug",
        Level::Info => "info",
        Level::Warn => "warn",
        Level::Error => "error",
    };
    let time = Utc::from_ms(now_ms);
    let head = [
        ("time", Value::Shown(&time)),
        ("level", Value::Text(level)),
        ("event", Value::Text(name)),
    ];
    let mut line = String::with_capacity(160);
    let mut text = String::new();
    for (key, value) in head.iter().chain(fields) {
        let open = match (line.is_empty(), json) {
            (true, true) => "{",
            (true, false) => "",
            (false, true) => ",",
            (false, false) => " ",
        };
        line.push_str(open);
        if json {
            quote(&mut line, key);
            line.push(':');
        } else {
            line.push_str(key);
            line.push('=');
        }
        text.clear();
        // Writing to a string cannot fail.
        let _ = match value {
            Value::Text(value) => text.write_str(value),
            Value::Number(value) => write!(line, "{value}"),
            Value::Flag(value) => write!(line, "{value}"),
            Value::Shown(value) => write!(text, "{value}"),
            Value::Chain(error) => chain(&mut text, *error),
        };
        match value {
            Value::Number(_) | Value::Flag(_) => {}
            _ if json || !is_plain(&text) => quote(&mut line, &text),
            _ => line.push_str(&text),
        }
    }
    if json {
        line.push('}');
    }
    line
}

fn chain(text: &mut String, error: &dyn std::error::Error) -> fmt::Result {
    write!(text, "{error}")?;
    let mut cause = error.source();
    while let Some(error) = cause {
        write!(text, ": {error}")?;
        cause = error.source();
    }
    Ok(())
}

/// Whether logfmt needs no quotes.
fn is_plain(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_graphic() && !b"\"=\\".contains(&b);
    !text.is_empty() && text.bytes().all(plain)
}

/// A JSON string; logfmt readers know the same escapes.
fn quote(line: &mut String, text: &str) {
    line.push('"');
    for c in text.chars() {
        match c {
            '"' => line.push_str("\\\""),
            '\\' => line.push_str("\\\\"),
            '\n' => line.push_str("\\n"),
            '\t' => line.push_str("\\t"),
            // The C1 controls too: some terminals obey them.
            c if c.is_control() => {
                let _ = write!(line, "\\u{:04x}", u32::from(c));
            }
            c => line.push(c),
        }
    }
    line.push('"');
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// For a test that does ten thousand times what is worth an event: its thread writes none.
        pub(crate) static QUIET: Cell<bool> = const { Cell::new(false) };
    }

    const NOW: u64 = 1_790_422_920_125;

    #[test]
    fn the_same_event_is_json_or_logfmt() {
        let io = std::io::Error::other("reset by peer");
        let fields = [
            ("node", Value::Text("node_01")),
            ("version", Value::Number(1)),
            ("late", Value::Flag(false)),
            ("error", Value::Chain(&io)),
            ("empty", Value::Text("")),
        ];
        assert_eq!(
            render(NOW, Level::Info, "session.welcome", &fields, true),
            r#"{"time":"2026-09-26T11:42:00.125Z","level":"info","event":"session.welcome","node":"node_01","version":1,"late":false,"error":"reset by peer","empty":""}"#
        );
        assert_eq!(
            render(NOW, Level::Info, "session.welcome", &fields, false),
            "time=2026-09-26T11:42:00.125Z level=info event=session.welcome node=node_01 version=1 late=false error=\"reset by peer\" empty=\"\""
        );
    }

    #[test]
    fn what_a_peer_sent_can_neither_break_the_line_nor_drive_the_terminal() {
        let hostile = "a\"b\\c\n\u{1b}[31m\u{9b}x=y\u{7f}";
        for json in [true, false] {
            let line = render(
                NOW,
                Level::Warn,
                "x",
                &[("said", Value::Text(hostile))],
                json,
            );
            assert!(!line.chars().any(char::is_control), "{line}");
            assert!(
                line.contains(r#""a\"b\\c\n\u001b[31m\u009bx=y\u007f""#),
                "{line}"
            );
        }
    }
}
