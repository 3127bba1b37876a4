//! The session as a state machine: what is to be done after each thing that happened. Pure: time,
//! randomness and what peers said come in, the next action comes out.
//!
//! A drained session lives on until its successor is welcomed, so that no frame is lost between.
use std::time::Duration;

use crate::rt::backoff::{Backoff, share};

/// Waits before dialling again: docs/protocol.md 6.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(60));

/// What a session that was lost counts as, so that a second failure waits no shorter than the
/// default spread.
const LOST: u32 = 4;

/// The shortest wait after a session that was lost. A gateway that dies loses all its nodes at
/// once: they must not all come in the same second.
const LOST_AT_LEAST: Duration = Duration::from_millis(500);

/// A session that is asked to move before it is this old counts as lost: a gateway that asks each one so
/// must not have its nodes come in a circle.
const SETTLED: Duration = Duration::from_secs(60);

/// Over how long they come back: what a `Welcome` may ask for, and what 0 means.
const SPREAD: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(600));
const DEFAULT_SPREAD: Duration = Duration::from_secs(8);

/// The longest wait that a `Drain` may ask for: the session may be gone before it is over.
const DRAIN: Duration = Duration::from_secs(600);

/// After a refusal: pins, certificates and deleted nodes do not heal by asking.
const REFUSED: (Duration, Duration) = (Duration::from_secs(300), Duration::from_secs(600));

/// What a `Welcome` may ask for, and what 0 means.
const INTERVAL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(600));
const DEFAULT_INTERVAL: Duration = Duration::from_secs(45);

/// How the session stands. Times are the caller's monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// There is none.
    Down(Dial),
    /// There is one.
    Up(Beats),
    /// There is one, whose gateway is going away, and its successor is on the way.
    Moving(Beats, Dial),
    /// The daemon is ending.
    Over,
}

/// The way to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dial {
    /// Waiting before the next try.
    Waiting { failures: u32, until: Duration },
    /// A try is under way: connecting, `Hello`, `Welcome`.
    Trying { failures: u32 },
}

/// The heartbeats of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beats {
    interval: Duration,
    /// Over how long the nodes of this gateway come back when it is gone.
    spread: Duration,
    /// When the session was welcomed.
    began: Duration,
    /// When the next one goes out.
    next: Duration,
    /// When the gateway was last heard.
    heard: Duration,
    /// Of the last one sent.
    sequence: u64,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The try led to a `Welcome`.
    Welcomed { interval_ms: u32, spread_ms: u32 },
    /// The try failed.
    NotWelcomed(Trouble),
    /// The gateway sent a frame.
    Heard,
    /// The gateway is going away, and says when to move.
    Drained { after_ms: u32 },
    /// The gateway is going away, and says no more: HTTP/2's GOAWAY.
    Leaving,
    /// What this node shows to its gateway, or asks of it, has changed: a session opened before is
    /// of an earlier certificate.
    Changed,
    /// The session ended.
    Ended(Trouble),
    /// The state's deadline came.
    Due,
    /// The daemon shall end.
    Stop,
}

/// How a try or a session failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// It may pass: the network, the gateway.
    Passing,
    /// It will not pass by itself: somebody said no.
    Refused,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Nothing but wait for the next event.
    Rest,
    /// Try to open a session.
    Dial,
    /// Send this heartbeat over the session there is.
    Beat(u64),
    /// The try's session is the one from now on (the old one, if any, is to be ended): send this
    /// heartbeat over it.
    Adopt(u64),
    /// Drop the session: the gateway has been silent for too long.
    DropSilent,
    /// Drop what is left of the session. It will be tried again after this wait.
    Pause(Duration),
    /// End the session, if there is one, and the daemon.
    Finish,
}

impl State {
    /// A daemon that starts. `Due` at once. `draw` is a random number.
    pub fn start(now: Duration) -> Self {
        Self::Down(Dial::Waiting {
            failures: 0,
            until: now,
        })
    }

