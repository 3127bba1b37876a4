//! Threads that end by themselves.
use std::io;
use std::thread::Builder;

/// Name look-ups of the C library take tens of KiB.
const STACK: usize = 256 * 1024;

/// Begins `work` on a new thread called `name` (15 bytes are seen in `ps`), which nobody waits for. Not generic: what
/// starts a thread is in the program once.
///
/// # Errors
/// The kernel gave no thread.
pub fn start(name: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    let thread = Builder::new().name(name.to_owned());
    thread.stack_size(STACK).spawn(work).map(drop)
}
