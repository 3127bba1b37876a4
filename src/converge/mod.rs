//! Making the machine match its spec: one file a section.
//!
//! A spec is on the disk before anything of it is done. Then its sections are applied in their
//! order, and what came of each is reported once per change: the last report of each section is
//! kept beside the event that carries it, so that a restart, which applies the spec again, repeats
//! none. A disk that takes nothing for a while stops neither the session nor what is applied: the
//! newest spec, and the reports, are tried again until they are kept.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use crate::journal::{Class, Entry, Journal, JournalError, Keyed, Kind};
use crate::proto::{
    Envelope, Event, EventBody, Message, NodeSpec, SectionState, SectionStatus, SpecSection,
};
use crate::rt::{self, Either, channel};
use crate::session::Signed;
use crate::sys::log::{self as events, Level, Value};

mod log;

/// Where the journal keeps the spec held.
const SPEC: &str = "node-spec";
/// Before the names of sections whose last report is kept.
const REPORT: &str = "section/";
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
}

impl Section {
    const ALL: &[Self] = &[Self::Log];

    fn name(self) -> &'static str {
        match self {
            Self::Log => "log",
        }
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|known| known.name() == name)
    }

    fn apply(self, body: &[u8], configured: Configured) -> Result<(), Failed> {
        match self {
            Self::Log => log::apply(body, configured.log_level),
        }
    }

    /// The spec does not speak of it (any more).
    fn release(self, configured: Configured) {
        match self {
            Self::Log => log::release(configured.log_level),
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
    /// The last report of each section, as the disk has it.
    reported: RefCell<BTreeMap<String, SectionStatus>>,
    bell: channel::Sender<()>,
    rung: RefCell<Option<channel::Receiver<()>>>,
}

impl Converge {
    /// An engine that goes on where the one before it stopped: `entries` is what the journal holds.
    pub fn new(journal: Journal, entries: &[Keyed], configured: Configured) -> Self {
        let mut held = None;
        let mut reported = BTreeMap::new();
        for entry in entries {
            match (entry.kind, entry.key.strip_prefix(REPORT)) {
                (Kind::Spec, _) if entry.key == SPEC => held = kept(&entry.value),
                (Kind::Mark, Some(name)) => {
                    // One that does not decode is reported anew.
                    if let Ok(status) = SectionStatus::decode(&entry.value) {
                        reported.insert(name.to_owned(), status);
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
        self.0.reported.borrow().values().cloned().collect()
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
        let statuses = match &*self.held.borrow() {
            Some(signed) => apply(&signed.spec, self.configured),
            None => return Ok(()),
        };
        let entries = changes(&self.reported.borrow(), &statuses);
        if !entries.is_empty() {
            self.journal.commit(entries).await?;
            let mut reported = self.reported.borrow_mut();
            for status in &statuses {
                if reported.get(&status.section) != Some(status) {
                    said(status);
                }
            }
            *reported = statuses
                .into_iter()
                .map(|status| (status.section.clone(), status))
                .collect();
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

/// Applies all sections in their order, and lets go of those that are not there.
fn apply(spec: &NodeSpec, configured: Configured) -> Vec<SectionStatus> {
    for known in Section::ALL {
        if !spec.sections.iter().any(|other| other.name == known.name()) {
            known.release(configured);
        }
    }
    spec.sections
        .iter()
        .map(|section| status(spec.generation, section, configured))
        .collect()
}

fn status(generation: u64, section: &SpecSection, configured: Configured) -> SectionStatus {
    let name = &section.name;
    let (state, reason, message) = match Section::named(name) {
        None => (
            SectionState::UNSUPPORTED,
            "SectionUnsupported",
            format!("bcd {} knows no section {name}", env!("CARGO_PKG_VERSION")),
        ),
        Some(known) => match known.apply(&section.body, configured) {
            Ok(()) => (SectionState::APPLIED, "", String::new()),
            Err(failed) => (SectionState::FAILED, failed.reason, failed.message),
        },
    };
    SectionStatus {
        generation,
        section: name.clone(),
        state,
        reason: reason.to_owned(),
        message,
    }
}

/// The events and marks that are due: each status that was not reported so, and the marks of
/// sections that are gone.
fn changes(reported: &BTreeMap<String, SectionStatus>, statuses: &[SectionStatus]) -> Vec<Entry> {
    let key = |name: &str| format!("{REPORT}{name}");
    let mut entries = Vec::new();
    for status in statuses {
        if reported.get(&status.section) != Some(status) {
            let event = Event {
                body: Some(EventBody::SectionStatus(status.clone())),
                ..Event::default()
            };
            entries.push(Entry::Event {
                class: Class::Status,
                body: event.encode_to_vec(),
            });
            entries.push(Entry::Put {
                kind: Kind::Mark,
                key: key(&status.section),
                value: status.encode_to_vec(),
            });
        }
    }
    for name in reported.keys() {
        if !statuses.iter().any(|status| status.section == *name) {
            entries.push(Entry::Delete {
                kind: Kind::Mark,
                key: key(name),
            });
        }
    }
    entries
}

/// For the log.
fn said(status: &SectionStatus) {
    let (level, name) = match status.state {
        SectionState::APPLIED => (Level::Info, "section.applied"),
        SectionState::UNSUPPORTED => (Level::Info, "section.unsupported"),
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
