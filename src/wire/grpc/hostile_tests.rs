//! Peers that break the rules, or bend them: raw frames against our server, odd servers against
//! our client.
use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use h2::server::SendResponse;
use http::{HeaderMap, Response};
use proto_gen::codec::Method;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::client::{CallError, Cause, Client, Endpoint, Phase};
use super::server::{Limits, Peer, Router, serve};
use super::tests::Raw;
use super::{Code, Status};
use crate::rt;

const WAIT: Duration = Duration::from_secs(10);
const ECHO: Method<Raw, Raw> = Method::unary("/test.Test/Echo");
const TALK: Method<Raw, Raw> = Method::bidi("/test.Test/Talk");

// Odd servers.

/// Runs `answer` for each request of each connection.
fn odd_server<F, A>(answer: F) -> Endpoint
where
    F: Fn(SendResponse<Bytes>) -> A + 'static,
    A: Future<Output = ()> + 'static,
{
    let listener = rt::TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let endpoint = Endpoint::new("127.0.0.1", listener.local_addr().unwrap().port());
    let answer = Rc::new(answer);
    rt::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let answer = answer.clone();
            rt::spawn(async move {
                let mut connection = h2::server::handshake(stream).await.unwrap();
                while let Some(Ok((request, respond))) = connection.accept().await {
                    let work = answer(respond);
                    rt::spawn(async move {
                        let _request = request;
                        work.await;
                        rt::sleep(WAIT).await;
                    });
                }
            });
        }
    });
    endpoint
}

fn head(status: u16, headers: &[(&'static str, &'static str)]) -> Response<()> {
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    response.body(()).unwrap()
}

const GRPC: (&str, &str) = ("content-type", "application/grpc");

fn trailers(status: &'static str) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", status.parse().unwrap());
    trailers
}

async fn call<F, A>(answer: F) -> Result<Raw, CallError>
where
    F: Fn(SendResponse<Bytes>) -> A + 'static,
    A: Future<Output = ()> + 'static,
{
    let client = Client::connect(&odd_server(answer)).await.unwrap();
    client.unary(&ECHO, &Raw(b"x".to_vec()), WAIT).await
}

/// Calls a server that answers with this head alone.
async fn headed(status: u16, headers: &'static [(&'static str, &'static str)]) -> CallError {
    let answer = move |mut respond: SendResponse<Bytes>| async move {
        respond.send_response(head(status, headers), true).unwrap();
    };
    call(answer).await.unwrap_err()
}

#[test]
fn trailers_only_answers_are_read() {
    rt::block_on(async {
        let error = headed(
            200,
            &[GRPC, ("grpc-status", "9"), ("grpc-message", "so%3A %zz")],
        )
        .await;
        let expected = Status::new(Code::FailedPrecondition, "so: %zz");
        assert_eq!(error.status(), Some(&expected));
        // Also when a proxy has put another HTTP status on it.
        assert_eq!(
            headed(503, &[GRPC, ("grpc-status", "7")]).await.code(),
            Code::PermissionDenied
        );
        assert_eq!(
            headed(200, &[GRPC, ("grpc-status", "what")]).await.code(),
            Code::Unknown
        );
        assert_eq!(
            headed(200, &[GRPC, ("grpc-status", "0")]).await.code(),
            Code::Internal
        );
    });
}

#[test]
fn answers_of_proxies_are_mapped() {
    rt::block_on(async {
        for (status, code) in [
            (401, Code::Unauthenticated),
            (403, Code::PermissionDenied),
            (404, Code::Unimplemented),
            (429, Code::Unavailable),
            (502, Code::Unavailable),
            (503, Code::Unavailable),
            (500, Code::Unknown),
        ] {
            let error = headed(status, &[("content-type", "text/html")]).await;
            assert_eq!(error.code(), code);
            assert!(
                error.to_string().contains(&format!("HTTP status {status}")),
                "{error}"
            );
        }
        assert_eq!(
            headed(200, &[("content-type", "text/html")]).await.code(),
            Code::Unknown
        );
        assert_eq!(headed(200, &[]).await.code(), Code::Unknown);
    });
}

