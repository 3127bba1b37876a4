//! The protocols on the wire: HTTP/1.1 and gRPC over HTTP/2, as client and as server.
//!
//! Everything from a peer is bounded (heads, bodies, messages, frames that cost work), every wait
//! has a deadline, and a deadline that is missed names its phase. What is said, and by whom, is
//! decided above: this layer knows neither keys nor sessions.
mod dial;
pub mod grpc;
pub mod http1;
mod phase;
pub mod url;
mod watched;

pub use dial::{TlsTarget, Tried};
pub use phase::Phase;
