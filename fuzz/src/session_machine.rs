//! The session's state machine under any events, at any times, with any randomness: there is always a next moment,
//! waits and heartbeats keep their bounds, no session is dialled twice at once, and what has ended stays so.
use std::time::Duration;

use bcd::session::machine::{Action, Dial, Event, State, Trouble, interval};

pub const HEAP: super::Heap = super::Heap {
    base: 4 << 10,
    per_byte: 0,
};

/// The longest of all waits: a refused node's, a drain's, an interval.
const LONGEST: Duration = Duration::from_secs(600);

/// Steps of twelve bytes: an event, its two numbers, the time that passes before it, and the draw.
pub fn run(data: &[u8]) {
    let mut now = Duration::from_secs(1);
    let mut state = State::start(now);
    let (mut dialling, mut up, mut beat) = (false, false, 0);
    for step in data.as_chunks::<12>().0 {
        let [what, time, a, b, c, d, draw @ ..] = *step;
        let number = u32::from_be_bytes([a, b, c, d]);
        let draw = u64::from_be_bytes([draw, [0xff; 6]].concat()[..8].try_into().expect("eight"))
            .rotate_left(draw[0].into());
        let due = state.deadline();
        now = match (time & 128, due) {
            (0, _) => now.saturating_add(Duration::from_millis(1 << (time & 31))),
            (_, Some(due)) => now.max(due),
            (_, None) => now,
        };
        // What can happen depends on what is under way.
        let event = match what % 10 {
            0 | 1 => Event::Due,
            2 if dialling => Event::Welcomed {
                interval_ms: number,
                spread_ms: number.rotate_left(16),
            },
            3 if dialling => Event::NotWelcomed(trouble(number)),
            4 if up => Event::Heard,
            5 if up => Event::Drained { after_ms: number },
            6 if up => Event::Leaving,
            7 if !dialling => Event::Changed,
            8 if up => Event::Ended(trouble(number)),
            9 if what > 250 => Event::Stop,
            _ => Event::Due,
        };
        let (next, action) = state.next(event, now, draw);
        match action {
            Action::Dial => {
                assert!(!dialling, "a second try while one is under way: {state:?}");
                dialling = true;
            }
            Action::Adopt(sequence) => {
                assert!(matches!(event, Event::Welcomed { .. }) && sequence == 1);
                (up, beat) = (true, sequence);
            }
            Action::Beat(sequence) => {
                assert!(up && sequence == beat + 1, "{sequence} after {beat}");
                beat = sequence;
            }
            Action::DropSilent => {
                assert!(up);
                up = false;
            }
            Action::Pause(wait) => {
                up = false;
                assert!(wait <= LONGEST, "{wait:?} after {event:?}");
            }
            Action::Finish => {
                assert!(matches!(next, State::Over));
                return;
            }
            Action::Rest => {}
        }
        if let Event::Welcomed { .. } | Event::NotWelcomed(_) = event {
            dialling = false;
        }
        state = next;
        let trying = match state {
            State::Down(dial) | State::Moving(_, dial) => matches!(dial, Dial::Trying { .. }),
            State::Up(_) | State::Over => false,
        };
        assert_eq!(trying, dialling, "{state:?}");
        assert_eq!(
            up,
            matches!(state, State::Up(_) | State::Moving(..)),
            "{state:?}"
        );
        match state.deadline() {
            Some(at) => assert!(at <= now.saturating_add(LONGEST), "{state:?} at {now:?}"),
            None => assert!(dialling && !up, "nothing would ever happen: {state:?}"),
        }
        assert!((Duration::from_secs(1)..=LONGEST).contains(&interval(number)));
    }
}

fn trouble(number: u32) -> Trouble {
    match number & 1 {
        0 => Trouble::Passing,
        _ => Trouble::Refused,
    }
}
