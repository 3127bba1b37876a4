//! The download of an image: from the first of its sources that has it, each byte once and in order, however often the
//! connection breaks.
//!
//! What came is not fetched again: the rest is asked for by its range. Whether the rest belongs to what came is the
//! pinned digest's to say; without one the server's own word (`ETag`, `Last-Modified`) must be the same. A server that
//! knows no ranges begins anew, and what is known is passed over.
use std::error::Error as StdError;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use crate::attest::roots;
use crate::crypto::digest::{self, Sha256};
use crate::rt::backoff::Backoff;
use crate::rt::channel::{Receiver, Sender};
use crate::rt::{self, Either, Readiness};
use crate::sys::log::{self, Level, Value};
use crate::sys::random;
use crate::sys::stop::Stop;
use crate::wire::http1::client::{self, Answer, HttpError, Request, Waits};
use crate::wire::url::Url;

/// Of a piece that is handed on.
const PIECE: usize = 64 * 1024;
const REDIRECTS: usize = 5;
/// Tries in a row that bring next to nothing, and what is more than that.
const TRIES: u32 = 6;
const PROGRESS: u64 = 1024 * 1024;
const WAIT: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(20));

/// What is known of bytes beforehand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    pub sha256: Option<[u8; 32]>,
    pub size: Option<u64>,
}

/// What bytes were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    pub sha256: [u8; 32],
    pub size: u64,
}

/// How far it is, for whoever shows it.
#[derive(Debug, Default)]
pub struct Gauge {
    pub bytes: AtomicU64,
    /// 0: not known.
    pub total: AtomicU64,
}

/// A download that came to its end.
#[derive(Debug)]
pub struct Downloaded {
    pub packed: Measured,
    /// The source the last of it came from.
    pub from: Url,
    /// How often it went on after a break.
    pub resumed: u32,
}

/// Why there is no download.
#[derive(Debug)]
pub enum Error {
    /// The system's roots cannot be used.
    Roots(roots::Error),
    /// No look at what is to stop it.
    Io(io::Error),
    /// `http://` proves nothing, and no digest does.
    Unpinned(String),
    /// No answer, or its end did not come.
    Http(String, HttpError),
    Status(String, u16),
    Redirects(String),
    /// The answer is about another range than was asked for.
    Range(String),
    /// It is another file than it was when the download began.
    Changed(String),
    /// It has another length.
    Size {
        expected: u64,
        found: u64,
    },
    /// It has another digest.
    Digest {
        expected: [u8; 32],
        found: [u8; 32],
    },
    /// Neither the server nor the order says where it ends.
    Endless(String),
    /// It was to stop, or nobody takes the bytes any more.
    Stopped,
}

/// What to fetch.
pub struct Download<'a> {
    /// Tried in turn.
    pub sources: &'a [Url],
    pub expected: Expected,
    /// Any of them ends it.
    pub stops: [&'a Stop; 2],
    pub gauge: &'a Gauge,
    /// Where pieces go.
    pub pieces: Sender<Vec<u8>>,
}

/// What is known so far.
struct Known {
    digest: Sha256,
    at: u64,
    /// What was not handed on yet.
    piece: Vec<u8>,
    used: Receiver<Vec<u8>>,
    total: Option<u64>,
    /// The server's word for what it serves.
    validator: Option<String>,
}

/// Whether it is worth another try with the same source.
enum Failed {
    Again(Error),
    Never(Error),
}

