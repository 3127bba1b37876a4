//! A session against gateways that keep the rules, bend them, or break them: h2's own server, fed
//! by hand.
#![allow(clippy::unwrap_used, clippy::panic)]
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Response};

use super::live::{Happened, Live};
use super::open::{self, SessionError};
use super::outbox::{self, Outbox};
use crate::journal::{Class, Entry, Journal, Limits};
use crate::proto::{
    Ack, Event, EventBody, GatewayFrame, GatewayFrameKind, Heartbeat, Hello, Message, NodeFrame,
    NodeFrameKind, SectionStatus, Welcome,
};
use crate::rt::{self, Either, channel};
use crate::sys::fs::Dir;
use crate::sys::fs::tests::scratch;
use crate::wire::grpc::MESSAGE_LIMIT;
use crate::wire::grpc::client::{CallError, Cause, Endpoint};

const SOON: Duration = Duration::from_secs(10);
/// For what must not happen.
const WHILE: Duration = Duration::from_millis(150);

/// What the gateway's connection is told to do.
#[derive(Debug)]
enum Do {
    Goaway,
    Abort,
}

/// A gateway's end of one session.
struct Peer {
    incoming: RecvStream,
    bytes: Vec<u8>,
    out: SendStream<Bytes>,
    connection: channel::Sender<Do>,
}

impl Peer {
    /// Sends bytes as they are.
    fn raw(&mut self, bytes: Vec<u8>) {
        self.out.send_data(bytes.into(), false).unwrap();
    }

    fn send(&mut self, kind: GatewayFrameKind) {
        let frame = GatewayFrame { kind: Some(kind) }.encode_to_vec();
        self.raw(framed(&frame));
    }

    fn ack(&mut self, position: u64) {
        self.send(GatewayFrameKind::Ack(Ack { position }));
    }

    /// The next frame of the node.
    async fn next(&mut self) -> NodeFrameKind {
        let next = async {
            loop {
                if let Some((prefix, rest)) = self.bytes.split_first_chunk::<5>() {
                    let [_, length @ ..] = *prefix;
                    let length = u32::from_be_bytes(length) as usize;
                    if let Some(frame) = rest.get(..length) {
                        let frame = NodeFrame::decode(frame).unwrap();
                        self.bytes.drain(..5 + length);
                        return frame.kind.unwrap();
                    }
                }
                let piece = self.incoming.data().await.unwrap().unwrap();
                let _ = self.incoming.flow_control().release_capacity(piece.len());
                self.bytes.extend_from_slice(&piece);
            }
        };
        rt::timeout(SOON, next).await.unwrap()
    }

    async fn event(&mut self) -> Event {
        match self.next().await {
            NodeFrameKind::Event(event) => event,
            other => panic!("{other:?}"),
        }
    }

    async fn says_nothing(&mut self) {
        let said = rt::timeout(WHILE, self.next()).await;
        assert!(said.is_err(), "{said:?}");
    }
}

fn framed(message: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend_from_slice(&(message.len() as u32).to_be_bytes());
    bytes.extend_from_slice(message);
    bytes
}

fn journal() -> Journal {
    let limits = Limits {
        max_bytes: 64 << 20,
        max_events: 10_000,
    };
    let dir = Dir::open(&scratch("session")).unwrap();
    Journal::open(&dir, "node_1", limits).unwrap().0
}

fn status(message: &str) -> Entry {
    let event = Event {
        body: Some(EventBody::SectionStatus(SectionStatus {
            message: message.to_owned(),
            ..SectionStatus::default()
        })),
        ..Event::default()
    };
    Entry::Event {
        class: Class::Status,
        body: event.encode_to_vec(),
    }
}

/// The node's end: what happened, in order, and why it ended.
struct Running {
    happened: channel::Receiver<Result<Happened, SessionError>>,
    beats: channel::Sender<u64>,
    answers: channel::Sender<NodeFrame>,
}

impl Running {
    async fn next(&mut self) -> Result<Happened, SessionError> {
        let next = rt::timeout(SOON, self.happened.recv()).await;
        next.unwrap().unwrap()
    }

