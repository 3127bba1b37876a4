//! One simulated node: its join, its daemon's starts, its events and its faults.
//!
//! Key, join, certificate checks, session machine, outbox, renewal, converge and the commands' ledger are
//! those of `bcd join` and `bcd node`. What is not real: the disk ([`Kept`] and a journal in memory), the
//! hardware, and what a command does.
use std::cell::Cell;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::cable::{Cable, Cut};
use super::counts::Counts;
use super::faults::{Fault, Faults};
use super::kept::Kept;
use super::{Outcome, Setup};
use crate::attest::gateway::{self, Gateway};
use crate::attest::join::{self, Accepted, Asked, Expected, Proof};
use crate::attest::join_token::JoinToken;
use crate::attest::member::Member;
use crate::attest::renewal;
use crate::command::parting::Parting;
use crate::command::{self, Clocks, Commands, Engine, Failure, Id, Job, Machine, Parts};
use crate::converge::{Configured, Converge};
use crate::crypto::digest::hex;
use crate::crypto::key::NodeKey;
use crate::deploy::receipt;
use crate::facts::report::Reporter;
use crate::identity::trust::Trust;
use crate::journal::{Entry, Journal, Limits};
use crate::proto::{
    Command, EventBody, Facts, Firmware, IdentityRenewed, Message, OrderAnswer, OutputRequest,
    Role, SectionState, SectionStatus,
};
use crate::rt::{self, News};
use crate::session::{self, About, Duties, Frames, Signed, Stands, Terms};
use crate::sys::clock::{self, Wall};
use crate::sys::log::{self, Level};
use crate::sys::random;

/// What a simulated node's journal holds without an acknowledgement: beyond it nothing is taken.
const LIMITS: Limits = Limits {
    max_bytes: 1 << 20,
    max_events: 10_000,
};

/// Nodes behind one address of the loopback network, where the gateway is there too: a real gateway bounds
/// what one address may ask.
const BEHIND_ONE: u32 = 50;

/// How long a killed process is away.
const DOWN: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));

/// How long a node that hears nothing more goes on.
const DEAF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// A random time between two.
pub fn between(least: Duration, most: Duration) -> Duration {
    let width = most.saturating_sub(least).as_micros();
    // Without random bytes all take the shortest.
    let more = random::below(u64::try_from(width).unwrap_or(u64::MAX)).unwrap_or(0);
    least + Duration::from_micros(more)
}

/// About so long, over many times.
fn about(span: Duration) -> Duration {
    between(span / 2, span.saturating_mul(3) / 2)
}

fn draw() -> u64 {
    random::below(u64::MAX).unwrap_or(u64::MAX)
}

/// What all nodes of one loop share.
pub struct Fleet {
    pub setup: Arc<Setup>,
    pub counts: Arc<Counts>,
    /// No new faults and events any more.
    pub settling: Cell<bool>,
}

impl Fleet {
    fn faults(&self) -> &Faults {
        &self.setup.faults
    }
}

/// A node that has joined.
pub struct Node {
    fleet: Rc<Fleet>,
    gateway: Gateway,
    cable: Cable,
    wall: Wall,
    kept: Arc<Kept>,
    journal: Journal,
    /// The journal's id as it began.
    journal_id: [u8; 16],
    node_id: String,
    machine: Arc<Simulated>,
    stop: News,
    kill: News,
    connected: Cell<bool>,
    /// Since when there is no session, once there was one.
    down: Cell<Option<Instant>>,
    /// The journal's position and acknowledgement, as they are counted.
    counted: Cell<(u64, u64)>,
    /// Of its own events.
    said: Cell<u64>,
}

