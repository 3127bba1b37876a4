//! Facts are told when they changed, as an event of the journal.
//!
//! They are collected with the first session, then hourly, and sooner when the kernel tells of a changed
//! link, address or device. Nothing waits for that word: [`Duty`] looks when a session begins and at each
//! heartbeat, the moments at which an idle node is awake anyway. A disk that is found late, as behind a
//! controller that takes its time, is told half a minute after the first facts at the earliest; while word keeps coming the
//! gap doubles, up to ten minutes, so a link that flaps makes no flood. After word of the network alone, the
//! interfaces are read first, and the rest only if they are not as they were. In a ramdisk, what init found
//! out is told at the next of these moments: it comes once, and a ramdisk does not run for long.
//!
//! What was told last is remembered by its digest, a mark in the journal: a restart tells nothing anew.
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use super::tree::Tree;
use super::{Problems, complete, init, nics};
use crate::crypto::digest::sha256;
use crate::journal::{Class, Entry, Journal, JournalError, Keyed, Kind};
use crate::proto::{Event, EventBody, Facts, Message};
use crate::rt;
use crate::sys::clock;
use crate::sys::log::{self, Level, Value};
use crate::sys::netlink::{News, Watch};

/// The journal's key for the digest of what was told.
const MARK: &str = "facts";
/// Without any word of a change.
const EVERY: Duration = Duration::from_secs(3600);
/// Between a collection and the next that news asks for, after a time without any.
const GAP: Duration = Duration::from_secs(30);
/// The same while news keeps coming: the gap doubles up to this.
const MAX_GAP: Duration = Duration::from_secs(600);
/// A collection that takes longer hangs in some driver.
const LONG: Duration = Duration::from_secs(120);

/// Collects and tells. Clones share what was told last, and take turns.
#[derive(Clone)]
pub struct Reporter {
    journal: Journal,
    last: Arc<Mutex<Last>>,
}

/// What the last collection found.
#[derive(Default)]
struct Last {
    /// Of the facts that were told.
    told: Option<[u8; 32]>,
    /// Of the interfaces alone.
    interfaces: Option<[u8; 32]>,
}

/// Why facts are collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Anything may have changed.
    Any,
    /// A link or an address may have changed.
    Network,
}

impl Reporter {
    /// `entries` are those the journal held when it was opened.
    pub fn new(journal: Journal, entries: &[Keyed]) -> Self {
        let mark = entries
            .iter()
            .find(|entry| entry.kind == Kind::Mark && entry.key == MARK);
        let last = Last {
            told: mark.and_then(|entry| entry.value.as_slice().try_into().ok()),
            interfaces: None,
        };
        Self {
            journal,
            last: Arc::new(Mutex::new(last)),
        }
    }

    /// Collects the facts, and tells them if they are not those told last. `None`: the interfaces were all
    /// that could have changed, and did not. Blocks.
    pub fn report(&self, cause: Cause) -> Option<Facts> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let tree = Tree::new("/".as_ref());
        let mut problems = Problems::default();
        let network = Facts {
            interfaces: nics::read(&tree, &mut problems),
            ..Facts::default()
        };
        let interfaces = sha256(&network.encode_to_vec());
        if last.interfaces.replace(interfaces) == Some(interfaces) && cause == Cause::Network {
            return None;
        }
        let facts = complete(&tree, network.interfaces, problems);
        let problems = facts.problems.len() as u64;
        let event = Event {
            body: Some(EventBody::Facts(facts)),
            ..Event::default()
        };
        let body = event.encode_to_vec();
        let digest = sha256(&body);
        if last.told != Some(digest) {
            let bytes = body.len() as u64;
            match self.tell(body, digest) {
                Ok(()) => {
                    last.told = Some(digest);
                    log::event(
                        Level::Info,
                        "facts.told",
                        &[
                            ("bytes", Value::Number(bytes)),
                            ("problems", Value::Number(problems)),
                        ],
                    );
                }
                // The next collection tries again.
                Err(error) => {
                    log::event(
                        Level::Warn,
                        "facts.not_told",
                        &[("error", Value::Chain(&error))],
                    );
                }
            }
        }
        match event.body {
            Some(EventBody::Facts(facts)) => Some(facts),
            _ => None,
        }
    }

    fn tell(&self, body: Vec<u8>, digest: [u8; 32]) -> Result<(), JournalError> {
        let event = Entry::Event {
            class: Class::Status,
            body,
        };
        let mark = Entry::Put {
            kind: Kind::Mark,
            key: MARK.to_owned(),
            value: digest.to_vec(),
        };
        self.journal.commit_blocking(vec![event, mark]).map(drop)
    }
}

