//! One request, one connection.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]
use std::error::Error;
use std::fmt;
use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWriteExt};

use super::body::{Framing, Input, ReadError};
use super::{HEAD_LIMIT, HEADERS};
use crate::rt::{self, Stream};
use crate::wire::dial::{DialError, TlsTarget, dial};
use crate::wire::hop::HopError;
use crate::wire::phase::Phase;
use crate::wire::url::Url;

/// Informational answers (1xx) that are passed over.
const INFORMATIONAL: usize = 8;

/// The method of a question after which another protocol may follow.
const OTHER: &str = "CONNECT";

/// How long each phase may take.
#[derive(Debug, Clone, Copy)]
pub struct Waits {
    /// The look-up, and connecting, each.
    pub connect: Duration,
    /// The TLS handshake.
    pub tls: Duration,
    /// Sending the request.
    pub request: Duration,
    /// Until the answer's head is there.
    pub answer: Duration,
    /// Between two pieces of the answer's body.
    pub body: Duration,
}

impl Default for Waits {
    /// Ten seconds to connect, ten for TLS, thirty for each of the rest.
    fn default() -> Waits {
        let (short, long) = (Duration::from_secs(10), Duration::from_secs(30));
        Waits {
            connect: short,
            tls: short,
            request: long,
            answer: long,
            body: long,
        }
    }
}

/// A request.
pub struct Request<'a> {
    /// `GET`, `POST` or any other.
    pub method: &'a str,
    /// Where to.
    pub url: &'a Url,
    /// Headers besides Host, User-Agent, Connection and Content-Length.
    pub headers: &'a [(&'a str, &'a str)],
    /// The body; `None` sends no Content-Length.
    pub body: Option<&'a [u8]>,
    /// TLS, which an `https://` URL must have and an `http://` one must not.
    pub tls: Option<TlsTarget>,
    /// The deadlines.
    pub waits: Waits,
}

/// What ended a request.
#[derive(Debug)]
pub enum Cause {
    /// The phase took longer than this.
    TimedOut(Duration),
    /// No connection.
    Connect(rt::ConnectError),
    /// What stands on the way does not let the connection through.
    Hop(Box<HopError>),
    /// No TLS session.
    Tls(rt::tls::TlsError),
    /// The connection broke.
    Io(io::Error),
    /// The server closed the connection in the middle of its answer.
    Cut,
    /// The answer is not HTTP/1.1 as it should be.
    Malformed(&'static str),
    /// The answer's body is larger than the caller takes, in bytes.
    TooLarge(usize),
    /// The request cannot be sent: a header holds what no header may, or URL and TLS disagree.
    Request(&'static str),
}

/// Why there is no answer, and how far it had come.
#[derive(Debug)]
pub struct HttpError {
    /// How far it had come.
    pub phase: Phase,
    /// What ended it.
    pub cause: Cause,
}

impl HttpError {
    fn new(phase: Phase, cause: Cause) -> HttpError {
        HttpError { phase, cause }
    }

    fn answer(error: ReadError) -> HttpError {
        HttpError::new(
            Phase::Answer,
            match error {
                ReadError::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => Cause::Cut,
                ReadError::Io(error) => Cause::Io(error),
                ReadError::Cut => Cause::Cut,
                ReadError::Malformed(what) => Cause::Malformed(what),
                ReadError::HeadTooLarge => Cause::Malformed("its head is larger than 16 KiB"),
                ReadError::Coding => {
                    Cause::Malformed("its Transfer-Encoding is something else than chunked")
                }
            },
        )
    }
}

impl fmt::Display for HttpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = self.phase;
        match &self.cause {
            Cause::TimedOut(after) => write!(f, "{phase}: no end after {}", rt::Seconds(*after)),
            Cause::Connect(_) | Cause::Hop(_) | Cause::Tls(_) => write!(f, "{phase} failed"),
            Cause::Io(_) => write!(f, "{phase}: the connection broke"),
            Cause::Cut => write!(f, "{phase}: the server closed the connection in the middle"),
            Cause::Malformed(what) => write!(f, "{phase}: this is no HTTP/1.1: {what}"),
            Cause::TooLarge(limit) => write!(f, "{phase}: the body is larger than {limit} bytes"),
            Cause::Request(what) => write!(f, "{phase}: {what}"),
        }
    }
}

impl Error for HttpError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.cause {
            Cause::Connect(error) => Some(error),
            Cause::Hop(error) => Some(&**error),
            Cause::Tls(error) => Some(error),
            Cause::Io(error) => Some(error),
            _ => None,
        }
    }
}

