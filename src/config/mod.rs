//! The configuration: the strict TOML subset and the typed values.
pub mod spelling;
