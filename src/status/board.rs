//! The session as it stands: taken down while it changes, read by whoever asks.
use std::cell::{Ref, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use crate::rt::News;
use crate::session::{Failed, Stands};
use crate::sys::{clock, log};

/// How the session stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// A try is under way.
    #[default]
    Connecting,
    Connected,
    /// Connected to a gateway that is being left for another, or for a new certificate.
    Moving,
    /// The next try is to come.
    Waiting,
    /// As [`Waiting`](Self::Waiting), and somebody said no: it will not pass by itself.
    Refused,
}

impl State {
    pub fn word(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Connected => "connected",
            Self::Moving => "moving",
            Self::Waiting => "waiting",
            Self::Refused => "refused",
        }
    }

    /// Whether there is a session.
    pub fn is_connected(self) -> bool {
        matches!(self, Self::Connected | Self::Moving)
    }
}

/// What went wrong last.
#[derive(Clone, Debug, Default)]
pub struct Trouble {
    /// By the monotonic clock.
    pub at: Duration,
    pub error: String,
    pub remedy: &'static str,
}

/// All that is known of the session. Times are the monotonic clock's.
#[derive(Clone, Debug, Default)]
pub struct Session {
    pub state: State,
    /// Since when it is so, or, while there is none, since when there has been none.
    pub since: Duration,
    pub address: Option<SocketAddr>,
    pub session_id: String,
    pub version: u32,
    pub upgrade_required: bool,
    pub heartbeat_ms: u32,
    /// Since the daemon started.
    pub opened: u64,
    pub failed: u64,
    /// Tries that failed since there was a session last.
    pub failures: u64,
    pub next_try: Option<Duration>,
    pub trouble: Option<Trouble>,
}

/// Clones are the same one.
#[derive(Clone, Default)]
pub struct Board(Rc<Inner>);

#[derive(Default)]
struct Inner {
    session: RefCell<Session>,
    news: News,
    beats: News,
}

impl Board {
    /// A daemon that starts.
    pub fn new() -> Self {
        let board = Self::default();
        board.0.session.borrow_mut().since = clock::monotonic();
        board
    }

    pub fn session(&self) -> Ref<'_, Session> {
        self.0.session.borrow()
    }

    /// Rung at each change.
    pub fn news(&self) -> &News {
        &self.0.news
    }

    /// Rung at each heartbeat: the daemon is awake anyway.
    pub fn beats(&self) -> &News {
        &self.0.beats
    }

    /// Takes down what became of the session.
    pub fn stands(&self, stands: Stands<'_>) {
        self.0.session.borrow_mut().take(stands, clock::monotonic());
        self.0.news.ring();
    }
}

impl Session {
    fn take(&mut self, stands: Stands<'_>, now: Duration) {
        let before = self.state;
        match stands {
            Stands::Trying => {
                self.state = State::Connecting;
                self.next_try = None;
            }
            Stands::Open { welcome, address } => {
                self.state = State::Connected;
                self.address = address;
                // What a peer says is shown no longer than is useful.
                self.session_id = welcome.session_id.chars().take(128).collect();
                self.version = welcome.protocol_version;
                self.upgrade_required = welcome.upgrade_required;
                self.heartbeat_ms = welcome.heartbeat_interval_ms;
                self.opened += 1;
                self.failures = 0;
                self.next_try = None;
                self.since = now;
            }
            Stands::Moving => self.state = State::Moving,
            Stands::NotMoved(failed) => self.failed(failed, now),
            Stands::Down { failed, again } => {
                self.failed(failed, now);
                self.failures += 1;
                self.address = None;
                self.next_try = Some(now.saturating_add(again));
                self.state = if failed.refused {
                    State::Refused
                } else {
                    State::Waiting
                };
            }
        }
        if before.is_connected() && !self.state.is_connected() {
            self.since = now;
        }
    }

    fn failed(&mut self, failed: Failed<'_>, now: Duration) {
        self.failed += 1;
        self.trouble = Some(Trouble {
            at: now,
            error: log::one_line_chain(failed.error),
            remedy: failed.remedy,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::Welcome;

    #[test]
    fn what_became_of_the_session_is_taken_down() {
        let secs = Duration::from_secs;
        let mut session = Session::default();
        let io = std::io::Error::other("no route");
        let failed = |refused| Failed {
            error: &io,
            remedy: "check the network",
            refused,
        };
        let welcome = Welcome {
            session_id: "s1".to_owned(),
            ..Welcome::default()
        };
        let address = "10.0.0.1:443".parse().ok();
        let down = |refused| Stands::Down {
            failed: failed(refused),
            again: secs(5),
        };
        session.take(Stands::Trying, secs(1));
        session.take(down(false), secs(2));
        assert_eq!((session.state, session.since), (State::Waiting, secs(0)));
        assert_eq!((session.failures, session.next_try), (1, Some(secs(7))));
        let open = || Stands::Open {
            welcome: &welcome,
            address,
        };
        session.take(Stands::Trying, secs(7));
        session.take(open(), secs(8));
        assert_eq!((session.state, session.since), (State::Connected, secs(8)));
        assert_eq!(
            (session.failures, session.failed, session.opened),
            (0, 1, 1)
        );
        session.take(Stands::Moving, secs(20));
        session.take(Stands::NotMoved(failed(false)), secs(21));
        assert!(session.state.is_connected());
        assert_eq!(
            (session.since, session.failures, session.failed),
            (secs(8), 0, 2)
        );
        session.take(down(true), secs(30));
        assert_eq!((session.state, session.since), (State::Refused, secs(30)));
        assert_eq!(session.address, None);
        session.take(Stands::Trying, secs(35));
        session.take(down(false), secs(36));
        assert_eq!((session.since, session.failures), (secs(30), 2));
        let trouble = session.trouble.unwrap_or_default();
        assert_eq!((trouble.at, trouble.error.as_str()), (secs(36), "no route"));
    }
}
