//! Zstandard (RFC 8878): one frame or several, through the reference decoder.
use std::io::{self, Read};

use zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer, get_error_name};

use super::packed::{Input, bad, cut};

/// Windows up to 32 MiB: what `zstd -20` takes, and `--long=25`. Larger ones would take the memory that everything else
/// has together.
const WINDOW_LOG: u32 = 25;

pub struct Zstd {
    input: Input,
    decoder: DCtx<'static>,
    /// In the middle of a frame.
    within: bool,
}

impl Zstd {
    /// # Errors
    /// There is no memory.
    pub fn new(input: Input) -> io::Result<Self> {
        let mut decoder = DCtx::try_create().ok_or(io::ErrorKind::OutOfMemory)?;
        decoder
            .set_parameter(DParameter::WindowLogMax(WINDOW_LOG))
            .map_err(damaged)?;
        Ok(Self {
            input,
            decoder,
            within: false,
        })
    }
}

impl Read for Zstd {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        loop {
            let bytes = self.input.fill_buf()?;
            let ended = bytes.is_empty();
            if ended && !self.within {
                return Ok(0);
            }
            let mut packed = InBuffer::around(bytes);
            let mut out = OutBuffer::around(&mut *into);
            let left = self
                .decoder
                .decompress_stream(&mut out, &mut packed)
                .map_err(damaged)?;
            let (consumed, written) = (packed.pos(), out.pos());
            self.input.consume(consumed);
            self.within = left != 0;
            if written > 0 {
                return Ok(written);
            }
            if ended {
                return Err(cut("zstd: the file ends in the middle"));
            }
        }
    }
}

fn damaged(code: usize) -> io::Error {
    match get_error_name(code) {
        "Frame requires too much memory for decoding" => bad(
            "zstd: its window is larger than 32 MiB: pack it again, at level 20 at most and without a --long above 25",
        ),
        "Unknown frame descriptor" => bad("zstd: there are other bytes behind its end"),
        // The decoder's own words, all of them fixed.
        name => bad(name),
    }
}
