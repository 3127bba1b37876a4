//! One-time orders: a command that destroys asks its control plane before the first byte, and goes on only when the
//! order is its own from then on.
//!
//! The node remembers nothing: its journal may be in memory, or come back from a backup. The control plane writes
//! down which claim an order went to before it answers. A claim is told apart by random bytes that live as long as
//! the work does, so a command that is run again, wherever, is another claim.
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::id::Id;
use super::machine::Failure;
use crate::proto::{NodeFrame, NodeFrameKind, OrderAnswer, OrderClaim};
use crate::rt::channel::Sender;
use crate::sys::random;
use crate::sys::stop::Stop;

/// How long an answer is waited for, how often it is asked for meanwhile, and looked for.
const PATIENCE: Duration = Duration::from_secs(120);
const ASK: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(50);
/// Claims at once: of each kind that destroys one command runs.
const CLAIMS: usize = 8;

/// Claims on their way. Clones are the same.
#[derive(Clone)]
pub struct Orders {
    frames: Sender<NodeFrame>,
    open: Arc<Mutex<Vec<Claim>>>,
}

struct Claim {
    asked: OrderClaim,
    answer: Option<OrderAnswer>,
}

impl Orders {
    pub fn new(frames: Sender<NodeFrame>) -> Self {
        Self {
            frames,
            open: Arc::default(),
        }
    }

    /// Makes the order this work's own. Blocks: for threads.
    ///
    /// # Errors
    /// It is not granted, nobody answers, or the work is to stop. Nothing may be written.
    pub fn claim(&self, order_id: &str, command: Id, stop: &Stop) -> Result<(), Failure> {
        let nonce: [u8; 16] =
            random::bytes().map_err(|error| super::kinds::explained("InternalError", &error))?;
        let asked = OrderClaim {
            order_id: order_id.to_owned(),
            command_id: command.to_string(),
            nonce: nonce.to_vec(),
        };
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() >= CLAIMS {
            return Err(Failure::new("Busy", "too many orders are being asked for"));
        }
        open.push(Claim {
            asked: asked.clone(),
            answer: None,
        });
        drop(open);
        let answer = self.answer(&asked, stop);
        self.locked(|open| open.retain(|claim| claim.asked.nonce != asked.nonce));
        match answer {
            Some(answer) if answer.granted => Ok(()),
            Some(answer) => Err(Failure::new(
                word(&answer.reason),
                ["the order is not granted: ", &answer.message].concat(),
            )),
            None if stop.is_said() => Err(Failure::new("Cancelled", "stopped")),
            None => Err(Failure::new(
                "OrderUnanswered",
                "the control plane did not say within 120 s that the order is this command's; nothing was written",
            )),
        }
    }

    fn answer(&self, asked: &OrderClaim, stop: &Stop) -> Option<OrderAnswer> {
        let end = Instant::now() + PATIENCE;
        let mut ask = Instant::now();
        while Instant::now() < end {
            if Instant::now() >= ask {
                ask += ASK;
                let kind = Some(NodeFrameKind::OrderClaim(asked.clone()));
                // Without a session there is none to ask: again in a while.
                let _ = self.frames.try_send(NodeFrame { kind });
            }
            if stop.wait(LOOK) {
                return None;
            }
            let answer = self.locked(|open| {
                let mine = open
                    .iter_mut()
                    .find(|claim| claim.asked.nonce == asked.nonce);
                mine.and_then(|claim| claim.answer.take())
            });
            if answer.is_some() {
                return answer;
            }
        }
        None
    }

    /// The gateway answers. What nobody asked is passed over.
    pub fn answered(&self, answer: OrderAnswer) {
        self.locked(|open| {
            let claim = open.iter_mut().find(|claim| {
                claim.asked.nonce == answer.nonce && claim.asked.order_id == answer.order_id
            });
            if let Some(claim) = claim {
                claim.answer = Some(answer);
            }
        });
    }

    fn locked<T>(&self, work: impl FnOnce(&mut Vec<Claim>) -> T) -> T {
        work(&mut self.open.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A gateway's word, if it is one that is known.
fn word(reason: &str) -> &'static str {
    const WORDS: [&str; 4] = [
        "OrderUnknown",
        "OrderSpent",
        "OrderExpired",
        "OrderCancelled",
    ];
    let known = WORDS.into_iter().find(|known| *known == reason);
    known.unwrap_or("OrderRefused")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;
    use crate::rt::channel::channel;

    const ORDER: &str = "ord_01kb7w3x9qn5v8m2r6t4y0sdfh";

    /// What becomes of a claim that is answered by what `answers` makes of it.
    fn claimed(
        answers: impl Fn(&OrderClaim) -> Vec<OrderAnswer> + Send + 'static,
    ) -> Result<(), Failure> {
        let (frames, sent) = channel(4);
        let orders = Orders::new(frames);
        let gateway = orders.clone();
        let answering = std::thread::spawn(move || {
            let Some(NodeFrame {
                kind: Some(NodeFrameKind::OrderClaim(claim)),
            }) = sent.recv_blocking()
            else {
                panic!("no claim came");
            };
            answers(&claim)
                .into_iter()
                .for_each(|a| gateway.answered(a));
        });
        let command = Id::parse("cmd_01kb7w3x9qn5v8m2r6t4y0sdfh").unwrap();
        let outcome = orders.claim(ORDER, command, &Stop::new().unwrap());
        answering.join().unwrap();
        assert!(orders.locked(|open| open.is_empty()));
        outcome
    }

    fn granted(claim: &OrderClaim) -> OrderAnswer {
        OrderAnswer {
            order_id: claim.order_id.clone(),
            nonce: claim.nonce.clone(),
            granted: true,
            ..OrderAnswer::default()
        }
    }

    #[test]
    fn an_order_is_ones_own_when_the_gateway_says_so_of_this_very_claim() {
        assert_eq!(claimed(|claim| vec![granted(claim)]), Ok(()));
        // Answers to others come first, and mean nothing.
        let spent = claimed(|claim| {
            let other_nonce = OrderAnswer {
                nonce: vec![0; 16],
                ..granted(claim)
            };
            let other_order = OrderAnswer {
                order_id: "ord_01kb7w3x9qn5v8m2r6t4y0sdfj".to_owned(),
                ..granted(claim)
            };
            let refused = OrderAnswer {
                granted: false,
                reason: "OrderSpent".to_owned(),
                message: "it was claimed before".to_owned(),
                ..granted(claim)
            };
            vec![other_nonce, other_order, refused]
        });
        let spent = spent.unwrap_err();
        assert_eq!(spent.reason, "OrderSpent");
        assert_eq!(
            spent.message,
            "the order is not granted: it was claimed before"
        );
    }

    #[test]
    fn two_runs_of_one_command_make_two_claims() {
        let nonces = Arc::new(Mutex::new(Vec::new()));
        for _ in 0..2 {
            let nonces = nonces.clone();
            let outcome = claimed(move |claim| {
                nonces.lock().unwrap().push(claim.nonce.clone());
                vec![granted(claim)]
            });
            assert_eq!(outcome, Ok(()));
        }
        let nonces = nonces.lock().unwrap();
        assert!(nonces.first().unwrap().len() == 16 && nonces.first() != nonces.last());
    }

    #[test]
    fn a_word_that_is_not_known_is_a_refusal_all_the_same() {
        assert_eq!(word("OrderExpired"), "OrderExpired");
        assert_eq!(word("x\ny"), "OrderRefused");
    }
}