    /// When [`Event::Due`] is due, unless something else happens first.
    pub fn deadline(&self) -> Option<Duration> {
        match self {
            Self::Down(dial) => dial.deadline(),
            Self::Up(beats) => Some(beats.deadline()),
            Self::Moving(beats, dial) => Some(
                dial.deadline()
                    .map_or(beats.deadline(), |dial| dial.min(beats.deadline())),
            ),
            Self::Over => None,
        }
    }

    /// The state and the action after `event` at `now`. `draw` is a random number.
    pub fn next(self, event: Event, now: Duration, draw: u64) -> (Self, Action) {
        match (self, event) {
            (_, Event::Stop) | (Self::Over, _) => (Self::Over, Action::Finish),

            (Self::Down(dial), Event::Due) => {
                let (dial, action) = dial.due(now);
                (Self::Down(dial), action)
            }
            (Self::Down(dial), Event::NotWelcomed(trouble)) => {
                let (dial, wait) = dial.failed(trouble, now, draw);
                (Self::Down(dial), Action::Pause(wait))
            }
            (Self::Down(dial), Event::Changed) => (Self::Down(dial.soon(now)), Action::Rest),
            (
                Self::Down(_) | Self::Moving(..),
                Event::Welcomed {
                    interval_ms,
                    spread_ms,
                },
            ) => {
                let beats = Beats::first(interval_ms, spread_ms, now);
                (Self::Up(beats), Action::Adopt(beats.sequence))
            }

            (Self::Up(beats), Event::Heard) => (Self::Up(beats.heard(now)), Action::Rest),
            (Self::Up(beats), Event::Due) => match beats.due(now) {
                Some((beats, action)) => (Self::Up(beats), action),
                None => (
                    Self::Down(beats.lost(Trouble::Passing, now, draw).0),
                    Action::DropSilent,
                ),
            },
            (Self::Up(beats), Event::Drained { after_ms }) => {
                let after = Duration::from_millis(u64::from(after_ms)).min(DRAIN);
                let dial = beats.moved(after, now, draw);
                (Self::Moving(beats.heard(now), dial), Action::Rest)
            }
            (Self::Up(beats), Event::Leaving) => {
                let dial = beats.moved(beats.spread, now, draw);
                (Self::Moving(beats, dial), Action::Rest)
            }
            (Self::Up(beats), Event::Changed) => {
                let dial = Dial::within(Duration::ZERO, now, draw);
                (Self::Moving(beats, dial), Action::Rest)
            }
            (Self::Up(beats), Event::Ended(trouble)) => {
                let (dial, wait) = beats.lost(trouble, now, draw);
                (Self::Down(dial), Action::Pause(wait))
            }

            // Moving: the old session goes on as before, and so does the way to the new one.
            (Self::Moving(beats, dial), Event::Heard | Event::Drained { .. }) => {
                (Self::Moving(beats.heard(now), dial), Action::Rest)
            }
            (Self::Moving(beats, dial), Event::Changed) => {
                (Self::Moving(beats, dial.soon(now)), Action::Rest)
            }
            (Self::Moving(beats, dial), Event::Due) => match beats.due(now) {
                None => (Self::Down(dial), Action::DropSilent),
                Some((beats, Action::Rest)) => {
                    let (dial, action) = dial.due(now);
                    (Self::Moving(beats, dial), action)
                }
                Some((beats, action)) => (Self::Moving(beats, dial), action),
            },
            (Self::Moving(beats, dial), Event::NotWelcomed(trouble)) => {
                let (dial, _) = dial.failed(trouble, now, draw);
                (Self::Moving(beats, dial), Action::Rest)
            }
            (Self::Moving(beats, dial), Event::Ended(_)) => {
                let dial = beats.left(dial, now, draw);
                let wait = dial.deadline().unwrap_or(now).saturating_sub(now);
                (Self::Down(dial), Action::Pause(wait))
            }

            // What cannot happen changes nothing.
            (state, _) => (state, Action::Rest),
        }
    }
}

impl Dial {
    /// A first try at a random time within `span`.
    fn within(span: Duration, now: Duration, draw: u64) -> Self {
        Self::Waiting {
            failures: 0,
            until: now.saturating_add(share(span, draw)),
        }
    }

