//! Where a member's identity and keys are kept.
use std::error::Error;
use std::fmt;
use std::time::Duration;

use crate::crypto::key::NodeKey;
use crate::identity::record::Identity;
use crate::identity::store::{State, Store, StoreError};
use crate::rt::BlockingError;
use crate::sys::{clock, fs};

/// Where a member's identity and keys are kept; what they hand out is kept when they return. Blocks.
pub trait Keep: Send + Sync {
    /// The key of the next renewal: the one of a renewal that was cut off, unless it was `refused`, or a
    /// new one.
    ///
    /// # Errors
    /// It could not be made, read or written.
    fn next_key(&self, present: NodeKey, refused: bool) -> Result<NodeKey, StoreError>;

    /// Changes the identity, which must be the one with the certificates `own`; with `renewed` the key of
    /// the renewal is its key from then on.
    ///
    /// # Errors
    /// See [`KeepError`]; what was kept before stands.
    fn change(
        &self,
        own: &[Vec<u8>],
        renewed: bool,
        change: &mut dyn FnMut(&mut Identity),
    ) -> Result<Identity, KeepError>;
}

/// On the disk, where `bcd join` may be at work too.
impl Keep for Store {
    fn next_key(&self, present: NodeKey, refused: bool) -> Result<NodeKey, StoreError> {
        match refused {
            true => self.new_next_key(),
            false => Store::next_key(self, &present, clock::wall_ms()),
        }
    }

    fn change(
        &self,
        own: &[Vec<u8>],
        renewed: bool,
        change: &mut dyn FnMut(&mut Identity),
    ) -> Result<Identity, KeepError> {
        let _lock = lock(self.dir())?;
        let mut identity = match self.load().map_err(KeepError::Store)? {
            State::Joined(on_disk) if on_disk.identity.certificate_chain == own => on_disk.identity,
            _ => return Err(KeepError::NotOurs),
        };
        change(&mut identity);
        let kept = match renewed {
            true => self.complete_renewal(&identity),
            false => self.save_identity(&identity),
        };
        kept.map_err(KeepError::Store)?;
        Ok(identity)
    }
}

/// Why something was not written.
#[derive(Debug)]
pub enum KeepError {
    Store(StoreError),
    /// Another identity stands in its place, or none.
    NotOurs,
    Thread(BlockingError),
}

/// The directory for this process alone: `bcd join` has it for an instant now and then.
fn lock(dir: &fs::Dir) -> Result<fs::Lock, KeepError> {
    let mut tries = 0;
    loop {
        match dir.lock() {
            Err(error) if error.is_locked() && tries < 50 => {
                tries += 1;
                std::thread::sleep(Duration::from_millis(100));
            }
            locked => return locked.map_err(|error| KeepError::Store(error.into())),
        }
    }
}

impl fmt::Display for KeepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(error) => error.fmt(f),
            Self::NotOurs => f.write_str(
                "identity.json is another one than this node runs with: restart bcd node",
            ),
            Self::Thread(error) => error.fmt(f),
        }
    }
}

impl Error for KeepError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Store(error) => error.source(),
            Self::NotOurs => None,
            Self::Thread(error) => error.source(),
        }
    }
}
