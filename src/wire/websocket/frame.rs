//! Frames of RFC 6455: their heads, and the rules about what may follow what. Pure.
use std::error::Error;
use std::fmt;

/// Bytes of a message, all its fragments together.
pub const MESSAGE: u64 = 1 << 20;

/// Frames in a row that carry no data: pings, and fragments of nothing.
const EMPTY: u32 = 256;

/// Bytes of a control frame's payload.
pub(super) const CONTROL: usize = 125;

/// Bytes of the longest head.
pub(super) const HEAD: usize = 14;

pub(super) const CONTINUATION: u8 = 0;
pub(super) const BINARY: u8 = 2;
pub(super) const CLOSE: u8 = 8;
pub(super) const PING: u8 = 9;
pub(super) const PONG: u8 = 10;

/// A frame's head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The last frame of its message.
    pub fin: bool,
    /// What it is, 0 to 15.
    pub opcode: u8,
    /// Bytes of the payload.
    pub length: u64,
    /// The key that the payload is masked with.
    pub mask: Option<[u8; 4]>,
}

impl Head {
    /// Whether it is no part of a message.
    pub fn is_control(&self) -> bool {
        self.opcode >= CLOSE
    }
}

/// A rule that a peer has broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Violation {
    ReservedBits,
    Opcode(u8),
    Text,
    Masked,
    NotMasked,
    Length,
    TooLong,
    Control,
    Continuation,
    Interrupted,
    Close,
    Flood,
}

impl Violation {
    /// The code to close with (RFC 6455 7.4.1).
    pub fn code(self) -> u16 {
        match self {
            Violation::Text => 1003,
            Violation::TooLong => 1009,
            Violation::Flood => 1008,
            _ => 1002,
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the WebSocket peer breaks the protocol: ")?;
        f.write_str(match self {
            Violation::ReservedBits => "a frame has reserved bits set",
            Violation::Opcode(opcode) => return write!(f, "a frame of the unknown kind {opcode}"),
            Violation::Text => "a text message, where only binary ones belong",
            Violation::Masked => "a server's frame is masked",
            Violation::NotMasked => "a client's frame is not masked",
            Violation::Length => "a frame's length is not in its shortest form",
            Violation::TooLong => "a message is longer than 1 MiB",
            Violation::Control => "a control frame is in fragments or longer than 125 bytes",
            Violation::Continuation => "a fragment continues no message",
            Violation::Interrupted => "a message begins within another",
            Violation::Close => "a close frame that is none",
            Violation::Flood => "too many frames without data",
        })
    }
}

impl Error for Violation {}

/// How many bytes the head has that begins with `bytes`; at least one more than there are when that is
/// not known yet.
pub(super) fn head_length(bytes: &[u8]) -> usize {
    let Some(second) = bytes.get(1) else {
        return 2;
    };
    let extended = match second & 0x7f {
        126 => 2,
        127 => 8,
        _ => 0,
    };
    2 + extended + if second & 0x80 != 0 { 4 } else { 0 }
}

/// Reads the head that `bytes` begins with, and says how long it is; `None`: it is not whole.
///
/// # Errors
/// [`Violation`]: what is wrong with the head by itself.
pub fn read(bytes: &[u8]) -> Result<Option<(Head, usize)>, Violation> {
    let length = head_length(bytes);
    let (Some([first, second, ..]), Some(rest)) = (bytes.first_chunk::<2>(), bytes.get(2..length))
    else {
        return Ok(None);
    };
    if first & 0x70 != 0 {
        return Err(Violation::ReservedBits);
    }
    let masked = second & 0x80 != 0;
    let (extended, key) = rest.split_at(rest.len() - if masked { 4 } else { 0 });
    let number = |bytes: &[u8]| bytes.iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
    let (payload, least) = match second & 0x7f {
        126 => (number(extended), 126),
        127 => (number(extended), 1 << 16),
        short => (u64::from(short), 0),
    };
    if payload < least || payload >> 63 != 0 {
        return Err(Violation::Length);
    }
    let head = Head {
        fin: first & 0x80 != 0,
        opcode: first & 0x0f,
        length: payload,
        mask: key.first_chunk().filter(|_| masked).copied(),
    };
    Ok(Some((head, length)))
}

/// Appends a whole frame, its payload masked with `mask`.
pub fn write(out: &mut Vec<u8>, opcode: u8, payload: &[u8], mask: Option<[u8; 4]>) {
    out.reserve(HEAD + payload.len());
    out.push(0x80 | opcode);
    let bit = if mask.is_some() { 0x80 } else { 0 };
    match (u8::try_from(payload.len()), u16::try_from(payload.len())) {
        (Ok(short @ 0..126), _) => out.push(bit | short),
        (_, Ok(middle)) => {
            out.push(bit | 126);
            out.extend_from_slice(&middle.to_be_bytes());
        }
        _ => {
            out.push(bit | 127);
            out.extend_from_slice(&(payload.len() as u64).to_be_bytes());
        }
    }
    out.extend(mask.into_iter().flatten());
    let from = out.len();
    out.extend_from_slice(payload);
    if let (Some(key), Some(payload)) = (mask, out.get_mut(from..)) {
        apply(key, 0, payload);
    }
}

/// Masks `bytes`, which stand `at` bytes behind their payload's begin; or takes the mask off.
pub(super) fn apply(key: [u8; 4], at: u64, bytes: &mut [u8]) {
    let [a, b, c, d] = key;
    let key = match at % 4 {
        0 => [a, b, c, d],
        1 => [b, c, d, a],
        2 => [c, d, a, b],
        _ => [d, a, b, c],
    };
    for group in bytes.chunks_mut(4) {
        for (byte, key) in group.iter_mut().zip(key) {
            *byte ^= key;
        }
    }
}

/// What may follow what has come.
pub struct Rules {
    /// The peer is a client, which masks.
    from_client: bool,
    /// Bytes so far of the message that is not whole.
    message: Option<u64>,
    empty: u32,
}

impl Rules {
    /// The rules at a connection's begin.
    pub fn new(from_client: bool) -> Rules {
        Rules {
            from_client,
            message: None,
            empty: 0,
        }
    }