    async fn ends(&mut self) -> SessionError {
        loop {
            if let Err(error) = self.next().await {
                return error;
            }
        }
    }
}

/// Opens a session of `journal` with a gateway that welcomes so, and runs it. Acknowledgements are
/// taken; everything else is told.
async fn session(journal: &Journal, welcome: Welcome) -> (Running, Peer) {
    let listener = rt::TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = listener.local_addr().unwrap().port();
    let resume = welcome.resume_position;
    let accepted = rt::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut connection = h2::server::handshake(stream).await.unwrap();
        let (request, mut respond) = connection.accept().await.unwrap().unwrap();
        let head = Response::builder().header("content-type", "application/grpc");
        let out = respond
            .send_response(head.body(()).unwrap(), false)
            .unwrap();
        let (control, mut told) = rt::channel(4);
        rt::spawn(async move {
            loop {
                match rt::select(connection.accept(), told.recv()).await {
                    Either::Left(Some(Ok(_))) => {}
                    Either::Left(Some(Err(error))) => panic!("{error:?}"),
                    Either::Left(None) | Either::Right(None | Some(Do::Abort)) => return,
                    Either::Right(Some(Do::Goaway)) => connection.graceful_shutdown(),
                }
            }
        });
        let mut peer = Peer {
            incoming: request.into_body(),
            bytes: Vec::new(),
            out,
            connection: control,
        };
        assert!(matches!(peer.next().await, NodeFrameKind::Hello(_)));
        peer.send(GatewayFrameKind::Welcome(welcome));
        peer
    });
    let endpoint = Endpoint::new("127.0.0.1", port);
    let opened = open::open(endpoint, Hello::default()).await.unwrap();
    let outbox = Outbox::resume(resume, journal.status().acked, 0);
    let mut live = Live::new(opened, journal.clone(), outbox);
    let (tell, happened) = rt::channel(64);
    let (beats, mut due) = rt::channel(4);
    let (answers, mut given) = rt::channel(4);
    rt::spawn(async move {
        loop {
            match rt::select(live.next(true, &mut given), due.recv()).await {
                Either::Right(Some(sequence)) => live.beat(sequence, 0),
                Either::Right(None) => return,
                Either::Left(Ok(Happened::Frame(GatewayFrame {
                    kind: Some(GatewayFrameKind::Ack(ack)),
                }))) => {
                    if let Err(error) = live.ack(ack.position) {
                        let _ = tell.send(Err(error)).await;
                        return;
                    }
                }
                Either::Left(happened) => {
                    let over = happened.is_err();
                    let _ = tell.send(happened).await;
                    if over {
                        return;
                    }
                }
            }
        }
    });
    let running = Running {
        happened,
        beats,
        answers,
    };
    (running, accepted.await.unwrap())
}

fn welcome() -> Welcome {
    Welcome {
        protocol_version: 1,
        heartbeat_interval_ms: 1000,
        ..Welcome::default()
    }
}

#[test]
fn events_go_out_when_they_are_written_and_wait_for_no_timer() {
    rt::block_on(async {
        let journal = journal();
        journal.commit(vec![status("before")]).await.unwrap();
        let (_node, mut peer) = session(&journal, welcome()).await;
        assert_eq!(peer.event().await.sequence, 1);
        for sequence in 2..5 {
            let began = Instant::now();
            journal.commit(vec![status("later")]).await.unwrap();
            let event = peer.event().await;
            assert_eq!(event.sequence, sequence);
            assert!(event.time_ms > 0);
            assert!(matches!(event.body, Some(EventBody::SectionStatus(_))));
            assert!(began.elapsed() < Duration::from_secs(1));
        }
        let returns = rt::epoll_returns();
        peer.says_nothing().await;
        let woken = rt::epoll_returns() - returns;
        assert!(
            woken <= 2,
            "an outbox with nothing to send woke up {woken} times"
        );
    });
}

