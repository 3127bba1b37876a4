//! A session that was welcomed: what comes in and what goes out, side by side.
//!
//! One frame, or a few small events, is on its way out at a time. Then the next is chosen: a heartbeat
//! that is due first, then an answer of the duties, then events of the outbox. So a gateway that is
//! slow to store events, or to read, holds up neither the heartbeats nor what it says itself.
use std::future::{Future, pending};
use std::pin::Pin;
use std::time::Duration;

use super::machine;
use super::open::{Opened, SessionError, WAIT};
use super::outbox::{NotSent, Outbox};
use crate::journal::{Journal, Stored};
use crate::proto::{GatewayFrame, Heartbeat, Message, NodeFrame, NodeFrameKind};
use crate::rt::{self, Either, channel};
use crate::sys::log::{self, Level, Value};
use crate::wire::grpc::MESSAGE_LIMIT;
use crate::wire::grpc::client::{Client, Receiver, Sender};

/// How long after a failure the disk is read again.
const AGAIN: Duration = Duration::from_secs(30);

/// Bytes of events after which no more go together.
const TOGETHER: usize = 8 * 1024;

type Sending = Pin<Box<dyn Future<Output = (Sender<NodeFrame>, Result<(), SessionError>)>>>;
type Reading = Pin<Box<dyn Future<Output = Vec<Stored>>>>;

/// The way out.
enum Out {
    Free(Sender<NodeFrame>),
    Busy(Sending),
    /// It broke. The receiving half knows why.
    Broken,
}

/// The way from the journal.
enum Feed {
    /// Nothing is asked of it: too much is on its way, or read and not sent.
    Full,
    /// Waiting for events, or reading them.
    Reading(Reading),
}

/// What happened in a session.
pub enum Happened {
    Frame(GatewayFrame),
    /// The gateway has sent GOAWAY.
    Leaving,
}

/// A session that was welcomed.
pub struct Live {
    client: Client,
    receiver: Receiver<GatewayFrame>,
    out: Out,
    outbox: Outbox,
    feed: Feed,
    journal: Journal,
    /// The heartbeat to send next.
    beat: Option<Heartbeat>,
    /// The answer to send next.
    answer: Option<NodeFrame>,
    /// For a frame to go out.
    patience: Duration,
    /// That the gateway leaves was said.
    leaving: bool,
}

impl Live {
    /// A session whose events go on with `outbox`. A frame that does not go out within two of its
    /// heartbeat intervals ends it.
    pub fn new(opened: Opened, journal: Journal, outbox: Outbox) -> Self {
        let interval = machine::interval(opened.welcome.heartbeat_interval_ms);
        Self {
            client: opened.client,
            receiver: opened.receiver,
            out: Out::Free(opened.sender),
            outbox,
            feed: Feed::Full,
            journal,
            beat: None,
            answer: None,
            patience: interval.saturating_mul(2),
            leaving: false,
        }
    }

    /// Sends a heartbeat as soon as the way is free; one that still waits there is replaced. `now_ms` is
    /// this node's clock, Unix time in milliseconds.
    pub fn beat(&mut self, sequence: u64, now_ms: u64) {
        let time_ms = i64::try_from(now_ms).unwrap_or(i64::MAX);
        self.beat = Some(Heartbeat { sequence, time_ms });
    }

    /// Everything up to `position` is stored.
    ///
    /// # Errors
    /// It was not sent: nothing this gateway says can be relied on.
    pub fn ack(&mut self, position: u64) -> Result<(), SessionError> {
        self.outbox
            .ack(position)
            .map_err(|NotSent { position, sent }| SessionError::AckAhead { position, sent })
    }

    /// Sends what there is to send, of `answers` too, until something happens. Unless `reading`,
    /// frames of the gateway stay where they are. May be dropped and called again: nothing is lost.
    ///
    /// # Errors
    /// The session has ended.
    pub async fn next(
        &mut self,
        reading: bool,
        answers: &mut channel::Receiver<NodeFrame>,
    ) -> Result<Happened, SessionError> {
        loop {
            self.pump();
            let frame = async {
                match reading {
                    true => self.receiver.next().await,
                    false => pending().await,
                }
            };
            let leaving = async {
                match self.leaving {
                    true => pending().await,
                    false => self.client.leaving().await,
                }
            };
            let answer = async {
                match self.answer {
                    Some(_) => pending().await,
                    None => match answers.recv().await {
                        Some(answer) => answer,
                        None => pending().await,
                    },
                }
            };
            let inward = rt::select(frame, leaving);
            let outward = rt::select(sent(&mut self.out), rt::select(answer, fed(&mut self.feed)));
            match rt::select(inward, outward).await {
                Either::Left(Either::Left(frame)) => {
                    let frame = frame
                        .map_err(SessionError::Call)?
                        .ok_or(SessionError::Closed)?;
                    return Ok(Happened::Frame(frame));
                }
                Either::Left(Either::Right(())) => {
                    self.leaving = true;
                    return Ok(Happened::Leaving);
                }
                Either::Right(Either::Left(Ok(()))) => {}
                Either::Right(Either::Left(Err(error))) => return Err(self.better(error).await),
                Either::Right(Either::Right(Either::Left(answer))) => self.answer = Some(answer),
                Either::Right(Either::Right(Either::Right(events))) => self.outbox.fill(events),
            }
        }
    }

