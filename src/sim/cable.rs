//! A node's way to its gateway: TCP, with faults. What runs over it is the real thing: TLS, HTTP/2 and the
//! session see a connection that breaks, stays silent or is slow.
use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::rt::{self, Attempt, ConnectError, Duplex, Stream, TcpStream};
use crate::wire::{Line, Opening};

/// What a slow reader takes at once, and how often.
const SIP: usize = 512;
const SIP_EVERY: Duration = Duration::from_millis(100);

/// How long a connection that was left without a word stays open for the gateway.
const LIMBO: Duration = Duration::from_secs(10);

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The gateway hears of it: a reset.
    Reset,
    /// The gateway hears nothing more.
    Silent,
}

/// One node's cable. Clones are the same one.
#[derive(Clone)]
pub struct Cable(Rc<Ends>);

struct Ends {
    to: SocketAddr,
    from: Option<SocketAddr>,
    slow: bool,
    /// The connections there are.
    open: RefCell<Vec<Rc<State>>>,
}

/// What is done to a connection.
#[derive(Default)]
struct State {
    cut: Cell<Option<Cut>>,
    deaf: Cell<bool>,
    reader: Cell<Option<Waker>>,
    writer: Cell<Option<Waker>>,
}

impl Cable {
    /// A cable to `to`, from an address of this host if it shall be one and not another.
    pub fn new(to: SocketAddr, from: Option<SocketAddr>, slow: bool) -> Self {
        Self(Rc::new(Ends {
            to,
            from,
            slow,
            open: RefCell::default(),
        }))
    }

    /// Ends every connection there is.
    pub fn cut(&self, how: Cut) {
        for state in self.0.open.borrow_mut().drain(..) {
            state.cut.set(Some(how));
            let waiting = [state.reader.take(), state.writer.take()];
            waiting.into_iter().flatten().for_each(Waker::wake);
        }
    }

    /// From now on nothing arrives over the connections there are. Whether there are any.
    pub fn deafen(&self) -> bool {
        let open = self.0.open.borrow();
        for state in open.iter() {
            state.deaf.set(true);
        }
        !open.is_empty()
    }
}

impl fmt::Debug for Cable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cable")
    }
}

impl Line for Cable {
    fn open(&self, wait: Duration) -> Opening {
        let ends = self.0.clone();
        Box::pin(async move {
            let (to, slow) = (ends.to, ends.slow);
            let connecting = async {
                match ends.from {
                    Some(from) => TcpStream::connect_from(to, from).await,
                    None => TcpStream::connect(to).await,
                }
            };
            let tried = |error| Attempt { address: to, error };
            let stream = match rt::timeout(wait, connecting).await {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => return Err(ConnectError::Failed(vec![tried(Some(error))])),
                Err(_) => {
                    let (tried, after) = (vec![tried(None)], wait);
                    return Err(ConnectError::TimedOut { tried, after });
                }
            };
            let state = Rc::new(State::default());
            {
                let mut open = ends.open.borrow_mut();
                open.retain(|other| Rc::strong_count(other) > 1);
                open.push(state.clone());
            }
            Ok(Stream::Framed(Box::new(Wire {
                stream: Some(stream),
                state,
                rest: slow.then(|| rt::sleep(Duration::ZERO)),
            })))
        })
    }
}

/// One connection over a cable.
struct Wire {
    /// `None` once it was cut.
    stream: Option<TcpStream>,
    state: Rc<State>,
    /// Until a slow reader takes more.
    rest: Option<rt::Sleep>,
}

impl Wire {
    /// The connection, unless it was cut.
    fn stream(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        if let Some(how) = self.state.cut.get()
            && let Some(stream) = self.stream.take()
        {
            match how {
                Cut::Reset => {
                    // What cannot be reset is closed.
                    let _ = stream.reset_on_close();
                }
                Cut::Silent => {
                    rt::spawn(async move {
                        rt::sleep(LIMBO).await;
                        let _ = stream.reset_on_close();
                    });
                }
            }
        }
        match &mut self.stream {
            Some(stream) => Ok(Pin::new(stream)),
            None => Err(io::ErrorKind::ConnectionReset.into()),
        }
    }

