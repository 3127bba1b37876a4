//! The runtime: one thread, one epoll loop, tasks that never leave it.
//!
//! What it promises:
//! - [`block_on`] runs a future and everything it [`spawn`]s on the calling thread. With nothing to
//!   do the loop sleeps in `epoll_wait` without a time-out: an idle process wakes up never.
//! - Wakers are `Send + Sync` (h2 needs that). A wake-up from the loop's own thread is a queue push;
//!   one from another thread writes an eventfd, once for any number of wake-ups before the loop looks.
//! - Time is the monotonic clock's. A [`sleep`] or [`timeout`] that was dropped wakes nothing.
//! - Nothing here blocks the loop: names are looked up, and everything else that blocks is run, on
//!   threads ([`blocking`]); they talk to the loop through a bounded [`channel`].
//!
//! How the parts fit: `executor` owns the loop and the tasks, `reactor` the descriptors in epoll,
//! `timer` the deadlines; `net` and [`tls`] are streams with tokio's io traits, which is what h2
//! wants; `connect` finds the address that answers.
//!
//! What it refuses: threads of its own for tasks, work stealing, busy polling, periodic ticks.
pub mod backoff;
mod blocking;
pub mod channel;
mod connect;
mod dns;
mod executor;
mod net;
mod news;
mod reactor;
mod select;
mod signals;
mod stream;
mod timer;
pub mod tls;
mod unix;

pub use crate::sys::signal::Signal;
pub use blocking::{BlockingError, blocking};
pub use channel::channel;
pub(crate) use connect::Seconds;
pub use connect::{Attempt, ConnectError, connect, connect_addresses, literal_address, resolve};
pub use dns::read_answer as read_dns_answer;
pub use executor::{JoinHandle, block_on, epoll_returns, spawn, try_block_on, yield_now};
pub use net::{TcpListener, TcpStream};
pub use news::News;
pub use reactor::Readiness;
pub use select::{Either, Select, select};
pub use signals::termination;
pub use stream::{Duplex, Stream};
pub use timer::{Elapsed, Sleep, Timeout, sleep, sleep_until, timeout, timeout_at};
pub use unix::{UnixListener, UnixStream};

#[cfg(test)]
mod tests;
// rcgen, which makes their certificates, comes with the control plane.
#[cfg(all(test, feature = "control-plane"))]
mod tls_tests;
