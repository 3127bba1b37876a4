//! The seam between a gateway and the JoinService: bytes in, bytes or a status out.
//!
//! [`Relay`] is all a gateway ever holds of the JoinService: it passes joins and renewals on, and has the
//! signed time and the signed trust bundle to hand out. Behind it, in one process, stand threads; in a
//! larger installation it would be a connection.
//!
//! The readers, as many as there are cores, take requests apart and sign answers; one thread owns the
//! records and decides, all that wait in one transaction, while more gather behind it. An answer is
//! signed after its decision is durable. How many calls are on the way is bounded ([`QUEUE`]), so that
//! no queue between the threads is ever full.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bcd::proto::Envelope;
use bcd::rt::channel::{Receiver, Sender, channel};
use bcd::sys::log::{self, Level, Value};
use bcd::wire::grpc::{Code, Status};

use super::{Answered, Call, Decision, JoinService, Keys, Question, Refusal, Trust};
use crate::registry::now_ms;

/// Joins and renewals that may be on the way.
const QUEUE: usize = 1024;
/// Signed times, specs, orders and new keys that may wait beside them.
const QUEUE_MORE: usize = 256;
/// Calls that are decided in one transaction.
const TOGETHER: usize = 256;
/// How long a signed time is handed out before a newer one is asked for.
const TIME_FRESH: Duration = Duration::from_secs(30);
/// How long it may be handed out when no newer one is to be had at once.
const TIME_USABLE: Duration = Duration::from_secs(60);

/// An answer on its way: an encoded `JoinResponse` or the refusal.
pub type Answer = Pin<Box<dyn Future<Output = Result<Vec<u8>, Status>>>>;
/// A signed `ServerTime` on its way, unless there is none to be had.
pub type SignedTime = Pin<Box<dyn Future<Output = Option<Envelope>>>>;

/// Something signed on its way; `None` when it could not be signed.
pub type SignedWish = Pin<Box<dyn Future<Output = Option<Envelope>>>>;

/// Passes calls on. The loops of a gateway share one.
pub trait Relay: Send + Sync {
    /// Passes on an encoded `JoinRequest` or `RenewRequest` that came from `address`.
    fn relay(&self, call: Call, request: Vec<u8>, address: String) -> Answer;
    /// The time, signed within the last minute.
    fn signed_time(&self) -> SignedTime;
    /// The trust bundle in force.
    fn trust(&self) -> Arc<Trust>;
}

/// Signs what the operator wants of a node. The operators' API has this; a gateway never.
pub trait Signer {
    /// An encoded `NodeSpec` in its envelope.
    fn sign_spec(&self, spec: Vec<u8>) -> SignedWish;
    /// An encoded `Order` in its envelope.
    fn sign_order(&self, order: Vec<u8>) -> SignedWish;
}

/// For the thread that owns the records.
enum Job {
    Spec(Vec<u8>, Sender<Option<Envelope>>),
    Order(Vec<u8>, Sender<Option<Envelope>>),
    Decide(Question, Caller),
    Time(Sender<Option<Envelope>>),
    Keys(Box<Keys>, Sender<()>),
    End,
}

/// For the readers.
enum Task {
    Read(Vec<u8>, Caller),
    Answer(Decision, Caller),
    End,
}

/// Who waits for an answer.
struct Caller {
    call: Call,
    address: String,
    answer: Sender<Result<Vec<u8>, Status>>,
    _admitted: Admitted,
}

impl Caller {
    fn answer(self, answered: Result<Answered, Refusal>) {
        report(self.call, &self.address, &answered);
        // A caller that went away asks again and gets the same.
        let _ = self.answer.try_send(match answered {
            Ok(answered) => Ok(answered.response),
            Err(refusal) => Err(refusal.status()),
        });
    }
}

/// A call's place among those on the way, until dropped.
struct Admitted(Arc<AtomicUsize>);