/// Joins with `token`.
///
/// # Errors
/// What went wrong, for people.
pub async fn join(fleet: &Rc<Fleet>, number: u32, token: &JoinToken) -> Result<Rc<Node>, String> {
    let setup = &fleet.setup;
    let faults = fleet.faults();
    let slow = faults.meets(Fault::SlowReaders, draw());
    let cable = Cable::new(setup.address, setup.source(number / BEHIND_ONE), slow);
    let wall = match faults.span(Fault::ClockSkew) {
        Some(most) => {
            let ahead = between(Duration::ZERO, most.saturating_mul(2)).as_millis();
            let ms = |ms: u128| i64::try_from(ms).unwrap_or(i64::MAX);
            let ahead_ms = ms(ahead).saturating_sub(ms(most.as_millis()));
            Wall { ahead_ms }
        }
        None => Wall::default(),
    };
    let gateway = Gateway::new(setup.gateway.clone(), setup.server_name.as_deref());
    let gateway = gateway.map_err(told)?.over(Rc::new(cable.clone()));
    let began = Instant::now();
    let key = NodeKey::generate().map_err(told)?;
    let accepted = ask(fleet, &gateway, wall, number, &key, token).await?;
    fleet.counts.join.add(began.elapsed());
    fleet.counts.joined.add(1);
    let identity = accepted.identity();
    let node_id = identity.node_id.clone();
    let journal = Journal::in_memory(LIMITS, wall).map_err(told)?;
    let machine = Simulated {
        counts: fleet.counts.clone(),
        facts: facts(number),
        begun: Mutex::default(),
    };
    Ok(Rc::new(Node {
        fleet: fleet.clone(),
        gateway,
        cable,
        wall,
        kept: Arc::new(Kept::new(identity, &key)),
        journal_id: journal.status().journal_id,
        journal,
        node_id,
        machine: Arc::new(machine),
        stop: News::default(),
        kill: News::default(),
        connected: Cell::new(false),
        down: Cell::new(None),
        counted: Cell::new((0, 0)),
        said: Cell::new(0),
    }))
}

/// One request, sent until it is answered; and once more, when its first answer is to get lost.
async fn ask(
    fleet: &Fleet,
    gateway: &Gateway,
    wall: Wall,
    number: u32,
    key: &NodeKey,
    token: &JoinToken,
) -> Result<Accepted, String> {
    let setup = &fleet.setup;
    let asked = Asked {
        role: Role::NODE,
        site: &setup.site,
        node_id: "",
        discovery: None,
    };
    let secret = token.as_str().as_bytes();
    let request = join::request(
        &asked,
        key,
        &Proof::Token(secret),
        &setup.encryption_key,
        facts(number),
    );
    let request = request.map_err(told)?;
    let node_key = key.spki_der();
    let expected = Expected {
        csr: &request.csr,
        node_key: &node_key,
        role: asked.role,
        site: asked.site,
        spiffe_id: None,
        trust: &Trust::of(setup.pins),
        build_time_ms: clock::build_time_ms(),
    };
    let tls = gateway::tls(
        vec![setup.pins.serving_ca],
        move || wall.trusted_ms(0),
        None,
    );
    let tls = tls.map_err(told)?;
    let mut lost: Option<Accepted> = None;
    loop {
        let mut tell = |_: &join::Notice<'_>| fleet.counts.failed_tries.add(1);
        let run = join::run(
            gateway,
            &tls,
            &request,
            &expected,
            join::PATIENCE,
            &mut tell,
        );
        let accepted = run.await.map_err(told)?;
        match lost {
            None if fleet.faults().meets(Fault::LostJoins, draw()) => {
                fleet.counts.joins_lost.add(1);
                lost = Some(accepted);
            }
            None => return Ok(accepted),
            Some(lost) => {
                let (first, second) = (&lost.result, &accepted.result);
                let same = first.node_id == second.node_id
                    && first.certificate_chain == second.certificate_chain;
                if !same {
                    fleet.counts.doubled.add(1);
                }
                return Ok(accepted);
            }
        }
    }
}

/// What a simulated machine says it is made of: like no other.
fn facts(number: u32) -> Facts {
    let name = format!("sim-{number:05}");
    Facts {
        hostname: name.clone(),
        firmware: Some(Firmware {
            system_vendor: "bcd sim".to_owned(),
            system_product: "simulated node".to_owned(),
            system_serial: name,
            ..Firmware::default()
        }),
        ..Facts::default()
    }
}

fn told(error: impl std::error::Error) -> String {
    log::one_line_chain(&error)
}

impl Node {
    /// Its daemon, started again after each kill, until it is stopped.
    pub async fn live(self: Rc<Self>) {
        let counts = &self.fleet.counts;
        loop {
            let killed = self.kill.count();
            let ended = match self.start() {
                Ok((running, _tasks)) => {
                    let over = rt::select(running, self.kill.since(killed)).await;
                    matches!(over, rt::Either::Left(()))
                }
                // Only what cannot be lets a kept identity not load.
                Err(_) => true,
            };
            self.lost_session();
            if ended {
                return;
            }
            counts.crashes.add(1);
            self.cable.cut(Cut::Reset);
            rt::sleep(between(DOWN.0, DOWN.1)).await;
        }
    }

