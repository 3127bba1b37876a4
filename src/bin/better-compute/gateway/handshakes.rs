//! How many handshakes, or connections, there may be at once, in all and from one address: the only thing
//! a stranger can make a listener spend.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Handshakes of a gateway.
pub(super) const TOTAL_MAX: usize = 1024;
/// A site of thousands of nodes may stand behind one address.
const ADDRESS_MAX: usize = 64;

/// Those that there are, on all loops together.
pub struct Handshakes {
    total_max: usize,
    address_max: usize,
    running: Mutex<Running>,
}

#[derive(Default)]
struct Running {
    total: usize,
    by_address: BTreeMap<IpAddr, usize>,
}

/// One that runs, until dropped.
pub struct Turn {
    of: Arc<Handshakes>,
    address: IpAddr,
}

impl Default for Handshakes {
    fn default() -> Self {
        Self {
            total_max: TOTAL_MAX,
            address_max: ADDRESS_MAX,
            running: Mutex::default(),
        }
    }
}

impl Handshakes {
    pub fn bounded(total_max: usize, address_max: usize) -> Arc<Self> {
        Arc::new(Self {
            total_max,
            address_max,
            ..Self::default()
        })
    }

    /// A turn for `address`; `None` when it, or everybody, has too many.
    pub fn begin(self: &Arc<Self>, address: IpAddr) -> Option<Turn> {
        let address = network(address);
        let mut running = self.locked();
        let its = running.by_address.get(&address).copied().unwrap_or(0);
        if its >= self.address_max || running.total >= self.total_max {
            return None;
        }
        running.by_address.insert(address, its + 1);
        running.total += 1;
        Some(Turn {
            of: self.clone(),
            address,
        })
    }

    /// Whether nobody gets a turn before one ends.
    pub fn is_full(&self) -> bool {
        self.locked().total >= self.total_max
    }

    fn locked(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut running = self.of.locked();
        running.total = running.total.saturating_sub(1);
        match running.by_address.get_mut(&self.address) {
            Some(its) if *its > 1 => *its -= 1,
            _ => {
                running.by_address.remove(&self.address);
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
        let handshakes = Arc::new(Handshakes::default());
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
        assert_eq!(handshakes.locked().total, 0);
        assert!(handshakes.locked().by_address.is_empty());
    }

    #[test]
    fn all_addresses_together_have_a_limit() {
        let handshakes = Arc::new(Handshakes::default());
        let turns: Vec<_> = (0..2000u32)
            .filter_map(|host| handshakes.begin(IpAddr::V4((host << 8).into())))
            .collect();
        assert_eq!(turns.len(), TOTAL_MAX);
        assert!(handshakes.is_full());
        drop(turns);
        assert!(!handshakes.is_full());
    }
}
