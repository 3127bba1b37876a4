//! A gateway that keeps no rules, as far as a node sees it: HTTP/2 written by hand, connection by
//! connection.
use std::cell::{RefCell, RefMut};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::Duration;

use bcd::rt::{ConnectError, Stream, TcpStream};
use bcd::wire::Opening;

/// Connections that are taken from one node.
const CONNECTIONS: usize = 12;

/// HTTP/2's frames, and the flags used here.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const HEAD: usize = 9;
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The stream of a connection's first call.
const STREAM: u32 = 1;
/// `:status: 200`, and `content-type: application/grpc`.
const ANSWER: &[u8] = b"\x88\x5f\x10application/grpc";

/// The way to the gateway. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Line(Rc<RefCell<Vec<Server>>>);

impl Line {
    /// The gateway's ends of all connections so far.
    pub fn servers(&self) -> RefMut<'_, Vec<Server>> {
        self.0.borrow_mut()
    }

    pub fn close(&self) {
        self.servers().iter_mut().for_each(Server::close);
    }
}

impl bcd::wire::Line for Line {
    fn open(&self, _: Duration) -> Opening {
        let mut servers = self.servers();
        if servers.len() >= CONNECTIONS {
            return Box::pin(async { Err(ConnectError::Failed(Vec::new())) });
        }
        let (theirs, ours) = UnixStream::pair().expect("a pair of sockets");
        theirs.set_nonblocking(true).expect("a socket");
        servers.push(Server {
            socket: Some(theirs),
            heard: Vec::new(),
            said: Vec::new(),
            greeted: false,
        });
        Box::pin(async move {
            let ours = TcpStream::from_std(OwnedFd::from(ours).into());
            Ok(Stream::Plain(ours.expect("a socket of the loop")))
        })
    }
}

/// The gateway's end of a connection.
#[derive(Debug)]
pub struct Server {
    /// `None` once it is closed.
    socket: Option<UnixStream>,
    heard: Vec<u8>,
    /// Messages and what is none, as they stood in DATA frames.
    said: Vec<u8>,
    greeted: bool,
}

impl Server {
    /// Bytes as they are. What the socket does not take gets lost.
    pub fn raw(&mut self, bytes: &[u8]) {
        if let Some(socket) = &mut self.socket {
            let _ = socket.write_all(bytes);
        }
    }

    pub fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).expect("a short frame");
        let mut frame = length.to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        self.raw(&frame);
    }

    fn greet(&mut self) {
        if !std::mem::replace(&mut self.greeted, true) {
            self.frame(SETTINGS, 0, 0, b"");
            self.frame(HEADERS, END_HEADERS, STREAM, ANSWER);
        }
    }

    /// Bytes of the answer's body.
    pub fn grpc(&mut self, bytes: &[u8]) {
        self.greet();
        self.said.extend(bytes);
        for piece in bytes.chunks(16 << 10) {
            self.frame(DATA, 0, STREAM, piece);
        }
    }

    pub fn message(&mut self, message: &[u8]) {
        let length = u32::try_from(message.len()).expect("a short message");
        let mut bytes = vec![0];
        bytes.extend(length.to_be_bytes());
        bytes.extend(message);
        self.grpc(&bytes);
    }

    /// One message, and that there are no more.
    pub fn answer(&mut self, message: &[u8]) {
        self.message(message);
        self.trailers(0);
    }

    pub fn trailers(&mut self, status: u8) {
        self.greet();
        let status = status.to_string();
        let mut block = b"\x00\x0bgrpc-status".to_vec();
        block.push(u8::try_from(status.len()).expect("three digits"));
        block.extend(status.bytes());
        self.frame(HEADERS, END_HEADERS | END_STREAM, STREAM, &block);
    }

    pub fn go_away(&mut self, code: u8) {
        self.greet();
        let mut payload = STREAM.to_be_bytes().to_vec();
        payload.extend(u32::from(code).to_be_bytes());
        self.frame(GOAWAY, 0, 0, &payload);
    }

    pub fn reset(&mut self, code: u8) {
        self.greet();
        let code = u32::from(code).to_be_bytes();
        self.frame(RST_STREAM, 0, STREAM, &code);
    }

    pub fn window(&mut self, more: u32) {
        self.greet();
        for stream in [0, STREAM] {
            self.frame(WINDOW_UPDATE, 0, stream, &more.to_be_bytes());
        }
    }

    pub fn close(&mut self) {
        self.hear();
        self.socket = None;
    }

    /// Takes what the node has said.
    pub fn hear(&mut self) {
        if let Some(socket) = &mut self.socket {
            // It ends with what is there.
            let _ = socket.read_to_end(&mut self.heard);
        }
    }

    /// The node's messages so far, of its call.
    pub fn messages(&self) -> Vec<Vec<u8>> {
        let mut body = Vec::new();
        let mut rest = self.heard.strip_prefix(PREFACE).unwrap_or_default();
        while let Some((head, after)) = rest.split_first_chunk::<HEAD>() {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            let Some((payload, next)) = after.split_at_checked(length) else {
                break;
            };
            if head[3] == DATA {
                assert_eq!(stream, STREAM, "a node makes one call");
                body.extend(payload);
            }
            rest = next;
        }
        messages(&body)
    }

    /// What was sent that a node may read as messages.
    pub fn said(&self) -> Vec<Vec<u8>> {
        messages(&self.said)
    }
}

/// gRPC's messages, as far as they are whole.
fn messages(mut body: &[u8]) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    while let Some((head, after)) = body.split_first_chunk::<5>() {
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let Some((message, next)) = after.split_at_checked(length) else {
            break;
        };
        messages.push(message.to_vec());
        body = next;
    }
    messages
}
