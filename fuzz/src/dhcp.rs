//! DHCP: a client takes any packet in any of its states, and a lease it grants itself is usable.
use std::net::Ipv4Addr;
use std::time::Duration;

use init::dhcp::{Action, Client};
use init::packet;

pub const HEAP: super::Heap = super::Heap {
    base: 32 << 10,
    per_byte: 64,
};

const MAC: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];

pub fn run(data: &[u8]) {
    if let Some((_, payload)) = packet::parse(data, 68) {
        let again = packet::build(
            (Ipv4Addr::LOCALHOST, 67),
            (Ipv4Addr::BROADCAST, 68),
            payload,
        );
        assert_eq!(
            packet::parse(&again, 68).map(|(_, payload)| payload),
            Some(payload)
        );
    }
    let mut now = Duration::from_secs(1000);
    let mut client = Client::new(MAC, 7, now);
    for _ in 0..4 {
        let Some(Action::Broadcast(question) | Action::Unicast(_, question)) = client.due(now)
        else {
            return;
        };
        // The input as an answer to this very question: its ids are right, the rest is the input's.
        let mut answer = data.to_vec();
        for (range, value) in [(0..1, &[2][..]), (4..8, &question[4..8]), (28..34, &MAC)] {
            if let Some(field) = answer.get_mut(range) {
                field.copy_from_slice(value);
            }
        }
        for message in [data, &answer] {
            if let Some(Action::Bound(lease)) = client.arrived(now, message) {
                assert!(!lease.address.is_unspecified() && lease.prefix <= 32);
                assert!(lease.renew <= lease.rebind && lease.rebind <= lease.end);
                assert!(lease.end >= Duration::from_secs(60));
            }
        }
        now = client.next().max(now);
        if now > Duration::from_secs(u64::from(u32::MAX)) {
            return;
        }
    }
}
