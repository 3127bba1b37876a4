//! The edge: a task that writes what the ledger says, gives work a thread, and waits for what comes
//! next. While there is nothing to do it waits for a command alone, without a timer.
use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::id::Id;
use super::kinds::{BOOT, Job, Kind};
use super::ledger::{Applied, Delivered, Ledger, Now, Plan, Seen, Terms, Todo};
use super::machine::{Event, Outcome};
use super::ordered;
use super::orders::Orders;
use super::outputs::Outputs;
use super::parting::Parting;
use super::record::WATERMARK;
use super::work::{Context, Progress};
use super::{Commands, Machine, dropped};
use crate::crypto::pin::Pin;
use crate::deploy::files::Site;
use crate::deploy::receipt::Signer;
use crate::facts::report::Reporter;
use crate::helper::client::Client;
use crate::journal::{self, Journal, Recovered};
use crate::proto::{Command, NodeFrame, Role};
use crate::rt::channel::{Receiver, Sender, channel};
use crate::rt::{self, Either};
use crate::sys::clock;
use crate::sys::log::{self, Level, Value};
use crate::sys::stop::Stop;
use crate::wire::url::Url;

/// What waits for the engine. A session that brings more waits.
const INBOX: usize = 16;
/// Between tries to write what must be written, on a disk that does not take it.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// What comes to the engine.
#[derive(Debug)]
pub enum Input {
    Command {
        command: Command,
        upgrade_required: bool,
    },
    Cancel(Id),
    /// The work of a command is over.
    Ended(Id, &'static Kind, Outcome),
}

/// The times of the node that are not the monotonic one.
pub struct Clocks {
    /// The best guess of the true time, Unix milliseconds.
    pub now_ms: Box<dyn Fn() -> u64>,
    /// Trusted time, Unix milliseconds: for orders and receipts.
    pub trusted_ms: Box<dyn Fn() -> u64>,
    /// The last time a server signed.
    pub signed_ms: Box<dyn Fn() -> u64>,
}

/// What an engine stands on.
pub struct Parts {
    pub journal: Journal,
    pub clocks: Clocks,
    pub data_dir: PathBuf,
    pub boot_id: String,
    /// The way for progress and outputs.
    pub frames: Sender<NodeFrame>,
    /// For `node.facts`.
    pub facts: Reporter,
    pub node_id: Rc<str>,
    /// What this node joined as.
    pub role: Role,
    /// The site's image cache, in a ramdisk.
    pub image_cache: Option<Url>,
    /// Pins of the keys that sign orders for this node.
    pub signers: Box<dyn Fn() -> Rc<[Pin]>>,
    /// What its boot parameters say for an OS as well.
    pub site: Option<Arc<Site>>,
    /// For receipts.
    pub signer: Signer,
    /// For who ends this boot.
    pub parting: Parting,
    /// Who does what needs root; `None`: this process.
    pub helper: Option<Client>,
    /// Who does the work; `None`: this machine.
    pub machine: Option<Arc<dyn Machine>>,
}

/// All that is done for commands.
pub struct Engine {
    parts: Parts,
    ledger: Ledger,
    outputs: Arc<Outputs>,
    orders: Orders,
    seen: Rc<RefCell<Seen>>,
    inbox: Receiver<Input>,
    to_inbox: Sender<Input>,
    /// Of the few that run.
    stops: Vec<(Id, Stop)>,
    /// How often the journal did not take what must be written, and when to try again.
    retry: Option<(u32, Instant)>,
    /// Commands that the journal could not take, and whether an upgrade was required; given to it again then.
    turned_away: Vec<(Command, bool)>,
    lost: Vec<Plan>,
}

impl Engine {
    /// Takes up what the journal held when it was opened. Nothing happens before [`run`](Self::run).
    pub fn new(parts: Parts, recovered: &Recovered) -> (Self, Commands) {
        let of = |kind| {
            let of_kind = recovered
                .entries
                .iter()
                .filter(move |entry| entry.kind == kind);
            of_kind.map(|entry| (entry.key.as_str(), entry.value.as_slice()))
        };
        let watermark = of(journal::Kind::Mark).find(|(key, _)| *key == WATERMARK);
        let (ledger, lost) = Ledger::restore(
            of(journal::Kind::Command),
            watermark.map(|(_, value)| value),
            parts.boot_id.clone(),
            recovered.position,
            parts.clocks.now(),
        );
        let (to_inbox, inbox) = channel(INBOX);
        let outputs = Arc::new(Outputs::of(&parts.data_dir));
        let commands = Commands {
            inbox: to_inbox.clone(),
            outputs: outputs.clone(),
            frames: parts.frames.clone(),
            orders: Orders::new(parts.frames.clone()),
            seen: Rc::new(RefCell::new(ledger.seen())),
            sending: Rc::default(),
        };
        let engine = Self {
            parts,
            ledger,
            outputs,
            orders: commands.orders.clone(),
            seen: commands.seen.clone(),
            inbox,
            to_inbox,
            stops: Vec::new(),
            retry: None,
            turned_away: Vec::new(),
            lost,
        };
        (engine, commands)
    }

