//! The session with the gateway (docs/protocol.md 6): opened, kept alive, opened again, for as
//! long as the daemon runs.
//!
//! `machine` decides, from what happened and when; `open` dials; `live` holds a session that was
//! welcomed, and `outbox` says which of the journal's events go over it; `spec` judges specs; `work`
//! hands on to the parts above what the session does not understand ([`Duties`]). [`run`] is the
//! edge that waits for all of them, one timer and the signal, and does what the machine says. While
//! a session is healthy nothing wakes the process but heartbeats, events and frames, and the
//! session itself writes nothing to the disk.
//!
//! It refuses to end by itself: a node that is turned away says so, and asks again slowly.
use std::future::{Future, pending};
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use self::live::{Happened, Live};
use self::machine::{Action, Event, State, Trouble};
use self::open::{Opened, SessionError, VERSIONS};
use self::outbox::Outbox;
use self::work::Order;
use crate::attest::member::Member;
use crate::journal::Journal;
use crate::proto::{GatewayFrame, GatewayFrameKind, Hello, NodeFrame, Welcome};
use crate::rt::channel::{Receiver, SendError, Sender};
use crate::rt::{self, Either};
use crate::sys::log::{self, Level, Value};
use crate::sys::{clock, random};
use crate::wire::Tried;

mod duties;
mod live;
#[cfg(test)]
mod live_tests;
pub mod machine;
mod open;
pub mod outbox;
pub mod spec;
mod work;

pub use duties::{About, Duties, Failed, Frames, Signed, Stands, Terms};

type Dialling = Pin<Box<dyn Future<Output = Result<Box<Opened>, SessionError>>>>;

/// What woke [`run`].
enum Woken {
    Session(Result<Happened, SessionError>),
    Dialled(Result<Box<Opened>, SessionError>),
    /// An order that found no place has one now.
    Handed,
    /// The certificate, or whom this node trusts.
    Changed,
    Due,
    Stop,
}

/// A session, and where its gateway is.
struct Held {
    live: Live,
    address: Option<SocketAddr>,
    terms: Terms,
}

struct Holder<D> {
    member: Member,
    boot_id: String,
    journal: Journal,
    /// The journal has forgotten the events up to here.
    acked: u64,
    duties: Rc<D>,
    orders: Sender<Order>,
    /// An order that waits for its place: until then no frame is read.
    handing: Option<Pin<Box<dyn Future<Output = ()>>>>,
    answers: Receiver<NodeFrame>,
    tried: Rc<Tried>,
    held: Option<Held>,
    dialling: Option<Dialling>,
    /// What a session shows has changed since the try that is under way began.
    changed: bool,
}

