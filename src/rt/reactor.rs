//! Descriptors in epoll.
//!
//! Each descriptor is registered once, edge-triggered, for reading and writing; [`Readiness`]
//! remembers what epoll last said and who waits for it. One waker a direction: a reader and a
//! writer may be different tasks.
use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

use super::executor::{current, try_current};

/// Events taken from the kernel in one call.
const EVENTS: usize = 64;

/// The token of the loop's eventfd.
const CALL: u64 = u64::MAX;

/// The longest sleep asked of the kernel at once (its unit is a C int of milliseconds).
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Default)]
struct Interest {
    readable: Cell<bool>,
    writable: Cell<bool>,
    /// The peer has closed, or there is an error: reads never block again.
    ended: Cell<bool>,
    reader: RefCell<Option<Waker>>,
    writer: RefCell<Option<Waker>>,
}

pub(super) struct Reactor {
    epoll: OwnedFd,
    interests: RefCell<Vec<Option<Rc<Interest>>>>,
    free: RefCell<Vec<usize>>,
    events: RefCell<Vec<epoll::Event>>,
    returns: Cell<u64>,
}

impl Reactor {
    pub(super) fn new(call: &OwnedFd) -> io::Result<Reactor> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(
            &epoll,
            call,
            epoll::EventData::new_u64(CALL),
            epoll::EventFlags::IN,
        )?;
        Ok(Reactor {
            epoll,
            interests: RefCell::default(),
            free: RefCell::default(),
            events: RefCell::new(Vec::with_capacity(EVENTS)),
            returns: Cell::new(0),
        })
    }

    pub(super) fn returns(&self) -> u64 {
        self.returns.get()
    }

    /// Sleeps until an event, a call from another thread or `deadline`; with `look` it only looks.
    /// Wakes the tasks concerned and says whether another thread called.
    pub(super) fn wait(&self, look: bool, deadline: Option<Instant>) -> bool {
        let timeout = if look {
            Some(Duration::ZERO)
        } else {
            deadline.map(|at| at.saturating_duration_since(Instant::now()).min(LONGEST))
        };
        let timeout = timeout.map(|wait| Timespec {
            tv_sec: wait.as_secs() as i64,
            tv_nsec: i64::from(wait.subsec_nanos()) as _,
        });
        let mut events = self.events.borrow_mut();
        events.clear();
        // The only failure of a correct call is EINTR; the loop then comes round again.
        let _ = epoll::wait(&self.epoll, spare_capacity(&mut *events), timeout.as_ref());
        self.returns.set(self.returns.get() + 1);
        let mut called = false;
        for event in events.iter() {
            // Copied out: the kernel's struct is packed.
            let (flags, data) = (event.flags, event.data);
            let token = data.u64();
            if token == CALL {
                called = true;
                continue;
            }
            let interest = self
                .interests
                .borrow()
                .get(token as usize)
                .cloned()
                .flatten();
            let Some(interest) = interest else { continue };
            let broken = flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP);
            if broken || flags.contains(epoll::EventFlags::RDHUP) {
                interest.ended.set(true);
            }
            if broken || flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::RDHUP) {
                interest.readable.set(true);
                wake(&interest.reader);
            }
            if broken || flags.contains(epoll::EventFlags::OUT) {
                interest.writable.set(true);
                wake(&interest.writer);
            }
        }
        called
    }
}

fn wake(waiting: &RefCell<Option<Waker>>) {
    let waiting = waiting.borrow_mut().take();
    if let Some(waiting) = waiting {
        waiting.wake();
    }
}

fn wait_for(waiting: &RefCell<Option<Waker>>, cx: &Context<'_>) {
    let mut waiting = waiting.borrow_mut();
    match waiting.as_mut() {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *waiting = Some(cx.waker().clone()),
    }
}

/// A descriptor in this thread's loop, until dropped. It does not own the descriptor; whoever does
/// drops this first.
pub struct Readiness {
    interest: Rc<Interest>,
    token: usize,
}

impl Readiness {
    /// Registers a non-blocking descriptor.
    ///
    /// # Errors
    /// What `epoll_ctl` says: EPERM for a plain file, ENOSPC above the user's limit of watches.
    ///
    /// # Panics
    /// Outside `rt::block_on`.
    pub fn new(fd: impl AsFd) -> io::Result<Readiness> {
        let current = current();
        let reactor = &current.reactor;
        let interest = Rc::new(Interest::default());
        let mut interests = reactor.interests.borrow_mut();
        let token = reactor.free.borrow_mut().pop().unwrap_or_else(|| {
            interests.push(None);
            interests.len() - 1
        });
        let flags = epoll::EventFlags::IN
            | epoll::EventFlags::OUT
            | epoll::EventFlags::RDHUP
            | epoll::EventFlags::ET;
        let data = epoll::EventData::new_u64(token as u64);
        if let Err(error) = epoll::add(&reactor.epoll, fd, data, flags) {
            reactor.free.borrow_mut().push(token);
            return Err(error.into());
        }
        if let Some(place) = interests.get_mut(token) {
            *place = Some(interest.clone());
        }
        Ok(Readiness { interest, token })
    }

    /// Takes the descriptor out of the loop. Call it before the descriptor is closed.
    pub fn remove(&self, fd: impl AsFd) {
        let Some(current) = try_current() else { return };
        let reactor = &current.reactor;
        let mut interests = reactor.interests.borrow_mut();
        let Some(place) = interests.get_mut(self.token) else {
            return;
        };
        let ours = place
            .as_ref()
            .is_some_and(|known| Rc::ptr_eq(known, &self.interest));
        if ours {
            *place = None;
            reactor.free.borrow_mut().push(self.token);
            let _ = epoll::delete(&reactor.epoll, fd);
        }
    }

    /// Runs `read` when the descriptor is readable, and waits for it when `read` would block.
    pub fn poll_read<T>(
        &self,
        cx: &mut Context<'_>,
        mut read: impl FnMut() -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        loop {
            if !self.interest.readable.get() {
                wait_for(&self.interest.reader, cx);
                return Poll::Pending;
            }
            match read() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.interest.readable.set(false);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return Poll::Ready(other),
            }
        }
    }

    /// Runs `write` when the descriptor is writable, and waits for it when `write` would block.
    pub fn poll_write<T>(
        &self,
        cx: &mut Context<'_>,
        mut write: impl FnMut() -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        loop {
            if !self.interest.writable.get() {
                wait_for(&self.interest.writer, cx);
                return Poll::Pending;
            }
            match write() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.interest.writable.set(false);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return Poll::Ready(other),
            }
        }
    }

    /// A read took less than there was room for: the descriptor is empty, and the next read would
    /// only hear so. Not after the peer's end, which must still be read.
    pub fn drained(&self) {
        if !self.interest.ended.get() {
            self.interest.readable.set(false);
        }
    }
}
