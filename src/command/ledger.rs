//! All commands this node knows of: which wait, which run, and which ids were had already. Pure: what
//! came, what happened and what time it is go in; what is to be written comes out, and counts only once
//! it is written ([`Ledger::apply`]).
//!
//! An id is remembered until its deadline has passed by the time a server signed (a clock that
//! jumps ahead forgets nothing) and its end is acknowledged. Forgetting raises the watermark in the same
//! write: no command with a deadline at or below it is ever taken again.
use std::collections::BTreeMap;
use std::time::Duration;

use super::id::Id;
use super::kinds::{Job, Kind, UNSUPPORTED, WhenBusy};
use super::machine::{Boot, Event, Failure, Report, State, Step};
use super::record::{Record, WATERMARK};
use crate::journal::{self, Class, Entry};
use crate::proto::{Command, CommandState, CommandUpdate, EventBody, Message};
use crate::sys::log;

/// Commands that wait or run.
const ACTIVE: usize = 256;
/// Ids of commands that came to their end. With the others they fit among the journal's keys.
const DONE: usize = 3072;
/// docs/protocol.md 3.
const KIND_NAME: usize = 64;
const PARAMS: usize = 16 * 1024;
const ORDER: usize = 4 * 1024;
const RESULT: usize = 256 * 1024;
const MESSAGE: usize = 1024;
const AHEAD_MS: u64 = 30 * 24 * 3600 * 1000;
/// How long an output is kept for a control plane that does not fetch it.
const OUTPUT_MS: u64 = 7 * 24 * 3600 * 1000;
/// How long work that was told to stop may take to do so.
const GRACE: Duration = Duration::from_secs(15);
/// How long a machine may take to go down: services that do not stop are given minutes.
const LEAVING: Duration = Duration::from_secs(600);
/// Ids forgotten in one write.
const FORGET: usize = 64;
/// The kind that is taken when an upgrade is required.
const UPGRADE: &str = "daemon.upgrade";

/// The time, three times.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Monotonic: for how long things take.
    pub clock: Duration,
    /// The best guess of the true time, Unix milliseconds: for deadlines.
    pub now_ms: u64,
    /// What a server signed last: a lower bound of the true time.
    pub signed_ms: u64,
}

/// What a command that comes is held against, besides the time.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// The control plane takes nothing of this bcd but that it is upgraded.
    pub upgrade_required: bool,
    /// Events up to this one are stored by the control plane.
    pub acked: u64,
}

/// What is known.
#[derive(Default)]
pub struct Ledger {
    boot_id: String,
    active: BTreeMap<Id, Active>,
    done: BTreeMap<Id, Done>,
    watermark_ms: u64,
    /// Threads at work, by kind; also those whose commands have ended without them.
    working: BTreeMap<&'static str, usize>,
    arrivals: u64,
}

struct Active {
    kind: &'static Kind,
    command: Command,
    job: Job,
    state: State,
    /// Of the boot it runs in.
    boot_id: String,
    arrival: u64,
    /// By the monotonic clock: when its state's time is over.
    until: Option<Duration>,
    /// Its end, which could not be stored yet.
    unstored: Option<Report>,
}

struct Done {
    /// Until when it is remembered.
    until_ms: u64,
    /// Of the event that reported it.
    sequence: u64,
}

/// What a ledger holds, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Commands that have not ended.
    pub active: Vec<Going>,
    /// How many are remembered as ended.
    pub done: usize,
}

/// A command that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Going {
    pub id: String,
    pub kind: &'static str,
    /// pending, running, stopping or leaving.
    pub state: &'static str,
}

/// Something to write, and what is so once it is written.
#[derive(Debug)]
pub struct Plan {
    pub id: Id,
    pub entries: Vec<Entry>,
    pub report: Report,
    change: Change,
    forget: Vec<Id>,
    watermark_ms: u64,
}

#[derive(Debug)]
enum Change {
    /// New, and begins at once or waits.
    Accept {
        kind: &'static Kind,
        command: Box<Command>,
        job: Job,
        run: bool,
    },
    Run,
    Done {
        until_ms: u64,
    },
}

