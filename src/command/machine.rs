//! A command's life, from its first durable record to its last. Pure: one table of what follows
//! from what.
//!
//! ```text
//!            Turn           Ended
//!  Pending --------> Running ---------------------------> Done
//!     |                 | Cancel, TimeUp     Ended, TimeUp  ^
//!     |                 +-----------> Stopping -------------+
//!     |                 | GoingDown        TimeUp, Restarted|
//!     |                 +-----------> Leaving --------------+
//!     +---- Cancel, Late -----------------------------------+
//! ```
//!
//! Pending, Running and Done are on the disk before anything follows from them; Stopping and Leaving
//! are this process's own, and Running after a restart. Of what is Done only the id is kept. Nothing leads back to Running: that is what
//! "at most once" means.
use crate::proto::CommandState;

/// How a command stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Stored, and waiting for its turn.
    Pending,
    /// Its work may have begun.
    Running,
    /// Its work was told to stop, and has not ended.
    Stopping(Why),
    /// Its work was to end this boot, and the machine is going down.
    Leaving,
}

impl State {
    /// For people.
    pub fn word(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Stopping(_) => "stopping",
            Self::Leaving => "leaving",
        }
    }
}

/// Why work was told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    Cancelled,
    TimedOut,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Its kind has room for it.
    Turn,
    /// Its deadline passed.
    Late,
    /// It is no longer wanted.
    Cancel,
    /// The time it had in this state is over.
    TimeUp,
    /// Its work ended.
    Ended(Outcome),
    /// The daemon started and found it so.
    Restarted(Boot),
}

/// Which boot the daemon started in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boot {
    /// Restarts decide nothing about this kind.
    Irrelevant,
    /// The one the command ran in, which it was to end.
    Same,
    /// A later one than the one the command was to end.
    Later,
}

/// How a command's work ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// With the kind's result, encoded.
    Succeeded(Vec<u8>),
    Failed(Failure),
    /// This machine lacks what commands of its kind need.
    Unsupported(Failure),
    /// As it was told to.
    Stopped,
    /// The machine is going down, and with it this process.
    GoingDown,
}

/// Why a command failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// A word for programs.
    pub reason: &'static str,
    /// A sentence for people.
    pub message: String,
}

/// What a command is reported to have come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub state: CommandState,
    pub reason: &'static str,
    pub message: String,
    pub result: Vec<u8>,
}

/// What follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Stay,
    /// Store and report that it runs; then begin its work.
    Run,
    /// Tell its work to stop.
    Stop(Why),
    /// Wait for the machine to go down.
    Leave,
    /// Store and report its end.
    Finish(Report),
    /// As [`Finish`](Self::Finish), with the result of a restart.
    FinishRestarted,
}

impl State {
    /// What follows from `event`.
    pub fn next(self, event: Event) -> Step {
        match (self, event) {
            (Self::Pending, Event::Turn) => Step::Run,
            (Self::Pending, Event::Late) => Step::Finish(Report::late()),
            (Self::Pending, Event::Cancel) => Step::Finish(Why::Cancelled.report()),

            (Self::Running, Event::Cancel) => Step::Stop(Why::Cancelled),
            (Self::Running, Event::TimeUp) => Step::Stop(Why::TimedOut),
            (Self::Running | Self::Leaving, Event::Restarted(Boot::Later)) => Step::FinishRestarted,
            (Self::Running, Event::Restarted(Boot::Same)) => Step::Leave,
            (Self::Running, Event::Restarted(Boot::Irrelevant)) => {
                Step::Finish(Report::interrupted())
            }

            // Done in spite of the word to stop: the truth is told.
            (Self::Running | Self::Stopping(_), Event::Ended(Outcome::Succeeded(result))) => {
                Step::Finish(Report::succeeded(result))
            }
            (Self::Running | Self::Stopping(_), Event::Ended(Outcome::Failed(failure))) => {
                Step::Finish(Report::failed(failure))
            }
            (Self::Running | Self::Stopping(_), Event::Ended(Outcome::Unsupported(failure))) => {
                Step::Finish(Report::unsupported(failure))
            }
            (Self::Running | Self::Stopping(_), Event::Ended(Outcome::GoingDown)) => Step::Leave,
            (Self::Stopping(why), Event::Ended(Outcome::Stopped)) => Step::Finish(why.report()),
            // It stopped, and nobody here had told it to: the daemon itself is ending.
            (Self::Running, Event::Ended(Outcome::Stopped)) => Step::Finish(Report::interrupted()),
            // It does not stop. It has its end, and keeps its place until its work does end.
            (Self::Stopping(why), Event::TimeUp) => Step::Finish(why.report()),

            (Self::Leaving, Event::TimeUp) => Step::Finish(Report::not_restarted()),

            (_, _) => Step::Stay,
        }
    }
}

