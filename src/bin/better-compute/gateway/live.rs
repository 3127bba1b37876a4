//! The sessions that are open, on whatever loop, and the way to each.
//!
//! Promises: a node has one session, the one that the records opened last, whichever loop is faster; what
//! everybody is told, who enters later is told too, or reads from the records after it has entered: a
//! session enters first and looks then.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bcd::rt::channel::{Receiver, Sender, channel};

/// Orders that may wait for a session.
const ORDERS: usize = 16;
/// Over how long renewals that a rotation asks for are spread, unless it says otherwise.
const RENEW_WITHIN: Duration = Duration::from_secs(3600);

/// Why a gateway ends a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The same node opened another one.
    Replaced,
    /// The node was deleted.
    Deleted,
    /// The gateway stops.
    Drain,
}

/// What others want of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The records owe the node something new.
    Look,
    /// The trust bundle changed: the node gets the one in force.
    Trust,
    /// The node shall renew its certificate within this span.
    Renew(Duration),
    End(Ending),
}

/// The sessions of all loops.
pub struct Live(Mutex<Sessions>);

struct Sessions {
    by_node: BTreeMap<String, Entry>,
    draining: bool,
    renew_within: Duration,
}

struct Entry {
    opening: u64,
    session_id: String,
    orders: Sender<Order>,
    looks: Looks,
}

/// Whether a session has been told to look and has not done so yet: however often that is said, its
/// queue keeps room for what ends it.
#[derive(Clone, Default)]
pub struct Looks(Arc<AtomicBool>);

