//! Making the machine match its spec: one file a section.
//!
//! A spec is on the disk before anything of it is done. Then its sections are applied in their
//! order, and what came of each is reported once per change: the last report of each section is
//! kept beside the event that carries it, so that a restart, which applies the spec again, repeats
//! none. A section that lasts is told as PENDING meanwhile. A disk that takes nothing for a while stops neither the session nor what is applied: the
//! newest spec, and the reports, are tried again until they are kept.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]
use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use crate::journal::{Entry, Journal, JournalError, Keyed, Kind};
use crate::proto::{
    Envelope, EventBody, Message, NodeSpec, SectionState, SectionStatus, SpecSection,
};
use crate::rt::{self, Either, channel};
use crate::session::Signed;
use crate::sys::log::{self as events, Level, Value};

mod log;

/// Where the journal keeps the spec held.
const SPEC: &str = "node-spec";
/// Before the names of sections whose last report is kept.
const REPORT: &str = "section/";
/// A section that takes longer than this is told as PENDING.
const LASTS: Duration = Duration::from_secs(1);
/// How long after a failure the disk is tried again.
const AGAIN: Duration = Duration::from_secs(30);

/// Why a section was not applied.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Failed {
    /// A word for programs.
    reason: &'static str,
    /// A sentence for people.
    message: String,
}

/// What sections fall back to.
#[derive(Debug, Clone, Copy)]
pub struct Configured {
    /// `[log] level`.
    pub log_level: Level,
}

/// The sections that this version knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Section {
    Log,
    /// Lasts until its test lets it end.
    #[cfg(test)]
    Slow,
}

/// Their names.
pub fn sections() -> impl Iterator<Item = &'static str> {
    Section::ALL.iter().map(|section| section.name())
}

impl Section {
    const ALL: &[Self] = &[Self::Log];

    fn name(self) -> &'static str {
        match self {
            Self::Log => "log",
            #[cfg(test)]
            Self::Slow => tests::SLOW,
        }
    }

    fn named(name: &str) -> Option<Self> {
        #[cfg(test)]
        if name == tests::SLOW {
            return Some(Self::Slow);
        }
        Self::ALL.iter().copied().find(|known| known.name() == name)
    }

    /// Blocks: for a thread.
    fn apply(self, body: &[u8], configured: Configured) -> Result<(), Failed> {
        match self {
            Self::Log => log::apply(body, configured.log_level),
            #[cfg(test)]
            Self::Slow => tests::apply_slowly(body),
        }
    }

    /// The spec does not speak of it (any more).
    fn release(self, configured: Configured) {
        match self {
            Self::Log => log::release(configured.log_level),
            #[cfg(test)]
            Self::Slow => {}
        }
    }
}

/// The engine. Clones are the same one.
#[derive(Clone)]
pub struct Converge(Rc<Engine>);

struct Engine {
    journal: Journal,
    configured: Configured,
    /// The spec held: on the disk.
    held: RefCell<Option<Signed>>,
    generation: Cell<u64>,
    /// A newer one, not on the disk yet.
    newest: RefCell<Option<Signed>>,
    /// The last report of each section, as the disk has it, by their names' order.
    reported: RefCell<Vec<SectionStatus>>,
    bell: channel::Sender<()>,
    rung: RefCell<Option<channel::Receiver<()>>>,
}

impl Converge {
    /// An engine that goes on where the one before it stopped: `entries` is what the journal holds.
    pub fn new(journal: Journal, entries: &[Keyed], configured: Configured) -> Self {
        let mut held = None;
        let mut reported = Vec::new();
        for entry in entries {
            match (entry.kind, entry.key.strip_prefix(REPORT)) {
                (Kind::Spec, _) if entry.key == SPEC => held = kept(&entry.value),
                (Kind::Mark, Some(name)) => {
                    // One that does not decode is reported anew.
                    if let Ok(mut status) = SectionStatus::decode(&entry.value) {
                        name.clone_into(&mut status.section);
                        put(&mut reported, status);
                    }
                }
                _ => {}
            }
        }
        let (bell, rung) = rt::channel(1);
        let generation = held.as_ref().map_or(0, |signed| signed.spec.generation);
        Self(Rc::new(Engine {
            journal,
            configured,
            held: RefCell::new(held),
            generation: Cell::new(generation),
            newest: RefCell::new(None),
            reported: RefCell::new(reported),
            bell,
            rung: RefCell::new(Some(rung)),
        }))
    }

