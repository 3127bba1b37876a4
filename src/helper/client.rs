//! Asking the helper, from a thread of `bcd node` or from `bcd doctor`.
use std::error::Error;
use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::protocol::{Answer, BUSY, Greeting, LINE, Operation, Request, heard};
use crate::sys::stop::Stop;
use crate::sys::{local, peer};

/// A helper that was killed is started again after two seconds: it is waited for.
const REACH: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_millis(200);

/// For the greeting.
const GREET: Duration = Duration::from_secs(5);

/// For the answer: the longest that an operation's programs may take, and some more.
const WORK: Duration = Duration::from_secs(150);

/// The way to the helper. Clones lead to the same one.
#[derive(Clone)]
pub struct Client {
    socket: Arc<Path>,
}

/// Why the helper did not do it.
#[derive(Debug)]
pub enum AskError {
    /// Nobody answers: nothing was asked.
    NotReached(PathBuf, io::Error),
    /// What answers is no helper of root's: nothing was asked.
    Foreign(PathBuf),
    /// It said no.
    Refused { reason: String, message: String },
    /// It was asked, and there is no answer: it may have been done, or not.
    Unanswered(PathBuf, io::Error),
    /// The caller was told to stop.
    Stopped,
}

impl Client {
    pub fn new(socket: &Path) -> Self {
        let socket = Arc::from(socket);
        Self { socket }
    }

    /// Has an operation done, for `whom` in the helper's log. Blocks: for threads.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn ask(&self, operation: Operation, whom: &str, stop: &Stop) -> Result<(), AskError> {
        let deadline = Instant::now() + REACH;
        let (mut stream, greeting) = loop {
            match self.greet(stop) {
                Err(error) if error.may_pass() && Instant::now() < deadline => {
                    if stop.wait(AGAIN) {
                        return Err(AskError::Stopped);
                    }
                }
                other => break other?,
            }
        };
        let whom = whom.to_owned();
        let request = Request { operation, whom };
        let sent = stream.write_all(request.line(&greeting.nonce).as_bytes());
        let answer = sent.and_then(|()| line(&mut stream, WORK, stop));
        match answer.map(|line| heard(&line)) {
            Ok(Some(Err(Answer::Done))) => Ok(()),
            Ok(Some(Err(Answer::Refused { reason, message }))) => {
                Err(AskError::Refused { reason, message })
            }
            _ if stop.is_said() => Err(AskError::Stopped),
            Ok(_) => Err(AskError::Unanswered(
                self.path(),
                io::ErrorKind::InvalidData.into(),
            )),
            Err(error) => Err(AskError::Unanswered(self.path(), error)),
        }
    }

    /// What a helper that would hear this process says of itself.
    ///
    /// # Errors
    /// As [`ask`](Self::ask)'s, before anything is asked.
    pub fn look(&self) -> Result<Greeting, AskError> {
        let stop = Stop::new().map_err(|error| AskError::NotReached(self.path(), error))?;
        self.greet(&stop).map(|(_, greeting)| greeting)
    }

    fn greet(&self, stop: &Stop) -> Result<(UnixStream, Greeting), AskError> {
        let not_reached = |error| AskError::NotReached(self.path(), error);
        let mut stream = local::connect(&self.socket).map_err(not_reached)?;
        // Only root's helper is asked, whoever else has put a socket there.
        if peer::credentials(&stream).map_err(not_reached)?.uid != 0 {
            return Err(AskError::Foreign(self.path()));
        }
        match line(&mut stream, GREET, stop) {
            Ok(line) => match heard(&line) {
                Some(Ok(greeting)) => Ok((stream, greeting)),
                Some(Err(Answer::Refused { reason, message })) => {
                    Err(AskError::Refused { reason, message })
                }
                _ => Err(AskError::Foreign(self.path())),
            },
            Err(_) if stop.is_said() => Err(AskError::Stopped),
            Err(error) => Err(not_reached(error)),
        }
    }

    fn path(&self) -> PathBuf {
        self.socket.to_path_buf()
    }
}

/// A whole line, without its end.
fn line(stream: &mut UnixStream, within: Duration, stop: &Stop) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + within;
    let mut line = Vec::new();
    let mut buffer = [0; 512];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if !stop.wait_beside(&*stream, left) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let read = match stream.read(&mut buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => read,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                continue;
            }
            Err(error) => return Err(error),
        };
        let part = buffer.get(..read).unwrap_or_default();
        let end = part.iter().position(|byte| *byte == b'\n');
        line.extend_from_slice(part.get(..end.unwrap_or(read)).unwrap_or_default());
        if end.is_some() {
            return Ok(line);
        }
        if line.len() > LINE {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
}

impl AskError {
    /// Whether it is worth coming again, as nothing was asked.
    fn may_pass(&self) -> bool {
        match self {
            Self::NotReached(..) => true,
            Self::Refused { reason, .. } => reason == BUSY,
            _ => false,
        }
    }

    /// What a person can do about it.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::NotReached(_, error) if error.kind() == io::ErrorKind::PermissionDenied => {
                "run it as root, or as the account helper.user names"
            }
            Self::NotReached(..) => {
                "start it: systemctl enable --now bcd-helper.service; journalctl -u bcd-helper.service says why it does not stay up"
            }
            Self::Foreign(_) => "see what listens there (ss -xlp), and what helper.socket says",
            Self::Refused { .. } => "see what it says; journalctl -u bcd-helper.service has more",
            Self::Unanswered(..) => {
                "see whether it was done; journalctl -u bcd-helper.service says what became of it"
            }
            Self::Stopped => "",
        }
    }
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotReached(path, _) => {
                write!(f, "bcd helper does not answer at {}", path.display())
            }
            Self::Foreign(path) => {
                write!(
                    f,
                    "what answers at {} is no bcd helper of root's",
                    path.display()
                )
            }
            Self::Refused { reason, message } => {
                write!(f, "bcd helper refuses ({reason}): {message}")
            }
            Self::Unanswered(path, _) => {
                write!(
                    f,
                    "bcd helper at {} was asked and gave no answer",
                    path.display()
                )
            }
            Self::Stopped => f.write_str("stopped"),
        }
    }
}

impl Error for AskError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::NotReached(_, error) | Self::Unanswered(_, error) => Some(error),
            Self::Foreign(_) | Self::Refused { .. } | Self::Stopped => None,
        }
    }
}
