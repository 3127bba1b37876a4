//! A connection whose other side says fixed bytes, in pieces of a fixed length, and then hangs up.
use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

pub struct Pieces {
    said: Vec<u8>,
    at: usize,
    piece: usize,
    /// What was written to it.
    pub heard: Rc<RefCell<Vec<u8>>>,
}

impl Pieces {
    pub fn new(said: &[u8], piece: usize) -> Self {
        Self {
            said: said.to_vec(),
            at: 0,
            piece: piece.max(1),
            heard: Rc::default(),
        }
    }
}

impl AsyncRead for Pieces {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let left = self.said.len() - self.at;
        let count = self.piece.min(left).min(into.remaining());
        into.put_slice(&self.said[self.at..self.at + count]);
        self.at += count;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pieces {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.heard.borrow_mut().extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// The first byte chooses how the rest is cut; whole, when there is no rest.
pub fn cut(data: &[u8]) -> (usize, &[u8]) {
    match data.split_first() {
        Some((first, rest)) => (usize::from(*first) + 1, rest),
        None => (1, data),
    }
}
