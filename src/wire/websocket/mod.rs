//! A stream of bytes inside the binary messages of a WebSocket (RFC 6455), for networks that let nothing
//! else through.
//!
//! Where one message ends and the next begins means nothing, so no message is ever held: what is read
//! goes to its reader at once, and what is written goes out as a message of its own. What runs inside
//! protects itself (docs/protocol.md 9): here is no secret and no trust.
//!
//! Bounds: 1 MiB a message, 256 frames in a row without data, one answer to a ping at a time. A peer that
//! breaks a rule gets a close frame that says so, and the stream an error.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use self::frame::{BINARY, CLOSE, CONTROL, HEAD, Head, PING, PONG, Rules, Violation};
use super::dial::TlsTarget;
use super::url::Url;
use crate::rt::{Duplex, Stream};
use crate::sys::random;

pub mod frame;
mod handshake;
#[cfg(test)]
mod tests;

pub(super) use handshake::failed;
pub use handshake::{answer, open};

/// The subprotocol: what runs inside (docs/protocol.md 9).
pub const PROTOCOL: &str = "bettercompute.v1";

/// Bytes of a message that is sent.
const PIECE: usize = 16 * 1024;

/// A server's WebSocket, as a way to another server behind it.
#[derive(Debug)]
pub struct Way {
    /// Its URL, `https` for `wss`.
    pub url: Url,
    /// How TLS is spoken to it; `None` for `ws`.
    pub tls: Option<TlsTarget>,
}

/// One side of an open WebSocket.
pub struct WebSocket<IO> {
    io: IO,
    /// Clients mask what they send.
    client: bool,
    /// What was read beyond the handshake, and how much of it is taken.
    ahead: (Vec<u8>, usize),
    rules: Rules,
    /// The next frame's head, as far as it has come.
    head: ([u8; HEAD], usize),
    /// The frame that is being read, and how much of its payload has come.
    frame: Option<(Head, u64)>,
    control: [u8; CONTROL],
    /// The peer has closed.
    ended: Option<u16>,
    /// A frame that goes out, and how much of it has.
    out: (Vec<u8>, usize),
    /// A control frame to be sent when the one before it is out: its kind and payload.
    owed: Option<(u8, Vec<u8>)>,
    /// What was owed is written but may not have left yet.
    unflushed: bool,
    /// A close frame is sent or owed: nothing else follows.
    closing: bool,
}

impl<IO: AsyncRead + AsyncWrite + Unpin> WebSocket<IO> {
    /// The client's side, after the handshake, of which `ahead` was read too far.
    pub fn client(io: IO, ahead: Vec<u8>) -> WebSocket<IO> {
        WebSocket::new(io, ahead, true)
    }

    /// The server's side.
    pub fn server(io: IO, ahead: Vec<u8>) -> WebSocket<IO> {
        WebSocket::new(io, ahead, false)
    }

    fn new(io: IO, ahead: Vec<u8>, client: bool) -> WebSocket<IO> {
        WebSocket {
            io,
            client,
            ahead: (ahead, 0),
            rules: Rules::new(!client),
            head: ([0; HEAD], 0),
            frame: None,
            control: [0; CONTROL],
            ended: None,
            out: (Vec::new(), 0),
            owed: None,
            unflushed: false,
            closing: false,
        }
    }

    /// Bytes of the connection. None at its end.
    fn poll_bytes(&mut self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        let (ahead, taken) = &mut self.ahead;
        let rest = ahead.get(*taken..).unwrap_or_default();
        if rest.is_empty() {
            *ahead = Vec::new();
            *taken = 0;
        } else {
            let count = rest.len().min(into.len());
            for (to, from) in into.iter_mut().zip(rest) {
                *to = *from;
            }
            *taken += count;
            return Poll::Ready(Ok(count));
        }
        let mut into = ReadBuf::new(into);
        ready!(Pin::new(&mut self.io).poll_read(cx, &mut into))?;
        Poll::Ready(Ok(into.filled().len()))
    }

    /// As [`poll_bytes`](Self::poll_bytes), where the end of the connection is an error: a WebSocket ends
    /// with a close frame.
    fn poll_more(&mut self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        match ready!(self.poll_bytes(cx, into))? {
            0 => Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
            count => Poll::Ready(Ok(count)),
        }
    }

