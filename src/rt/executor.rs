//! The loop and its tasks.
//!
//! A task is a slot with a boxed future and one `Arc<Wake>`; the wake carries the slot's number and
//! whether the task is queued already, so that a task is in the ready queue at most once. The future
//! itself never leaves the thread; only its `Wake` may be held and woken from others.
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use rustix::event::{EventfdFlags, eventfd};

use super::reactor::Reactor;
use super::timer::Timers;

/// Polls of tasks between two looks at epoll while there is always something ready.
const POLLS_PER_LOOK: usize = 64;

/// The slot number that stands for `block_on`'s own future.
const ROOT: usize = usize::MAX;

thread_local! {
    static CURRENT: RefCell<Option<Rc<Loop>>> = const { RefCell::new(None) };
    /// The address of this thread's `Remote`, or 0: how a waker knows that it is at home.
    static HOME: Cell<usize> = const { Cell::new(0) };
}

/// What other threads see of a loop.
pub(super) struct Remote {
    /// `None` once the loop has ended: a wake that was kept here would keep this, and its eventfd, for ever.
    woken: Mutex<Option<Vec<Arc<Wake>>>>,
    event: OwnedFd,
}

impl Remote {
    fn woken(&self) -> MutexGuard<'_, Option<Vec<Arc<Wake>>>> {
        self.woken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes one task. Held by wakers; outlives the task harmlessly.
pub(super) struct Wake {
    slot: usize,
    queued: AtomicBool,
    remote: Arc<Remote>,
}

impl std::task::Wake for Wake {
    fn wake(self: Arc<Self>) {
        if self.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let home = HOME.try_with(Cell::get).unwrap_or(0) == Arc::as_ptr(&self.remote) as usize;
        if home {
            // A loop that is being torn down has no queue any more; nobody needs the wake then.
            let _ = CURRENT.try_with(|current| {
                if let Ok(current) = current.try_borrow()
                    && let Some(current) = current.as_ref()
                {
                    current.ready.borrow_mut().push_back(self.clone());
                }
            });
            return;
        }
        let remote = self.remote.clone();
        let first = {
            let mut woken = remote.woken();
            let Some(woken) = woken.as_mut() else { return };
            woken.push(self);
            woken.len() == 1
        };
        if first {
            // It can only fail when the counter is full, and then the loop is awake anyway.
            let _ = rustix::io::write(&remote.event, &1u64.to_ne_bytes());
        }
    }
}

struct Task {
    wake: Arc<Wake>,
    waker: Waker,
    /// `None` while the task is being polled.
    future: Option<Pin<Box<dyn Future<Output = ()>>>>,
}

pub(super) struct Loop {
    pub(super) reactor: Reactor,
    pub(super) timers: Timers,
    remote: Arc<Remote>,
    ready: RefCell<VecDeque<Arc<Wake>>>,
    tasks: RefCell<Vec<Option<Task>>>,
    free: RefCell<Vec<usize>>,
}

/// The calling thread's loop.
///
/// # Panics
/// Outside [`block_on`]: sockets, timers and tasks live in a loop.
pub(super) fn current() -> Rc<Loop> {
    CURRENT.with(|current| match current.borrow().as_ref() {
        Some(current) => current.clone(),
        None => panic!("this needs a loop: call it inside rt::block_on"),
    })
}

/// The calling thread's loop, unless there is none (any more).
pub(super) fn try_current() -> Option<Rc<Loop>> {
    CURRENT
        .try_with(|current| {
            current
                .try_borrow()
                .ok()
                .and_then(|current| current.clone())
        })
        .ok()
        .flatten()
}

/// How often `epoll_wait` has returned on this thread's loop: what tests of idleness count.
pub fn epoll_returns() -> u64 {
    current().reactor.returns()
}

impl Loop {
    fn new() -> std::io::Result<Rc<Loop>> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let reactor = Reactor::new(&event)?;
        let remote = Arc::new(Remote {
            woken: Mutex::new(Some(Vec::new())),
            event,
        });
        Ok(Rc::new(Loop {
            reactor,
            timers: Timers::default(),
            remote,
            ready: RefCell::default(),
            tasks: RefCell::default(),
            free: RefCell::default(),
        }))
    }

    fn new_wake(&self, slot: usize) -> Arc<Wake> {
        Arc::new(Wake {
            slot,
            queued: AtomicBool::new(true),
            remote: self.remote.clone(),
        })
    }

