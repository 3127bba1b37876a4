//! How many handshakes, or connections, there may be at once, in all and from one address: the only thing
//! a stranger can make a listener spend.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::rc::Rc;

/// Handshakes of a gateway.
const TOTAL_MAX: usize = 1024;
/// A site of thousands of nodes may stand behind one address.
const ADDRESS_MAX: usize = 64;

/// Those that there are.
pub struct Handshakes {
    total_max: usize,
    address_max: usize,
    total: Cell<usize>,
    by_address: RefCell<BTreeMap<IpAddr, usize>>,
}

/// One that runs, until dropped.
pub struct Turn {
    of: Rc<Handshakes>,
    address: IpAddr,
}

impl Handshakes {
    pub fn new() -> Rc<Self> {
        Self::bounded(TOTAL_MAX, ADDRESS_MAX)
    }

    pub fn bounded(total_max: usize, address_max: usize) -> Rc<Self> {
        Rc::new(Self {
            total_max,
            address_max,
            total: Cell::new(0),
            by_address: RefCell::default(),
        })
    }

    /// A turn for `address`; `None` when it, or everybody, has too many.
    pub fn begin(self: &Rc<Self>, address: IpAddr) -> Option<Turn> {
        let address = network(address);
        let mut by_address = self.by_address.borrow_mut();
        let running = by_address.get(&address).copied().unwrap_or(0);
        if running >= self.address_max || self.total.get() >= self.total_max {
            return None;
        }
        by_address.insert(address, running + 1);
        self.total.set(self.total.get() + 1);
        Some(Turn {
            of: self.clone(),
            address,
        })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.of.total.set(self.of.total.get().saturating_sub(1));
        let mut by_address = self.of.by_address.borrow_mut();
        match by_address.get_mut(&self.address) {
            Some(running) if *running > 1 => *running -= 1,
            _ => {
                by_address.remove(&self.address);
            }
        }
    }
}

/// An IPv6 caller owns its whole /64.
pub(super) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_cannot_take_every_turn() {
        let handshakes = Handshakes::new();
        let from = |text: &str| handshakes.begin(text.parse().unwrap());
        let mut turns: Vec<_> = (0..ADDRESS_MAX)
            .map(|host| from(&format!("2001:db8::{host:x}")).unwrap())
            .collect();
        assert!(from("2001:db8::ffff").is_none(), "same /64");
        assert!(from("2001:db8:0:1::1").is_some());
        assert!(from("192.0.2.1").is_some());
        turns.pop();
        assert!(from("2001:db8::ffff").is_some());
        drop(turns);
        assert_eq!(handshakes.total.get(), 0);
        assert!(handshakes.by_address.borrow().is_empty());
    }

    #[test]
    fn all_addresses_together_have_a_limit() {
        let handshakes = Handshakes::new();
        let turns: Vec<_> = (0..2000u32)
            .filter_map(|host| handshakes.begin(IpAddr::V4((host << 8).into())))
            .collect();
        assert_eq!(turns.len(), TOTAL_MAX);
    }
}
