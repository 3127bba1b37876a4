//! The download of an image: from the first of its sources that has it, each byte once and in order, however often the
//! connection breaks.
//!
//! What came is not fetched again: the rest is asked for by its range. Whether the rest belongs to what came is the
//! pinned digest's to say; without one the server's own word (`ETag`, `Last-Modified`) must be the same. A server that
//! knows no ranges begins anew, and what is known is passed over. What a source claims of the length binds nobody but its
//! own answer.
use std::cell::RefCell;
use std::error::Error as StdError;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use crate::attest::roots;
use crate::crypto::digest::{self, Sha256};
use crate::facts::tree::clean;
use crate::rt::backoff::Backoff;
use crate::rt::channel::{Receiver, Sender};
use crate::rt::{self, Either, Readiness};
use crate::sys::log::{self, Level, Value};
use crate::sys::random;
use crate::sys::stop::Stop;
use crate::wire::http1::client::{self, Answer, Cause, HttpError, Request, Waits};
use crate::wire::url::Url;

/// Of a piece that is handed on.
const PIECE: usize = 64 * 1024;
const REDIRECTS: usize = 5;
/// Tries in a row that bring next to nothing, and what is more than that.
const TRIES: u32 = 6;
const PROGRESS: u64 = 1024 * 1024;

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

/// What others see of a download: how far it is, and what it came to.
#[derive(Debug, Default)]
pub struct Gauge {
    pub bytes: AtomicU64,
    /// 0: not known.
    pub total: AtomicU64,
    /// The source whose answer it begins with, counted from 1; 0: none.
    pub source: AtomicUsize,
    /// All of it is there, and has the digest that was given.
    pub holds: AtomicBool,
}

/// A download that came to its end.
#[derive(Debug)]
pub struct Downloaded {
    pub packed: Measured,
    /// Where the last of it came from, without a query.
    pub from: String,
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
    /// It leads on too often; and where to, when that is no URL.
    Redirects(String),
    Location(String, String),
    /// It ended before its end, in bytes.
    Cut {
        from: String,
        at: u64,
        total: u64,
    },
    /// It keeps us waiting, and another source does not.
    Slow(String),
    /// It is packed in a way that nobody asked for.
    Encoding(String),
    /// The answer is about another range than was asked for.
    Range(String),
    /// It is another file than it was when the download began; and whether a digest was given.
    Changed(String, bool),
    /// It has another length.
    Size {
        from: String,
        expected: u64,
        found: u64,
    },
    /// It has another digest.
    Digest {
        from: String,
        expected: [u8; 32],
        found: [u8; 32],
    },
    /// Neither the server nor the order says where it ends.
    Endless(String),
    /// It was to stop, or nobody takes the bytes any more.
    Stopped,
}

/// How patient a download is.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Between tries.
    pub retry: Backoff,
    /// A source that has another behind it brings 1 MiB while it keeps us waiting so long.
    pub progress_in: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            retry: Backoff::new(Duration::from_millis(500), Duration::from_secs(20)),
            progress_in: Duration::from_secs(60),
        }
    }
}

/// What to fetch.
pub struct Download<'a> {
    /// Tried in turn.
    pub sources: &'a [Url],
    pub expected: Expected,
    pub pace: Pace,
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
    /// How long it is: by the order, or else by the answer that is read.
    total: Option<u64>,
    /// The server's word for what it serves.
    validator: Option<String>,
    /// How often an answer went on where another broke off.
    resumed: u32,
    /// A server says that it packed it anew.
    encoded: bool,
}

