//! WebSocket frames: a stream reads the same however it is cut, on both sides; nothing in it costs more
//! than its bytes, and every answer is a frame that may be sent.
use bcd::rt;
use bcd::wire::websocket::WebSocket;
use bcd::wire::websocket::frame::{Head, Rules, read};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::pieces::{Pieces, cut};

pub const HEAP: super::Heap = super::Heap {
    base: 256 << 10,
    per_byte: 64,
};

/// The data, how it ended, and the kinds of frames that were answered.
type Heard = (Vec<u8>, Result<(), String>, Vec<u8>);

pub fn run(data: &[u8]) {
    let (piece, said) = cut(data);
    for client in [false, true] {
        let whole = heard(said, usize::MAX, client);
        assert_eq!(
            whole,
            heard(said, piece, client),
            "read otherwise when cut by {piece}"
        );
        assert!(whole.0.len() <= said.len());
        if let Err(error) = whole.1 {
            assert!(!error.chars().any(char::is_control), "{error:?}");
        }
        let (read, ended, _) = heard(&written(said, client), piece, !client);
        assert_eq!(read, said, "what one side writes the other reads");
        assert_eq!(ended, Ok(()));
    }
    // As its head says, each frame is judged once and for all.
    let mut rules = Rules::new(true);
    let mut rest = said;
    while let Ok(Some((head, length))) = read(rest) {
        assert!((2..=14).contains(&length));
        if rules.judge(&head).is_err() {
            break;
        }
        let whole = length.saturating_add(usize::try_from(head.length).unwrap_or(usize::MAX));
        rest = rest.get(whole..).unwrap_or_default();
    }
}

fn heard(said: &[u8], piece: usize, client: bool) -> Heard {
    rt::block_on(async {
        let (io, ahead) = (Pieces::new(said, piece), Vec::new());
        let written = io.heard.clone();
        let mut socket = match client {
            true => WebSocket::client(io, ahead),
            false => WebSocket::server(io, ahead),
        };
        let mut data = Vec::new();
        let read = socket.read_to_end(&mut data).await;
        let _ = socket.shutdown().await;
        let (written, mut rest) = (written.take(), 0);
        let mut kinds = Vec::new();
        while rest < written.len() {
            let (head, length) = read_frame(&written[rest..]);
            // Each by itself: who pings without end gets as many answers.
            let judged = Rules::new(client).judge(&head);
            judged.expect("a frame that may be sent");
            kinds.push(head.opcode);
            rest += length;
        }
        assert_eq!(kinds.last(), Some(&8), "the last word is a close frame");
        (
            data,
            read.map(drop).map_err(|error| error.to_string()),
            kinds,
        )
    })
}

/// What is on the wire when `bytes` are written and the stream is shut.
fn written(bytes: &[u8], client: bool) -> Vec<u8> {
    let io = Pieces::new(b"", 1);
    let written = io.heard.clone();
    rt::block_on(async {
        let mut socket = match client {
            true => WebSocket::client(io, Vec::new()),
            false => WebSocket::server(io, Vec::new()),
        };
        socket.write_all(bytes).await.expect("it is taken");
        socket.shutdown().await.expect("it shuts");
    });
    written.take()
}

fn read_frame(bytes: &[u8]) -> (Head, usize) {
    let (head, length) = read(bytes).expect("a frame").expect("a whole head");
    (head, length + head.length as usize)
}
