//! What a download brings, as one stream, and what it is.
use std::io::{self, BufRead, Cursor, Read};

use crate::rt::channel::{Receiver, Sender};

/// Bytes that tell what something is.
const MAGIC: usize = 512;

/// Packed bytes on their way to a decoder.
pub type Input = Box<dyn BufRead + Send>;

/// Unpacked bytes.
pub type Output = Box<dyn Read + Send>;

/// The pieces of a download. It ends where they end: whether that is the image's end is the download's to say.
pub struct Pieces {
    pieces: Receiver<Vec<u8>>,
    used: Sender<Vec<u8>>,
    piece: Vec<u8>,
    at: usize,
}

impl Pieces {
    /// What was read of `pieces` goes to `used`.
    pub fn new(pieces: Receiver<Vec<u8>>, used: Sender<Vec<u8>>) -> Self {
        Self {
            pieces,
            used,
            piece: Vec::new(),
            at: 0,
        }
    }
}

impl BufRead for Pieces {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.at >= self.piece.len() {
            self.at = 0;
            let Some(next) = self.pieces.recv_blocking() else {
                self.piece.clear();
                break;
            };
            let _ = self.used.try_send(std::mem::replace(&mut self.piece, next));
        }
        Ok(self.piece.get(self.at..).unwrap_or_default())
    }

    fn consume(&mut self, bytes: usize) {
        self.at += bytes;
    }
}

impl Read for Pieces {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(into)?;
        self.consume(read);
        Ok(read)
    }
}

/// How bytes are packed, by how they begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Raw,
    Gzip,
    Xz,
    Zstd,
    Qcow2,
    /// One that is known, and not unpacked here.
    Other(&'static str),
}

impl Format {
    fn of(head: &[u8]) -> Self {
        let has = |at: usize, magic: &[u8]| head.get(at..).is_some_and(|at| at.starts_with(magic));
        const OTHERS: [(usize, &[u8], &str); 11] = [
            (0, b"BZh", "bzip2"),
            (0, b"\x04\x22\x4d\x18", "LZ4"),
            (0, b"PK\x03\x04", "a ZIP archive"),
            (0, b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive"),
            (257, b"ustar", "a tar archive"),
            (0, b"KDMV", "VMDK"),
            (0, b"# Disk DescriptorFile", "VMDK"),
            (0, b"vhdxfile", "VHDX"),
            (0, b"conectix", "VHD"),
            (0, b"<", "a page of text"),
            (0, b"{", "a page of text"),
        ];
        // Zstandard may begin with a frame to be skipped, of any of 16 kinds.
        let skippable = matches!(head, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..]);
        if has(0, b"\x1f\x8b") {
            Self::Gzip
        } else if has(0, b"\xfd7zXZ\0") {
            Self::Xz
        } else if has(0, b"\x28\xb5\x2f\xfd") || skippable {
            Self::Zstd
        } else if has(0, b"QFI\xfb") {
            Self::Qcow2
        } else {
            OTHERS
                .into_iter()
                .find(|(at, magic, _)| has(*at, magic))
                .map_or(Self::Raw, |(_, _, name)| Self::Other(name))
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Gzip => "gzip",
            Self::Xz => "xz",
            Self::Zstd => "zstd",
            Self::Qcow2 => "qcow2",
            Self::Other(name) => name,
        }
    }
}

/// Looks at how `input` begins, and gives it back whole.
///
/// # Errors
/// Those of reading.
pub fn detect(mut input: Output) -> io::Result<(Format, Input)> {
    let mut head = Vec::with_capacity(MAGIC);
    input.by_ref().take(MAGIC as u64).read_to_end(&mut head)?;
    let format = Format::of(&head);
    // A reader of its own for what follows: decoders take their bytes piece by piece.
    let input = Cursor::new(head).chain(io::BufReader::with_capacity(64 * 1024, input));
    Ok((format, Box::new(input)))
}

/// Bytes that are not what their format demands.
pub fn bad(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// That a stream ended in the middle.
pub fn cut(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, what)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::rt::channel::channel;

    #[test]
    fn pieces_are_one_stream_and_lose_nothing_to_the_look_at_their_beginning() {
        let (sender, receiver) = channel(16);
        for piece in [&b"QF"[..], b"", b"I", b"\xfb", &[7; 5000], b"end"] {
            sender.try_send(piece.to_vec()).unwrap();
        }
        drop(sender);
        let (format, mut input) = detect(Box::new(Pieces::new(receiver, channel(1).0))).unwrap();
        assert_eq!(format, Format::Qcow2);
        let mut all = Vec::new();
        input.read_to_end(&mut all).unwrap();
        assert_eq!(all, [b"QFI\xfb", &[7; 5000][..], b"end"].concat());
    }

    #[test]
    fn what_is_no_image_for_us_is_told_by_its_name() {
        for (head, format) in [
            (&b"\x1f\x8b\x08"[..], Format::Gzip),
            (b"\x50\x2a\x4d\x18", Format::Zstd),
            (b"<!doctype html>", Format::Other("a page of text")),
            (b"BZh9", Format::Other("bzip2")),
            (b"\xeb\x63\x90", Format::Raw),
            (b"", Format::Raw),
        ] {
            assert_eq!(Format::of(head), format);
        }
        let mut tar = [0; 512];
        tar[257..262].copy_from_slice(b"ustar");
        assert_eq!(Format::of(&tar), Format::Other("a tar archive"));
    }
}
