//! Who this machine is: the node key, `identity.json`, and the time that certificates are judged by.
//!
//! [`record`] is the form of `identity.json`; [`store`] keeps it and `node.key` in `data_dir` so that a
//! crash at any instant leaves a whole identity, the former one, or a key that the next join takes up;
//! [`trust`] is whom this node believes, and how that follows a rotation of the fleet's keys.
//! Nothing here is ever deleted: what does not load, and what `--reset` moves, stays under another name.

#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]

pub mod record;
pub mod store;
pub mod trust;