/// One of the sources.
struct Source<'a> {
    url: &'a Url,
    /// Counted from 1.
    nth: usize,
    has_next: bool,
    /// What all of them trust, once one is `https://`.
    tls: &'a RefCell<Option<Arc<ClientConfig>>>,
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
        let mut known = Known {
            digest: Sha256::new(),
            at: 0,
            piece: Vec::with_capacity(PIECE),
            used,
            total: None,
            validator: None,
            resumed: 0,
            encoded: false,
        };
        let tls = RefCell::new(None);
        let (mut failures, mut last) = (0, Error::Stopped);
        let mut sources = self.sources.iter().enumerate().peekable();
        while let Some((nth, source)) = sources.peek().copied() {
            let before = known.at;
            let asked = Source {
                url: source,
                nth: nth + 1,
                has_next: nth + 1 < self.sources.len(),
                tls: &tls,
            };
            let (error, again) = match self.try_source(&asked, &mut known).await {
                Ok(from) => return self.measured(&mut known, from).await,
                Err(Failed::Never(error @ Error::Stopped)) => return Err(error),
                // It broke behind the last byte.
                Err(_) if self.is_whole(&known) => {
                    return self.measured(&mut known, shown(source)).await;
                }
                Err(Failed::Again(error)) => (error, true),
                Err(Failed::Never(error)) => (error, false),
            };
            failures = match known.at - before {
                PROGRESS.. => 1,
                _ => failures + 1,
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
            // A cache is asked once; the last source, until there is no hope.
            if asked.has_next || !again || failures >= TRIES {
                sources.next();
                failures = 0;
            } else {
                let draw = random::bytes().map_or(0, u64::from_le_bytes);
                rt::sleep(self.pace.retry.wait(failures, draw)).await;
            }
        }
        Err(last)
    }

    /// Whether there is nothing more to ask for.
    fn is_whole(&self, known: &Known) -> bool {
        match (self.expected.sha256, known.total) {
            (Some(sha256), _) => known.at > 0 && known.digest.clone().finish() == sha256,
            (None, total) => known.at > 0 && total == Some(known.at),
        }
    }

    async fn measured(&self, known: &mut Known, from: String) -> Result<Downloaded, Error> {
        self.hand_on(known).await.map_err(Failed::into_error)?;
        let found = std::mem::take(&mut known.digest).finish();
        let packed = Measured {
            sha256: found,
            size: known.at,
        };
        let Expected { sha256, size } = self.expected;
        if let Some(expected) = size.filter(|expected| *expected != packed.size) {
            let found = packed.size;
            return Err(Error::Size {
                from,
                expected,
                found,
            });
        }
        if let Some(expected) = sha256.filter(|expected| *expected != found) {
            return Err(match known.encoded {
                true => Error::Encoding(from),
                false => Error::Digest {
                    from,
                    expected,
                    found,
                },
            });
        }
        self.gauge.holds.store(sha256.is_some(), Ordering::Relaxed);
        Ok(Downloaded {
            packed,
            from,
            resumed: known.resumed,
        })
    }

    /// Fetches what is missing; where it came from at last.
    async fn try_source(&self, source: &Source<'_>, known: &mut Known) -> Result<String, Failed> {
        let mut url = source.url.clone();
        for _ in 0..=REDIRECTS {
            if !url.https && self.expected.sha256.is_none() {
                return Err(Failed::Never(Error::Unpinned(shown(&url))));
            }
            let mut answer = self.ask(&url, source, known).await?;
            let Some(next) = redirect(&url, &answer)? else {
                self.check(&url, &answer, known)?;
                let skip = match answer.status {
                    206 => 0,
                    _ => known.at,
                };
                match known.at {
                    0 => self.gauge.source.store(source.nth, Ordering::Relaxed),
                    _ => known.resumed += 1,
                }
                self.take(&url, &mut answer, source, known, skip).await?;
                return Ok(shown(&url));
            };
            url = next;
        }
        Err(Failed::Never(Error::Redirects(shown(source.url))))
    }

    async fn ask(&self, url: &Url, source: &Source<'_>, known: &Known) -> Result<Answer, Failed> {
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
        let tls = match url.https {
            true => {
                let name = ServerName::try_from(url.host.clone());
                Some((source.tls()?, name.map_err(|_| never_range(url))?))
            }
            false => None,
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
        answer.map_err(|error| match error.cause {
            Cause::Request(_) => Failed::Never(Error::Http(shown(url), error)),
            _ => Failed::Again(Error::Http(shown(url), error)),
        })
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
            // It has no more than came already: then it has another file.
            416 if known.at > 0 => return Err(self.changed(url)),
            408 | 425 | 429 | 500.. => {
                return Err(Failed::Again(Error::Status(shown(url), answer.status)));
            }
            status => return Err(Failed::Never(Error::Status(shown(url), status))),
        };
        let validator = ["etag", "last-modified"]
            .iter()
            .filter_map(|name| answer.header(name))
            .find(|word| !word.starts_with("W/"))
            .map(str::to_owned);
        let pinned = self.expected.sha256.is_some();
        let coding = answer.header("content-encoding").unwrap_or_default();
        if !coding.is_empty() && !coding.eq_ignore_ascii_case("identity") {
            // Some servers say so of what is packed by itself: with a digest it is told when it was true.
            known.encoded = true;
            if !pinned {
                return Err(Failed::Never(Error::Encoding(shown(url))));
            }
        }
        let same = validator.is_some()
            && validator == known.validator
            && (total.is_none() || total == known.total);
        if known.at > 0 && !pinned && !same || total.is_some_and(|total| total < known.at) {
            return Err(self.changed(url));
        }
        known.validator = validator;
        known.total = match (self.expected.size, total) {
            (Some(expected), Some(found)) if expected != found => {
                // Before the first byte, so that a wrong image costs nothing.
                return Err(Failed::Never(Error::Size {
                    from: shown(url),
                    expected,
                    found,
                }));
            }
            (None, None) if !pinned => {
                return Err(Failed::Never(Error::Endless(shown(url))));
            }
            (expected, found) => expected.or(found),
        };
        let total = known.total.unwrap_or_default();
        self.gauge.total.store(total, Ordering::Relaxed);
        Ok(())
    }

    /// With a digest it may be something else for a while only.
    fn changed(&self, url: &Url) -> Failed {
        let pinned = self.expected.sha256.is_some();
        let error = Error::Changed(shown(url), pinned);
        match pinned {
            true => Failed::Again(error),
            false => Failed::Never(error),
        }
    }

    async fn take(
        &self,
        url: &Url,
        answer: &mut Answer,
        source: &Source<'_>,
        known: &mut Known,
        mut skip: u64,
    ) -> Result<(), Failed> {
        // How long it kept us waiting for less than is progress.
        let (mut waited, mut since) = (Duration::ZERO, 0_u64);
        loop {
            let asked = Instant::now();
            let next = answer.body.next().await;
            let Some(mut bytes) =
                next.map_err(|error| Failed::Again(Error::Http(shown(url), error)))?
            else {
                // A body without a length ends with its connection, and a range where the server likes.
                return match known.total.filter(|total| known.at < *total) {
                    Some(total) => Err(Failed::Again(Error::Cut {
                        from: shown(url),
                        at: known.at,
                        total,
                    })),
                    None => Ok(()),
                };
            };
            since += bytes.len() as u64;
            waited += asked.elapsed();
            if since >= PROGRESS {
                (waited, since) = (Duration::ZERO, 0);
            } else if source.has_next && waited > self.pace.progress_in {
                return Err(Failed::Again(Error::Slow(shown(url))));
            }
            let known_already = usize::try_from(skip)
                .unwrap_or(bytes.len())
                .min(bytes.len());
            skip -= known_already as u64;
            bytes = bytes.get(known_already..).unwrap_or_default();
            if let Some(expected) = known.total
                && bytes.len() as u64 > expected - known.at
            {
                return Err(Failed::Never(Error::Size {
                    from: shown(url),
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

impl Source<'_> {
    fn tls(&self) -> Result<Arc<ClientConfig>, Failed> {
        if let Some(tls) = &*self.tls.borrow() {
            return Ok(tls.clone());
        }
        let roots = roots::tls(None).map_err(|error| Failed::Never(Error::Roots(error)))?;
        Ok(self.tls.borrow_mut().insert(Arc::new(roots)).clone())
    }
}

/// A URL for logs and receipts: what a server adds behind a `?` may be a secret.
pub(super) fn shown(url: &Url) -> String {
    let (path, _) = url.path.split_once('?').unwrap_or((&url.path, ""));
    [&url.origin(), path].concat()
}

fn never_range(url: &Url) -> Failed {
    Failed::Never(Error::Range(shown(url)))
}

/// Where an answer sends us.
fn redirect(url: &Url, answer: &Answer) -> Result<Option<Url>, Failed> {
    if !matches!(answer.status, 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    let to = answer.header("location").unwrap_or_default();
    match url.join(to) {
        Ok(next) if !to.is_empty() => Ok(Some(next)),
        _ => {
            // Neither a password nor a token.
            let to = to.split(['?', '#', ';']).next().unwrap_or_default();
            let to = to.rsplit('@').next().unwrap_or_default();
            Err(Failed::Never(Error::Location(
                shown(url),
                clean(to.as_bytes()),
            )))
        }
    }
}

/// `bytes 5-9/10`: where it begins, and how much there is in all, if the server knows.
fn content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let number = |text: &str| match text.bytes().all(|b| b.is_ascii_digit()) {
        true => text.parse::<u64>().ok(),
        false => None,
    };
    let (unit, range) = text.split_once(' ')?;
    let (range, total) = range.split_once('/')?;
    if !unit.eq_ignore_ascii_case("bytes") {
        return None;
    }
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
            Self::Changed(..) => "ImageChanged",
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
                write!(f, "{url} leads on more than {REDIRECTS} times")
            }
            Self::Location(url, to) => {
                write!(
                    f,
                    "{url} leads on to {to:?}, which is no http:// or https:// URL"
                )
            }
            Self::Cut { from, at, total } => {
                write!(f, "{from} ended after {at} of {total} bytes")
            }
            Self::Slow(url) => write!(f, "{url} sends less than 1 MiB a minute"),
            Self::Encoding(url) => write!(
                f,
                "{url} sends the image packed anew (Content-Encoding), which it was not asked for"
            ),
            Self::Range(url) => {
                write!(f, "{url} answered for another range or name than was asked")
            }
            Self::Changed(url, pinned) => {
                write!(
                    f,
                    "the connection broke, and {url} does not say that it still serves the same file, or has less of it"
                )?;
                match pinned {
                    true => Ok(()),
                    false => {
                        f.write_str(": give the image's SHA-256, so that a download can go on")
                    }
                }
            }
            Self::Size {
                from,
                expected,
                found,
            } => write!(
                f,
                "the image from {from} has {found} bytes or more, and {expected} were expected"
            ),
            Self::Digest {
                from,
                expected,
                found,
            } => write!(
                f,
                "the SHA-256 of the image from {from} is {}, and {} was expected",
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
mod tests;