/// What became of a command that came.
#[derive(Debug)]
pub enum Delivered {
    /// It is to be written: taken, or refused for good.
    Plan(Box<Plan>),
    /// It came before.
    Known,
    /// It is not taken and not answered; why.
    Dropped(&'static str),
}

/// What follows once a plan is written.
#[derive(Debug)]
pub enum Applied {
    /// Nothing more.
    Noted,
    /// Its work begins.
    Begin {
        id: Id,
        kind: &'static Kind,
        job: Job,
        /// As it came.
        command: Box<Command>,
        event: u64,
    },
}

/// What follows from an event.
#[derive(Debug)]
pub enum Todo {
    Nothing,
    /// Tell its work to stop.
    Stop(Id),
    Write(Box<Plan>),
}

impl Ledger {
    /// What the journal held. What has no end yet is to be told [`restart`](Self::restarts).
    pub fn restore<'a>(
        records: impl Iterator<Item = (&'a str, &'a [u8])>,
        watermark: Option<&[u8]>,
        boot_id: String,
        position: u64,
        now: Now,
    ) -> (Self, Vec<Plan>) {
        let watermark = watermark.and_then(|bytes| bytes.try_into().ok());
        let mut ledger = Self {
            boot_id,
            watermark_ms: watermark.map_or(0, u64::from_le_bytes),
            ..Self::default()
        };
        let mut lost = Vec::new();
        for (key, value) in records {
            let Some(id) = Id::parse(key) else { continue };
            let unreadable = match Record::decode(value) {
                Some(Record::Done { deadline_ms }) => {
                    let done = Done {
                        until_ms: deadline_ms,
                        sequence: position,
                    };
                    ledger.done.insert(id, done);
                    continue;
                }
                Some(Record::Pending(command)) => {
                    ledger.readmit(id, command, State::Pending, String::new())
                }
                Some(Record::Running { boot_id, command }) => {
                    ledger.readmit(id, command, State::Running, boot_id)
                }
                None => Err(Failure::new(
                    "StorageFault",
                    "its record in the journal cannot be read; it is not run again",
                )),
            };
            if let Err(failure) = unreadable {
                let until_ms = now.now_ms.saturating_add(AHEAD_MS);
                // Had, whether this can be written now or not.
                let done = Done {
                    until_ms,
                    sequence: u64::MAX,
                };
                ledger.done.insert(id, done);
                lost.push(ledger.finish(id, until_ms, Report::failed(failure)));
            }
        }
        (ledger, lost)
    }

    fn readmit(
        &mut self,
        id: Id,
        command: Command,
        state: State,
        boot_id: String,
    ) -> Result<(), Failure> {
        let unknown = |why: String| Failure::new("Interrupted", why);
        let kind = Kind::named(&command.kind)
            .ok_or_else(|| unknown(format!("this bcd no longer knows {}", command.kind)))?;
        let job = (kind.read)(&command.params).map_err(unknown)?;
        self.admit(id, kind, command, job, state, boot_id, None);
        Ok(())
    }

    #[allow(clippy::too_many_arguments)] // It is the only maker of a large struct.
    fn admit(
        &mut self,
        id: Id,
        kind: &'static Kind,
        command: Command,
        job: Job,
        state: State,
        boot_id: String,
        until: Option<Duration>,
    ) {
        self.arrivals += 1;
        let active = Active {
            kind,
            command,
            job,
            state,
            boot_id,
            arrival: self.arrivals,
            until,
            unstored: None,
        };
        self.active.insert(id, active);
    }

    /// The commands that were running when the daemon ended, and what that means for each.
    pub fn restarts(&self) -> Vec<(Id, Event)> {
        let running = self
            .active
            .iter()
            .filter(|(_, active)| active.state == State::Running);
        let event = |active: &Active| {
            Event::Restarted(match active.kind.restarted {
                None => Boot::Irrelevant,
                Some(_) if active.boot_id == self.boot_id => Boot::Same,
                Some(_) => Boot::Later,
            })
        };
        running.map(|(id, active)| (*id, event(active))).collect()
    }

    /// What is under way or waits, for people.
    pub fn seen(&self) -> Seen {
        let active = self.active.iter().map(|(id, active)| Going {
            id: id.to_string(),
            kind: active.kind.name,
            state: active.state.word(),
        });
        Seen {
            active: active.collect(),
            done: self.done.len(),
        }
    }

