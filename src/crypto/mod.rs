//! Keys, pins, seals and signatures, in the one form each has here: P-256 and SHA-256 throughout,
//! computed by ring. Formats that come from outside (DER, PEM, JWK, JSON, base64) are parsed
//! strictly, within bounds, and never by panicking. Private halves live in memory that is wiped
//! when dropped and have no `Debug`.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic
    )
)]

pub mod certificate;
pub mod csr;
pub mod der;
pub mod digest;
pub mod envelope;
pub mod gateway_verifier;
pub mod hpke;
pub mod json;
pub mod jwk;
pub mod key;
pub mod pem;
pub mod pin;
pub mod provider;
pub mod spki;

pub use crate::wire::base64;

#[cfg(test)]
mod hostile;