    fn insert(&self, future: Pin<Box<dyn Future<Output = ()>>>) {
        let mut tasks = self.tasks.borrow_mut();
        let slot = self.free.borrow_mut().pop().unwrap_or_else(|| {
            tasks.push(None);
            tasks.len() - 1
        });
        let wake = self.new_wake(slot);
        let waker = Waker::from(wake.clone());
        self.ready.borrow_mut().push_back(wake.clone());
        if let Some(place) = tasks.get_mut(slot) {
            *place = Some(Task {
                wake,
                waker,
                future: Some(future),
            });
        }
    }

    /// Polls the task that `wake` belongs to, unless that task is gone.
    fn run(&self, wake: &Arc<Wake>) {
        let (mut future, waker) = {
            let mut tasks = self.tasks.borrow_mut();
            let Some(Some(task)) = tasks.get_mut(wake.slot) else {
                return;
            };
            if !Arc::ptr_eq(&task.wake, wake) {
                return;
            }
            let Some(future) = task.future.take() else {
                return;
            };
            (future, task.waker.clone())
        };
        let done = future
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_ready();
        if done {
            // Dropped before the slot is free: what it owns may still spawn or deregister.
            drop(future);
            let task = self
                .tasks
                .borrow_mut()
                .get_mut(wake.slot)
                .and_then(Option::take);
            drop(task);
            self.free.borrow_mut().push(wake.slot);
        } else if let Some(Some(task)) = self.tasks.borrow_mut().get_mut(wake.slot) {
            task.future = Some(future);
        }
    }

    /// Polls what is ready, `block_on`'s own future by `root`, and then waits for more, unless that future has ended:
    /// `root` says so.
    fn round(&self, root: &mut dyn FnMut() -> bool) {
        for _ in 0..POLLS_PER_LOOK {
            let Some(wake) = self.ready.borrow_mut().pop_front() else {
                break;
            };
            wake.queued.store(false, Ordering::Release);
            if wake.slot != ROOT {
                self.run(&wake);
            } else if root() {
                return;
            }
        }
        let look = !self.ready.borrow().is_empty();
        self.turn(look);
    }

    /// Waits until something can be done, or only looks when `look` is set.
    fn turn(&self, look: bool) {
        let deadline = if look { None } else { self.timers.next() };
        let called = self.reactor.wait(look, deadline);
        if called {
            let mut count = [0u8; 8];
            let _ = rustix::io::read(&self.remote.event, &mut count);
            let woken = self.remote.woken().as_mut().map(std::mem::take);
            self.ready.borrow_mut().extend(woken.unwrap_or_default());
        }
        self.timers.fire();
    }
}

/// Takes the loop off the thread, and its tasks with it, however `block_on` ends.
struct Entered(Rc<Loop>);

impl Drop for Entered {
    fn drop(&mut self) {
        // Tasks may spawn others while they are dropped.
        while !self.0.tasks.borrow().is_empty() {
            self.0.free.borrow_mut().clear();
            let tasks = std::mem::take(&mut *self.0.tasks.borrow_mut());
            drop(tasks);
        }
        self.0.ready.borrow_mut().clear();
        let woken = self.0.remote.woken().take();
        drop(woken);
        let gone = CURRENT.with(|current| current.borrow_mut().take());
        drop(gone);
        HOME.with(|home| home.set(0));
    }
}

/// Runs `future` to its end on this thread, and all that it spawns until then. Tasks that still run
/// when it ends are dropped.
///
/// # Panics
/// When called inside another `block_on`, or when the kernel has no epoll instance to give: programs
/// call [`try_block_on`].
pub fn block_on<F: Future>(future: F) -> F::Output {
    match try_block_on(future) {
        Ok(output) => output,
        Err(error) => panic!("cannot set up the event loop (epoll, eventfd): {error}"),
    }
}

/// As [`block_on`].
///
/// # Errors
/// The kernel has no epoll instance to give: too many files are open.
///
/// # Panics
/// When called inside another `block_on`.
pub fn try_block_on<F: Future>(future: F) -> std::io::Result<F::Output> {
    let this = Loop::new()?;
    CURRENT.with(|current| {
        let mut current = current.borrow_mut();
        assert!(
            current.is_none(),
            "rt::block_on inside rt::block_on would stop the outer loop"
        );
        *current = Some(this.clone());
    });
    HOME.with(|home| home.set(Arc::as_ptr(&this.remote) as usize));
    let entered = Entered(this.clone());
    let root = this.new_wake(ROOT);
    let waker = Waker::from(root.clone());
    let mut cx = Context::from_waker(&waker);
    this.ready.borrow_mut().push_back(root);
    // The future is dropped before the loop leaves the thread: it may own sockets and timers.
    let output = {
        let mut future = pin!(future);
        loop {
            let mut output = None;
            this.round(&mut || match future.as_mut().poll(&mut cx) {
                Poll::Ready(value) => {
                    output = Some(value);
                    true
                }
                Poll::Pending => false,
            });
            if let Some(output) = output {
                break output;
            }
        }
    };
    drop(entered);
    Ok(output)
}