    /// The generation of the spec held; 0: none.
    pub fn generation(&self) -> u64 {
        self.0.generation.get()
    }

    /// The last report of each section, as the disk has it.
    pub fn sections(&self) -> Vec<SectionStatus> {
        self.0.reported.borrow().clone()
    }

    /// Takes a spec, in the place of one that is not stored yet.
    pub fn take(&self, signed: Signed) {
        let engine = &self.0;
        let same = |held: &Signed| held.envelope.payload == signed.envelope.payload;
        let mut newest = engine.newest.borrow_mut();
        let older = |other: &Signed| other.spec.generation > signed.spec.generation;
        if newest.as_ref().is_some_and(older) {
            let fields = [
                (
                    "error",
                    Value::Text("the spec is older than one that is being stored"),
                ),
                ("generation", Value::Number(signed.spec.generation)),
            ];
            events::event(Level::Warn, "spec.dropped", &fields);
            return;
        }
        if newest.is_none() && engine.held.borrow().as_ref().is_some_and(same) {
            return;
        }
        *newest = Some(signed);
        // One that is rung already is heard.
        let _ = engine.bell.try_send(());
    }

    /// Applies the spec held, and each one that comes. Never ends.
    pub async fn run(self) {
        let engine = &self.0;
        let Some(mut rung) = engine.rung.take() else {
            return;
        };
        loop {
            let again = match engine.round().await {
                Ok(()) => rt::sleep(Duration::MAX),
                Err(error) => {
                    let again = u64::try_from(AGAIN.as_millis()).unwrap_or(u64::MAX);
                    events::event(
                        Level::Warn,
                        "spec.not_kept",
                        &[
                            ("error", Value::Chain(&error)),
                            ("again_ms", Value::Number(again)),
                        ],
                    );
                    rt::sleep(AGAIN)
                }
            };
            if let Either::Left(None) = rt::select(rung.recv(), again).await {
                return;
            }
        }
    }
}

impl Engine {
    /// Stores the newest spec, applies the one held, reports what has changed.
    async fn round(&self) -> Result<(), JournalError> {
        let newest = self.newest.borrow().clone();
        if let Some(signed) = newest {
            let put = Entry::Put {
                kind: Kind::Spec,
                key: SPEC.to_owned(),
                value: signed.envelope.encode_to_vec(),
            };
            self.journal.commit(vec![put]).await?;
            let generation = signed.spec.generation;
            events::event(
                Level::Info,
                "spec.taken",
                &[
                    ("generation", Value::Number(generation)),
                    ("sections", Value::Number(signed.spec.sections.len() as u64)),
                ],
            );
            self.generation.set(generation);
            // A newer one that came meanwhile stays, and its bell with it.
            let stored = |waiting: &mut Signed| waiting.envelope == signed.envelope;
            let _ = self.newest.borrow_mut().take_if(stored);
            *self.held.borrow_mut() = Some(signed);
        }
        let Some(spec) = self.held.borrow().as_ref().map(|held| held.spec.clone()) else {
            return Ok(());
        };
        let there = |name: &str| spec.sections.iter().any(|section| section.name == name);
        for known in Section::ALL.iter().filter(|known| !there(known.name())) {
            known.release(self.configured);
        }
        let gone: Vec<String> = {
            let reported = self.reported.borrow();
            let names = reported.iter().map(|told| &told.section);
            names.filter(|name| !there(name)).cloned().collect()
        };
        let mut statuses = Vec::with_capacity(spec.sections.len());
        for section in spec.sections {
            let status = self.apply(spec.generation, section, &statuses).await;
            statuses.push(status);
        }
        self.report(statuses).await?;
        self.forget(&gone).await
    }

    /// Forgets what was reported of sections that are gone.
    async fn forget(&self, gone: &[String]) -> Result<(), JournalError> {
        if gone.is_empty() {
            return Ok(());
        }
        let entries = gone.iter().map(|name| Entry::Delete {
            kind: Kind::Mark,
            key: mark(name),
        });
        self.journal.commit(entries.collect()).await?;
        self.reported
            .borrow_mut()
            .retain(|told| !gone.contains(&told.section));
        Ok(())
    }

