//! The join as a state machine: what is to be done after each thing that happened. Pure: time,
//! randomness and the outcome of calls come in, the next step comes out.
use std::time::Duration;

use crate::rt::backoff::Backoff;

/// Waits after failures: docs/protocol.md 5.4.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));

/// What a deferral may ask for.
const DEFERRAL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// Where a join stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// A call is under way.
    Calling(Try),
    /// Waiting before the next call.
    Waiting(Try),
    /// Nothing more will be done.
    Over,
}

/// What a call is the next try of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Try {
    /// Calls in a row that failed.
    failures: u32,
    /// Since when the gateway has given no answer (on the caller's monotonic clock).
    silent_since: Duration,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A signed answer came.
    Answered,
    /// "Not decided yet", and when to ask again.
    Deferred { after_ms: u32 },
    /// The call failed in a way that may pass.
    Failed,
    /// The call failed in a way that will not pass.
    Refused,
    /// The wait is over.
    Waited,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Call, with the same request as before.
    Call,
    /// Wait this long.
    Wait(Duration),
    /// Check the answer.
    Check,
    /// Fail with what the last call failed with.
    Fail,
    /// Fail the same way; it was tried for as long as was allowed.
    GiveUp,
}

impl State {
    /// A join that begins at `now`; its first step is [`Step::Call`].
    pub fn start(now: Duration) -> (Self, Step) {
        (
            Self::Calling(Try {
                failures: 0,
                silent_since: now,
            }),
            Step::Call,
        )
    }

    /// The state and the step after `event` at `now`. The gateway may be out of reach for
    /// `patience`; a deferral is an answer, and waited for without end. `draw` is a random number.
    pub fn next(self, event: Event, now: Duration, patience: Duration, draw: u64) -> (Self, Step) {
        match (self, event) {
            (Self::Calling(_), Event::Answered) => (Self::Over, Step::Check),
            (Self::Calling(_), Event::Refused) => (Self::Over, Step::Fail),
            (Self::Calling(_), Event::Deferred { after_ms }) => {
                let (least, most) = DEFERRAL;
                let wait = Duration::from_millis(u64::from(after_ms)).clamp(least, most);
                let call = Try {
                    failures: 0,
                    silent_since: now.saturating_add(wait),
                };
                (Self::Waiting(call), Step::Wait(wait))
            }
            (Self::Calling(call), Event::Failed) => {
                let left = patience.saturating_sub(now.saturating_sub(call.silent_since));
                if left.is_zero() {
                    return (Self::Over, Step::GiveUp);
                }
                let wait = BACKOFF.wait(call.failures, draw).min(left);
                let call = Try {
                    failures: call.failures.saturating_add(1),
                    ..call
                };
                (Self::Waiting(call), Step::Wait(wait))
            }
            (Self::Waiting(call), Event::Waited) => (Self::Calling(call), Step::Call),
            // Nothing else can happen; ending is the answer that does no harm.
            (Self::Calling(_), Event::Waited) | (Self::Waiting(_) | Self::Over, _) => {
                (Self::Over, Step::Fail)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(300);

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn calling(failures: u32, silent_since: u64) -> State {
        State::Calling(Try {
            failures,
            silent_since: secs(silent_since),
        })
    }

    fn waiting(failures: u32, silent_since: u64) -> State {
        State::Waiting(Try {
            failures,
            silent_since: secs(silent_since),
        })
    }

    #[test]
    fn every_state_and_event_has_its_step() {
        use Event::*;
        let ms = Duration::from_millis;
        let deferred = |after_ms| Deferred { after_ms };
        #[rustfmt::skip]
        let table = [
            // state, event, now -> state, step (all with a draw of 0)
            (calling(0, 10), Answered, 11, State::Over, Step::Check),
            (calling(0, 10), Refused, 11, State::Over, Step::Fail),
            (calling(5, 10), deferred(0), 11, waiting(0, 12), Step::Wait(secs(1))),
            (calling(5, 10), deferred(20_000), 11, waiting(0, 31), Step::Wait(secs(20))),
            (calling(0, 10), Failed, 11, waiting(1, 10), Step::Wait(ms(500))),
            (calling(9, 10), Failed, 310, State::Over, Step::GiveUp),
            (waiting(4, 10), Waited, 20, calling(4, 10), Step::Call),
            (calling(0, 10), Waited, 20, State::Over, Step::Fail),
            (waiting(0, 10), Answered, 20, State::Over, Step::Fail),
            (waiting(0, 10), Failed, 20, State::Over, Step::Fail),
            (State::Over, Waited, 20, State::Over, Step::Fail),
            (State::Over, Answered, 20, State::Over, Step::Fail),
        ];
        for (number, (state, event, now, next, step)) in table.into_iter().enumerate() {
            assert_eq!(
                state.next(event, secs(now), PATIENCE, 0),
                (next, step),
                "row {number}"
            );
        }
    }

    #[test]
    fn a_gateway_out_of_reach_is_tried_until_the_patience_ends_and_not_longer() {
        for draw in [0, 1, 0xDEAD_BEEF_0BAD_CAFE, u64::MAX] {
            let mut now = secs(1000);
            let (mut state, mut step) = State::start(now);
            let mut calls = 0;
            loop {
                let event = match step {
                    Step::Call => {
                        calls += 1;
                        Event::Failed
                    }
                    Step::Wait(wait) => {
                        now += wait;
                        Event::Waited
                    }
                    Step::GiveUp => break,
                    other => panic!("{other:?}"),
                };
                (state, step) = state.next(event, now, PATIENCE, draw);
            }
            assert_eq!(now, secs(1300), "the last call is made when the time is up");
            assert!(calls > 10);
        }
    }

    #[test]
    fn a_deferral_restarts_the_patience() {
        let (mut state, _) = State::start(secs(0));
        for round in 0..100 {
            let now = secs(round * 400);
            (state, _) = state.next(Event::Deferred { after_ms: 300_000 }, now, PATIENCE, 0);
            let (calling, step) = state.next(Event::Waited, now + secs(300), PATIENCE, 0);
            assert_eq!(step, Step::Call);
            state = calling;
        }
    }
}
