//! Names of calls.
use std::fmt;
use std::marker::PhantomData;

/// Which sides of a call send a stream of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MethodKind {
    /// One request, one response.
    Unary,
    /// Many requests, one response.
    ClientStreaming,
    /// One request, many responses.
    ServerStreaming,
    /// Many requests, many responses.
    Bidi,
}

/// One method of a service: where it is called, and with what.
pub struct Method<Req, Resp> {
    path: &'static str,
    kind: MethodKind,
    messages: PhantomData<fn(Req) -> Resp>,
}

impl<Req, Resp> Clone for Method<Req, Resp> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Req, Resp> Copy for Method<Req, Resp> {}

impl<Req, Resp> fmt::Debug for Method<Req, Resp> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.path)
    }
}

impl<Req, Resp> Method<Req, Resp> {
    const fn new(path: &'static str, kind: MethodKind) -> Self {
        Self {
            path,
            kind,
            messages: PhantomData,
        }
    }

    /// The HTTP/2 `:path`, `/bettercompute.v1.JoinService/Join`.
    pub const fn path(&self) -> &'static str {
        self.path
    }

    /// Which sides stream.
    pub const fn kind(&self) -> MethodKind {
        self.kind
    }

    /// One request, one response.
    pub const fn unary(path: &'static str) -> Self {
        Self::new(path, MethodKind::Unary)
    }

    /// Many requests, one response.
    pub const fn client_streaming(path: &'static str) -> Self {
        Self::new(path, MethodKind::ClientStreaming)
    }

    /// One request, many responses.
    pub const fn server_streaming(path: &'static str) -> Self {
        Self::new(path, MethodKind::ServerStreaming)
    }

    /// Many requests, many responses.
    pub const fn bidi(path: &'static str) -> Self {
        Self::new(path, MethodKind::Bidi)
    }
}
