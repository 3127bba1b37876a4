//! The parts of bcd, from the ground up. A module may use those above it in this list, never
//! those below; docs/decisions.md says why.
pub mod attest;
pub mod cli;
pub mod config;
pub mod crypto;
pub mod identity;
pub mod proto;
pub mod rt;
pub mod session;
pub mod sys;
pub mod wire;
