//! How far a call or a request came: what every deadline and every failure names.
use std::fmt;

/// How far it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Looking up the server's name.
    Lookup,
    /// The TCP connection.
    Connect,
    /// A proxy on the way.
    Proxy,
    /// The WebSocket that the connection goes through.
    WebSocket,
    /// The TLS handshake.
    Tls,
    /// Waiting for the server's first HTTP/2 frame.
    Settings,
    /// Sending the request.
    Request,
    /// Waiting for, or reading, the answer.
    Answer,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::Lookup => "name look-up",
            Phase::Connect => "connect",
            Phase::Proxy => "proxy",
            Phase::WebSocket => "WebSocket",
            Phase::Tls => "TLS handshake",
            Phase::Settings => "HTTP/2 settings",
            Phase::Request => "request",
            Phase::Answer => "answer",
        })
    }
}