#[test]
fn a_session_resumes_after_what_the_control_plane_has() {
    rt::block_on(async {
        let journal = journal();
        let entries = (1..=5).map(|n| status(&n.to_string())).collect();
        journal.commit(entries).await.unwrap();
        let resumed = Welcome {
            resume_position: 3,
            ..welcome()
        };
        let (_node, mut peer) = session(&journal, resumed).await;
        assert_eq!(peer.event().await.sequence, 4);
        assert_eq!(peer.event().await.sequence, 5);
        peer.says_nothing().await;
    });
}

#[test]
fn a_gateway_that_acknowledges_nothing_stalls_the_outbox_alone() {
    rt::block_on(async {
        let journal = journal();
        let entries = (1..=400).map(|n| status(&n.to_string())).collect();
        journal.commit(entries).await.unwrap();
        let (node, mut peer) = session(&journal, welcome()).await;
        for sequence in 1..=outbox::EVENTS as u64 {
            assert_eq!(peer.event().await.sequence, sequence);
        }
        peer.says_nothing().await;
        // Heartbeats and answers go on.
        node.beats.send(7).await.unwrap();
        let answer = NodeFrame {
            kind: Some(NodeFrameKind::Heartbeat(Heartbeat {
                sequence: 1000,
                time_ms: 0,
            })),
        };
        for expected in [7, 1000] {
            match peer.next().await {
                NodeFrameKind::Heartbeat(beat) => assert_eq!(beat.sequence, expected),
                other => panic!("{other:?}"),
            }
            if expected == 7 {
                node.answers.send(answer.clone()).await.unwrap();
            }
        }
        peer.ack(2);
        assert_eq!(peer.event().await.sequence, outbox::EVENTS as u64 + 1);
        assert_eq!(peer.event().await.sequence, outbox::EVENTS as u64 + 2);
        peer.says_nothing().await;
        // One that comes again, or late, changes nothing.
        peer.ack(2);
        peer.ack(1);
        peer.says_nothing().await;
    });
}

#[test]
fn frames_of_the_gateway_do_not_disturb_what_is_on_its_way_out() {
    rt::block_on(async {
        let journal = journal();
        let big = "x".repeat(100_000);
        let entries = (0..3).map(|_| status(&big)).collect();
        journal.commit(entries).await.unwrap();
        let (mut node, mut peer) = session(&journal, welcome()).await;
        // The first event waits for the window, which nobody opens yet.
        for _ in 0..20 {
            peer.send(GatewayFrameKind::Heartbeat(Heartbeat::default()));
            assert!(matches!(node.next().await, Ok(Happened::Frame(_))));
        }
        for sequence in 1..=3 {
            assert_eq!(peer.event().await.sequence, sequence);
        }
    });
}

#[test]
fn a_gateway_that_reads_nothing_is_left_by_the_deadline() {
    rt::block_on(async {
        let journal = journal();
        let big = "x".repeat(30_000);
        let entries = (0..10).map(|_| status(&big)).collect();
        journal.commit(entries).await.unwrap();
        let (mut node, _peer) = session(&journal, welcome()).await;
        let began = Instant::now();
        let error = node.ends().await;
        assert!(matches!(error, SessionError::Stuck(_)), "{error:?}");
        let took = began.elapsed();
        assert!(took >= Duration::from_millis(1900) && took < Duration::from_secs(4));
    });
}

#[test]
fn an_acknowledgement_of_what_was_not_sent_ends_the_session() {
    rt::block_on(async {
        let journal = journal();
        journal.commit(vec![status("one")]).await.unwrap();
        let (mut node, mut peer) = session(&journal, welcome()).await;
        assert_eq!(peer.event().await.sequence, 1);
        peer.ack(2);
        let error = node.ends().await;
        assert_eq!(
            error.to_string(),
            "the gateway acknowledged events up to 2, and only those up to 1 were sent"
        );
    });
}

/// How a session ends at a gateway that does this.
async fn spoiled(journal: &Journal, spoil: impl AsyncFnOnce(&mut Peer)) -> SessionError {
    let (mut node, mut peer) = session(journal, welcome()).await;
    spoil(&mut peer).await;
    node.ends().await
}