#[test]
fn a_message_in_single_bytes_is_put_together() {
    rt::block_on(async {
        let answer = |mut respond: SendResponse<Bytes>| async move {
            let mut body = respond.send_response(head(200, &[GRPC]), false).unwrap();
            // Field 1, three bytes.
            for byte in [0, 0, 0, 0, 5, 0x0a, 3, b'a', b'b', b'c'] {
                body.send_data(Bytes::from(vec![byte]), false).unwrap();
                rt::sleep(Duration::from_millis(1)).await;
            }
            body.send_trailers(trailers("0")).unwrap();
        };
        assert_eq!(call(answer).await.unwrap(), Raw(b"abc".to_vec()));
    });
}

async fn body(bytes: &'static [u8], status: Option<&'static str>) -> Result<Raw, CallError> {
    let answer = move |mut respond: SendResponse<Bytes>| async move {
        let mut body = respond.send_response(head(200, &[GRPC]), false).unwrap();
        body.send_data(Bytes::from_static(bytes), status.is_none())
            .unwrap();
        if let Some(status) = status {
            body.send_trailers(trailers(status)).unwrap();
        }
    };
    call(answer).await
}

#[test]
fn answers_that_break_the_framing_are_refused() {
    rt::block_on(async {
        let code = |result: Result<Raw, CallError>| result.unwrap_err().code();
        const WHOLE: &[u8] = &[0, 0, 0, 0, 3, 0x0a, 1, b'a'];
        assert_eq!(body(WHOLE, Some("0")).await.unwrap(), Raw(b"a".to_vec()));
        // No status, no message, half a message, two messages, one that announces 4 GiB.
        assert_eq!(code(body(WHOLE, None).await), Code::Unknown);
        assert_eq!(code(body(&[], Some("0")).await), Code::Internal);
        assert_eq!(
            code(body(&[0, 0, 0, 0, 9, 1], Some("0")).await),
            Code::Internal
        );
        let two = [WHOLE, WHOLE].concat().leak();
        assert_eq!(code(body(two, Some("0")).await), Code::Internal);
        let huge = &[0, 0xff, 0xff, 0xff, 0xff];
        let error = body(huge, Some("0")).await.unwrap_err();
        // Asking again would not make it smaller: no code that is tried again.
        assert_eq!(error.code(), Code::Internal, "{error:?}");
        assert_eq!(
            code(body(&[1, 0, 0, 0, 1, 0], Some("0")).await),
            Code::Unimplemented
        );
        // A message before a refusal is not an answer; the refusal is.
        assert_eq!(code(body(WHOLE, Some("8")).await), Code::ResourceExhausted);
        // Whole, but no protobuf.
        let error = body(&[0, 0, 0, 0, 2, 0x0a, 9], Some("0"))
            .await
            .unwrap_err();
        assert!(matches!(error.cause, Cause::Decode(_)));
        assert_eq!(error.phase, Phase::Answer);
    });
}

#[test]
fn reset_streams_have_the_codes_that_grpc_gives_them() {
    rt::block_on(async {
        for (reason, code) in [
            (Reason::REFUSED_STREAM, Code::Unavailable),
            (Reason::CANCEL, Code::Cancelled),
            (Reason::ENHANCE_YOUR_CALM, Code::ResourceExhausted),
            (Reason::INTERNAL_ERROR, Code::Internal),
        ] {
            let answer = move |mut respond: SendResponse<Bytes>| async move {
                respond.send_reset(reason);
            };
            assert_eq!(call(answer).await.unwrap_err().code(), code);
        }
    });
}

#[test]
fn a_server_may_refuse_before_it_has_read_the_request() {
    rt::block_on(async {
        let answer = |mut respond: SendResponse<Bytes>| async move {
            let refusal = head(
                200,
                &[GRPC, ("grpc-status", "8"), ("grpc-message", "too much")],
            );
            respond.send_response(refusal, true).unwrap();
            // Or h2 would let the reset overtake the answer.
            rt::sleep(Duration::from_millis(50)).await;
            respond.send_reset(Reason::NO_ERROR);
        };
        let client = Client::connect(&odd_server(answer)).await.unwrap();
        // More than the server's window, of which it takes nothing.
        let error = client
            .unary(&ECHO, &Raw(vec![1; 1_000_000]), WAIT)
            .await
            .unwrap_err();
        assert_eq!(error.code(), Code::ResourceExhausted, "{error:?}");
    });
}

