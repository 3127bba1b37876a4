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
use std::marker::PhantomData;

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
        match merge(&mut message, bytes, limits) {
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

/// Which sides of a call send a stream of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MethodKind {
    /// One request, one response.
    Unary,
    /// Many requests, one response.
    ClientStreaming,
    /// One request, many responses.
    ServerStreaming,
    /// Many requests, many responses.
    Bidi,
}

/// One method of a service: where it is called, and with what.
pub struct Method<Req, Resp> {
    path: &'static str,
    kind: MethodKind,
    messages: PhantomData<fn(Req) -> Resp>,
}

impl<Req, Resp> Clone for Method<Req, Resp> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Req, Resp> Copy for Method<Req, Resp> {}

impl<Req, Resp> fmt::Debug for Method<Req, Resp> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.path)
    }
}

impl<Req, Resp> Method<Req, Resp> {
    const fn new(path: &'static str, kind: MethodKind) -> Self {
        Self {
            path,
            kind,
            messages: PhantomData,
        }
    }

    /// The HTTP/2 `:path`, `/bettercompute.v1.JoinService/Join`.
    pub const fn path(&self) -> &'static str {
        self.path
    }

    /// Which sides stream.
    pub const fn kind(&self) -> MethodKind {
        self.kind
    }

    /// One request, one response.
    pub const fn unary(path: &'static str) -> Self {
        Self::new(path, MethodKind::Unary)
    }

    /// Many requests, one response.
    pub const fn client_streaming(path: &'static str) -> Self {
        Self::new(path, MethodKind::ClientStreaming)
    }

    /// One request, many responses.
    pub const fn server_streaming(path: &'static str) -> Self {
        Self::new(path, MethodKind::ServerStreaming)
    }

    /// Many requests, many responses.
    pub const fn bidi(path: &'static str) -> Self {
        Self::new(path, MethodKind::Bidi)
    }
}

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

// ---- Encoding ----

/// Appends a base-128 varint.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a number without its tag, as in a packed field.
pub fn put_bits(out: &mut Vec<u8>, wire: Wire, bits: u64) {
    match wire {
        Wire::Varint => put_varint(out, bits),
        Wire::Fixed32 => out.extend_from_slice(&(bits as u32).to_le_bytes()),
        Wire::Fixed64 => out.extend_from_slice(&bits.to_le_bytes()),
    }
}

fn put_tag(out: &mut Vec<u8>, number: u32, wire_type: u64) {
    put_varint(out, (u64::from(number) << 3) | wire_type);
}

/// Appends a number that has presence: also when it is 0.
pub fn put_number(out: &mut Vec<u8>, number: u32, wire: Wire, bits: u64) {
    let wire_type = match wire {
        Wire::Varint => 0,
        Wire::Fixed64 => 1,
        Wire::Fixed32 => 5,
    };
    put_tag(out, number, wire_type);
    put_bits(out, wire, bits);
}

/// Appends a number without presence: nothing when all its bits are 0.
pub fn put_nonzero(out: &mut Vec<u8>, number: u32, wire: Wire, bits: u64) {
    if bits != 0 {
        put_number(out, number, wire, bits);
    }
}

