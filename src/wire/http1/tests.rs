//! Client and server against each other and against raw bytes, over real sockets.
use std::io::{Seek, SeekFrom, Write};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::client::{Cause, HttpError, Request, Waits, send};
use super::server::{Answer, Body, Limits, serve};
use crate::rt;
use crate::wire::Phase;
use crate::wire::url::Url;

async fn answer(request: super::server::Request) -> Answer {
    match (request.method.as_str(), request.path.as_str()) {
        ("GET" | "HEAD", "/hello") => {
            Answer::new(200, "application/json", "{}").with("X-Query", request.query)
        }
        ("POST", "/echo") => Answer::new(200, "application/octet-stream", request.body),
        (_, "/split") => Answer::new(200, "text/plain", "x").with("X-Odd", "a\r\nX-Injected: b"),
        ("GET", "/file") => {
            let mut file = tempfile();
            file.write_all(&vec![b'f'; 300_000]).unwrap();
            file.seek(SeekFrom::Start(0)).unwrap();
            Answer {
                status: 200,
                headers: Vec::new(),
                body: Body::File(file, 300_000),
            }
        }
        ("GET", "/short-file") => Answer {
            status: 200,
            headers: Vec::new(),
            body: Body::File(tempfile(), 10),
        },
        ("GET", "/moved") => Answer::new(302, "text/plain", "").with("Location", "/hello"),
        ("GET", "/none") => Answer {
            status: 204,
            headers: Vec::new(),
            body: Body::Bytes(Vec::new()),
        },
        _ => Answer::new(404, "text/plain", "no"),
    }
}

fn tempfile() -> std::fs::File {
    let path = std::env::temp_dir();
    rustix::fs::open(
        &path,
        rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
    )
    .unwrap()
    .into()
}

fn limits() -> Limits {
    let short = Duration::from_millis(150);
    Limits {
        body: 200_000,
        head_wait: short,
        body_wait: short,
        idle: Duration::from_secs(5),
        ..Limits::default()
    }
}

/// A server; its port.
fn start(limits: Limits) -> u16 {
    let listener = rt::TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = listener.local_addr().unwrap().port();
    rt::spawn(async move {
        loop {
            let (stream, peer) = listener.accept().await.unwrap();
            rt::spawn(async move {
                let _ = serve(stream, Some(peer), limits, answer).await;
            });
        }
    });
    port
}

/// A server that reads a request and says these bytes, whatever was asked.
fn say(words: &'static [&'static [u8]]) -> u16 {
    let listener = rt::TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = listener.local_addr().unwrap().port();
    rt::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await.unwrap();
            for word in words {
                let _ = stream.write_all(word).await;
                rt::sleep(Duration::from_millis(2)).await;
            }
        }
    });
    port
}

struct Got {
    status: u16,
    query: Option<String>,
    length: Option<u64>,
    body: Vec<u8>,
}

async fn ask(port: u16, method: &str, path: &str, body: Option<&[u8]>) -> Result<Got, HttpError> {
    let url = Url::parse(&format!("http://127.0.0.1:{port}{path}")).unwrap();
    let waits = Waits {
        answer: Duration::from_millis(500),
        body: Duration::from_millis(500),
        ..Waits::default()
    };
    let request = Request {
        method,
        url: &url,
        headers: &[("Accept", "*/*")],
        body,
        tls: None,
        waits,
    };
    let mut answer = send(&request).await?;
    Ok(Got {
        status: answer.status,
        query: answer.header("x-query").map(str::to_owned),
        length: answer.body.length(),
        body: answer.body.collect(400_000).await?,
    })
}

/// Sends raw bytes and reads until the server closes.
async fn raw(port: u16, words: &[&[u8]]) -> String {
    let wait = Duration::from_secs(5);
    let mut stream = rt::connect("127.0.0.1", port, wait).await.unwrap();
    for word in words {
        if stream.write_all(word).await.is_err() {
            break;
        }
        rt::sleep(Duration::from_millis(2)).await;
    }
    let mut all = Vec::new();
    let _ = rt::timeout(Duration::from_secs(2), stream.read_to_end(&mut all)).await;
    String::from_utf8_lossy(&all).into_owned()
}

