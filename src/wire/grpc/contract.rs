//! What a call carries: generated messages, and the methods that name them.
pub use proto_gen::codec::{DecodeError, Message, Method};
