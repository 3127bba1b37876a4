//! HTTP/1.1, the server's side: what a client says means the same however it is cut, no header can
//! be smuggled into an answer, and every answer is one.
use std::cell::RefCell;
use std::rc::Rc;

use bcd::rt;
use bcd::wire::http1::HEAD_LIMIT;
use bcd::wire::http1::server::{Answer, Limits, Request, serve};

use super::pieces::{Pieces, cut};

pub const HEAP: super::Heap = super::Heap {
    base: 512 << 10,
    per_byte: 128,
};

type Seen = (String, String, String, Vec<(String, String)>, Vec<u8>);

pub fn run(data: &[u8]) {
    let (piece, said) = cut(data);
    let whole = serve_all(said, usize::MAX);
    let pieces = serve_all(said, piece);
    assert_eq!(whole.0, pieces.0, "read otherwise when cut by {piece}");
    assert_eq!(statuses(&whole.1), statuses(&pieces.1));
    for (_, path, query, headers, body) in &whole.0 {
        assert!(path.starts_with('/') && !path.contains('?'));
        assert!(path.len() + query.len() <= HEAD_LIMIT);
        assert!(
            headers
                .iter()
                .all(|(name, _)| *name == name.to_ascii_lowercase())
        );
        assert!(body.len() <= BODY);
    }
}

const BODY: usize = 4096;

fn serve_all(said: &[u8], piece: usize) -> (Vec<Seen>, Vec<u8>) {
    let io = Pieces::new(said, piece);
    let heard = io.heard.clone();
    let seen: Rc<RefCell<Vec<Seen>>> = Rc::default();
    let limits = Limits {
        body: BODY,
        requests: 8,
        ..Limits::default()
    };
    rt::block_on(async {
        let handler = |request: Request| {
            let answer = Answer::new(200, "text/plain", request.body.clone())
                .with("x-path", request.path.clone())
                .with("x-query", request.query.clone());
            seen.borrow_mut().push((
                request.method,
                request.path,
                request.query,
                request.headers,
                request.body,
            ));
            async { answer }
        };
        let _ = serve(io, None, limits, handler).await;
    });
    (seen.take(), heard.take())
}

/// The status of every answer, each read by its own length.
fn statuses(mut heard: &[u8]) -> Vec<u16> {
    let mut statuses = Vec::new();
    while !heard.is_empty() {
        let end = heard.windows(4).position(|four| four == b"\r\n\r\n");
        let end = end.expect("an answer's head ends") + 4;
        let head = std::str::from_utf8(&heard[..end]).expect("a head is text");
        let status: u16 = head[9..12].parse().expect("a head begins with its status");
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("Content-Length: "));
        let length: usize = length.map_or(0, |length| length.parse().expect("a length"));
        let names = head
            .lines()
            .filter(|line| line.starts_with("Content-Length"))
            .count();
        assert!(names <= 1 && (head.starts_with("HTTP/1.1 ")));
        heard = &heard[end..];
        // The answer to HEAD says how long it would have been.
        if heard.len() >= length && !heard.starts_with(b"HTTP/1.1 ") {
            heard = &heard[length..];
        }
        // Whether a client is told to go on depends on how much it had sent by then (RFC 9110, 10.1.1).
        if status >= 200 {
            statuses.push(status);
        }
    }
    statuses
}
