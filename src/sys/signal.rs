//! Termination as something to wait for: SIGTERM and SIGINT, read from a descriptor that a poll
//! loop can watch, instead of a handler that may run between any two instructions.
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// What asked this process to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    Interrupt,
    Terminate,
}

/// A descriptor that turns readable when SIGTERM or SIGINT arrives. Both are blocked in the
/// thread that opened it and in the threads it starts later: open it first of all, from the main
/// thread. A started program inherits the blocking; [`unblock_all`] is for its side of the fork.
pub struct Termination {
    fd: OwnedFd,
}

impl Termination {
    /// Blocks both signals and opens the descriptor (non-blocking, close-on-exec).
    ///
    /// # Errors
    /// Too many open files.
    pub fn open() -> io::Result<Self> {
        let signals = set(&[libc::SIGTERM, libc::SIGINT]);
        // SAFETY: `signals` is an initialised set, and a null old set is allowed.
        let status =
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &signals, std::ptr::null_mut()) };
        if status != 0 {
            return Err(io::Error::from_raw_os_error(status));
        }
        // SAFETY: `signals` is an initialised set; -1 asks for a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &signals, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: signalfd just made this descriptor and nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd })
    }

    /// The signal that arrived, or `None` when none has.
    ///
    /// # Errors
    /// What read(2) says.
    pub fn read(&self) -> io::Result<Option<Signal>> {
        let mut record = [0_u8; size_of::<libc::signalfd_siginfo>()];
        match rustix::io::read(&self.fd, &mut record) {
            Ok(_) => {}
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        // The record begins with the signal's number (signalfd(2), ssi_signo).
        let [a, b, c, d, ..] = record;
        Ok(match i32::from_ne_bytes([a, b, c, d]) {
            libc::SIGINT => Some(Signal::Interrupt),
            _ => Some(Signal::Terminate),
        })
    }
}

impl AsFd for Termination {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Termination {
    fn as_raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }
}

/// Unblocks every signal in this thread; async-signal-safe, so fit for between fork and exec.
pub fn unblock_all() {
    let none = set(&[]);
    // SAFETY: `none` is an initialised set, and a null old set is allowed.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &none, std::ptr::null_mut()) };
}

fn set(signals: &[i32]) -> libc::sigset_t {
    let mut set = std::mem::MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the whole set before it is assumed to be.
    let mut set = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    };
    for signal in signals {
        // SAFETY: `set` is initialised and `signal` a valid number.
        unsafe { libc::sigaddset(&mut set, *signal) };
    }
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_read_once_and_its_kind_is_known() {
        // Directed at this thread, so that no other test's thread can take it.
        std::thread::spawn(|| {
            let termination = Termination::open().unwrap();
            assert_eq!(termination.read().unwrap(), None);
            for (number, expected) in [
                (libc::SIGTERM, Signal::Terminate),
                (libc::SIGINT, Signal::Interrupt),
            ] {
                // SAFETY: the thread signals itself, with a signal it has blocked.
                unsafe { libc::pthread_kill(libc::pthread_self(), number) };
                assert_eq!(termination.read().unwrap(), Some(expected));
                assert_eq!(termination.read().unwrap(), None);
            }
            unblock_all();
        })
        .join()
        .unwrap();
    }
}
