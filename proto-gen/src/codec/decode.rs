//! Takes fields, and counts what they cost.
use super::{Fault, Fields, Limits, Wire};

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
pub(super) fn merge(message: &mut dyn Fields, bytes: &[u8], limits: Limits) -> Result<(), Fault> {
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