    /// Applies a section: what came of it. One that lasts is told as PENDING, unless something is told of
    /// this generation already, and with it what came of those `before` it.
    async fn apply(
        &self,
        generation: u64,
        section: SpecSection,
        before: &[SectionStatus],
    ) -> SectionStatus {
        let SpecSection { name, body } = section;
        let status = |state, reason: &str, message| SectionStatus {
            generation,
            section: name.clone(),
            state,
            reason: reason.to_owned(),
            message,
        };
        let Some(known) = Section::named(&name) else {
            let message = format!("bcd {} knows no section {name}", env!("CARGO_PKG_VERSION"));
            return status(SectionState::UNSUPPORTED, "SectionUnsupported", message);
        };
        let configured = self.configured;
        let mut work = pin!(rt::blocking("section", move || {
            known.apply(&body, configured)
        }));
        let applied = match rt::select(work.as_mut(), rt::sleep(LASTS)).await {
            Either::Left(applied) => applied,
            Either::Right(()) => {
                let is_told = self
                    .reported
                    .borrow()
                    .iter()
                    .any(|told| told.section == name && told.generation == generation);
                if !is_told {
                    let mut statuses = before.to_vec();
                    statuses.push(status(SectionState::PENDING, "", String::new()));
                    // Best effort: a disk that takes nothing now is tried with the end of it.
                    let _ = self.report(statuses).await;
                }
                work.await
            }
        };
        match applied {
            Ok(Ok(())) => status(SectionState::APPLIED, "", String::new()),
            Ok(Err(failed)) => status(SectionState::FAILED, failed.reason, failed.message),
            Err(error) => status(SectionState::FAILED, "InternalError", error.to_string()),
        }
    }

    /// Tells of each status that was not told so, and keeps that it was.
    async fn report(&self, statuses: Vec<SectionStatus>) -> Result<(), JournalError> {
        let news: Vec<SectionStatus> = {
            let reported = self.reported.borrow();
            let news = |status: &SectionStatus| !reported.contains(status);
            statuses.into_iter().filter(news).collect()
        };
        if news.is_empty() {
            return Ok(());
        }
        self.journal.commit(entries(&news)).await?;
        for status in news {
            said(&status);
            put(&mut self.reported.borrow_mut(), status);
        }
        Ok(())
    }
}

/// A spec as the journal keeps it. Its signature was checked before it was stored, perhaps by a key
/// that has been retired since: what was accepted stays accepted.
fn kept(value: &[u8]) -> Option<Signed> {
    let spec = |envelope: Envelope| {
        let spec = NodeSpec::decode(&envelope.payload)?;
        Ok(Signed { envelope, spec })
    };
    match Envelope::decode(value).and_then(spec) {
        Ok(signed) => Some(signed),
        Err(error) => {
            events::event(
                Level::Error,
                "spec.unreadable",
                &[
                    ("error", Value::Chain(&error)),
                    ("do", Value::Text("the control plane sends it again")),
                ],
            );
            None
        }
    }
}

/// Puts a report in the place of the one before it.
fn put(reported: &mut Vec<SectionStatus>, status: SectionStatus) {
    let at = reported.partition_point(|told| told.section < status.section);
    match reported.get_mut(at) {
        Some(told) if told.section == status.section => *told = status,
        _ => reported.insert(at, status),
    }
}

/// Under which name it is kept what was reported of a section.
fn mark(name: &str) -> String {
    [REPORT, name].concat()
}

/// An event of each status, and what is kept of it.
fn entries(statuses: &[SectionStatus]) -> Vec<Entry> {
    let mut entries = Vec::with_capacity(statuses.len() * 2);
    for status in statuses {
        entries.push(Entry::status(EventBody::SectionStatus(status.clone())));
        entries.push(Entry::Put {
            kind: Kind::Mark,
            key: mark(&status.section),
            value: status.encode_to_vec(),
        });
    }
    entries
}

/// For the log.
fn said(status: &SectionStatus) {
    let (level, name) = match status.state {
        SectionState::APPLIED => (Level::Info, "section.applied"),
        SectionState::UNSUPPORTED => (Level::Info, "section.unsupported"),
        SectionState::PENDING => (Level::Info, "section.pending"),
        _ => (Level::Warn, "section.failed"),
    };
    let mut fields = vec![
        ("section", Value::Text(&status.section)),
        ("generation", Value::Number(status.generation)),
    ];
    if !status.message.is_empty() {
        fields.push(("why", Value::Text(&status.message)));
    }
    events::event(level, name, &fields);
}

#[cfg(test)]
mod tests;