impl Admitted {
    fn one_of(running: &Arc<AtomicUsize>) -> Option<Self> {
        let place = Self(running.clone());
        (running.fetch_add(1, Ordering::Relaxed) < QUEUE).then_some(place)
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What the thread leaves for whoever asks.
struct Shared {
    trust: Arc<Trust>,
    time: Option<(Instant, Envelope)>,
}

impl Shared {
    fn time(&self, age: Duration) -> Option<Envelope> {
        let (signed, envelope) = self.time.as_ref()?;
        (signed.elapsed() < age).then(|| envelope.clone())
    }
}

/// The way to a JoinService on threads of this process.
#[derive(Clone)]
pub struct LocalRelay {
    threads: Arc<Threads>,
    shared: Arc<Mutex<Shared>>,
    running: Arc<AtomicUsize>,
}

/// The threads, until dropped.
struct Threads {
    jobs: Sender<Job>,
    tasks: Sender<Task>,
    readers: usize,
}

impl Drop for Threads {
    fn drop(&mut self) {
        let _ = self.jobs.send_blocking(Job::End);
        for _ in 0..self.readers {
            let _ = self.tasks.send_blocking(Task::End);
        }
    }
}

/// Starts a JoinService with so many readers. Its threads end when the last relay is gone.
///
/// # Errors
/// There is no thread to be had.
pub fn start(service: JoinService, readers: usize) -> io::Result<LocalRelay> {
    let readers = readers.max(1);
    let (jobs, jobs_in) = channel(QUEUE + QUEUE_MORE + 1);
    // A call is once in here to be read and once to be answered, never both.
    let (tasks, tasks_in) = channel(QUEUE + readers);
    let tasks_in = Arc::new(tasks_in);
    let keys = Arc::new(Mutex::new(service.keys()));
    let shared = Arc::new(Mutex::new(Shared {
        trust: service.trust(),
        time: None,
    }));
    let relay = LocalRelay {
        threads: Arc::new(Threads {
            jobs: jobs.clone(),
            tasks: tasks.clone(),
            readers,
        }),
        shared: shared.clone(),
        running: Arc::default(),
    };
    for number in 0..readers {
        let (tasks, jobs, keys) = (tasks_in.clone(), jobs.clone(), keys.clone());
        thread::Builder::new()
            .name(format!("join-{number}"))
            .spawn(move || read(&tasks, &jobs, &keys))?;
    }
    thread::Builder::new()
        .name("joinservice".to_owned())
        .spawn(move || run(service, jobs_in, &tasks, &keys, &shared))?;
    Ok(relay)
}

/// A reader.
fn read(tasks: &Receiver<Task>, jobs: &Sender<Job>, keys: &Mutex<Arc<Keys>>) {
    loop {
        match tasks.recv_blocking() {
            Some(Task::Read(request, caller)) => {
                let keys = locked(keys).clone();
                match keys.read(caller.call, &request, &caller.address, now_ms()) {
                    Ok(question) => {
                        let _ = jobs.send_blocking(Job::Decide(question, caller));
                    }
                    Err(refusal) => caller.answer(Err(refusal)),
                }
            }
            Some(Task::Answer(decision, caller)) => caller.answer(decision.answer()),
            Some(Task::End) | None => return,
        }
    }
}

/// The thread that owns the records.
fn run(
    mut service: JoinService,
    mut jobs: Receiver<Job>,
    tasks: &Sender<Task>,
    keys: &Mutex<Arc<Keys>>,
    shared: &Mutex<Shared>,
) {
    // The signing keys may be others than when this last ran.
    sign_specs_anew(&mut service);
    let (mut questions, mut callers) = (Vec::new(), Vec::new());
    while let Some(job) = jobs.recv_blocking() {
        let mut next = Some(job);
        while let Some(job) = next {
            match job {
                Job::Decide(question, caller) => {
                    questions.push(question);
                    callers.push(caller);
                }
                Job::Spec(spec, answer) => {
                    let signed = service.sign_spec(spec);
                    let _ = answer.try_send(signed_or_said(signed, "spec.not_signed"));
                }
                Job::Order(order, answer) => {
                    let signed = service.sign_order(order);
                    let _ = answer.try_send(signed_or_said(signed, "order.not_signed"));
                }
                Job::Keys(others, done) => {
                    service.use_keys(*others);
                    *locked(keys) = service.keys();
                    {
                        let mut shared = locked(shared);
                        shared.trust = service.trust();
                        shared.time = None;
                    }
                    sign_specs_anew(&mut service);
                    let _ = done.try_send(());
                }
                Job::Time(answer) => {
                    let _ = answer.try_send(time(&service, shared));
                }
                Job::End => return,
            }
            next = match questions.len() < TOGETHER {
                true => jobs.try_recv(),
                false => None,
            };
        }
        if questions.is_empty() {
            continue;
        }
        let decided = service.decide(&questions);
        questions.clear();
        for (decision, caller) in decided.into_iter().zip(callers.drain(..)) {
            match decision {
                Ok(decision) => {
                    let _ = tasks.send_blocking(Task::Answer(decision, caller));
                }
                Err(refusal) => caller.answer(Err(refusal)),
            }
        }
    }
}

/// What was signed; that it was not is said by `event`.
fn signed_or_said(signed: Result<Envelope, Refusal>, event: &'static str) -> Option<Envelope> {
    if let Err(refusal) = &signed {
        log::event(Level::Error, event, &[("error", Value::Chain(refusal))]);
    }
    signed.ok()
}

fn sign_specs_anew(service: &mut JoinService) {
    match service.sign_specs_anew() {
        Ok(0) => {}
        Ok(signed) => {
            let fields = [("specs", Value::Number(signed as u64))];
            log::event(Level::Info, "spec.signed_anew", &fields);
        }
        Err(refusal) => {
            let fields = [("error", Value::Chain(&refusal))];
            log::event(Level::Error, "spec.not_signed", &fields);
        }
    }
}

/// Many may have asked while the last one was signed: they get that one.
fn time(service: &JoinService, shared: &Mutex<Shared>) -> Option<Envelope> {
    if let Some(fresh) = locked(shared).time(TIME_FRESH) {
        return Some(fresh);
    }
    match service.server_time(now_ms()) {
        Ok(envelope) => {
            locked(shared).time = Some((Instant::now(), envelope.clone()));
            Some(envelope)
        }
        Err(refusal) => {
            let fields = [("error", Value::Chain(&refusal))];
            log::event(Level::Error, "time.not_signed", &fields);
            None
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn report(call: Call, address: &str, answered: &Result<Answered, Refusal>) {
    let mut fields = vec![("address", Value::Text(address))];
    match answered {
        Ok(answered) => {
            fields.push(("node", Value::Text(&answered.node_id)));
            fields.push(("outcome", Value::Text(answered.outcome)));
            let event = match call {
                Call::Join => "join.answered",
                Call::Renew => "renewal.answered",
            };
            log::event(Level::Info, event, &fields);
        }
        Err(refusal) => {
            fields.push(("code", Value::Text(refusal.code().name())));
            fields.push(("reason", Value::Chain(refusal)));
            let event = match call {
                Call::Join => "join.refused",
                Call::Renew => "renewal.refused",
            };
            log::event(Level::Warn, event, &fields);
        }
    }
}

impl LocalRelay {
    /// Makes the JoinService use other keys; when this returns, the trust bundle is theirs.
    ///
    /// # Errors
    /// The JoinService has stopped.
    pub async fn use_keys(&self, keys: Keys) -> Result<(), Status> {
        let (done, mut answered) = channel(1);
        let job = Job::Keys(Box::new(keys), done);
        self.threads.jobs.send(job).await.map_err(|_| stopped())?;
        answered.recv().await.ok_or_else(stopped)
    }
}

impl LocalRelay {
    fn sign(&self, job: impl FnOnce(Sender<Option<Envelope>>) -> Job) -> SignedWish {
        let (answer, mut answered) = channel(1);
        let queued = self.threads.jobs.try_send(job(answer));
        Box::pin(async move {
            match queued {
                Ok(()) => answered.recv().await.flatten(),
                Err(_) => None,
            }
        })
    }
}

impl Relay for LocalRelay {
    fn relay(&self, call: Call, request: Vec<u8>, address: String) -> Answer {
        let (answer, mut answered) = channel(1);
        let queued = match Admitted::one_of(&self.running) {
            Some(admitted) => {
                let caller = Caller {
                    call,
                    address,
                    answer,
                    _admitted: admitted,
                };
                let task = Task::Read(request, caller);
                self.threads.tasks.try_send(task).map_err(|_| stopped())
            }
            None => Err(Status::new(
                Code::ResourceExhausted,
                "too many joins at once: try again",
            )),
        };
        Box::pin(async move {
            queued?;
            answered.recv().await.unwrap_or_else(|| Err(stopped()))
        })
    }

    fn signed_time(&self) -> SignedTime {
        if let Some(fresh) = locked(&self.shared).time(TIME_FRESH) {
            return Box::pin(std::future::ready(Some(fresh)));
        }
        let usable = locked(&self.shared).time(TIME_USABLE);
        let (answer, mut answered) = channel(1);
        let queued = self.threads.jobs.try_send(Job::Time(answer));
        Box::pin(async move {
            match (queued, usable) {
                // Behind a queue of joins nobody waits while there is one to hand out.
                (_, Some(usable)) => Some(usable),
                (Ok(()), None) => answered.recv().await.flatten(),
                (Err(_), None) => None,
            }
        })
    }

    fn trust(&self) -> Arc<Trust> {
        locked(&self.shared).trust.clone()
    }
}

impl Signer for LocalRelay {
    fn sign_spec(&self, spec: Vec<u8>) -> SignedWish {
        self.sign(|answer| Job::Spec(spec, answer))
    }

    fn sign_order(&self, order: Vec<u8>) -> SignedWish {
        self.sign(|answer| Job::Order(order, answer))
    }
}

fn stopped() -> Status {
    Status::new(Code::Unavailable, "the JoinService has stopped: try again")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use bcd::crypto::certificate::Certificate;
    use bcd::rt;

    use super::super::tests::{Fleet, HOUR, verified};
    use super::*;

    #[test]
    fn joins_that_come_together_are_all_answered_each_with_its_own() {
        let fleet = Fleet::new();
        let asked: Vec<_> = (0..60)
            .map(|_| {
                let (_, token) = fleet.token_until(false, now_ms() + HOUR);
                let draft = fleet.draft(&token);
                (fleet.encode(&draft), draft.key.spki_der())
            })
            .collect();
        let (store, pin) = (fleet.store(), fleet.public.pins().join_signing);
        let relay = start(fleet.service, 3).unwrap();
        let nodes: BTreeSet<_> = rt::block_on(async {
            let relayed = asked
                .iter()
                .map(|(request, _)| relay.relay(Call::Join, request.clone(), String::new()));
            let waiting: Vec<_> = relayed.map(rt::spawn).collect();
            let mut nodes = BTreeSet::new();
            for (answer, (_, spki)) in waiting.into_iter().zip(&asked) {
                let result = verified(&answer.await.unwrap().unwrap(), pin);
                let leaf = Certificate::parse(&result.certificate_chain[0]).unwrap();
                assert_eq!(leaf.spki, spki);
                assert!(store.node(&result.node_id).unwrap().is_some(), "durable");
                nodes.insert(result.node_id);
            }
            nodes
        });
        assert_eq!(nodes.len(), 60);
        // A call makes room once it was answered, not before.
        let patience = Instant::now() + Duration::from_secs(10);
        while relay.running.load(Ordering::Relaxed) != 0 {
            assert!(Instant::now() < patience);
            std::thread::yield_now();
        }
    }

    #[test]
    fn so_many_calls_may_be_on_the_way_and_each_that_ends_makes_room() {
        let running = Arc::default();
        let mut places: Vec<_> = (0..QUEUE)
            .map(|_| Admitted::one_of(&running).unwrap())
            .collect();
        assert!(Admitted::one_of(&running).is_none());
        assert!(Admitted::one_of(&running).is_none(), "a refusal takes none");
        places.pop();
        assert!(Admitted::one_of(&running).is_some());
    }
}
