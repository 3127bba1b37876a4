//! A look at the HTTP/2 frames a peer sends, before h2 sees them.
//!
//! h2 bounds memory; what it does not bound is work: a peer may send PING, SETTINGS or RST_STREAM
//! frames for ever, each of which costs an answer or bookkeeping. [`Watched`] reads the frame
//! headers as they pass and breaks the connection of a peer that sends more of them than any honest
//! one. It also gives [`Signs`]: whether the peer has sent anything at all, which tells a peer that
//! never spoke HTTP/2 from one that is slow to answer, whether it has sent GOAWAY, which h2 tells
//! only to who opens the next stream, and what TLS said when it broke the connection, of which h2 keeps
//! the words alone.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Frames without content that a peer may send at once.
const BURST: u32 = 1000;

/// Frames without content that a peer may send each second for ever.
const PER_SECOND: u32 = 100;

/// RFC 9113 section 3.4: what a client sends before its first frame.
const PREFACE: usize = 24;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

/// A bucket of permissions to send frames that only cost work.
struct Allowance {
    left: u32,
    since: Instant,
}

impl Allowance {
    fn spend(&mut self, now: Instant) -> bool {
        if self.left == 0 {
            let passed = now.saturating_duration_since(self.since).as_millis();
            let earned = passed.saturating_mul(u128::from(PER_SECOND)) / 1000;
            if earned == 0 {
                return false;
            }
            self.left = u32::try_from(earned).unwrap_or(BURST).min(BURST);
            self.since = now;
        }
        self.left -= 1;
        true
    }
}

/// Where in the byte stream we are.
struct Frames {
    /// Bytes to pass over: the preface, or the rest of a payload.
    skip: usize,
    header: [u8; 9],
    filled: usize,
    allowance: Allowance,
    /// A GOAWAY has begun.
    leaving: bool,
}

impl Frames {
    fn new(preface: bool, now: Instant) -> Frames {
        Frames {
            skip: if preface { PREFACE } else { 0 },
            header: [0; 9],
            filled: 0,
            allowance: Allowance {
                left: BURST,
                since: now,
            },
            leaving: false,
        }
    }

    /// Follows `bytes`. `false` when the peer has sent too many frames without content.
    fn pass(&mut self, mut bytes: &[u8], now: Instant) -> bool {
        while !bytes.is_empty() {
            if self.skip > 0 {
                let over = self.skip.min(bytes.len());
                self.skip -= over;
                bytes = bytes.get(over..).unwrap_or_default();
                continue;
            }
            let Some((first, rest)) = bytes.split_first() else {
                break;
            };
            if let Some(place) = self.header.get_mut(self.filled) {
                *place = *first;
            }
            self.filled += 1;
            bytes = rest;
            if self.filled == self.header.len() {
                self.filled = 0;
                let [a, b, c, kind, ..] = self.header;
                self.skip = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
                self.leaving |= kind == GOAWAY;
                let work = match kind {
                    // h2 bounds these two, by streams and by flow control.
                    HEADERS | WINDOW_UPDATE => false,
                    DATA => self.skip == 0,
                    _ => true,
                };
                if work && !self.allowance.spend(now) {
                    return false;
                }
            }
        }
        true
    }
}

/// A stream under HTTP/2 whose incoming frames are counted.
pub(super) struct Watched<IO> {
    io: IO,
    signs: Rc<Signs>,
    frames: Frames,
}

/// What a peer's frames have told so far.
#[derive(Default)]
pub(super) struct Signs {
    heard: Cell<bool>,
    leaving: Cell<bool>,
    waiting: RefCell<Option<Waker>>,
    broken: RefCell<Option<rustls::Error>>,
}

impl Signs {
    /// True from the peer's first byte on.
    pub(super) fn heard(&self) -> bool {
        self.heard.get()
    }

    /// What TLS said when it broke the connection; `None` when it did not.
    pub(super) fn broken(&self) -> Option<rustls::Error> {
        self.broken.borrow().clone()
    }