impl Why {
    fn report(self) -> Report {
        let (reason, message) = match self {
            Self::Cancelled => ("Cancelled", "cancelled"),
            Self::TimedOut => (
                "TimedOut",
                "it took longer than its kind may, and was stopped",
            ),
        };
        Report::failed(Failure::new(reason, message))
    }
}

impl Failure {
    pub fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }
}

impl Report {
    pub fn succeeded(result: Vec<u8>) -> Self {
        Self {
            state: CommandState::SUCCEEDED,
            reason: "",
            message: String::new(),
            result,
        }
    }

    pub fn failed(failure: Failure) -> Self {
        Self {
            state: CommandState::FAILED,
            reason: failure.reason,
            message: failure.message,
            result: Vec::new(),
        }
    }

    pub fn unsupported(failure: Failure) -> Self {
        Self {
            state: CommandState::UNSUPPORTED,
            ..Self::failed(failure)
        }
    }

    /// On its way: PENDING, RUNNING.
    pub fn underway(state: CommandState) -> Self {
        Self {
            state,
            reason: "",
            message: String::new(),
            result: Vec::new(),
        }
    }

    pub fn late() -> Self {
        Self::failed(Failure::new(
            "DeadlineExceeded",
            "its deadline passed before it could start",
        ))
    }

    fn interrupted() -> Self {
        Self::failed(Failure::new(
            "Interrupted",
            "the daemon or the machine stopped while it ran; it is not run again",
        ))
    }

    fn not_restarted() -> Self {
        Self::failed(Failure::new(
            "NotRestarted",
            "the machine is still in the boot that the command was to end",
        ))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic)]
    use super::*;

    /// A word for each step, so that the table below fits on a screen.
    fn word(step: Step) -> &'static str {
        match step {
            Step::Stay => "-",
            Step::Run => "run",
            Step::Stop(Why::Cancelled) => "stop: cancelled",
            Step::Stop(Why::TimedOut) => "stop: time",
            Step::Leave => "leave",
            Step::FinishRestarted => "restarted",
            Step::Finish(report) if report.state == CommandState::SUCCEEDED => {
                assert_eq!((report.reason, report.result), ("", vec![7]));
                "succeeded"
            }
            Step::Finish(report) if report.reason == "CommandUnsupported" => {
                assert_eq!(report.state, CommandState::UNSUPPORTED);
                "unsupported"
            }
            Step::Finish(report) => {
                assert_eq!(report.state, CommandState::FAILED);
                assert!(!report.message.is_empty());
                report.reason
            }
        }
    }

    #[test]
    fn the_table_of_all_transitions() {
        let states = [
            State::Pending,
            State::Running,
            State::Stopping(Why::Cancelled),
            State::Stopping(Why::TimedOut),
            State::Leaving,
        ];
        let failed = || Outcome::Failed(Failure::new("NotFound", "no such file"));
        let lacking = || Outcome::Unsupported(Failure::new("CommandUnsupported", "no dcgmi"));
        let table: [(Event, [&str; 5]); 12] = [
            (Event::Turn, ["run", "-", "-", "-", "-"]),
            (Event::Late, ["DeadlineExceeded", "-", "-", "-", "-"]),
            (
                Event::Cancel,
                ["Cancelled", "stop: cancelled", "-", "-", "-"],
            ),
            (
                Event::TimeUp,
                ["-", "stop: time", "Cancelled", "TimedOut", "NotRestarted"],
            ),
            (
                Event::Ended(Outcome::Succeeded(vec![7])),
                ["-", "succeeded", "succeeded", "succeeded", "-"],
            ),
            (
                Event::Ended(failed()),
                ["-", "NotFound", "NotFound", "NotFound", "-"],
            ),
            (
                Event::Ended(lacking()),
                ["-", "unsupported", "unsupported", "unsupported", "-"],
            ),
            (
                Event::Ended(Outcome::Stopped),
                ["-", "Interrupted", "Cancelled", "TimedOut", "-"],
            ),
            (
                Event::Ended(Outcome::GoingDown),
                ["-", "leave", "leave", "leave", "-"],
            ),
            (
                Event::Restarted(Boot::Irrelevant),
                ["-", "Interrupted", "-", "-", "-"],
            ),
            (Event::Restarted(Boot::Same), ["-", "leave", "-", "-", "-"]),
            (
                Event::Restarted(Boot::Later),
                ["-", "restarted", "-", "-", "restarted"],
            ),
        ];
        for (event, steps) in table {
            for (state, expected) in states.into_iter().zip(steps) {
                let step = word(state.next(event.clone()));
                assert_eq!(step, expected, "{state:?} and {event:?}");
            }
        }
    }

    #[test]
    fn only_a_pending_command_ever_starts() {
        let starts = [
            State::Running,
            State::Stopping(Why::Cancelled),
            State::Leaving,
        ]
        .map(|state| state.next(Event::Turn));
        assert!(starts.iter().all(|step| *step == Step::Stay));
    }
}
