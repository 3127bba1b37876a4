//! Asking a running daemon, from another process.
use std::error::Error;
use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::server::Request;
use crate::sys::local;

/// The longest answer: a line.
const ANSWER: usize = 4 << 20;

/// What to do about an answer that is none.
pub const FOREIGN: &str = "see what listens there (ss -xlp), and what socket_path in config.toml says; a bcd node of another version: restart it";

/// For an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// A daemon that was asked.
pub struct Daemon {
    reader: BufReader<UnixStream>,
    /// For a whole line; `None`: as long as it likes.
    patience: Option<Duration>,
}

/// Why a daemon did not answer.
#[derive(Debug)]
pub enum AskError {
    /// None runs: nobody answers at this path.
    NotRunning(PathBuf),
    /// This user may not ask.
    NotPermitted(PathBuf),
    /// One is there and does not answer in time.
    Stuck(PathBuf),
    /// The connection failed, or ended within an answer.
    Io(PathBuf, io::Error),
    /// What answers is no line of text.
    Foreign(PathBuf),
}

impl AskError {
    /// What a person can do about it.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::NotRunning(_) => "start it: systemctl start bcd.service, or bcd node",
            Self::NotPermitted(_) => "run it as root, or as the user bcd node runs as",
            Self::Stuck(_) => {
                "look at its log and at this machine's disk; restart it: systemctl restart bcd.service"
            }
            Self::Io(..) => "see whether it still runs, and look at its log",
            Self::Foreign(_) => FOREIGN,
        }
    }
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (before, path, after) = match self {
            Self::NotRunning(path) => ("bcd node does not run: nobody answers at ", path, ""),
            Self::NotPermitted(path) => ("cannot ask bcd node at ", path, ": permission denied"),
            Self::Stuck(path) => ("bcd node holds ", path, " and does not answer: it is stuck"),
            Self::Io(path, _) => ("bcd node's answer at ", path, " was cut off"),
            Self::Foreign(path) => ("what answers at ", path, " is no bcd node"),
        };
        write!(f, "{before}{}{after}", path.display())
    }
}

impl Error for AskError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Io(_, error) => Some(error),
            _ => None,
        }
    }
}

impl Daemon {
    /// Asks the daemon at `path`.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn ask(path: &Path, request: Request) -> Result<Self, AskError> {
        let mut stream = local::connect(path).map_err(|error| {
            let path = path.to_owned();
            match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                    AskError::NotRunning(path)
                }
                io::ErrorKind::PermissionDenied => AskError::NotPermitted(path),
                io::ErrorKind::WouldBlock => AskError::Stuck(path),
                _ => AskError::Io(path, error),
            }
        })?;
        stream
            .set_nonblocking(false)
            .and_then(|()| stream.set_read_timeout(Some(PATIENCE)))
            .and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
            .and_then(|()| match stream.write_all(request.line().as_bytes()) {
                // It hung up; what it said before that is there to be read.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
                written => written,
            })
            .map_err(|error| failed(path, error))?;
        Ok(Self {
            reader: BufReader::new(stream),
            patience: Some(PATIENCE),
        })
    }

    /// The next line it says. `path` is for messages.
    ///
    /// # Errors
    /// [`AskError::Stuck`] and [`AskError::Io`].
    pub fn line(&mut self, path: &Path) -> Result<String, AskError> {
        let deadline = self.patience.map(|patience| Instant::now() + patience);
        let mut line = Vec::new();
        loop {
            // For all of it: one that sends a byte now and then is stuck too.
            if let Some(deadline) = deadline {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(AskError::Stuck(path.to_owned()));
                }
                // A descriptor that is a socket takes it.
                let _ = self.reader.get_ref().set_read_timeout(Some(left));
            }
            let there = match self.reader.fill_buf() {
                Ok(there) => there,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(failed(path, error)),
            };
            if there.is_empty() {
                let ended = io::Error::new(io::ErrorKind::UnexpectedEof, "bcd node has ended");
                return Err(failed(path, ended));
            }
            let end = there.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(there.len(), |end| end + 1);
            line.extend_from_slice(there.get(..taken).unwrap_or_default());
            self.reader.consume(taken);
            if line.len() > ANSWER {
                return Err(AskError::Foreign(path.to_owned()));
            }
            if end.is_some() {
                let foreign = |_| AskError::Foreign(path.to_owned());
                return String::from_utf8(line).map_err(foreign);
            }
        }
    }

    /// From now on lines may take as long as they like.
    pub fn wait_long(&mut self) {
        self.patience = None;
        // A descriptor that is a socket takes it.
        let _ = self.reader.get_ref().set_read_timeout(None);
    }
}

fn failed(path: &Path, error: io::Error) -> AskError {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => AskError::Stuck(path.to_owned()),
        _ => AskError::Io(path.to_owned(), error),
    }
}
