//! TLS streams over real sockets.
use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig, version::TLS13};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

use super::tls::{self, TlsError, TlsStream};
use super::*;

const WAIT: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(100);

/// A certificate for localhost that is its own CA, and its key.
fn identity() -> (rcgen::Certificate, PrivateKeyDer<'static>) {
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    (certificate, key.into())
}

fn configs(client_must_show: bool) -> (Arc<ClientConfig>, Arc<ServerConfig>) {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let (certificate, key) = identity();
    let chain = vec![certificate.der().clone()];
    let mut roots = RootCertStore::empty();
    roots.add(certificate.der().clone()).unwrap();
    let roots = Arc::new(roots);
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone());
    let verifier = if client_must_show {
        verifier
    } else {
        verifier.allow_unauthenticated()
    }
    .build()
    .unwrap();
    let server = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .unwrap();
    let client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    (Arc::new(client), Arc::new(server))
}

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let accepted = spawn(async move { listener.accept().await.unwrap().0 });
    let client = TcpStream::connect(address).await.unwrap();
    (client, accepted.await.unwrap())
}

async fn secured() -> (TlsStream<TcpStream>, TlsStream<TcpStream>) {
    let (client_config, server_config) = configs(false);
    let (client, server) = pair().await;
    let server = spawn(tls::server(server, server_config, WAIT));
    let name = ServerName::try_from("localhost").unwrap();
    let client = tls::client(client, client_config, name, WAIT)
        .await
        .unwrap();
    (client, server.await.unwrap().unwrap())
}

#[test]
fn bytes_go_both_ways_and_close_notify_is_an_end() {
    block_on(async {
        let (mut client, mut server) = secured().await;
        assert_eq!(client.peer_certificates().len(), 1);
        assert!(server.peer_certificates().is_empty());
        let echo = spawn(async move {
            let mut all = Vec::new();
            server.read_to_end(&mut all).await.unwrap();
            server.write_all(&all).await.unwrap();
            server.shutdown().await.unwrap();
            server
        });
        let sent: Vec<u8> = (0..2_000_000u32).map(|n| (n % 251) as u8).collect();
        client.write_all(&sent).await.unwrap();
        client.shutdown().await.unwrap();
        let mut got = Vec::new();
        client.read_to_end(&mut got).await.unwrap();
        assert!(got == sent);
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
        echo.await;
    });
}

#[test]
fn a_cut_connection_is_no_end() {
    block_on(async {
        let (mut client, mut server) = secured().await;
        server.write_all(b"half").await.unwrap();
        server.flush().await.unwrap();
        drop(server);
        let mut got = Vec::new();
        let error = client.read_to_end(&mut got).await.unwrap_err();
        assert_eq!(got, b"half");
        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
    });
}

#[test]
fn a_handshake_has_a_deadline_on_both_sides() {
    block_on(async {
        let (client_config, server_config) = configs(false);
        let (client, _mute) = pair().await;
        let name = ServerName::try_from("localhost").unwrap();
        let error = tls::client(client, client_config, name, SHORT)
            .await
            .err()
            .unwrap();
        assert_eq!(
            error.to_string(),
            "the TLS handshake took longer than 100 ms"
        );
        // A client that sends a byte now and then.
        let (mut slow, server) = pair().await;
        spawn(async move {
            for byte in [0x16u8, 3, 1, 1, 0, 1, 0, 0, 0xfc] {
                slow.write_all(&[byte]).await.unwrap();
                sleep(Duration::from_millis(30)).await;
            }
            sleep(WAIT).await;
        });
        let error = tls::server(server, server_config, SHORT)
            .await
            .err()
            .unwrap();
        assert!(matches!(error, TlsError::TimedOut { .. }));
    });
}

#[test]
fn a_certificate_for_another_name_or_from_another_ca_is_refused_and_the_server_hears_why() {
    block_on(async {
        let (client_config, server_config) = configs(false);
        let other = configs(false).0;
        for (config, name, why) in [
            (client_config.clone(), "other.example", "not valid for name"),
            (other, "localhost", "invalid peer certificate"),
        ] {
            let (client, server) = pair().await;
            let server = spawn(tls::server(server, server_config.clone(), WAIT));
            let name = ServerName::try_from(name).unwrap();
            let error = tls::client(client, config, name, WAIT).await.err().unwrap();
            let TlsError::Refused(cause) = error else {
                panic!("{error:?}")
            };
            assert!(cause.to_string().contains(why), "{cause}");
            let heard = match server.await.unwrap() {
                Err(TlsError::Refused(cause)) => cause.to_string(),
                Err(error) => panic!("{error:?}"),
                Ok(_) => panic!("the server took a handshake that the client refused"),
            };
            assert!(heard.contains("alert"), "{heard}");
        }
    });
}

