//! That something changed, for whoever waits to look again: a watcher of nodes, a follower of events, a
//! command that is waited for.
//!
//! It carries no data. Who waits reads the records after each ring, so a ring that comes while nobody
//! waits is not lost: it is in the count.

use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// See the module's head. Rung and waited for on any thread.
#[derive(Default)]
pub struct News(Mutex<Bell>);

#[derive(Default)]
struct Bell {
    count: u64,
    waiting: Vec<Waker>,
}

impl News {
    /// Something changed.
    pub fn ring(&self) {
        let waiting = {
            let mut bell = self.locked();
            bell.count = bell.count.wrapping_add(1);
            std::mem::take(&mut bell.waiting)
        };
        for waker in waiting {
            waker.wake();
        }
    }

    /// How often it rang.
    pub fn count(&self) -> u64 {
        self.locked().count
    }

    /// Waits until it has rung since it had this count.
    pub async fn since(&self, count: u64) {
        poll_fn(|cx| {
            let mut bell = self.locked();
            if bell.count != count {
                return Poll::Ready(());
            }
            if !bell.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                bell.waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    fn locked(&self) -> MutexGuard<'_, Bell> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
            assert!(news.locked().waiting.is_empty());
        });
    }

    #[test]
    fn a_ring_from_another_thread_wakes_the_loop_that_waits() {
        let news = std::sync::Arc::new(News::default());
        for _ in 0..200 {
            let count = news.count();
            let ringer = news.clone();
            let thread = std::thread::spawn(move || ringer.ring());
            rt::block_on(async {
                let heard = rt::timeout(Duration::from_secs(20), news.since(count)).await;
                assert!(heard.is_ok());
            });
            thread.join().unwrap();
        }
    }
}