/// The loop's part: decides when, and starts the thread.
pub struct Duty {
    reporter: Reporter,
    watch: Watch,
    pace: Rc<RefCell<Pace>>,
    /// When init had last written, at the last look.
    wrote: Cell<Option<SystemTime>>,
}

impl Duty {
    pub fn new(reporter: Reporter) -> Self {
        Self {
            reporter,
            watch: Watch::start(),
            pace: Rc::default(),
            wrote: Cell::default(),
        }
    }

    /// Looks whether it is time, and collects on a thread of its own if so. Call it when a session
    /// began, and at each heartbeat.
    pub fn look(&self) {
        let news = self.watch.news();
        let wrote = init::wrote();
        if self.wrote.replace(wrote) != wrote {
            self.pace.borrow_mut().at_once();
        }
        let step = self.pace.borrow_mut().step(clock::monotonic(), news);
        let cause = match step {
            Step::Rest => return,
            Step::Complain => {
                log::event(
                    Level::Warn,
                    "facts.hang",
                    &[("after_s", Value::Number(LONG.as_secs()))],
                );
                return;
            }
            Step::Collect(cause) => cause,
        };
        let reporter = self.reporter.clone();
        let pace = self.pace.clone();
        rt::spawn(async move {
            let done = rt::blocking("facts", move || reporter.report(cause).is_some()).await;
            if let Err(error) = done {
                let fields = [("error", Value::Chain(&error))];
                log::event(Level::Error, "facts.failed", &fields);
            }
            pace.borrow_mut().running = None;
        });
    }
}

/// What there is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Rest,
    Collect(Cause),
    /// The collection hangs. Said once.
    Complain,
}

/// When facts were collected, and what was heard since. Times are monotonic.
#[derive(Default)]
struct Pace {
    /// The last collection of everything, and of anything.
    whole: Option<Duration>,
    any: Option<Duration>,
    news: News,
    /// Between the last collection and the next that news asks for.
    gap: Duration,
    /// A collection that has not ended, since when, and whether it was complained of.
    running: Option<(Duration, bool)>,
}

impl Pace {
    /// Everything is collected at the next step.
    fn at_once(&mut self) {
        self.whole = None;
    }

