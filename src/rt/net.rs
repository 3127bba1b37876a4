//! TCP, with tokio's io traits.
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, ipproto,
    sockopt,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::reactor::Readiness;
use super::timer::sleep;

/// Connections the kernel holds for a listener until they are accepted. One that finds no place is tried again
/// by its client's kernel after a second or more.
const BACKLOG: i32 = 4096;

/// How long a listener waits when the process or the host has no descriptors left.
const EXHAUSTED: Duration = Duration::from_millis(100);

/// A TCP connection in this thread's loop. Nagle's delay is off.
pub struct TcpStream {
    readiness: Readiness,
    socket: StdStream,
}

impl TcpStream {
    /// Takes over a connected socket.
    ///
    /// # Errors
    /// When it cannot be made non-blocking or watched.
    pub fn from_std(socket: StdStream) -> io::Result<TcpStream> {
        socket.set_nonblocking(true)?;
        // A socket that was closed meanwhile says EINVAL here; its first read says what happened.
        let _ = socket.set_nodelay(true);
        Ok(TcpStream {
            readiness: Readiness::new(&socket)?,
            socket,
        })
    }

    /// Connects to one address, without a deadline of its own: see [`super::connect`].
    ///
    /// # Errors
    /// The kernel's word: refused, unreachable, timed out.
    pub async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
        Self::connect_as(address, None, None).await
    }

    /// As [`connect`](Self::connect), from the address `source` of this host.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), and that this host has no such address, or no free port there.
    pub async fn connect_from(address: SocketAddr, source: SocketAddr) -> io::Result<TcpStream> {
        Self::connect_as(address, None, Some(source)).await
    }

    /// As [`connect`](Self::connect), with segments of at most `segment` bytes both ways: the other
    /// end is told.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn connect_segments(
        address: SocketAddr,
        segment: Option<u32>,
    ) -> io::Result<TcpStream> {
        Self::connect_as(address, segment, None).await
    }

    async fn connect_as(
        address: SocketAddr,
        segment: Option<u32>,
        source: Option<SocketAddr>,
    ) -> io::Result<TcpStream> {
        let family = if address.is_ipv4() {
            AddressFamily::INET
        } else {
            AddressFamily::INET6
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        if let Some(segment) = segment {
            limit_segments(&socket, segment)?;
        }
        if let Some(source) = source {
            rustix::net::bind(&socket, &source)?;
        }
        let connected = match rustix::net::connect(&socket, &address) {
            Ok(()) => true,
            Err(Errno::INPROGRESS) => false,
            Err(error) => return Err(error.into()),
        };
        // Registered after connect: a socket that is not connecting yet reports a hang-up.
        let readiness = Readiness::new(&socket)?;
        let stream = TcpStream {
            readiness,
            socket: StdStream::from(socket),
        };
        if !connected {
            poll_fn(|cx| {
                stream
                    .readiness
                    .poll_write(cx, || match sockopt::socket_error(&stream.socket)? {
                        Err(error) => Err(error.into()),
                        Ok(()) if rustix::net::getpeername(&stream.socket).is_ok() => Ok(()),
                        Ok(()) => Err(io::ErrorKind::WouldBlock.into()),
                    })
            })
            .await?;
        }
        Ok(stream)
    }

    /// The other end's address.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket.peer_addr()
    }

    /// This end's address.
    ///
    /// # Errors
    /// When the kernel refuses to say.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// The largest packet that passes to the other end, as far as the kernel knows.
    pub fn path_mtu(&self) -> Option<u32> {
        let (level, name) = match self.socket.peer_addr().ok()? {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
        };
        let mut mtu: libc::c_int = 0;
        let mut length = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the descriptor is open, and value and length are of the size that is said.
        let status = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                level,
                name,
                (&raw mut mtu).cast(),
                &raw mut length,
            )
        };
        (status == 0).then(|| u32::try_from(mtu).ok())?
    }

    /// Closing it from now on resets the connection: what lies unsent is dropped, and the other end hears
    /// of a fault.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn reset_on_close(&self) -> io::Result<()> {
        Ok(sockopt::set_socket_linger(
            &self.socket,
            Some(Duration::ZERO),
        )?)
    }

    /// How long sent data may stay unacknowledged before the kernel drops the connection
    /// (`TCP_USER_TIMEOUT`): a path that died silently is then noticed without a timer here.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_unacknowledged_limit(&self, limit: Duration) -> io::Result<()> {
        let ms = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
        Ok(sockopt::set_tcp_user_timeout(&self.socket, ms)?)
    }
}

