//! A bounded queue between threads, tasks, or one of each.
//!
//! Either end may be waited on by a task (`send`, `recv`) or by a blocking thread
//! (`send_blocking`, `recv_blocking`). A full queue makes its senders wait: nothing is ever
//! buffered beyond the capacity, and nothing is lost while both ends live.
use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

struct State<T> {
    queue: VecDeque<T>,
    capacity: usize,
    senders: usize,
    receiver: bool,
    receiving: Option<Waker>,
    sending: Vec<Waker>,
    /// Threads that wait on `filled` and on `room`: to notify nobody is a system call too.
    blocked_receiving: usize,
    blocked_sending: usize,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    room: Condvar,
    filled: Condvar,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something was taken, or the receiver is gone: whoever waits for room looks again.
    fn made_room(&self, state: MutexGuard<'_, State<T>>) {
        let mut state = state;
        let sending = std::mem::take(&mut state.sending);
        let blocked = state.blocked_sending > 0;
        drop(state);
        if blocked {
            self.room.notify_all();
        }
        for waker in sending {
            waker.wake();
        }
    }

    /// Something was put, which one receiver will take, or the last sender is gone, which all shall hear.
    fn made_news(&self, state: MutexGuard<'_, State<T>>) {
        let mut state = state;
        let receiving = state.receiving.take();
        let (blocked, senders) = (state.blocked_receiving, state.senders);
        drop(state);
        match (blocked, senders) {
            (0, _) => {}
            (_, 0) => self.filled.notify_all(),
            _ => self.filled.notify_one(),
        }
        if let Some(waker) = receiving {
            waker.wake();
        }
    }
}

/// Why a value was not queued; it comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendError<T> {
    /// The queue is full (only from `try_send`).
    Full(T),
    /// The receiver is gone.
    Closed(T),
}

impl<T> fmt::Display for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SendError::Full(_) => "the queue is full",
            SendError::Closed(_) => "nobody receives from the queue any more",
        })
    }
}

impl<T: fmt::Debug> Error for SendError<T> {}

/// The end that puts in. Clones share the queue.
pub struct Sender<T>(Arc<Shared<T>>);

/// The end that takes out.
pub struct Receiver<T>(Arc<Shared<T>>);

/// A queue of at most `capacity` values (at least one).
pub fn channel<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(Shared {
        state: Mutex::new(State {
            queue: VecDeque::new(),
            capacity: capacity.max(1),
            senders: 1,
            receiver: true,
            receiving: None,
            sending: Vec::new(),
            blocked_receiving: 0,
            blocked_sending: 0,
        }),
        room: Condvar::new(),
        filled: Condvar::new(),
    });
    (Sender(shared.clone()), Receiver(shared))
}

impl<T> Sender<T> {
    /// Queues `value` if there is room now.
    ///
    /// # Errors
    /// [`SendError::Full`] or [`SendError::Closed`], with the value.
    pub fn try_send(&self, value: T) -> Result<(), SendError<T>> {
        let mut state = self.0.lock();
        if !state.receiver {
            return Err(SendError::Closed(value));
        }
        if state.queue.len() >= state.capacity {
            return Err(SendError::Full(value));
        }
        state.queue.push_back(value);
        self.0.made_news(state);
        Ok(())
    }

    /// Queues `value`, waiting for room: for tasks.
    ///
    /// # Errors
    /// [`SendError::Closed`], with the value.
    pub async fn send(&self, value: T) -> Result<(), SendError<T>> {
        let mut value = Some(value);
        poll_fn(|cx| {
            let Some(next) = value.take() else {
                return Poll::Ready(Ok(()));
            };
            match self.try_send(next) {
                Err(SendError::Full(back)) => {
                    // Registered before the second try: room made in between is not missed.
                    self.0.lock().sending.push(cx.waker().clone());
                    match self.try_send(back) {
                        Err(SendError::Full(back)) => {
                            value = Some(back);
                            Poll::Pending
                        }
                        other => Poll::Ready(other),
                    }
                }
                other => Poll::Ready(other),
            }
        })
        .await
    }

    /// Queues `value`, waiting for room: for threads. On the loop's own thread it would stop the loop.
    ///
    /// # Errors
    /// [`SendError::Closed`], with the value.
    pub fn send_blocking(&self, value: T) -> Result<(), SendError<T>> {
        let mut state = self.0.lock();
        while state.receiver && state.queue.len() >= state.capacity {
            state.blocked_sending += 1;
            state = self
                .0
                .room
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
            state.blocked_sending -= 1;
        }
        drop(state);
        match self.try_send(value) {
            Err(SendError::Full(value)) => self.send_blocking(value),
            other => other,
        }
    }

    /// Whether the receiver is gone.
    pub fn is_closed(&self) -> bool {
        !self.0.lock().receiver
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        self.0.lock().senders += 1;
        Sender(self.0.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.senders -= 1;
        if state.senders == 0 {
            self.0.made_news(state);
        }
    }
}

impl<T> Receiver<T> {
    /// The next value, `None` when the queue is empty and all senders are gone: for tasks.
    pub async fn recv(&mut self) -> Option<T> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// As [`Receiver::recv`], for a hand-written future.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut state = self.0.lock();
        if let Some(value) = state.queue.pop_front() {
            self.0.made_room(state);
            return Poll::Ready(Some(value));
        }
        if state.senders == 0 {
            return Poll::Ready(None);
        }
        state.receiving = Some(cx.waker().clone());
        Poll::Pending
    }

    /// The next value if there is one now.
    pub fn try_recv(&mut self) -> Option<T> {
        let mut state = self.0.lock();
        let value = state.queue.pop_front()?;
        self.0.made_room(state);
        Some(value)
    }

    /// The next value, `None` when the queue is empty and all senders are gone: for threads. Several may wait
    /// for it; each value goes to one of them.
    pub fn recv_blocking(&self) -> Option<T> {
        let mut state = self.0.lock();
        loop {
            if let Some(value) = state.queue.pop_front() {
                self.0.made_room(state);
                return Some(value);
            }
            if state.senders == 0 {
                return None;
            }
            state.blocked_receiving += 1;
            state = self
                .0
                .filled
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
            state.blocked_receiving -= 1;
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.receiver = false;
        let left = std::mem::take(&mut state.queue);
        self.0.made_room(state);
        drop(left);
    }
}
