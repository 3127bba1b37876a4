//! xz: streams of blocks, packed by LZMA2 alone, each checked. The container is read here (the .xz file format 1.2.0);
//! LZMA2 is lzma-rust2's.
//!
//! Refused: other filters (delta, and those for machine code), which images do not have, and dictionaries above 32 MiB.
use std::io::{self, Read};

use lzma_rust2::Lzma2Reader;

use super::crc::{Crc, crc32};
use super::packed::{Input, bad, cut};
use crate::crypto::digest::Sha256;

const MAGIC: [u8; 6] = *b"\xfd7zXZ\0";
const DICTIONARY: u32 = 32 << 20;
const LZMA2: u64 = 0x21;

const CUT: &str = "xz: the file ends in the middle";
const HEAD: &str = "xz: a header is damaged";

pub struct Xz {
    state: State,
    check: Check,
    /// Of the stream: the lengths of its blocks, which its index must repeat.
    lengths: Lengths,
}

enum State {
    /// Before a stream.
    Stream(Counted),
    /// Before a block or the index.
    Block(Counted),
    Within(Box<Block>),
    Ended,
}

/// A block being unpacked.
struct Block {
    packed: Lzma2Reader<Counted>,
    /// As its header says, if it does.
    packed_length: Option<u64>,
    length: Option<u64>,
    head: u64,
    given: u64,
    sum: Sum,
}

struct Counted {
    input: Input,
    count: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Check {
    None,
    Crc32,
    Crc64,
    Sha256,
}

enum Sum {
    None,
    Crc(Crc, usize),
    Sha256(Box<Sha256>),
}

#[derive(Default)]
struct Lengths {
    count: u64,
    digest: Sha256,
}

impl Xz {
    pub fn new(input: Input) -> Self {
        Self {
            state: State::Stream(Counted { input, count: 0 }),
            check: Check::None,
            lengths: Lengths::default(),
        }
    }

    fn stream(&mut self, mut input: Counted) -> io::Result<State> {
        let head: [u8; 12] = array(&mut input)?;
        let Some([zero, check, sum @ ..]) = head.strip_prefix(&MAGIC) else {
            return Err(bad("xz: there are other bytes behind its end"));
        };
        let (zero, check) = (*zero, *check);
        if zero != 0 || sum != crc32(&[0, check]).to_le_bytes() {
            return Err(bad(HEAD));
        }
        self.check = match check {
            0 => Check::None,
            1 => Check::Crc32,
            4 => Check::Crc64,
            10 => Check::Sha256,
            _ => return Err(bad("xz: its check is of an unknown kind")),
        };
        self.lengths = Lengths::default();
        Ok(State::Block(input))
    }

    fn block(&mut self, mut input: Counted) -> io::Result<State> {
        let [size] = array(&mut input)?;
        if size == 0 {
            self.index(&mut input)?;
            // The next stream, behind zeros in fours.
            loop {
                let bytes = input.input.fill_buf()?;
                match bytes.first().copied() {
                    None => return Ok(State::Ended),
                    Some(0) if array::<4>(&mut input)? == [0; 4] => {}
                    Some(0) => return Err(bad("xz: there are other bytes behind its end")),
                    Some(_) => return Ok(State::Stream(input)),
                }
            }
        }
        let size = (usize::from(size) + 1) * 4;
        let mut head = vec![(size / 4 - 1) as u8; size];
        let rest = head.get_mut(1..).unwrap_or_default();
        input.read_exact(rest).map_err(|_| cut(CUT))?;
        let (head, sum) = head.split_at(size - 4);
        if sum != crc32(head).to_le_bytes() {
            return Err(bad(HEAD));
        }
        let mut head = head.get(1..).unwrap_or_default();
        let [flags] = array(&mut head)?;
        if flags & 0x3c != 0 {
            return Err(bad("xz: a block is of an unknown kind"));
        }
        let mut length = |flag| match flags & flag {
            0 => Ok(None),
            _ => number(&mut head).map(Some),
        };
        let (packed_length, length) = (length(0x40)?, length(0x80)?);
        if flags & 3 != 0 || number(&mut head)? != LZMA2 {
            return Err(bad("xz: it is packed with a filter besides LZMA2"));
        }
        let (1, [dictionary]) = (number(&mut head)?, array(&mut head)?) else {
            return Err(bad(HEAD));
        };
        // 2 or 3, shifted; 40 is all of 4 GiB.
        let dictionary = match dictionary {
            0..40 => (2 | u64::from(dictionary & 1)) << (dictionary / 2 + 11),
            40 => u64::from(u32::MAX),
            _ => return Err(bad(HEAD)),
        };
        let Some(dictionary) = u32::try_from(dictionary)
            .ok()
            .filter(|size| *size <= DICTIONARY)
        else {
            return Err(bad(
                "xz: its dictionary is larger than 32 MiB: pack it again, at level 8 at most",
            ));
        };
        if head.iter().any(|byte| *byte != 0) {
            return Err(bad(HEAD));
        }
        input.count = 0;
        Ok(State::Within(Box::new(Block {
            packed: Lzma2Reader::new(input, dictionary, None),
            packed_length,
            length,
            head: size as u64,
            given: 0,
            sum: self.check.begin(),
        })))
    }

