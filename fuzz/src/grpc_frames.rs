//! gRPC's messages: they are the same however the stream is cut, none is above the limit, and what
//! is framed reads back.
use bcd::wire::grpc::seams::{frame, messages};

use super::pieces::cut;

pub const HEAP: super::Heap = super::Heap {
    base: 32 << 10,
    per_byte: 64,
};

const LIMIT: usize = 4096;

pub fn run(data: &[u8]) {
    let (piece, stream) = cut(data);
    let whole = messages(stream, usize::MAX, LIMIT);
    let pieces = messages(stream, piece, LIMIT);
    match (&whole, &pieces) {
        (Ok(whole), Ok(pieces)) => assert_eq!(whole, pieces),
        (Err(whole), Err(pieces)) => assert_eq!(whole, pieces),
        _ => panic!("cut by {piece}: {whole:?} and {pieces:?}"),
    }
    if let Ok((messages, ended)) = whole {
        assert!(messages.iter().all(|message| message.len() <= LIMIT));
        let again: Vec<u8> = messages
            .iter()
            .flat_map(|message| frame(message, LIMIT).expect("it was within the limit"))
            .collect();
        assert!(stream.starts_with(&again));
        assert_eq!(ended, stream.len() == again.len());
    }
    assert_eq!(frame(stream, LIMIT).is_ok(), stream.len() <= LIMIT);
}