    fn step(&mut self, now: Duration, news: News) -> Step {
        self.news.network |= news.network;
        self.news.devices |= news.devices;
        if let Some((since, complained)) = &mut self.running {
            let hangs = now.saturating_sub(*since) >= LONG && !*complained;
            *complained |= hangs;
            return if hangs { Step::Complain } else { Step::Rest };
        }
        let over =
            |last: Option<Duration>, span| last.is_none_or(|last| now.saturating_sub(last) >= span);
        let may = over(self.any, self.gap);
        let cause = if over(self.whole, EVERY) || (may && self.news.devices) {
            Cause::Any
        } else if may && self.news.network {
            Cause::Network
        } else {
            return Step::Rest;
        };
        self.gap = if over(self.any, 2 * MAX_GAP) {
            GAP
        } else {
            MAX_GAP.min(2 * self.gap)
        };
        self.news = News::default();
        self.any = Some(now);
        if cause == Cause::Any {
            self.whole = Some(now);
        }
        self.running = Some((now, false));
        Step::Collect(cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{Limits, MAX_BODY};
    use crate::proto::{Disk, Gpu, NetworkInterface};
    use crate::sys::fs::Dir;

    const NOTHING: News = News {
        network: false,
        devices: false,
    };
    const NETWORK: News = News {
        network: true,
        devices: false,
    };
    const DEVICES: News = News {
        network: false,
        devices: true,
    };

    #[test]
    fn facts_are_collected_at_first_then_hourly_and_sooner_on_news_but_never_in_a_flood() {
        let mut pace = Pace::default();
        #[rustfmt::skip]
        let table = [
            // seconds, news, step
            (0, NOTHING, Step::Collect(Cause::Any)),
            // A disk that was found late.
            (15, DEVICES, Step::Rest),
            (29, NOTHING, Step::Rest),
            (30, NOTHING, Step::Collect(Cause::Any)),
            // Flapping: heard, and looked into when the time has come, which is later each time.
            (45, NETWORK, Step::Rest),
            (89, NETWORK, Step::Rest),
            (90, NETWORK, Step::Collect(Cause::Network)),
            (209, NETWORK, Step::Rest),
            (210, NETWORK, Step::Collect(Cause::Network)),
            (449, NETWORK, Step::Rest),
            (450, NETWORK, Step::Collect(Cause::Network)),
            (929, NETWORK, Step::Rest),
            (930, NETWORK, Step::Collect(Cause::Network)),
            (1529, NETWORK, Step::Rest),
            (1530, NETWORK, Step::Collect(Cause::Network)),
            (2130, DEVICES, Step::Collect(Cause::Any)),
            (2131, NETWORK, Step::Rest),
            (2730, NOTHING, Step::Collect(Cause::Network)),
            // Looking at the network does not put off the rest.
            (5729, NOTHING, Step::Rest),
            (5730, NOTHING, Step::Collect(Cause::Any)),
            // After a long silence the next word is taken up soon again.
            (5759, DEVICES, Step::Rest),
            (5760, NOTHING, Step::Collect(Cause::Any)),
            (5819, DEVICES, Step::Rest),
            (5820, NOTHING, Step::Collect(Cause::Any)),
        ];
        for (seconds, news, expected) in table {
            let now = Duration::from_secs(7 + seconds);
            assert_eq!(pace.step(now, news), expected, "{seconds}");
            pace.running = None;
        }
        // What init wrote does not wait, but for a collection that runs.
        pace.running = Some((Duration::from_secs(5860), false));
        pace.at_once();
        let now = Duration::from_secs(5870);
        assert_eq!(pace.step(now, NOTHING), Step::Rest);
        pace.running = None;
        assert_eq!(pace.step(now, NOTHING), Step::Collect(Cause::Any));
    }

    #[test]
    fn a_collection_that_hangs_is_complained_of_once_and_never_doubled() {
        let mut pace = Pace::default();
        let at = Duration::from_secs;
        assert_eq!(pace.step(at(0), NOTHING), Step::Collect(Cause::Any));
        assert_eq!(pace.step(at(119), DEVICES), Step::Rest);
        assert_eq!(pace.step(at(120), DEVICES), Step::Complain);
        assert_eq!(pace.step(at(7300), DEVICES), Step::Rest);
        pace.running = None;
        assert_eq!(pace.step(at(7301), NOTHING), Step::Collect(Cause::Any));
    }

    #[test]
    fn unchanged_facts_are_told_once_even_across_a_restart() {
        let path = crate::sys::fs::tests::scratch("facts-report");
        let dir = Dir::open(&path).unwrap();
        let limits = Limits {
            max_bytes: 1 << 20,
            max_events: 100,
        };
        let position = |journal: &Journal| journal.status().position;

        let (journal, recovered) = Journal::open(&dir, "node_1", limits).unwrap();
        let reporter = Reporter::new(journal.clone(), &recovered.entries);
        let facts = reporter.report(Cause::Any).unwrap();
        assert_eq!(position(&journal), 1);
        let stored = rt::block_on(journal.read(0, 1 << 20)).unwrap();
        let event = Event::decode(&stored[0].body).unwrap();
        assert_eq!(event.body, Some(EventBody::Facts(facts.clone())));
        // This machine's interfaces may change while others test; not each time.
        assert!((0..20).any(|_| reporter.report(Cause::Network).is_none()));
        let before = position(&journal);
        let again = reporter.report(Cause::Any).unwrap();
        assert_eq!(again == facts, position(&journal) == before);
        let told = position(&journal);
        drop((reporter, journal));

        // The journal's thread lets go of the file in its own time.
        let mut opened = Journal::open(&dir, "node_1", limits);
        for _ in 0..1000 {
            if opened.is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
            opened = Journal::open(&dir, "node_1", limits);
        }
        let (journal, recovered) = opened.unwrap();
        let reporter = Reporter::new(journal.clone(), &recovered.entries);
        let after = reporter.report(Cause::Any).unwrap();
        assert_eq!(after == again, position(&journal) == told);
    }

    #[test]
    fn the_largest_facts_fit_an_event() {
        let text = || "x".repeat(super::super::tree::TEXT);
        let facts = Facts {
            disks: vec![
                Disk {
                    stable_name: text(),
                    kernel_name: text(),
                    model: text(),
                    serial: text(),
                    wwn: text(),
                    firmware: text(),
                    transport: "iscsi".to_owned(),
                    size_bytes: u64::MAX,
                    ..Disk::default()
                };
                256
            ],
            interfaces: vec![
                NetworkInterface {
                    name: "x".repeat(16),
                    mac: "x".repeat(96),
                    permanent_mac: "x".repeat(96),
                    kind: "x".repeat(32),
                    driver: text(),
                    device_path: "0000:00:00.0".to_owned(),
                    lldp_system: text(),
                    lldp_port: text(),
                    lldp_chassis: text(),
                    addresses: vec!["x".repeat(44); 4],
                    ..NetworkInterface::default()
                };
                256
            ],
            gpus: vec![
                Gpu {
                    uuid: text(),
                    ..Gpu::default()
                };
                64
            ],
            problems: vec![text(); 32],
            ..Facts::default()
        };
        let size = facts.encode_to_vec().len() + 64 * 1024;
        assert!(size < MAX_BODY, "{size}");
    }
}