    /// Whether the command came to its end.
    pub fn is_done(&self, id: Id) -> bool {
        self.done.contains_key(&id)
    }

    /// The commands that came to their end, ascending: those that may have an output.
    pub fn done(&self) -> impl Iterator<Item = Id> {
        self.done.keys().copied()
    }

    /// A command came.
    pub fn deliver(&self, command: Command, terms: Terms, now: Now) -> Delivered {
        let Some(id) = Id::parse(&command.id) else {
            return Delivered::Dropped("its id is none");
        };
        if self.active.contains_key(&id) || self.done.contains_key(&id) {
            return Delivered::Known;
        }
        let forget = self.forgettable(terms.acked, now);
        if self.done.len() - forget.len() >= DONE {
            return Delivered::Dropped("too many ids of earlier commands are to be remembered");
        }
        let mut plan = match self.judge(&command, terms, now) {
            Ok((kind, job)) => {
                let run = self.has_room(kind);
                let record = if run {
                    Record::Running {
                        boot_id: self.boot_id.clone(),
                        command: command.clone(),
                    }
                } else {
                    Record::Pending(command.clone())
                };
                let state = if run {
                    CommandState::RUNNING
                } else {
                    CommandState::PENDING
                };
                let change = Change::Accept {
                    kind,
                    command: Box::new(command),
                    job,
                    run,
                };
                self.plan(id, &record, Report::underway(state), change)
            }
            Err(report) => {
                let ahead = now.now_ms.saturating_add(AHEAD_MS);
                let deadline_ms = u64::try_from(command.deadline_ms).unwrap_or(0);
                self.finish(id, deadline_ms.min(ahead), report)
            }
        };
        let last = forget.iter().filter_map(|id| self.done.get(id));
        if let Some(last) = last.map(|done| done.until_ms).max() {
            plan.watermark_ms = self.watermark_ms.max(last);
            let delete = |id: &Id| Entry::Delete {
                kind: journal::Kind::Command,
                key: id.to_string(),
            };
            plan.entries.extend(forget.iter().map(delete));
            plan.entries.push(Entry::Put {
                kind: journal::Kind::Mark,
                key: WATERMARK.to_owned(),
                value: plan.watermark_ms.to_le_bytes().into(),
            });
            plan.forget = forget;
        }
        Delivered::Plan(Box::new(plan))
    }

    /// Whether it can be taken; else its end.
    fn judge(
        &self,
        command: &Command,
        terms: Terms,
        now: Now,
    ) -> Result<(&'static Kind, Job), Report> {
        let invalid = |message: String| Report::failed(Failure::new("InvalidParams", message));
        let unsupported = |reason, message| Report::unsupported(Failure { reason, message });
        if command.kind.len() > KIND_NAME {
            return Err(invalid(format!(
                "its kind is longer than {KIND_NAME} bytes"
            )));
        }
        if terms.upgrade_required && command.kind != UPGRADE {
            let message = "this bcd must be upgraded first".to_owned();
            return Err(unsupported("UpgradeRequired", message));
        }
        let kind = Kind::named(&command.kind).ok_or_else(|| {
            let version = env!("CARGO_PKG_VERSION");
            let message = format!("bcd {version} knows no command {}", command.kind);
            unsupported(UNSUPPORTED, message)
        })?;
        let deadline_ms = match u64::try_from(command.deadline_ms) {
            Ok(0) | Err(_) => return Err(invalid("it has no deadline".to_owned())),
            Ok(deadline) => deadline,
        };
        if deadline_ms > now.now_ms.saturating_add(AHEAD_MS) {
            return Err(invalid(
                "its deadline is more than 30 days ahead of this node's time".to_owned(),
            ));
        }
        if deadline_ms <= now.now_ms.max(self.watermark_ms) {
            return Err(Report::late());
        }
        if command.params.len() > PARAMS {
            return Err(invalid(format!(
                "its params are longer than {PARAMS} bytes"
            )));
        }
        if command
            .order
            .as_ref()
            .is_some_and(|order| order.encoded_len() > ORDER)
        {
            return Err(invalid(format!("its order is longer than {ORDER} bytes")));
        }
        let job = (kind.read)(&command.params).map_err(invalid)?;
        if self.active.len() >= ACTIVE {
            let message = format!("{ACTIVE} commands wait or run already");
            return Err(Report::failed(Failure::new("TooManyCommands", message)));
        }
        let same = self
            .active
            .values()
            .any(|active| active.kind.name == kind.name);
        if kind.when_busy == WhenBusy::Refuse && (same || !self.has_room(kind)) {
            let message = format!("another {} is under way", kind.name);
            return Err(Report::failed(Failure::new("Busy", message)));
        }
        Ok((kind, job))
    }

