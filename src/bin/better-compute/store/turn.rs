//! Whose turn it is to write: the threads of this process in the order they came.
//!
//! SQLite lets one writer in and has the others ask again after a while, up to 100 ms. A thread that
//! writes all the time, as the records' does when many nodes report at once, would be found writing
//! nearly every time, and a join would wait for seconds.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The one queue of this process.
static QUEUE: Queue = Queue {
    turns: Mutex::new(Turns {
        next: 0,
        serving: 0,
    }),
    moved: Condvar::new(),
};

struct Queue {
    turns: Mutex<Turns>,
    moved: Condvar,
}

struct Turns {
    next: u64,
    serving: u64,
}

/// The turn to write, until dropped.
pub struct Turn(());

/// Waits for the turn.
pub fn take() -> Turn {
    let mut turns = locked();
    let mine = turns.next;
    turns.next = turns.next.wrapping_add(1);
    while turns.serving != mine {
        turns = QUEUE
            .moved
            .wait(turns)
            .unwrap_or_else(PoisonError::into_inner);
    }
    Turn(())
}

fn locked() -> MutexGuard<'static, Turns> {
    QUEUE.turns.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut turns = locked();
        turns.serving = turns.serving.wrapping_add(1);
        drop(turns);
        QUEUE.moved.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_thread_that_writes_all_the_time_lets_another_in_at_once() {
        let stop = AtomicBool::new(false);
        let turns = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let _turn = take();
                    turns.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(2));
                }
            });
            while turns.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            let started = Instant::now();
            for _ in 0..20 {
                drop(take());
            }
            let waited = started.elapsed();
            stop.store(true, Ordering::Relaxed);
            assert!(waited < Duration::from_secs(2), "{waited:?}");
        });
    }
}