    /// Frames, until one has data for `buf`, or the peer has closed.
    fn poll_data(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            match self.ended {
                None => {}
                Some(1000) => return Poll::Ready(Ok(())),
                Some(code) => {
                    let why = format!("the WebSocket was closed by its other side (code {code})");
                    return Poll::Ready(Err(io::Error::other(why)));
                }
            }
            let Some((head, at)) = self.frame else {
                ready!(self.poll_head(cx))?;
                continue;
            };
            let left = head.length.saturating_sub(at);
            if left == 0 {
                self.frame = None;
                if head.is_control() {
                    self.controlled(head)?;
                }
                continue;
            }
            let left = usize::try_from(left).unwrap_or(usize::MAX);
            if head.is_control() {
                let from = usize::try_from(at).unwrap_or(CONTROL);
                let mut into = [0; CONTROL];
                let into = into.get_mut(..left).unwrap_or_default();
                let count = ready!(self.poll_more(cx, into))?;
                let places = self.control.iter_mut().skip(from);
                places.zip(into).for_each(|(to, byte)| *to = *byte);
                self.frame = Some((head, at + count as u64));
                continue;
            }
            let room = buf.remaining().min(left);
            let into = buf.initialize_unfilled_to(room);
            let count = ready!(self.poll_more(cx, into))?;
            if let (Some(key), Some(new)) = (head.mask, into.get_mut(..count)) {
                frame::apply(key, at, new);
            }
            buf.advance(count);
            self.frame = Some((head, at + count as u64));
            return Poll::Ready(Ok(()));
        }
    }

    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let (bytes, filled) = self.head;
            let there = bytes.get(..filled).unwrap_or_default();
            if let Some((head, _)) = frame::read(there).map_err(|error| self.broken(error))? {
                self.rules
                    .judge(&head)
                    .map_err(|error| self.broken(error))?;
                self.head.1 = 0;
                self.frame = Some((head, 0));
                return Poll::Ready(Ok(()));
            }
            let mut into = [0; HEAD];
            let into = into
                .get_mut(..frame::head_length(there).saturating_sub(filled))
                .unwrap_or_default();
            let count = ready!(self.poll_more(cx, into))?;
            let places = self.head.0.iter_mut().skip(filled);
            places.zip(into).for_each(|(to, byte)| *to = *byte);
            self.head.1 += count;
        }
    }

    /// A control frame is whole.
    fn controlled(&mut self, head: Head) -> io::Result<()> {
        let length = usize::try_from(head.length).unwrap_or(CONTROL);
        let payload = self.control.get_mut(..length).unwrap_or_default();
        if let Some(key) = head.mask {
            frame::apply(key, 0, payload);
        }
        let payload = payload.to_vec();
        match head.opcode {
            CLOSE => {
                let code = frame::close_code(&payload).map_err(|error| self.broken(error))?;
                // 1005 stands for none, and is never sent.
                self.ended = Some(code.unwrap_or(1005));
                self.close(code);
            }
            // Of several, the last is answered (5.5.3).
            PING if !self.closing => self.owed = Some((PONG, payload)),
            _ => {}
        }
        Ok(())
    }

    /// Owes the peer a close frame, unless it has one.
    fn close(&mut self, code: Option<u16>) {
        if !self.closing {
            self.closing = true;
            let payload = code.map_or(Vec::new(), |code| code.to_be_bytes().to_vec());
            self.owed = Some((CLOSE, payload));
        }
    }

    fn broken(&mut self, violation: Violation) -> io::Error {
        self.close(Some(violation.code()));
        self.ended = Some(violation.code());
        io::Error::other(violation)
    }

    /// What waits, into the connection.
    fn poll_out(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let (out, sent) = &mut self.out;
            let rest = out.get(*sent..).unwrap_or_default();
            if !rest.is_empty() {
                match ready!(Pin::new(&mut self.io).poll_write(cx, rest))? {
                    0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    count => *sent += count,
                }
                continue;
            }
            let Some((opcode, payload)) = self.owed.take() else {
                // An idle connection holds no buffer.
                self.out = (Vec::new(), 0);
                return Poll::Ready(Ok(()));
            };
            self.frame_out(opcode, &payload)?;
            self.unflushed = true;
        }
    }

    /// The next frame that goes out; the one before it is gone.
    fn frame_out(&mut self, opcode: u8, payload: &[u8]) -> io::Result<()> {
        let mask = match self.client {
            true => Some(random::bytes()?),
            false => None,
        };
        let (out, sent) = &mut self.out;
        out.clear();
        *sent = 0;
        frame::write(out, opcode, payload, mask);
        Ok(())
    }

    /// What is owed, out and away, as far as there is room.
    fn push_owed(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.owed.is_none() && !self.unflushed {
            return Ok(());
        }
        if let Poll::Ready(done) = self.poll_out(cx) {
            done?;
            if let Poll::Ready(flushed) = Pin::new(&mut self.io).poll_flush(cx) {
                self.unflushed = false;
                flushed?;
            }
        }
        Ok(())
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncRead for WebSocket<IO> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let read = this.poll_data(cx, buf);
        // An answer that the peer no longer takes is no reason to lose what it has sent.
        let pushed = this.push_owed(cx);
        match read {
            Poll::Pending => {
                pushed?;
                Poll::Pending
            }
            ready => ready,
        }
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncWrite for WebSocket<IO> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_out(cx))?;
        if this.closing {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let piece = buf.get(..PIECE).unwrap_or(buf);
        if piece.is_empty() {
            return Poll::Ready(Ok(0));
        }
        this.frame_out(BINARY, piece)?;
        if let Poll::Ready(Err(error)) = this.poll_out(cx) {
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(piece.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_out(cx))?;
        ready!(Pin::new(&mut this.io).poll_flush(cx))?;
        this.unflushed = false;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.close(Some(1000));
        ready!(this.poll_out(cx))?;
        ready!(Pin::new(&mut this.io).poll_flush(cx))?;
        Pin::new(&mut this.io).poll_shutdown(cx)
    }
}

impl Duplex for WebSocket<Stream> {}
