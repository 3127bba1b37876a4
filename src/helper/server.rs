//! The helper's socket: who comes is looked at, greeted, heard, looked at again, and answered.
//!
//! A client that may not be heard is told so and gone before it has taken a place. Of the others eight of the
//! account and eight of root's are served at once, so that neither can keep the other out. One that says nothing for
//! five seconds, or takes no answer for as long, is cut off; one that goes away while its operation is under way
//! stops it.
use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use super::guard::{Guard, Peer, Stranger};
use super::operations;
use super::protocol::{Answer, BUSY, Greeting, LINE, Request};
use crate::rt::{self, Either, UnixListener, UnixStream};
use crate::sys::log::{self, Level, Value};
use crate::sys::peer::{self, Credentials};
use crate::sys::random;
use crate::sys::stop::Stop;

/// Clients at once, of root's and of the account.
const CLIENTS: usize = 8;

/// For a request to come.
const ASK: Duration = Duration::from_secs(5);

/// For a line to be taken.
const TAKE: Duration = Duration::from_secs(5);

/// What the connections share.
struct Shared {
    guard: Guard,
    /// Places taken, by the account and by root.
    taken: [Cell<usize>; 2],
    /// Whether an operation is under way.
    working: Cell<bool>,
}

/// Answers everybody who comes. Ends only when the listener is broken.
pub async fn serve(listener: UnixListener, guard: Guard) {
    let shared = Rc::new(Shared {
        guard,
        taken: Default::default(),
        working: Cell::new(false),
    });
    loop {
        let stream = match listener.accept().await {
            Ok(stream) => stream,
            Err(error) => {
                let fields = [
                    ("error", Value::Chain(&error)),
                    ("do", Value::Text("restart bcd-helper.service")),
                ];
                return log::event(Level::Error, "helper.not_served", &fields);
            }
        };
        // Somebody who connects without pause does not keep those waiting who are being served.
        rt::yield_now().await;
        match shared.guard.meet(&stream) {
            Ok(peer) => {
                let shared = shared.clone();
                rt::spawn(async move { shared.client(&stream, &peer).await });
            }
            Err(stranger) => {
                let answer = refusal(&stranger);
                rt::spawn(async move { say(&stream, &answer.line()).await });
            }
        }
    }
}

/// Says it in the log, and to the peer.
fn refusal(stranger: &Stranger) -> Answer {
    let fields = [
        ("reason", Value::Text(stranger.reason())),
        ("error", Value::Chain(stranger)),
        (
            "do",
            Value::Text(
                "find out what asks there: only an installed bcd has business with bcd helper",
            ),
        ),
    ];
    log::event(Level::Warn, "helper.refused", &fields);
    Answer::refused(stranger.reason(), &log::one_line_chain(stranger))
}

impl Shared {
    async fn client(&self, stream: &UnixStream, peer: &Peer) {
        let places = match peer.credentials.uid {
            0 => &self.taken[1],
            _ => &self.taken[0],
        };
        let Some(_place) = Place::take(places, CLIENTS) else {
            let busy = Answer::refused(BUSY, "too many clients at once; try again");
            return say(stream, &busy.line()).await;
        };
        let answer = match self.hear(stream, peer).await {
            Ok(Some(request)) => self.work(stream, peer, request).await,
            // It has gone, and asked for nothing.
            Ok(None) => return,
            Err(refused) => refused,
        };
        say(stream, &answer.line()).await;
    }

    /// The peer's request, once it has shown that it is still who it was.
    async fn hear(&self, stream: &UnixStream, peer: &Peer) -> Result<Option<Request>, Answer> {
        let nonce = nonce().map_err(|error| Answer::refused("Failed", &error.to_string()))?;
        peer::ask_for_writers(stream)
            .map_err(|error| Answer::refused("Failed", &error.to_string()))?;
        let greeting = Greeting {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id().into(),
            nonce,
        };
        say(stream, &greeting.line()).await;
        let Ok(heard) = rt::timeout(ASK, line(stream)).await else {
            return Err(Answer::refused("BadRequest", "no request came"));
        };
        let Some((line, writer)) = heard? else {
            return Ok(None);
        };
        let met = self.guard.meet_again(peer, writer);
        met.map_err(|stranger| refusal(&stranger))?;
        Request::read(&line, &greeting.nonce).map(Some)
    }

