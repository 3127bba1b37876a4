//! The privileged half: `bcd helper` does as root what `bcd node`, under `[helper]` an account without rights, may not.
//!
//! What it promises:
//! - It starts only where nobody but root can change what it goes by: the configuration, and each
//!   directory from `/` down to it, the socket, the entrypoint and the update's slots ([`places`]).
//! - It serves the account of `[helper] user`, and root, and of those only an installed bcd ([`guard`] says what
//!   is proven of a peer, and what is not).
//! - It does one of a few [operations](protocol::Operation), one at a time, each of which is safe to be asked for by a
//!   node that somebody has taken over: no path, no program and no argument comes from the peer.
//! - A slow, silent or flooding peer costs the others nothing: places and times are bounded ([`server`]).
//!
//! How the parts fit: [`protocol`] is what is said, [`client`] and [`server`] say it, [`guard`] decides who is
//! heard, and `operations` does what is asked. docs/operations.md describes the protocol.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic
    )
)]

pub mod client;
pub mod guard;
mod operations;
pub mod places;
pub mod protocol;
pub mod server;
