//! Calls into the kernel that may never come back. A disk that hangs holds whoever asks it for as long as the kernel waits,
//! and nothing ends that: no signal, nor the end of the process. What can be done is to go on without that thread, and to
//! see to it that it does nothing more should it come back.
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::stop::Stop;
use super::{clock, thread};

/// How often it is looked whether a call takes too long.
const LOOK: Duration = Duration::from_secs(1);
/// No call is under way; and nobody waits for one any more.
const IDLE: u64 = 0;
const GIVEN_UP: u64 = u64::MAX;

/// What one thread at a time asks the kernel, as another sees it. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Patience(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// When the call that is under way has to be over: milliseconds of the monotonic clock.
    until: AtomicU64,
    whom: Mutex<String>,
}

/// Why work has no result.
#[derive(Debug)]
pub enum Lost {
    /// This did not answer in time. The work's thread is left behind.
    Hangs(String),
    /// There is no thread for it, or it panicked.
    Thread(io::Error),
}

impl Patience {
    /// `whom` is asked from here on.
    pub fn asks(&self, whom: &str) {
        whom.clone_into(&mut self.0.whom.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Makes a call that is given up on when it takes longer than `limit`. One within another has a limit of its own.
    ///
    /// # Errors
    /// The call's; and that one was given up on: this one is not made, then.
    pub fn during<T>(
        &self,
        limit: Duration,
        call: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let outer = self.set(milliseconds(clock::monotonic() + limit))?;
        let done = call();
        self.set(outer)?;
        done
    }

    fn set(&self, until: u64) -> io::Result<u64> {
        let set = |now| (now != GIVEN_UP).then_some(until);
        let before = self
            .0
            .until
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, set);
        before.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "nobody waits for it any more"))
    }

    /// Whether a call takes too long: who was asked, then. It is given up on, and with it all that would follow.
    pub fn run_out(&self) -> Option<String> {
        let until = self.0.until.load(Ordering::Acquire);
        let late = until != IDLE && until <= milliseconds(clock::monotonic());
        let given_up = late
            && self
                .0
                .until
                .compare_exchange(until, GIVEN_UP, Ordering::AcqRel, Ordering::Acquire)
                .is_ok();
        let whom = &self.0.whom;
        given_up.then(|| whom.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Does `work` on a thread of its own, and goes on without it when one of its calls takes too long. `halt` is said then,
    /// and once `stop` is.
    ///
    /// # Errors
    /// See [`Lost`].
    pub fn run<T: Send + 'static>(
        &self,
        [stop, halt]: [&Stop; 2],
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Lost> {
        let done = Arc::new(Mutex::new(None));
        let its = done.clone();
        let work = move || {
            let value = work();
            *its.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        };
        self.follow(stop, halt, Box::new(work))?;
        let value = done.lock().unwrap_or_else(PoisonError::into_inner).take();
        value.ok_or_else(|| Lost::Thread(io::Error::other("the thread panicked")))
    }

    fn follow(&self, stop: &Stop, halt: &Stop, work: Box<dyn FnOnce() + Send>) -> Result<(), Lost> {
        let over = Stop::new().map_err(Lost::Thread)?;
        let said_at_end = SaidAtEnd(over.clone());
        let work = move || {
            let _said = said_at_end;
            work();
        };
        thread::start("patience", Box::new(work)).map_err(Lost::Thread)?;
        let mut halted = false;
        loop {
            let ended = match halted {
                true => over.wait(LOOK),
                false => stop.wait_beside(&over, LOOK),
            };
            if ended {
                return Ok(());
            }
            if !halted && stop.is_said() {
                halt.say();
                halted = true;
            }
            if let Some(whom) = self.run_out() {
                halt.say();
                return Err(Lost::Hangs(whom));
            }
        }
    }
}

struct SaidAtEnd(Stop);

impl Drop for SaidAtEnd {
    fn drop(&mut self) {
        self.0.say();
    }
}

fn milliseconds(since: Duration) -> u64 {
    u64::try_from(since.as_millis()).unwrap_or(GIVEN_UP - 1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs::File;
    use std::io::Read;
    use std::sync::atomic::AtomicBool;

    use super::*;

    const SHORT: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(600);

    /// Reads what nobody writes until the other end is dropped, as a disk that hangs is read.
    fn hanging() -> (File, File) {
        let (read, write) = rustix::pipe::pipe().unwrap();
        (read.into(), write.into())
    }

    #[test]
    fn work_that_hangs_is_left_behind_and_does_nothing_more() {
        let (mut disk, comes_back) = hanging();
        let [stop, halt] = [Stop::new().unwrap(), Stop::new().unwrap()];
        let patience = Patience::default();
        let (its, went_on) = (patience.clone(), Arc::new(AtomicBool::new(false)));
        let (tells, at_its_end) = (went_on.clone(), Stop::new().unwrap());
        let end = SaidAtEnd(at_its_end.clone());
        let lost = patience.run([&stop, &halt], move || {
            let _end = end;
            its.asks("sda");
            let read = its.during(SHORT, || disk.read(&mut [0]));
            assert_eq!(read.unwrap_err().kind(), io::ErrorKind::TimedOut);
            let next = its.during(LONG, || {
                tells.store(true, Ordering::Relaxed);
                Ok(())
            });
            next.unwrap_err();
        });
        assert!(matches!(lost, Err(Lost::Hangs(whom)) if whom == "sda"));
        assert!(halt.is_said() && !stop.is_said());
        drop(comes_back);
        assert!(at_its_end.wait(LONG));
        assert!(!went_on.load(Ordering::Relaxed));
    }

    #[test]
    fn what_takes_long_between_its_calls_is_waited_for_and_told_to_stop() {
        let [stop, halt] = [Stop::new().unwrap(), Stop::new().unwrap()];
        let patience = Patience::default();
        let its = patience.clone();
        stop.say();
        let its_halt = halt.clone();
        let done = patience.run([&stop, &halt], move || {
            let inner = its.during(LONG, || its.during(SHORT, || Ok(3)));
            // No call is under way: whatever the last one's limit was.
            std::thread::sleep(4 * SHORT);
            (inner.unwrap(), its.run_out(), its_halt.wait(LONG))
        });
        assert_eq!(done.unwrap(), (3, None, true));
    }

    #[test]
    fn a_call_around_another_has_its_own_limit_again_afterwards() {
        let patience = Patience::default();
        let told = patience.during(SHORT, || {
            patience.during(LONG, || {
                std::thread::sleep(2 * SHORT);
                assert_eq!(patience.run_out(), None);
                Ok(())
            })?;
            assert_eq!(patience.run_out(), Some(String::new()));
            Ok(())
        });
        told.unwrap_err();
    }

    #[test]
    fn work_that_panics_is_told_as_that() {
        let stop = Stop::new().unwrap();
        let lost = Patience::default().run([&stop, &stop.clone()], || {
            assert_eq!(1, 2, "as it is meant to");
        });
        assert!(matches!(lost, Err(Lost::Thread(_))));
    }
}
