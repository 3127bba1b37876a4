//! Messages that configure links, addresses and routes (rtnetlink(7)), the kernel's answers, and its word that a link
//! is gone. Bytes only; the sockets are in [`crate::edge`].
use std::net::Ipv4Addr;

use bcd::sys::netlink::{messages, u32_at};

const NEWLINK: u16 = 16;
const NEWADDR: u16 = 20;
const DELADDR: u16 = 21;
const NEWROUTE: u16 = 24;

const REQUEST: u16 = 1;
const ACK: u16 = 4;
const REPLACE: u16 = 0x100;
const EXCL: u16 = 0x200;
const CREATE: u16 = 0x400;

const IFF_UP: u32 = 1;
const INET: u8 = 2;

/// One request; the kernel answers each with an error or an acknowledgement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request(Vec<u8>);

impl Request {
    /// Brings the link `index` up.
    pub fn up(index: u32) -> Self {
        Self::link(index, IFF_UP)
    }

    /// Sets the link's largest packet.
    pub fn mtu(index: u32, mtu: u16) -> Self {
        Self::link(index, 0).with(4, &u32::from(mtu).to_ne_bytes())
    }

    /// Makes the VLAN `id` on top of the link `index`, as `name`.
    pub fn vlan(index: u32, id: u16, name: &str) -> Self {
        let request = Self::new(NEWLINK, CREATE | EXCL, &[0; 16]);
        let id = attribute(1, &id.to_ne_bytes());
        let info = [attribute(1, b"vlan\0"), attribute(2, &id)].concat();
        request
            .with(5, &index.to_ne_bytes())
            .with(3, &[name.as_bytes(), &[0]].concat())
            .with(18, &info)
    }

    /// Gives the link an address.
    pub fn address(index: u32, address: Ipv4Addr, prefix: u8) -> Self {
        let mask = u32::MAX.checked_shr(prefix.into()).unwrap_or(0);
        let broadcast = Ipv4Addr::from(u32::from(address) | mask);
        let request = Self::of_address(NEWADDR, CREATE | REPLACE, index, address, prefix);
        match prefix {
            // A single host or a point-to-point link has none.
            31.. => request,
            _ => request.with(4, &broadcast.octets()),
        }
    }

    /// Takes it away again.
    pub fn forget(index: u32, address: Ipv4Addr, prefix: u8) -> Self {
        Self::of_address(DELADDR, 0, index, address, prefix)
    }

    /// Routes `destination`/`prefix` over the link, by way of `router` unless that is 0.0.0.0.
    pub fn route(index: u32, destination: Ipv4Addr, prefix: u8, router: Ipv4Addr) -> Self {
        // Table main (254), protocol dhcp (16), unicast (1). A route over a router has scope universe,
        // one on the link scope link.
        let scope = if router.is_unspecified() { 253 } else { 0 };
        let head = [INET, prefix, 0, 0, 254, 16, scope, 1, 0, 0, 0, 0];
        let mut request = Self::new(NEWROUTE, CREATE | REPLACE, &head);
        if prefix > 0 {
            request = request.with(1, &destination.octets());
        }
        request = request.with(4, &index.to_ne_bytes());
        if router.is_unspecified() {
            request
        } else {
            request.with(5, &router.octets())
        }
    }

    /// The bytes to send.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn link(index: u32, flags: u32) -> Self {
        let mut head = [0; 16];
        for (place, bytes) in [
            (4, index.to_ne_bytes()),
            (8, flags.to_ne_bytes()),
            (12, flags.to_ne_bytes()),
        ] {
            if let Some(field) = head.get_mut(place..place + 4) {
                field.copy_from_slice(&bytes);
            }
        }
        Self::new(NEWLINK, 0, &head)
    }

    fn of_address(kind: u16, flags: u16, index: u32, address: Ipv4Addr, prefix: u8) -> Self {
        let [a, b, c, d] = index.to_ne_bytes();
        Self::new(kind, flags, &[INET, prefix, 0, 0, a, b, c, d])
            .with(2, &address.octets())
            .with(1, &address.octets())
    }

    fn new(kind: u16, flags: u16, head: &[u8]) -> Self {
        let mut bytes = vec![0; 4];
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&(flags | REQUEST | ACK).to_ne_bytes());
        bytes.extend_from_slice(&[0; 8]);
        bytes.extend_from_slice(head);
        Self(bytes).sealed()
    }

    fn with(mut self, kind: u16, value: &[u8]) -> Self {
        self.0.extend_from_slice(&attribute(kind, value));
        self.sealed()
    }

    /// Writes the length into the head.
    fn sealed(mut self) -> Self {
        let length = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        if let Some(field) = self.0.get_mut(..4) {
            field.copy_from_slice(&length.to_ne_bytes());
        }
        self
    }
}

/// The error number in the kernel's answer: 0 for done, `None` for an answer of another kind.
pub fn outcome(answer: &[u8]) -> Option<i32> {
    const ERROR: u16 = 2;
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    let code = i32::from_ne_bytes(answer.get(16..20)?.try_into().ok()?);
    (kind == ERROR).then_some(-code)
}

/// The links of which a datagram says that they are no more (RTM_DELLINK): a card was pulled, or its driver began anew.
pub fn gone(datagram: &[u8]) -> Vec<u32> {
    const DELLINK: u16 = 17;
    messages(datagram)
        .map_while(Result::ok)
        // That one left a bridge, or lost IPv6, is another family's word.
        .filter(|message| message.kind == DELLINK && message.payload.first() == Some(&0))
        .filter_map(|message| u32_at(message.payload, 4))
        .collect()
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    let mut bytes = Vec::with_capacity(usize::from(length).next_multiple_of(4));
    bytes.extend_from_slice(&length.to_ne_bytes());
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_is_aligned_and_says_its_length() {
        let ten = Ipv4Addr::new(10, 1, 2, 3);
        for request in [
            Request::up(2),
            Request::mtu(2, 1400),
            Request::vlan(2, 5, "eth0.5"),
            Request::address(2, ten, 24),
            Request::forget(2, ten, 24),
            Request::route(2, Ipv4Addr::UNSPECIFIED, 0, ten),
            Request::route(2, ten, 32, Ipv4Addr::UNSPECIFIED),
        ] {
            let bytes = request.bytes();
            assert_eq!(bytes.len() % 4, 0);
            assert_eq!(
                bytes[..4],
                u32::try_from(bytes.len()).unwrap().to_ne_bytes()
            );
        }
    }

    #[test]
    fn a_link_that_is_gone_is_told_from_one_that_changed() {
        let word = |kind: u8, family: u8, index: u8| {
            let mut message = vec![0; 32];
            (message[0], message[4], message[16], message[20]) = (32, kind, family, index);
            message
        };
        let all = [
            word(17, 0, 2),
            word(16, 0, 3),
            word(17, 7, 4),
            word(17, 10, 5),
            word(17, 0, 6),
        ];
        assert_eq!(gone(&all.concat()), [2, 6]);
        let whole = word(17, 0, 2);
        for length in 0..whole.len() {
            assert!(gone(&whole[..length]).is_empty(), "{length}");
        }
    }

    #[test]
    fn the_kernels_answer_is_a_number_or_another_message() {
        let mut answer = vec![0; 36];
        answer[4] = 2;
        assert_eq!(outcome(&answer), Some(0));
        answer[16..20].copy_from_slice(&(-17_i32).to_ne_bytes());
        assert_eq!(outcome(&answer), Some(17));
        answer[4] = 16;
        assert_eq!(outcome(&answer), None);
        assert_eq!(outcome(&answer[..19]), None);
    }
}