    /// Goes on until it is dropped.
    pub async fn run(mut self) {
        self.resume().await;
        loop {
            self.settle().await;
            self.seen.replace(self.ledger.seen());
            match self.next().await {
                Some(Input::Command {
                    command,
                    upgrade_required,
                }) => self.deliver(command, upgrade_required).await,
                Some(Input::Cancel(id)) => {
                    // What was not taken comes again with the next session, and its cancellation behind it.
                    let id_text = id.to_string();
                    self.turned_away
                        .retain(|(command, _)| command.id != id_text);
                    self.happened(id, Event::Cancel).await;
                }
                Some(Input::Ended(id, kind, outcome)) => self.ended(id, kind, outcome).await,
                // Something is due.
                None => {}
            }
        }
    }

    /// Decides what was running when the daemon ended.
    async fn resume(&mut self) {
        // First, while they still count as running: what they put out has no result that names it.
        if self.parts.machine.is_none() {
            let done: Vec<Id> = self.ledger.done().collect();
            let outputs = self.outputs.clone();
            let _ = rt::blocking("outputs", move || {
                outputs.tidy(|id| done.binary_search(&id).is_ok());
            })
            .await;
        }
        for plan in std::mem::take(&mut self.lost) {
            self.write(plan).await;
        }
        for (id, event) in self.ledger.restarts() {
            self.happened(id, event).await;
        }
    }

    /// Does what is due, and begins what has room.
    async fn settle(&mut self) {
        loop {
            let now = self.parts.clocks.now();
            if let Some((id, event)) = self.ledger.due(now) {
                self.happened(id, event).await;
                continue;
            }
            if self.retry.is_some_and(|(_, at)| Instant::now() < at) {
                return;
            }
            let unstored = self.ledger.unstored(now);
            if let Some(plan) = unstored.or_else(|| self.ledger.turn()) {
                self.write(plan).await;
            } else if self.turned_away.is_empty() {
                // What could not be written before is not wanted any more.
                self.retry = None;
                return;
            } else {
                let (command, upgrade_required) = self.turned_away.remove(0);
                self.deliver(command, upgrade_required).await;
            }
        }
    }

    /// What comes; `None` when something is due.
    async fn next(&mut self) -> Option<Input> {
        let rest = self.ledger.rest(self.parts.clocks.now());
        let retry = self
            .retry
            .map(|(_, at)| at.saturating_duration_since(Instant::now()));
        let wait = rest.into_iter().chain(retry).min();
        let input = self.inbox.recv();
        let Some(wait) = wait else {
            return input.await;
        };
        match rt::select(input, rt::sleep(wait)).await {
            Either::Left(input) => input,
            Either::Right(()) => None,
        }
    }

    async fn deliver(&mut self, command: Command, upgrade_required: bool) {
        let acked = self.parts.journal.status().acked;
        let now = self.parts.clocks.now();
        let terms = Terms {
            upgrade_required,
            acked,
        };
        match self.ledger.deliver(command.clone(), terms, now) {
            Delivered::Known => {}
            Delivered::Dropped(why) => dropped(&command, why),
            Delivered::Plan(plan) => {
                // With the others it comes again with the next session.
                if !self.write(*plan).await && self.turned_away.len() < INBOX {
                    self.turned_away.push((command, upgrade_required));
                    self.try_again();
                }
            }
        }
    }

    async fn ended(&mut self, id: Id, kind: &'static Kind, outcome: Outcome) {
        self.stops.retain(|(of, _)| *of != id);
        self.ledger.work_ended(kind);
        if self.ledger.is_done(id) {
            // It was given up meanwhile: nobody will ask for what it put out.
            self.forget_outputs(vec![id]);
        }
        self.happened(id, Event::Ended(outcome)).await;
        if kind.name == BOOT && self.parts.parting.ending().is_some() {
            let (parting, journal) = (self.parts.parting.clone(), self.parts.journal.clone());
            rt::spawn(async move { parting.leave(journal).await });
        }
    }

    async fn happened(&mut self, id: Id, event: Event) {
        match self.ledger.event(id, event, self.parts.clocks.now()) {
            Todo::Nothing => {}
            Todo::Stop(id) => {
                if let Some((_, stop)) = self.stops.iter().find(|(of, _)| *of == id) {
                    stop.say();
                }
            }
            Todo::Write(plan) => {
                self.write(*plan).await;
            }
        }
    }

