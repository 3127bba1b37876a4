//! Fixed mutations: the same in every run, on every machine.

/// Numbers that only depend on the seed (xorshift64*).
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound.max(1)
    }
}

/// Bytes that sit at the edges of formats.
const EDGES: &[u8] = b"\0\x01\x7f\x80\xff\"\\{}[],:=/%.-+ \r\n0129aAzZ\xc3\xed";

/// `seed` with one to six changes; some of them bring bytes of `other`.
pub fn mutate(seed: &[u8], other: &[u8], numbers: &mut Numbers) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=numbers.below(6) {
        let at = numbers.below(bytes.len() + 1);
        let to = at + numbers.below(bytes.len() - at + 1);
        match numbers.below(9) {
            0 if numbers.below(3) == 0 => bytes.truncate(at),
            1 => bytes.insert(at, EDGES[numbers.below(EDGES.len())]),
            2 => bytes.insert(at, numbers.below(256) as u8),
            3 => drop(bytes.drain(at..to)),
            4 if to - at < 256 => {
                let copy = bytes[at..to].to_vec();
                bytes.splice(at..at, copy);
            }
            5 => {
                let from = numbers.below(other.len() + 1);
                let length = numbers.below((other.len() - from).min(64) + 1);
                let piece = other[from..from + length].to_vec();
                bytes.splice(at..at, piece);
            }
            6 if at < bytes.len() => bytes[at] = EDGES[numbers.below(EDGES.len())],
            7 if at < bytes.len() => bytes[at] = bytes[at].wrapping_add(1),
            _ if at < bytes.len() => bytes[at] ^= 1 << numbers.below(8),
            _ => {}
        }
    }
    bytes
}
