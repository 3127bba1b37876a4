//! How a machine proves to the control plane that it may join, and a node that it is who it was.

#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]

pub mod boot_parameters;
pub mod bootstrap;
pub mod gateway;
pub mod ids;
pub mod join;
pub mod join_token;
pub mod member;
pub mod provisioned;
pub mod renewal;
pub mod roots;
