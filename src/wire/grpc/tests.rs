//! Client and server against each other, over real sockets.
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use proto_gen::codec::{Decoder, Fault, Fields, Message, Method, Value, put_nonempty};

use super::client::{CallError, Cause, Client, Endpoint, Phase};
use super::server::{Limits, Peer, Router, serve, serve_until};
use super::{Code, MESSAGE_LIMIT, Status};
use crate::rt;

/// A message with one field of bytes.
#[derive(Default, Clone, PartialEq, Debug)]
pub(super) struct Raw(pub(super) Vec<u8>);

/// Tag and length of a field of a megabyte.
const OVERHEAD: usize = 4;

impl Message for Raw {
    const NAME: &'static str = "test.Raw";
}

impl Fields for Raw {
    fn encode_fields(&self, out: &mut Vec<u8>) {
        put_nonempty(out, 1, &self.0);
    }

    fn merge_field(
        &mut self,
        number: u32,
        value: Value<'_>,
        decoder: &mut Decoder,
    ) -> Result<(), Fault> {
        if number == 1
            && let Some(bytes) = decoder.bytes(value)?
        {
            self.0 = bytes;
        }
        Ok(())
    }
}

const ECHO: Method<Raw, Raw> = Method::unary("/test.Test/Echo");
const REFUSE: Method<Raw, Raw> = Method::unary("/test.Test/Refuse");
const HANG: Method<Raw, Raw> = Method::unary("/test.Test/Hang");
const TALK: Method<Raw, Raw> = Method::bidi("/test.Test/Talk");
const POUR: Method<Raw, Raw> = Method::bidi("/test.Test/Pour");
const MISSING: Method<Raw, Raw> = Method::unary("/test.Test/Missing");

const WAIT: Duration = Duration::from_secs(10);

