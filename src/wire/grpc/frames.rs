//! gRPC's messages in a stream of bytes: one byte of flags, four of length, the message.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]
use std::future::poll_fn;
use std::task::{Poll, ready};

use bytes::Bytes;
use h2::SendStream;
use proto_gen::codec::{DecodeError, Limits, Message};

use super::status::{Code, Status};

/// Bytes of one message, either way, unless a caller says otherwise (docs/protocol.md, section 3).
pub const MESSAGE_LIMIT: usize = 1024 * 1024;

/// Bytes of flags and length.
const PREFIX: usize = 5;

/// Capacity that a buffer keeps when it is empty.
const KEPT: usize = 16 * 1024;

/// Bytes given to h2 at once.
const PIECE: usize = 16 * 1024;

/// A message with its prefix.
pub(super) fn frame<M: Message>(message: &M, limit: usize) -> Result<Bytes, Status> {
    let mut bytes = vec![0; PREFIX];
    message.encode(&mut bytes);
    prefixed(bytes, limit)
}

/// An encoded message with its prefix.
pub(super) fn frame_bytes(message: &[u8], limit: usize) -> Result<Bytes, Status> {
    let mut bytes = Vec::with_capacity(PREFIX + message.len());
    bytes.extend_from_slice(&[0; PREFIX]);
    bytes.extend_from_slice(message);
    prefixed(bytes, limit)
}

/// Encoded messages with their prefixes, one after the other.
pub(super) fn frame_encoded(messages: &[Vec<u8>], limit: usize) -> Result<Bytes, Status> {
    let mut all = Vec::with_capacity(messages.iter().map(|m| PREFIX + m.len()).sum());
    for message in messages {
        all.extend_from_slice(&frame_bytes(message, limit)?);
    }
    Ok(Bytes::from(all))
}

/// Writes the length into the room left for it.
fn prefixed(mut bytes: Vec<u8>, limit: usize) -> Result<Bytes, Status> {
    let length = bytes.len().saturating_sub(PREFIX);
    match (bytes.first_chunk_mut::<PREFIX>(), u32::try_from(length)) {
        (Some([_, place @ ..]), Ok(short)) if length <= limit => {
            *place = short.to_be_bytes();
            Ok(Bytes::from(bytes))
        }
        _ => Err(Status::new(
            Code::ResourceExhausted,
            format!("the message to send has {length} bytes, the limit is {limit}"),
        )),
    }
}

/// Decodes a message that was allowed this length.
pub(super) fn decode<M: Message>(bytes: &[u8], limit: usize) -> Result<M, DecodeError> {
    M::decode_within(bytes, Limits::of_size(limit))
}

/// Puts messages together from pieces cut anywhere.
pub(super) struct Deframer {
    buffer: Vec<u8>,
    /// Bytes at the front that were taken.
    taken: usize,
    limit: usize,
}

impl Deframer {
    pub(super) fn new(limit: usize) -> Deframer {
        Deframer {
            buffer: Vec::new(),
            taken: 0,
            limit,
        }
    }

    /// Adds what came. Call it only when [`Deframer::next`] has nothing whole: so at most one
    /// message and one piece are held.
    pub(super) fn push(&mut self, piece: &[u8]) {
        if self.taken > 0 {
            self.buffer.drain(..self.taken.min(self.buffer.len()));
            self.taken = 0;
            if self.buffer.is_empty() && self.buffer.capacity() > KEPT {
                self.buffer = Vec::new();
            }
        }
        self.buffer.extend_from_slice(piece);
    }

    /// Whether [`Deframer::next`] has a whole message, or something to refuse.
    pub(super) fn has_next(&mut self) -> Result<bool, Status> {
        let taken = self.taken;
        let whole = self.next()?.is_some();
        self.taken = taken;
        Ok(whole)
    }

    /// Whether no bytes of a message are left over.
    pub(super) fn is_empty(&self) -> bool {
        self.taken >= self.buffer.len()
    }

    /// The next whole message. Its length is judged before its bytes are waited for.
    pub(super) fn next(&mut self) -> Result<Option<&[u8]>, Status> {
        let rest = self.buffer.get(self.taken..).unwrap_or_default();
        let Some((prefix, body)) = rest.split_first_chunk::<PREFIX>() else {
            return Ok(None);
        };
        let [flags, length @ ..] = *prefix;
        match flags {
            0 => {}
            1 => {
                return Err(Status::new(
                    Code::Unimplemented,
                    "the message is compressed, and compression is not spoken here",
                ));
            }
            _ => {
                return Err(Status::new(
                    Code::Internal,
                    format!("a message's flags are {flags:#04x}; this is not gRPC"),
                ));
            }
        }
        let length = u32::from_be_bytes(length) as usize;
        if length > self.limit {
            return Err(Status::new(
                Code::ResourceExhausted,
                format!(
                    "a message of {length} bytes was announced, the limit is {}",
                    self.limit
                ),
            ));
        }
        let Some(message) = body.get(..length) else {
            return Ok(None);
        };
        self.taken += PREFIX + length;
        Ok(Some(message))
    }
}