    fn note<T>(&self, done: &Poll<io::Result<T>>) {
        if let Poll::Ready(Err(error)) = done
            && let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref())
        {
            self.broken
                .borrow_mut()
                .get_or_insert_with(|| rustls::Error::clone(tls));
        }
    }

    /// Ends once the peer has sent GOAWAY: it takes no new streams, and will close. For one task.
    pub(super) async fn leaving(&self) {
        poll_fn(|cx| {
            if self.leaving.get() {
                return Poll::Ready(());
            }
            self.waiting.replace(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await
    }
}

impl<IO> Watched<IO> {
    /// `preface`: the peer is a client, which sends the connection preface first.
    pub(super) fn new(io: IO, preface: bool) -> Watched<IO> {
        let frames = Frames::new(preface, Instant::now());
        Watched {
            io,
            signs: Rc::default(),
            frames,
        }
    }

    /// What the peer's frames tell, from now on.
    pub(super) fn signs(&self) -> Rc<Signs> {
        self.signs.clone()
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Watched<IO> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let read = Pin::new(&mut this.io).poll_read(cx, buf);
        this.signs.note(&read);
        ready!(read)?;
        let new = buf.filled().get(before..).unwrap_or_default();
        if new.is_empty() {
            return Poll::Ready(Ok(()));
        }
        this.signs.heard.set(true);
        let honest = this.frames.pass(new, Instant::now());
        if this.frames.leaving && !this.signs.leaving.replace(true) {
            let waiting = this.signs.waiting.take();
            waiting.into_iter().for_each(Waker::wake);
        }
        if honest {
            return Poll::Ready(Ok(()));
        }
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the peer floods the connection with HTTP/2 control frames",
        )))
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Watched<IO> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, buf);
        self.signs.note(&written);
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        self.signs.note(&flushed);
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use std::time::Duration;

    fn frame(kind: u8, payload: usize) -> Vec<u8> {
        let length = (payload as u32).to_be_bytes();
        let mut bytes = vec![length[1], length[2], length[3], kind, 0, 0, 0, 0, 0];
        bytes.resize(9 + payload, 0xaa);
        bytes
    }

    #[test]
    fn pings_are_counted_however_they_are_cut() {
        let now = Instant::now();
        let mut flood = vec![b'x'; PREFACE];
        for _ in 0..BURST {
            flood.extend(frame(6, 8));
        }
        for cut in [1, 2, 7, 17, 4096] {
            let mut frames = Frames::new(true, now);
            for piece in flood.chunks(cut) {
                assert!(frames.pass(piece, now));
            }
            assert!(!frames.pass(&frame(6, 8), now), "cut into pieces of {cut}");
        }
    }

    #[test]
    fn data_is_never_taken_for_a_flood() {
        let now = Instant::now();
        let mut frames = Frames::new(false, now);
        for _ in 0..BURST * 10 {
            assert!(frames.pass(&frame(DATA, 3), now));
            assert!(frames.pass(&frame(WINDOW_UPDATE, 4), now));
        }
    }

    #[test]
    fn a_goaway_is_seen_however_it_is_cut_and_nothing_else_is_taken_for_one() {
        let now = Instant::now();
        let mut before = frame(DATA, 30);
        before.extend(frame(6, 8));
        let mut all = before.clone();
        all.extend(frame(GOAWAY, 8));
        for cut in [1, 2, 7, 17, 4096] {
            let mut frames = Frames::new(false, now);
            assert!(before.chunks(cut).all(|piece| frames.pass(piece, now)));
            assert!(!frames.leaving);
            let rest = all.get(before.len()..).unwrap();
            assert!(rest.chunks(cut).all(|piece| frames.pass(piece, now)));
            assert!(frames.leaving, "cut into pieces of {cut}");
        }
    }

    #[test]
    fn an_honest_rate_is_allowed_for_ever() {
        let mut now = Instant::now();
        let mut frames = Frames::new(false, now);
        for _ in 0..BURST * 10 {
            now += Duration::from_millis(20);
            assert!(frames.pass(&frame(6, 8), now));
        }
    }
}
