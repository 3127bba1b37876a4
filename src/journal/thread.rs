//! The journal's thread, and the handle to it.
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use super::memory::Memory;
use super::writer::Writer;
use super::{Committed, Entry, JournalError, Limits, OpenError, Recovered, Status, Stored};
use crate::rt::channel::{Receiver, Sender, channel};
use crate::sys::clock::Wall;
use crate::sys::fs::Dir;
use crate::sys::random;

/// Jobs that wait for the thread; who brings more waits.
const QUEUE: usize = 64;
/// A group is closed when its entries come to this: what it costs in memory is bounded.
const GROUP: usize = 512 << 10;
/// Nothing here goes deep.
const STACK: usize = 128 << 10;
const NO_ID: &str = "cannot make the journal's id";

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
    keeper: Keeper,
    shared: Arc<Shared>,
}

/// Who does the work.
#[derive(Clone)]
enum Keeper {
    Thread(Sender<Job>),
    /// Whoever calls.
    Memory(Arc<Mutex<Memory>>),
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
        let keeper = Keeper::Thread(jobs);
        Ok(Self { keeper, shared })
    }

    /// An empty journal without a file, which stamps its events by `wall`.
    ///
    /// # Errors
    /// The kernel gave no random bytes.
    pub fn in_memory(limits: Limits, wall: Wall) -> Result<Self, OpenError> {
        let id = random::bytes().map_err(|error| OpenError::Kernel(NO_ID, error))?;
        let max_events = usize::try_from(limits.max_events).unwrap_or(usize::MAX);
        let memory = Memory::new(id, max_events, wall);
        let shared = Shared {
            acked: AtomicU64::new(0),
            state: Mutex::new(State {
                status: memory.status(),
                closed: false,
                waiting: Vec::new(),
            }),
        };
        Ok(Self {
            keeper: Keeper::Memory(Arc::new(Mutex::new(memory))),
            shared: Arc::new(shared),
        })
    }

    /// What a daemon would find that is started now on a journal in memory. `None`: this one is a file.
    pub fn recovered(&self) -> Option<Recovered> {
        match &self.keeper {
            Keeper::Memory(memory) => Some(locked(memory).recovered()),
            Keeper::Thread(_) => None,
        }
    }

    /// Puts `entries` on the disk, all or none; without any it does nothing.
    ///
    /// # Errors
    /// See [`JournalError`]; nothing of it is there then, save where [`JournalError::Disk`] says so.
    pub async fn commit(&self, entries: Vec<Entry>) -> Result<Committed, JournalError> {
        match &self.keeper {
            Keeper::Thread(jobs) => ask(jobs, |reply| Job::Commit(entries, reply)).await,
            Keeper::Memory(memory) => self.with(memory, |memory| memory.commit(entries)),
        }
    }

    /// As [`commit`](Self::commit), for threads.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub fn commit_blocking(&self, entries: Vec<Entry>) -> Result<Committed, JournalError> {
        let jobs = match &self.keeper {
            Keeper::Thread(jobs) => jobs,
            Keeper::Memory(memory) => return self.with(memory, |memory| memory.commit(entries)),
        };
        let (reply, answer) = channel(1);
        jobs.send_blocking(Job::Commit(entries, reply))
            .map_err(|_| JournalError::Closed)?;
        answer.recv_blocking().unwrap_or(Err(JournalError::Closed))
    }

    /// The unacknowledged events after `after`, in order: as many as `max_bytes` hold, and at least one if there
    /// is one.
    ///
    /// # Errors
    /// The disk failed, or the thread has ended.
    pub async fn read(&self, after: u64, max_bytes: usize) -> Result<Vec<Stored>, JournalError> {
        let jobs = match &self.keeper {
            Keeper::Thread(jobs) => jobs,
            Keeper::Memory(memory) => return Ok(locked(memory).read(after, max_bytes)),
        };
        let job = |reply| Job::Read {
            after,
            max_bytes,
            reply,
        };
        ask(jobs, job).await
    }

    /// Forgets the events up to `position`. The file learns of it with the next commit; after a crash
    /// before that they are there again, and the resume position tells.
    pub fn ack(&self, position: u64) {
        self.shared.acked.fetch_max(position, Ordering::AcqRel);
        match &self.keeper {
            // A full queue has jobs, after each of which the thread looks at it anyway.
            Keeper::Thread(jobs) => {
                let _ = jobs.try_send(Job::Acked);
            }
            Keeper::Memory(memory) => self.with(memory, |memory| memory.ack(position)),
        }
    }

    /// Begins a new journal, for when the control plane knows more events of this one than were ever
    /// written (the disk went back in time): another id, sequences from 1, and in it what is not
    /// acknowledged and all keys. Returns the id.
    ///
    /// # Errors
    /// As [`commit`](Self::commit); the journal is then as it was.
    pub async fn rebase(&self) -> Result<[u8; 16], JournalError> {
        match &self.keeper {
            Keeper::Thread(jobs) => ask(jobs, Job::Rebase).await,
            Keeper::Memory(memory) => {
                // Without random bytes it goes on as it is: the caller dials again.
                let id = random::bytes().map_err(|_| JournalError::Closed)?;
                self.with(memory, |memory| memory.rebase(id));
                self.shared.acked.store(0, Ordering::Release);
                Ok(id)
            }
        }
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

    /// Does `work` on a journal in memory, and tells how it is then.
    fn with<T>(&self, memory: &Mutex<Memory>, work: impl FnOnce(&mut Memory) -> T) -> T {
        let mut memory = locked(memory);
        let done = work(&mut memory);
        let status = memory.status();
        drop(memory);
        self.shared.publish(status, false);
        done
    }
}

async fn ask<T>(jobs: &Sender<Job>, job: impl FnOnce(Reply<T>) -> Job) -> Result<T, JournalError> {
    let (reply, mut answer) = channel(1);
    jobs.send(job(reply))
        .await
        .map_err(|_| JournalError::Closed)?;
    answer.recv().await.unwrap_or(Err(JournalError::Closed))
}

fn locked(memory: &Mutex<Memory>) -> MutexGuard<'_, Memory> {
    memory.lock().unwrap_or_else(PoisonError::into_inner)
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
