//! The status socket: one request a connection, one line of JSON each way.
//!
//! A request is at most 1 KiB and must be there within 2 seconds; empty, it asks for the status.
//! Eight clients are served at once and the next is told so. A client that does not read is cut off
//! after 5 seconds: until then it holds a place and what the kernel keeps for it, never a queue here.
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use nanoserde::DeJson;

use super::{Form, Source};
use crate::crypto::json::{self, Writer};
use crate::rt::{self, Either, UnixListener, UnixStream};
use crate::sys::log::{self, Level, Value};

/// Clients at once.
const CLIENTS: usize = 8;

/// The longest request.
pub const REQUEST: usize = 1024;

/// Clients beyond these, that are told so; those after them are not.
const TOLD: usize = 8;

/// For a request to come.
const ASK: Duration = Duration::from_secs(2);

/// For an answer to be taken.
const TAKE: Duration = Duration::from_secs(5);

/// For a client that was refused to read why.
const LINGER: Duration = Duration::from_secs(1);

/// Changes within this time are told together.
const TOGETHER: Duration = Duration::from_millis(200);

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub form: Form,
    /// Again at each change, until the client closes.
    pub watch: bool,
}

#[derive(DeJson, Default)]
#[nserde(default)]
struct Asked {
    want: String,
    watch: bool,
}

impl Request {
    /// Reads a request, without its line's end. Empty, it is for the status as JSON, once.
    ///
    /// # Errors
    /// What is wrong with it, for whoever sent it.
    pub fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        let bytes = bytes.trim_ascii();
        let asked = if bytes.is_empty() {
            Asked::default()
        } else {
            const FORM: &str = "a request is one JSON object on one line, at most 1 KiB";
            let text = json::check(bytes, REQUEST, 4).map_err(|_| FORM)?;
            Asked::deserialize_json(text).map_err(|_| FORM)?
        };
        let form = match asked.want.as_str() {
            "" | "status" => Form::Json,
            "text" => Form::Text,
            "metrics" => Form::Metrics,
            _ => return Err("want is one of status, text and metrics"),
        };
        Ok(Self {
            form,
            watch: asked.watch,
        })
    }

    /// As it is sent, with its line's end.
    pub fn line(self) -> String {
        let mut json = Writer::default();
        json.begin("");
        json.text(
            "want",
            match self.form {
                Form::Json => "status",
                Form::Text => "text",
                Form::Metrics => "metrics",
            },
        );
        json.flag("watch", self.watch);
        json.end();
        json.finish() + "\n"
    }
}

/// Answers everybody who comes. Ends only when the listener is broken.
pub async fn serve(listener: UnixListener, source: Rc<Source>) {
    let clients = Rc::new(Cell::new(0));
    loop {
        let stream = match listener.accept().await {
            Ok(stream) => stream,
            Err(error) => {
                let fields = [
                    ("error", Value::Chain(&error)),
                    (
                        "do",
                        Value::Text("restart bcd node; the session goes on without"),
                    ),
                ];
                log::event(Level::Warn, "status.not_served", &fields);
                return;
            }
        };
        let place = Place::take(&clients);
        let source = source.clone();
        rt::spawn(async move {
            match place {
                None => {}
                Some(place) if place.is_beyond => {
                    refuse(&stream, "too many clients at once; try again").await;
                }
                Some(_place) => client(&stream, &source).await,
            }
        });
    }
}

/// One of the places there are.
struct Place {
    taken: Rc<Cell<usize>>,
    /// It is good for a refusal only.
    is_beyond: bool,
}