/// Where a finished task leaves its value.
struct Slot<T> {
    value: Option<T>,
    finished: bool,
    waiting: Option<Waker>,
}

/// Marks the slot finished even when the task is dropped before it ends.
struct Finish<T>(Rc<RefCell<Slot<T>>>);

impl<T> Drop for Finish<T> {
    fn drop(&mut self) {
        let waiting = {
            let mut slot = self.0.borrow_mut();
            slot.finished = true;
            slot.waiting.take()
        };
        if let Some(waiting) = waiting {
            waiting.wake();
        }
    }
}

/// The value a task will have. Dropping it lets the task run on; [`JoinHandle::cancel`] ends it.
pub struct JoinHandle<T> {
    slot: Rc<RefCell<Slot<T>>>,
    cancel: Rc<Cell<Option<Waker>>>,
    cancelled: Rc<Cell<bool>>,
}

impl<T> JoinHandle<T> {
    /// Drops the task's future at the loop's next turn. A task that has finished stays finished.
    pub fn cancel(&self) {
        self.cancelled.set(true);
        if let Some(waker) = self.cancel.take() {
            waker.wake();
        }
    }

    /// Whether the task has ended, by itself or cancelled.
    pub fn is_finished(&self) -> bool {
        self.slot.borrow().finished
    }
}

impl<T> Future for JoinHandle<T> {
    /// `None` when the task was cancelled.
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut slot = self.slot.borrow_mut();
        if slot.finished {
            return Poll::Ready(slot.value.take());
        }
        slot.waiting = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JoinHandle")
    }
}

/// A task: a future that can be cancelled, and where its value goes.
struct Spawned<F: Future> {
    /// `None` once it has ended.
    future: Option<F>,
    cancel: Rc<Cell<Option<Waker>>>,
    cancelled: Rc<Cell<bool>>,
    finish: Finish<F::Output>,
}

impl<F: Future> Future for Spawned<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // SAFETY: `future` is pinned as long as `self` is. Nothing moves it out of it, `Spawned` has no `Drop`, and
        // it is `Unpin` only when `future` is.
        let (mut future, this) = unsafe {
            let this = self.get_unchecked_mut();
            (
                Pin::new_unchecked(&mut this.future),
                (&this.cancel, &this.cancelled, &this.finish),
            )
        };
        let (cancel, cancelled, finish) = this;
        let mut value = None;
        if let Some(future) = future.as_mut().as_pin_mut()
            && !cancelled.get()
        {
            cancel.set(Some(cx.waker().clone()));
            value = Some(ready!(future.poll(cx)));
        }
        // Whoever waits for the value learns of it once the future and this task are gone.
        future.set(None);
        finish.0.borrow_mut().value = value;
        Poll::Ready(())
    }
}

/// Starts `future` as a task of this thread's loop.
///
/// # Panics
/// Outside [`block_on`].
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
{
    let slot = Rc::new(RefCell::new(Slot {
        value: None,
        finished: false,
        waiting: None,
    }));
    let cancel = Rc::new(Cell::new(None));
    let cancelled = Rc::new(Cell::new(false));
    current().insert(Box::pin(Spawned {
        future: Some(future),
        cancel: cancel.clone(),
        cancelled: cancelled.clone(),
        finish: Finish(slot.clone()),
    }));
    JoinHandle {
        slot,
        cancel,
        cancelled,
    }
}

/// Lets the other ready tasks run once.
pub async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_woken_after_the_loop_keeps_nothing_of_it() {
        let (remote, waker) = block_on(poll_fn(|cx| {
            let remote = Arc::downgrade(&current().remote);
            Poll::Ready((remote, cx.waker().clone()))
        }));
        waker.wake();
        assert!(remote.upgrade().is_none(), "its eventfd is still open");
    }

    #[test]
    fn what_was_woken_by_another_thread_at_the_end_keeps_nothing_either() {
        let remote = block_on(poll_fn(|cx| {
            let waker = cx.waker().clone();
            // After the last look at what other threads woke, and before the end.
            let woken = std::thread::spawn(move || waker.wake()).join();
            assert!(woken.is_ok());
            Poll::Ready(Arc::downgrade(&current().remote))
        }));
        assert!(remote.upgrade().is_none(), "its eventfd is still open");
    }
}