#[test]
fn requests_are_answered() {
    rt::block_on(async {
        let port = start(limits());
        let got = ask(port, "GET", "/hello?a=b", None).await.unwrap();
        assert_eq!((got.status, got.body.as_slice()), (200, &b"{}"[..]));
        assert_eq!(got.query.as_deref(), Some("a=b"));
        let body = vec![7; 150_000];
        let got = ask(port, "POST", "/echo", Some(&body)).await.unwrap();
        assert_eq!(got.body, body);
        let got = ask(port, "GET", "/file", None).await.unwrap();
        assert_eq!((got.length, got.body.len()), (Some(300_000), 300_000));
        assert_eq!(ask(port, "GET", "/moved", None).await.unwrap().status, 302);
        assert_eq!(ask(port, "GET", "/none", None).await.unwrap().status, 204);
        let got = ask(port, "HEAD", "/hello", None).await.unwrap();
        assert_eq!((got.status, got.body.len()), (200, 0));
    });
}

#[test]
fn a_body_is_streamed_with_its_length() {
    rt::block_on(async {
        let port = start(limits());
        let url = Url::parse(&format!("http://127.0.0.1:{port}/file")).unwrap();
        let request = Request {
            method: "GET",
            url: &url,
            headers: &[],
            body: None,
            tls: None,
            waits: Waits::default(),
        };
        let mut answer = send(&request).await.unwrap();
        let mut left = 300_000;
        while let Some(piece) = answer.body.next().await.unwrap() {
            left -= piece.len() as u64;
            assert!(piece.iter().all(|byte| *byte == b'f'));
            assert_eq!(answer.body.length(), Some(left));
        }
        assert_eq!(left, 0);
    });
}

#[test]
fn a_file_that_became_shorter_is_not_taken_for_whole() {
    rt::block_on(async {
        let error = ask(start(limits()), "GET", "/short-file", None).await.err();
        assert!(matches!(error.unwrap().cause, Cause::Cut | Cause::Io(_)));
    });
}

#[test]
fn chunked_answers_are_read_however_they_are_cut() {
    const WHOLE: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
        3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n";
    static BYTES: [&[u8]; WHOLE.len()] = {
        let mut bytes: [&[u8]; WHOLE.len()] = [&[]; WHOLE.len()];
        let mut at = 0;
        while at < WHOLE.len() {
            bytes[at] = WHOLE.split_at(at).1.split_at(1).0;
            at += 1;
        }
        bytes
    };
    rt::block_on(async {
        for words in [&[WHOLE][..], &BYTES[..]] {
            let got = ask(say(words), "GET", "/", None).await.unwrap();
            assert_eq!(got.body, b"abc0123456789");
        }
    });
}

#[test]
fn informational_answers_are_passed_over_and_a_body_may_end_with_the_connection() {
    rt::block_on(async {
        let port = say(&[
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\n\
            HTTP/1.0 200 OK\r\n\r\nall of it",
        ]);
        let got = ask(port, "GET", "/", None).await.unwrap();
        assert_eq!(got.body, b"all of it");
    });
}