impl Place {
    fn take(taken: &Rc<Cell<usize>>) -> Option<Self> {
        let before = taken.get();
        (before < CLIENTS + TOLD).then(|| {
            taken.set(before + 1);
            Self {
                taken: taken.clone(),
                is_beyond: before >= CLIENTS,
            }
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.taken.set(self.taken.get().saturating_sub(1));
    }
}

async fn client(stream: &UnixStream, source: &Source) {
    let Ok(Some(asked)) = rt::timeout(ASK, request(stream)).await else {
        return refuse(stream, "no request came").await;
    };
    let request = match Request::parse(&asked) {
        Ok(request) => request,
        Err(why) => return refuse(stream, why).await,
    };
    let mut last = String::new();
    loop {
        let (rung, position) = (
            source.board.news().count(),
            source.journal.status().position,
        );
        let answer = answer(source, request.form);
        // What a page counts may have changed and the page not: then there is nothing to tell.
        if answer != last {
            if !write(stream, &answer).await {
                return;
            }
            last = answer;
        }
        if !request.watch {
            return;
        }
        let changed = rt::select(
            source.board.news().since(rung),
            source.journal.news(position),
        );
        let mut gone = [0; 64];
        // A client that says more, or closes, is not listened to any longer.
        if let Either::Right(_) = rt::select(changed, stream.read(&mut gone)).await {
            return;
        }
        rt::sleep(TOGETHER).await;
    }
}

/// What came until the first line's end or the client's; `None` when that is too much, or nothing.
async fn request(stream: &UnixStream) -> Option<Vec<u8>> {
    let mut asked = Vec::new();
    let mut buffer = [0; REQUEST];
    loop {
        let read = stream.read(&mut buffer).await.ok()?;
        let part = buffer.get(..read)?;
        let line = part.iter().position(|byte| *byte == b'\n');
        asked.extend_from_slice(part.get(..line.unwrap_or(read))?);
        if asked.len() > REQUEST {
            // It is refused for its length.
            return Some(asked);
        }
        if line.is_some() || read == 0 {
            return Some(asked);
        }
    }
}

/// A snapshot as one line of JSON: by itself, or as the text in it.
fn answer(source: &Source, form: Form) -> String {
    let seen = source.snapshot();
    let shown = seen.show(form);
    if form == Form::Json {
        return shown;
    }
    let mut json = Writer::default();
    json.begin("");
    json.flag("connected", seen.is_connected());
    json.text("text", &shown);
    json.end();
    json.finish() + "\n"
}

async fn refuse(stream: &UnixStream, why: &str) {
    let mut json = Writer::default();
    json.begin("");
    json.text("error", why);
    json.end();
    write(stream, &(json.finish() + "\n")).await;
    // What was not read when a socket is closed takes the answer with it.
    let rest = async {
        let mut buffer = [0; REQUEST];
        for _ in 0..64 {
            if !matches!(stream.read(&mut buffer).await, Ok(1..)) {
                return;
            }
        }
    };
    let _ = rt::timeout(LINGER, rest).await;
}

/// Whether it was taken.
async fn write(stream: &UnixStream, line: &str) -> bool {
    let written = rt::timeout(TAKE, stream.write_all(line.as_bytes())).await;
    matches!(written, Ok(Ok(())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_reads_as_it_was_written_and_an_empty_one_is_for_the_status() {
        for form in [Form::Json, Form::Text, Form::Metrics] {
            for watch in [false, true] {
                let request = Request { form, watch };
                assert_eq!(Request::parse(request.line().as_bytes()), Ok(request));
            }
        }
        let plain = Request {
            form: Form::Json,
            watch: false,
        };
        for empty in ["", "\r\n", "{}", "{\"newer\":[1]}"] {
            assert_eq!(Request::parse(empty.as_bytes()), Ok(plain), "{empty}");
        }
    }

    #[test]
    fn what_is_no_request_is_refused_with_a_reason() {
        let long = " ".repeat(REQUEST) + "{}";
        let deep = "{\"a\":[[[[[]]]]]}";
        for bad in [
            "x",
            "[]",
            "{",
            "{\"want\":1}",
            "{\"want\":\"all\"}",
            deep,
            &("{".to_owned() + &long),
        ] {
            assert!(Request::parse(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(Request::parse(b"\xff\xfe\x00").is_err());
    }
}
