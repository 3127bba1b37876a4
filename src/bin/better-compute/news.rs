//! That something changed, for whoever waits to look again: a watcher of nodes, a follower of events, a
//! command that is waited for.
//!
//! It carries no data. Who waits reads the records after each ring, so a ring that comes while nobody
//! waits is not lost: it is in the count.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// See the module's head. For the tasks of one loop.
#[derive(Default)]
pub struct News {
    count: Cell<u64>,
    waiting: RefCell<Vec<Waker>>,
}

impl News {
    /// Something changed.
    pub fn ring(&self) {
        self.count.set(self.count.get().wrapping_add(1));
        for waker in self.waiting.take() {
            waker.wake();
        }
    }

    /// How often it rang.
    pub fn count(&self) -> u64 {
        self.count.get()
    }

    /// Waits until it has rung since it had this count.
    pub async fn since(&self, count: u64) {
        poll_fn(|cx| {
            if self.count.get() != count {
                return Poll::Ready(());
            }
            let mut waiting = self.waiting.borrow_mut();
            if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bcd::rt;

    use super::*;

    #[test]
    fn a_ring_is_heard_by_all_and_one_that_came_before_the_wait_is_not_lost() {
        let news = std::rc::Rc::new(News::default());
        rt::block_on(async {
            let before = news.count();
            news.ring();
            news.since(before).await;
            let tasks: Vec<_> = (0..3)
                .map(|_| {
                    let (news, count) = (news.clone(), news.count());
                    rt::spawn(async move { news.since(count).await })
                })
                .collect();
            assert!(
                rt::timeout(Duration::from_millis(20), news.since(news.count()))
                    .await
                    .is_err()
            );
            assert!(tasks.iter().all(|task| !task.is_finished()));
            news.ring();
            rt::sleep(Duration::from_millis(20)).await;
            assert!(tasks.iter().all(|task| task.is_finished()));
            assert!(news.waiting.borrow().is_empty());
        });
    }
}