    /// There is no more to wait for.
    fn soon(self, now: Duration) -> Self {
        match self {
            Self::Waiting { failures, until } => Self::Waiting {
                failures,
                until: until.min(now),
            },
            trying => trying,
        }
    }

    fn deadline(self) -> Option<Duration> {
        match self {
            Self::Waiting { until, .. } => Some(until),
            Self::Trying { .. } => None,
        }
    }

    fn due(self, now: Duration) -> (Self, Action) {
        match self {
            Self::Waiting { failures, until } if now >= until => {
                (Self::Trying { failures }, Action::Dial)
            }
            other => (other, Action::Rest),
        }
    }

    fn failed(self, trouble: Trouble, now: Duration, draw: u64) -> (Self, Duration) {
        let (Self::Waiting { failures, .. } | Self::Trying { failures }) = self;
        let failures = failures.saturating_add(1);
        let wait = match trouble {
            Trouble::Passing => BACKOFF.wait(failures, draw),
            Trouble::Refused => REFUSED.0 + share(REFUSED.1 - REFUSED.0, draw),
        };
        (
            Self::Waiting {
                failures,
                until: now.saturating_add(wait),
            },
            wait,
        )
    }
}

/// The heartbeat interval that a `Welcome` asks for.
pub fn interval(ms: u32) -> Duration {
    asked(ms, INTERVAL, DEFAULT_INTERVAL)
}

/// A wait of nodes that come back together, over `span`.
fn apart(span: Duration, draw: u64) -> Duration {
    LOST_AT_LEAST + share(span.saturating_sub(LOST_AT_LEAST), draw)
}

fn asked(ms: u32, bounds: (Duration, Duration), default: Duration) -> Duration {
    match ms {
        0 => default,
        ms => Duration::from_millis(u64::from(ms)).clamp(bounds.0, bounds.1),
    }
}

impl Beats {
    /// The way back after this session was lost.
    fn lost(self, trouble: Trouble, now: Duration, draw: u64) -> (Dial, Duration) {
        if trouble == Trouble::Refused {
            return Dial::Trying { failures: LOST - 1 }.failed(trouble, now, draw);
        }
        let wait = apart(self.spread, draw);
        let dial = Dial::Waiting {
            failures: LOST,
            until: now.saturating_add(wait),
        };
        (dial, wait)
    }

    /// The way to the next session, now that this one is gone, which was being left. Where a try has failed
    /// there is no other gateway: all nodes of this one are without a session, and come back as if it had
    /// died. One that has not tried yet does so when it meant to.
    fn left(self, dial: Dial, now: Duration, draw: u64) -> Dial {
        match dial {
            Dial::Waiting { failures: 0, until } => Dial::Waiting {
                failures: LOST,
                until,
            },
            Dial::Waiting { .. } => self.lost(Trouble::Passing, now, draw).0,
            Dial::Trying { failures } => Dial::Trying {
                failures: failures.max(LOST),
            },
        }
    }

    /// The way to the next session, since the gateway asks to move within `after`.
    fn moved(self, after: Duration, now: Duration, draw: u64) -> Dial {
        if now >= self.began.saturating_add(SETTLED) {
            return Dial::within(after, now, draw);
        }
        Dial::Waiting {
            failures: 0,
            until: now.saturating_add(apart(after.max(self.spread), draw)),
        }
    }

    fn first(interval_ms: u32, spread_ms: u32, now: Duration) -> Self {
        let interval = interval(interval_ms);
        Self {
            interval,
            spread: asked(spread_ms, SPREAD, DEFAULT_SPREAD),
            began: now,
            next: now.saturating_add(interval),
            heard: now,
            sequence: 1,
        }
    }

    /// When the gateway counts as gone.
    fn silent(self) -> Duration {
        self.heard.saturating_add(self.interval.saturating_mul(2))
    }

    fn deadline(self) -> Duration {
        self.next.min(self.silent())
    }

    fn heard(self, now: Duration) -> Self {
        Self { heard: now, ..self }
    }

