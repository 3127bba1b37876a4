//! Puts fields.
use super::{Fields, Wire};

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
