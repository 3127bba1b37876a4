//! How a session fetches what a command put out: a window at a time, each stored before the next one is
//! asked for.
//!
//! Promises: at most one window is held; what a node sends beyond what it was asked for, or out of
//! place, ends the session. After a break the next session goes on behind what is stored.

use bcd::proto::{OutputChunk, OutputRequest};
use bcd::wire::grpc::{Code, Status};

use crate::store::{Fetch, Kept};

/// Bytes asked for at once.
const WINDOW: u64 = 64 * 1024;

/// The output that is being fetched.
#[derive(Debug, Default)]
pub struct Fetching(State);

#[derive(Debug, Default)]
enum State {
    #[default]
    Idle,
    /// A window is asked for; `data` came of it.
    Asked { output: Fetch, data: Vec<u8> },
    /// A window is being stored.
    Keeping { output: Fetch },
}

/// What to do after a chunk.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// More of the window is to come.
    Wait,
    /// Store this piece.
    Keep {
        command: i64,
        start: u64,
        data: Vec<u8>,
    },
    /// The node has the command's output no more.
    Gone { command: i64 },
}

/// What to do once a piece is stored.
#[derive(Debug, PartialEq)]
pub enum Next {
    Ask(OutputRequest),
    /// The node may delete the output: it is here, or of no use.
    Release {
        command: i64,
        request: OutputRequest,
        damaged: bool,
    },
    /// Nobody wants it any more.
    Stop,
}

impl Fetching {
    /// Begins with an output, unless another one is under way.
    pub fn begin(&mut self, output: Fetch) -> Option<OutputRequest> {
        match self.0 {
            State::Idle => Some(self.ask(output)),
            _ => None,
        }
    }

    fn ask(&mut self, output: Fetch) -> OutputRequest {
        let request = OutputRequest {
            command_id: output.id.clone(),
            offset: output.received,
            max_bytes: u32::try_from(window(&output)).unwrap_or(0),
            release: false,
        };
        self.0 = State::Asked {
            output,
            data: Vec::new(),
        };
        request
    }

    /// Takes a chunk.
    ///
    /// # Errors
    /// It is not what was asked for: the status that ends the session.
    pub fn take(&mut self, chunk: OutputChunk) -> Result<Step, Status> {
        let unasked = |what: &str| Err(Status::new(Code::InvalidArgument, what));
        let State::Asked { output, mut data } = std::mem::take(&mut self.0) else {
            return unasked("a piece of output came that nobody asked for");
        };
        if chunk.command_id != output.id {
            return unasked("a piece of output came of another command than the one asked for");
        }
        if chunk.gone {
            return Ok(Step::Gone {
                command: output.command,
            });
        }
        let have = data.len() as u64;
        if chunk.size != output.size || chunk.offset != output.received + have {
            return unasked(
                "a piece of output is not at the offset, or not of the size, asked for",
            );
        }
        let (more, wanted) = (chunk.data.len() as u64, window(&output));
        if more == 0 || have + more > wanted {
            return unasked("a piece of output is empty, or more than was asked for");
        }
        if data.is_empty() {
            data = chunk.data;
        } else {
            data.extend_from_slice(&chunk.data);
        }
        if have + more < wanted {
            self.0 = State::Asked { output, data };
            return Ok(Step::Wait);
        }
        let step = Step::Keep {
            command: output.command,
            start: output.received,
            data,
        };
        self.0 = State::Keeping { output };
        Ok(step)
    }

    /// The piece is stored, or not wanted.
    pub fn kept(&mut self, kept: Kept) -> Next {
        let State::Keeping { output } = std::mem::take(&mut self.0) else {
            return Next::Stop;
        };
        match kept {
            Kept::Part(received) => Next::Ask(self.ask(Fetch { received, ..output })),
            Kept::Whole | Kept::Damaged => Next::Release {
                command: output.command,
                request: release(output.id),
                damaged: kept == Kept::Damaged,
            },
            Kept::Unwanted => Next::Stop,
        }
    }
}

/// The word that a node may delete an output.
pub fn release(command_id: String) -> OutputRequest {
    OutputRequest {
        command_id,
        release: true,
        ..OutputRequest::default()
    }
}