/// `TCP_MAXSEG`, before connecting.
fn limit_segments(socket: &OwnedFd, segment: u32) -> io::Result<()> {
    let segment = libc::c_int::try_from(segment).unwrap_or(libc::c_int::MAX);
    // SAFETY: the descriptor is open, and the value is of the size that is said.
    let status = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_MAXSEG,
            (&raw const segment).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    match status {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Drop for TcpStream {
    fn drop(&mut self) {
        self.readiness.remove(&self.socket);
    }
}

impl AsFd for TcpStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsyncRead for TcpStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let socket = &this.socket;
        let room = buf.remaining();
        if room == 0 {
            return Poll::Ready(Ok(()));
        }
        let read = this.readiness.poll_read(cx, || {
            let bytes = buf.initialize_unfilled();
            let (read, _) = rustix::net::recv(socket, bytes, RecvFlags::empty())?;
            Ok(read)
        });
        match read {
            Poll::Ready(Ok(read)) => {
                buf.advance(read);
                if 0 < read && read < room {
                    this.readiness.drained();
                }
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncWrite for TcpStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let socket = &self.socket;
        self.readiness.poll_write(cx, || {
            Ok(rustix::net::send(socket, buf, SendFlags::NOSIGNAL)?)
        })
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let socket = &self.socket;
        self.readiness.poll_write(cx, || {
            let mut nothing = SendAncillaryBuffer::default();
            let flags = SendFlags::NOSIGNAL;
            Ok(rustix::net::sendmsg(socket, bufs, &mut nothing, flags)?)
        })
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.socket.shutdown(std::net::Shutdown::Write) {
            // The peer was faster.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Poll::Ready(Ok(())),
            other => Poll::Ready(other),
        }
    }
}

/// A listening socket in this thread's loop.
pub struct TcpListener {
    readiness: Readiness,
    socket: StdListener,
}

impl TcpListener {
    /// Listens on `address`. An IPv6 address serves IPv6 only: `[::]` and `0.0.0.0` may be
    /// listened on together.
    ///
    /// # Errors
    /// The kernel's word: in use, not available, not permitted.
    pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
        let family = if address.is_ipv4() {
            AddressFamily::INET
        } else {
            AddressFamily::INET6
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        if address.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, true)?;
        }
        rustix::net::bind(&socket, &address)?;
        rustix::net::listen(&socket, BACKLOG)?;
        TcpListener::from_std(StdListener::from(socket))
    }

    /// Takes over a listening socket.
    ///
    /// # Errors
    /// When it cannot be made non-blocking or watched.
    pub fn from_std(socket: StdListener) -> io::Result<TcpListener> {
        socket.set_nonblocking(true)?;
        Ok(TcpListener {
            readiness: Readiness::new(&socket)?,
            socket,
        })
    }

    /// The address it listens on, with the port the kernel chose.
    ///
    /// # Errors
    /// When the kernel refuses to say.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// The next connection. Connections that die before they are taken are passed over, and a lack
    /// of descriptors is waited out.
    ///
    /// # Errors
    /// Only when the listener itself is broken.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        loop {
            let (socket, peer) = self.accept_socket().await?;
            match TcpStream::from_std(socket) {
                Ok(stream) => return Ok((stream, peer)),
                Err(_) => sleep(EXHAUSTED).await,
            }
        }
    }

    /// As [`TcpListener::accept`], without taking the connection into this thread's loop: for
    /// [`TcpStream::from_std`] on another one's.
    ///
    /// # Errors
    /// Only when the listener itself is broken.
    pub async fn accept_socket(&self) -> io::Result<(StdStream, SocketAddr)> {
        loop {
            let accepted =
                poll_fn(|cx| self.readiness.poll_read(cx, || self.socket.accept())).await;
            match accepted {
                Ok(accepted) => return Ok(accepted),
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                        sleep(EXHAUSTED).await;
                    }
                    Some(Errno::BADF | Errno::INVAL | Errno::NOTSOCK | Errno::OPNOTSUPP) => {
                        return Err(error);
                    }
                    // accept(2): network errors of the new socket are passed on; treat them as
                    // one connection less.
                    _ => {}
                },
            }
        }
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        self.readiness.remove(&self.socket);
    }
}

impl AsFd for TcpListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
