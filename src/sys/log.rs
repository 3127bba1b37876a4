//! The log: events with fields, one line each on standard error, as JSON or logfmt from the same
//! call. What is secret has no way in: a field is a word, a number or a display of an error.
//! Whoever reads of a failure reads what to do about it (`do`), and nothing is said more than once a
//! minute (`repeated` counts). Whoever reads no more stops nothing: lines that are not
//! taken are dropped and counted (`log.lost`).
//!
//! ```text
//! {"time":"2026-09-26T11:42:00.125Z","level":"info","event":"session.welcome","version":1}
//! time=2026-09-26T11:42:00.125Z level=info event=session.welcome version=1
//! ```
use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use remedies::REMEDIES;
use repeats::{Hash, Repeats, Said};
use sink::Sink;

use super::clock;
use super::utc::Utc;

mod remedies;
mod repeats;
mod sink;

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

/// Bytes of a text that are written; what a peer sent may be a mebibyte long.
const TEXT: usize = 2048;

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

/// What repeats.
static REPEATS: Mutex<Repeats> = Mutex::new(Repeats::new());

/// Remedies of the program's own events, beside those of bcd.
static MORE: OnceLock<&[(&str, &str)]> = OnceLock::new();

/// Adds remedies, by the names of events, once; without any, still to be called by a program whose
/// warnings shall all have one.
pub fn add_remedies(remedies: &'static [(&'static str, &'static str)]) {
    let _ = MORE.set(remedies);
}

/// Writes the event `name` ("session.welcome") with its fields. A warning or an error that does not say
/// what to `do` gets the remedy of its name. One that was written within the last minute, with the
/// same fields save times (`…_ms`), is counted instead.
pub fn event(level: Level, name: &'static str, fields: &[(&str, Value<'_>)]) {
    #[cfg(test)]
    if tests::QUIET.get() {
        return;
    }
    if !enabled(level) {
        return;
    }
    let says = || fields.iter().any(|(key, _)| *key == "do");
    let remedy = match level {
        Level::Warn | Level::Error if !says() => remedy(name),
        _ => None,
    };
    let remedy = remedy.map(|remedy| ("do", Value::Text(remedy)));
    let mut all: Vec<_> = fields.iter().copied().chain(remedy).collect();
    let (line, key) = render(clock::wall_ms(), level, name, &all);
    let now = clock::monotonic();
    let mut repeats = REPEATS.lock().unwrap_or_else(PoisonError::into_inner);
    tell_overdue(&mut repeats, now);
    match repeats.take(key, name, level, now) {
        Said::KeptBack => {}
        Said::Write(0) => write(line),
        Said::Write(kept) => {
            all.push(("repeated", Value::Number(kept.into())));
            write(render(clock::wall_ms(), level, name, &all).0);
        }
    }
}

/// Tells how often lines were kept back whose minute is over: for moments at which the process is awake
/// anyway.
pub fn tell_repeats() {
    let mut repeats = REPEATS.lock().unwrap_or_else(PoisonError::into_inner);
    tell_overdue(&mut repeats, clock::monotonic());
}

fn tell_overdue(repeats: &mut Repeats, now: Duration) {
    while let Some((name, level, kept)) = repeats.overdue(now) {
        let fields = [
            ("of", Value::Text(name)),
            ("repeated", Value::Number(kept.into())),
        ];
        write(render(clock::wall_ms(), level, "log.repeated", &fields).0);
    }
}

fn write(line: String) {
    static SINK: Sink = Sink::new();
    SINK.put(&mut std::io::stderr().lock(), line, &|lost| {
        let fields = [
            ("lines", Value::Number(lost.into())),
            (
                "do",
                Value::Text("see why whoever reads this log stopped reading it"),
            ),
        ];
        render(clock::wall_ms(), Level::Warn, "log.lost", &fields).0
    });
}

/// What to do about an event of this name.
fn remedy(name: &str) -> Option<&'static str> {
    let more = MORE.get().copied().unwrap_or_default();
    let known = REMEDIES
        .iter()
        .chain(more)
        .find(|(known, _)| *known == name);
    debug_assert!(
        known.is_some() || MORE.get().is_none(),
        "{name} says nobody what to do about it"
    );
    known.map(|(_, remedy)| *remedy)
}

