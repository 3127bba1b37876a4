//! Answering requests over one connection, without routes: the handler sees each request whole.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]
use std::fs::File;
use std::future::Future;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, SystemTime};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use super::HEADERS;
use super::body::{Framing, Input, ReadError};
use super::date::imf_fixdate;
use crate::rt;
use crate::rt::channel::Receiver;

/// Bytes of a file read at once, and pieces of it that may wait to be sent.
const FILE_PIECE: usize = 64 * 1024;
const FILE_PIECES: usize = 2;

/// What a client may do, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of a request's body.
    pub body: usize,
    /// Until a request's head is there, from its first byte.
    pub head_wait: Duration,
    /// Until a request's body is there.
    pub body_wait: Duration,
    /// For a client to take a piece of the answer.
    pub write_wait: Duration,
    /// Between two requests.
    pub idle: Duration,
    /// Requests of one connection.
    pub requests: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            body: 1024 * 1024,
            head_wait: Duration::from_secs(10),
            body_wait: Duration::from_secs(30),
            write_wait: Duration::from_secs(30),
            idle: Duration::from_secs(60),
            requests: 1000,
        }
    }
}

/// A request, whole.
#[derive(Debug, Clone)]
pub struct Request {
    /// `GET`, `HEAD`, `POST`, …
    pub method: String,
    /// The path, as sent: percent-encoded, starting with `/`.
    pub path: String,
    /// What follows the first `?`; empty without one.
    pub query: String,
    /// Name, in lower case, and value of each header.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// Where from, when it is known.
    pub peer: Option<SocketAddr>,
}

impl Request {
    /// The first header of this name (lower case).
    pub fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(known, _)| known == name)?;
        Some(value)
    }
}

/// An answer's body.
pub enum Body {
    /// These bytes.
    Bytes(Vec<u8>),
    /// So many bytes of a file, from where it stands. Read on a thread.
    File(File, u64),
    /// So many bytes in pieces, none of them empty, as they come.
    Pieces(Receiver<io::Result<Vec<u8>>>, u64),
}

/// An answer.
pub struct Answer {
    /// The status.
    pub status: u16,
    /// Headers besides Content-Length, Date and Connection.
    pub headers: Vec<(String, String)>,
    /// The body. A HEAD request gets its length only.
    pub body: Body,
}

impl Answer {
    /// An answer with a body of this type.
    pub fn new(status: u16, content_type: &str, body: impl Into<Vec<u8>>) -> Answer {
        Answer {
            status,
            headers: vec![("Content-Type".to_owned(), content_type.to_owned())],
            body: Body::Bytes(body.into()),
        }
    }

    /// Adds a header.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<String>) -> Answer {
        self.headers.push((name.to_owned(), value.into()));
        self
    }
}

fn refusal(status: u16, why: &str) -> Answer {
    Answer::new(status, "text/plain; charset=utf-8", format!("{why}\n"))
}

/// Serves one connection until the client ends it, breaks the rules, or leaves it idle. An answer with
/// status 101 ends it too: the connection is then given back, with what was read of it, and goes on as what
/// the handler has agreed to.
///
/// # Errors
/// When the connection broke: worth a line in a log, no more.
pub async fn serve<IO, H, A>(
    io: IO,
    peer: Option<SocketAddr>,
    limits: Limits,
    handler: H,
) -> io::Result<Option<(IO, Vec<u8>)>>
where
    IO: AsyncRead + AsyncWrite + Unpin,
    H: Fn(Request) -> A,
    A: Future<Output = Answer>,
{
    let mut input = Input::new(io);
    for served in 1..=limits.requests {
        if input.filled().is_empty() {
            match rt::timeout(limits.idle, input.fill()).await {
                Ok(Ok(true)) => {}
                Ok(Err(error)) if error.kind() != io::ErrorKind::UnexpectedEof => {
                    return Err(error);
                }
                _ => break,
            }
        }
        let (request, keep) = match read(&mut input, peer, &limits).await {
            Ok(read) => read,
            Err(Some(answer)) => {
                let head = write(&mut input.io, answer, &limits, false, false).await;
                linger(&mut input).await;
                head?;
                break;
            }
            Err(None) => return Ok(None),
        };
        let keep = keep && served < limits.requests;
        let head_only = request.method == "HEAD";
        let answer = handler(request).await;
        if answer.status == 101 {
            write(&mut input.io, answer, &limits, true, false).await?;
            let ahead = input.filled().to_vec();
            return Ok(Some((input.io, ahead)));
        }
        write(&mut input.io, answer, &limits, keep, head_only).await?;
        if !keep {
            break;
        }
    }
    let _ = rt::timeout(limits.write_wait, input.io.shutdown()).await;
    Ok(None)
}