/// An answer's head, with its body still to be read off `IO`.
pub struct Answer<IO = Stream> {
    /// The status, 200 to 599.
    pub status: u16,
    /// Name, in lower case, and value of each header.
    headers: Vec<(String, Vec<u8>)>,
    /// The body.
    pub body: Body<IO>,
}

impl<IO: AsyncRead + Unpin> Answer<IO> {
    /// The first header of this name (lower case), if it is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(known, _)| known == name)?;
        std::str::from_utf8(value).ok()
    }

    /// Whether one of the entries that headers of this name (lower case) list begins with `word`, in any case.
    pub(in crate::wire) fn header_lists(&self, name: &str, word: &str) -> bool {
        let listed = self.headers.iter().filter(|(known, _)| known == name);
        listed
            .flat_map(|(_, value)| value.split(|byte| *byte == b','))
            .any(|entry| {
                let start = entry.trim_ascii_start().get(..word.len());
                start.is_some_and(|start| start.eq_ignore_ascii_case(word.as_bytes()))
            })
    }

    /// The connection, for what goes on as another protocol, and what was read of it already.
    pub(in crate::wire) fn into_parts(self) -> (IO, Vec<u8>) {
        let ahead = self.body.input.filled().to_vec();
        (self.body.input.io, ahead)
    }
}

/// An answer's body, read piece by piece or whole.
pub struct Body<IO = Stream> {
    input: Input<IO>,
    framing: Framing,
    wait: Duration,
    given: usize,
}

impl<IO: AsyncRead + Unpin> Body<IO> {
    /// How many bytes are left, when the server has said so.
    pub fn length(&self) -> Option<u64> {
        match self.framing {
            Framing::Length(left) => Some(left.saturating_sub(self.given as u64)),
            _ => None,
        }
    }

    /// The next piece, of at most 16 KiB or so; `None` at the end, which has been checked against
    /// the length or the last chunk.
    ///
    /// # Errors
    /// [`HttpError`], among them a server that closes too early.
    pub async fn next(&mut self) -> Result<Option<&[u8]>, HttpError> {
        let given = std::mem::take(&mut self.given);
        self.framing.take(&mut self.input, given);
        let next = rt::timeout(self.wait, self.framing.next(&mut self.input)).await;
        let next = next
            .map_err(|_| HttpError::new(Phase::Answer, Cause::TimedOut(self.wait)))?
            .map_err(HttpError::answer)?;
        let Some(bytes) = next else {
            return Ok(None);
        };
        self.given = bytes;
        Ok(self.input.filled().get(..bytes))
    }

    /// The whole body, at most `limit` bytes.
    ///
    /// # Errors
    /// As [`Body::next`], and [`Cause::TooLarge`].
    pub async fn collect(&mut self, limit: usize) -> Result<Vec<u8>, HttpError> {
        let mut all = Vec::new();
        let too_large = || HttpError::new(Phase::Answer, Cause::TooLarge(limit));
        if self.length().is_some_and(|length| length > limit as u64) {
            return Err(too_large());
        }
        while let Some(piece) = self.next().await? {
            if all.len() + piece.len() > limit {
                return Err(too_large());
            }
            all.extend_from_slice(piece);
        }
        Ok(all)
    }
}

/// Sends a request over a connection of its own and waits for the answer's head.
///
/// # Errors
/// [`HttpError`]. Any status is an answer, a redirect too.
pub async fn send(request: &Request<'_>) -> Result<Answer, HttpError> {
    let head = head(request)?;
    let (url, waits) = (request.url, request.waits);
    let tls = request.tls.as_ref();
    let stream = dial(&url.host, url.port, tls, waits.connect, waits.tls)
        .await
        .map_err(|error| {
            let phase = error.phase();
            HttpError::new(
                phase,
                match error {
                    DialError::Connect(error) => Cause::Connect(error),
                    DialError::Hop(error) => Cause::Hop(error),
                    DialError::Tls(error) => Cause::Tls(error),
                },
            )
        })?;
    let body = request.body.unwrap_or_default();
    exchange(stream, request.method, &head, body, &waits).await
}

/// Asks with a head alone, after which another protocol may follow: what the answer says of a body is
/// not looked at.
pub(in crate::wire) async fn ask(
    stream: Stream,
    head: &[u8],
    waits: &Waits,
) -> Result<Answer, HttpError> {
    exchange(stream, OTHER, head, &[], waits).await
}

