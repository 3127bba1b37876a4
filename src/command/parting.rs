//! The end of a boot: what writes to disks and what ends the boot keep out of each other's way, and once the last word
//! about it has arrived, this process ends its session and then the boot.
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::journal::Journal;
use crate::rt;
use crate::sys::power::{self, Ending};

/// How long the last word may take to arrive.
const LAST_WORD: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(50);

/// Whether this boot is to end, and how. Clones are the same.
#[derive(Clone, Default)]
pub struct Parting(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// How many write to disks.
    writers: usize,
    /// Nobody may begin to write.
    closed: bool,
    ending: Option<Ending>,
}

/// Somebody writes, until this is dropped.
pub struct Writing(Parting);

/// Nobody begins to write, until this is dropped.
pub struct Closed(Parting);

impl Parting {
    /// For who writes to disks; `None`: the machine is about to go.
    pub fn writing(&self) -> Option<Writing> {
        self.with(|state| {
            let open = !state.closed;
            state.writers += usize::from(open);
            open
        })
        .then(|| Writing(self.clone()))
    }

    /// For who ends the boot; `None`: somebody writes, or ends it already.
    pub fn close(&self) -> Option<Closed> {
        self.with(|state| {
            let free = state.writers == 0 && !state.closed;
            state.closed |= free;
            free
        })
        .then(|| Closed(self.clone()))
    }

    /// How the boot is to end, if it is.
    pub fn ending(&self) -> Option<Ending> {
        self.with(|state| state.ending)
    }

    /// Ends this process once all that the journal has is acknowledged, or not within half a minute.
    pub(super) async fn leave(&self, journal: Journal) {
        let last = journal.status().position;
        let mut left = LAST_WORD;
        while journal.status().acked < last && !left.is_zero() {
            rt::sleep(LOOK).await;
            left = left.saturating_sub(LOOK);
        }
        power::stop_myself();
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Closed {
    /// The boot is to end like this.
    pub fn end(self, ending: Ending) {
        self.0.with(|state| state.ending = Some(ending));
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.0.with(|state| state.writers -= 1);
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        self.0.with(|state| state.closed = state.ending.is_some());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn who_writes_and_who_ends_the_boot_keep_out_of_each_others_way() {
        let parting = Parting::default();
        let (one, two) = (parting.writing().unwrap(), parting.writing().unwrap());
        assert!(parting.close().is_none());
        drop(one);
        assert!(parting.close().is_none());
        drop(two);
        let closed = parting.close().unwrap();
        assert!(parting.writing().is_none() && parting.close().is_none());
        // It came to nothing: all goes on.
        drop(closed);
        assert_eq!(parting.ending(), None);
        assert!(parting.writing().is_some());
        parting.close().unwrap().end(Ending::PowerOff);
        assert_eq!(parting.ending(), Some(Ending::PowerOff));
        assert!(parting.writing().is_none() && parting.close().is_none());
    }
}
