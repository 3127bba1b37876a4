//! The contract's messages as operators write and read them: commands' parameters and results, spec
//! sections, events.
//!
//! Promises: a parameter that a kind does not have, or that is of the wrong form or out of bounds, is
//! refused with its name and what it may be; what a node sends is shown whatever it is, in base64 when
//! this program does not know it.

#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)
)]

mod diag;
mod events;
mod facts;
mod given;
mod kinds;
mod receipts;
mod sections;

pub use self::events::event_body;
pub use self::facts::show_facts;
pub use self::kinds::{encode_params, show_params, show_result};
pub use self::receipts::{
    FILE_MAX as RECEIPT_MAX, read_receipt_file, receipt_file, receipt_kind, receipt_outcome,
    show_receipt,
};
pub use self::sections::{encode_section, show_section};

/// An enum's value in lower case, without what its names begin with; the number of one not known.
fn word(name: Option<&str>, prefix: &str, number: i32) -> String {
    match name.and_then(|name| name.strip_prefix(prefix)) {
        Some(name) => name.to_ascii_lowercase(),
        None => number.to_string(),
    }
}
