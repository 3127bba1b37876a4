//! The parts of bcd. A module uses those of lower floors and its own, never a higher one's, and
//! tests/deps/check_floors.py holds it to that; docs/decisions.md says why.
//!
//! Floors, lowest first: sys, rt, proto, wire, crypto, config, journal, facts, identity, attest, session,
//! update, helper, converge, deploy, command, status, doctor, sim, cli.
pub mod attest;
pub mod cli;
pub mod command;
pub mod config;
pub mod converge;
pub mod crypto;
pub mod deploy;
pub mod doctor;
pub mod facts;
pub mod helper;
pub mod identity;
pub mod journal;
pub mod proto;
pub mod rt;
pub mod session;
pub mod sim;
pub mod status;
pub mod sys;
pub mod update;
pub mod wire;
