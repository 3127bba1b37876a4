//! A stream that is flushed once a turn of its task.
//!
//! h2 flushes before it waits for the client's preface, after each longer DATA frame, and once more when it
//! is done. Over TLS each flush is a system call and a packet, and each packet wakes the client. So the
//! flushes of a [`Corked`] stream are only noted, and done together at the end of the turn ([`Cork::turn`]).
//! What may wait is bounded by the stream below, which takes no more at some point.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]
use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The stream, for whoever writes to it.
pub(super) struct Corked<IO>(Rc<RefCell<State<IO>>>);

/// The same, for whoever says when a turn is over.
pub(super) struct Cork<IO>(Rc<RefCell<State<IO>>>);

struct State<IO> {
    io: IO,
    /// It is to be flushed.
    due: bool,
    /// Why that failed; for the next who asks.
    failed: Option<io::Error>,
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Cork<IO> {
    pub(super) fn new(io: IO) -> (Cork<IO>, Corked<IO>) {
        let state = Rc::new(RefCell::new(State {
            io,
            due: false,
            failed: None,
        }));
        (Cork(state.clone()), Corked(state))
    }

    /// A turn: when `work` can do no more for now, what it wrote goes out.
    pub(super) fn turn<T>(
        &self,
        cx: &mut Context<'_>,
        work: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        let done = work(cx);
        if done.is_pending() {
            let state = &mut *self.0.borrow_mut();
            if state.due
                && let Poll::Ready(flushed) = Pin::new(&mut state.io).poll_flush(cx)
            {
                state.due = false;
                if let Err(error) = flushed {
                    state.failed = Some(error);
                    // It is told when the work is asked again.
                    cx.waker().wake_by_ref();
                }
            }
        }
        done
    }
}

impl<IO> State<IO> {
    fn failure(&mut self) -> io::Result<()> {
        self.failed.take().map_or(Ok(()), Err)
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Corked<IO> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let state = &mut *self.0.borrow_mut();
        // What the peer still said counts for more than that it takes no more.
        ready!(Pin::new(&mut state.io).poll_read(cx, buf))?;
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Corked<IO> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let state = &mut *self.0.borrow_mut();
        state.failure()?;
        Pin::new(&mut state.io).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let state = &mut *self.0.borrow_mut();
        state.failure()?;
        state.due = true;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let state = &mut *self.0.borrow_mut();
        state.failure()?;
        // Whoever closes has everything out before; the stream below sees to that.
        if state.due {
            ready!(Pin::new(&mut state.io).poll_flush(cx))?;
            state.due = false;
        }
        Pin::new(&mut state.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::future::poll_fn;

    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::rt;

    /// Counts flushes, of which the first `fail` fail.
    struct Counted {
        written: Vec<u8>,
        flushes: usize,
        fail: usize,
    }

    impl AsyncRead for Counted {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for Counted {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.written.extend_from_slice(buf);
            Poll::Ready(Ok(buf.len()))
        }

        fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.flushes += 1;
            Poll::Ready(match self.flushes <= self.fail {
                true => Err(io::ErrorKind::BrokenPipe.into()),
                false => Ok(()),
            })
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn counted(fail: usize) -> (Cork<Counted>, Corked<Counted>) {
        Cork::new(Counted {
            written: Vec::new(),
            flushes: 0,
            fail,
        })
    }

    async fn turn<T>(cork: &Cork<Counted>, work: impl Future<Output = T>) -> Poll<T> {
        let mut work = std::pin::pin!(work);
        poll_fn(|cx| Poll::Ready(cork.turn(cx, |cx| work.as_mut().poll(cx)))).await
    }

    #[test]
    fn what_is_flushed_within_a_turn_goes_out_once_at_its_end() {
        rt::block_on(async {
            let (cork, mut io) = counted(0);
            let work = async {
                for piece in [b"one", b"two"] {
                    io.write_all(piece).await.unwrap();
                    io.flush().await.unwrap();
                }
                assert_eq!(io.0.borrow().io.flushes, 0);
                std::future::pending::<()>().await;
            };
            assert!(turn(&cork, work).await.is_pending());
            assert_eq!(cork.0.borrow().io.written, b"onetwo");
            assert_eq!(cork.0.borrow().io.flushes, 1);
            // Nothing was flushed since.
            assert!(turn(&cork, std::future::pending::<()>()).await.is_pending());
            assert_eq!(cork.0.borrow().io.flushes, 1);
        });
    }

    #[test]
    fn a_flush_that_fails_is_told_to_the_next_who_writes() {
        rt::block_on(async {
            let (cork, mut io) = counted(1);
            let work = async {
                io.flush().await.unwrap();
                std::future::pending::<()>().await;
            };
            assert!(turn(&cork, work).await.is_pending());
            let error = io.write(b"x").await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        });
    }

    #[test]
    fn who_closes_has_everything_out_before() {
        rt::block_on(async {
            let (cork, mut io) = counted(0);
            io.flush().await.unwrap();
            io.shutdown().await.unwrap();
            assert_eq!(cork.0.borrow().io.flushes, 1);
        });
    }
}
