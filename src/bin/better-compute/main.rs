//! better-compute: the operator's side of a bcd fleet.
//!
//! How the parts fit: `pki` is the bundle of keys, `store` the database; `joinservice` decides joins on a
//! thread of its own; `registry` is the thread the gateway and the API reach the database through;
//! `gateway` and `api` listen; `dev` puts them together in one process; `simulation` judges what simulated
//! nodes left in the records; `cli` is the commands.
//!
//! The modules are public for fuzz/, which has these sources as a library (Cargo.toml beside this file).

pub mod api;
pub mod bootparams;
pub mod cli;
pub mod contract;
pub mod dev;
pub mod gateway;
pub mod ids;
pub mod install;
pub mod joinservice;
pub mod json;
pub mod news;
pub mod pki;
pub mod registry;
pub mod remedies;
pub mod simulation;
pub mod store;

use std::process::ExitCode;

pub fn main() -> ExitCode {
    // Every command has the admin token or the fleet's keys in its hands.
    bcd::sys::process::keep_memory_private();
    bcd::sys::log::add_remedies(remedies::REMEDIES);
    bcd::cli::dispatch(&cli::BETTER_COMPUTE, std::env::args_os())
}