impl Download<'_> {
    /// Blocks until all of it was handed on, and is what was expected. Pieces that come back are `used` again.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn run(self, used: Receiver<Vec<u8>>) -> Result<Downloaded, Error> {
        rt::try_block_on(self.fetch(used)).map_err(Error::Io)?
    }

    async fn fetch(self, used: Receiver<Vec<u8>>) -> Result<Downloaded, Error> {
        let [first, second] = self.stops;
        let stopped = rt::select(said(first)?, said(second)?);
        match rt::select(self.any_source(used), stopped).await {
            Either::Left(done) => done,
            Either::Right(_) => Err(Error::Stopped),
        }
    }

    async fn any_source(&self, used: Receiver<Vec<u8>>) -> Result<Downloaded, Error> {
        let tls = match self.sources.iter().any(|source| source.https) {
            true => Some(Arc::new(roots::tls(None).map_err(Error::Roots)?)),
            false => None,
        };
        let mut known = Known {
            digest: Sha256::new(),
            at: 0,
            piece: Vec::with_capacity(PIECE),
            used,
            total: self.expected.size,
            validator: None,
        };
        let (mut resumed, mut failures, mut last) = (0, 0, Error::Stopped);
        let mut sources = self.sources.iter().peekable();
        while let Some(source) = sources.peek() {
            let before = known.at;
            let error = match self.try_source(source, &tls, &mut known).await {
                Ok(from) => {
                    let packed = self.measured(&mut known).await?;
                    return Ok(Downloaded {
                        packed,
                        from,
                        resumed,
                    });
                }
                Err(Failed::Never(error @ Error::Stopped)) => return Err(error),
                Err(failed) => failed,
            };
            failures = match known.at - before {
                PROGRESS.. => 1,
                _ => failures + 1,
            };
            let (error, again) = match error {
                Failed::Again(error) => (error, true),
                Failed::Never(error) => (error, false),
            };
            log::event(
                Level::Info,
                "deploy.download_broken",
                &[
                    ("bytes", Value::Number(known.at)),
                    ("error", Value::Chain(&error)),
                ],
            );
            last = error;
            let has_next = self.sources.last() != Some(*source);
            // A cache is asked once; the last source, until there is no hope.
            if has_next || !again || failures >= TRIES {
                sources.next();
                failures = 0;
            } else {
                let draw = random::bytes().map_or(0, u64::from_le_bytes);
                rt::sleep(WAIT.wait(failures, draw)).await;
            }
            resumed += u32::from(known.at > 0);
        }
        Err(last)
    }

    async fn measured(&self, known: &mut Known) -> Result<Measured, Error> {
        self.hand_on(known).await.map_err(Failed::into_error)?;
        let packed = Measured {
            sha256: std::mem::take(&mut known.digest).finish(),
            size: known.at,
        };
        match self.expected {
            Expected {
                size: Some(expected),
                ..
            } if expected != packed.size => Err(Error::Size {
                expected,
                found: packed.size,
            }),
            Expected {
                sha256: Some(expected),
                ..
            } if expected != packed.sha256 => Err(Error::Digest {
                expected,
                found: packed.sha256,
            }),
            _ => Ok(packed),
        }
    }

    /// Fetches what is missing; the URL it came from at last.
    async fn try_source(
        &self,
        source: &Url,
        tls: &Option<Arc<ClientConfig>>,
        known: &mut Known,
    ) -> Result<Url, Failed> {
        let mut url = source.clone();
        for _ in 0..=REDIRECTS {
            if !url.https && self.expected.sha256.is_none() {
                return Err(Failed::Never(Error::Unpinned(url.to_string())));
            }
            let mut answer = self.ask(&url, tls, known).await?;
            let Some(next) = redirect(&url, &answer)? else {
                self.check(&url, &answer, known)?;
                let skip = match answer.status {
                    206 => 0,
                    _ => known.at,
                };
                self.take(&url, &mut answer, known, skip).await?;
                return Ok(url);
            };
            url = next;
        }
        Err(Failed::Never(Error::Redirects(source.to_string())))
    }

    async fn ask(
        &self,
        url: &Url,
        tls: &Option<Arc<ClientConfig>>,
        known: &Known,
    ) -> Result<Answer, Failed> {
        let range = ["bytes=", &known.at.to_string(), "-"].concat();
        let mut headers = vec![("Accept-Encoding", "identity")];
        if known.at > 0 {
            headers.push(("Range", &range));
            // With a digest to hold it against, whatever comes may be tried.
            if let Some(validator) = known.validator.as_deref()
                && self.expected.sha256.is_none()
            {
                headers.push(("If-Range", validator));
            }
        }
        let tls = match tls {
            Some(tls) if url.https => {
                let name = ServerName::try_from(url.host.clone());
                Some((tls.clone(), name.map_err(|_| never_range(url))?))
            }
            _ => None,
        };
        let request = Request {
            method: "GET",
            url,
            headers: &headers,
            body: None,
            tls,
            waits: Waits::default(),
        };
        let answer = client::send(&request).await;
        answer.map_err(|error| Failed::Again(Error::Http(url.to_string(), error)))
    }

    /// Whether the answer goes on where we are.
    fn check(&self, url: &Url, answer: &Answer, known: &mut Known) -> Result<(), Failed> {
        let total = match answer.status {
            200 => answer.body.length(),
            206 => {
                let range = answer.header("content-range").and_then(content_range);
                match range {
                    Some((from, total)) if from == known.at => total,
                    _ => return Err(never_range(url)),
                }
            }
            408 | 425 | 429 | 500.. => {
                return Err(Failed::Again(Error::Status(url.to_string(), answer.status)));
            }
            status => return Err(Failed::Never(Error::Status(url.to_string(), status))),
        };
        let validator = ["etag", "last-modified"]
            .iter()
            .find_map(|name| answer.header(name))
            .filter(|word| !word.starts_with("W/"))
            .map(str::to_owned);
        let pinned = self.expected.sha256.is_some();
        let same = validator.is_some() && validator == known.validator;
        if known.at > 0 && !pinned && !same {
            return Err(Failed::Never(Error::Changed(url.to_string())));
        }
        known.validator = validator;
        match (known.total, total) {
            (Some(expected), Some(found)) if expected != found => {
                // Before the first byte, so that a wrong image costs nothing.
                return Err(Failed::Never(Error::Size { expected, found }));
            }
            (None, None) if !pinned => {
                return Err(Failed::Never(Error::Endless(url.to_string())));
            }
            (None, Some(found)) if found < known.at => {
                return Err(Failed::Never(Error::Changed(url.to_string())));
            }
            (None, found) => known.total = found,
            _ => {}
        }
        let total = known.total.unwrap_or_default();
        self.gauge.total.store(total, Ordering::Relaxed);
        Ok(())
    }

    async fn take(
        &self,
        url: &Url,
        answer: &mut Answer,
        known: &mut Known,
        mut skip: u64,
    ) -> Result<(), Failed> {
        loop {
            let next = answer.body.next().await;
            let Some(mut bytes) =
                next.map_err(|error| Failed::Again(Error::Http(url.to_string(), error)))?
            else {
                // A body without a length ends with its connection, wherever that is.
                return match known.total {
                    Some(expected) if known.at < expected => Err(Failed::Never(Error::Size {
                        expected,
                        found: known.at,
                    })),
                    _ => Ok(()),
                };
            };
            let known_already = usize::try_from(skip)
                .unwrap_or(bytes.len())
                .min(bytes.len());
            skip -= known_already as u64;
            bytes = bytes.get(known_already..).unwrap_or_default();
            if let Some(expected) = known.total
                && bytes.len() as u64 > expected - known.at
            {
                return Err(Failed::Never(Error::Size {
                    expected,
                    found: known.at + bytes.len() as u64,
                }));
            }
            known.digest.update(bytes);
            known.at += bytes.len() as u64;
            self.gauge.bytes.store(known.at, Ordering::Relaxed);
            // Never more than it was made for: making it larger would copy it.
            if known.piece.len() + bytes.len() > PIECE {
                self.hand_on(known).await?;
            }
            known.piece.extend_from_slice(bytes);
        }
    }

    async fn hand_on(&self, known: &mut Known) -> Result<(), Failed> {
        let mut next = known.used.try_recv().unwrap_or_default();
        next.clear();
        next.reserve(PIECE);
        let piece = std::mem::replace(&mut known.piece, next);
        let sent = self.pieces.send(piece).await;
        sent.map_err(|_| Failed::Never(Error::Stopped))
    }
}

