//! The protocols on the wire: HTTP/1.1, WebSocket and gRPC over HTTP/2, as client and as server, and the way
//! through proxies.
//!
//! Everything from a peer is bounded (heads, bodies, messages, frames that cost work), every wait
//! has a deadline, and a deadline that is missed names its phase. What is said, and by whom, is
//! decided above: this layer knows neither keys nor sessions.
pub mod base64;
mod corked;
mod dial;
pub mod grpc;
mod hop;
pub mod http1;
mod phase;
pub mod proxy;
pub mod url;
mod watched;
pub mod websocket;

pub use dial::{Line, Opening, TlsTarget, Tried};
pub use hop::{Credentials, Hop, HopCause, HopError};
pub use phase::Phase;
