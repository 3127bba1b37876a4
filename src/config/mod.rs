//! The configuration: the strict TOML subset and the typed values.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]

pub mod spelling;
pub mod toml;