    fn writing(&mut self, cx: &Context<'_>) -> io::Result<Pin<&mut TcpStream>> {
        self.state.writer.set(Some(cx.waker().clone()));
        self.stream()
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.state.reader.set(Some(cx.waker().clone()));
        let deaf = this.state.deaf.get();
        let rest = this.rest.take();
        let stream = this.stream()?;
        if deaf {
            return Poll::Pending;
        }
        let Some(mut rest) = rest else {
            return stream.poll_read(cx, buf);
        };
        if Pin::new(&mut rest).poll(cx).is_pending() {
            this.rest = Some(rest);
            return Poll::Pending;
        }
        let mut sip = [0; SIP];
        let mut taken = ReadBuf::new(sip.get_mut(..SIP.min(buf.remaining())).unwrap_or_default());
        let read = stream.poll_read(cx, &mut taken);
        // A timer that has run out may be asked again: nothing was read yet.
        this.rest = Some(match &read {
            Poll::Ready(Ok(())) => rt::sleep(SIP_EVERY),
            _ => rt::sleep(Duration::ZERO),
        });
        ready!(read)?;
        buf.put_slice(taken.filled());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().writing(cx)?.poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().writing(cx)?.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().writing(cx)?.poll_shutdown(cx)
    }
}

impl Duplex for Wire {}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::future::poll_fn;
    use std::time::Instant;

    use super::*;
    use crate::rt::TcpListener;

    const SOON: Duration = Duration::from_secs(10);
    const WHILE: Duration = Duration::from_millis(200);

    async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; 4096];
        let mut buf = ReadBuf::new(&mut bytes);
        poll_fn(|cx| Pin::new(&mut *stream).poll_read(cx, &mut buf)).await?;
        Ok(buf.filled().to_vec())
    }

    async fn write(stream: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<usize> {
        poll_fn(|cx| Pin::new(&mut *stream).poll_write(cx, bytes)).await
    }

    /// A cable, and both ends of a connection over it.
    async fn connected(from: Option<SocketAddr>, slow: bool) -> (Cable, Stream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let cable = Cable::new(listener.local_addr().unwrap(), from, slow);
        let near = cable.open(SOON).await.unwrap();
        let (socket, _) = listener.accept_socket().await.unwrap();
        (cable, near, TcpStream::from_std(socket).unwrap())
    }

    #[test]
    fn bytes_pass_both_ways_from_the_address_that_was_asked_for() {
        rt::block_on(async {
            let from: SocketAddr = "127.1.2.3:0".parse().unwrap();
            let (_cable, mut near, mut far) = connected(Some(from), false).await;
            assert_eq!(far.peer_addr().unwrap().ip(), from.ip());
            write(&mut near, b"up").await.unwrap();
            assert_eq!(read(&mut far).await.unwrap(), b"up");
            write(&mut far, b"down").await.unwrap();
            assert_eq!(read(&mut near).await.unwrap(), b"down");
        });
    }

    #[test]
    fn a_reset_is_heard_on_both_ends_at_once() {
        rt::block_on(async {
            let (cable, mut near, mut far) = connected(None, false).await;
            let reading = rt::spawn(async move { read(&mut near).await.is_err() });
            rt::yield_now().await;
            cable.cut(Cut::Reset);
            assert_eq!(rt::timeout(SOON, reading).await.unwrap(), Some(true));
            let heard = rt::timeout(SOON, read(&mut far)).await.unwrap();
            assert_eq!(heard.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        });
    }

    #[test]
    fn a_silent_cut_is_heard_on_this_end_alone() {
        rt::block_on(async {
            let (cable, mut near, mut far) = connected(None, false).await;
            cable.cut(Cut::Silent);
            assert!(write(&mut near, b"x").await.is_err());
            drop(near);
            assert!(rt::timeout(WHILE, read(&mut far)).await.is_err());
            assert!(!cable.deafen(), "there is no connection any more");
        });
    }

    #[test]
    fn who_is_deaf_still_speaks() {
        rt::block_on(async {
            let (cable, mut near, mut far) = connected(None, false).await;
            assert!(cable.deafen());
            write(&mut far, b"lost").await.unwrap();
            assert!(rt::timeout(WHILE, read(&mut near)).await.is_err());
            write(&mut near, b"heard").await.unwrap();
            assert_eq!(read(&mut far).await.unwrap(), b"heard");
            cable.cut(Cut::Reset);
            assert!(read(&mut near).await.is_err());
        });
    }

    #[test]
    fn a_slow_reader_takes_its_time_and_loses_nothing() {
        rt::block_on(async {
            let (_cable, mut near, mut far) = connected(None, true).await;
            let sent: Vec<u8> = (0..4 * SIP).map(|n| n as u8).collect();
            assert_eq!(write(&mut far, &sent).await.unwrap(), sent.len());
            let began = Instant::now();
            let mut got = Vec::new();
            while got.len() < sent.len() {
                let sip = rt::timeout(SOON, read(&mut near)).await.unwrap().unwrap();
                assert!(sip.len() <= SIP);
                got.extend(sip);
            }
            assert_eq!(got, sent);
            assert!(began.elapsed() >= SIP_EVERY * 3);
        });
    }
}
