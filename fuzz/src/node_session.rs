//! A whole node's session at a hostile gateway: whatever that says over HTTP/2, and in whatever order, the node
//! reports only what a journal holds, forgets only what was acknowledged, runs no command twice, and none that needs
//! an order without a good one; each loss of a session has a name, and the node ends when it shall.
//!
//! What is not real: the machine that commands run on, and the disk. Frames are made from a few bytes of the input
//! each, signed where that is asked for, sent as they are or changed; the input breaks HTTP/2's rules as well.
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bcd::attest::gateway::Gateway;
use bcd::attest::member::Member;
use bcd::attest::renewal;
use bcd::command::kinds::{KINDS, Kind};
use bcd::command::parting::Parting;
use bcd::command::{
    Clocks, Commands, Engine, Failure, Id, Job, Machine, Outcome, Parts, capabilities,
};
use bcd::converge::{Configured, Converge};
use bcd::crypto::digest::sha256;
use bcd::crypto::envelope::{self, Purpose};
use bcd::crypto::key::NodeKey;
use bcd::deploy::receipt;
use bcd::facts::report::Reporter;
use bcd::identity::record::Identity;
use bcd::identity::store::Joined;
use bcd::identity::trust;
use bcd::journal::{self, Entry, Journal, Limits};
use bcd::proto::{
    Ack, CancelCommand, Command, Drain, Envelope, EventBody, GatewayFrame, GatewayFrameKind,
    Heartbeat, Message, NodeFrame, NodeFrameKind, NodeSpec, Order, OrderAnswer, OutputRequest,
    RenewNow, RenewRequest, Renewal, Role, SectionStatus, ServerTime, SpecSection, TrustBundle,
    Welcome,
};
use bcd::rt::{self, News};
use bcd::session::{self, About, Duties, Failed, Frames, Signed, Stands, Terms};
use bcd::sim::kept::Kept;
use bcd::sys::clock::Wall;
use bcd::sys::log::{self, Level};
use bcd::wire::url::Url;
use better_compute::registry::now_ms;

use super::fleet::{self, Fleet};
use super::hostile::Line;

pub const HEAP: super::Heap = super::Heap {
    base: 8 << 20,
    per_byte: 32 << 10,
};

/// Steps of one input, and the waits among them.
const STEPS: usize = 64;
const WAITS: usize = 8;
/// Events in the journal before the node starts.
const BEFORE: u64 = 3;
const WAIT: Duration = Duration::from_millis(1);
const HOUR_MS: i64 = 3_600_000;
const BOOT: &str = "00000000-0000-4000-8000-000000000000";

struct Place {
    fleet: Fleet,
    stranger: NodeKey,
}

thread_local! {
    static PLACE: RefCell<Option<Rc<Place>>> = const { RefCell::new(None) };
}

pub fn run(data: &[u8]) {
    let new = || Place {
        fleet: Fleet::new(),
        stranger: NodeKey::generate().expect("a key"),
    };
    let place = fleet::with(&PLACE, |place| &place.fleet, new);
    let Some((first, rest)) = data.split_first() else {
        return;
    };
    log::set_level(Level::Error);
    let trial = Trial::new(place, *first);
    rt::block_on(trial.run(Input(rest)));
}

/// What is left of an input. Past its end are zeroes.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    /// A length, and so many bytes.
    fn bytes(&mut self) -> Vec<u8> {
        let length = usize::from(self.byte()).min(self.0.len());
        let (bytes, rest) = self.0.split_at(length);
        self.0 = rest;
        bytes.to_vec()
    }

    fn text(&mut self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }

    fn choice<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::from(self.byte()) % of.len()]
    }
}

/// A machine that does nothing, and what came to it.
struct Bench {
    journal: Journal,
    outcome: u8,
    begun: Mutex<BTreeMap<Id, Job>>,
    wrong: Mutex<Vec<String>>,
}

