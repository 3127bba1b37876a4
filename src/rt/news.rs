//! That something has changed, for any number of tasks of one thread.
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::{Poll, Waker};

/// A count of changes. Clones are the same one.
#[derive(Clone, Default)]
pub struct News(Rc<Inner>);

#[derive(Default)]
struct Inner {
    count: Cell<u64>,
    waiting: RefCell<Vec<Waker>>,
}

impl News {
    /// Something has changed: all who wait are woken.
    pub fn ring(&self) {
        self.0.count.set(self.0.count.get().wrapping_add(1));
        let waiting = std::mem::take(&mut *self.0.waiting.borrow_mut());
        waiting.into_iter().for_each(Waker::wake);
    }

    /// How often it was rung.
    pub fn count(&self) -> u64 {
        self.0.count.get()
    }

    /// Waits until it has been rung since [`count`](Self::count) gave `seen`.
    pub fn since(&self, seen: u64) -> impl Future<Output = ()> + '_ {
        poll_fn(move |cx| {
            if self.count() != seen {
                return Poll::Ready(());
            }
            let mut waiting = self.0.waiting.borrow_mut();
            if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rt::{block_on, spawn, yield_now};

    #[test]
    fn all_who_wait_hear_of_a_change_and_one_that_was_missed_counts() {
        block_on(async {
            let news = News::default();
            let seen = news.count();
            let waiting: Vec<_> = (0..3)
                .map(|_| {
                    let news = news.clone();
                    spawn(async move { news.since(seen).await })
                })
                .collect();
            yield_now().await;
            news.ring();
            for task in waiting {
                task.await;
            }
            news.since(seen).await;
        });
    }
}
