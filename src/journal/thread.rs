//! The journal's thread, and the handle to it.
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use super::writer::Writer;
use super::{Committed, Entry, JournalError, Limits, OpenError, Recovered, Status, Stored};
use crate::rt::channel::{Receiver, Sender, channel};
use crate::sys::fs::Dir;

/// Jobs that wait for the thread; who brings more waits.
const QUEUE: usize = 64;
/// A group is closed when its entries come to this: what it costs in memory is bounded.
const GROUP: usize = 512 << 10;
/// Nothing here goes deep.
const STACK: usize = 128 << 10;

type Reply<T> = Sender<Result<T, JournalError>>;

enum Job {
    Commit(Vec<Entry>, Reply<Committed>),
    Read {
        after: u64,
        max_bytes: usize,
        reply: Reply<Vec<Stored>>,
    },
    Rebase(Reply<[u8; 16]>),
    /// An acknowledgement waits in [`Shared`].
    Acked,
}

/// A handle to the journal; clones are cheap. The file is closed when the last one is gone.
#[derive(Clone)]
pub struct Journal {
    jobs: Sender<Job>,
    shared: Arc<Shared>,
}

struct Shared {
    /// The highest acknowledgement so far, of the journal as it is now.
    acked: AtomicU64,
    state: Mutex<State>,
}

