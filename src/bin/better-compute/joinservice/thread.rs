//! The seam between a gateway and the JoinService: bytes in, bytes or a status out.
//!
//! [`Relay`] is all a gateway ever holds of the JoinService. Behind it, in one process, stands a thread
//! with a bounded queue; in a larger installation it would be a connection.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::thread;

use bcd::rt::channel::{Receiver, SendError, Sender, channel};
use bcd::sys::log::{self, Level, Value};
use bcd::wire::grpc::{Code, Status};

use super::JoinService;
use crate::registry::now_ms;

/// Joins that may wait.
const QUEUE: usize = 256;

/// An answer on its way: an encoded `JoinResponse` or the refusal.
pub type Answer = Pin<Box<dyn Future<Output = Result<Vec<u8>, Status>>>>;

/// Passes a join on.
pub trait Relay {
    /// Passes on an encoded `JoinRequest` that came from `address`.
    fn relay(&self, request: Vec<u8>, address: String) -> Answer;
}

struct Job {
    request: Vec<u8>,
    address: String,
    answer: Sender<Result<Vec<u8>, Status>>,
}

/// The way to a JoinService on a thread of this process.
#[derive(Clone)]
pub struct LocalRelay(Sender<Job>);

/// Starts the JoinService's thread. It ends when the last relay is gone.
///
/// # Errors
/// There is no thread to be had.
pub fn start(service: JoinService) -> io::Result<LocalRelay> {
    let (sender, receiver) = channel(QUEUE);
    thread::Builder::new()
        .name("joinservice".to_owned())
        .spawn(move || run(service, receiver))?;
    Ok(LocalRelay(sender))
}

fn run(mut service: JoinService, mut jobs: Receiver<Job>) {
    while let Some(job) = jobs.recv_blocking() {
        let answer = service.join(&job.request, &job.address, now_ms());
        let mut fields = vec![("address", Value::Text(&job.address))];
        match &answer {
            Ok(answered) => {
                fields.push(("node", Value::Text(&answered.node_id)));
                fields.push(("outcome", Value::Text(answered.outcome)));
                log::event(Level::Info, "join.answered", &fields);
            }
            Err(refusal) => {
                fields.push(("code", Value::Text(refusal.code().name())));
                fields.push(("reason", Value::Chain(refusal)));
                log::event(Level::Warn, "join.refused", &fields);
            }
        }
        // A caller that went away asks again and gets the same.
        let _ = job.answer.try_send(match answer {
            Ok(answered) => Ok(answered.response),
            Err(refusal) => Err(refusal.status()),
        });
    }
}

impl Relay for LocalRelay {
    fn relay(&self, request: Vec<u8>, address: String) -> Answer {
        let (answer, mut answered) = channel(1);
        let queued = self.0.try_send(Job {
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
}

fn stopped() -> Status {
    Status::new(Code::Unavailable, "the JoinService has stopped: try again")
}