#[test]
fn answers_that_are_none_are_refused() {
    rt::block_on(async {
        let cases: [(&'static [&'static [u8]], &str); 11] = [
            (&[b"SSH-2.0-OpenSSH\r\n\r\n"], "head cannot be read"),
            (&[b"HTTP/1.1 99 Odd\r\n\r\n"], "head cannot be read|status is none"),
            (&[b"HTTP/1.1 101 Switching\r\n\r\n"], "status is none"),
            (&[b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nab"], "disagree"),
            (&[b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nab"], "not a number"),
            (&[b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"], "both"),
            (&[b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"], "else than chunked"),
            (&[b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"], "size is no number"),
            (&[b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n"], "longer than it says"),
            (&[b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab"], "in the middle"),
            (&[b"HTTP/1.1 200 OK\r\nContent-"], "in the middle"),
        ];
        for (words, expected) in cases {
            let error = ask(say(words), "GET", "/", None).await.err().unwrap();
            let text = error.to_string();
            assert!(
                expected.split('|').any(|part| text.contains(part)),
                "{text} / {expected}"
            );
            assert_eq!(error.phase, Phase::Answer);
        }
    });
}

#[test]
fn heads_and_bodies_are_bounded_at_the_client() {
    rt::block_on(async {
        static LONG: [u8; 20_000] = [b'a'; 20_000];
        static WORDS: [&[u8]; 2] = [b"HTTP/1.1 200 OK\r\nX: ", &LONG];
        let port = say(&WORDS);
        let error = ask(port, "GET", "/", None).await.err().unwrap();
        assert!(error.to_string().contains("16 KiB"), "{error}");
        let port = say(&[b"HTTP/1.1 200 OK\r\nContent-Length: 400001\r\n\r\n"]);
        let error = ask(port, "GET", "/", None).await.err().unwrap();
        assert!(matches!(error.cause, Cause::TooLarge(400_000)), "{error}");
    });
}

#[test]
fn a_server_that_says_nothing_misses_the_answers_deadline() {
    rt::block_on(async {
        let mute = rt::TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let port = mute.local_addr().unwrap().port();
        let error = ask(port, "GET", "/", None).await.err().unwrap();
        assert_eq!(error.to_string(), "answer: no end after 500 ms");
    });
}

#[test]
fn a_header_cannot_smuggle_another() {
    rt::block_on(async {
        let url = Url::parse("http://127.0.0.1:9/").unwrap();
        for headers in [[("X", "a\r\nY: b")], [("X: y\r\nZ", "b")], [("", "b")]] {
            let request = Request {
                method: "GET",
                url: &url,
                headers: &headers,
                body: None,
                tls: None,
                waits: Waits::default(),
            };
            let error = send(&request).await.err().unwrap();
            assert!(matches!(error.cause, Cause::Request(_)));
        }
        let got = raw(start(limits()), &[b"GET /split HTTP/1.0\r\n\r\n"]).await;
        assert!(got.contains("X-Odd: aX-Injected: b\r\n"), "{got}");
    });
}

#[test]
fn a_connection_is_kept_and_pipelined_requests_are_answered_in_order() {
    rt::block_on(async {
        let got = raw(
            start(limits()),
            &[
                b"GET /hello?1 HTTP/1.1\r\nHost: h\r\n\r\nPOST /echo HTTP/1.1\r\nHost: h\r\n\
                  Content-Length: 3\r\n\r\nabcHEAD /hello?2 HTTP/1.1\r\nHo",
                b"st: h\r\n\r\n",
                b"GET /none HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
            ],
        )
        .await;
        let at = |what: &str| got.find(what).unwrap_or_else(|| panic!("{what} in {got}"));
        assert!(at("X-Query: 1") < at("\r\n\r\nabc"));
        assert!(at("\r\n\r\nabc") < at("X-Query: 2"));
        assert!(at("X-Query: 2") < at("HTTP/1.1 204 No Content"));
        assert_eq!(got.matches("Date: ").count(), 4);
        assert_eq!(got.matches("Connection: close").count(), 1);
    });
}

#[test]
fn a_client_that_waits_to_be_told_is_told_to_go_on() {
    rt::block_on(async {
        let got = raw(
            start(limits()),
            &[
                b"POST /echo HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n\
                  Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n",
                b"3\r\nabc\r\n0\r\n\r\n",
            ],
        )
        .await;
        assert!(
            got.starts_with("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n"),
            "{got}"
        );
        assert!(got.ends_with("abc"));
    });
}

#[test]
fn bad_requests_each_have_their_answer() {
    rt::block_on(async {
        let port = start(limits());
        let long = vec![b'a'; 20_000];
        let many = "X: y\r\n".repeat(65);
        let cases: [(&[&[u8]], &str); 13] = [
            (&[b"\x16\x03\x01\x02\x00\r\n\r\n"], "400"),
            (&[b"GET / HTTP/1.1\r\n\r\n"], "400"),
            (&[b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"], "400"),
            (&[b"GET http://h/ HTTP/1.1\r\nHost: a\r\n\r\n"], "400"),
            (&[b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"], "400"),
            (&[b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 1\r\n\r\n"], "400"),
            (&[b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n"], "501"),
            (&[b"GET / HTTP/2.7\r\nHost: a\r\n\r\n"], "505"),
            (&[b"GET / HTTP/1.1\r\nX: ", &long], "431"),
            (&[b"GET / HTTP/1.1\r\nHost: a\r\n", many.as_bytes(), b"\r\n"], "431"),
            (&[b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 200001\r\n\r\n"], "413"),
            (&[b"GET / HT"], "408"),
            (&[b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\na"], "408"),
        ];
        for (words, status) in cases {
            let got = raw(port, words).await;
            let what = String::from_utf8_lossy(words[0]).into_owned();
            assert!(
                got.starts_with(&format!("HTTP/1.1 {status} ")),
                "{what} got {got}"
            );
            assert!(got.contains("Connection: close"));
        }
    });
}
