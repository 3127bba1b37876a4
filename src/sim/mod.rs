//! A fleet in one process: whole nodes against a real gateway, with faults to choose.
//!
//! Each node has a key, an identity, a session and a journal of its own, and runs the code of `bcd join` and
//! `bcd node` ([`node`] says what of it is not real). Nodes are spread over one loop a core. A run has
//! three parts: all join; events and faults go on for as long as was asked; then faults and events stop, and
//! the run waits until every event is acknowledged. What is left open then, or known to be lost or doubled,
//! fails it. Whether the control plane has each event once, it alone can say: [`Outcome`] is what to hold
//! its records against.
//!
//! How the parts fit: `faults` names what goes wrong, `cable` does it to connections, `node` is one node's life,
//! `kept` its identity in memory, `counts` what all of them came to; this file starts the threads.
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use self::cable::Cut;
pub use self::counts::Counts;
use self::faults::{Fault, Faults};
use self::node::{Fleet, Node};
use crate::attest::join_token::JoinToken;
use crate::crypto::jwk::PublicKey;
use crate::identity::trust::Configured;
use crate::rt::channel::{Receiver, Sender, channel};
use crate::rt::{self, Either};
use crate::sys::log::Level;
use crate::wire::url::Url;

mod cable;
mod counts;
pub mod faults;
pub mod kept;
mod node;

pub use node::QUIET;

/// Joins under way at once, of all loops.
const JOINING: usize = 32;

/// Files besides the nodes' connections.
const FILES: u64 = 100;

/// How long the fleet may take to come to rest.
const SETTLE: Duration = Duration::from_secs(180);

/// How often the fleet's state is looked at, and told.
const LOOK: Duration = Duration::from_millis(200);
const TELL: Duration = Duration::from_secs(1);

/// How long a loop's nodes may take to end.
const FAREWELL: Duration = Duration::from_secs(10);

/// A simulation to be run.
pub struct Setup {
    /// The gateway, and its address.
    pub gateway: Url,
    pub server_name: Option<String>,
    pub address: SocketAddr,
    pub site: String,
    pub pins: Configured,
    pub encryption_key: PublicKey,
    pub faults: Faults,
    /// Between two events of a node, about.
    pub every: Duration,
    /// How long it goes on once all have joined; `None`: until it is told to stop.
    pub duration: Option<Duration>,
    pub log_level: Level,
}

impl Setup {
    /// The address that nodes with this number call from; `None`: the one the kernel chooses.
    fn source(&self, number: u32) -> Option<SocketAddr> {
        let IpAddr::V4(to) = self.address.ip() else {
            return None;
        };
        // 127.1.0.0 and up, 65,000 of them.
        let own = Ipv4Addr::from_bits(0x7f01_0000 | number & 0xffff);
        to.is_loopback().then(|| SocketAddr::from((own, 0)))
    }
}

/// What became of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub node_id: String,
    /// In hexadecimal.
    pub journal_id: String,
    /// Events its journal took, and those the control plane acknowledged.
    pub events: u64,
    pub acknowledged: u64,
    /// Of them, those of the simulation itself: section statuses of "sim" with the messages "event 1" to
    /// this, in order.
    pub said: u64,
}

/// What a run came to.
pub struct Report {
    pub nodes: u64,
    pub counts: Arc<Counts>,
    pub outcomes: Vec<Outcome>,
    pub took: Duration,
    /// Why the first node could not join.
    pub not_joined: Option<String>,
}

impl Report {
    /// Whether every node joined, and every event is acknowledged and none known to be lost or doubled.
    pub fn is_good(&self) -> bool {
        let counts = &self.counts;
        let bad = [
            counts.lost.now(),
            counts.doubled.now(),
            counts.open_events(),
        ];
        counts.joined.now() == self.nodes && bad == [0; 3]
    }

    /// As a JSON object.
    pub fn to_json(&self) -> String {
        format!(
            "{{\"nodes\":{},\"seconds\":{},\"good\":{},\"unacknowledged\":{},{}}}\n",
            self.nodes,
            self.took.as_secs(),
            self.is_good(),
            self.counts.open_events(),
            self.counts.members()
        )
    }

