//! HTTP/1.1, the client's side: an answer means the same however it is cut, and no body is longer
//! than its reader takes.
use bcd::rt;
use bcd::wire::http1::client::{Waits, receive};

use super::pieces::{Pieces, cut};

pub const HEAP: super::Heap = super::Heap {
    base: 256 << 10,
    per_byte: 64,
};

const BODY: usize = 4096;

type Read = Result<(u16, Option<Vec<u8>>, Result<Vec<u8>, String>), String>;

pub fn run(data: &[u8]) {
    let (piece, said) = cut(data);
    for method in ["GET", "HEAD"] {
        let whole = read(said, usize::MAX, method);
        assert_eq!(
            whole,
            read(said, piece, method),
            "read otherwise when cut by {piece}"
        );
        if let Ok((status, _, body)) = whole {
            assert!((200..600).contains(&status) || status == 101);
            assert!(body.as_ref().is_ok_and(|body| body.len() <= BODY) || body.is_err());
            assert!(method == "GET" || body == Ok(Vec::new()));
        }
    }
}

fn read(said: &[u8], piece: usize, method: &str) -> Read {
    rt::block_on(async {
        let io = Pieces::new(said, piece);
        let mut answer = receive(io, method, &Waits::default())
            .await
            .map_err(|error| error.to_string())?;
        let kind = answer
            .header("content-type")
            .map(|text| text.as_bytes().to_vec());
        let body = answer
            .body
            .collect(BODY)
            .await
            .map_err(|error| error.to_string());
        Ok((answer.status, kind, body))
    })
}