/// Takes what a refused client still sends, for a moment: a connection that is closed over unread
/// bytes is reset, and the client may then never see why it was refused.
async fn linger<IO: AsyncRead + AsyncWrite + Unpin>(input: &mut Input<IO>) {
    let _ = rt::timeout(Duration::from_secs(1), async {
        let _ = input.io.shutdown().await;
        for _ in 0..64 {
            let there = input.filled().len();
            input.consume(there);
            if !matches!(input.fill().await, Ok(true)) {
                break;
            }
        }
    })
    .await;
}

/// Reads a request, and whether the connection outlives it. An error is the answer to give, if any.
async fn read<IO: AsyncRead + AsyncWrite + Unpin>(
    input: &mut Input<IO>,
    peer: Option<SocketAddr>,
    limits: &Limits,
) -> Result<(Request, bool), Option<Answer>> {
    let length = match rt::timeout(limits.head_wait, input.head()).await {
        Ok(Ok(Some(length))) => length,
        Ok(Ok(None)) => return Err(None),
        Ok(Err(error)) => return Err(refuse(error)),
        Err(_) => return Err(Some(refusal(408, "the request's head took too long"))),
    };
    let head = input.filled().get(..length).unwrap_or_default();
    let (mut request, mut framing, keep, expects) = parse(head)?;
    request.peer = peer;
    input.consume(length);
    let too_large = || {
        let why = format!("the request's body is larger than {} bytes", limits.body);
        Some(refusal(413, &why))
    };
    if matches!(framing, Framing::Length(length) if length > limits.body as u64) {
        return Err(too_large());
    }
    let body = async {
        if expects && framing != Framing::END && input.filled().is_empty() {
            let go_on = b"HTTP/1.1 100 Continue\r\n\r\n";
            input.io.write_all(go_on).await.map_err(ReadError::Io)?;
            input.io.flush().await.map_err(ReadError::Io)?;
        }
        while let Some(bytes) = framing.next(input).await? {
            if request.body.len() + bytes > limits.body {
                return Ok(false);
            }
            let piece = input.filled().get(..bytes).unwrap_or_default();
            request.body.extend_from_slice(piece);
            framing.take(input, bytes);
        }
        Ok(true)
    };
    match rt::timeout(limits.body_wait, body).await {
        Ok(Ok(true)) => Ok((request, keep)),
        Ok(Ok(false)) => Err(too_large()),
        Ok(Err(error)) => Err(refuse(error)),
        Err(_) => Err(Some(refusal(408, "the request's body took too long"))),
    }
}

fn refuse(error: ReadError) -> Option<Answer> {
    match error {
        ReadError::Io(_) | ReadError::Cut => None,
        ReadError::Malformed(what) => Some(refusal(400, what)),
        ReadError::HeadTooLarge => Some(refusal(431, "the request's head is larger than 16 KiB")),
        ReadError::Coding => Some(refusal(
            501,
            "the only Transfer-Encoding spoken here is chunked",
        )),
    }
}

type Parsed = (Request, Framing, bool, bool);

/// A head's request, its body's framing, whether the connection is kept, and whether the client
/// waits to be told to go on.
fn parse(head: &[u8]) -> Result<Parsed, Option<Answer>> {
    let malformed = |why: &str| Some(refusal(400, why));
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    match parsed.parse(head) {
        Ok(httparse::Status::Complete(_)) => {}
        Err(httparse::Error::TooManyHeaders) => {
            return Err(Some(refusal(431, "the request has more than 64 headers")));
        }
        Err(httparse::Error::Version) => {
            return Err(Some(refusal(
                505,
                "only HTTP/1.0 and HTTP/1.1 are spoken here",
            )));
        }
        _ => return Err(malformed("the request's head cannot be read")),
    }
    let (method, target) = (
        parsed.method.unwrap_or_default(),
        parsed.path.unwrap_or_default(),
    );
    let modern = parsed.version == Some(1);
    if !target.starts_with('/') {
        return Err(malformed("the request's target is not a path"));
    }
    let named = |name: &str| {
        let found = parsed
            .headers
            .iter()
            .filter(|header| header.name.eq_ignore_ascii_case(name));
        found.map(|header| header.value).collect::<Vec<_>>()
    };
    if named("host").len() != usize::from(modern) && (modern || named("host").len() > 1) {
        return Err(malformed(
            "the request has no Host header, or more than one",
        ));
    }
    let says = |name: &str, word: &str| {
        named(name).iter().any(|value| {
            value
                .split(|byte| *byte == b',')
                .any(|item| item.trim_ascii().eq_ignore_ascii_case(word.as_bytes()))
        })
    };
    let keep = modern && !says("connection", "close");
    let expects = modern && says("expect", "100-continue");
    let framing = Framing::of(parsed.headers, Framing::END).map_err(refuse)?;
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let headers = parsed.headers.iter().map(|header| {
        let value = String::from_utf8_lossy(header.value).into_owned();
        (header.name.to_ascii_lowercase(), value)
    });
    let request = Request {
        method: method.to_owned(),
        path: path.to_owned(),
        query: query.to_owned(),
        headers: headers.collect(),
        body: Vec::new(),
        peer: None,
    };
    Ok((request, framing, keep, expects))
}

