//! TLS streams: rustls over any stream with tokio's io traits.
//!
//! A peer that closes without close_notify is an error when read (`UnexpectedEof`): a cut-off
//! answer is never taken for a whole one. What is written is kept in rustls until `flush`, at most
//! [`WRITE_BUFFER`] bytes.
use std::error::Error;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice, Read, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{
    AlertDescription, ClientConfig, ClientConnection, Connection, PeerIncompatible, ServerConfig,
    ServerConnection,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connect::Seconds;
use super::timer::timeout;

/// Plain and sealed bytes that may wait in one connection before writes block.
const WRITE_BUFFER: usize = 32 * 1024;

/// Why a handshake failed.
#[derive(Debug)]
pub enum TlsError {
    /// It took too long.
    TimedOut {
        /// How long it was waited for.
        after: Duration,
    },
    /// The connection broke, or the peer closed it.
    Io(io::Error),
    /// The peer, its certificate or its words are not acceptable; or it did not accept ours.
    /// A certificate verifier's own error is in `CertificateError::Other`.
    Refused(rustls::Error),
}

impl TlsError {
    /// Whether the peer speaks none of the versions of TLS that are spoken here.
    pub fn is_about_version(&self) -> bool {
        matches!(
            self,
            Self::Refused(
                rustls::Error::AlertReceived(AlertDescription::ProtocolVersion)
                    | rustls::Error::PeerIncompatible(
                        PeerIncompatible::ServerDoesNotSupportTls12Or13
                            | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig
                    )
            )
        )
    }
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TlsError::TimedOut { after } => {
                write!(f, "the TLS handshake took longer than {}", Seconds(*after))
            }
            TlsError::Io(_) => f.write_str("the connection broke during the TLS handshake"),
            TlsError::Refused(_) => f.write_str("the TLS handshake failed"),
        }
    }
}

impl Error for TlsError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            TlsError::TimedOut { .. } => None,
            TlsError::Io(error) => Some(error),
            TlsError::Refused(error) => Some(error),
        }
    }
}

/// A stream over TLS.
pub struct TlsStream<IO> {
    io: IO,
    tls: Connection,
    /// The peer's close_notify, or its end, has been seen.
    ended: bool,
}

/// The synchronous traits that rustls wants, over a stream that may not be ready.
struct Blocking<'a, 'b, IO> {
    io: &'a mut IO,
    cx: &'a mut Context<'b>,
}

impl<IO: AsyncRead + Unpin> Read for Blocking<'_, '_, IO> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut buf = ReadBuf::new(buf);
        match Pin::new(&mut *self.io).poll_read(self.cx, &mut buf) {
            Poll::Ready(Ok(())) => Ok(buf.filled().len()),
            Poll::Ready(Err(error)) => Err(error),
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

impl<IO: AsyncWrite + Unpin> Write for Blocking<'_, '_, IO> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match Pin::new(&mut *self.io).poll_write(self.cx, buf) {
            Poll::Ready(written) => written,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// A flight of a handshake is several records, and one segment.
    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        match Pin::new(&mut *self.io).poll_write_vectored(self.cx, bufs) {
            Poll::Ready(written) => written,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn pending<T>(result: io::Result<T>) -> Poll<io::Result<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
        other => Poll::Ready(other),
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> TlsStream<IO> {
    fn new(io: IO, mut tls: Connection) -> TlsStream<IO> {
        tls.set_buffer_limit(Some(WRITE_BUFFER));
        TlsStream {
            io,
            tls,
            ended: false,
        }
    }

    /// Everything rustls has to say, into the stream and through it: that may be one that keeps what is
    /// written until it is flushed.
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.tls.wants_write() {
            let mut io = Blocking {
                io: &mut self.io,
                cx,
            };
            let written = ready!(pending(self.tls.write_tls(&mut io)))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
        }
        Pin::new(&mut self.io).poll_flush(cx)
    }

    /// One read of the stream into rustls. `false` at the stream's end.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, TlsError>> {
        let mut io = Blocking {
            io: &mut self.io,
            cx,
        };
        let read = match ready!(pending(self.tls.read_tls(&mut io))) {
            Ok(read) => read,
            Err(error) => return Poll::Ready(Err(TlsError::Io(error))),
        };
        if let Err(error) = self.tls.process_new_packets() {
            // The alert tells the peer why; whether it arrives is not our problem.
            let _ = self.poll_drain(cx);
            return Poll::Ready(Err(TlsError::Refused(error)));
        }
        Poll::Ready(Ok(read > 0))
    }

    /// Writes what waits, as [`poll_drain`](Self::poll_drain). A peer that refuses this side's certificate
    /// says so by an alert and closes: what is still to be written then fails, and the alert, read or
    /// not, is the better error.
    fn poll_drain_or_alert(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let failed = match ready!(self.poll_drain(cx)) {
            Ok(()) => return Poll::Ready(Ok(())),
            Err(error) => error,
        };
        // A few records at most stand before it.
        for _ in 0..8 {
            match self.poll_fill(cx) {
                Poll::Ready(Ok(true)) => {}
                Poll::Ready(Err(TlsError::Refused(error))) => {
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error)));
                }
                _ => break,
            }
        }
        Poll::Ready(Err(failed))
    }

    fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), TlsError>> {
        while self.tls.is_handshaking() {
            ready!(self.poll_drain(cx)).map_err(TlsError::Io)?;
            if !self.tls.is_handshaking() {
                break;
            }
            if !ready!(self.poll_fill(cx))? {
                let error = io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the peer closed the connection before the handshake was over, \
                     as some do that speak another version of TLS",
                );
                return Poll::Ready(Err(TlsError::Io(error)));
            }
        }
        // The last flight (a client's Finished, a server's tickets).
        ready!(self.poll_drain(cx)).map_err(TlsError::Io)?;
        Poll::Ready(Ok(()))
    }

    /// The certificates the peer has shown, its own first; empty when it showed none.
    pub fn peer_certificates(&self) -> &[CertificateDer<'static>] {
        self.tls.peer_certificates().unwrap_or_default()
    }

    /// The protocol both sides agreed on, `h2` for one.
    pub fn alpn(&self) -> Option<&[u8]> {
        self.tls.alpn_protocol()
    }

    /// The stream below.
    pub fn io(&self) -> &IO {
        &self.io
    }
}