async fn exchange(
    mut stream: Stream,
    method: &str,
    head: &[u8],
    body: &[u8],
    waits: &Waits,
) -> Result<Answer, HttpError> {
    let sent = rt::timeout(waits.request, async {
        stream.write_all(head).await?;
        stream.write_all(body).await?;
        stream.flush().await
    })
    .await
    .map_err(|_| HttpError::new(Phase::Request, Cause::TimedOut(waits.request)))?;
    match (receive(stream, method, waits).await, sent) {
        (Ok(answer), _) => Ok(answer),
        (Err(error), _) if matches!(error.cause, Cause::TimedOut(_)) => Err(error),
        // A server may refuse a request before it has read it all; without an answer, that sending
        // broke says more.
        (Err(_), Err(error)) => Err(HttpError::new(Phase::Request, Cause::Io(error))),
        (Err(error), Ok(())) => Err(error),
    }
}

/// Reads the answer to a request of this method off `io`. [`send`] is what programs call; this half
/// takes any connection, a test's bytes among them.
///
/// # Errors
/// As [`send`].
pub async fn receive<IO: AsyncRead + Unpin>(
    io: IO,
    method: &str,
    waits: &Waits,
) -> Result<Answer<IO>, HttpError> {
    let mut input = Input::new(io);
    let (status, headers, framing) = rt::timeout(waits.answer, read_head(&mut input, method))
        .await
        .map_err(|_| HttpError::new(Phase::Answer, Cause::TimedOut(waits.answer)))?
        .map_err(HttpError::answer)?;
    Ok(Answer {
        status,
        headers,
        body: Body {
            input,
            framing,
            wait: waits.body,
            given: 0,
        },
    })
}

fn head(request: &Request<'_>) -> Result<Vec<u8>, HttpError> {
    let refused = |what| HttpError::new(Phase::Request, Cause::Request(what));
    if request.url.https != request.tls.is_some() {
        return Err(refused("https:// needs TLS, and http:// must not have it"));
    }
    let token = |text: &str| {
        !text.is_empty()
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    let path = &request.url.path;
    if !token(request.method)
        || !path.starts_with('/')
        || !path.bytes().all(|b| b.is_ascii_graphic())
    {
        return Err(refused("the method or the path holds what it may not"));
    }
    let mut head = format!(
        "{} {path} HTTP/1.1\r\nHost: {}\r\nUser-Agent: {}\r\nConnection: close\r\n",
        request.method,
        request.url.authority(),
        concat!("bcd/", env!("CARGO_PKG_VERSION")),
    );
    for (name, value) in request.headers {
        if !token(name) || value.chars().any(char::is_control) {
            return Err(refused("a header holds what it may not"));
        }
        head.push_str(name);
        head.push_str(": ");
        head.push_str(value);
        head.push_str("\r\n");
    }
    if let Some(body) = request.body {
        head.push_str("Content-Length: ");
        head.push_str(&body.len().to_string());
        head.push_str("\r\n");
    }
    head.push_str("\r\n");
    if head.len() > HEAD_LIMIT {
        return Err(refused("the request's head is larger than 16 KiB"));
    }
    Ok(head.into_bytes())
}

type Head = (u16, Vec<(String, Vec<u8>)>, Framing);

async fn read_head<IO: AsyncRead + Unpin>(
    input: &mut Input<IO>,
    method: &str,
) -> Result<Head, ReadError> {
    for _ in 0..=INFORMATIONAL {
        let length = input.head().await?.ok_or(ReadError::Cut)?;
        let bytes = input.filled().get(..length).unwrap_or_default();
        let mut headers = [httparse::EMPTY_HEADER; HEADERS];
        let mut answer = httparse::Response::new(&mut headers);
        match answer.parse(bytes) {
            Ok(httparse::Status::Complete(_)) => {}
            Ok(httparse::Status::Partial) => {
                return Err(ReadError::Malformed("its head ends early"));
            }
            Err(httparse::Error::TooManyHeaders) => {
                return Err(ReadError::Malformed("it has more than 64 headers"));
            }
            Err(_) => return Err(ReadError::Malformed("its head cannot be read")),
        }
        let status = answer.code.unwrap_or_default();
        if (100..200).contains(&status) && status != 101 {
            input.consume(length);
            continue;
        }
        let other = method == OTHER;
        if !((200..600).contains(&status) || other && status == 101) {
            return Err(ReadError::Malformed("its status is none"));
        }
        let framing = if method == "HEAD" || other || status == 204 || status == 304 {
            Framing::END
        } else {
            Framing::of(answer.headers, Framing::Close)?
        };
        let headers = answer
            .headers
            .iter()
            .map(|header| (header.name.to_ascii_lowercase(), header.value.to_vec()))
            .collect();
        input.consume(length);
        return Ok((status, headers, framing));
    }
    Err(ReadError::Malformed(
        "it is preceded by too many informational answers",
    ))
}