/// Counts handlers that were dropped before they ended.
struct Dropped(Rc<Cell<u32>>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

fn router(dropped: &Rc<Cell<u32>>, poured: &Rc<Cell<usize>>) -> Rc<Router> {
    let mut router = Router::new();
    router.unary(&ECHO, |_, request: Raw| async { Ok(request) });
    router.unary(&REFUSE, |_, request: Raw| async move {
        Err(Status::new(
            Code::PermissionDenied,
            String::from_utf8_lossy(&request.0),
        ))
    });
    let hung = dropped.clone();
    router.unary(&HANG, move |_, _| {
        let dropped = Dropped(hung.clone());
        async move {
            let _dropped = dropped;
            std::future::pending().await
        }
    });
    router.bidi(&TALK, |_, mut receiver, mut sender| async move {
        while let Some(Raw(mut bytes)) = receiver.next().await? {
            if bytes == b"end" {
                return Err(Status::new(Code::Aborted, "as asked"));
            }
            bytes.reverse();
            sender.send(&Raw(bytes)).await?;
        }
        Ok(())
    });
    let poured = poured.clone();
    let dropped = dropped.clone();
    router.bidi(&POUR, move |_, _receiver, mut sender| {
        let (poured, dropped) = (poured.clone(), Dropped(dropped.clone()));
        async move {
            let _dropped = dropped;
            // From another task, as a session's writer is.
            let writer = rt::spawn(async move {
                for _ in 0..1000 {
                    if sender.send(&Raw(vec![7; 10_000])).await.is_err() {
                        return;
                    }
                    poured.set(poured.get() + 1);
                }
            });
            writer.await;
            Ok(())
        }
    });
    Rc::new(router)
}

struct Server {
    endpoint: Endpoint,
    dropped: Rc<Cell<u32>>,
    poured: Rc<Cell<usize>>,
    ended: Rc<RefCell<Vec<String>>>,
}

fn start(limits: Limits) -> Server {
    let listener = rt::TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let endpoint = Endpoint::new("127.0.0.1", listener.local_addr().unwrap().port());
    let (dropped, poured) = (Rc::default(), Rc::default());
    let router = router(&dropped, &poured);
    let ended = Rc::new(RefCell::new(Vec::new()));
    let log = ended.clone();
    rt::spawn(async move {
        loop {
            let (stream, address) = listener.accept().await.unwrap();
            let peer = Peer {
                address: Some(address),
                certificates: Vec::new(),
            };
            let (router, log) = (router.clone(), log.clone());
            rt::spawn(async move {
                let end = serve(stream, peer, router, limits).await;
                log.borrow_mut().push(format!("{end:?}"));
            });
        }
    });
    Server {
        endpoint,
        dropped,
        poured,
        ended,
    }
}

fn text(text: &str) -> Raw {
    Raw(text.as_bytes().to_vec())
}

#[test]
fn a_unary_call_is_answered() {
    rt::block_on(async {
        let server = start(Limits::default());
        let client = Client::connect(&server.endpoint).await.unwrap();
        for length in [0, 1, 100_000, MESSAGE_LIMIT - OVERHEAD] {
            let request = Raw(vec![9; length]);
            assert_eq!(client.unary(&ECHO, &request, WAIT).await.unwrap(), request);
        }
    });
}

#[test]
fn a_refusal_comes_with_code_and_message() {
    rt::block_on(async {
        let server = start(Limits::default());
        let client = Client::connect(&server.endpoint).await.unwrap();
        let error = client
            .unary(&REFUSE, &text("nö, 100 %"), WAIT)
            .await
            .unwrap_err();
        assert_eq!(
            error.status(),
            Some(&Status::new(Code::PermissionDenied, "nö, 100 %"))
        );
        assert_eq!(
            error.to_string(),
            "the server answered PERMISSION_DENIED: nö, 100 %"
        );
        let error = client.unary(&MISSING, &text(""), WAIT).await.unwrap_err();
        assert_eq!(error.code(), Code::Unimplemented);
    });
}

#[test]
fn a_call_past_its_deadline_is_cancelled_at_the_server() {
    rt::block_on(async {
        let server = start(Limits::default());
        let client = Client::connect(&server.endpoint).await.unwrap();
        let wait = Duration::from_millis(100);
        let error = client.unary(&HANG, &text(""), wait).await.unwrap_err();
        assert_eq!(error.code(), Code::DeadlineExceeded);
        assert_eq!(error.phase, Phase::Answer);
        rt::sleep(Duration::from_millis(50)).await;
        assert_eq!(server.dropped.get(), 1);
        // A client that goes away without a deadline, too.
        let nothing = text("");
        let call = client.unary(&HANG, &nothing, WAIT);
        assert!(rt::timeout(wait, call).await.is_err());
        rt::sleep(Duration::from_millis(50)).await;
        assert_eq!(server.dropped.get(), 2);
        // And the connection lives.
        client.unary(&ECHO, &text("x"), WAIT).await.unwrap();
    });
}

#[test]
fn a_stream_goes_both_ways_until_the_client_closes_it() {
    rt::block_on(async {
        let server = start(Limits::default());
        let client = Client::connect(&server.endpoint).await.unwrap();
        let (mut sender, mut receiver) = client.stream(&TALK, None).await.unwrap();
        for n in 0..50 {
            sender.send(&text(&format!("{n}ab"))).await.unwrap();
            let answer = receiver.next().await.unwrap().unwrap();
            assert!(answer.0.starts_with(b"ba"));
        }
        sender.close();
        assert_eq!(receiver.next().await.unwrap(), None);
        assert_eq!(receiver.next().await.unwrap(), None);
    });
}

#[test]
fn a_stream_ends_with_the_servers_status() {
    rt::block_on(async {
        let server = start(Limits::default());
        let client = Client::connect(&server.endpoint).await.unwrap();
        let (mut sender, mut receiver) = client.stream(&TALK, None).await.unwrap();
        sender.send(&text("end")).await.unwrap();
        let error = receiver.next().await.unwrap_err();
        assert_eq!(
            error.status(),
            Some(&Status::new(Code::Aborted, "as asked"))
        );
        assert!(sender.send(&text("more")).await.is_err());
        assert_eq!(receiver.next().await.unwrap(), None);
    });
}

#[test]
fn a_reader_that_stops_stops_the_writer_and_one_that_leaves_ends_it() {
    rt::block_on(async {
        let server = start(Limits::default());
        let client = Client::connect(&server.endpoint).await.unwrap();
        let (sender, mut receiver) = client.stream(&POUR, None).await.unwrap();
        rt::sleep(Duration::from_millis(200)).await;
        let before = server.poured.get();
        assert!(
            before < 30,
            "{before} messages of 10 kB were buffered for a reader that reads none"
        );
        for _ in 0..100 {
            assert_eq!(receiver.next().await.unwrap().unwrap().0.len(), 10_000);
        }
        rt::sleep(Duration::from_millis(50)).await;
        let after = server.poured.get();
        assert!((100..140).contains(&after), "{after}");
        drop((sender, receiver));
        rt::sleep(Duration::from_millis(50)).await;
        assert_eq!(server.dropped.get(), 1);
        assert!(server.poured.get() < 200);
    });
}

#[test]
fn messages_above_the_limit_are_refused_on_both_sides() {
    rt::block_on(async {
        let server = start(Limits {
            message: 1000,
            ..Limits::default()
        });
        let client = Client::connect(&server.endpoint).await.unwrap();
        let error = client
            .unary(&ECHO, &Raw(vec![0; 1001]), WAIT)
            .await
            .unwrap_err();
        assert_eq!(error.code(), Code::ResourceExhausted);
        let error = client
            .unary(&ECHO, &Raw(vec![0; MESSAGE_LIMIT + 1]), WAIT)
            .await
            .unwrap_err();
        assert_eq!(
            (error.code(), error.phase),
            (Code::ResourceExhausted, Phase::Request)
        );
        let small = Endpoint {
            message_limit: 10,
            ..server.endpoint.clone()
        };
        let server = start(Limits::default());
        let small = Endpoint {
            port: server.endpoint.port,
            ..small
        };
        let client = Client::connect(&small).await.unwrap();
        let (_sender, mut receiver) = client.stream(&POUR, None).await.unwrap();
        assert_eq!(receiver.next().await.unwrap_err().code(), Code::Internal);
    });
}

#[test]
fn every_deadline_names_its_phase() {
    rt::block_on(async {
        // Accepts and says nothing.
        let mute = rt::TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let mut endpoint = Endpoint::new("127.0.0.1", mute.local_addr().unwrap().port());
        endpoint.waits.settings = Duration::from_millis(100);
        let client = Client::connect(&endpoint).await.unwrap();
        let began = Instant::now();
        let error = client.unary(&ECHO, &text("x"), WAIT).await.unwrap_err();
        assert_eq!(
            (error.phase, error.code()),
            (Phase::Settings, Code::DeadlineExceeded)
        );
        assert!(began.elapsed() < Duration::from_secs(2));
        let (_sender, mut receiver) = Client::connect(&endpoint)
            .await
            .unwrap()
            .stream(&TALK, None)
            .await
            .unwrap();
        assert_eq!(receiver.next().await.unwrap_err().phase, Phase::Settings);
        // Nobody listens.
        drop(mute);
        let error = Client::connect(&endpoint).await.err().unwrap();
        assert_eq!(
            (error.phase, error.code()),
            (Phase::Connect, Code::Unavailable)
        );
        assert!(matches!(error.cause, Cause::Connect(_)));
    });
}

#[test]
fn a_server_that_closes_mid_answer_is_a_broken_connection() {
    rt::block_on(async {
        let listener = rt::TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let endpoint = Endpoint::new("127.0.0.1", listener.local_addr().unwrap().port());
        rt::spawn(async move {
            // An empty SETTINGS frame, and the end.
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::io::AsyncWriteExt::write_all(&mut stream, &[0, 0, 0, 4, 0, 0, 0, 0, 0])
                .await
                .unwrap();
            rt::sleep(Duration::from_millis(50)).await;
        });
        let client = Client::connect(&endpoint).await.unwrap();
        let error: CallError = client.unary(&ECHO, &text("x"), WAIT).await.unwrap_err();
        assert_eq!(error.code(), Code::Unavailable);
        assert!(matches!(error.cause, Cause::Http2(_)), "{error:?}");
    });
}

#[test]
fn an_idle_connection_and_a_slow_preface_are_closed() {
    rt::block_on(async {
        let short = Duration::from_millis(100);
        let server = start(Limits {
            idle: short,
            preface: short,
            ..Limits::default()
        });
        let client = Client::connect(&server.endpoint).await.unwrap();
        client.unary(&ECHO, &text("x"), WAIT).await.unwrap();
        let _slow = rt::connect("127.0.0.1", server.endpoint.port, WAIT)
            .await
            .unwrap();
        rt::sleep(Duration::from_millis(400)).await;
        let ended = server.ended.take();
        assert_eq!(ended.len(), 2, "{ended:?}");
        assert!(ended.iter().any(|end| end.contains("PrefaceTimedOut")));
        assert!(ended.iter().any(|end| end == "Ok(())"));
        assert!(client.unary(&ECHO, &text("x"), WAIT).await.is_err());
    });
}

#[test]
fn a_shutdown_lets_calls_end_and_takes_no_new_ones() {
    rt::block_on(async {
        let listener = rt::TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let endpoint = Endpoint::new("127.0.0.1", listener.local_addr().unwrap().port());
        let (tell, mut told) = rt::channel::<()>(1);
        let router = router(&Rc::default(), &Rc::default());
        let served = rt::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let shutdown = async move {
                told.recv().await;
            };
            serve_until(stream, Peer::default(), router, Limits::default(), shutdown).await
        });
        let client = Client::connect(&endpoint).await.unwrap();
        let (mut sender, mut receiver) = client.stream(&TALK, None).await.unwrap();
        sender.send(&text("ab")).await.unwrap();
        assert_eq!(receiver.next().await.unwrap(), Some(text("ba")));
        drop(tell);
        rt::sleep(Duration::from_millis(50)).await;
        assert!(client.unary(&ECHO, &text("x"), WAIT).await.is_err());
        sender.send(&text("cd")).await.unwrap();
        assert_eq!(receiver.next().await.unwrap(), Some(text("dc")));
        sender.close();
        assert_eq!(receiver.next().await.unwrap(), None);
        drop((receiver, client));
        served.await.unwrap().unwrap();
    });
}

#[test]
fn an_open_stream_costs_no_wake_ups() {
    rt::block_on(async {
        let server = start(Limits {
            idle: Duration::from_millis(50),
            ..Limits::default()
        });
        let client = Client::connect(&server.endpoint).await.unwrap();
        let (mut sender, mut receiver) = client.stream(&TALK, None).await.unwrap();
        sender.send(&text("ab")).await.unwrap();
        receiver.next().await.unwrap();
        rt::sleep(Duration::from_millis(100)).await;
        let before = rt::epoll_returns();
        rt::sleep(Duration::from_millis(500)).await;
        assert_eq!(rt::epoll_returns() - before, 1, "only the test's own timer");
    });
}
