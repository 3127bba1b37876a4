//! Reading heads and bodies off a connection.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]
use std::future::poll_fn;
use std::io;
use std::pin::Pin;

use httparse::Header;
use tokio::io::{AsyncRead, ReadBuf};

use super::HEAD_LIMIT;

/// Bytes read at once, and at most while much is coming.
const PIECE: usize = 16 * 1024;
const MUCH: usize = 64 * 1024;

/// Bytes of a chunk's size line, extensions included.
const CHUNK_LINE: usize = 256;

/// What can be wrong with what a peer sends.
#[derive(Debug)]
pub(super) enum ReadError {
    /// The connection broke.
    Io(io::Error),
    /// The peer closed in the middle.
    Cut,
    /// Not HTTP/1.1, or HTTP that can be understood in two ways.
    Malformed(&'static str),
    /// The head is above its limit.
    HeadTooLarge,
    /// A transfer coding that is not spoken here.
    Coding,
}

/// A connection's incoming side, with what was read too far.
pub(super) struct Input<IO> {
    pub(super) io: IO,
    buffer: Vec<u8>,
    /// What was read and not consumed is between the two.
    start: usize,
    end: usize,
}

impl<IO: AsyncRead + Unpin> Input<IO> {
    pub(super) fn new(io: IO) -> Input<IO> {
        Input {
            io,
            buffer: Vec::new(),
            start: 0,
            end: 0,
        }
    }

    /// What was read and not consumed.
    pub(super) fn filled(&self) -> &[u8] {
        self.buffer.get(self.start..self.end).unwrap_or_default()
    }

    pub(super) fn consume(&mut self, bytes: usize) {
        self.start = (self.start + bytes).min(self.end);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Reads once more. `false` at the connection's end. Loses nothing when dropped.
    pub(super) async fn fill(&mut self) -> io::Result<bool> {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        if self.buffer.len() < self.end + PIECE {
            self.buffer.resize(self.end + PIECE, 0);
        }
        let Input {
            io, buffer, end, ..
        } = self;
        let space = buffer.get_mut(*end..).unwrap_or_default();
        let room = space.len();
        let read = poll_fn(|cx| {
            let mut into = ReadBuf::new(&mut *space);
            let reading = Pin::new(&mut *io).poll_read(cx, &mut into);
            reading.map_ok(|()| into.filled().len())
        });
        let read = read.await?;
        *end += read;
        if read == room && buffer.len() < MUCH {
            buffer.resize(MUCH, 0);
        }
        Ok(read > 0)
    }

    /// Reads until a head is whole, and gives its length. `None` when the connection ended before
    /// a byte of it came.
    pub(super) async fn head(&mut self) -> Result<Option<usize>, ReadError> {
        let mut seen = 0;
        loop {
            // The end may lie across two reads.
            if let Some(end) = end_of_head(self.filled(), seen) {
                return match end > HEAD_LIMIT {
                    true => Err(ReadError::HeadTooLarge),
                    false => Ok(Some(end)),
                };
            }
            seen = self.filled().len().saturating_sub(3);
            if self.filled().len() > HEAD_LIMIT {
                return Err(ReadError::HeadTooLarge);
            }
            if !self.fill().await.map_err(ReadError::Io)? {
                return match self.filled().is_empty() {
                    true => Ok(None),
                    false => Err(ReadError::Cut),
                };
            }
        }
    }

    /// The next line, without its end; `long` says what is wrong with one above `limit`, however much of
    /// it has come at once.
    async fn line(&mut self, limit: usize, long: ReadError) -> Result<String, ReadError> {
        loop {
            let end = self.filled().iter().position(|byte| *byte == b'\n');
            if end.unwrap_or(self.filled().len()) > limit {
                return Err(long);
            }
            if let Some(end) = end {
                let line = self.filled().get(..end).unwrap_or_default();
                let line = line.strip_suffix(b"\r").unwrap_or(line);
                let line = String::from_utf8_lossy(line).into_owned();
                self.consume(end + 1);
                return Ok(line);
            }
            if !self.fill().await.map_err(ReadError::Io)? {
                return Err(ReadError::Cut);
            }
        }
    }
}

/// The length of the head with its empty line, searched from `from` on.
fn end_of_head(bytes: &[u8], from: usize) -> Option<usize> {
    let rest = bytes.get(from..)?;
    for (at, byte) in rest.iter().enumerate() {
        if *byte == b'\n' {
            let after = rest.get(at + 1..).unwrap_or_default();
            if after.starts_with(b"\n") {
                return Some(from + at + 2);
            }
            if after.starts_with(b"\r\n") {
                return Some(from + at + 3);
            }
        }
    }
    None
}

/// Where a body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    /// After so many bytes more.
    Length(u64),
    /// With the last chunk; so many bytes of the current one are left.
    Chunked { left: u64, first: bool },
    /// With the connection.
    Close,
}

impl Framing {
    /// No (more) body.
    pub(super) const END: Framing = Framing::Length(0);