/// Waits until `stop` is said.
fn said(stop: &Stop) -> Result<Pin<Box<dyn Future<Output = ()> + '_>>, Error> {
    let readiness = Readiness::new(stop).map_err(Error::Io)?;
    let is_said = move || match stop.is_said() {
        true => Ok(()),
        false => Err(io::ErrorKind::WouldBlock.into()),
    };
    Ok(Box::pin(async move {
        let _ = poll_fn(|cx| readiness.poll_read(cx, is_said)).await;
        readiness.remove(stop);
    }))
}

impl Failed {
    fn into_error(self) -> Error {
        match self {
            Self::Again(error) | Self::Never(error) => error,
        }
    }
}

fn never_range(url: &Url) -> Failed {
    Failed::Never(Error::Range(url.to_string()))
}

/// Where an answer sends us.
fn redirect(url: &Url, answer: &Answer) -> Result<Option<Url>, Failed> {
    if !matches!(answer.status, 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    let to = answer.header("location").unwrap_or_default();
    let to = match to {
        path if path.starts_with('/') && !path.starts_with("//") => Some(url.with_path(path)),
        whole => Url::parse(whole).ok(),
    };
    to.map(Some)
        .ok_or_else(|| Failed::Never(Error::Redirects(url.to_string())))
}

/// `bytes 5-9/10`: where it begins, and how much there is in all, if the server knows.
fn content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let number = |text: &str| match text.bytes().all(|b| b.is_ascii_digit()) {
        true => text.parse::<u64>().ok(),
        false => None,
    };
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (from, to) = range.split_once('-')?;
    let (from, to) = (number(from)?, number(to)?);
    let total = match total {
        "*" => None,
        total => Some(number(total).filter(|total| to < *total)?),
    };
    (from <= to).then_some((from, total))
}