    /// Writes a plan, and does what follows from it; whether it is written.
    async fn write(&mut self, mut plan: Plan) -> bool {
        let entries = std::mem::take(&mut plan.entries);
        match self.parts.journal.commit(entries).await {
            Ok(committed) => {
                self.retry = None;
                said(&plan);
                self.forget_outputs(plan.forgotten().to_vec());
                match self
                    .ledger
                    .apply(plan, committed.last, self.parts.clocks.now())
                {
                    Applied::Noted => {}
                    Applied::Begin {
                        id,
                        kind,
                        job,
                        command,
                        event,
                    } => self.begin((id, kind, job), &command, event),
                }
                true
            }
            Err(error) => {
                let mut fields = vec![
                    ("command", Value::Shown(&plan.id)),
                    ("state", Value::Text(state(&plan))),
                    ("error", Value::Chain(&error)),
                ];
                fields.extend(error.remedy().map(|remedy| ("do", Value::Text(remedy))));
                log::event(Level::Error, "command.not_stored", &fields);
                if self.ledger.not_stored(plan) {
                    self.try_again();
                }
                false
            }
        }
    }

    fn try_again(&mut self) {
        let failures = self.retry.map_or(0, |(failures, _)| failures);
        let wait = RETRY.0.saturating_mul(1 << failures.min(6)).min(RETRY.1);
        self.retry = Some((failures + 1, Instant::now() + wait));
    }

    fn begin(
        &mut self,
        (id, kind, job): (Id, &'static Kind, Job),
        command: &Command,
        running_event: u64,
    ) {
        let to_inbox = self.to_inbox.clone();
        let machine = self.parts.machine.clone();
        let context = self.context(id, kind, command, running_event);
        rt::spawn(async move {
            let outcome = match context {
                Err(outcome) => outcome,
                Ok(mut context) => rt::blocking(kind.name, move || match machine {
                    None => job.run(&mut context),
                    Some(machine) => machine.run(id, job),
                })
                .await
                .unwrap_or_else(|error| failed(&error)),
            };
            let _ = to_inbox.send(Input::Ended(id, kind, outcome)).await;
        });
    }

    /// What a command's work is given; else its end.
    fn context(
        &mut self,
        id: Id,
        kind: &'static Kind,
        command: &Command,
        running_event: u64,
    ) -> Result<Context, Outcome> {
        let parts = &self.parts;
        let trusted_ms = (parts.clocks.trusted_ms)();
        let node = (parts.role, &*parts.node_id);
        let order = ordered::permit(kind, command, node, &(parts.signers)(), trusted_ms)?;
        let stop = Stop::new().map_err(|error| failed(&error))?;
        self.stops.push((id, stop.clone()));
        Ok(Context {
            id,
            stop,
            limit: kind.limit,
            progress: Progress::new(id, parts.frames.clone()),
            outputs: self.outputs.clone(),
            boot_id: parts.boot_id.clone(),
            #[cfg(feature = "fakehw")]
            data_dir: parts.data_dir.clone(),
            journal: parts.journal.clone(),
            running_event,
            facts: parts.facts.clone(),
            node_id: (*parts.node_id).into(),
            image_cache: parts.image_cache.clone(),
            site: parts.site.clone(),
            orders: self.orders.clone(),
            order,
            parting: parts.parting.clone(),
            signer: parts.signer.clone(),
            begun: (trusted_ms, clock::monotonic()),
            helper: parts.helper.clone(),
        })
    }

    fn forget_outputs(&self, ids: Vec<Id>) {
        if ids.is_empty() || self.parts.machine.is_some() {
            return;
        }
        let outputs = self.outputs.clone();
        rt::spawn(async move {
            let _ = rt::blocking("outputs", move || {
                for id in ids {
                    // What is left goes at the next start.
                    let _ = outputs.remove(id);
                }
            })
            .await;
        });
    }
}

impl Drop for Engine {
    /// What runs has no one left to tell: it stops, and the next start says that it was interrupted.
    fn drop(&mut self) {
        for (_, stop) in &self.stops {
            stop.say();
        }
    }
}

impl Clocks {
    fn now(&self) -> Now {
        Now {
            clock: clock::monotonic(),
            now_ms: (self.now_ms)(),
            signed_ms: (self.signed_ms)(),
        }
    }
}

fn failed(error: &dyn std::error::Error) -> Outcome {
    Outcome::Failed(super::kinds::explained("InternalError", error))
}

fn state(plan: &Plan) -> &'static str {
    let name = plan.report.state.name().unwrap_or_default();
    name.strip_prefix("COMMAND_STATE_").unwrap_or(name)
}

fn said(plan: &Plan) {
    log::event(
        Level::Info,
        "command.state",
        &[
            ("command", Value::Shown(&plan.id)),
            ("state", Value::Text(state(plan))),
            ("reason", Value::Text(plan.report.reason)),
            ("message", Value::Text(&plan.report.message)),
        ],
    );
}

#[cfg(test)]
mod tests;