/// Bytes of the next window.
fn window(output: &Fetch) -> u64 {
    output.size.saturating_sub(output.received).min(WINDOW)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "cmd_a";

    fn output(size: u64, received: u64) -> Fetch {
        Fetch {
            command: 7,
            id: ID.to_owned(),
            size,
            received,
        }
    }

    fn chunk(offset: u64, bytes: usize, size: u64) -> OutputChunk {
        OutputChunk {
            command_id: ID.to_owned(),
            offset,
            data: vec![1; bytes],
            size,
            gone: false,
        }
    }

    #[test]
    fn an_output_is_fetched_window_by_window_and_released() {
        let size = WINDOW + 10;
        let mut fetching = Fetching::default();
        let request = fetching.begin(output(size, 0)).unwrap();
        assert_eq!((request.offset, u64::from(request.max_bytes)), (0, WINDOW));
        assert_eq!(fetching.begin(output(5, 0)), None, "one at a time");
        let half = WINDOW as usize / 2;
        assert_eq!(fetching.take(chunk(0, half, size)).unwrap(), Step::Wait);
        let step = fetching.take(chunk(half as u64, half, size)).unwrap();
        let data = vec![1; WINDOW as usize];
        let whole = Step::Keep {
            command: 7,
            start: 0,
            data,
        };
        assert_eq!(step, whole);
        let next = fetching.kept(Kept::Part(WINDOW));
        let request = match next {
            Next::Ask(request) => request,
            _ => OutputRequest::default(),
        };
        assert_eq!((request.offset, request.max_bytes), (WINDOW, 10));
        assert!(matches!(
            fetching.take(chunk(WINDOW, 10, size)).unwrap(),
            Step::Keep { .. }
        ));
        let released = fetching.kept(Kept::Whole);
        assert_eq!(
            released,
            Next::Release {
                command: 7,
                request: release(ID.to_owned()),
                damaged: false
            }
        );
        assert!(
            fetching
                .begin(output(5, 3))
                .is_some_and(|request| request.offset == 3)
        );
    }

    #[test]
    fn what_was_not_asked_for_ends_the_session() {
        let size = 3 * WINDOW;
        let other = OutputChunk {
            command_id: "cmd_b".to_owned(),
            ..chunk(0, 1, size)
        };
        for (name, bad) in [
            ("another command's", other),
            ("later", chunk(1, 1, size)),
            ("another size", chunk(0, 1, size + 1)),
            ("empty", chunk(0, 0, size)),
            ("too much", chunk(0, WINDOW as usize + 1, size)),
        ] {
            let mut fetching = Fetching::default();
            fetching.begin(output(size, 0)).unwrap();
            let status = fetching.take(bad).unwrap_err();
            assert_eq!(status.code, Code::InvalidArgument, "{name}");
        }
        let mut fetching = Fetching::default();
        assert!(
            fetching.take(chunk(0, 1, 1)).is_err(),
            "nothing was asked for"
        );
        fetching.begin(output(1, 0)).unwrap();
        fetching.take(chunk(0, 1, 1)).unwrap();
        assert!(
            fetching.take(chunk(1, 1, 1)).is_err(),
            "while a piece is stored"
        );
    }

    #[test]
    fn an_output_that_is_gone_or_damaged_or_unwanted_is_let_go() {
        let gone = OutputChunk {
            gone: true,
            ..chunk(0, 0, 0)
        };
        let mut fetching = Fetching::default();
        fetching.begin(output(5, 0)).unwrap();
        assert_eq!(fetching.take(gone).unwrap(), Step::Gone { command: 7 });
        fetching.begin(output(5, 0)).unwrap();
        fetching.take(chunk(0, 5, 5)).unwrap();
        assert!(matches!(
            fetching.kept(Kept::Damaged),
            Next::Release { damaged: true, .. }
        ));
        fetching.begin(output(5, 0)).unwrap();
        fetching.take(chunk(0, 5, 5)).unwrap();
        assert_eq!(fetching.kept(Kept::Unwanted), Next::Stop);
    }
}
