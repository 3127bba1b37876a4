//! PID 1 of the ramdisk, and the processes it is made of.
//!
//! Pure, and tested without a machine: [`options`] (what the kernel command line asks of init), [`dhcp`],
//! [`dhcpv6`], [`packet`], [`ipv6`], [`sntp`], [`lldp`] and [`netlink`] (bytes), [`modules`] (depmod's files),
//! [`nics`] (which NIC when). Edges: [`edge`] (syscalls), [`mounts`], [`console`], [`loader`], [`network`] with its
//! [`information`], [`clock`] and [`neighbours`], [`bmc`], [`facts`] (what bcd is told), and [`supervise`], which is PID 1 itself. What reads foreign bytes runs in a child of PID 1, never in PID 1.
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

pub mod bmc;
pub mod clock;
pub mod console;
pub mod dhcp;
pub mod dhcpv6;
pub mod edge;
pub mod facts;
pub mod information;
pub mod ipv6;
pub mod lldp;
pub mod loader;
pub mod modules;
pub mod mounts;
pub mod neighbours;
pub mod netlink;
pub mod network;
pub mod nics;
pub mod options;
pub mod packet;
pub mod sntp;
pub mod supervise;

/// Says something to whoever looks at a console: one line on standard error.
pub fn say(text: &str) {
    use std::io::Write as _;
    let line = format!("init: {}\n", bcd::cli::one_line(text));
    // Nothing is left to say it to when standard error is gone.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
