//! What is done to a machine's disks at an operator's order.
//!
//! What it promises:
//! - A disk is named by what does not change, and held against what the control plane knew of it. One that is in
//!   use, shared, foreign or not what it was is refused, with the reason, before anything is written.
//! - What was done is told as it was: by a receipt under the node's own signature.
//!
//! How the parts fit: [`disk`] finds the disk that is meant, or says why not; [`wipe`](mod@wipe) wipes one; [`image`] writes an
//! image to one, [`gpt`] fits its partition table, and [`ids`] finds what two disks would be taken for each other by; [`volumes`]
//! reads and writes the file systems on a disk, [`files`] has an OS given its files, and [`efi`] its entry in the firmware;
//! [`start`] starts the system on one, which [`loader`] finds; [`receipt`] has receipts signed, and verifies them.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]
pub mod disk;
pub mod efi;
pub mod files;
pub mod gpt;
pub mod ids;
pub mod image;
pub mod loader;
pub mod receipt;
pub mod start;
pub mod volumes;
pub mod wipe;