    /// Something happened to a command.
    pub fn event(&mut self, id: Id, event: Event, now: Now) -> Todo {
        let Some(active) = self.active.get_mut(&id) else {
            return Todo::Nothing;
        };
        if active.unstored.is_some() {
            return Todo::Nothing;
        }
        let report = match active.state.next(event) {
            Step::Stay | Step::Run => return Todo::Nothing,
            Step::Stop(why) => {
                active.state = State::Stopping(why);
                active.until = Some(now.clock.saturating_add(GRACE));
                return Todo::Stop(id);
            }
            Step::Leave => {
                active.state = State::Leaving;
                active.until = Some(now.clock.saturating_add(LEAVING));
                return Todo::Nothing;
            }
            Step::Finish(report) => report,
            Step::FinishRestarted => {
                let result = active.kind.restarted;
                let result = result.map(|result| result(&active.boot_id, &self.boot_id));
                Report::succeeded(result.unwrap_or_default())
            }
        };
        Todo::Write(Box::new(self.end(id, report, now)))
    }

    /// The work of a command is over, whatever became of the command meanwhile: its place is free.
    pub fn work_ended(&mut self, kind: &'static Kind) {
        if let Some(working) = self.working.get_mut(kind.name) {
            *working = working.saturating_sub(1);
        }
    }

    /// The next command whose turn it is, to be written as running.
    pub fn turn(&self) -> Option<Plan> {
        let waiting = self.active.iter().filter(|(_, active)| {
            active.unstored.is_none()
                && active.state.next(Event::Turn) == Step::Run
                && self.has_room(active.kind)
        });
        let (id, active) = waiting.min_by_key(|(_, active)| active.arrival)?;
        let record = Record::Running {
            boot_id: self.boot_id.clone(),
            command: active.command.clone(),
        };
        let report = Report::underway(CommandState::RUNNING);
        Some(self.plan(*id, &record, report, Change::Run))
    }

    /// A command whose time has come, and what that means for it.
    pub fn due(&self, now: Now) -> Option<(Id, Event)> {
        self.active.iter().find_map(|(id, active)| {
            if active.unstored.is_some() {
                return None;
            }
            let late = active.state == State::Pending
                && u64::try_from(active.command.deadline_ms).unwrap_or(0) <= now.now_ms;
            let over = active.until.is_some_and(|until| until <= now.clock);
            match (late, over) {
                (true, _) => Some((*id, Event::Late)),
                (_, true) => Some((*id, Event::TimeUp)),
                _ => None,
            }
        })
    }

    /// How long until something is [`due`](Self::due), if nothing else happens.
    pub fn rest(&self, now: Now) -> Option<Duration> {
        let waits = self.active.values().filter_map(|active| {
            if active.unstored.is_some() {
                return None;
            }
            match active.state {
                State::Pending => {
                    let deadline = u64::try_from(active.command.deadline_ms).unwrap_or(0);
                    Some(Duration::from_millis(deadline.saturating_sub(now.now_ms)))
                }
                _ => Some(active.until?.saturating_sub(now.clock)),
            }
        });
        waits.min()
    }

    /// The end of a command that could not be stored before.
    pub fn unstored(&self, now: Now) -> Option<Plan> {
        let (id, report) = self
            .active
            .iter()
            .find_map(|(id, active)| Some((*id, active.unstored.clone()?)))?;
        Some(self.end(id, report, now))
    }

    /// `plan` is on the disk; its event has the sequence `last`.
    pub fn apply(&mut self, plan: Plan, last: u64, now: Now) -> Applied {
        for id in &plan.forget {
            self.done.remove(id);
        }
        self.watermark_ms = self.watermark_ms.max(plan.watermark_ms);
        let id = plan.id;
        match plan.change {
            Change::Done { until_ms } => {
                self.active.remove(&id);
                let done = Done {
                    until_ms,
                    sequence: last,
                };
                self.done.insert(id, done);
                Applied::Noted
            }
            Change::Accept {
                kind,
                command,
                job,
                run,
            } => {
                self.admit(id, kind, *command, job, State::Pending, String::new(), None);
                if run {
                    self.begin(id, last, now)
                } else {
                    Applied::Noted
                }
            }
            Change::Run => self.begin(id, last, now),
        }
    }