    /// Judges the next frame.
    ///
    /// # Errors
    /// [`Violation`].
    pub fn judge(&mut self, head: &Head) -> Result<(), Violation> {
        match (self.from_client, head.mask) {
            (true, None) => return Err(Violation::NotMasked),
            (false, Some(_)) => return Err(Violation::Masked),
            _ => {}
        }
        if head.is_control() || head.length == 0 {
            self.empty += 1;
            if self.empty > EMPTY {
                return Err(Violation::Flood);
            }
        } else {
            self.empty = 0;
        }
        let before = match (head.opcode, self.message) {
            (CLOSE | PING | PONG, _) if head.fin && head.length <= CONTROL as u64 => return Ok(()),
            (CLOSE | PING | PONG, _) => return Err(Violation::Control),
            (CONTINUATION, Some(before)) => before,
            (CONTINUATION, None) => return Err(Violation::Continuation),
            (BINARY, None) => 0,
            (BINARY, Some(_)) => return Err(Violation::Interrupted),
            (1, _) => return Err(Violation::Text),
            (opcode, _) => return Err(Violation::Opcode(opcode)),
        };
        let whole = before.saturating_add(head.length);
        if whole > MESSAGE {
            return Err(Violation::TooLong);
        }
        self.message = (!head.fin).then_some(whole);
        Ok(())
    }
}

/// The code of a close frame's payload; `None`: it gives none.
///
/// # Errors
/// A code that may not be sent, or a reason that is no text.
pub(super) fn close_code(payload: &[u8]) -> Result<Option<u16>, Violation> {
    let Some((code, reason)) = payload.split_first_chunk::<2>() else {
        return match payload {
            [] => Ok(None),
            _ => Err(Violation::Close),
        };
    };
    let code = u16::from_be_bytes(*code);
    let known = matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999);
    match known && std::str::from_utf8(reason).is_ok() {
        true => Ok(Some(code)),
        false => Err(Violation::Close),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    #[test]
    fn what_is_written_reads_back_at_every_width_of_length() {
        for length in [0, 1, 125, 126, 127, 65535, 65536, 70000] {
            for mask in [None, Some([1, 2, 3, 250])] {
                let payload: Vec<u8> = (0..length).map(|n: usize| n as u8).collect();
                let mut bytes = Vec::new();
                write(&mut bytes, BINARY, &payload, mask);
                let (head, at) = read(&bytes).unwrap().unwrap();
                assert_eq!(
                    (head.fin, head.opcode, head.length),
                    (true, BINARY, length as u64)
                );
                assert_eq!(head.mask, mask);
                let mut body = bytes[at..].to_vec();
                // However it is cut.
                if let Some(key) = mask {
                    let cut = length / 3;
                    let (first, second) = body.split_at_mut(cut);
                    apply(key, 0, first);
                    apply(key, cut as u64, second);
                }
                assert_eq!(body, payload);
                for end in 0..at {
                    assert_eq!(read(&bytes[..end]), Ok(None));
                    assert!(head_length(&bytes[..end]) > end.min(1));
                }
            }
        }
    }

    #[test]
    fn heads_that_are_none_are_refused() {
        for (bytes, violation) in [
            (&[0xc2, 0][..], Violation::ReservedBits),
            (&[0xa2, 0], Violation::ReservedBits),
            (&[0x92, 0], Violation::ReservedBits),
            (&[0x82, 126, 0, 125], Violation::Length),
            (
                &[0x82, 127, 0, 0, 0, 0, 0, 0, 0xff, 0xff],
                Violation::Length,
            ),
            (&[0x82, 127, 0x80, 0, 0, 0, 0, 0, 0, 0], Violation::Length),
        ] {
            assert_eq!(read(bytes), Err(violation), "{bytes:x?}");
        }
    }

    fn judged(from_client: bool, frames: &[(bool, u8, u64)]) -> Result<(), Violation> {
        let mut rules = Rules::new(from_client);
        frames.iter().try_for_each(|(fin, opcode, length)| {
            rules.judge(&Head {
                fin: *fin,
                opcode: *opcode,
                length: *length,
                mask: from_client.then_some([0; 4]),
            })
        })
    }

    #[test]
    fn what_may_not_follow_is_refused_and_each_has_its_code() {
        use Violation as V;
        for (frames, violation, code) in [
            (&[(true, 1, 5)][..], V::Text, 1003),
            (&[(true, 3, 5)], V::Opcode(3), 1002),
            (&[(true, 11, 5)], V::Opcode(11), 1002),
            (&[(true, 0, 5)], V::Continuation, 1002),
            (&[(false, 2, 5), (true, 2, 5)], V::Interrupted, 1002),
            (
                &[(false, 2, 5), (true, 0, 5), (true, 0, 5)],
                V::Continuation,
                1002,
            ),
            (&[(false, 9, 0)], V::Control, 1002),
            (&[(true, 9, 126)], V::Control, 1002),
            (&[(true, 8, u64::MAX >> 1)], V::Control, 1002),
            (&[(true, 2, MESSAGE + 1)], V::TooLong, 1009),
            (&[(false, 2, MESSAGE), (true, 0, 1)], V::TooLong, 1009),
            (&[(false, 2, 1), (true, 0, u64::MAX >> 1)], V::TooLong, 1009),
        ] {
            assert_eq!(judged(false, frames), Err(violation), "{frames:?}");
            assert_eq!(judged(true, frames), Err(violation), "{frames:?}");
            assert_eq!(violation.code(), code);
        }
        let good = [
            (true, 2, MESSAGE),
            (false, 2, 0),
            (true, 9, 125),
            (false, 0, 7),
            (true, 10, 0),
            (true, 0, 0),
            (true, 8, 2),
        ];
        assert_eq!(judged(true, &good), Ok(()));
        let pings = [(true, 9, 0); EMPTY as usize + 1];
        assert_eq!(judged(true, &pings[1..]), Ok(()));
        assert_eq!(judged(true, &pings), Err(V::Flood));
        let nothing = [(false, 0, 0); EMPTY as usize + 1];
        assert_eq!(
            judged(true, &[&[(false, 2, 1)][..], &nothing].concat()),
            Err(V::Flood)
        );
    }

    #[test]
    fn a_side_that_masks_wrongly_is_refused() {
        let head = |mask| Head {
            fin: true,
            opcode: BINARY,
            length: 1,
            mask,
        };
        let from_client = Rules::new(true).judge(&head(None));
        assert_eq!(from_client, Err(Violation::NotMasked));
        let from_server = Rules::new(false).judge(&head(Some([0; 4])));
        assert_eq!(from_server, Err(Violation::Masked));
    }

    #[test]
    fn close_codes_are_those_that_may_be_sent() {
        assert_eq!(close_code(b""), Ok(None));
        assert_eq!(close_code(b"\x03\xe8bye"), Ok(Some(1000)));
        assert_eq!(close_code(b"\x0f\xa0"), Ok(Some(4000)));
        for bad in [
            &b"\x03"[..],
            b"\x03\xed",
            b"\x03\xee",
            b"\x03\xe7",
            b"\x13\x88",
            b"\x03\xe8\xff",
        ] {
            assert_eq!(close_code(bad), Err(Violation::Close), "{bad:x?}");
        }
    }
}