    /// `None`: the gateway has been silent for too long.
    fn due(self, now: Duration) -> Option<(Self, Action)> {
        if now >= self.silent() {
            return None;
        }
        if now < self.next {
            return Some((self, Action::Rest));
        }
        // Not `next + interval`: after a suspended hour one heartbeat goes out, not eighty.
        let sequence = self.sequence.saturating_add(1);
        let next = now.saturating_add(self.interval);
        Some((
            Self {
                next,
                sequence,
                ..self
            },
            Action::Beat(sequence),
        ))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn waiting(failures: u32, until: Duration) -> Dial {
        Dial::Waiting { failures, until }
    }

    fn beats(next: u64, heard: u64, sequence: u64) -> Beats {
        Beats {
            interval: secs(45),
            spread: secs(8),
            began: secs(10),
            next: secs(next),
            heard: secs(heard),
            sequence,
        }
    }

    #[test]
    fn every_state_and_event_has_its_action() {
        use Action::*;
        use Event::*;
        use State::*;
        use Trouble::*;
        let ms = Duration::from_millis;
        let trying = |failures| super::Dial::Trying { failures };
        let half = ms(500);
        #[rustfmt::skip]
        let table = [
            // state, event, at -> state, action (all with a draw of 0: the shortest wait)
            (Down(waiting(0, secs(10))), Due, 10, Down(trying(0)), Dial),
            (Down(waiting(0, secs(10))), Due, 9, Down(waiting(0, secs(10))), Rest),
            (Down(waiting(3, secs(10))), Stop, 9, Over, Finish),
            (Down(waiting(3, secs(10))), Heard, 9, Down(waiting(3, secs(10))), Rest),
            (Down(trying(2)), Welcomed { interval_ms: 0, spread_ms: 0 }, 10, Up(beats(55, 10, 1)), Adopt(1)),
            (Down(trying(2)), Welcomed { interval_ms: 45_000, spread_ms: 8000 }, 10, Up(beats(55, 10, 1)), Adopt(1)),
            (Down(trying(2)), NotWelcomed(Passing), 10, Down(waiting(3, secs(10) + half)), Pause(half)),
            (Down(trying(2)), NotWelcomed(Refused), 10, Down(waiting(3, secs(310))), Pause(secs(300))),
            (Down(trying(2)), Due, 10, Down(trying(2)), Rest),
            (Down(trying(2)), Stop, 10, Over, Finish),
            (Down(trying(2)), Changed, 10, Down(trying(2)), Rest),
            (Down(waiting(3, secs(300))), Changed, 10, Down(waiting(3, secs(10))), Rest),
            (Down(waiting(3, secs(9))), Changed, 10, Down(waiting(3, secs(9))), Rest),
            (Down(waiting(3, secs(9))), Leaving, 8, Down(waiting(3, secs(9))), Rest),
            (Up(beats(55, 10, 1)), Heard, 12, Up(beats(55, 12, 1)), Rest),
            (Up(beats(55, 12, 1)), Due, 54, Up(beats(55, 12, 1)), Rest),
            (Up(beats(55, 12, 1)), Due, 55, Up(beats(100, 12, 2)), Beat(2)),
            (Up(beats(100, 12, 2)), Due, 102, Down(waiting(4, secs(102) + half)), DropSilent),
            (Up(beats(55, 12, 1)), Ended(Passing), 20, Down(waiting(4, secs(20) + half)), Pause(half)),
            (Up(beats(55, 12, 1)), Ended(Refused), 20, Down(waiting(4, secs(320))), Pause(secs(300))),
            (Up(beats(55, 12, 1)), Drained { after_ms: 9000 }, 20, Moving(beats(55, 20, 1), waiting(0, secs(20) + half)), Rest),
            (Up(beats(55, 12, 1)), Leaving, 20, Moving(beats(55, 12, 1), waiting(0, secs(20) + half)), Rest),
            (Up(beats(99, 60, 1)), Drained { after_ms: 9000 }, 70, Moving(beats(99, 70, 1), waiting(0, secs(70))), Rest),
            (Up(beats(99, 60, 1)), Leaving, 70, Moving(beats(99, 60, 1), waiting(0, secs(70))), Rest),
            (Up(beats(55, 12, 1)), Changed, 20, Moving(beats(55, 12, 1), waiting(0, secs(20))), Rest),
            (Up(beats(55, 12, 1)), Stop, 20, Over, Finish),
            (Up(beats(55, 12, 1)), NotWelcomed(Passing), 20, Up(beats(55, 12, 1)), Rest),
            (Moving(beats(55, 12, 1), waiting(0, secs(20))), Due, 20, Moving(beats(55, 12, 1), trying(0)), Dial),
            (Moving(beats(55, 12, 1), waiting(0, secs(60))), Due, 55, Moving(beats(100, 12, 2), waiting(0, secs(60))), Beat(2)),
            (Moving(beats(55, 12, 1), trying(0)), Heard, 20, Moving(beats(55, 20, 1), trying(0)), Rest),
            (Moving(beats(55, 12, 1), trying(0)), Drained { after_ms: 1 }, 20, Moving(beats(55, 20, 1), trying(0)), Rest),
            (Moving(beats(55, 12, 1), waiting(0, secs(60))), Drained { after_ms: 1 }, 20, Moving(beats(55, 20, 1), waiting(0, secs(60))), Rest),
            (Moving(beats(55, 12, 1), waiting(0, secs(60))), Leaving, 20, Moving(beats(55, 12, 1), waiting(0, secs(60))), Rest),
            (Moving(beats(55, 12, 1), waiting(0, secs(60))), Changed, 20, Moving(beats(55, 12, 1), waiting(0, secs(20))), Rest),
            (Moving(beats(55, 12, 1), trying(0)), NotWelcomed(Passing), 20, Moving(beats(55, 12, 1), waiting(1, secs(20) + half)), Rest),
            (Moving(beats(55, 12, 1), trying(0)), Welcomed { interval_ms: 0, spread_ms: 0 }, 20, Up(Beats { began: secs(20), ..beats(65, 20, 1) }), Adopt(1)),
            (Moving(beats(55, 12, 1), trying(0)), Ended(Passing), 20, Down(trying(4)), Pause(secs(0))),
            (Moving(beats(55, 12, 1), trying(5)), Ended(Passing), 20, Down(trying(5)), Pause(secs(0))),
            (Moving(beats(55, 12, 1), waiting(0, secs(23))), Ended(Passing), 20, Down(waiting(4, secs(23))), Pause(secs(3))),
            (Moving(beats(55, 12, 1), waiting(1, secs(21))), Ended(Passing), 20, Down(waiting(4, secs(20) + half)), Pause(half)),
            (Moving(beats(200, 12, 1), trying(0)), Due, 102, Down(trying(0)), DropSilent),
            (Moving(beats(55, 12, 1), trying(0)), Stop, 20, Over, Finish),
            (Over, Heard, 20, Over, Finish),
        ];
        for (number, (state, event, at, next, action)) in table.into_iter().enumerate() {
            assert_eq!(
                state.next(event, secs(at), 0),
                (next, action),
                "row {number}"
            );
        }
    }

    #[test]
    fn a_healthy_session_wakes_up_for_heartbeats_alone() {
        let (mut state, _) = State::Down(Dial::Trying { failures: 0 }).next(
            Event::Welcomed {
                interval_ms: 0,
                spread_ms: 0,
            },
            secs(0),
            0,
        );
        for beat in 1..1000_u64 {
            let due = state.deadline().unwrap();
            assert_eq!(due, secs(45 * beat));
            let action;
            (state, action) = state.next(Event::Due, due, 0);
            assert_eq!(action, Action::Beat(beat + 1));
            (state, _) = state.next(Event::Heard, due + Duration::from_millis(80), 0);
        }
    }

    #[test]
    fn a_silent_gateway_is_given_up_after_two_intervals() {
        let (mut state, _) = State::Down(Dial::Trying { failures: 0 }).next(
            Event::Welcomed {
                interval_ms: 10_000,
                spread_ms: 0,
            },
            secs(100),
            0,
        );
        let mut beats = 0;
        loop {
            let due = state.deadline().unwrap();
            let action;
            (state, action) = state.next(Event::Due, due, 0);
            match action {
                Action::Beat(_) => beats += 1,
                Action::DropSilent => {
                    assert_eq!((due, beats), (secs(120), 1));
                    break;
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn the_interval_is_kept_within_its_bounds() {
        for (asked_ms, got) in [(1, 1), (999, 1), (5000, 5), (0, 45), (u32::MAX, 600)] {
            let (state, _) = State::Down(Dial::Trying { failures: 0 }).next(
                Event::Welcomed {
                    interval_ms: asked_ms,
                    spread_ms: 0,
                },
                secs(0),
                0,
            );
            assert_eq!(state.deadline(), Some(secs(got)), "{asked_ms}");
        }
    }

    fn up(spread_ms: u32, at: u64) -> State {
        State::Down(Dial::Trying { failures: 0 })
            .next(
                Event::Welcomed {
                    interval_ms: 0,
                    spread_ms,
                },
                secs(at),
                0,
            )
            .0
    }

    #[test]
    fn nodes_that_lose_their_gateway_together_come_back_apart() {
        // What the gateway asked for, and over how many seconds its nodes come back then.
        for (asked_ms, span) in [(0, 8), (1, 1), (60_000, 60), (u32::MAX, 600)] {
            let up = up(asked_ms, 10);
            let (mut early, mut last) = (0, Duration::ZERO);
            for node in 0..1000_u64 {
                let draw = node.wrapping_mul(0x9E37_79B9_7F4A_7C15);
                let (state, _) = up.next(Event::Ended(Trouble::Passing), secs(20), draw);
                let wait = state.deadline().unwrap() - secs(20);
                assert!(wait >= Duration::from_millis(500) && wait <= secs(span));
                early += u32::from(wait < secs(span) / 4);
                last = last.max(wait);
            }
            assert!(
                early < 300,
                "{early} of 1000 in the first quarter of {span} s"
            );
            assert!(last > secs(span) * 9 / 10, "{last:?}");
        }
    }

    #[test]
    fn a_hint_holds_for_the_next_loss_and_the_failures_after_it_back_off() {
        let mut now = secs(20);
        let (mut state, _) = up(1000, 10).next(Event::Ended(Trouble::Passing), now, 500);
        // Draws of the longest waits there can be.
        for (wait_ms, draw) in [
            (1000, 15_500),
            (16_000, 31_500),
            (32_000, 59_500),
            (60_000, 59_500),
            (60_000, 0),
        ] {
            let due = state.deadline().unwrap();
            assert_eq!(due, now + Duration::from_millis(wait_ms));
            now = due;
            let action;
            (state, action) = state.next(Event::Due, now, 0);
            assert_eq!(action, Action::Dial);
            (state, _) = state.next(Event::NotWelcomed(Trouble::Passing), now, draw);
        }
    }

    #[test]
    fn a_drain_that_asks_for_weeks_is_bounded() {
        let (state, _) = up(0, 0).next(Event::Drained { after_ms: u32::MAX }, secs(61), 600_000);
        let State::Moving(_, dial) = state else {
            panic!("{state:?}")
        };
        assert_eq!(dial.deadline(), Some(secs(661)));
    }

    #[test]
    fn a_gateway_that_asks_every_session_to_move_has_no_node_come_in_a_circle() {
        let asks = [Event::Drained { after_ms: 0 }, Event::Leaving];
        for (ask, ends) in asks.into_iter().flat_map(|ask| [(ask, false), (ask, true)]) {
            let (mut now, mut dials) = (secs(0), 0);
            let mut state = State::start(now);
            while now < secs(600) {
                let draw = dials * 7919;
                let (next, action) = state.next(Event::Due, now, draw);
                state = next;
                if action == Action::Dial {
                    dials += 1;
                    let welcomed = Event::Welcomed {
                        interval_ms: 600_000,
                        spread_ms: 0,
                    };
                    (state, _) = state.next(welcomed, now, draw);
                    (state, _) = state.next(ask, now, draw);
                    if ends {
                        (state, _) = state.next(Event::Ended(Trouble::Passing), now, draw);
                    }
                }
                now = state.deadline().unwrap().max(now);
            }
            assert!(dials < 300, "{ask:?}: {dials} in 10 minutes");
        }
    }
}
