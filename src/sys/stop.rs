//! A word to end early, from one thread to any number of others: they ask for it, sleep until it
//! comes, or have poll(2) watch it beside their own descriptors.
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

/// Said once and for all. Clones share the word.
#[derive(Clone, Debug)]
pub struct Stop(Arc<OwnedFd>);

impl Stop {
    /// # Errors
    /// Too many open files.
    pub fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(event)))
    }

    /// Says it; saying it again changes nothing.
    pub fn say(&self) {
        // It fails only when the counter is full: it was said before, then.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }

    /// Whether it was said.
    pub fn is_said(&self) -> bool {
        self.wait(Duration::ZERO)
    }

    /// Sleeps until it is said, at most `wait` long; whether it was.
    pub fn wait(&self, wait: Duration) -> bool {
        let end = Instant::now().checked_add(wait);
        loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let mut fds = [PollFd::new(&*self.0, PollFlags::IN)];
            match poll(&mut fds, left.map(timespec).as_ref()) {
                Ok(ready) => return ready > 0,
                Err(Errno::INTR) => {}
                // Nothing can be heard any more: better an end than work that cannot be ended.
                Err(_) => return true,
            }
        }
    }
}

impl Stop {
    /// Sleeps until `fd` can be read, at most `wait` long; whether it can. Not once the word is said.
    pub fn wait_beside(&self, fd: impl AsFd, wait: Duration) -> bool {
        let end = Instant::now().checked_add(wait);
        loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let mut fds = [
                PollFd::new(&*self.0, PollFlags::IN),
                PollFd::new(&fd, PollFlags::IN),
            ];
            match poll(&mut fds, left.map(timespec).as_ref()) {
                Ok(ready) => {
                    let [said, readable] = fds;
                    return ready > 0
                        && said.revents().is_empty()
                        && !readable.revents().is_empty();
                }
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// As poll(2) takes it.
pub(super) fn timespec(wait: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: wait.subsec_nanos().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_who_wait_hear_it_and_it_stays_said() {
        let stop = Stop::new().unwrap();
        assert!(!stop.is_said());
        assert!(!stop.wait(Duration::from_millis(5)));
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let stop = stop.clone();
                std::thread::spawn(move || stop.wait(Duration::from_secs(60)))
            })
            .collect();
        stop.say();
        stop.say();
        for thread in waiting {
            assert!(thread.join().unwrap());
        }
        assert!(stop.is_said() && stop.wait(Duration::MAX));
    }
}
