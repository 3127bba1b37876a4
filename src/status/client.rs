//! Asking a running daemon, from another process.
use std::error::Error;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::server::Request;
use crate::sys::local;

/// The longest answer: a line.
const ANSWER: u64 = 4 << 20;

/// For an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// A daemon that was asked.
pub struct Daemon {
    reader: BufReader<UnixStream>,
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
            .and_then(|()| stream.write_all(request.line().as_bytes()))
            .map_err(|error| failed(path, error))?;
        Ok(Self {
            reader: BufReader::new(stream),
        })
    }

    /// The next line it says. `path` is for messages.
    ///
    /// # Errors
    /// [`AskError::Stuck`] and [`AskError::Io`].
    pub fn line(&mut self, path: &Path) -> Result<String, AskError> {
        let mut line = String::new();
        let read = self.reader.by_ref().take(ANSWER).read_line(&mut line);
        match read {
            Ok(_) if line.ends_with('\n') => Ok(line),
            Ok(_) => {
                let ended = io::Error::new(io::ErrorKind::UnexpectedEof, "bcd node has ended");
                Err(failed(path, ended))
            }
            Err(error) => Err(failed(path, error)),
        }
    }

    /// From now on lines may take as long as they like.
    pub fn wait_long(&self) {
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