impl Machine for Bench {
    fn run(&self, id: Id, job: Job) -> Outcome {
        let wrong = |what: String| lock(&self.wrong).push(what);
        let name = id.to_string();
        let recovered = self.journal.recovered().expect("it is in memory");
        let mut kept = recovered.entries.iter();
        if !kept.any(|entry| entry.kind == journal::Kind::Command && entry.key == name) {
            wrong(format!("{name} ran before it was in the journal"));
        }
        if lock(&self.begun).insert(id, job).is_some() {
            wrong(format!("{name} ran twice"));
        }
        match self.outcome % 5 {
            0 => Outcome::Succeeded(vec![1]),
            1 => Outcome::Failed(Failure::new("Simulated", "")),
            2 => Outcome::Stopped,
            3 => Outcome::GoingDown,
            _ => Outcome::Succeeded(vec![0; 300 << 10]),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The duties, as the daemon puts them together.
struct Work {
    role: Role,
    converge: Converge,
    commands: Commands,
}

/// Why there is no session has a name, and a remedy.
fn lost(failed: &Failed<'_>) {
    super::one_line(&failed.error);
    assert!(!failed.remedy.is_empty());
}

impl Duties for Work {
    fn about(&self) -> About {
        About {
            capabilities: capabilities(self.role),
            spec_generation: self.converge.generation(),
        }
    }

    fn acked(&self, _position: u64) {}

    fn stands(&self, stands: Stands<'_>) {
        match stands {
            Stands::Down { failed, .. } | Stands::NotMoved(failed) => lost(&failed),
            Stands::Trying | Stands::Open { .. } | Stands::Moving => {}
        }
    }

    fn awake(&self) {}

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

/// A daemon that runs.
struct Daemon {
    stop: News,
    session: rt::JoinHandle<()>,
    tasks: Vec<rt::JoinHandle<()>>,
}

impl Daemon {
    /// As a crash would: nothing is told.
    fn kill(self) {
        self.session.cancel();
        self.tasks.iter().for_each(rt::JoinHandle::cancel);
    }
}

/// One node and its gateway.
struct Trial {
    place: Rc<Place>,
    role: Role,
    journal: Journal,
    journal_id: [u8; 16],
    kept: Arc<Kept>,
    bench: Arc<Bench>,
    line: Line,
    /// Payloads of orders that the fleet signed, and still hold.
    orders: BTreeSet<Vec<u8>>,
    /// The input has said things by itself: what was acknowledged is not known.
    wild: bool,
    /// Some session may run commands.
    permitted: bool,
}

impl Trial {
    /// Bits of `first`: the node's role, a journal that fills up, and how commands end.
    fn new(place: Rc<Place>, first: u8) -> Self {
        let limits = Limits {
            max_bytes: 1 << 20,
            max_events: if first & 2 == 0 { 512 } else { 8 },
        };
        let journal = Journal::in_memory(limits, Wall::default()).expect("a journal");
        let fleet = &place.fleet;
        let mut identity = Identity::default();
        identity.node_id.clone_from(&fleet.node_id);
        identity.spiffe_id.clone_from(&fleet.joined.spiffe_id);
        "node".clone_into(&mut identity.role);
        identity.certificate_chain.clone_from(&fleet.node_chain);
        Self {
            role: if first & 1 == 0 {
                Role::NODE
            } else {
                Role::RAMDISK
            },
            journal_id: journal.status().journal_id,
            kept: Arc::new(Kept::new(identity, &fleet.node_key)),
            bench: Arc::new(Bench {
                journal: journal.clone(),
                outcome: first >> 2,
                begun: Mutex::default(),
                wrong: Mutex::default(),
            }),
            journal,
            place,
            line: Line::default(),
            orders: BTreeSet::new(),
            wild: false,
            permitted: false,
        }
    }

    async fn run(mut self, mut input: Input<'_>) {
        for _ in 0..BEFORE {
            self.tell().await;
        }
        let mut daemon = self.start();
        let (mut at, mut last, mut waits) = (0, Vec::new(), 0);
        self.settle().await;
        for _ in 0..STEPS {
            if input.0.is_empty() {
                break;
            }
            let step = input.byte();
            let count = self.line.servers().len();
            at = at.min(count.saturating_sub(1));
            match step & 31 {
                24 => {
                    daemon.kill();
                    rt::yield_now().await;
                    daemon = self.start();
                    self.settle().await;
                    at = self.line.servers().len().saturating_sub(1);
                }
                25 => self.tell().await,
                26 => at = usize::from(input.byte()) % count.max(1),
                27.. if waits < WAITS => {
                    waits += 1;
                    self.settle().await;
                    if step & 32 != 0 {
                        at = self.line.servers().len().saturating_sub(1);
                    }
                }
                27.. => {}
                what => {
                    let said = self.said(what, &mut input, at, &last);
                    if let (Some(mut said), Some(server)) = (said, self.line.servers().get_mut(at))
                    {
                        if step & 32 != 0 {
                            spoil(&mut said, &mut input);
                        }
                        server.message(&said);
                        last = said;
                    }
                }
            }
        }
        for _ in 0..2 {
            self.settle().await;
        }
        self.line.close();
        daemon.stop.ring();
        let ended = rt::timeout(Duration::from_secs(3), daemon.session).await;
        assert!(ended.is_ok(), "the node outlived its end");
        daemon.tasks.iter().for_each(rt::JoinHandle::cancel);
        rt::yield_now().await;
        self.judge().await;
    }

    /// A message to send; or what is done to the connection instead.
    fn said(&mut self, what: u8, input: &mut Input<'_>, at: usize, last: &[u8]) -> Option<Vec<u8>> {
        if what <= 12 {
            let frame = GatewayFrame {
                kind: Some(self.frame(what, input)),
            };
            return Some(frame.encode_to_vec());
        }
        let mut servers = self.line.servers();
        let server = servers.get_mut(at)?;
        match what {
            13 => return Some(last.to_vec()),
            14 => return Some(input.bytes()),
            15 => server.grpc(&input.bytes()),
            16 => server.go_away(input.byte()),
            17 => server.reset(input.byte()),
            18 => server.trailers(input.byte()),
            19 => server.close(),
            20 => server.window(u32::from(input.byte()) << 12),
            21 => {
                let (kind, flags, stream) = (input.byte() % 12, input.byte(), input.byte());
                let payload = input.bytes();
                self.wild |= kind == 0;
                server.frame(kind, flags, u32::from(stream % 6), &payload);
            }
            22 => {
                self.wild = true;
                server.raw(&input.bytes());
            }
            _ => {
                let spoilt = input.byte();
                let answer = self.place.renewed(&server.messages(), spoilt);
                server.answer(&answer);
            }
        }
        None
    }

    fn frame(&mut self, what: u8, input: &mut Input<'_>) -> GatewayFrameKind {
        let place = self.place.clone();
        let fleet = &place.fleet;
        match what {
            0 | 11 => {
                let how = input.byte();
                let upgrade_required = how & 1 == 1;
                let time_ms = now_ms() + HOUR_MS * i64::from(how >> 4);
                let time = ServerTime { time_ms }.encode_to_vec();
                let signed_time = match how >> 1 & 3 {
                    0 => None,
                    1 => Some(fleet.sign(time, Purpose::ServerTime)),
                    2 => Some(fleet.sign(time, Purpose::Order)),
                    _ => Some(place.foreign(time, Purpose::ServerTime)),
                };
                self.permitted |= !upgrade_required;
                GatewayFrameKind::Welcome(Welcome {
                    protocol_version: match how & 8 {
                        0 => u32::from(!upgrade_required),
                        _ => input.byte().into(),
                    },
                    resume_position: position(input),
                    upgrade_required,
                    heartbeat_interval_ms: input.choice(&[0, 1, 1000, u32::MAX]),
                    signed_time,
                    reconnect_spread_ms: input.choice(&[0, 1, u32::MAX]),
                    ..Welcome::default()
                })
            }
            1 => GatewayFrameKind::Heartbeat(Heartbeat {
                sequence: position(input),
                time_ms: 0,
            }),
            2 => {
                let how = input.byte();
                let names = ["log", "daemon", "none", "log"];
                let count = usize::from(input.byte() % 5);
                let spec = NodeSpec {
                    node_id: place.node_id(how & 1 == 1),
                    generation: input.byte().into(),
                    sections: names[..count]
                        .iter()
                        .map(|name| SpecSection {
                            name: (*name).to_owned(),
                            body: input.bytes(),
                        })
                        .collect(),
                };
                GatewayFrameKind::Spec(place.signed(spec.encode_to_vec(), Purpose::NodeSpec, how))
            }
            3 | 12 => GatewayFrameKind::Command(self.command(input)),
            4 => GatewayFrameKind::Drain(Drain {
                reconnect_after_ms: input.choice(&[0, 1, u32::MAX]),
                reason: input.text(),
            }),
            5 => GatewayFrameKind::Ack(Ack {
                position: position(input),
            }),
            6 => GatewayFrameKind::Cancel(CancelCommand { id: id(input) }),
            7 => {
                let how = input.byte();
                let bundle = TrustBundle {
                    version: input.byte().into(),
                    retired_pins: (0..how & 1).map(|_| input.text()).collect(),
                    ..place.bundle()
                };
                let purpose = Purpose::TrustBundle;
                GatewayFrameKind::TrustBundle(place.signed(bundle.encode_to_vec(), purpose, how))
            }
            8 => GatewayFrameKind::OutputRequest(OutputRequest {
                command_id: id(input),
                offset: position(input),
                max_bytes: input.choice(&[0, 1, u32::MAX]),
                release: input.byte() & 1 == 1,
            }),
            9 => GatewayFrameKind::Renew(RenewNow {
                within_ms: input.choice(&[0, 0, 1, u32::MAX]),
            }),
            _ => GatewayFrameKind::OrderAnswer(OrderAnswer {
                order_id: ORDER.to_owned(),
                nonce: input.bytes(),
                granted: true,
                ..OrderAnswer::default()
            }),
        }
    }

    fn command(&mut self, input: &mut Input<'_>) -> Command {
        let how = input.byte();
        let kind = KINDS.get(usize::from(input.byte()) % (KINDS.len() + 1));
        let now = now_ms();
        let mut command = Command {
            id: id(input),
            kind: kind.map_or("daemon.upgrade", |kind| kind.name).to_owned(),
            params: match how & 1 {
                0 => kind.map_or_else(Vec::new, params),
                _ => input.bytes(),
            },
            deadline_ms: now + HOUR_MS * input.choice(&[1, 1, 1, 0, -1, 10_000]),
            order: None,
        };
        let mut order = Order {
            order_id: ORDER.to_owned(),
            command_id: command.id.clone(),
            kind: command.kind.clone(),
            params_sha256: sha256(&command.params).to_vec(),
            node_id: self.place.node_id(false),
            made_ms: now - 1000,
            expires_ms: now + HOUR_MS,
        };
        match how >> 1 & 15 {
            0 | 1 => {}
            2 => order.node_id = self.place.node_id(true),
            3 => order.expires_ms = now - 1,
            4 => order.command_id = id(input),
            5 => order.kind = "disks.wipe".to_owned(),
            6 => order.params_sha256 = sha256(&input.bytes()).to_vec(),
            7 => order.expires_ms += 48 * HOUR_MS,
            8 => order.made_ms = i64::MIN,
            9 => return command,
            10 => {
                command.order = Envelope::decode(&input.bytes()).ok();
                return command;
            }
            _ => {}
        }
        let payload = order.encode_to_vec();
        if how >> 5 == 0 && order.expires_ms > now {
            self.orders.insert(payload.clone());
        }
        command.order = Some(self.place.signed(payload, Purpose::Order, how));
        command
    }

    /// What `bcd node` does at its start.
    fn start(&self) -> Daemon {
        let url = Url {
            https: false,
            host: "gw.example".to_owned(),
            port: 80,
            path: "/".to_owned(),
        };
        let gateway = Gateway::new(url, None).expect("a name");
        let gateway = gateway.over(Rc::new(self.line.clone()));
        let pins = self.place.fleet.public.pins();
        let configured = trust::Configured {
            serving_ca: pins.serving_ca,
            join_signing: pins.join_signing,
        };
        let joined: Joined = self.kept.load().expect("a key");
        let member = Member::of(
            gateway,
            configured,
            self.kept.clone(),
            joined,
            Wall::default(),
        );
        let member = member.expect("its key fits");
        let recovered = self.journal.recovered().expect("it is in memory");
        let journal = self.journal.clone();
        let frames = Frames::new();
        let configured = Configured {
            log_level: Level::Error,
        };
        let converge = Converge::new(journal.clone(), &recovered.entries, configured);
        let (now, trusted) = (member.clone(), member.clone());
        let (signed, trusting) = (member.clone(), member.clone());
        let parts = Parts {
            facts: Reporter::new(journal.clone(), &recovered.entries),
            journal: journal.clone(),
            clocks: Clocks {
                now_ms: Box::new(move || now.now_ms()),
                trusted_ms: Box::new(move || trusted.trusted_ms()),
                signed_ms: Box::new(move || signed.signed_ms()),
            },
            data_dir: self.place.fleet.path().with_extension("data"),
            boot_id: BOOT.to_owned(),
            frames: frames.sender.clone(),
            node_id: member.node_id().clone(),
            role: self.role,
            image_cache: None,
            signers: Box::new(move || trusting.signers()),
            site: None,
            signer: receipt::signer().0,
            parting: Parting::default(),
            helper: None,
            machine: Some(self.bench.clone()),
        };
        let (engine, commands) = Engine::new(parts, &recovered);
        let renewed = {
            let journal = journal.clone();
            move |renewed| {
                let journal = journal.clone();
                async move {
                    let entry = Entry::status(EventBody::IdentityRenewed(renewed));
                    let _ = journal.commit(vec![entry]).await;
                }
            }
        };
        let tasks = vec![
            rt::spawn(converge.clone().run()),
            rt::spawn(engine.run()),
            rt::spawn(renewal::run(member.clone(), renewed)),
        ];
        let work = Rc::new(Work {
            role: self.role,
            converge,
            commands,
        });
        let stop = News::default();
        let stopped = {
            let stop = stop.clone();
            async move { stop.since(0).await }
        };
        Daemon {
            stop,
            session: rt::spawn(session::run(member, journal, work, frames, stopped)),
            tasks,
        }
    }

    /// An event into the journal, which may be full.
    async fn tell(&self) {
        let entry = Entry::status(EventBody::SectionStatus(SectionStatus::default()));
        let _ = self.journal.commit(vec![entry]).await;
    }

    /// Lets the node do what it has to.
    async fn settle(&self) {
        rt::sleep(WAIT).await;
        for server in self.line.servers().iter_mut() {
            server.hear();
        }
    }

    async fn judge(&self) {
        let wrong = std::mem::take(&mut *lock(&self.bench.wrong));
        assert!(wrong.is_empty(), "{wrong:?}");
        let (mut acknowledged, mut commands) = (0, Vec::new());
        for server in self.line.servers().iter_mut() {
            server.hear();
            spoke(&server.messages(), &self.place.fleet.node_id);
            for message in server.said() {
                match GatewayFrame::decode(&message).map(|frame| frame.kind) {
                    Ok(Some(GatewayFrameKind::Ack(ack))) => {
                        acknowledged = acknowledged.max(ack.position);
                    }
                    Ok(Some(GatewayFrameKind::Welcome(welcome))) => {
                        acknowledged = acknowledged.max(welcome.resume_position);
                    }
                    Ok(Some(GatewayFrameKind::Command(command))) => commands.push(command),
                    _ => {}
                }
            }
        }
        let status = self.journal.status();
        let left = self.journal.read(0, usize::MAX).await.expect("it reads");
        let sequences: Vec<u64> = left.iter().map(|event| event.sequence).collect();
        assert!(
            sequences
                .iter()
                .copied()
                .eq(status.acked + 1..=status.position),
            "{sequences:?} of {status:?}"
        );
        if !self.wild {
            if status.journal_id == self.journal_id {
                assert!(status.acked <= acknowledged, "{status:?}, {acknowledged}");
            }
            if acknowledged == 0 {
                assert!(status.acked == 0 && status.position >= BEFORE);
            }
            let begun = lock(&self.bench.begun);
            assert!(begun.is_empty() || self.permitted);
            for (id, job) in begun.iter() {
                let meant = |command: &&Command| {
                    let kind = Kind::named(&command.kind);
                    command.id == id.to_string()
                        && kind.is_some_and(|kind| {
                            (kind.read)(&command.params).as_ref() == Ok(job)
                                && (!kind.ordered || self.ordered(command))
                        })
                };
                assert!(
                    commands.iter().any(|command| meant(&command)),
                    "{id}: {job:?}"
                );
            }
        }
    }

    /// Whether a command may run that needs an order.
    fn ordered(&self, command: &Command) -> bool {
        let payload = command.order.as_ref().map(|order| &order.payload);
        let Some(payload) = payload.filter(|payload| self.orders.contains(*payload)) else {
            return false;
        };
        let order = Order::decode(payload).expect("it was signed here");
        self.role == Role::RAMDISK
            && order.command_id == command.id
            && order.kind == command.kind
            && order.params_sha256 == sha256(&command.params)
            && order.node_id == self.place.fleet.node_id
            && order.expires_ms > order.made_ms
            && order.expires_ms.saturating_sub(order.made_ms) <= 24 * HOUR_MS
    }
}

/// What a node said over one connection: a session's frames, or a renewal.
fn spoke(messages: &[Vec<u8>], node_id: &str) {
    let Some((first, rest)) = messages.split_first() else {
        return;
    };
    match NodeFrame::decode(first).map(|frame| frame.kind) {
        Ok(Some(NodeFrameKind::Hello(hello))) => assert_eq!(hello.node_id, node_id),
        _ => {
            let renewal = RenewRequest::decode(first)
                .ok()
                .and_then(|asked| asked.signed);
            let renewal = renewal.and_then(|signed| Renewal::decode(&signed.payload).ok());
            assert!(renewal.is_some_and(|renewal| renewal.node_id == node_id));
            assert!(rest.is_empty());
            return;
        }
    }
    let (mut event, mut beat) = (0, 0);
    for message in rest {
        assert!(message.len() <= 1 << 20);
        match NodeFrame::decode(message).map(|frame| frame.kind) {
            Ok(Some(NodeFrameKind::Event(said))) => {
                assert!(said.sequence > event, "{} after {event}", said.sequence);
                event = said.sequence;
            }
            Ok(Some(NodeFrameKind::Heartbeat(said))) => {
                assert!(said.sequence > beat, "{} after {beat}", said.sequence);
                beat = said.sequence;
            }
            Ok(Some(NodeFrameKind::Hello(_)) | None) | Err(_) => panic!("{message:?}"),
            Ok(Some(_)) => {}
        }
    }
}

/// Small, or as large as it can be.
fn position(input: &mut Input<'_>) -> u64 {
    match input.byte() {
        255 => u64::MAX,
        small => small.into(),
    }
}

const ORDER: &str = "ord_01kb7w3x9qn5v8m2r6t4y0sdfh";

/// One of a few ids, or anything.
fn id(input: &mut Input<'_>) -> String {
    match input.byte() {
        255 => input.text(),
        byte => format!("cmd_01kb7w3x9qn5v8m2r6t4y0sdf{}", byte % 8),
    }
}

/// Changes a message: up to three of its bytes, or its length.
fn spoil(message: &mut Vec<u8>, input: &mut Input<'_>) {
    let how = input.byte();
    for _ in 0..how & 3 {
        let at = usize::from(input.byte()) << (how >> 6) | usize::from(how >> 4 & 3);
        let with = input.byte();
        if let Some(byte) = message.get_mut(at) {
            *byte ^= with;
        }
    }
    match how >> 2 & 3 {
        0 => message.truncate(message.len().saturating_sub(input.byte().into())),
        1 => message.extend(input.bytes()),
        _ => {}
    }
}

/// Params that are good.
fn params(kind: &Kind) -> Vec<u8> {
    use bcd::proto::{BootMode, DeployImageParams, DiskTarget, DisksWipeParams, MachineBootParams};
    let disk = DiskTarget {
        stable_name: "wwn-0x5000".to_owned(),
        ..DiskTarget::default()
    };
    let order_id = ORDER.to_owned();
    match kind.name {
        "disks.wipe" => DisksWipeParams {
            order_id,
            disks: vec![disk],
            ..DisksWipeParams::default()
        }
        .encode_to_vec(),
        "machine.boot" => MachineBootParams {
            order_id,
            mode: BootMode::REBOOT,
            ..MachineBootParams::default()
        }
        .encode_to_vec(),
        "deploy.image" => DeployImageParams {
            order_id,
            disk: Some(disk),
            url: "https://images.example/a".to_owned(),
            ..DeployImageParams::default()
        }
        .encode_to_vec(),
        _ => Vec::new(),
    }
}

impl Place {
    fn node_id(&self, other: bool) -> String {
        match other {
            false => self.fleet.node_id.clone(),
            true => "node_01kb7w3x9qn5v8m2r6t4y0sdfh".to_owned(),
        }
    }

    fn foreign(&self, payload: Vec<u8>, purpose: Purpose) -> Envelope {
        envelope::sign(payload, purpose, &self.stranger).expect("a signature")
    }

    /// Signed by the fleet, by somebody else or for something else: the upper bits of `how`.
    fn signed(&self, payload: Vec<u8>, purpose: Purpose, how: u8) -> Envelope {
        match how >> 5 {
            1 => self.foreign(payload, purpose),
            2 => self.fleet.sign(payload, Purpose::Renewal),
            3 => Envelope {
                signatures: Vec::new(),
                ..self.fleet.sign(payload, purpose)
            },
            4 => {
                let mut signed = self.fleet.sign(payload, purpose);
                signed.payload.push(how);
                signed
            }
            5.. => Envelope {
                payload,
                ..self.fleet.sign(vec![how], purpose)
            },
            0 => self.fleet.sign(payload, purpose),
        }
    }

    fn bundle(&self) -> TrustBundle {
        let signed = self.fleet.joined.trust_bundle.as_ref().expect("a bundle");
        TrustBundle::decode(&signed.payload).expect("a bundle")
    }

    /// The answer to a renewal that a node asked for; spoilt a little, if it shall be.
    fn renewed(&self, asked: &[Vec<u8>], spoilt: u8) -> Vec<u8> {
        let asked = asked
            .first()
            .and_then(|first| RenewRequest::decode(first).ok());
        let asked = asked.and_then(|asked| asked.signed);
        let asked = asked.and_then(|signed| Renewal::decode(&signed.payload).ok());
        self.fleet.renewed(&asked.unwrap_or_default().csr, spoilt)
    }
}
