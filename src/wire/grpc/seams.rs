//! What the fuzz targets (fuzz/) reach of this module's inside. Nothing else calls it, so no binary holds it.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};

use super::frames::{self, Deframer};
use super::server;
use super::status::Status;

/// The messages of a stream that comes in pieces of `piece` bytes, and whether the stream ends with
/// the last of them.
///
/// # Errors
/// As a call would end.
pub fn messages(stream: &[u8], piece: usize, limit: usize) -> Result<(Vec<Vec<u8>>, bool), Status> {
    let mut frames = Deframer::new(limit);
    let mut messages = Vec::new();
    for piece in stream.chunks(piece.max(1)) {
        frames.push(piece);
        while let Some(message) = frames.next()? {
            messages.push(message.to_vec());
        }
    }
    Ok((messages, frames.is_empty()))
}

/// A message with its prefix.
///
/// # Errors
/// It is above `limit`.
pub fn frame(message: &[u8], limit: usize) -> Result<Bytes, Status> {
    frames::frame_bytes(message, limit)
}

/// The status in a peer's trailers.
pub fn status_in(trailers: &HeaderMap) -> Option<Status> {
    Status::from_headers(trailers)
}

/// The trailers for a status.
pub fn trailers_for(status: &Status) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    status.put(&mut trailers);
    trailers
}

/// A `grpc-timeout`.
pub fn timeout(value: &HeaderValue) -> Option<Duration> {
    server::parse_timeout(value)
}