#[test]
fn a_head_above_the_limit_is_refused() {
    rt::block_on(async {
        let answer = |mut respond: SendResponse<Bytes>| async move {
            let long: &'static str = "a".repeat(20_000).leak();
            let head = head(200, &[GRPC, ("x-long", long)]);
            let _ = respond.send_response(head, true);
        };
        let error = call(answer).await.unwrap_err();
        assert!(matches!(error.cause, Cause::Http2(_)), "{error:?}");
    });
}

// Hostile clients, in frames.

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    let mut bytes = length[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A literal header field without indexing (RFC 7541, section 6.2.2).
fn field(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![0, name.len() as u8];
    bytes.extend(name.as_bytes());
    bytes.push(value.len() as u8);
    bytes.extend(value.as_bytes());
    bytes
}

fn request_fields() -> Vec<u8> {
    [
        field(":method", "POST"),
        field(":scheme", "http"),
        field(":path", "/test.Test/Talk"),
        field(":authority", "h"),
        field("content-type", "application/grpc"),
        field("te", "trailers"),
    ]
    .concat()
}

/// Sends the preface, SETTINGS and then whatever `next` gives (by number) until the server closes
/// or `next` ends. Says how the server saw it, or `None` when it still served after two seconds.
async fn attack(limits: Limits, next: impl Fn(u32) -> Option<Vec<u8>> + 'static) -> Option<String> {
    let listener = rt::TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let end = Rc::new(RefCell::new(None));
    let seen = end.clone();
    rt::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut router = Router::new();
        router.bidi(&TALK, |_, mut receiver, _sender| async move {
            while receiver.next().await?.is_some() {}
            Ok(())
        });
        let served = serve(stream, Peer::default(), Rc::new(router), limits).await;
        *seen.borrow_mut() = Some(format!("{served:?}"));
    });
    let client = rt::TcpStream::connect(address).await.unwrap();
    let (mut reading, mut writing) = tokio::io::split(client);
    let reader = rt::spawn(async move {
        let mut buffer = [0; 4096];
        while matches!(reading.read(&mut buffer).await, Ok(1..)) {}
    });
    let writer = rt::spawn(async move {
        let start = [PREFACE, &frame(4, 0, 0, &[])].concat();
        writing.write_all(&start).await.unwrap();
        let mut number = 0;
        while let Some(bytes) = next(number) {
            number += 1;
            if writing.write_all(&bytes).await.is_err() {
                return;
            }
            if number % 16 == 0 {
                rt::yield_now().await;
            }
        }
        rt::sleep(WAIT).await;
    });
    let _ = rt::timeout(Duration::from_secs(2), reader).await;
    writer.cancel();
    rt::yield_now().await;
    end.take()
}

#[test]
fn floods_end_the_connection() {
    rt::block_on(async {
        let limits = Limits::default();
        let pings = attack(limits, |_| Some(frame(6, 0, 0, b"12345678"))).await;
        assert!(pings.unwrap().contains("floods"));
        let settings = attack(limits, |_| Some(frame(4, 0, 0, &[0, 4, 0, 1, 0, 0]))).await;
        assert!(settings.unwrap().contains("floods"));
        // Streams opened and reset at once (CVE-2023-44487).
        let resets = attack(limits, |n| {
            let stream = n * 2 + 1;
            let open = frame(1, 4, stream, &request_fields());
            Some([open, frame(3, 0, stream, &[0, 0, 0, 8])].concat())
        });
        assert!(resets.await.is_some(), "rapid resets");
        // Headers without end (CVE-2024-24549 and its kin).
        let continuation = attack(limits, |n| {
            let more = field("x", &"y".repeat(100));
            Some(match n {
                0 => frame(1, 0, 1, &request_fields()),
                _ => frame(9, 0, 1, &more),
            })
        });
        assert!(continuation.await.is_some(), "CONTINUATION without end");
        // Empty DATA frames (CVE-2019-9518).
        let empty = attack(limits, |n| {
            Some(match n {
                0 => frame(1, 4, 1, &request_fields()),
                _ => frame(0, 0, 1, &[]),
            })
        });
        assert!(empty.await.is_some(), "empty DATA");
    });
}

