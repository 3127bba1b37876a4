//! SIGTERM and SIGINT as a future.
use std::future::{Future, poll_fn};
use std::io;

use super::reactor::Readiness;
use crate::sys::signal::{Signal, Termination};

/// The descriptor and its place in the loop, left in the right order.
struct Watched {
    readiness: Readiness,
    signals: Termination,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.readiness.remove(&self.signals);
    }
}

/// Blocks SIGTERM and SIGINT at once: from then on they no longer end the process by themselves.
/// The future in it ends with the first that comes. Call it before threads are started: a thread
/// without the mask would take the signal and die of it.
///
/// # Errors
/// When the kernel gives no signalfd.
///
/// # Panics
/// Outside `rt::block_on`.
pub fn termination() -> io::Result<impl Future<Output = Signal>> {
    let signals = Termination::open()?;
    let watched = Watched {
        readiness: Readiness::new(&signals)?,
        signals,
    };
    Ok(async move {
        loop {
            let read = poll_fn(|cx| {
                watched.readiness.poll_read(cx, || {
                    watched
                        .signals
                        .read()?
                        .ok_or_else(|| io::ErrorKind::WouldBlock.into())
                })
            })
            .await;
            // A signalfd's reads do not fail; were one to, the signal is still to come.
            if let Ok(signal) = read {
                return signal;
            }
        }
    })
}