    /// What `bcd node` does at its start.
    fn start(self: &Rc<Self>) -> Result<(impl Future<Output = ()> + use<>, Tasks), String> {
        let joined = self.kept.load().map_err(told)?;
        let (gateway, keep) = (self.gateway.clone(), self.kept.clone());
        let member = Member::of(gateway, self.fleet.setup.pins, keep, joined, self.wall);
        let member = member.map_err(told)?;
        let recovered = self.journal.recovered().ok_or("its journal is a file")?;
        let frames = Frames::new();
        let journal = self.journal.clone();
        let configured = Configured {
            log_level: self.fleet.setup.log_level,
        };
        let converge = Converge::new(journal.clone(), &recovered.entries, configured);
        let (now, signed, trusting) = (member.clone(), member.clone(), member.clone());
        let trusted = member.clone();
        let parts = Parts {
            facts: Reporter::new(journal.clone(), &recovered.entries),
            journal: journal.clone(),
            clocks: Clocks {
                now_ms: Box::new(move || now.now_ms()),
                trusted_ms: Box::new(move || trusted.trusted_ms()),
                signed_ms: Box::new(move || signed.signed_ms()),
            },
            data_dir: PathBuf::new(),
            boot_id: clock::boot_id().unwrap_or_default(),
            frames: frames.sender.clone(),
            node_id: member.node_id().clone(),
            role: Role::NODE,
            image_cache: None,
            signers: Box::new(move || trusting.signers()),
            site: None,
            signer: receipt::signer().0,
            parting: Parting::default(),
            helper: None,
            machine: Some(self.machine.clone()),
        };
        let (engine, commands) = Engine::new(parts, &recovered);
        let (renewing, renewed_in) = (member.clone(), journal.clone());
        let renewed = move |renewed| told_renewal(renewed_in.clone(), renewed);
        let tasks = Tasks(vec![
            rt::spawn(converge.clone().run()),
            rt::spawn(engine.run()),
            rt::spawn(renewal::run(renewing, renewed)),
        ]);
        let work = Rc::new(Work {
            node: self.clone(),
            converge,
            commands,
        });
        let stop = self.stop.clone();
        let stop = async move { stop.since(0).await };
        let running = session::run(member, journal, work, frames, stop);
        Ok((Box::pin(running), tasks))
    }

    /// Puts events into the journal, until the fleet settles.
    pub async fn speak(self: Rc<Self>) {
        let fleet = &self.fleet;
        loop {
            rt::sleep(about(fleet.setup.every)).await;
            if fleet.settling.get() {
                return;
            }
            let said = self.said.get() + 1;
            let status = SectionStatus {
                section: "sim".to_owned(),
                state: SectionState::APPLIED,
                message: format!("event {said}"),
                ..SectionStatus::default()
            };
            let entry = Entry::status(EventBody::SectionStatus(status));
            // A full journal takes none: the node tries again at its next turn.
            if self.journal.commit(vec![entry]).await.is_ok() {
                self.said.set(said);
                self.count();
            }
            if fleet.faults().meets(Fault::LostAcks, draw()) && self.cable.deafen() {
                rt::sleep(between(DEAF.0, DEAF.1)).await;
                let status = self.journal.status();
                if status.acked < status.position {
                    fleet.counts.acks_lost.add(1);
                }
                self.cut(Cut::Reset);
            }
        }
    }

    /// Cuts its connection now and then, until the fleet settles.
    pub async fn cuts(self: Rc<Self>) {
        let Some(every) = self.fleet.faults().span(Fault::Cuts) else {
            return;
        };
        loop {
            rt::sleep(between(Duration::ZERO, every.saturating_mul(2))).await;
            if self.fleet.settling.get() {
                return;
            }
            self.cut(match draw() % 4 {
                0 => Cut::Silent,
                _ => Cut::Reset,
            });
        }
    }

    /// Kills its process now and then, until the fleet settles.
    pub async fn crashes(self: Rc<Self>) {
        let Some(every) = self.fleet.faults().span(Fault::Crashes) else {
            return;
        };
        loop {
            rt::sleep(between(Duration::ZERO, every.saturating_mul(2))).await;
            if self.fleet.settling.get() {
                return;
            }
            self.kill.ring();
        }
    }

    /// Its connection breaks.
    pub fn cut(&self, how: Cut) {
        if self.connected.get() {
            self.fleet.counts.cuts.add(1);
        }
        self.cable.cut(how);
    }

