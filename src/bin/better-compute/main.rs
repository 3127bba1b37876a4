//! better-compute: the operator's side of a bcd fleet.
//!
//! How the parts fit: `pki` is the bundle of keys, `store` the database; `joinservice` decides joins on a
//! thread of its own; `registry` is the thread the gateway and the API reach the database through;
//! `gateway` and `api` listen; `dev` puts them together in one process; `cli` is the commands.

mod api;
mod cli;
mod contract;
mod dev;
mod gateway;
mod ids;
mod joinservice;
mod json;
mod news;
mod pki;
mod registry;
mod remedies;
mod store;

use std::process::ExitCode;

fn main() -> ExitCode {
    bcd::sys::log::add_remedies(remedies::REMEDIES);
    bcd::cli::dispatch(&cli::BETTER_COMPUTE, std::env::args_os())
}