    /// At a block's end: all that is known of it must hold.
    fn after(&mut self, block: Block) -> io::Result<State> {
        let mut input = block.packed.into_inner();
        let packed_length = input.count;
        let is = |said: Option<u64>, length| said.is_none_or(|said| said == length);
        if !is(block.packed_length, packed_length) || !is(block.length, block.given) {
            return Err(bad("xz: a block has another length than its header says"));
        }
        input.padding(packed_length)?;
        let (ours, length) = block.sum.finish();
        let ours = ours.get(..length).unwrap_or_default();
        let mut theirs = [0; 32];
        let theirs = theirs.get_mut(..length).unwrap_or_default();
        input.read_exact(theirs).map_err(|_| cut(CUT))?;
        if ours != theirs {
            return Err(bad("xz: a block's checksum is wrong"));
        }
        self.lengths
            .add(block.head + packed_length + length as u64, block.given);
        Ok(State::Block(input))
    }

    /// The index and the stream's end. Its first byte was read.
    fn index(&mut self, input: &mut Counted) -> io::Result<()> {
        let mut sum = Crc::of_32_bits();
        sum.update(&[0]);
        input.count = 1;
        let mut summed = Summed {
            input,
            sum: &mut sum,
        };
        let count = number(&mut summed)?;
        let mut found = Lengths::default();
        if count == self.lengths.count {
            for _ in 0..count {
                found.add(number(&mut summed)?, number(&mut summed)?);
            }
        }
        let ours = std::mem::take(&mut self.lengths);
        if found.count != ours.count || found.digest.finish() != ours.digest.finish() {
            return Err(bad("xz: its index does not fit its blocks"));
        }
        while !summed.input.count.is_multiple_of(4) {
            if array(&mut summed)? != [0] {
                return Err(bad(HEAD));
            }
        }
        let length = input.count;
        let ours = (sum.finish() as u32).to_le_bytes();
        let theirs: [u8; 4] = array(input)?;
        let footer: [u8; 12] = array(input)?;
        // How long the index is, in fours, without one.
        let back = u32::try_from(length / 4).unwrap_or(u32::MAX).to_le_bytes();
        let check = match self.check {
            Check::None => 0,
            Check::Crc32 => 1,
            Check::Crc64 => 4,
            Check::Sha256 => 10,
        };
        let body = [&back[..], &[0, check]].concat();
        let expected = [&crc32(&body).to_le_bytes()[..], &body, b"YZ"].concat();
        match ours == theirs && footer[..] == expected[..] {
            true => Ok(()),
            false => Err(bad("xz: its index or its end is damaged")),
        }
    }
}

impl Read for Xz {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            self.state = match std::mem::replace(&mut self.state, State::Ended) {
                State::Stream(input) => self.stream(input)?,
                State::Block(input) => self.block(input)?,
                State::Within(mut block) => {
                    let read = block
                        .packed
                        .read(into)
                        .map_err(|error| match error.kind() {
                            io::ErrorKind::UnexpectedEof => cut(CUT),
                            _ => bad("xz: the packed bytes are damaged"),
                        })?;
                    if read > 0 {
                        block.sum.update(into.get(..read).unwrap_or_default());
                        block.given += read as u64;
                        self.state = State::Within(block);
                        return Ok(read);
                    }
                    if into.is_empty() {
                        self.state = State::Within(block);
                        return Ok(0);
                    }
                    self.after(*block)?
                }
                State::Ended => return Ok(0),
            }
        }
    }
}

impl Lengths {
    fn add(&mut self, packed: u64, unpacked: u64) {
        self.count += 1;
        self.digest.update(&packed.to_le_bytes());
        self.digest.update(&unpacked.to_le_bytes());
    }
}

impl Check {
    fn begin(self) -> Sum {
        match self {
            Self::None => Sum::None,
            Self::Crc32 => Sum::Crc(Crc::of_32_bits(), 4),
            Self::Crc64 => Sum::Crc(Crc::of_64_bits(), 8),
            Self::Sha256 => Sum::Sha256(Box::default()),
        }
    }
}

impl Sum {
    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::None => {}
            Self::Crc(crc, _) => crc.update(bytes),
            Self::Sha256(digest) => digest.update(bytes),
        }
    }

    /// The sum, and how many bytes of it there are.
    fn finish(self) -> ([u8; 32], usize) {
        match self {
            Self::None => ([0; 32], 0),
            Self::Crc(crc, length) => {
                let mut sum = [0; 32];
                for (to, from) in sum.iter_mut().zip(crc.finish().to_le_bytes()) {
                    *to = from;
                }
                (sum, length)
            }
            Self::Sha256(digest) => (digest.finish(), 32),
        }
    }
}

impl Counted {
    /// Zeros up to the next multiple of four.
    fn padding(&mut self, length: u64) -> io::Result<()> {
        for _ in 0..length.wrapping_neg() % 4 {
            if array(self)? != [0] {
                return Err(bad("xz: a block's padding is damaged"));
            }
        }
        Ok(())
    }
}

impl Read for Counted {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(into)?;
        self.count += read as u64;
        Ok(read)
    }
}

/// What is read through it is summed.
struct Summed<'a> {
    input: &'a mut Counted,
    sum: &'a mut Crc,
}

impl Read for Summed<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(into)?;
        self.sum.update(into.get(..read).unwrap_or_default());
        Ok(read)
    }
}

fn array<const N: usize>(input: &mut dyn Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    input.read_exact(&mut bytes).map_err(|_| cut(CUT))?;
    Ok(bytes)
}

/// A number of seven bits a byte, at most nine bytes.
fn number(input: &mut dyn Read) -> io::Result<u64> {
    let mut number = 0;
    for shift in (0..63).step_by(7) {
        let [byte] = array(input)?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(bad(HEAD))
}
