//! A proto3 compiler to plain Rust, and the codec its output uses.
//!
//! [`compile`] reads `.proto` files and gives Rust source; a build script writes it to `OUT_DIR`
//! and the crate includes it. [`codec`] is what that source calls at run time, and [`stub`] what its
//! services' clients and servers stand on. None needs
//! anything but the standard library, and no program beside it.
//!
//! Read are all of proto3's scalars, messages, enums (open), `repeated` (packed), `optional`,
//! `oneof`, `map`, `reserved`, `import`, nested types and services. Everything else (proto2,
//! editions, groups, extensions, custom options) is an [`Error`] with file and line, never ignored.
pub mod codec;
mod compiler;
pub mod stub;

pub use compiler::{Error, Output, compile, compile_with};