async fn handshake<IO>(
    io: IO,
    tls: Result<Connection, rustls::Error>,
    wait: Duration,
) -> Result<TlsStream<IO>, TlsError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let mut stream = TlsStream::new(io, tls.map_err(TlsError::Refused)?);
    match timeout(wait, poll_fn(|cx| stream.poll_handshake(cx))).await {
        Err(_) => Err(TlsError::TimedOut { after: wait }),
        Ok(Err(error)) => Err(error),
        Ok(Ok(())) => Ok(stream),
    }
}

/// A handshake as the client, within `wait`. `name` is what the server's certificate must be for.
///
/// # Errors
/// [`TlsError`].
pub fn client<IO: AsyncRead + AsyncWrite + Unpin>(
    io: IO,
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    wait: Duration,
) -> impl Future<Output = Result<TlsStream<IO>, TlsError>> {
    handshake(
        io,
        ClientConnection::new(config, name).map(Connection::from),
        wait,
    )
}

/// A handshake as the server, within `wait`.
///
/// # Errors
/// [`TlsError`].
pub fn server<IO: AsyncRead + AsyncWrite + Unpin>(
    io: IO,
    config: Arc<ServerConfig>,
    wait: Duration,
) -> impl Future<Output = Result<TlsStream<IO>, TlsError>> {
    handshake(
        io,
        ServerConnection::new(config).map(Connection::from),
        wait,
    )
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncRead for TlsStream<IO> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            match this.tls.reader().read(buf.initialize_unfilled()) {
                Ok(read) => {
                    buf.advance(read);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !this.ended => {}
                // rustls says it with a link to its manual.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    let error = "the peer closed the connection without a word";
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::UnexpectedEof, error)));
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
            match ready!(this.poll_fill(cx)) {
                Ok(more) => this.ended = !more,
                Err(TlsError::Refused(error)) => {
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error)));
                }
                Err(TlsError::Io(error)) => return Poll::Ready(Err(error)),
                Err(error) => return Poll::Ready(Err(io::Error::other(error))),
            }
            // What reading gave rise to (a key update's answer) goes out when there is room.
            if this.tls.wants_write()
                && let Poll::Ready(Err(error)) = this.poll_drain(cx)
            {
                return Poll::Ready(Err(error));
            }
        }
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TlsStream<IO> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        loop {
            let written = this.tls.writer().write(buf)?;
            if written > 0 || buf.is_empty() {
                return Poll::Ready(Ok(written));
            }
            ready!(this.poll_drain_or_alert(cx))?;
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.poll_drain_or_alert(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        // Said once: rustls remembers it.
        this.tls.send_close_notify();
        ready!(this.poll_drain(cx))?;
        Pin::new(&mut this.io).poll_shutdown(cx)
    }
}
