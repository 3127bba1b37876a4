//! A request's query: named values, each at most once, none that the route does not take; and waiting
//! for news.

use std::future::Future;
use std::time::{Duration, Instant};

use bcd::rt;

use super::{Api, Refused};

/// How long a request may wait for news.
const WAIT_MAX_S: i64 = 30;
/// Requests that wait at once.
const WAITING_MAX: usize = 128;
/// How long after the first news a request looks again: what comes together is seen together.
const GATHER: Duration = Duration::from_millis(100);
/// How many things a list has at once.
pub const LIST_MAX: i64 = 1_000;
const LIST_DEFAULT: i64 = 100;

/// What a request asks beside its path.
pub struct Query<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Query<'a> {
    /// # Errors
    /// A name that is not in `known`, or that is there twice, or a value with a character that no value
    /// of this API needs.
    pub fn new(text: &'a str, known: &[&str]) -> Result<Self, Refused> {
        let mut pairs: Vec<(&str, &str)> = Vec::new();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if !known.contains(&name) {
                return Err(Refused::invalid(match known {
                    [] => "this path takes no query".to_owned(),
                    known => format!("the query of this path has only {}", known.join(", ")),
                }));
            }
            let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b':');
            if value.is_empty() || !value.bytes().all(plain) {
                return Err(Refused::invalid(format!(
                    "{name} in the query is malformed"
                )));
            }
            if pairs.iter().any(|(other, _)| *other == name) {
                return Err(Refused::invalid(format!("{name} is in the query twice")));
            }
            pairs.push((name, value));
        }
        Ok(Self(pairs))
    }

    pub fn text(&self, name: &str) -> Option<&'a str> {
        let found = self.0.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| *value)
    }

    /// A number from 0 to `max`.
    pub fn number(&self, name: &str, max: i64) -> Result<Option<i64>, Refused> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        match text.parse() {
            Ok(number) if (0..=max).contains(&number) => Ok(Some(number)),
            _ => Err(Refused::invalid(format!(
                "{name} in the query is a whole number from 0 to {max}"
            ))),
        }
    }

    /// How many things a list shall have at most.
    pub fn limit(&self) -> Result<u32, Refused> {
        let limit = self.number("limit", LIST_MAX)?.unwrap_or(LIST_DEFAULT);
        Ok(u32::try_from(limit.max(1)).unwrap_or(1))
    }

    /// How long the answer may wait for news.
    pub fn wait(&self) -> Result<Duration, Refused> {
        let seconds = self.number("wait", WAIT_MAX_S)?.unwrap_or(0);
        Ok(Duration::from_secs(seconds.unsigned_abs()))
    }
}

impl Api {
    /// Reads until there is something to tell or the wait is over; `read` says which with its value.
    pub(super) async fn read_until<T, F>(
        &self,
        wait: Duration,
        read: impl Fn() -> F,
    ) -> Result<T, Refused>
    where
        F: Future<Output = Result<(T, bool), Refused>>,
    {
        let until = Instant::now() + wait;
        let mut turn = None;
        loop {
            let count = self.gateway.news.count();
            let (value, news) = read().await?;
            if news || wait.is_zero() || Instant::now() >= until {
                return Ok(value);
            }
            if turn.is_none() {
                turn = Some(self.waiting_turn()?);
            }
            let rung = self.gateway.news.since(count);
            if rt::timeout_at(until, rung).await.is_ok() {
                rt::sleep(GATHER).await;
            }
        }
    }

    fn waiting_turn(&self) -> Result<Turn<'_>, Refused> {
        if self.waiting.get() >= WAITING_MAX {
            return Err(Refused(
                503,
                "UNAVAILABLE",
                "too many requests wait for news already: try again later".to_owned(),
            ));
        }
        self.waiting.set(self.waiting.get() + 1);
        Ok(Turn(self))
    }
}

/// A request that waits, until dropped.
struct Turn<'a>(&'a Api);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get().saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_taken_whole_or_not_at_all() {
        let known = &["after", "wait", "limit", "node"];
        let query = Query::new("node=node_1&after=7&wait=30", known)
            .ok()
            .unwrap();
        assert_eq!(query.text("node"), Some("node_1"));
        assert_eq!(query.number("after", 9).ok().unwrap(), Some(7));
        assert_eq!(query.wait().ok().unwrap(), Duration::from_secs(30));
        assert_eq!(query.limit().ok().unwrap(), 100);
        assert!(Query::new("", known).is_ok());
        for bad in [
            "x=1",
            "after=1&after=2",
            "after",
            "after=",
            "after=%31",
            "node=a b",
        ] {
            assert!(Query::new(bad, known).is_err(), "{bad}");
        }
        for bad in ["wait=31", "wait=-1", "wait=x", "limit=1001"] {
            let query = Query::new(bad, known).ok().unwrap();
            assert!(query.wait().is_err() || query.limit().is_err(), "{bad}");
        }
    }
}