/// Holds a session until `stop`. Events of `journal` are sent in it; what comes in it is handed to
/// `duties`; what is put into `frames` is sent while there is a session.
pub async fn run<D: Duties + 'static>(
    member: Member,
    journal: Journal,
    duties: Rc<D>,
    frames: Frames,
    stop: impl Future,
) {
    let (orders, waiting) = rt::channel(duties::ORDERS);
    let Frames { sender, receiver } = frames;
    let work = work::work(member.clone(), duties.clone(), sender, waiting);
    rt::spawn(work);
    let mut holder = Holder {
        member,
        boot_id: clock::boot_id().unwrap_or_default(),
        acked: journal.status().acked,
        journal,
        duties,
        orders,
        handing: None,
        answers: receiver,
        tried: Rc::default(),
        held: None,
        dialling: None,
        changed: false,
    };
    let mut stop = std::pin::pin!(stop);
    let mut state = State::start(clock::monotonic());
    loop {
        let woken = holder.wait(state.deadline(), stop.as_mut()).await;
        // What the event is about: a session that was welcomed, or why there is none.
        let mut fresh = None;
        let mut failed = None;
        let event = match woken {
            Woken::Stop => Event::Stop,
            Woken::Due => Event::Due,
            Woken::Changed if holder.dialling.is_some() => {
                // The try under way shows what was before.
                holder.changed = true;
                continue;
            }
            Woken::Changed => Event::Changed,
            Woken::Handed => {
                holder.handing = None;
                continue;
            }
            Woken::Dialled(dialled) => {
                holder.dialling = None;
                match holder.welcomed(dialled).await {
                    Ok((held, event)) => {
                        fresh = Some(held);
                        event
                    }
                    Err(error) => {
                        // A session beside it counts in the journal as it was.
                        if let SessionError::ResumeAhead { .. } = error
                            && holder.held.take().is_some()
                        {
                            (state, _) = next(state, Event::Ended(Trouble::Passing));
                        }
                        let trouble = error.trouble();
                        failed = Some(error);
                        Event::NotWelcomed(trouble)
                    }
                }
            }
            Woken::Session(happened) => match holder.happened(happened) {
                Ok(event) => event,
                Err(error) => {
                    holder.lose();
                    let trouble = error.trouble();
                    failed = Some(error);
                    Event::Ended(trouble)
                }
            },
        };
        if failed.as_ref().is_some_and(SessionError::is_alert) {
            holder.member.not_accepted();
        }
        let action;
        (state, action) = next(state, event);
        match action {
            Action::Rest => {
                if let Some(error) = &failed {
                    let fields = [
                        ("error", Value::Chain(error)),
                        ("do", Value::Text(error.remedy())),
                    ];
                    log::event(Level::Warn, "session.not_moved", &fields);
                    holder.duties.stands(Stands::NotMoved(error.into()));
                } else if let (
                    State::Moving(..),
                    Event::Leaving | Event::Drained { .. } | Event::Changed,
                ) = (state, event)
                {
                    holder.duties.stands(Stands::Moving);
                }
            }
            Action::Dial => {
                if let State::Down(_) = state {
                    holder.duties.stands(Stands::Trying);
                }
                holder.dialling = Some(holder.dial());
            }
            Action::Beat(sequence) => holder.beat(sequence),
            Action::Adopt(sequence) => {
                if let Some(old) = std::mem::replace(&mut holder.held, fresh) {
                    rt::spawn(old.live.end());
                }
                holder.beat(sequence);
            }
            Action::DropSilent => {
                let (event, error) = match holder.handing {
                    None => ("session.silent", SessionError::Silent),
                    // Not the gateway's fault: its frames lie unread.
                    Some(_) => ("session.stalled", SessionError::Stalled),
                };
                let fields = [
                    ("node", Value::Text(holder.member.node_id())),
                    ("error", Value::Chain(&error)),
                    ("do", Value::Text(error.remedy())),
                ];
                log::event(Level::Warn, event, &fields);
                let again = state.deadline().unwrap_or_default();
                let again = again.saturating_sub(clock::monotonic());
                let failed = (&error).into();
                holder.duties.stands(Stands::Down { failed, again });
                holder.lose();
            }
            Action::Pause(wait) => {
                match &failed {
                    // Its gateway ends a session that another one is about to replace.
                    Some(error) if holder.dialling.is_some() => {
                        let fields = [("reason", Value::Chain(error))];
                        log::event(Level::Info, "session.left", &fields);
                        holder.duties.stands(Stands::Trying);
                    }
                    Some(error) => {
                        said(error, wait);
                        let (failed, again) = (error.into(), wait);
                        holder.duties.stands(Stands::Down { failed, again });
                    }
                    None => {}
                }
                holder.held = None;
            }
            Action::Finish => {
                if let Some(held) = holder.held.take() {
                    held.live.end().await;
                }
                return;
            }
        }
    }
}

fn next(state: State, event: Event) -> (State, Action) {
    // Without random bytes the shortest waits are taken.
    state.next(
        event,
        clock::monotonic(),
        random::below(u64::MAX).unwrap_or(0),
    )
}

impl<D: Duties> Holder<D> {
    /// Waits for the first of: the signal, the deadline, what happens in the session, the end of a
    /// dial, a place for an order.
    async fn wait(&mut self, deadline: Option<Duration>, stop: Pin<&mut impl Future>) -> Woken {
        if self.changed && self.dialling.is_none() {
            self.changed = false;
            return Woken::Changed;
        }
        let due = async {
            match deadline {
                Some(at) => {
                    rt::sleep_until(Instant::now() + at.saturating_sub(clock::monotonic())).await
                }
                None => pending().await,
            }
        };
        let reading = self.handing.is_none();
        let (held, answers) = (&mut self.held, &mut self.answers);
        let session = async {
            if let Some(held) = held {
                return held.live.next(reading, answers).await;
            }
            // Without a session an answer is dropped: who asked asks again.
            while answers.recv().await.is_some() {}
            pending().await
        };
        let dialled = async {
            match &mut self.dialling {
                Some(dialling) => dialling.await,
                None => pending().await,
            }
        };
        let handed = async {
            match &mut self.handing {
                Some(handing) => handing.await,
                None => pending().await,
            }
        };
        let changed = self.member.moved();
        let work = rt::select(rt::select(session, dialled), rt::select(handed, changed));
        match rt::select(rt::select(stop, due), work).await {
            Either::Left(Either::Left(_)) => Woken::Stop,
            Either::Left(Either::Right(())) => Woken::Due,
            Either::Right(Either::Left(Either::Left(happened))) => Woken::Session(happened),
            Either::Right(Either::Left(Either::Right(dialled))) => Woken::Dialled(dialled),
            Either::Right(Either::Right(Either::Left(()))) => Woken::Handed,
            Either::Right(Either::Right(Either::Right(()))) => Woken::Changed,
        }
    }