    /// `plan` could not be written: whether it is to be tried again. A command that came is not taken;
    /// one that waits goes on waiting; an end is kept until it can be written.
    pub fn not_stored(&mut self, plan: Plan) -> bool {
        let Some(active) = self.active.get_mut(&plan.id) else {
            return false;
        };
        if let Change::Done { .. } = plan.change {
            active.unstored = Some(plan.report);
        }
        true
    }

    fn begin(&mut self, id: Id, event: u64, now: Now) -> Applied {
        let Some(active) = self.active.get_mut(&id) else {
            return Applied::Noted;
        };
        active.state = State::Running;
        active.boot_id.clone_from(&self.boot_id);
        active.until = Some(now.clock.saturating_add(active.kind.limit));
        *self.working.entry(active.kind.name).or_default() += 1;
        Applied::Begin {
            id,
            kind: active.kind,
            job: active.job.clone(),
            command: Box::new(active.command.clone()),
            event,
        }
    }

    fn has_room(&self, kind: &Kind) -> bool {
        let working = self.working.get(kind.name).copied().unwrap_or(0);
        // One that was found running at the start has no thread, and holds its place.
        let leaving = self
            .active
            .values()
            .filter(|active| active.kind.name == kind.name && active.state == State::Leaving);
        working.max(leaving.count()) < kind.at_once
    }

    fn forgettable(&self, acked: u64, now: Now) -> Vec<Id> {
        let past = self
            .done
            .iter()
            .filter(|(_, done)| done.until_ms <= now.signed_ms && done.sequence <= acked);
        past.map(|(id, _)| *id).take(FORGET).collect()
    }

    /// The end of an active command.
    fn end(&self, id: Id, report: Report, now: Now) -> Plan {
        let deadline = self
            .active
            .get(&id)
            .map(|active| active.command.deadline_ms);
        let mut until_ms = deadline.and_then(|at| u64::try_from(at).ok()).unwrap_or(0);
        if report.state == CommandState::SUCCEEDED {
            until_ms = until_ms.max(now.now_ms.saturating_add(OUTPUT_MS));
        }
        self.finish(id, until_ms, report)
    }

    fn finish(&self, id: Id, until_ms: u64, mut report: Report) -> Plan {
        if report.result.len() > RESULT {
            let message = format!("its result is longer than {RESULT} bytes");
            report = Report::failed(Failure::new("ResultTooLarge", message));
        }
        let record = Record::Done {
            deadline_ms: until_ms,
        };
        self.plan(id, &record, report, Change::Done { until_ms })
    }

    fn plan(&self, id: Id, record: &Record, mut report: Report, change: Change) -> Plan {
        report
            .message
            .truncate(log::cut(&report.message, MESSAGE).len());
        let entries = vec![
            Entry::Put {
                kind: journal::Kind::Command,
                key: id.to_string(),
                value: record.encode(),
            },
            Entry::Event {
                class: match change {
                    Change::Done { .. } => Class::Result,
                    Change::Accept { .. } | Change::Run => Class::Status,
                },
                body: event(id, &report),
            },
        ];
        Plan {
            id,
            entries,
            report,
            change,
            forget: Vec::new(),
            watermark_ms: 0,
        }
    }
}

impl Plan {
    /// The commands this forgets; their outputs go too.
    pub fn forgotten(&self) -> &[Id] {
        &self.forget
    }
}

/// The event that tells the control plane.
fn event(id: Id, report: &Report) -> Vec<u8> {
    let update = CommandUpdate {
        id: id.to_string(),
        state: report.state,
        reason: report.reason.to_owned(),
        message: report.message.clone(),
        result: report.result.clone(),
    };
    let event = crate::proto::Event {
        body: Some(EventBody::CommandUpdate(update)),
        ..Default::default()
    };
    event.encode_to_vec()
}

#[cfg(test)]
mod tests;
