//! What stands between a node and its gateway: a proxy's answer to CONNECT, and a server's to a WebSocket. Whatever
//! they say, the way is open or the reason is one line with a remedy; no answer but the right one opens a WebSocket.
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use bcd::rt::{self, Stream, TcpStream};
use bcd::wire::http1::server::Request;
use bcd::wire::proxy::Proxies;
use bcd::wire::url::Url;
use bcd::wire::{HopError, websocket};

pub const HEAP: super::Heap = super::Heap {
    base: 512 << 10,
    per_byte: 64,
};

const WAIT: Duration = Duration::from_millis(500);
/// In an answer: what proves that the request's key was read.
const ACCEPT: &str = "$ACCEPT";

/// The first byte says which; the rest is the answer.
pub fn run(data: &[u8]) {
    let Some((first, answer)) = data.split_first() else {
        return;
    };
    let (mut theirs, ours) = UnixStream::pair().expect("a pair of sockets");
    theirs.set_nonblocking(true).expect("a socket");
    let as_websocket = first & 1 == 1;
    let hop = async {
        let ours = TcpStream::from_std(std::os::fd::OwnedFd::from(ours).into());
        let stream = Stream::Plain(ours.expect("a socket of the loop"));
        match as_websocket {
            true => {
                let url = Url::parse("http://gw.example/v1/session");
                websocket::open(stream, &url.expect("a URL"), WAIT).await
            }
            false => {
                let proxy = match first & 2 {
                    0 => "http://proxy.example:3128",
                    _ => "http://user:secret@proxy.example:3128",
                };
                let proxies = Proxies::parse(proxy, "").expect("a proxy");
                let proxy = proxies.before("gw.example", 443).expect("it is used");
                proxy.open(stream, "gw.example", 443, WAIT).await
            }
        }
    };
    let mut proven = true;
    let peer = async {
        let mut asked = Vec::new();
        while !asked.ends_with(b"\r\n\r\n") {
            rt::yield_now().await;
            let _ = theirs.read_to_end(&mut asked);
        }
        let asked = String::from_utf8(asked).expect("a request is text");
        let accept = accept(&asked);
        let answer: Vec<u8> = match String::from_utf8(answer.to_vec()) {
            Ok(text) if as_websocket => {
                proven = text.contains(ACCEPT);
                text.replace(ACCEPT, &accept).into_bytes()
            }
            _ => {
                proven = !as_websocket;
                answer.to_vec()
            }
        };
        let _ = theirs.write(&answer);
        let _ = theirs.shutdown(std::net::Shutdown::Write);
    };
    let opened: Result<Stream, HopError> = rt::block_on(async {
        let mut hop = std::pin::pin!(hop);
        match rt::select(hop.as_mut(), peer).await {
            rt::Either::Left(opened) => opened,
            rt::Either::Right(()) => hop.await,
        }
    });
    match opened {
        Ok(_) => assert!(proven, "a WebSocket without proof"),
        Err(error) => {
            super::one_line(&error);
            let said = error.to_string();
            assert!(said.len() < 1024 && !said.contains("secret"), "{said}");
            assert!(!error.remedy().is_empty());
        }
    }
}

/// What a server proves with that it has read the request's key.
fn accept(asked: &str) -> String {
    let mut lines = asked.lines();
    let line = lines.next().unwrap_or_default();
    let mut words = line.split(' ');
    let mut word = || words.next().unwrap_or_default().to_owned();
    let headers = lines.filter_map(|line| line.split_once(": "));
    let request = Request {
        method: word(),
        path: word(),
        query: String::new(),
        headers: headers
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect(),
        body: Vec::new(),
        peer: None,
    };
    let answer = websocket::answer(&request);
    let named = |(name, _): &&(String, String)| name.eq_ignore_ascii_case("sec-websocket-accept");
    let accept = answer.headers.iter().find(named);
    accept.map(|(_, value)| value.clone()).unwrap_or_default()
}