    /// Ends the session cleanly: what is on its way goes out, nothing more is sent, and what the
    /// gateway still says is read.
    pub async fn end(mut self) {
        let rest = async {
            if let Out::Busy(sending) = &mut self.out {
                let (sender, result) = sending.await;
                if result.is_err() {
                    return;
                }
                self.out = Out::Free(sender);
            }
            if let Out::Free(sender) = std::mem::replace(&mut self.out, Out::Broken) {
                sender.close();
            }
            while let Ok(Some(_)) = self.receiver.next().await {}
        };
        let _ = rt::timeout(WAIT / 2, rest).await;
    }

    /// Puts the next frame on its way, and asks the journal for more.
    fn pump(&mut self) {
        if let Out::Free(_) = self.out {
            let frames = self.frames();
            if !frames.is_empty()
                && let Out::Free(sender) = std::mem::replace(&mut self.out, Out::Broken)
            {
                self.out = Out::Busy(Box::pin(send(sender, frames, self.patience)));
            }
        }
        if let (Feed::Full, Some((after, bytes))) = (&self.feed, self.outbox.wants()) {
            self.feed = Feed::Reading(Box::pin(read(self.journal.clone(), after, bytes)));
        }
    }

    /// What to send next, one after the other: events go together as far as they are at hand.
    fn frames(&mut self) -> Vec<Vec<u8>> {
        if let Some(beat) = self.beat.take() {
            let frame = NodeFrame {
                kind: Some(NodeFrameKind::Heartbeat(beat)),
            };
            return vec![frame.encode_to_vec()];
        }
        if let Some(answer) = self.answer.take() {
            return vec![answer.encode_to_vec()];
        }
        let mut bytes = 0;
        let mut frames = Vec::new();
        while bytes < TOGETHER
            && let Some(frame) = self.outbox.next(MESSAGE_LIMIT)
        {
            bytes += frame.len();
            frames.push(frame);
        }
        frames
    }

    /// The receiving half knows better why a stream has ended than the one that could not send.
    async fn better(&mut self, error: SessionError) -> SessionError {
        let SessionError::Call(_) = error else {
            return error;
        };
        let told = async {
            loop {
                match self.receiver.next().await {
                    Ok(Some(_)) => {}
                    Ok(None) => return SessionError::Closed,
                    Err(better) => return SessionError::Call(better),
                }
            }
        };
        rt::timeout(WAIT / 2, told).await.unwrap_or(error)
    }
}

async fn send(
    mut sender: Sender<NodeFrame>,
    frames: Vec<Vec<u8>>,
    patience: Duration,
) -> (Sender<NodeFrame>, Result<(), SessionError>) {
    let result = match rt::timeout(patience, sender.send_encoded(&frames)).await {
        Ok(sent) => sent.map_err(SessionError::Call),
        Err(_) => Err(SessionError::Stuck(patience)),
    };
    (sender, result)
}

/// Events after `after`, once there are any.
async fn read(journal: Journal, after: u64, bytes: usize) -> Vec<Stored> {
    let mut known = after;
    loop {
        let Ok(position) = journal.news(known).await else {
            // The journal is gone, and with it all that could come.
            return pending().await;
        };
        match journal.read(after, bytes).await {
            Ok(events) if events.is_empty() => known = position,
            Ok(events) => return events,
            Err(error) => {
                log::event(
                    Level::Error,
                    "journal.not_read",
                    &[("error", Value::Chain(&error))],
                );
                rt::sleep(AGAIN).await;
            }
        }
    }
}

/// Ends when the frame on its way is gone, or cannot go.
async fn sent(out: &mut Out) -> Result<(), SessionError> {
    let Out::Busy(sending) = out else {
        return pending().await;
    };
    let (sender, result) = sending.await;
    *out = match result {
        Ok(()) => Out::Free(sender),
        Err(_) => Out::Broken,
    };
    result
}

/// Ends with events of the journal.
async fn fed(feed: &mut Feed) -> Vec<Stored> {
    let Feed::Reading(reading) = feed else {
        return pending().await;
    };
    let events = reading.await;
    *feed = Feed::Full;
    events
}
