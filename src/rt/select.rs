//! The first of two futures.
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Which of two was first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Either<A, B> {
    /// The first one, which also wins when both are ready.
    Left(A),
    /// The second one.
    Right(B),
}

/// Runs both until one ends, and drops the other.
///
/// A type of its own, as an `async fn` would hold each of its arguments twice: a future made of several
/// levels of them would have a size of many times what it holds.
pub fn select<A: Future, B: Future>(a: A, b: B) -> Select<A, B> {
    Select { a, b }
}

/// What [`select`] gives.
#[must_use = "it does nothing unless awaited"]
pub struct Select<A, B> {
    a: A,
    b: B,
}

impl<A: Future, B: Future> Future for Select<A, B> {
    type Output = Either<A::Output, B::Output>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // SAFETY: both are pinned as long as `self` is. Nothing moves them out of it, it has no `Drop`, and
        // it is `Unpin` only when both are.
        let (a, b) = unsafe {
            let this = self.get_unchecked_mut();
            (
                Pin::new_unchecked(&mut this.a),
                Pin::new_unchecked(&mut this.b),
            )
        };
        if let Poll::Ready(value) = a.poll(cx) {
            return Poll::Ready(Either::Left(value));
        }
        b.poll(cx).map(Either::Right)
    }
}
