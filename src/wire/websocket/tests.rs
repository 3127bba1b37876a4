#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::frame::{CONTINUATION, PONG, write};
use super::*;
use crate::rt::{self, TcpStream};

const LONG: Duration = Duration::from_secs(20);
const KEY: [u8; 4] = [7, 0, 255, 30];

fn pair() -> (TcpStream, TcpStream) {
    let (one, other) = UnixStream::pair().unwrap();
    let take = |socket| TcpStream::from_std(OwnedFd::from(socket).into()).unwrap();
    (take(one), take(other))
}

/// What a server, or a client, reads when its peer sends these bytes and hangs up; and what it answered.
fn heard(client: bool, bytes: &[u8], ahead: usize) -> (io::Result<Vec<u8>>, Vec<u8>) {
    rt::block_on(async {
        let (ours, mut theirs) = pair();
        let (ahead, rest) = bytes.split_at(ahead.min(bytes.len()));
        let mut socket = WebSocket::new(ours, ahead.to_vec(), client);
        theirs.write_all(rest).await.unwrap();
        theirs.shutdown().await.unwrap();
        let mut data = Vec::new();
        let read = rt::timeout(LONG, socket.read_to_end(&mut data)).await;
        let _ = rt::timeout(LONG, socket.shutdown()).await;
        // Before this side is gone: one that closes over unread bytes resets.
        let mut answered = Vec::new();
        let heard = rt::timeout(LONG, theirs.read_to_end(&mut answered)).await;
        heard.unwrap().unwrap();
        drop(socket);
        (read.unwrap().map(|_| data), answered)
    })
}

fn frames(list: &[(u8, &[u8])], mask: Option<[u8; 4]>) -> Vec<u8> {
    let mut bytes = Vec::new();
    list.iter()
        .for_each(|(opcode, payload)| write(&mut bytes, *opcode, payload, mask));
    bytes
}

#[test]
fn bytes_of_any_number_pass_both_ways_at_once() {
    rt::block_on(async {
        let (ours, theirs) = pair();
        let (mut client, mut server) = (
            WebSocket::client(ours, vec![]),
            WebSocket::server(theirs, vec![]),
        );
        let echoing = rt::spawn(async move {
            let mut piece = [0; 5000];
            loop {
                let count = server.read(&mut piece).await.unwrap();
                if count == 0 {
                    break;
                }
                server.write_all(&piece[..count]).await.unwrap();
                server.flush().await.unwrap();
            }
        });
        for length in [1, 2, 125, 126, 4095, 16384, 16385, 70_000] {
            let sent: Vec<u8> = (0..length).map(|n: usize| (n * 7 + length) as u8).collect();
            let mut back = vec![0; length];
            for piece in sent.chunks(10_000) {
                client.write_all(piece).await.unwrap();
            }
            client.flush().await.unwrap();
            rt::timeout(LONG, client.read_exact(&mut back))
                .await
                .unwrap()
                .unwrap();
            assert!(back == sent, "{length} bytes");
        }
        client.shutdown().await.unwrap();
        echoing.await.unwrap();
    });
}

#[test]
fn fragments_and_control_frames_between_them_are_one_stream() {
    let mut bytes = Vec::new();
    write(&mut bytes, BINARY, b"one ", Some(KEY));
    let begin = bytes.len();
    write(&mut bytes, BINARY, b"two ", Some(KEY));
    bytes[begin] &= 0x7f;
    bytes.extend(frames(&[(PING, b"?")], Some(KEY)));
    bytes.extend(frames(&[(CONTINUATION, b"three")], Some(KEY)));
    bytes.extend(frames(
        &[(PONG, b"unasked"), (CLOSE, b"\x03\xe8")],
        Some(KEY),
    ));
    for ahead in [0, 1, 3, 9, 20, bytes.len()] {
        let (read, answered) = heard(false, &bytes, ahead);
        assert_eq!(read.unwrap(), b"one two three");
        // A close frame may take the place of a pong that has not gone out.
        assert!(answered.ends_with(&frames(&[(CLOSE, b"\x03\xe8")], None)));
    }
}

#[test]
fn a_peer_that_breaks_a_rule_is_told_so_and_ends_the_stream() {
    for (client, bytes, code) in [
        (false, &[0x82, 1, 7][..], 1002),
        (true, &[0x82, 0x81, 0, 0, 0, 0, 7], 1002),
        (true, &[0xc2, 1, 7], 1002),
        (true, &[0x81, 1, b'x'], 1003),
        (true, &[0x82, 127, 0, 0, 0, 0, 0, 0x20, 0, 0], 1009),
        (true, &[0x80, 1, 7], 1002),
        (true, &[0x83, 1, 7], 1002),
        (true, &[0x09, 0], 1002),
        (true, &[0x89, 126, 0, 126], 1002),
        (true, &[0x88, 1, 3], 1002),
        (true, &[0x88, 2, 3, 237], 1002),
        (true, &[0x82, 126, 0, 5], 1002),
    ] {
        let (read, answered) = heard(client, bytes, 0);
        let error = read.unwrap_err();
        assert!(
            error.get_ref().is_some_and(|error| error.is::<Violation>()),
            "{bytes:x?}: {error}"
        );
        // The close frame is the last thing.
        let (head, at) = frame::read(&answered).unwrap().expect("a close frame");
        assert_eq!((head.opcode, head.mask.is_some()), (CLOSE, client));
        let mut payload = answered[at..].to_vec();
        frame::apply(head.mask.unwrap_or_default(), 0, &mut payload);
        assert_eq!(payload, u16::to_be_bytes(code), "{bytes:x?}");
    }
}

#[test]
fn an_end_without_a_close_frame_is_never_a_whole_stream() {
    let whole = frames(&[(BINARY, b"data"), (PING, b"?")], None);
    for end in 0..=whole.len() {
        let (read, _) = heard(true, &whole[..end], 0);
        assert_eq!(
            read.unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof,
            "after {end} bytes"
        );
    }
    let (read, _) = heard(true, &frames(&[(CLOSE, b"\x03\xe9going away")], None), 0);
    assert!(read.unwrap_err().to_string().contains("code 1001"));
}

#[test]
fn nothing_is_written_behind_a_close_frame() {
    rt::block_on(async {
        let (ours, mut theirs) = pair();
        let mut socket = WebSocket::server(ours, vec![]);
        theirs
            .write_all(&frames(&[(CLOSE, b"")], Some(KEY)))
            .await
            .unwrap();
        let mut byte = [0];
        assert!(socket.read(&mut byte).await.is_err());
        let error = socket.write(b"x").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    });
}

#[test]
fn a_ping_is_answered_with_its_own_payload() {
    rt::block_on(async {
        let (ours, mut theirs) = pair();
        let mut socket = WebSocket::server(ours, vec![]);
        let said = frames(&[(PING, b"one"), (PING, b"two"), (BINARY, b"x")], Some(KEY));
        theirs.write_all(&said).await.unwrap();
        let mut byte = [0];
        socket.read_exact(&mut byte).await.unwrap();
        socket.flush().await.unwrap();
        let expected = frames(&[(PONG, b"two")], None);
        let mut answered = vec![0; expected.len()];
        let read = rt::timeout(LONG, theirs.read_exact(&mut answered)).await;
        read.unwrap().unwrap();
        assert_eq!(answered, expected, "the last of two is answered");
    });
}