    async fn work(&self, stream: &UnixStream, peer: &Peer, request: Request) -> Answer {
        if self.working.replace(true) {
            return Answer::refused(BUSY, "another operation is under way; try again");
        }
        let answer = self.operate(stream, peer, request).await;
        self.working.set(false);
        answer
    }

    async fn operate(&self, stream: &UnixStream, peer: &Peer, request: Request) -> Answer {
        let name = request.operation.name();
        let (uid, pid) = (peer.credentials.uid, peer.credentials.pid);
        let fields = [
            ("operation", Value::Text(name)),
            ("for", Value::Text(&request.whom)),
            ("uid", Value::Shown(&uid)),
            ("pid", Value::Shown(&pid)),
        ];
        log::event(Level::Info, "helper.operation", &fields);
        let stop = match Stop::new() {
            Ok(stop) => stop,
            Err(error) => return Answer::refused("Failed", &error.to_string()),
        };
        let word = stop.clone();
        let work = move || operations::run(request.operation, &word);
        let mut work = pin!(rt::blocking("operation", work));
        let mut more = [0; 1];
        let done = match rt::select(work.as_mut(), stream.read(&mut more)).await {
            Either::Left(done) => done,
            // It went, or says more than there is to say.
            Either::Right(_) => {
                stop.say();
                work.await
            }
        };
        let answer =
            done.unwrap_or_else(|error| Answer::refused("Failed", &log::one_line_chain(&error)));
        if let Answer::Refused { reason, message } = &answer {
            let fields = [
                ("operation", Value::Text(name)),
                ("reason", Value::Text(reason)),
                ("error", Value::Text(message)),
                (
                    "do",
                    Value::Text("see the error; whoever asked is told the same"),
                ),
            ];
            log::event(Level::Warn, "helper.operation_refused", &fields);
        }
        answer
    }
}

/// The first line, and who wrote all of it; `None` when the peer went before its end.
///
/// # Errors
/// It is too long, or of several writers.
async fn line(stream: &UnixStream) -> Result<Option<(Vec<u8>, Option<Credentials>)>, Answer> {
    let bad = |why| Answer::refused("BadRequest", why);
    let mut line = Vec::new();
    let mut wrote = None;
    let mut buffer = [0; 512];
    loop {
        let (read, writer) = match stream.read_of(&mut buffer).await {
            Ok((0, _)) => return Ok(None),
            Ok(read) => read,
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                return Err(bad("descriptors are not taken"));
            }
            Err(_) => return Ok(None),
        };
        if !line.is_empty() && writer != wrote {
            return Err(refusal(&Stranger::Writer));
        }
        wrote = writer;
        let part = buffer.get(..read).unwrap_or_default();
        let end = part.iter().position(|byte| *byte == b'\n');
        line.extend_from_slice(part.get(..end.unwrap_or(read)).unwrap_or_default());
        if line.len() >= LINE {
            return Err(bad("a request has at most 4 KiB"));
        }
        match end {
            Some(end) if end + 1 < read => return Err(bad("a connection is for one request")),
            Some(_) => return Ok(Some((line, wrote))),
            None => {}
        }
    }
}

fn nonce() -> std::io::Result<String> {
    let bytes: [u8; 16] = random::bytes()?;
    let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
    Ok(digits.collect())
}

/// Whoever does not take it goes without.
async fn say(stream: &UnixStream, line: &str) {
    let _ = rt::timeout(TAKE, stream.write_all(line.as_bytes())).await;
}

/// One of a number of places.
struct Place<'a>(&'a Cell<usize>);

impl<'a> Place<'a> {
    fn take(taken: &'a Cell<usize>, places: usize) -> Option<Self> {
        (taken.get() < places).then(|| {
            taken.set(taken.get() + 1);
            Self(taken)
        })
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}
