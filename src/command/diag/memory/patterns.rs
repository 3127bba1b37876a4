//! What is written to memory, and whether it is read back.
use super::DESCRIBED;
use crate::sys::memory::flush;

/// What is written to a word: of the word's address and number, and of the pass.
pub(super) type Pattern = (&'static str, fn(u64, u64, u64) -> u64);

pub(super) const PATTERNS: [Pattern; 6] = [
    ("address", |address, _, _| address),
    ("inverted address", |address, _, _| !address),
    ("walking one", |_, number, pass| {
        1 << (number.wrapping_add(pass) & 63)
    }),
    ("walking zero", |_, number, pass| {
        !(1 << (number.wrapping_add(pass) & 63))
    }),
    ("random", |_, number, pass| mixed(number ^ pass << 56)),
    ("inverted random", |_, number, pass| {
        !mixed(number ^ pass << 56)
    }),
];

/// splitmix64's output function: numbers that look like chance and need no memory.
pub(super) fn mixed(number: u64) -> u64 {
    let z = number
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Writes a pattern to words, of which the first has this number and address.
pub(super) fn fill(words: &mut [u64], first: u64, address: u64, pattern: Pattern, pass: u64) {
    for (word, n) in words.iter_mut().zip(0..) {
        *word = (pattern.1)(address.wrapping_add(n * 8), first.wrapping_add(n), pass);
    }
    flush(words);
}

/// A word that did not hold what was written to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bad {
    pub(super) address: u64,
    pub(super) wrote: u64,
    pub(super) read: u64,
    /// When it was read once more.
    pub(super) again: u64,
    pub(super) pattern: &'static str,
}

/// What the test met.
#[derive(Debug, Default)]
pub(super) struct Met {
    pub(super) bad: u64,
    /// Bits that were wrong in any word.
    pub(super) bits: u64,
    pub(super) first: Vec<Bad>,
}

/// Reads a pattern back.
pub(super) fn check(
    words: &mut [u64],
    first: u64,
    address: u64,
    pattern: Pattern,
    pass: u64,
    met: &mut Met,
) {
    // What is read next has to come from the memory.
    flush(words);
    let mut wrong = Vec::new();
    for (word, n) in words.iter().zip(0..) {
        let wrote = (pattern.1)(address.wrapping_add(n * 8), first.wrapping_add(n), pass);
        if *word != wrote {
            met.bad += 1;
            met.bits |= *word ^ wrote;
            if met.first.len() + wrong.len() < DESCRIBED {
                wrong.push((n, wrote, *word));
            }
        }
    }
    if wrong.is_empty() {
        return;
    }
    flush(words);
    for (n, wrote, read) in wrong {
        let again = usize::try_from(n).ok().and_then(|n| words.get(n));
        met.first.push(Bad {
            address: address.wrapping_add(n * 8),
            wrote,
            read,
            again: again.copied().unwrap_or(read),
            pattern: pattern.0,
        });
    }
}
