//! Blocking work on a thread of its own.
use std::error::Error;
use std::fmt;
use std::io;

use super::channel::channel;
use crate::sys::thread;

/// Why blocking work has no result.
#[derive(Debug)]
pub enum BlockingError {
    /// The kernel gave no thread.
    NoThread(io::Error),
    /// The work panicked.
    Panicked,
}

impl fmt::Display for BlockingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BlockingError::NoThread(_) => "cannot start a thread",
            BlockingError::Panicked => "the thread panicked",
        })
    }
}

impl Error for BlockingError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            BlockingError::NoThread(error) => Some(error),
            BlockingError::Panicked => None,
        }
    }
}

impl From<BlockingError> for io::Error {
    fn from(error: BlockingError) -> io::Error {
        io::Error::other(error)
    }
}

/// Runs `work` on a new thread called `name` (15 bytes are seen in `ps`) and gives its value to the
/// loop. Dropping the future does not stop the thread; its value is then dropped.
///
/// # Errors
/// When there is no thread to be had, or `work` panics.
pub async fn blocking<T, F>(name: &str, work: F) -> Result<T, BlockingError>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    let (sender, mut receiver) = channel(1);
    let work = move || {
        let _ = sender.try_send(work());
    };
    thread::start(name, Box::new(work)).map_err(BlockingError::NoThread)?;
    receiver.recv().await.ok_or(BlockingError::Panicked)
}