/// The line, and the hash of what makes it another one.
fn render(now_ms: u64, level: Level, name: &str, fields: &[(&str, Value<'_>)]) -> (String, u64) {
    let json = FORM.load(Ordering::Relaxed) & JSON != 0;
    render_as(now_ms, level, name, fields, json)
}

fn render_as(
    now_ms: u64,
    level: Level,
    name: &str,
    fields: &[(&str, Value<'_>)],
    json: bool,
) -> (String, u64) {
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
    let mut hash = Hash::new();
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
        if text.len() > TEXT {
            text.truncate(cut(&text, TEXT).len());
            text.push('…');
        }
        if *key != "time" && !key.ends_with("_ms") {
            hash.add(key);
            match value {
                Value::Number(number) => hash.0 ^= number,
                Value::Flag(flag) => hash.0 ^= u64::from(*flag),
                _ => {}
            }
            hash.add(&text);
        }
        match value {
            Value::Number(_) | Value::Flag(_) => {}
            _ if json || !is_plain(&text) => quote(&mut line, &text),
            _ => line.push_str(&text),
        }
    }
    if json {
        line.push('}');
    }
    (line, hash.0)
}

/// An error and all its causes on one line, "a: b: c".
pub fn one_line_chain(error: &dyn std::error::Error) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = chain(&mut text, error);
    one_line(&text)
}

/// Whether a character is not seen itself, and changes what is seen of others: a control, a line's end, what turns the
/// direction of writing. No name or serial number has one.
pub fn is_unseen(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// `text` with what is [unseen](is_unseen) as escapes: an error may quote what a peer sent, and that must
/// neither break the line nor drive the terminal.
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if is_unseen(c) {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
    line
}

/// At most so many bytes of a text, cut between characters.
pub fn cut(text: &str, max: usize) -> &str {
    let end = (0..=max.min(text.len()))
        .rev()
        .find(|end| text.is_char_boundary(*end));
    text.get(..end.unwrap_or(0)).unwrap_or_default()
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
            c if is_unseen(c) => {
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
            render_as(NOW, Level::Info, "session.welcome", &fields, true).0,
            r#"{"time":"2026-09-26T11:42:00.125Z","level":"info","event":"session.welcome","node":"node_01","version":1,"late":false,"error":"reset by peer","empty":""}"#
        );
        assert_eq!(
            render_as(NOW, Level::Info, "session.welcome", &fields, false).0,
            "time=2026-09-26T11:42:00.125Z level=info event=session.welcome node=node_01 version=1 late=false error=\"reset by peer\" empty=\"\""
        );
    }

    #[test]
    fn a_line_is_bounded_whatever_a_peer_sent() {
        let long = "é".repeat(1024 * 1024);
        let error = std::io::Error::other(long.clone());
        for json in [true, false] {
            for value in [
                Value::Text(&long),
                Value::Shown(&long),
                Value::Chain(&error),
            ] {
                let (line, _) = render_as(NOW, Level::Warn, "x", &[("said", value)], json);
                assert!(line.len() < 2200 && line.contains("éé…"), "{}", line.len());
            }
        }
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        for (max, expected) in [(0, ""), (1, "a"), (2, "a"), (3, "aä"), (9, "aä€")] {
            assert_eq!(cut("aä€", max), expected, "{max}");
        }
    }

    #[test]
    fn what_a_peer_sent_can_neither_break_the_line_nor_drive_the_terminal() {
        let hostile = "a\"b\\c\n\u{1b}[31m\u{9b}x=y\u{7f}\u{202e}\u{2028}";
        for json in [true, false] {
            let (line, _) = render_as(
                NOW,
                Level::Warn,
                "x",
                &[("said", Value::Text(hostile))],
                json,
            );
            assert!(!line.chars().any(is_unseen), "{line}");
            assert!(
                line.contains(r#""a\"b\\c\n\u001b[31m\u009bx=y\u007f\u202e\u2028""#),
                "{line}"
            );
        }
    }

    #[test]
    fn lines_are_alike_when_they_differ_in_times_alone() {
        let key = |name, error: &str, again, version| {
            let fields = [
                ("error", Value::Text(error)),
                ("again_ms", Value::Number(again)),
                ("version", Value::Number(version)),
            ];
            render_as(NOW + again, Level::Warn, name, &fields, true).1
        };
        let one = key("session.lost", "reset", 5, 1);
        assert_eq!(one, key("session.lost", "reset", 6000, 1));
        assert_ne!(one, key("session.lost", "refused", 5, 1));
        assert_ne!(one, key("session.lost", "reset", 5, 2));
        assert_ne!(one, key("session.gone", "reset", 5, 1));
    }

    #[test]
    fn remedies_are_by_name_and_no_name_is_there_twice() {
        let mut names: Vec<_> = REMEDIES.iter().map(|(name, _)| *name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(
            REMEDIES
                .iter()
                .all(|(name, remedy)| !remedy.is_empty() && name.contains('.'))
        );
    }
}