struct State {
    status: Status,
    closed: bool,
    waiting: Vec<Waker>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, status: Status, closed: bool) {
        let mut state = self.state();
        state.status = status;
        state.closed = closed;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl Journal {
    /// Opens the journal of `node_id` in `dir`, made when missing, and starts the thread "journal".
    ///
    /// # Errors
    /// See [`OpenError`]. A damaged file is none: see [`Recovered::damage`].
    pub fn open(dir: &Dir, node_id: &str, limits: Limits) -> Result<(Self, Recovered), OpenError> {
        let (writer, recovered) = Writer::open(dir, node_id, limits)?;
        Ok((Self::start(writer)?, recovered))
    }

    fn start(writer: Writer) -> Result<Self, OpenError> {
        let shared = Arc::new(Shared {
            acked: AtomicU64::new(0),
            state: Mutex::new(State {
                status: writer.status(),
                closed: false,
                waiting: Vec::new(),
            }),
        });
        let (jobs, queue) = channel(QUEUE);
        let for_thread = shared.clone();
        std::thread::Builder::new()
            .name("journal".to_owned())
            .stack_size(STACK)
            .spawn(move || serve(writer, queue, &for_thread))
            .map_err(|error| OpenError::Kernel("cannot start a thread", error))?;
        Ok(Self { jobs, shared })
    }

    /// Puts `entries` on the disk, all or none; without any it does nothing.
    ///
    /// # Errors
    /// See [`JournalError`]; nothing of it is there then, save where [`JournalError::Disk`] says so.
    pub async fn commit(&self, entries: Vec<Entry>) -> Result<Committed, JournalError> {
        self.ask(|reply| Job::Commit(entries, reply)).await
    }

    /// As [`commit`](Self::commit), for threads.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub fn commit_blocking(&self, entries: Vec<Entry>) -> Result<Committed, JournalError> {
        let (reply, mut answer) = channel(1);
        self.jobs
            .send_blocking(Job::Commit(entries, reply))
            .map_err(|_| JournalError::Closed)?;
        answer.recv_blocking().unwrap_or(Err(JournalError::Closed))
    }

    /// The unacknowledged events after `after`, in order: as many as `max_bytes` hold, and at least one if there
    /// is one.
    ///
    /// # Errors
    /// The disk failed, or the thread has ended.
    pub async fn read(&self, after: u64, max_bytes: usize) -> Result<Vec<Stored>, JournalError> {
        self.ask(|reply| Job::Read {
            after,
            max_bytes,
            reply,
        })
        .await
    }

    /// Forgets the events up to `position`. The file learns of it with the next commit; after a crash
    /// before that they are there again, and the resume position tells.
    pub fn ack(&self, position: u64) {
        self.shared.acked.fetch_max(position, Ordering::AcqRel);
        // A full queue has jobs, after each of which the thread looks at it anyway.
        let _ = self.jobs.try_send(Job::Acked);
    }

    /// Begins a new journal, for when the control plane knows more events of this one than were ever
    /// written (the disk went back in time): another id, sequences from 1, and in it what is not
    /// acknowledged and all keys. Returns the id.
    ///
    /// # Errors
    /// As [`commit`](Self::commit); the journal is then as it was.
    pub async fn rebase(&self) -> Result<[u8; 16], JournalError> {
        self.ask(Job::Rebase).await
    }

    /// Waits until there is an event after `after`, and returns the position. For any number of tasks.
    ///
    /// # Errors
    /// [`JournalError::Closed`].
    pub async fn news(&self, after: u64) -> Result<u64, JournalError> {
        poll_fn(|cx| {
            let mut state = self.shared.state();
            if state.closed {
                return Poll::Ready(Err(JournalError::Closed));
            }
            if state.status.position > after {
                return Poll::Ready(Ok(state.status.position));
            }
            if !state
                .waiting
                .iter()
                .any(|waker| waker.will_wake(cx.waker()))
            {
                state.waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    /// How it is, as of the last job.
    pub fn status(&self) -> Status {
        self.shared.state().status.clone()
    }

    async fn ask<T>(&self, job: impl FnOnce(Reply<T>) -> Job) -> Result<T, JournalError> {
        let (reply, mut answer) = channel(1);
        self.jobs
            .send(job(reply))
            .await
            .map_err(|_| JournalError::Closed)?;
        answer.recv().await.unwrap_or(Err(JournalError::Closed))
    }
}

/// The thread: takes what has come together, writes the commits of it in one go, answers, and
/// sleeps.
fn serve(mut writer: Writer, mut queue: Receiver<Job>, shared: &Shared) {
    while let Some(job) = queue.recv_blocking() {
        let mut commits = Vec::new();
        let mut replies = Vec::new();
        let mut others = Vec::new();
        let mut bytes = 0;
        let mut next = Some(job);
        while let Some(job) = next {
            match job {
                Job::Commit(entries, reply) => {
                    bytes += entries.iter().map(size).sum::<usize>();
                    commits.push(entries);
                    replies.push(reply);
                }
                Job::Acked => {}
                other => others.push(other),
            }
            if commits.len() + others.len() >= QUEUE || bytes >= GROUP {
                break;
            }
            next = queue.try_recv();
        }
        writer.ack(shared.acked.load(Ordering::Acquire));
        if !commits.is_empty() {
            let outcome = writer.append(&commits);
            shared.publish(writer.status(), false);
            for (reply, outcome) in replies.into_iter().zip(outcome) {
                let _ = reply.try_send(outcome);
            }
        }
        drop(commits);
        for job in others {
            match job {
                Job::Read {
                    after,
                    max_bytes,
                    reply,
                } => {
                    let _ = reply.try_send(writer.read(after, max_bytes));
                }
                Job::Rebase(reply) => {
                    let rebased = writer.rebase();
                    // Acknowledgements were of the other journal.
                    if rebased.is_ok() {
                        shared.acked.store(0, Ordering::Release);
                    }
                    shared.publish(writer.status(), false);
                    let _ = reply.try_send(rebased.map(|()| writer.status().journal_id));
                }
                Job::Commit(..) | Job::Acked => {}
            }
        }
        writer.tidy();
        shared.publish(writer.status(), false);
    }
    shared.publish(writer.status(), true);
}

fn size(entry: &Entry) -> usize {
    match entry {
        Entry::Event { body, .. } => body.len(),
        Entry::Put { key, value, .. } => key.len() + value.len(),
        Entry::Delete { key, .. } => key.len(),
    }
}