impl Error {
    /// For programs.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Size { .. } => "ImageSize",
            Self::Digest { .. } => "ImageDigest",
            Self::Changed(_) => "ImageChanged",
            Self::Unpinned(_) | Self::Endless(_) => "ImageUnpinned",
            Self::Stopped => "Cancelled",
            _ => "DownloadFailed",
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = digest::hex;
        match self {
            Self::Roots(_) => f.write_str("the CA certificates cannot be used"),
            Self::Io(_) => f.write_str("the download cannot begin"),
            Self::Unpinned(url) => write!(
                f,
                "{url} is not https://, so the image must be pinned: give its SHA-256"
            ),
            Self::Http(url, _) => write!(f, "{url} did not send all of it"),
            Self::Status(url, status) => write!(f, "{url} answered HTTP {status}"),
            Self::Redirects(url) => {
                write!(f, "{url} leads on to no URL, or to more than {REDIRECTS}")
            }
            Self::Range(url) => {
                write!(f, "{url} answered for another range or name than was asked")
            }
            Self::Changed(url) => write!(
                f,
                "the connection broke, and {url} does not say that it still serves the same file: give the image's \
                 SHA-256, so that a download can go on"
            ),
            Self::Size { expected, found } => {
                write!(
                    f,
                    "the image has {found} bytes or more, and {expected} were expected"
                )
            }
            Self::Digest { expected, found } => write!(
                f,
                "the image's SHA-256 is {}, and {} was expected",
                hex(found),
                hex(expected)
            ),
            Self::Endless(url) => write!(
                f,
                "{url} does not say how long the image is: give its size or its SHA-256"
            ),
            Self::Stopped => f.write_str("the download was stopped"),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Roots(error) => Some(error),
            Self::Io(error) => Some(error),
            Self::Http(_, error) => Some(error),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// What a download comes to whose sources answer so, one after the other.
    fn answered(answers: [&'static str; 2]) -> Result<Downloaded, Error> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = std::thread::spawn(move || {
            for answer in answers {
                let (mut peer, _) = listener.accept().unwrap();
                let _ = peer.read(&mut [0; 4096]);
                peer.write_all(answer.as_bytes()).unwrap();
            }
        });
        let sources = ["a", "b"].map(|name| Url::parse(&format!("http://127.0.0.1:{port}/{name}")));
        let stops = [Stop::new().unwrap(), Stop::new().unwrap()];
        let (pieces, _taken) = rt::channel(8);
        let download = Download {
            sources: &sources.map(Result::unwrap),
            expected: Expected {
                sha256: Some([7; 32]),
                size: None,
            },
            stops: stops.each_ref(),
            gauge: &Gauge::default(),
            pieces,
        };
        let done = download.run(rt::channel(1).1);
        server.join().unwrap();
        done
    }

    #[test]
    fn a_source_that_has_less_than_came_before_has_another_file() {
        let first = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n8\r\n01234567\r\n";
        let second = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n0123";
        let done = answered([first, second]);
        assert!(matches!(done, Err(Error::Changed(_))), "{done:?}");
    }

    #[test]
    fn a_range_is_what_the_server_says_or_nothing() {
        for (text, range) in [
            ("bytes 5-9/10", Some((5, Some(10)))),
            ("bytes 0-0/*", Some((0, None))),
            ("bytes 5-9/9", None),
            ("bytes 9-5/10", None),
            ("bytes */10", None),
            ("bytes -5-9/10", None),
            ("bytes 5-/10", None),
            ("items 5-9/10", None),
            ("bytes 99999999999999999999-9/10", None),
        ] {
            assert_eq!(content_range(text), range, "{text}");
        }
    }
}
