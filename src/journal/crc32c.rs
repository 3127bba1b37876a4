//! CRC-32C (Castagnoli), as RFC 3720 (iSCSI) has it: eight table look-ups for eight bytes.

/// The polynomial, its bits reflected.
const POLYNOMIAL: u32 = 0x82f6_3b78;

static TABLES: [[u32; 256]; 8] = tables();

/// The CRC of bytes that come in pieces.
#[derive(Clone, Copy)]
pub struct Crc32c(u32);

impl Crc32c {
    /// Of no bytes.
    pub const fn new() -> Self {
        Self(!0)
    }

    /// Of the bytes so far, then `bytes`.
    #[must_use]
    // A byte cannot index past 256 entries.
    #[allow(clippy::indexing_slicing)]
    pub fn then(self, bytes: &[u8]) -> Self {
        let mut crc = self.0;
        let mut eights = bytes.chunks_exact(8);
        for eight in &mut eights {
            let &[a, b, c, d, e, f, g, h] = eight else {
                continue;
            };
            let low = crc ^ u32::from_le_bytes([a, b, c, d]);
            let [a, b, c, d] = low.to_le_bytes();
            crc = TABLES[7][usize::from(a)]
                ^ TABLES[6][usize::from(b)]
                ^ TABLES[5][usize::from(c)]
                ^ TABLES[4][usize::from(d)]
                ^ TABLES[3][usize::from(e)]
                ^ TABLES[2][usize::from(f)]
                ^ TABLES[1][usize::from(g)]
                ^ TABLES[0][usize::from(h)];
        }
        for byte in eights.remainder() {
            crc = TABLES[0][usize::from(crc.to_le_bytes()[0] ^ byte)] ^ (crc >> 8);
        }
        Self(crc)
    }

    pub const fn value(self) -> u32 {
        !self.0
    }
}

#[allow(clippy::indexing_slicing)] // At compile time.
const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc >> 1) ^ if crc & 1 == 1 { POLYNOMIAL } else { 0 };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut table = 1;
    while table < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[table - 1][byte];
            tables[table][byte] = tables[0][(before & 0xff) as usize] ^ (before >> 8);
            byte += 1;
        }
        table += 1;
    }
    tables
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crc(bytes: &[u8]) -> u32 {
        Crc32c::new().then(bytes).value()
    }

    /// RFC 3720, B.4, whose bytes are the CRC's, lowest first.
    #[test]
    fn it_is_the_crc_of_the_rfcs_examples() {
        let ascending: Vec<u8> = (0..32).collect();
        let descending: Vec<u8> = (0..32).rev().collect();
        let read_command = [
            0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x14, 0, 0, 0, 0, 0, 0x04, 0, 0,
            0, 0, 0x14, 0, 0, 0, 0x18, 0x28, 0, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0, 0, 0, 0,
        ];
        for (bytes, value) in [
            (&[0; 32][..], [0xaa, 0x36, 0x91, 0x8a]),
            (&[0xff; 32], [0x43, 0xab, 0xa8, 0x62]),
            (&ascending, [0x4e, 0x79, 0xdd, 0x46]),
            (&descending, [0x5c, 0xdb, 0x3f, 0x11]),
            (&read_command, [0x56, 0x3a, 0x96, 0xd9]),
        ] {
            assert_eq!(crc(bytes), u32::from_le_bytes(value));
        }
        assert_eq!(crc(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn it_does_not_matter_how_the_bytes_are_cut() {
        let bytes: Vec<u8> = (0..100_u8).map(|n| n.wrapping_mul(37)).collect();
        for cut in 0..=bytes.len() {
            let (head, tail) = bytes.split_at(cut);
            let value = Crc32c::new().then(head).then(tail).value();
            assert_eq!(value, crc(&bytes), "cut at {cut}");
        }
    }
}