fn cause(error: &SessionError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

#[test]
fn each_broken_frame_ends_the_session_and_says_what_was_wrong() {
    rt::block_on(async {
        let journal = journal();
        for (bytes, said) in [
            (framed(&[0xff; 30]), "cannot be decoded"),
            // A Welcome that ends in the middle of a field.
            (framed(&[0x0a, 0x05, 0x08]), "cannot be decoded"),
            (
                {
                    let mut head = vec![0];
                    head.extend_from_slice(&(MESSAGE_LIMIT as u32 + 1).to_be_bytes());
                    head
                },
                "1048577 bytes",
            ),
            (vec![1, 0, 0, 0, 0], "compress"),
            (b"HTTP/1.1 400".to_vec(), "not gRPC"),
        ] {
            let error = spoiled(&journal, async |peer| peer.raw(bytes.clone())).await;
            let text = cause(&error);
            assert!(text.contains(said), "{said}: {text}");
        }
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", "0".parse().unwrap());
        let error = spoiled(&journal, async |peer| {
            peer.raw(vec![0, 0, 0, 0, 9, 1, 2]);
            peer.out.send_trailers(trailers.clone()).unwrap();
        })
        .await;
        let text = cause(&error);
        assert!(text.contains("in the middle of a message"), "{text}");
    });
}

#[test]
fn frames_not_known_are_told_and_harm_nothing() {
    rt::block_on(async {
        let journal = journal();
        let (mut node, mut peer) = session(&journal, welcome()).await;
        peer.raw(framed(&[0xc2, 0x3e, 0x02, b'h', b'i']));
        peer.raw(framed(&[]));
        for _ in 0..2 {
            match node.next().await.unwrap() {
                Happened::Frame(frame) => assert_eq!(frame.kind, None),
                Happened::Leaving => panic!("GOAWAY"),
            }
        }
        peer.send(GatewayFrameKind::Heartbeat(Heartbeat::default()));
        assert!(matches!(node.next().await, Ok(Happened::Frame(_))));
    });
}

#[test]
fn a_reset_stream_ends_the_session_and_names_the_reason() {
    rt::block_on(async {
        let journal = journal();
        for reason in [Reason::CANCEL, Reason::NO_ERROR, Reason::INTERNAL_ERROR] {
            let error = spoiled(&journal, async |peer| peer.out.send_reset(reason)).await;
            let SessionError::Call(CallError {
                cause: Cause::Http2(broken),
                ..
            }) = &error
            else {
                panic!("{error:?}")
            };
            assert_eq!(broken.reason(), Some(reason));
            assert!(
                cause(&error).contains(reason.description()),
                "{}",
                cause(&error)
            );
        }
    });
}

#[test]
fn a_connection_that_is_cut_ends_the_session() {
    rt::block_on(async {
        let journal = journal();
        let error = spoiled(&journal, async |peer| {
            peer.connection.send(Do::Abort).await.unwrap();
        })
        .await;
        assert!(matches!(error, SessionError::Call(_)), "{error:?}");
    });
}

#[test]
fn a_goaway_is_told_once_and_the_session_goes_on_until_it_is_left() {
    rt::block_on(async {
        let journal = journal();
        let (mut node, mut peer) = session(&journal, welcome()).await;
        peer.connection.send(Do::Goaway).await.unwrap();
        assert!(matches!(node.next().await, Ok(Happened::Leaving)));
        // Both ways: nothing that is under way is lost.
        journal.commit(vec![status("still")]).await.unwrap();
        assert_eq!(peer.event().await.sequence, 1);
        peer.ack(1);
        peer.send(GatewayFrameKind::Heartbeat(Heartbeat::default()));
        assert!(matches!(node.next().await, Ok(Happened::Frame(_))));
        let more = rt::timeout(WHILE, node.next()).await;
        assert!(more.is_err(), "GOAWAY is told once");
    });
}