    /// A line of JSON a node: what to hold the control plane's records against.
    pub fn ledger(&self) -> String {
        let mut text = String::new();
        for one in &self.outcomes {
            // Ids are of letters, digits and '_' alone.
            let _ = writeln!(
                text,
                "{{\"node\":\"{}\",\"journal\":\"{}\",\"events\":{},\"acknowledged\":{},\"said\":{}}}",
                one.node_id, one.journal_id, one.events, one.acknowledged, one.said
            );
        }
        text
    }
}

/// What a loop is told.
enum Order {
    Settle,
    End,
}

/// What the loops share.
struct Shared {
    setup: Arc<Setup>,
    counts: Arc<Counts>,
    outcomes: Mutex<Vec<Outcome>>,
    not_joined: Mutex<Option<String>>,
}

/// Runs a fleet of one node a token. The first word in `stop` lets it come to rest, the second ends it.
/// `tell` is called each second.
///
/// # Errors
/// There are not as many files or threads to be had.
pub async fn run(
    setup: Setup,
    tokens: Vec<JoinToken>,
    stop: &mut Receiver<()>,
    tell: &mut dyn FnMut(&Counts, Duration),
) -> io::Result<Report> {
    let nodes = tokens.len() as u64;
    raise_files(nodes)?;
    let duration = setup.duration;
    let counts: Arc<Counts> = Arc::default();
    let shared = Arc::new(Shared {
        setup: Arc::new(setup),
        counts: counts.clone(),
        outcomes: Mutex::default(),
        not_joined: Mutex::default(),
    });
    let began = Instant::now();
    let (loops, mut ended) = start(&shared, tokens)?;
    let mut told = began;
    // Waits until `over`, at most so long; false when it was stopped before.
    let mut wait = async |over: &dyn Fn() -> bool, most: Option<Duration>| {
        let since = Instant::now();
        while !over() && most.is_none_or(|most| since.elapsed() < most) {
            if let Either::Left(_) = rt::select(stop.recv(), rt::sleep(LOOK)).await {
                return false;
            }
            if told.elapsed() >= TELL {
                told = Instant::now();
                tell(&counts, began.elapsed());
            }
        }
        true
    };
    let all_joined = || counts.joined.now() + counts.not_joined.now() >= nodes;
    if wait(&all_joined, None).await {
        wait(&|| false, duration).await;
    }
    let say = |order: fn() -> Order| {
        for one in &loops {
            let _ = one.try_send(order());
        }
    };
    say(|| Order::Settle);
    let at_rest = || {
        let all = counts.connected.now() >= counts.joined.now();
        all && counts.open_events() == 0
    };
    wait(&at_rest, Some(SETTLE)).await;
    say(|| Order::End);
    drop(loops);
    while ended.recv().await.is_some() {}
    let took = began.elapsed();
    let outcomes = std::mem::take(&mut *locked(&shared.outcomes));
    let not_joined = locked(&shared.not_joined).take();
    Ok(Report {
        nodes,
        counts,
        outcomes,
        took,
        not_joined,
    })
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A thread a core, each with its share of the nodes. The receiver ends with the last of them.
fn start(
    shared: &Arc<Shared>,
    tokens: Vec<JoinToken>,
) -> io::Result<(Vec<Sender<Order>>, Receiver<()>)> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let count = cores.min(tokens.len()).max(1);
    let mut shares: Vec<VecDeque<(u32, JoinToken)>> = Vec::new();
    shares.resize_with(count, VecDeque::new);
    for (number, token) in (0..).zip(tokens) {
        let place = usize::try_from(number).unwrap_or(0) % count;
        if let Some(share) = shares.get_mut(place) {
            share.push_back((number, token));
        }
    }
    let (alive, ended) = channel(1);
    let mut loops = Vec::new();
    for share in shares {
        let (sender, orders) = channel(2);
        let (shared, alive) = (shared.clone(), alive.clone());
        let at_once = JOINING.div_ceil(count);
        thread::Builder::new()
            .name("sim".to_owned())
            .spawn(move || {
                // Gone with the thread.
                let _alive: Sender<()> = alive;
                let ran = rt::try_block_on(fleet(&shared, share, at_once, orders));
                if let Err(error) = ran {
                    locked(&shared.not_joined).get_or_insert(error.to_string());
                }
            })?;
        loops.push(sender);
    }
    Ok((loops, ended))
}

