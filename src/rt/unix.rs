//! Unix sockets in the loop.
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener as StdListener, UnixStream as StdStream};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, sockopt};

use super::reactor::Readiness;
use super::timer::sleep;
use crate::sys::peer::{self, Credentials};

/// How long a listener waits when the process or the host has no descriptors left.
const EXHAUSTED: Duration = Duration::from_secs(1);

/// What the kernel keeps of what the other end does not read. Not inherited from a listener.
const SEND_BUFFER: usize = 16 * 1024;

/// A listening socket in this thread's loop.
pub struct UnixListener {
    readiness: Readiness,
    socket: StdListener,
}

/// A connection in this thread's loop.
pub struct UnixStream {
    readiness: Readiness,
    socket: StdStream,
}

impl UnixListener {
    /// Takes over a listening socket.
    ///
    /// # Errors
    /// When it cannot be made non-blocking or watched.
    pub fn from_std(socket: StdListener) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self {
            readiness: Readiness::new(&socket)?,
            socket,
        })
    }

    /// The next connection; a lack of descriptors is waited out.
    ///
    /// # Errors
    /// Only when the listener itself is broken.
    pub async fn accept(&self) -> io::Result<UnixStream> {
        loop {
            let accepted =
                poll_fn(|cx| self.readiness.poll_read(cx, || self.socket.accept())).await;
            match accepted.and_then(|(socket, _)| UnixStream::from_std(socket)) {
                Ok(stream) => return Ok(stream),
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::BADF | Errno::INVAL | Errno::NOTSOCK | Errno::OPNOTSUPP) => {
                        return Err(error);
                    }
                    _ => sleep(EXHAUSTED).await,
                },
            }
        }
    }
}

impl Drop for UnixListener {
    fn drop(&mut self) {
        self.readiness.remove(&self.socket);
    }
}

impl UnixStream {
    /// Takes over a connected socket.
    ///
    /// # Errors
    /// When it cannot be made non-blocking or watched.
    pub fn from_std(socket: StdStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER)?;
        Ok(Self {
            readiness: Readiness::new(&socket)?,
            socket,
        })
    }

    /// What there is to read, at least one byte; 0 at the end.
    ///
    /// # Errors
    /// What recv(2) says.
    pub async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        poll_fn(|cx| {
            self.readiness.poll_read(cx, || {
                let (read, _) = rustix::net::recv(&self.socket, &mut *buffer, RecvFlags::empty())?;
                Ok(read)
            })
        })
        .await
    }

    /// As [`read`](Self::read), of one writer, with who that is; see [`peer::receive`].
    ///
    /// # Errors
    /// As there.
    pub async fn read_of(&self, buffer: &mut [u8]) -> io::Result<(usize, Option<Credentials>)> {
        poll_fn(|cx| {
            self.readiness
                .poll_read(cx, || peer::receive(&self.socket, &mut *buffer))
        })
        .await
    }

    /// Writes all of it.
    ///
    /// # Errors
    /// What send(2) says.
    pub async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let sent = poll_fn(|cx| {
                self.readiness.poll_write(cx, || {
                    Ok(rustix::net::send(&self.socket, bytes, SendFlags::NOSIGNAL)?)
                })
            })
            .await?;
            bytes = bytes.get(sent..).unwrap_or_default();
        }
        Ok(())
    }
}

impl AsFd for UnixStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for UnixStream {
    fn drop(&mut self) {
        self.readiness.remove(&self.socket);
    }
}
