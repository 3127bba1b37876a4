//! What a switch says of itself (LLDP: IEEE 802.1AB): which one, and which of its ports this NIC is plugged into.
//! Bytes only; the sockets are [`crate::neighbours`]'s.
use std::fmt::Write as _;

use bcd::sys::log::is_unseen;

/// The EtherType.
pub const PROTOCOL: u16 = 0x88cc;
/// Where switches send it: to the nearest bridge, which passes it on to nobody.
pub const GROUP: [u8; 6] = [0x01, 0x80, 0xc2, 0, 0, 0x0e];
/// The longest text kept of one.
const MAX_TEXT: usize = 128;

/// A neighbour. What it does not tell is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Neighbour {
    /// The switch's name.
    pub system: String,
    /// Its port; where that is a mere number or address, with what its operator wrote beside it.
    pub port: String,
    /// What identifies the switch where names do not: an address, mostly.
    pub chassis: String,
}

/// Reads a frame's payload. `None` for what is none, and for a neighbour that takes leave.
pub fn neighbour(mut rest: &[u8]) -> Option<Neighbour> {
    let mut found = Neighbour::default();
    let (mut lifetime, mut bare, mut description) = (None, false, String::new());
    // The first three are mandatory and in this order.
    for expected in 1.. {
        let (head, tail) = rest.split_first_chunk::<2>()?;
        let head = u16::from_be_bytes(*head);
        let (kind, length) = (head >> 9, usize::from(head & 0x1ff));
        let (value, tail) = tail.split_at_checked(length)?;
        rest = tail;
        if expected <= 3 && kind != expected {
            return None;
        }
        match kind {
            0 => break,
            1 => found.chassis = identifier(value, 4, 5)?.0,
            2 => (found.port, bare) = identifier(value, 3, 4)?,
            3 => lifetime = Some(u16::from_be_bytes(*value.first_chunk()?)),
            4 => description = text(value),
            5 => found.system = text(value),
            _ => {}
        }
        // Some leave the end out.
        if rest.is_empty() {
            break;
        }
    }
    if bare && !description.is_empty() {
        let _ = write!(found.port, " ({description})");
    }
    (lifetime? > 0).then_some(found)
}

/// An identifier by its kind, and whether it is one that says nothing to people: `mac` and `network` are the numbers
/// that addresses have.
fn identifier(value: &[u8], mac: u8, network: u8) -> Option<(String, bool)> {
    let (kind, value) = value.split_first()?;
    let shown = match (*kind, value) {
        (kind, [_, _, _, _, _, _]) if kind == mac => {
            let parts: Vec<String> = value.iter().map(|byte| format!("{byte:02x}")).collect();
            return Some((parts.join(":"), true));
        }
        (kind, [1, a, b, c, d]) if kind == network => format!("{a}.{b}.{c}.{d}"),
        (kind, [2, address @ ..]) if kind == network => {
            let address = <[u8; 16]>::try_from(address).ok()?;
            std::net::Ipv6Addr::from(address).to_string()
        }
        _ => {
            let shown = text(value);
            let bare = shown.bytes().all(|b| b.is_ascii_digit());
            return Some((shown, bare));
        }
    };
    Some((shown, true))
}

/// One line of plain text, bounded; what is none is left out.
fn text(value: &[u8]) -> String {
    let text = String::from_utf8_lossy(value);
    let plain = text.chars().filter(|c| !is_unseen(*c) && *c != '\u{fffd}');
    let mut kept = String::new();
    for c in plain {
        if kept.len() + c.len_utf8() > MAX_TEXT {
            break;
        }
        kept.push(c);
    }
    kept.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tlv(kind: u16, value: &[u8]) -> Vec<u8> {
        let head = kind << 9 | u16::try_from(value.len()).unwrap();
        [&head.to_be_bytes(), value].concat()
    }

    fn frame(chassis: &[u8], port: &[u8], lifetime: u16, more: &[Vec<u8>]) -> Vec<u8> {
        let three = [
            tlv(1, chassis),
            tlv(2, port),
            tlv(3, &lifetime.to_be_bytes()),
        ];
        [three.concat(), more.concat(), tlv(0, &[])].concat()
    }

    const CHASSIS: &[u8] = &[4, 0, 0x1c, 0x73, 1, 2, 3];

    #[test]
    fn a_switch_is_known_by_its_name_its_port_and_its_address() {
        let more = [tlv(4, b"to rack 7"), tlv(5, b"leaf-12"), tlv(127, &[0; 8])];
        let found = neighbour(&frame(CHASSIS, b"\x05Ethernet7/1", 120, &more)).unwrap();
        let expected = Neighbour {
            system: "leaf-12".to_owned(),
            port: "Ethernet7/1".to_owned(),
            chassis: "00:1c:73:01:02:03".to_owned(),
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn a_port_that_is_a_mere_number_or_address_comes_with_its_description() {
        let more = [tlv(4, b"ge-0/0/12")];
        for (port, shown) in [
            (&b"\x07512"[..], "512 (ge-0/0/12)"),
            (
                &[3, 0, 0x1c, 0x73, 1, 2, 4],
                "00:1c:73:01:02:04 (ge-0/0/12)",
            ),
            (&[4, 1, 192, 0, 2, 1], "192.0.2.1 (ge-0/0/12)"),
            (b"\x05swp3", "swp3"),
        ] {
            assert_eq!(
                neighbour(&frame(CHASSIS, port, 9, &more)).unwrap().port,
                shown
            );
        }
        let chassis = [
            &[5, 2][..],
            &"2001:db8::1"
                .parse::<std::net::Ipv6Addr>()
                .unwrap()
                .octets(),
        ]
        .concat();
        let found = neighbour(&frame(&chassis, b"\x05x", 9, &[])).unwrap();
        assert_eq!(found.chassis, "2001:db8::1");
    }

    #[test]
    fn what_is_no_announcement_is_none_and_texts_are_plain_and_short() {
        let good = frame(CHASSIS, b"\x05swp3", 120, &[tlv(5, b"leaf")]);
        for length in 0..good.len() - 2 {
            // Cut behind a whole part, it may still be one; never with more than it says.
            if let Some(found) = neighbour(&good[..length]) {
                assert!(
                    found.chassis.starts_with("00:1c") && found.port == "swp3",
                    "{length}"
                );
            }
        }
        // Taking leave; in another order; empty parts.
        assert_eq!(neighbour(&frame(CHASSIS, b"\x05swp3", 0, &[])), None);
        assert_eq!(
            neighbour(&[tlv(2, b"\x05a"), tlv(1, CHASSIS), tlv(3, &[0, 9])].concat()),
            None
        );
        assert_eq!(neighbour(&frame(&[], b"\x05a", 9, &[])), None);
        assert_eq!(neighbour(&[0xff; 600]), None);
        let odd = [tlv(
            5,
            &[b"\x1b[2J\n\tleaf\xff\xfe".as_slice(), &[b'x'; 300]].concat(),
        )];
        let found = neighbour(&frame(CHASSIS, b"\x05p", 9, &odd)).unwrap();
        assert!(found.system.starts_with("[2Jleafxx") && found.system.len() == MAX_TEXT);
    }
}
