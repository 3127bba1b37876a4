//! The protobuf wire format (<https://protobuf.dev/programming-guides/encoding/>), as generated
//! messages use it.
//!
//! Encoding is canonical for a schema: fields in the order of their numbers, map entries in the
//! order of their keys, repeated numbers packed, shortest varints. Equal messages give equal bytes.
//!
//! Decoding takes bytes from anybody. It never panics, and what it may cost is bounded by
//! [`Limits`]: the message's length, the depth of nesting, and the memory of what is built, so that
//! two wire bytes a time cannot buy a hundred bytes of heap each. As proto3 has it, a field met
//! twice takes its last value (messages merge, repeated fields grow), a known field in another wire
//! type is treated as unknown, and unknown fields, groups among them, are checked for form and
//! skipped; they are not kept. Strings must be UTF-8. Values too wide for their type are cut to
//! their low bits, as every other implementation does.
//!
//! All code here is shared by all messages: what differs from one to the next is only a generated
//! `match` over field numbers.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::arithmetic_side_effects
    )
)]

use std::fmt;

mod decode;
mod encode;
mod method;

pub use decode::{Decoder, Value};
pub use encode::{
    put_bits, put_bytes, put_delimited, put_message, put_nonempty, put_nonzero, put_number,
    put_varint, unzigzag32, unzigzag64, zigzag32, zigzag64,
};
pub use method::{Method, MethodKind};

/// A generated message.
pub trait Message: Fields + Default + Clone + PartialEq + fmt::Debug {
    /// The full protobuf name, `bettercompute.v1.JoinRequest`.
    const NAME: &'static str;

    /// The length in bytes of [`encode_to_vec`](Self::encode_to_vec). It costs an encoding.
    fn encoded_len(&self) -> usize {
        self.encode_to_vec().len()
    }

    /// Appends the encoded message.
    fn encode(&self, out: &mut Vec<u8>) {
        self.encode_fields(out);
    }

    /// The encoded message.
    fn encode_to_vec(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode_fields(&mut out);
        out
    }

    /// Decodes one whole message within [`Limits::default`].
    fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        Self::decode_within(bytes, Limits::default())
    }

    /// Decodes one whole message within `limits`.
    fn decode_within(bytes: &[u8], limits: Limits) -> Result<Self, DecodeError> {
        let mut message = Self::default();
        match decode::merge(&mut message, bytes, limits) {
            Ok(()) => Ok(message),
            Err(fault) => Err(DecodeError {
                message: Self::NAME,
                fault,
            }),
        }
    }
}

/// What the compiler generates for a message: its fields, one by one.
pub trait Fields {
    /// Appends every field that is set.
    fn encode_fields(&self, out: &mut Vec<u8>);

    /// Takes one field from the wire; a number it does not know is skipped.
    fn merge_field(
        &mut self,
        number: u32,
        value: Value<'_>,
        decoder: &mut Decoder,
    ) -> Result<(), Fault>;
}

/// What decoding one message may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest message taken, in bytes.
    pub bytes: usize,
    /// How many messages (and groups) may lie within each other below the outermost.
    pub depth: u32,
    /// The memory of all strings, bytes and elements built, in bytes.
    pub memory: usize,
}

impl Default for Limits {
    /// 1 MiB, the contract's longest frame; 32 levels, which bounds the stack at some 10 KiB and
    /// is ten times what the contract nests; 8 MiB of memory, so that the worst honest
    /// growth (a packed list of small 64-bit numbers, eight-fold) still passes.
    fn default() -> Self {
        Self::of_size(1 << 20)
    }
}

impl Limits {
    /// The default depth and growth for messages of at most `bytes`.
    pub const fn of_size(bytes: usize) -> Self {
        Self {
            bytes,
            depth: 32,
            memory: bytes.saturating_mul(8),
        }
    }
}

/// Why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeError {
    /// The full protobuf name of the outermost message.
    pub message: &'static str,
    /// What is wrong with it.
    pub fault: Fault,
}

/// What is wrong with an encoded message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It ends within a field.
    Truncated,
    /// A varint has more than ten bytes, a tag or a length more than five, a tag more than 32 bits
    /// or a length more than 31.
    Varint,
    /// A field number is 0.
    FieldNumber,
    /// A wire type that does not exist (6, 7).
    WireType,
    /// A group ends that did not begin, or ends under another number.
    Group,
    /// A string is not UTF-8.
    Utf8,
    /// Longer than [`Limits::bytes`].
    TooLong,
    /// Nested deeper than [`Limits::depth`].
    TooDeep,
    /// More to build than [`Limits::memory`].
    TooMuchMemory,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "it ends within a field",
            Self::Varint => "a number on the wire is too long",
            Self::FieldNumber => "a field has the number 0",
            Self::WireType => "a field has a wire type that does not exist",
            Self::Group => "a group ends where none began",
            Self::Utf8 => "a string is not UTF-8",
            Self::TooLong => "it is longer than allowed",
            Self::TooDeep => "its messages are nested too deep",
            Self::TooMuchMemory => "it holds more elements than allowed",
        })
    }
}

impl std::error::Error for Fault {}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cannot decode ")?;
        f.write_str(self.message)?;
        f.write_str(": ")?;
        self.fault.fmt(f)
    }
}

impl std::error::Error for DecodeError {}

/// How a number travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// Wire type 0.
    Varint,
    /// Wire type 5, four bytes, little-endian.
    Fixed32,
    /// Wire type 1, eight bytes, little-endian.
    Fixed64,
}
