//! SHA-256 (FIPS 180-4), of bytes at hand or as they stream by, and comparing without telling
//! by the time taken where two values differ.
use std::io::{self, Write};

use ring::digest::{Context, SHA256, digest};

/// The digest of `bytes`.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    array(digest(&SHA256, bytes).as_ref())
}

/// A digest that takes its bytes piece by piece; as a [`Write`] it never fails.
#[derive(Clone)]
pub struct Sha256(Context);

impl Sha256 {
    pub fn new() -> Self {
        Self(Context::new(&SHA256))
    }

    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all bytes so far.
    pub fn finish(self) -> [u8; 32] {
        array(self.0.finish().as_ref())
    }
}

impl Default for Sha256 {
    fn default() -> Self {
        Self::new()
    }
}

impl Write for Sha256 {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether two byte strings are equal, in time that depends on their lengths alone.
pub fn equal(a: &[u8], b: &[u8]) -> bool {
    let mut difference = 0_u8;
    for (x, y) in a.iter().zip(b) {
        difference |= x ^ y;
    }
    a.len() == b.len() && std::hint::black_box(difference) == 0
}

/// Lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| {
        char::from(if nibble < 10 {
            b'0' + nibble
        } else {
            b'a' + nibble - 10
        })
    };
    bytes
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)])
        .collect()
}

fn array(digest: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    // Both are 32 bytes long: ring's SHA-256 has no other output.
    out.iter_mut()
        .zip(digest)
        .for_each(|(to, from)| *to = *from);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standards_vectors_hold() {
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hex(&sha256(b"abc")), abc);
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(hex(&sha256(b"")), empty);
    }

    #[test]
    fn pieces_give_the_digest_of_the_whole() {
        let bytes: Vec<u8> = (0..1000).map(|i| i as u8).collect();
        for size in [1, 63, 64, 65, 999] {
            let mut digest = Sha256::new();
            for piece in bytes.chunks(size) {
                digest.write_all(piece).unwrap();
            }
            assert_eq!(digest.finish(), sha256(&bytes));
        }
    }

    #[test]
    fn equality_is_that_of_the_bytes() {
        assert!(equal(b"", b"") && equal(b"token", b"token"));
        for (a, b) in [
            ("token", "tokem"),
            ("token", "toke"),
            ("", "t"),
            ("Aoken", "token"),
        ] {
            assert!(!equal(a.as_bytes(), b.as_bytes()));
        }
    }
}
