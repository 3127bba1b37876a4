//! Builds an initramfs: a tree of files in memory ([`tree`]), filled with bcd, init, a kernel's
//! modules ([`kernel`]) and outside tools with their libraries ([`tools`]), written as one newc archive
//! ([`cpio`]) and compressed ([`compress`]).
//!
//! The same inputs give the same archive, byte for byte, on any machine: names are sorted, and no time,
//! owner, inode or device number of the building machine is in it. Compression is zstd(1)'s; one
//! version of it gives one image.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic
    )
)]

pub mod compress;
pub mod cpio;
pub mod elf;
pub mod kernel;
pub mod problem;
pub mod sysroot;
pub mod tools;
pub mod tree;