    /// It shall end, cleanly.
    pub fn end(&self) {
        self.stop.ring();
    }

    /// What became of it.
    pub fn outcome(&self) -> Outcome {
        self.count();
        let status = self.journal.status();
        if status.journal_id != self.journal_id {
            self.fleet.counts.doubled.add(1);
        }
        Outcome {
            node_id: self.node_id.clone(),
            journal_id: hex(&status.journal_id),
            events: status.position,
            acknowledged: status.acked,
            said: self.said.get(),
        }
    }

    /// Counts what the journal took and forgot since it was last counted.
    fn count(&self) {
        let status = self.journal.status();
        let (position, acked) = self.counted.replace((status.position, status.acked));
        let counts = &self.fleet.counts;
        counts.events.add(status.position.saturating_sub(position));
        counts.acknowledged.add(status.acked.saturating_sub(acked));
    }

    fn lost_session(&self) {
        if self.connected.replace(false) {
            self.fleet.counts.connected.sub(1);
            self.down.set(Some(Instant::now()));
        }
    }
}

async fn told_renewal(journal: Journal, renewed: IdentityRenewed) {
    let entry = Entry::status(EventBody::IdentityRenewed(renewed));
    // A full journal has no room for it: the next renewal tells.
    let _ = journal.commit(vec![entry]).await;
}

/// Tasks of a process, which end with it.
struct Tasks(Vec<rt::JoinHandle<()>>);

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(rt::JoinHandle::cancel);
    }
}

/// The duties of a simulated node.
struct Work {
    node: Rc<Node>,
    converge: Converge,
    commands: Commands,
}

impl Duties for Work {
    fn about(&self) -> About {
        About {
            capabilities: command::capabilities(Role::NODE),
            spec_generation: self.converge.generation(),
        }
    }

    fn acked(&self, _position: u64) {
        let node = &self.node;
        let (_, before) = node.counted.get();
        node.count();
        if !node.connected.get() {
            let more = node.counted.get().1.saturating_sub(before);
            node.fleet.counts.resumed.add(more);
        }
    }

    fn stands(&self, stands: Stands<'_>) {
        let node = &self.node;
        let counts = &node.fleet.counts;
        match stands {
            Stands::Open { welcome, .. } => {
                counts.sessions.add(1);
                let acked = node.journal.status().acked;
                counts
                    .lost
                    .add(acked.saturating_sub(welcome.resume_position));
                if !node.connected.replace(true) {
                    counts.connected.add(1);
                }
                if let Some(since) = node.down.take() {
                    counts.reconnects.add(1);
                    counts.back.add(since.elapsed());
                }
            }
            Stands::Down { .. } if node.connected.get() => node.lost_session(),
            Stands::Down { .. } | Stands::NotMoved(_) => counts.failed_tries.add(1),
            // A session that was being left has ended meanwhile.
            Stands::Trying => node.lost_session(),
            Stands::Moving => {}
        }
    }

    fn awake(&self) {
        log::tell_repeats();
    }

    async fn command(&self, command: Command, terms: Terms) {
        self.commands.command(command, terms.upgrade_required).await;
    }

    async fn cancel(&self, id: String) {
        self.commands.cancel(&id).await;
    }

    async fn spec(&self, spec: Signed) {
        self.converge.take(spec);
    }

    async fn output(&self, request: OutputRequest) {
        self.commands.begin_output(request).await;
    }

    async fn order_answered(&self, answer: OrderAnswer) {
        self.commands.order_answered(answer);
    }
}

/// A machine that is none.
struct Simulated {
    counts: Arc<Counts>,
    facts: Facts,
    /// Commands whose work was begun.
    begun: Mutex<BTreeSet<Id>>,
}

impl Machine for Simulated {
    fn run(&self, id: Id, job: Job) -> command::Outcome {
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        self.counts.commands.add(1);
        if !begun.insert(id) {
            self.counts.doubled.add(1);
        }
        match job {
            Job::Facts => command::Outcome::Succeeded(self.facts.encode_to_vec()),
            // A restart, a log, a diagnosis.
            _ => command::Outcome::Failed(Failure::new(
                "Simulated",
                "a simulated node has nothing to restart or to diagnose, and no logs",
            )),
        }
    }
}

/// The level that a simulation logs with, unless its user asks for more.
pub const QUIET: Level = Level::Error;