/// Appends bytes or a string that has presence: also when it is empty.
pub fn put_bytes(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    put_tag(out, number, 2);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends bytes or a string without presence: nothing when it is empty.
pub fn put_nonempty(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    if !bytes.is_empty() {
        put_bytes(out, number, bytes);
    }
}

/// Appends a message field.
pub fn put_message(out: &mut Vec<u8>, number: u32, message: &dyn Fields) {
    put_delimited(out, number, &mut |out| message.encode_fields(out));
}

/// Appends a length-delimited field whose content `body` appends: a packed list, a map entry.
pub fn put_delimited(out: &mut Vec<u8>, number: u32, body: &mut dyn FnMut(&mut Vec<u8>)) {
    put_tag(out, number, 2);
    let start = out.len();
    body(out);
    let length = out.len().saturating_sub(start);
    put_varint(out, length as u64);
    // The length came out behind the content: turn the two around.
    if let Some(both) = out.get_mut(start..) {
        both.rotate_left(length);
    }
}

/// The wire form of `sint32`; both halves of ZigZag keep their sign in bit 0.
pub fn zigzag32(value: i32) -> u64 {
    u64::from(((value << 1) ^ (value >> 31)) as u32)
}

/// The wire form of `sint64`.
pub fn zigzag64(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// A `sint32` from its wire form.
pub fn unzigzag32(bits: u64) -> i32 {
    let bits = bits as u32;
    (bits >> 1) as i32 ^ ((bits & 1) as i32).wrapping_neg()
}

/// A `sint64` from its wire form.
pub fn unzigzag64(bits: u64) -> i64 {
    (bits >> 1) as i64 ^ ((bits & 1) as i64).wrapping_neg()
}

// ---- Decoding ----

/// A field's value as it came: typed by the wire, not yet by the schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// Wire type 0.
    Varint(u64),
    /// Wire type 5.
    Fixed32(u32),
    /// Wire type 1.
    Fixed64(u64),
    /// Wire type 2.
    Delimited(&'a [u8]),
}

impl<'a> Value<'a> {
    /// The number, if the field came as one of this kind.
    pub fn number(self, wire: Wire) -> Option<u64> {
        match (self, wire) {
            (Self::Varint(bits), Wire::Varint) | (Self::Fixed64(bits), Wire::Fixed64) => Some(bits),
            (Self::Fixed32(bits), Wire::Fixed32) => Some(u64::from(bits)),
            _ => None,
        }
    }

    /// The content, if the field came length-delimited.
    pub fn delimited(self) -> Option<&'a [u8]> {
        match self {
            Self::Delimited(bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// What is left of [`Limits`] while a message is decoded.
#[derive(Debug)]
pub struct Decoder {
    depth: u32,
    memory: usize,
}

/// Merges one field from the wire into what `self` borrows; see [`Decoder::fields`].
type Sink<'s> = dyn FnMut(u32, Value<'_>, &mut Decoder) -> Result<(), Fault> + 's;

/// Decodes `bytes` into `message`: the non-generic body of [`Message::decode_within`].
fn merge(message: &mut dyn Fields, bytes: &[u8], limits: Limits) -> Result<(), Fault> {
    if bytes.len() > limits.bytes {
        return Err(Fault::TooLong);
    }
    let mut decoder = Decoder {
        // The outermost message is a level too.
        depth: limits.depth.saturating_add(1),
        memory: limits.memory,
    };
    decoder.message(message, bytes)
}

impl Decoder {
    /// Merges an encoded message into `message`, one level down.
    pub fn message(&mut self, message: &mut dyn Fields, bytes: &[u8]) -> Result<(), Fault> {
        self.fields(bytes, &mut |number, value, decoder| {
            message.merge_field(number, value, decoder)
        })
    }

    /// Gives every field of an encoded message to `sink`, one level down.
    pub fn fields(&mut self, bytes: &[u8], sink: &mut Sink<'_>) -> Result<(), Fault> {
        self.depth = self.depth.checked_sub(1).ok_or(Fault::TooDeep)?;
        let mut rest = bytes;
        while !rest.is_empty() {
            let (number, wire_type) = take_tag(&mut rest)?;
            if wire_type == 3 {
                skip_group(&mut rest, number, self.depth)?;
            } else {
                let value = take_value(&mut rest, wire_type)?;
                sink(number, value, self)?;
            }
        }
        self.depth = self.depth.saturating_add(1);
        Ok(())
    }

    /// Gives every number of a repeated field to `push`, packed or alone. Each one will take
    /// `size` bytes of memory.
    pub fn numbers(
        &mut self,
        value: Value<'_>,
        wire: Wire,
        size: usize,
        push: &mut dyn FnMut(u64),
    ) -> Result<(), Fault> {
        if let Some(bits) = value.number(wire) {
            self.charge(size)?;
            push(bits);
            return Ok(());
        }
        let Value::Delimited(mut rest) = value else {
            return Ok(());
        };
        while !rest.is_empty() {
            let bits = match wire {
                Wire::Varint => take_varint(&mut rest)?,
                Wire::Fixed32 => u64::from(u32::from_le_bytes(take_array(&mut rest)?)),
                Wire::Fixed64 => u64::from_le_bytes(take_array(&mut rest)?),
            };
            self.charge(size)?;
            push(bits);
        }
        Ok(())
    }

    /// The string, if the field came length-delimited.
    pub fn string(&mut self, value: Value<'_>) -> Result<Option<String>, Fault> {
        let Value::Delimited(bytes) = value else {
            return Ok(None);
        };
        let text = std::str::from_utf8(bytes).map_err(|_| Fault::Utf8)?;
        self.charge(text.len())?;
        Ok(Some(text.to_owned()))
    }

    /// The bytes, if the field came length-delimited.
    pub fn bytes(&mut self, value: Value<'_>) -> Result<Option<Vec<u8>>, Fault> {
        let Value::Delimited(bytes) = value else {
            return Ok(None);
        };
        self.charge(bytes.len())?;
        Ok(Some(bytes.to_owned()))
    }

    /// Counts `size` bytes of memory about to be taken.
    pub fn charge(&mut self, size: usize) -> Result<(), Fault> {
        self.memory = self.memory.checked_sub(size).ok_or(Fault::TooMuchMemory)?;
        Ok(())
    }
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Result<&'a [u8], Fault> {
    let (head, tail) = rest.split_at_checked(length).ok_or(Fault::Truncated)?;
    *rest = tail;
    Ok(head)
}

fn take_array<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], Fault> {
    let (head, tail) = rest.split_first_chunk().ok_or(Fault::Truncated)?;
    *rest = tail;
    Ok(*head)
}

fn take_varint(rest: &mut &[u8]) -> Result<u64, Fault> {
    take_varint_within(rest, 10)
}

/// A tag or a length: at most 32 bits, and five bytes, were it overlong.
fn take_short_varint(rest: &mut &[u8]) -> Result<u32, Fault> {
    let value = take_varint_within(rest, 5)?;
    u32::try_from(value).map_err(|_| Fault::Varint)
}

fn take_varint_within(rest: &mut &[u8], bytes: u32) -> Result<u64, Fault> {
    let mut value = 0;
    for shift in (0..bytes.saturating_mul(7)).step_by(7) {
        let (byte, tail) = rest.split_first().ok_or(Fault::Truncated)?;
        *rest = tail;
        // The tenth byte's upper bits fall off the end, as every implementation lets them.
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(Fault::Varint)
}

/// A field number and a wire type.
fn take_tag(rest: &mut &[u8]) -> Result<(u32, u8), Fault> {
    let tag = take_short_varint(rest)?;
    if tag >> 3 == 0 {
        return Err(Fault::FieldNumber);
    }
    Ok((tag >> 3, (tag & 7) as u8))
}

fn take_value<'a>(rest: &mut &'a [u8], wire_type: u8) -> Result<Value<'a>, Fault> {
    Ok(match wire_type {
        0 => Value::Varint(take_varint(rest)?),
        1 => Value::Fixed64(u64::from_le_bytes(take_array(rest)?)),
        2 => {
            let length = take_short_varint(rest)?;
            if length > i32::MAX as u32 {
                return Err(Fault::Varint);
            }
            Value::Delimited(take(rest, length as usize)?)
        }
        5 => Value::Fixed32(u32::from_le_bytes(take_array(rest)?)),
        4 => return Err(Fault::Group),
        _ => return Err(Fault::WireType),
    })
}

/// Skips an unknown group up to its end: proto2's nested form, which no schema here has.
fn skip_group(rest: &mut &[u8], number: u32, depth: u32) -> Result<(), Fault> {
    let depth = depth.checked_sub(1).ok_or(Fault::TooDeep)?;
    loop {
        match take_tag(rest)? {
            (end, 4) if end == number => return Ok(()),
            (inner, 3) => skip_group(rest, inner, depth)?,
            (_, wire_type) => {
                take_value(rest, wire_type)?;
            }
        }
    }
}
