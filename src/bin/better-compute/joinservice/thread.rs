//! The seam between a gateway and the JoinService: bytes in, bytes or a status out.
//!
//! [`Relay`] is all a gateway ever holds of the JoinService: it passes joins and renewals on, and has the
//! signed time and the signed trust bundle to hand out. Behind it, in one process, stands a thread with a
//! bounded queue; in a larger installation it would be a connection.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bcd::proto::Envelope;
use bcd::rt::channel::{Receiver, SendError, Sender, channel};
use bcd::sys::log::{self, Level, Value};
use bcd::wire::grpc::{Code, Status};

use super::{Answered, JoinService, Keys, Refusal, Trust};
use crate::registry::now_ms;

/// Calls that may wait.
const QUEUE: usize = 256;
/// How long a signed time is handed out before a newer one is asked for.
const TIME_FRESH: Duration = Duration::from_secs(30);
/// How long it may be handed out when no newer one is to be had at once.
const TIME_USABLE: Duration = Duration::from_secs(60);

/// An answer on its way: an encoded `JoinResponse` or the refusal.
pub type Answer = Pin<Box<dyn Future<Output = Result<Vec<u8>, Status>>>>;
/// A signed `ServerTime` on its way, unless there is none to be had.
pub type SignedTime = Pin<Box<dyn Future<Output = Option<Envelope>>>>;

/// A signed `NodeSpec` on its way.
pub type SignedSpec = Pin<Box<dyn Future<Output = Option<Envelope>>>>;

/// What a node asks of a JoinService.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    Join,
    Renew,
}

/// Passes calls on.
pub trait Relay {
    /// Passes on an encoded `JoinRequest` or `RenewRequest` that came from `address`.
    fn relay(&self, call: Call, request: Vec<u8>, address: String) -> Answer;
    /// The time, signed within the last minute.
    fn signed_time(&self) -> SignedTime;
    /// The trust bundle in force.
    fn trust(&self) -> Arc<Trust>;
}

/// Signs what the operator wants of a node.
pub trait SpecSigner {
    /// An encoded `NodeSpec` in its envelope; `None` when it could not be signed.
    fn sign_spec(&self, spec: Vec<u8>) -> SignedSpec;
}

enum Job {
    Spec(Vec<u8>, Sender<Option<Envelope>>),
    Call {
        call: Call,
        request: Vec<u8>,
        address: String,
        answer: Sender<Result<Vec<u8>, Status>>,
    },
    Time(Sender<Option<Envelope>>),
    Keys(Box<Keys>, Sender<()>),
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

/// The way to a JoinService on a thread of this process.
#[derive(Clone)]
pub struct LocalRelay {
    jobs: Sender<Job>,
    shared: Arc<Mutex<Shared>>,
}

/// Starts the JoinService's thread. It ends when the last relay is gone.
///
/// # Errors
/// There is no thread to be had.
pub fn start(service: JoinService) -> io::Result<LocalRelay> {
    let (jobs, receiver) = channel(QUEUE);
    let shared = Arc::new(Mutex::new(Shared {
        trust: service.trust(),
        time: None,
    }));
    let relay = LocalRelay { jobs, shared };
    let shared = relay.shared.clone();
    thread::Builder::new()
        .name("joinservice".to_owned())
        .spawn(move || run(service, receiver, &shared))?;
    Ok(relay)
}

fn run(mut service: JoinService, mut jobs: Receiver<Job>, shared: &Mutex<Shared>) {
    // The signing keys may be others than when this last ran.
    sign_specs_anew(&mut service);
    while let Some(job) = jobs.recv_blocking() {
        match job {
            Job::Call {
                call,
                request,
                address,
                answer,
            } => {
                let answered = match call {
                    Call::Join => service.join(&request, &address, now_ms()),
                    Call::Renew => service.renew(&request, &address, now_ms()),
                };
                report(call, &address, &answered);
                // A caller that went away asks again and gets the same.
                let _ = answer.try_send(match answered {
                    Ok(answered) => Ok(answered.response),
                    Err(refusal) => Err(refusal.status()),
                });
            }
            Job::Spec(spec, answer) => {
                let signed = service.sign_spec(spec);
                if let Err(refusal) = &signed {
                    let fields = [("error", Value::Chain(refusal))];
                    log::event(Level::Error, "spec.not_signed", &fields);
                }
                let _ = answer.try_send(signed.ok());
            }
            Job::Keys(keys, done) => {
                service.use_keys(*keys);
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
        }
    }
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

fn locked(shared: &Mutex<Shared>) -> std::sync::MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
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
        self.jobs.send(job).await.map_err(|_| stopped())?;
        answered.recv().await.ok_or_else(stopped)
    }
}

impl Relay for LocalRelay {
    fn relay(&self, call: Call, request: Vec<u8>, address: String) -> Answer {
        let (answer, mut answered) = channel(1);
        let queued = self.jobs.try_send(Job::Call {
            call,
            request,
            address,
            answer,
        });
        Box::pin(async move {
            match queued {
                Ok(()) => {}
                Err(SendError::Full(_)) => {
                    return Err(Status::new(
                        Code::ResourceExhausted,
                        "too many joins at once: try again",
                    ));
                }
                Err(SendError::Closed(_)) => return Err(stopped()),
            }
            answered.recv().await.unwrap_or_else(|| Err(stopped()))
        })
    }

    fn signed_time(&self) -> SignedTime {
        if let Some(fresh) = locked(&self.shared).time(TIME_FRESH) {
            return Box::pin(std::future::ready(Some(fresh)));
        }
        let usable = locked(&self.shared).time(TIME_USABLE);
        let (answer, mut answered) = channel(1);
        let queued = self.jobs.try_send(Job::Time(answer));
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

impl SpecSigner for LocalRelay {
    fn sign_spec(&self, spec: Vec<u8>) -> SignedSpec {
        let (answer, mut answered) = channel(1);
        let queued = self.jobs.try_send(Job::Spec(spec, answer));
        Box::pin(async move {
            match queued {
                Ok(()) => answered.recv().await.flatten(),
                Err(_) => None,
            }
        })
    }
}

fn stopped() -> Status {
    Status::new(Code::Unavailable, "the JoinService has stopped: try again")
}
