//! Deadlines, on the monotonic clock.
//!
//! They are kept sorted, and one that is dropped leaves the set: a time-out that was not needed
//! costs no wake-up later.
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::executor::{current, try_current};

#[derive(Default)]
pub(super) struct Timers {
    waiting: RefCell<BTreeMap<(Instant, u64), Waker>>,
    issued: Cell<u64>,
}

impl Timers {
    /// The first deadline.
    pub(super) fn next(&self) -> Option<Instant> {
        self.waiting.borrow().keys().next().map(|(at, _)| *at)
    }

    /// Wakes everyone whose time has come.
    pub(super) fn fire(&self) {
        if self.waiting.borrow().is_empty() {
            return;
        }
        let now = Instant::now();
        loop {
            let due = {
                let mut waiting = self.waiting.borrow_mut();
                match waiting.first_entry() {
                    Some(entry) if entry.key().0 <= now => entry.remove(),
                    _ => return,
                }
            };
            due.wake();
        }
    }
}

/// Ends at its deadline.
pub struct Sleep {
    deadline: Instant,
    number: Option<u64>,
}

impl Sleep {
    /// When it ends.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }
}

/// Ends after `wait`. A wait too long for the clock (centuries) lasts 30 years.
pub fn sleep(wait: Duration) -> Sleep {
    let now = Instant::now();
    let far = Duration::from_secs(30 * 365 * 24 * 60 * 60);
    sleep_until(now.checked_add(wait).unwrap_or_else(|| now + far))
}

/// Ends at `deadline`, at once when it has passed.
pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep {
        deadline,
        number: None,
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.deadline {
            return Poll::Ready(());
        }
        let current = current();
        let timers = &current.timers;
        let number = *self.number.get_or_insert_with(|| {
            timers.issued.set(timers.issued.get() + 1);
            timers.issued.get()
        });
        timers
            .waiting
            .borrow_mut()
            .insert((self.deadline, number), cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(number) = self.number
            && let Some(current) = try_current()
        {
            let gone = current
                .timers
                .waiting
                .borrow_mut()
                .remove(&(self.deadline, number));
            drop(gone);
        }
    }
}

/// The time was up first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elapsed;

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the time was up")
    }
}

impl Error for Elapsed {}

/// `future`'s value, or [`Elapsed`] when it takes longer than `wait`, from now on.
pub fn timeout<F: Future>(wait: Duration, future: F) -> Timeout<F> {
    let sleep = sleep(wait);
    Timeout { future, sleep }
}

/// `future`'s value, or [`Elapsed`] when it is not there at `deadline`.
pub fn timeout_at<F: Future>(deadline: Instant, future: F) -> Timeout<F> {
    let sleep = sleep_until(deadline);
    Timeout { future, sleep }
}

/// What [`timeout`] gives. A type of its own for the reason [`select`](super::select()) has.
#[must_use = "it does nothing unless awaited"]
pub struct Timeout<F> {
    future: F,
    sleep: Sleep,
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // SAFETY: `future` is pinned as long as `self` is. Nothing moves it out of it, `Timeout` has no `Drop`,
        // and it is `Unpin` only when `future` is.
        let (future, sleep) = unsafe {
            let this = self.get_unchecked_mut();
            (Pin::new_unchecked(&mut this.future), &mut this.sleep)
        };
        if let Poll::Ready(value) = future.poll(cx) {
            return Poll::Ready(Ok(value));
        }
        Pin::new(sleep).poll(cx).map(|()| Err(Elapsed))
    }
}