fn reason(status: u16) -> &'static str {
    http::StatusCode::from_u16(status)
        .ok()
        .and_then(|status| status.canonical_reason())
        .unwrap_or("Unknown")
}

async fn write<IO: AsyncWrite + Unpin>(
    io: &mut IO,
    answer: Answer,
    limits: &Limits,
    keep: bool,
    head_only: bool,
) -> io::Result<()> {
    let bodiless = answer.status == 204 || answer.status == 304 || answer.status < 200;
    let length = match &answer.body {
        Body::Bytes(bytes) => bytes.len() as u64,
        Body::File(_, length) | Body::Pieces(_, length) => *length,
    };
    let mut head = format!("HTTP/1.1 {} {}\r\n", answer.status, reason(answer.status));
    for (name, value) in &answer.headers {
        // A handler's value with a line break in it must not become a header of its own.
        let value: String = value.chars().filter(|c| !c.is_control()).collect();
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if !bodiless {
        head.push_str(&format!("Content-Length: {length}\r\n"));
    }
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    head.push_str(&format!("Date: {}\r\n", imf_fixdate(now.as_secs())));
    head.push_str(if keep {
        "\r\n"
    } else {
        "Connection: close\r\n\r\n"
    });
    let wait = limits.write_wait;
    put(io, head.as_bytes(), wait).await?;
    match answer.body {
        _ if head_only || bodiless => {}
        Body::Bytes(bytes) => {
            for piece in bytes.chunks(FILE_PIECE) {
                put(io, piece, wait).await?;
            }
        }
        Body::File(file, length) => put_pieces(io, pieces(file, length)?, length, wait).await?,
        Body::Pieces(pieces, length) => put_pieces(io, pieces, length, wait).await?,
    }
    flush(io, wait).await
}

async fn put<IO: AsyncWrite + Unpin>(io: &mut IO, bytes: &[u8], wait: Duration) -> io::Result<()> {
    rt::timeout(wait, io.write_all(bytes))
        .await
        .map_err(|_| io::ErrorKind::TimedOut)?
}

async fn flush<IO: AsyncWrite + Unpin>(io: &mut IO, wait: Duration) -> io::Result<()> {
    rt::timeout(wait, io.flush())
        .await
        .map_err(|_| io::ErrorKind::TimedOut)?
}

/// A file's bytes, as a thread reads them.
fn pieces(file: File, length: u64) -> io::Result<Receiver<io::Result<Vec<u8>>>> {
    let (sender, receiver) = rt::channel(FILE_PIECES);
    thread::Builder::new()
        .name("http-file".to_owned())
        .stack_size(64 * 1024)
        .spawn(move || {
            let mut file = file.take(length);
            loop {
                let mut piece = Vec::new();
                let read = file
                    .by_ref()
                    .take(FILE_PIECE as u64)
                    .read_to_end(&mut piece);
                let last = !matches!(read, Ok(1..));
                // Nobody reads on when the client has gone.
                if sender.send_blocking(read.map(|_| piece)).is_err() || last {
                    break;
                }
            }
        })?;
    Ok(receiver)
}

/// Sends pieces as they come. Fewer bytes than were told, as of a file that has become shorter, break the connection,
/// so that the client does not take what it got for the whole.
async fn put_pieces<IO: AsyncWrite + Unpin>(
    io: &mut IO,
    mut pieces: Receiver<io::Result<Vec<u8>>>,
    length: u64,
    wait: Duration,
) -> io::Result<()> {
    let mut left = length;
    while left > 0 {
        let piece = match pieces.recv().await {
            Some(piece) => piece?,
            None => Vec::new(),
        };
        if piece.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        put(io, &piece, wait).await?;
        left = left.saturating_sub(piece.len() as u64);
    }
    Ok(())
}
