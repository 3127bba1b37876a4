//! gzip (RFC 1952): one member or several, each checked by its CRC and length.
use std::io::{self, Read};

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::TINFL_FLAG_HAS_MORE_INPUT;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};

use super::crc::Crc;
use super::packed::{Input, bad, cut};

/// A power of two, of at least deflate's window (32 KiB).
const WINDOW: usize = 128 * 1024;
/// A name or comment, or other optional part of a member's head.
const OPTIONAL: usize = 64 * 1024;

const CUT: &str = "gzip: the file ends in the middle";

pub struct Gzip {
    input: Input,
    inflate: Box<DecompressorOxide>,
    window: Vec<u8>,
    /// What of the window is there and not given yet.
    given: usize,
    filled: usize,
    crc: Crc,
    length: u32,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    First,
    Member,
    Between,
    End,
}

impl Gzip {
    pub fn new(input: Input) -> Self {
        Self {
            input,
            inflate: Box::default(),
            window: vec![0; WINDOW],
            given: 0,
            filled: 0,
            crc: Crc::of_32_bits(),
            length: 0,
            stage: Stage::First,
        }
    }

    fn bytes<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.input.read_exact(&mut bytes).map_err(|_| cut(CUT))?;
        Ok(bytes)
    }

    fn head(&mut self) -> io::Result<()> {
        let [_, _, method, flags, ..] = match self.bytes::<10>()? {
            head @ [0x1f, 0x8b, ..] => head,
            _ => return Err(bad("gzip: there are other bytes behind its end")),
        };
        if method != 8 || flags & 0xe0 != 0 {
            return Err(bad("gzip: a member is packed in an unknown way"));
        }
        if flags & 4 != 0 {
            let length = u16::from_le_bytes(self.bytes()?);
            for _ in 0..length {
                self.bytes::<1>()?;
            }
        }
        for flag in [8, 16] {
            if flags & flag != 0 {
                let mut left = OPTIONAL;
                while self.bytes()? != [0] {
                    left -= 1;
                    if left == 0 {
                        return Err(bad("gzip: a name in it does not end"));
                    }
                }
            }
        }
        if flags & 2 != 0 {
            self.bytes::<2>()?;
        }
        self.inflate.init();
        self.crc = Crc::of_32_bits();
        self.length = 0;
        self.stage = Stage::Member;
        Ok(())
    }

    /// Whether another member follows. Zeros behind the last one are padding.
    fn another(&mut self) -> io::Result<bool> {
        loop {
            let bytes = self.input.fill_buf()?;
            if bytes.is_empty() {
                return Ok(false);
            }
            let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
            let all = bytes.len();
            self.input.consume(zeros);
            if zeros < all {
                return Ok(true);
            }
        }
    }

    fn inflate(&mut self) -> io::Result<()> {
        if self.filled == WINDOW {
            (self.given, self.filled) = (0, 0);
        }
        let bytes = self.input.fill_buf()?;
        if bytes.is_empty() {
            return Err(cut(CUT));
        }
        let (status, consumed, written) = decompress(
            &mut self.inflate,
            bytes,
            &mut self.window,
            self.filled,
            TINFL_FLAG_HAS_MORE_INPUT,
        );
        self.input.consume(consumed);
        let new = self.window.get(self.filled..self.filled + written);
        self.crc.update(new.unwrap_or_default());
        self.filled += written;
        self.length = self.length.wrapping_add(written as u32);
        match status {
            TINFLStatus::Done => {
                let [crc, length] = [self.bytes()?, self.bytes()?].map(u32::from_le_bytes);
                if u64::from(crc) != self.crc.finish() || length != self.length {
                    return Err(bad("gzip: a member's checksum or length is wrong"));
                }
                self.stage = Stage::Between;
                Ok(())
            }
            TINFLStatus::NeedsMoreInput | TINFLStatus::HasMoreOutput => Ok(()),
            _ => Err(bad("gzip: the packed bytes are damaged")),
        }
    }
}

impl Read for Gzip {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let there = self.window.get(self.given..self.filled);
            if let Some(mut there) = there.filter(|there| !there.is_empty()) {
                let read = there.read(into)?;
                self.given += read;
                return Ok(read);
            }
            match self.stage {
                Stage::First => self.head()?,
                Stage::Member => self.inflate()?,
                Stage::Between => match self.another()? {
                    true => self.head()?,
                    false => self.stage = Stage::End,
                },
                Stage::End => return Ok(0),
            }
        }
    }
}
