//! IPv4 and UDP by hand (RFC 791, RFC 768), for the one exchange that takes place before there is an
//! address. The link-layer header is the kernel's.
use std::net::Ipv4Addr;

const HEADERS: usize = 28;
const UDP: u8 = 17;

/// A datagram from `source` to `destination` as an IPv4 packet.
pub fn build(source: (Ipv4Addr, u16), destination: (Ipv4Addr, u16), payload: &[u8]) -> Vec<u8> {
    let total = u16::try_from(HEADERS + payload.len()).unwrap_or(u16::MAX);
    let mut udp = Vec::with_capacity(8 + payload.len());
    for number in [source.1, destination.1, total - 20, 0] {
        udp.extend_from_slice(&number.to_be_bytes());
    }
    udp.extend_from_slice(payload);
    let sum = match checksum(&[&pseudo(source.0, destination.0, total - 20), &udp]) {
        // 0 would mean that there is no checksum.
        0 => u16::MAX,
        sum => sum,
    };
    if let Some(field) = udp.get_mut(6..8) {
        field.copy_from_slice(&sum.to_be_bytes());
    }
    let mut ip = vec![0x45, 0x10];
    ip.extend_from_slice(&total.to_be_bytes());
    // No identification, do not fragment, 64 hops.
    ip.extend_from_slice(&[0, 0, 0x40, 0, 64, UDP, 0, 0]);
    ip.extend_from_slice(&source.0.octets());
    ip.extend_from_slice(&destination.0.octets());
    let sum = checksum(&[&ip]);
    if let Some(field) = ip.get_mut(10..12) {
        field.copy_from_slice(&sum.to_be_bytes());
    }
    ip.extend_from_slice(&udp);
    ip
}

/// The sender and the payload of an unfragmented UDP datagram to `port`; `None` for everything else. The
/// UDP checksum is not looked at: a virtual NIC leaves it to hardware that never sees the packet, and
/// what DHCP carries is checked by its ids.
pub fn parse(packet: &[u8], port: u16) -> Option<(Ipv4Addr, &[u8])> {
    let first = *packet.first()?;
    let header = usize::from(first & 0x0f) * 4;
    let total = usize::from(u16_at(packet, 2)?);
    if first >> 4 != 4 || header < 20 || *packet.get(9)? != UDP {
        return None;
    }
    // More fragments, or not the first one.
    if u16_at(packet, 6)? & 0x3fff != 0 {
        return None;
    }
    let ip = packet.get(..header)?;
    let udp = packet.get(header..total)?;
    if checksum(&[ip]) != 0 {
        return None;
    }
    let source = address_at(ip, 12)?;
    let length = u16_at(udp, 4)?;
    let udp = udp.get(..usize::from(length))?;
    if u16_at(udp, 2)? != port || udp.len() < 8 {
        return None;
    }
    Some((source, udp.get(8..)?))
}

fn pseudo(source: Ipv4Addr, destination: Ipv4Addr, length: u16) -> [u8; 12] {
    let [a, b, c, d] = source.octets();
    let [e, f, g, h] = destination.octets();
    let [high, low] = length.to_be_bytes();
    [a, b, c, d, e, f, g, h, 0, UDP, high, low]
}

/// The Internet checksum (RFC 1071) over parts, of which only the last may have an odd length.
fn checksum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0_u32;
    for part in parts {
        for pair in part.chunks(2) {
            let (high, low) = match pair {
                [high, low] => (*high, *low),
                [high] => (*high, 0),
                _ => (0, 0),
            };
            sum += u32::from(u16::from_be_bytes([high, low]));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(0)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let pair = bytes.get(at..at.checked_add(2)?)?;
    Some(u16::from_be_bytes(pair.try_into().ok()?))
}

fn address_at(bytes: &[u8], at: usize) -> Option<Ipv4Addr> {
    let four: [u8; 4] = bytes.get(at..at.checked_add(4)?)?.try_into().ok()?;
    Some(Ipv4Addr::from(four))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 0, 2, 2), 67);
    const TO: (Ipv4Addr, u16) = (Ipv4Addr::BROADCAST, 68);

    #[test]
    fn what_is_built_is_read_again() {
        for payload in [&b""[..], b"odd", b"even"] {
            let packet = build(FROM, TO, payload);
            assert_eq!(parse(&packet, 68), Some((FROM.0, payload)));
            assert_eq!(parse(&packet, 67), None);
            // Ethernet pads short frames.
            let padded = [&packet[..], &[0; 20]].concat();
            assert_eq!(parse(&padded, 68), Some((FROM.0, payload)));
        }
    }

    #[test]
    fn the_checksum_is_that_of_the_rfc() {
        // RFC 1071, section 3.
        assert_eq!(
            checksum(&[&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]]),
            !0xddf2
        );
    }

    #[test]
    fn a_damaged_packet_is_none_and_a_cut_one_too() {
        let packet = build(FROM, TO, b"payload");
        for length in 0..packet.len() {
            assert_eq!(parse(&packet[..length], 68), None, "{length}");
        }
        // The IP header and the port; the payload is checked by what it holds.
        for at in (0..20).chain(22..24) {
            let mut damaged = packet.clone();
            damaged[at] ^= 0x5a;
            assert_eq!(parse(&damaged, 68), None, "{at}");
        }
    }
}