/// One loop's nodes.
async fn fleet(
    shared: &Arc<Shared>,
    share: VecDeque<(u32, JoinToken)>,
    at_once: usize,
    mut orders: Receiver<Order>,
) {
    let fleet = Rc::new(Fleet {
        setup: shared.setup.clone(),
        counts: shared.counts.clone(),
        settling: Cell::new(false),
    });
    let waiting = Rc::new(RefCell::new(share));
    let nodes: Rc<RefCell<Vec<Rc<Node>>>> = Rc::default();
    let lives: Rc<RefCell<Vec<rt::JoinHandle<()>>>> = Rc::default();
    for _ in 0..at_once {
        let (fleet, shared) = (fleet.clone(), shared.clone());
        let (waiting, nodes, lives) = (waiting.clone(), nodes.clone(), lives.clone());
        rt::spawn(async move {
            loop {
                let next = waiting.borrow_mut().pop_front();
                let Some((number, token)) = next.filter(|_| !fleet.settling.get()) else {
                    return;
                };
                match node::join(&fleet, number, &token).await {
                    Ok(node) => {
                        lives.borrow_mut().push(rt::spawn(node.clone().live()));
                        rt::spawn(node.clone().speak());
                        rt::spawn(node.clone().cuts());
                        rt::spawn(node.clone().crashes());
                        nodes.borrow_mut().push(node);
                    }
                    Err(error) => {
                        locked(&shared.not_joined).get_or_insert(error);
                        shared.counts.not_joined.add(1);
                    }
                }
            }
        });
    }
    rt::spawn(storms(fleet.clone(), nodes.clone()));
    while let Some(order) = orders.recv().await {
        match order {
            Order::Settle => fleet.settling.set(true),
            Order::End => break,
        }
    }
    fleet.settling.set(true);
    for node in nodes.borrow().iter() {
        node.end();
    }
    let lives = lives.take();
    let ended = async {
        for life in lives {
            life.await;
        }
    };
    // What has not ended by then ends with the loop.
    let _ = rt::timeout(FAREWELL, ended).await;
    let outcomes = nodes
        .borrow()
        .iter()
        .map(|node| node.outcome())
        .collect::<Vec<_>>();
    locked(&shared.outcomes).extend(outcomes);
}

/// Cuts every connection at the same moment, now and then, until the fleet settles.
async fn storms(fleet: Rc<Fleet>, nodes: Rc<RefCell<Vec<Rc<Node>>>>) {
    let Some(every) = fleet.setup.faults.span(Fault::Storms) else {
        return;
    };
    loop {
        rt::sleep(every).await;
        if fleet.settling.get() {
            return;
        }
        for node in nodes.borrow().iter() {
            node.cut(Cut::Reset);
        }
    }
}

/// A connection a node; and, as far as the limit goes, as many again that linger or are being left.
fn raise_files(nodes: u64) -> io::Result<()> {
    let needed = nodes.saturating_add(FILES);
    let files = getrlimit(Resource::Nofile);
    let maximum = files.maximum.map(|maximum| maximum.max(needed));
    let best = needed.saturating_add(nodes);
    let current = maximum.map_or(best, |maximum| maximum.min(best));
    if files.current.is_none_or(|there| there >= current) {
        return Ok(());
    }
    let wanted = Rlimit {
        current: Some(current),
        maximum,
    };
    // Only root may raise the maximum.
    setrlimit(Resource::Nofile, wanted).map_err(|_| {
        io::Error::other(format!(
            "{nodes} nodes need {needed} open files, and the limit is {}: raise it (ulimit -n)",
            files.maximum.unwrap_or(0)
        ))
    })
}