    fn dial(&self) -> Dialling {
        let about = self.duties.about();
        let journal = self.journal.status();
        let hello = Hello {
            node_id: self.member.node_id().to_string(),
            boot_id: self.boot_id.clone(),
            protocol_versions: VERSIONS.to_vec(),
            daemon_version: env!("CARGO_PKG_VERSION").to_owned(),
            capabilities: about.capabilities,
            journal_position: journal.position,
            spec_generation: about.spec_generation,
            journal_id: journal.journal_id.to_vec(),
            trust_bundle_version: self.member.trust_version(),
        };
        let mut endpoint = self.member.gateway().endpoint(&self.member.dial());
        endpoint.tried = self.tried.clone();
        Box::pin(async move { open::open(endpoint, hello).await.map(Box::new) })
    }

    /// Judges what a try led to.
    async fn welcomed(
        &mut self,
        dialled: Result<Box<Opened>, SessionError>,
    ) -> Result<(Held, Event), SessionError> {
        let address = self.tried.last();
        let opened = match dialled {
            Ok(opened) => opened,
            Err(error) => {
                self.tried.failed(address);
                return Err(error);
            }
        };
        let welcome = &opened.welcome;
        let (resume, position) = (welcome.resume_position, self.journal.status().position);
        if resume > position {
            self.rebase().await;
            return Err(SessionError::ResumeAhead { resume, position });
        }
        self.tried.served(address);
        let forgotten = self.acked;
        self.acked(resume);
        self.greeted(welcome);
        self.duties.stands(Stands::Open { welcome, address });
        if let Some(signed_time) = welcome.signed_time.clone() {
            // It may go to the disk, which the session does not wait for.
            let member = self.member.clone();
            rt::spawn(async move { member.welcomed(Some(&signed_time)).await });
        }
        let terms = Terms {
            upgrade_required: welcome.upgrade_required,
        };
        let event = Event::Welcomed {
            interval_ms: welcome.heartbeat_interval_ms,
            spread_ms: welcome.reconnect_spread_ms,
        };
        let outbox = Outbox::resume(resume, forgotten, self.member.wall_ms());
        let held = Held {
            live: Live::new(*opened, self.journal.clone(), outbox),
            address,
            terms,
        };
        Ok((held, event))
    }

    /// Says what was agreed.
    fn greeted(&self, welcome: &Welcome) {
        let (level, name) = match welcome.upgrade_required {
            true => (Level::Warn, "session.upgrade_required"),
            false => (Level::Info, "session.welcome"),
        };
        let mut fields = vec![
            ("node", Value::Text(self.member.node_id())),
            ("session", Value::Text(&welcome.session_id)),
            ("version", Value::Number(welcome.protocol_version.into())),
            ("gateway", Value::Shown(self.member.gateway().url())),
            ("resume", Value::Number(welcome.resume_position)),
        ];
        if welcome.upgrade_required {
            fields.push((
                "do",
                Value::Text(
                    "install a newer bcd: until then no spec is applied and no command run",
                ),
            ));
        }
        log::event(level, name, &fields);
    }

    /// A new journal, with what is not acknowledged: the old one's numbers are taken.
    async fn rebase(&mut self) {
        match self.journal.rebase().await {
            Ok(_) => self.acked = self.journal.status().acked,
            Err(error) => log::event(
                Level::Error,
                "journal.not_rebased",
                &[("error", Value::Chain(&error))],
            ),
        }
    }

