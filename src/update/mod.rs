//! Releases: what a fleet's machines install, and who says so.

pub mod manifest;