    /// As the headers say (RFC 9112, section 6.3); `otherwise` when they say nothing.
    pub(super) fn of(headers: &[Header<'_>], otherwise: Framing) -> Result<Framing, ReadError> {
        let mut length: Option<u64> = None;
        let mut chunked = false;
        for header in headers {
            if header.name.eq_ignore_ascii_case("transfer-encoding") {
                if chunked || !header.value.trim_ascii().eq_ignore_ascii_case(b"chunked") {
                    return Err(ReadError::Coding);
                }
                chunked = true;
            } else if header.name.eq_ignore_ascii_case("content-length") {
                let value = decimal(header.value.trim_ascii())
                    .ok_or(ReadError::Malformed("Content-Length is not a number"))?;
                if length.is_some_and(|known| known != value) {
                    return Err(ReadError::Malformed("two Content-Lengths disagree"));
                }
                length = Some(value);
            }
        }
        match (chunked, length) {
            (true, Some(_)) => Err(ReadError::Malformed(
                "both Transfer-Encoding and Content-Length are given",
            )),
            (true, None) => Ok(Framing::Chunked {
                left: 0,
                first: true,
            }),
            (false, Some(length)) => Ok(Framing::Length(length)),
            (false, None) => Ok(otherwise),
        }
    }

    /// Waits for bytes of the body at the front of `input.filled()` and gives their number; take
    /// them with [`Framing::take`]. `None` at the body's end.
    pub(super) async fn next<IO: AsyncRead + Unpin>(
        &mut self,
        input: &mut Input<IO>,
    ) -> Result<Option<usize>, ReadError> {
        loop {
            let left = match self {
                Framing::Length(0) => return Ok(None),
                Framing::Length(left) => *left,
                Framing::Close => u64::MAX,
                Framing::Chunked { left: 0, first } => {
                    let longer = || ReadError::Malformed("a chunk is longer than it says");
                    if !*first && !input.line(1, longer()).await?.is_empty() {
                        return Err(longer());
                    }
                    // Should the wait be dropped from here on, the line is still to be read.
                    *first = true;
                    let long = ReadError::Malformed("a chunk's line is too long");
                    let line = input.line(CHUNK_LINE, long).await?;
                    let size = line.split(';').next().unwrap_or_default().trim();
                    let size = hexadecimal(size)
                        .ok_or(ReadError::Malformed("a chunk's size is no number"))?;
                    if size > 0 {
                        *self = Framing::Chunked {
                            left: size,
                            first: false,
                        };
                        continue;
                    }
                    // Trailers, which nobody here wants.
                    let mut bytes = 0;
                    loop {
                        let line = input.line(HEAD_LIMIT, ReadError::HeadTooLarge).await?;
                        bytes += line.len();
                        if bytes > HEAD_LIMIT {
                            return Err(ReadError::HeadTooLarge);
                        }
                        if line.is_empty() {
                            break;
                        }
                    }
                    *self = Framing::END;
                    return Ok(None);
                }
                Framing::Chunked { left, .. } => *left,
            };
            let there = input.filled().len();
            if there > 0 {
                return Ok(Some(usize::try_from(left).unwrap_or(there).min(there)));
            }
            if !input.fill().await.map_err(ReadError::Io)? {
                if *self == Framing::Close {
                    *self = Framing::END;
                    return Ok(None);
                }
                return Err(ReadError::Cut);
            }
        }
    }

    /// Takes `bytes` of what [`Framing::next`] gave.
    pub(super) fn take<IO: AsyncRead + Unpin>(&mut self, input: &mut Input<IO>, bytes: usize) {
        input.consume(bytes);
        match self {
            Framing::Length(left) | Framing::Chunked { left, .. } => {
                *left = left.saturating_sub(bytes as u64);
            }
            Framing::Close => {}
        }
    }
}

fn decimal(text: &[u8]) -> Option<u64> {
    let digits = (1..=19).contains(&text.len()) && text.iter().all(u8::is_ascii_digit);
    if !digits {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn hexadecimal(text: &str) -> Option<u64> {
    let digits = (1..=15).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit());
    if !digits {
        return None;
    }
    u64::from_str_radix(text, 16).ok()
}