    /// Takes what happened in the session: the machine's event.
    fn happened(
        &mut self,
        happened: Result<Happened, SessionError>,
    ) -> Result<Event, SessionError> {
        match happened? {
            Happened::Frame(frame) => self.heard(frame),
            Happened::Leaving => {
                log::event(
                    Level::Info,
                    "session.leaving",
                    &[("why", Value::Text("the gateway sent GOAWAY"))],
                );
                self.shun();
                Ok(Event::Leaving)
            }
        }
    }

    /// Takes a frame: what the session itself knows, or an order for the duties.
    fn heard(&mut self, frame: GatewayFrame) -> Result<Event, SessionError> {
        let Some(held) = &mut self.held else {
            return Ok(Event::Heard);
        };
        let terms = held.terms;
        let order = match frame.kind {
            Some(GatewayFrameKind::Drain(drain)) => {
                log::event(
                    Level::Info,
                    "session.drain",
                    &[
                        ("after_ms", Value::Number(drain.reconnect_after_ms.into())),
                        ("reason", Value::Text(&drain.reason)),
                    ],
                );
                self.shun();
                let after_ms = drain.reconnect_after_ms;
                return Ok(Event::Drained { after_ms });
            }
            Some(GatewayFrameKind::Ack(ack)) => {
                held.live.ack(ack.position)?;
                self.acked(ack.position);
                return Ok(Event::Heard);
            }
            Some(GatewayFrameKind::Spec(spec)) => Order::Spec(spec, terms),
            Some(GatewayFrameKind::Command(command)) => Order::Command(command, terms),
            Some(GatewayFrameKind::Cancel(cancel)) => Order::Cancel(cancel.id),
            Some(GatewayFrameKind::OutputRequest(request)) => Order::Output(request),
            Some(GatewayFrameKind::TrustBundle(bundle)) => Order::TrustBundle(bundle),
            Some(GatewayFrameKind::OrderAnswer(answer)) => Order::Answered(answer),
            Some(GatewayFrameKind::Renew(renew)) => {
                let within = Duration::from_millis(u64::from(renew.within_ms));
                self.member.renew_within(within);
                return Ok(Event::Heard);
            }
            // An answer to a heartbeat; a second Welcome; a kind not known.
            Some(GatewayFrameKind::Heartbeat(_) | GatewayFrameKind::Welcome(_)) | None => {
                return Ok(Event::Heard);
            }
        };
        self.hand(order);
        Ok(Event::Heard)
    }

    /// Hands an order on, at once or as soon as there is a place.
    fn hand(&mut self, order: Order) {
        if let Err(SendError::Full(order)) = self.orders.try_send(order) {
            let orders = self.orders.clone();
            // Two at once happen when a session is welcomed beside one that is left: the order of
            // the old one goes first.
            let before = self.handing.take();
            self.handing = Some(Box::pin(async move {
                if let Some(before) = before {
                    before.await;
                }
                let _ = orders.send(order).await;
            }));
        }
    }

    fn acked(&mut self, position: u64) {
        if position > self.acked {
            self.acked = position;
            self.journal.ack(position);
            self.duties.acked(position);
        }
    }

    fn beat(&mut self, sequence: u64) {
        if let Some(held) = &mut self.held {
            let time_ms = self.member.wall_ms();
            held.live.beat(sequence, time_ms);
            self.duties.awake();
        }
    }

    /// The session is gone: its gateway's address is tried last.
    fn lose(&mut self) {
        self.shun();
        self.held = None;
    }

    /// The gateway of this session is, or will soon be, no place to go to.
    fn shun(&self) {
        if let Some(held) = &self.held {
            self.tried.failed(held.address);
        }
    }
}

/// Says why there is no session, and what to do when somebody must do something.
fn said(error: &SessionError, wait: Duration) {
    let wait = Value::Number(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
    let fields = [
        ("error", Value::Chain(error)),
        ("again_ms", wait),
        ("do", Value::Text(error.remedy())),
    ];
    match error.trouble() {
        Trouble::Passing => log::event(Level::Warn, "session.lost", &fields),
        Trouble::Refused => log::event(Level::Error, "session.refused", &fields),
    }
}

impl<'a> From<&'a SessionError> for Failed<'a> {
    fn from(error: &'a SessionError) -> Self {
        Failed {
            error,
            remedy: error.remedy(),
            refused: error.trouble() == Trouble::Refused,
        }
    }
}
