//! The kernel's edge: files that survive power loss, clocks, users, signals, random bytes, and
//! what the machine says of itself. Syscalls go through rustix, and libc only where rustix has
//! none. Besides `rt` this is the only place with `unsafe`.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic
    )
)]

pub mod block;
pub mod clock;
pub mod environment;
pub mod fs;
pub mod host;
pub mod kexec;
pub mod local;
pub mod log;
pub mod memory;
pub mod netlink;
pub mod passthrough;
pub mod patience;
pub mod peer;
pub mod power;
pub mod process;
pub mod random;
pub mod signal;
pub mod stop;
pub mod thread;
pub mod user;
pub mod utc;