#[test]
fn more_streams_than_allowed_are_refused_and_the_rest_lives() {
    rt::block_on(async {
        let limits = Limits {
            streams: 4,
            ..Limits::default()
        };
        let open = attack(limits, |n| {
            (n < 8).then(|| frame(1, 4, n * 2 + 1, &request_fields()))
        });
        assert_eq!(open.await, None);
        let mut router = Router::new();
        router.bidi(&TALK, |_, mut receiver, mut sender| async move {
            sender.open()?;
            while receiver.next().await?.is_some() {}
            Ok(())
        });
        let listener = rt::TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let endpoint = Endpoint::new("127.0.0.1", listener.local_addr().unwrap().port());
        rt::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let _ = serve(stream, Peer::default(), Rc::new(router), limits).await;
        });
        // Our own client waits for a place instead.
        let client = Client::connect(&endpoint).await.unwrap();
        let mut held = Vec::new();
        for _ in 0..4 {
            held.push(client.stream(&TALK, None).await.unwrap());
            rt::sleep(Duration::from_millis(20)).await;
        }
        let wait = Duration::from_millis(300);
        assert!(
            rt::timeout(wait, client.unary(&ECHO, &Raw(Vec::new()), WAIT))
                .await
                .is_err()
        );
        held.pop();
        let error = client
            .unary(&ECHO, &Raw(Vec::new()), WAIT)
            .await
            .unwrap_err();
        assert_eq!(error.code(), Code::Unimplemented);
    });
}

#[test]
fn broken_frames_end_the_connection() {
    rt::block_on(async {
        for (what, bytes) in [
            ("a frame above the size", frame(0, 0, 1, &[0; 20_000])),
            ("DATA on stream 0", frame(0, 0, 0, &[0])),
            ("an even stream", frame(1, 4, 2, &request_fields())),
            ("a SETTINGS of odd length", frame(4, 0, 0, &[0; 5])),
            (
                "a window above its limit",
                frame(8, 0, 0, &[0x7f, 0xff, 0xff, 0xff]),
            ),
            ("bad HPACK", frame(1, 4, 1, &[0xff; 40])),
            ("PUSH_PROMISE from a client", frame(5, 4, 1, &[0, 0, 0, 2])),
        ] {
            let end = attack(Limits::default(), move |n| (n == 0).then(|| bytes.clone())).await;
            assert!(
                end.as_ref().is_some_and(|end| end.contains("Http2")),
                "{what}: {end:?}"
            );
        }
    });
}

#[test]
fn a_large_head_is_refused_and_its_connection_bounded() {
    rt::block_on(async {
        // One header of 17,000 bytes, in two frames.
        let mut long = request_fields();
        long.extend([0, 1, b'x', 0x7f]);
        // 127 + 16873, as an HPACK integer.
        long.extend([0xe9, 0x83, 0x01]);
        long.extend(vec![b'y'; 17_000]);
        let end = attack(Limits::default(), move |n| match n {
            0 => Some(frame(1, 0, 1, &long[..10_000])),
            1 => Some(frame(9, 4, 1, &long[10_000..])),
            _ => None,
        });
        // Refused with 431 on the stream, or by ending the connection: either way it is not served.
        let end = end.await;
        assert!(end.is_none() || end.is_some_and(|end| end.contains("Http2")));
    });
}

#[test]
fn requests_that_are_no_grpc_are_answered_in_http() {
    rt::block_on(async {
        let listener = rt::TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        rt::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let _ = serve(stream, Peer::default(), Rc::default(), Limits::default()).await;
        });
        let stream = rt::TcpStream::connect(address).await.unwrap();
        let (requests, connection) = h2::client::handshake(stream).await.unwrap();
        rt::spawn(connection);
        for (method, kind, status) in [
            ("GET", "application/grpc", 405),
            ("POST", "application/json", 415),
            ("POST", "application/grpcweb", 415),
            ("POST", "application/grpc+proto", 200),
        ] {
            let request = http::Request::builder()
                .method(method)
                .uri("http://h/test.Test/Echo")
                .header("content-type", kind)
                .body(())
                .unwrap();
            let mut ready = requests.clone().ready().await.unwrap();
            let answer = ready.send_request(request, true).unwrap().0.await.unwrap();
            assert_eq!(answer.status().as_u16(), status, "{method} {kind}");
        }
    });
}
