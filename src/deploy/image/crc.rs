//! The two checksums that images carry: CRC-32 (gzip, xz, partition tables) and CRC-64 (xz). Both are of the reflected
//! kind: bits go in lowest first, and the register begins and ends inverted.

use std::sync::LazyLock;

/// Of IEEE 802.3.
static TABLES_32: LazyLock<Tables> = LazyLock::new(|| tables(0xedb8_8320));
/// Of ECMA-182.
static TABLES_64: LazyLock<Tables> = LazyLock::new(|| tables(0xc96c_5795_d787_0f42));

/// Eight, of which `[n][b]` is what byte `b` has made of the register after `n` bytes more. Made when they are needed:
/// they would be a hundredth of the program.
type Tables = Vec<[u64; 256]>;

fn tables(polynomial: u64) -> Tables {
    let mut tables: Tables = Vec::with_capacity(8);
    let mut registers: [u64; 256] = std::array::from_fn(|byte| byte as u64);
    for _ in 0..8 {
        for register in &mut registers {
            for _ in 0..8 {
                *register = (*register >> 1) ^ (polynomial * (*register & 1));
            }
        }
        tables.push(registers);
    }
    tables
}

/// A checksum that takes its bytes piece by piece.
pub struct Crc {
    tables: &'static [[u64; 256]],
    inverted: u64,
    register: u64,
}

impl Crc {
    pub fn of_32_bits() -> Self {
        Self {
            tables: &TABLES_32,
            inverted: u32::MAX.into(),
            register: u32::MAX.into(),
        }
    }

    pub fn of_64_bits() -> Self {
        Self {
            tables: &TABLES_64,
            inverted: u64::MAX,
            register: u64::MAX,
        }
    }

    pub fn update(&mut self, bytes: &[u8]) {
        let (eights, rest) = bytes.as_chunks::<8>();
        let mut register = self.register;
        for eight in eights {
            // The register is no longer than the eight bytes it goes into.
            let mixed = (register ^ u64::from_le_bytes(*eight)).to_le_bytes();
            register = 0;
            for (table, byte) in self.tables.iter().rev().zip(mixed) {
                register ^= entry(table, byte);
            }
        }
        if let Some(first) = self.tables.first() {
            for byte in rest {
                let [low, ..] = register.to_le_bytes();
                register = (register >> 8) ^ entry(first, low ^ byte);
            }
        }
        self.register = register;
    }

    pub fn finish(&self) -> u64 {
        self.register ^ self.inverted
    }
}

fn entry(table: &[u64; 256], byte: u8) -> u64 {
    table.get(usize::from(byte)).copied().unwrap_or_default()
}

/// CRC-32 of `bytes`.
pub fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = Crc::of_32_bits();
    crc.update(bytes);
    crc.finish() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check values of the catalogue of CRC algorithms (CRC-32/ISO-HDLC, CRC-64/XZ).
    #[test]
    fn both_give_their_published_check_values_in_any_pieces() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        for split in 0..9 {
            let (a, b) = b"123456789".split_at(split);
            let mut crc = Crc::of_64_bits();
            crc.update(a);
            crc.update(b);
            assert_eq!(crc.finish(), 0x995d_c9bb_df19_39fa);
        }
        let mut whole = Crc::of_32_bits();
        whole.update(&[0xa5; 1000]);
        let mut bytes = Crc::of_32_bits();
        (0..1000).for_each(|_| bytes.update(&[0xa5]));
        assert_eq!(whole.finish(), bytes.finish());
    }
}