/// Sends `data`, as fast as the peer's windows allow. `Ok(false)` when the stream is closed.
pub(super) async fn send(
    stream: &mut SendStream<Bytes>,
    mut data: Bytes,
    end: bool,
) -> Result<bool, h2::Error> {
    poll_fn(|cx| {
        loop {
            match poll_send_piece(stream, &mut data, end, cx) {
                Poll::Ready(Ok(Some(true))) => {}
                Poll::Ready(Ok(Some(false))) => return Poll::Ready(Ok(true)),
                Poll::Ready(Ok(None)) => return Poll::Ready(Ok(false)),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
    })
    .await
}

/// One step: `Some(true)` more is to be sent, `Some(false)` all is, `None` the stream is closed.
pub(super) fn poll_send_piece(
    stream: &mut SendStream<Bytes>,
    data: &mut Bytes,
    end: bool,
    cx: &mut std::task::Context<'_>,
) -> Poll<Result<Option<bool>, h2::Error>> {
    stream.reserve_capacity(data.len().min(PIECE));
    if stream.capacity() == 0 {
        match ready!(stream.poll_capacity(cx)) {
            None => return Poll::Ready(Ok(None)),
            Some(Err(error)) => return Poll::Ready(Err(error)),
            // Capacity that was taken away again meanwhile: look again.
            Some(Ok(0)) => return Poll::Ready(Ok(Some(true))),
            Some(Ok(_)) => {}
        }
    }
    let piece = data.split_to(data.len().min(stream.capacity()));
    let more = !data.is_empty();
    stream.send_data(piece, end && !more)?;
    Poll::Ready(Ok(Some(more)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    #[test]
    fn messages_cut_anywhere_are_put_together() {
        let messages: Vec<Vec<u8>> = [0, 1, 4, 5, 300, 70_000, 0, 2]
            .iter()
            .enumerate()
            .map(|(n, length)| vec![n as u8; *length])
            .collect();
        let stream: Vec<u8> = messages
            .iter()
            .flat_map(|m| frame_bytes(m, MESSAGE_LIMIT).unwrap())
            .collect();
        for cut in [1, 2, 3, 5, 6, 1000, 16_384, stream.len()] {
            let mut deframer = Deframer::new(MESSAGE_LIMIT);
            let mut got: Vec<Vec<u8>> = Vec::new();
            for piece in stream.chunks(cut) {
                deframer.push(piece);
                while let Some(message) = deframer.next().unwrap() {
                    got.push(message.to_vec());
                }
            }
            assert_eq!(got, messages, "cut into pieces of {cut}");
            assert!(deframer.is_empty());
        }
    }

    #[test]
    fn a_length_above_the_limit_is_refused_before_its_bytes_come() {
        let mut deframer = Deframer::new(10);
        deframer.push(&[0, 0, 0, 0, 11]);
        assert_eq!(deframer.next().unwrap_err().code, Code::ResourceExhausted);
        let mut deframer = Deframer::new(MESSAGE_LIMIT);
        deframer.push(&[0, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(deframer.next().unwrap_err().code, Code::ResourceExhausted);
        assert!(frame_bytes(&[0; 11], 10).is_err());
    }

    #[test]
    fn a_compressed_message_is_unimplemented_and_other_flags_are_not_grpc() {
        let mut deframer = Deframer::new(10);
        deframer.push(&[1, 0, 0, 0, 0]);
        assert_eq!(deframer.next().unwrap_err().code, Code::Unimplemented);
        let mut deframer = Deframer::new(10);
        deframer.push(b"HTTP/1.1 400");
        assert_eq!(deframer.next().unwrap_err().code, Code::Internal);
    }

    #[test]
    fn a_big_message_leaves_no_big_buffer() {
        let mut deframer = Deframer::new(MESSAGE_LIMIT);
        deframer.push(&frame_bytes(&vec![7; 500_000], MESSAGE_LIMIT).unwrap());
        assert_eq!(deframer.next().unwrap().unwrap().len(), 500_000);
        deframer.push(&[0]);
        assert!(deframer.buffer.capacity() <= KEPT);
    }
}