impl Looks {
    /// The session looks now: what comes from here on is told again.
    pub fn done(&self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// What a session has of its place.
pub struct Seat {
    pub orders: Receiver<Order>,
    pub looks: Looks,
}

impl Default for Live {
    fn default() -> Self {
        Self(Mutex::new(Sessions {
            by_node: BTreeMap::new(),
            draining: false,
            renew_within: RENEW_WITHIN,
        }))
    }
}

impl Live {
    /// Takes the node's place for the session that the records opened as their `opening`th, and ends an
    /// older one.
    ///
    /// # Errors
    /// [`Ending::Replaced`]: the place belongs to one that was opened later.
    pub fn enter(&self, node_id: &str, session_id: &str, opening: u64) -> Result<Seat, Ending> {
        let (orders_in, orders) = channel(ORDERS);
        let mut sessions = self.locked();
        if let Some(other) = sessions.by_node.get(node_id)
            && other.opening > opening
        {
            return Err(Ending::Replaced);
        }
        if sessions.draining {
            let _ = orders_in.try_send(Order::End(Ending::Drain));
        }
        let looks = Looks::default();
        let entry = Entry {
            opening,
            session_id: session_id.to_owned(),
            orders: orders_in,
            looks: looks.clone(),
        };
        if let Some(older) = sessions.by_node.insert(node_id.to_owned(), entry) {
            let _ = older.orders.try_send(Order::End(Ending::Replaced));
        }
        Ok(Seat { orders, looks })
    }

    /// The session is over. Nothing happens when another one has its place.
    pub fn leave(&self, node_id: &str, session_id: &str) {
        let mut sessions = self.locked();
        let its = |entry: &Entry| entry.session_id == session_id;
        if sessions.by_node.get(node_id).is_some_and(its) {
            sessions.by_node.remove(node_id);
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.locked().by_node.len()
    }

    /// Tells a node's session, if it has one, to look.
    pub fn look(&self, node_id: &str) {
        if let Some(entry) = self.locked().by_node.get(node_id)
            && !entry.looks.0.swap(true, Ordering::SeqCst)
            && entry.orders.try_send(Order::Look).is_err()
        {
            entry.looks.done();
        }
    }

    /// Ends the session of a node, if it has one.
    pub fn end(&self, node_id: &str, why: Ending) {
        if let Some(entry) = self.locked().by_node.get(node_id) {
            let _ = entry.orders.try_send(Order::End(why));
        }
    }

    /// The trust bundle changed.
    pub fn trust(&self) {
        self.locked().tell(Order::Trust);
    }

    /// All nodes shall renew within this span.
    pub fn renew(&self, span: Duration) {
        let mut sessions = self.locked();
        sessions.renew_within = span;
        sessions.tell(Order::Renew(span));
    }

    /// The span that [`Live::renew`] was last called with.
    pub fn renew_within(&self) -> Duration {
        self.locked().renew_within
    }

    /// All sessions shall move elsewhere, those that enter from now on too.
    pub fn drain(&self) {
        let mut sessions = self.locked();
        sessions.draining = true;
        sessions.tell(Order::End(Ending::Drain));
    }

    fn locked(&self) -> MutexGuard<'_, Sessions> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sessions {
    fn tell(&self, order: Order) {
        for entry in self.by_node.values() {
            let _ = entry.orders.try_send(order);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_session_that_was_opened_last_has_the_place_whoever_comes_first() {
        let live = Live::default();
        let mut first = live.enter("node_a", "sess_1", 1).ok().unwrap();
        let mut second = live.enter("node_a", "sess_2", 2).ok().unwrap();
        assert_eq!(
            first.orders.try_recv(),
            Some(Order::End(Ending::Replaced)),
            "opened later, entered later"
        );
        let late = live.enter("node_a", "sess_0", 0);
        assert_eq!(late.err(), Some(Ending::Replaced), "opened before");
        assert_eq!(second.orders.try_recv(), None);
        live.leave("node_a", "sess_1");
        assert_eq!(live.count(), 1, "what it left is another one's");
        live.look("node_a");
        assert_eq!(second.orders.try_recv(), Some(Order::Look));
        live.leave("node_a", "sess_2");
        assert_eq!(live.count(), 0);
    }

    #[test]
    fn a_session_is_told_to_look_once_until_it_has_looked() {
        let live = Live::default();
        let mut seat = live.enter("node_a", "sess_1", 1).ok().unwrap();
        for _ in 0..100 {
            live.look("node_a");
        }
        live.end("node_a", Ending::Deleted);
        assert_eq!(seat.orders.try_recv(), Some(Order::Look));
        assert_eq!(
            seat.orders.try_recv(),
            Some(Order::End(Ending::Deleted)),
            "its queue had room"
        );
        live.look("node_a");
        assert_eq!(seat.orders.try_recv(), None, "it has not looked yet");
        seat.looks.done();
        live.look("node_a");
        assert_eq!(seat.orders.try_recv(), Some(Order::Look));
    }

    #[test]
    fn who_enters_while_all_are_drained_is_drained_too() {
        let live = Live::default();
        let mut before = live.enter("node_a", "sess_1", 1).ok().unwrap();
        live.drain();
        let mut after = live.enter("node_b", "sess_2", 2).ok().unwrap();
        let drain = Some(Order::End(Ending::Drain));
        assert_eq!(before.orders.try_recv(), drain);
        assert_eq!(after.orders.try_recv(), drain);
    }

    #[test]
    fn many_threads_leave_each_node_with_its_last_opened_session() {
        let live = Live::default();
        let openings = std::sync::atomic::AtomicU64::new(0);
        let seats = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for turn in 0..500 {
                        let opening = openings.fetch_add(1, Ordering::SeqCst);
                        let node = format!("node_{}", turn % 5);
                        if let Ok(seat) = live.enter(&node, &format!("sess_{opening}"), opening) {
                            seats.lock().unwrap().push((node, opening, seat));
                        }
                    }
                });
            }
        });
        let mut left: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for (node, opening, seat) in seats.into_inner().unwrap() {
            let mut seat = seat;
            if seat.orders.try_recv().is_none() {
                left.entry(node).or_default().push(opening);
            }
        }
        assert_eq!(left.len(), 5);
        assert!(left.values().all(|its| its.len() == 1), "{left:?}");
        assert_eq!(live.count(), 5);
    }
}
