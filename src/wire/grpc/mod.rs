//! gRPC over HTTP/2 (h2), client and server: unary calls and streams both ways.
//!
//! As gRPC's "gRPC over HTTP2" document has it, without compression: a compressed message is
//! refused with UNIMPLEMENTED. A message is at most [`MESSAGE_LIMIT`] bytes unless said otherwise,
//! either way; senders wait for the peer's flow control and never buffer more than one message.
pub mod client;
mod frames;
#[doc(hidden)]
pub mod seams;
pub mod server;
mod status;
mod stubs;

pub use frames::MESSAGE_LIMIT;
pub use status::{Code, Status};

/// Names this program to servers.
const USER_AGENT: &str = concat!("bcd/", env!("CARGO_PKG_VERSION"));

/// The content type of both directions.
const CONTENT_TYPE: &str = "application/grpc";

/// Whether a peer's content type is gRPC's: `application/grpc`, also with `+proto` or parameters.
fn is_grpc(headers: &http::HeaderMap) -> bool {
    let Some(value) = headers.get(http::header::CONTENT_TYPE) else {
        return false;
    };
    match value.as_bytes().strip_prefix(CONTENT_TYPE.as_bytes()) {
        Some(rest) => matches!(rest.first(), None | Some(b'+' | b';' | b' ')),
        None => false,
    }
}

#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod tests;