#[test]
fn a_client_without_a_certificate_hears_that_one_is_needed() {
    block_on(async {
        let (client_config, server_config) = configs(true);
        let (client, server) = pair().await;
        let server = spawn(tls::server(server, server_config, WAIT));
        let name = ServerName::try_from("localhost").unwrap();
        // In TLS 1.3 the client's handshake is over before the server has judged it.
        let mut client = tls::client(client, client_config, name, WAIT)
            .await
            .unwrap();
        let error = client.read(&mut [0]).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
        assert!(error.to_string().contains("CertificateRequired"), "{error}");
        assert!(matches!(server.await.unwrap(), Err(TlsError::Refused(_))));
    });
}

#[test]
fn a_client_that_goes_on_writing_hears_why_it_was_refused_too() {
    block_on(async {
        let (client_config, server_config) = configs(true);
        for _ in 0..20 {
            let (client, server) = pair().await;
            let server = spawn(tls::server(server, server_config.clone(), WAIT));
            let name = ServerName::try_from("localhost").unwrap();
            let mut client = tls::client(client, client_config.clone(), name, WAIT)
                .await
                .unwrap();
            assert!(server.await.unwrap().is_err());
            // The server has closed by now: the first write is answered by a reset, the second fails.
            let mut failed = None;
            for _ in 0..100 {
                let written = async {
                    client.write_all(b"hello").await?;
                    client.flush().await
                };
                if let Err(error) = written.await {
                    failed = Some(error);
                    break;
                }
                sleep(Duration::from_millis(1)).await;
            }
            let error = failed.unwrap();
            assert_eq!(error.kind(), std::io::ErrorKind::InvalidData, "{error}");
            assert!(error.to_string().contains("CertificateRequired"), "{error}");
        }
    });
}

#[test]
fn bytes_that_are_no_tls_are_refused() {
    block_on(async {
        let (_, server_config) = configs(false);
        let (mut client, server) = pair().await;
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        let error = tls::server(server, server_config, WAIT)
            .await
            .err()
            .unwrap();
        assert!(matches!(error, TlsError::Refused(_)), "{error:?}");
    });
}

#[test]
fn a_reader_that_stops_stops_the_writer() {
    block_on(async {
        let (mut client, mut server) = secured().await;
        let mut written = 0;
        let piece = vec![7; 16_384];
        while timeout(SHORT, server.write_all(&piece)).await.is_ok() {
            written += piece.len();
            assert!(written < 64 << 20, "nothing stops the writer");
        }
        // What was written waits in the server's buffers too.
        spawn(async move { server.flush().await });
        let mut left = written;
        let mut buffer = vec![0; 65_536];
        while left > 0 {
            left = left.saturating_sub(client.read(&mut buffer).await.unwrap());
        }
    });
}

/// A connection that counts how often it is written to.
struct Counting(TcpStream, Rc<Cell<u32>>);

impl AsyncRead for Counting {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Counting {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.1.set(self.1.get() + 1);
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.1.set(self.1.get() + 1);
        Pin::new(&mut self.0).poll_write_vectored(cx, bufs)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[test]
fn a_flight_of_records_is_one_write() {
    block_on(async {
        let (client_config, server_config) = configs(false);
        let (client, server) = pair().await;
        let writes = Rc::new(Cell::new(0));
        let server = Counting(server, writes.clone());
        let server = spawn(tls::server(server, server_config, WAIT));
        let name = ServerName::try_from("localhost").unwrap();
        let mut client = tls::client(client, client_config, name, WAIT)
            .await
            .unwrap();
        let mut server = server.await.unwrap().unwrap();
        // The hello, the certificate and the rest are one; the tickets are the other.
        assert_eq!(writes.get(), 2);
        let sent = [7; 20_000];
        server.write_all(&sent).await.unwrap();
        server.flush().await.unwrap();
        assert_eq!(writes.get(), 3, "two records");
        let mut got = [0; 20_000];
        client.read_exact(&mut got).await.unwrap();
        assert_eq!(got, sent);
    });
}
