//! What a generated service's client and server stand on: traits that an RPC implementation has
//! for its connections and its routers. Here is no RPC itself.
use std::future::Future;
use std::time::Duration;

use crate::codec::{Message, Method};

/// A connection that methods are called over.
pub trait Channel {
    /// Why a call failed.
    type Error;
    /// Where a stream's requests go.
    type Sender<Q: Message + 'static>;
    /// Where a stream's responses come from.
    type Receiver<R: Message + 'static>;

    /// Calls a unary method and waits this long for its response.
    fn unary<Q: Message + 'static, R: Message + 'static>(
        &self,
        method: &Method<Q, R>,
        request: &Q,
        wait: Duration,
    ) -> impl Future<Output = Result<R, Self::Error>>;

    /// Calls a method that streams. A side that does not stream sends one message. With `wait`,
    /// the call ends by then.
    fn stream<Q: Message + 'static, R: Message + 'static>(
        &self,
        method: &Method<Q, R>,
        wait: Option<Duration>,
    ) -> impl Future<Output = Result<Streams<Self, Q, R>, Self::Error>>;
}

/// Both halves of a call, as its client has them.
pub type Streams<C, Q, R> = (<C as Channel>::Sender<Q>, <C as Channel>::Receiver<R>);

/// What takes the handlers of a service's methods.
pub trait Registry {
    /// What a handler knows of its call.
    type Context: 'static;
    /// What ends a call that fails.
    type Status: 'static;
    /// Where a stream's requests come from.
    type Receiver<Q: Message + 'static>: 'static;
    /// Where a stream's responses go.
    type Sender<R: Message + 'static>: 'static;

    /// Answers a unary method with `handler`.
    fn unary<Q, R, F, A>(&mut self, method: &Method<Q, R>, handler: F)
    where
        Q: Message + 'static,
        R: Message + 'static,
        F: Fn(Self::Context, Q) -> A + 'static,
        A: Future<Output = Result<R, Self::Status>> + 'static;

    /// Answers a method that streams; the call ends with what `handler` returns. A side that does
    /// not stream sends one message, and it is the handler that sees to it.
    fn stream<Q, R, F, A>(&mut self, method: &Method<Q, R>, handler: F)
    where
        Q: Message + 'static,
        R: Message + 'static,
        F: Fn(Self::Context, Self::Receiver<Q>, Self::Sender<R>) -> A + 'static,
        A: Future<Output = Result<(), Self::Status>> + 'static;
}
