//! One question for the time (SNTP: RFC 4330, RFC 5905), as bytes. An answer counts only if it repeats what the
//! question held, comes from a server that says it is set itself, and is no time before this program was built.
use std::time::Duration;

/// Both ways, without extensions.
pub const LENGTH: usize = 48;
/// From 1900, where the protocol's time begins, to 1970.
const EPOCH: u64 = 2_208_988_800;
/// The protocol's seconds start again after so many.
const ERA: u64 = 1 << 32;
/// A time further than this past the build is none to believe.
const FUTURE: u64 = 20 * 365 * 86_400;

/// The question. `cookie` is random: what a server cannot know, it cannot have answered.
pub fn request(cookie: [u8; 8]) -> [u8; LENGTH] {
    let mut message = [0; LENGTH];
    let (head, sent) = message.split_at_mut(LENGTH - 8);
    // No warning, version 4, a client.
    if let Some(first) = head.first_mut() {
        *first = 0x23;
    }
    sent.copy_from_slice(&cookie);
    message
}

/// The time since 1970 at which the server sent its answer; `floor` is when this program was built, in seconds since
/// then. `None` for what is no answer to the question, or says nothing that can be believed.
pub fn answered(message: &[u8], cookie: [u8; 8], floor: u64) -> Option<Duration> {
    let [first, stratum] = *message.first_chunk()?;
    let (leap, version, mode) = (first >> 6, first >> 3 & 7, first & 7);
    let known = leap != 3 && (3..=4).contains(&version) && mode == 4 && (1..=15).contains(&stratum);
    if !known || message.get(24..32)? != cookie {
        return None;
    }
    let part = |at: usize| -> Option<u64> {
        let four: [u8; 4] = message.get(at..at + 4)?.try_into().ok()?;
        Some(u32::from_be_bytes(four).into())
    };
    let (seconds, fraction) = (part(40)?, part(44)?);
    if (seconds, fraction) == (0, 0) {
        return None;
    }
    // In which era it is: the first in which it is not before the floor.
    let past = (seconds + ERA - (floor + EPOCH) % ERA) % ERA;
    let nanoseconds = u32::try_from((fraction * 1_000_000_000) >> 32).ok()?;
    (past <= FUTURE).then(|| Duration::new(floor + past, nanoseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    const COOKIE: [u8; 8] = *b"a cookie";
    const FLOOR: u64 = 1_790_000_000;

    fn answer(unix: u64) -> Vec<u8> {
        let mut message = vec![0x24, 2, 6, 0xec];
        message.resize(24, 0);
        message.extend_from_slice(&COOKIE);
        message.resize(40, 0);
        let seconds = u32::try_from((unix + EPOCH) % ERA).unwrap();
        message.extend_from_slice(&seconds.to_be_bytes());
        message.extend_from_slice(&0x8000_0000_u32.to_be_bytes());
        message
    }

    #[test]
    fn the_time_is_read_with_its_fraction_in_this_era_and_in_the_next() {
        // The second is after February 2036, when the protocol's seconds begin anew.
        for unix in [FLOOR, 1_800_000_000, 2_100_000_000] {
            let expected = Duration::new(unix, 500_000_000);
            assert_eq!(answered(&answer(unix), COOKIE, FLOOR), Some(expected));
        }
    }

    #[test]
    fn a_time_before_the_build_or_decades_after_it_is_not_believed() {
        for unix in [0, FLOOR - 1, FLOOR + 21 * 365 * 86_400] {
            assert_eq!(answered(&answer(unix), COOKIE, FLOOR), None, "{unix}");
        }
    }

    #[test]
    fn what_is_no_answer_of_a_set_server_to_this_question_is_none() {
        let good = answer(FLOOR + 5);
        assert!(answered(&good, COOKIE, FLOOR).is_some());
        assert_eq!(answered(&good, *b"another!", FLOOR), None);
        // A client's, a broadcast's, one of a server that is not set, of version 1, of stratum 0 and 16.
        for (at, byte) in [(0, 0x23), (0, 0x25), (0, 0xe4), (0, 0x0c), (1, 0), (1, 16)] {
            let mut odd = good.clone();
            odd[at] = byte;
            assert_eq!(answered(&odd, COOKIE, FLOOR), None, "{at} {byte:#x}");
        }
        let mut unset = good.clone();
        unset[40..].fill(0);
        assert_eq!(answered(&unset, COOKIE, FLOOR), None);
        for length in 0..good.len() {
            assert_eq!(answered(&good[..length], COOKIE, FLOOR), None, "{length}");
        }
    }

    #[test]
    fn the_question_holds_the_cookie_where_the_answer_repeats_it_from() {
        let question = request(COOKIE);
        assert_eq!(question[0], 0x23);
        assert_eq!(question[40..], COOKIE);
    }
}
