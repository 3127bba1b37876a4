//! The first of two futures.
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// Which of two was first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Either<A, B> {
    /// The first one, which also wins when both are ready.
    Left(A),
    /// The second one.
    Right(B),
}

/// Runs both until one ends, and drops the other.
pub async fn select<A: Future, B: Future>(a: A, b: B) -> Either<A::Output, B::Output> {
    let mut a = pin!(a);
    let mut b = pin!(b);
    poll_fn(|cx| {
        if let Poll::Ready(value) = a.as_mut().poll(cx) {
            return Poll::Ready(Either::Left(value));
        }
        b.as_mut().poll(cx).map(Either::Right)
    })
    .await
}
