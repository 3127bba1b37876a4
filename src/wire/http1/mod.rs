//! HTTP/1.1 for small JSON APIs and for downloads: a client and a server without routes.
//!
//! Heads are at most 16 KiB with 64 headers; bodies are bounded by whoever reads them, or streamed.
//! Framing is read strictly: a body whose length could be understood in two ways is refused, since
//! that is how requests are smuggled. Redirects are not followed: their status is returned.
mod body;
pub mod client;
pub(crate) mod date;
pub mod server;

#[cfg(test)]
mod tests;

/// Bytes of a head.
pub const HEAD_LIMIT: usize = 16 * 1024;

/// Headers of a head.
const HEADERS: usize = 64;
