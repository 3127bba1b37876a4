//! IPv6 as the kernel does it: an address and a route from a router's advertisements. Left to init is to
//! notice that there is an address, to keep the name servers that came along (RFC 8106): the kernel
//! announces them once (RTM_NEWNDUSEROPT, rtnetlink) and forgets them; and to hear that a router sends its
//! hosts to DHCPv6 for the rest (RTM_NEWLINK of IPv6). Bytes only; the socket is in [`crate::edge`].
use std::net::Ipv6Addr;

use bcd::sys::netlink::{RTM_GETLINK, RTM_NEWLINK, attributes, messages, u32_at};

/// RTM_NEWNDUSEROPT.
const NEWNDUSEROPT: u16 = 68;
/// The ICMPv6 type of an advertisement, and the option with name servers in it.
const ADVERTISEMENT: u8 = 134;
const RDNSS: u8 = 25;
/// Scopes of addresses (`/proc/net/if_inet6`) that lead nowhere: this host's and this link's.
const NEAR: [u8; 2] = [0x10, 0x20];
/// IFA_F_DADFAILED, IFA_F_DEPRECATED, IFA_F_TENTATIVE: not to be used, or not yet.
const UNSETTLED: u32 = 0x08 | 0x20 | 0x40;

/// IF_RA_MANAGED and IF_RA_OTHERCONF: the last router to advertise has hosts ask DHCPv6.
const ASK_DHCPV6: u32 = 0x40 | 0x80;

/// Asks for what [`sends_to_dhcpv6`] reads, of every link.
pub fn flags_request() -> [u8; 32] {
    let mut request = [0; 32];
    let [a, b, c, d] = 32_u32.to_ne_bytes();
    let ([e, f], [g, h]) = (RTM_GETLINK.to_ne_bytes(), 0x301_u16.to_ne_bytes());
    for (byte, value) in request.iter_mut().zip([a, b, c, d, e, f, g, h]) {
        *byte = value;
    }
    if let Some(family) = request.get_mut(16) {
        *family = libc::AF_INET6 as u8;
    }
    request
}

/// The links whose router has hosts ask DHCPv6, in announcements of links or in the answer to [`flags_request`].
pub fn sends_to_dhcpv6(datagram: &[u8]) -> Vec<u32> {
    let mut links = Vec::new();
    for message in messages(datagram).map_while(Result::ok) {
        let inet6 = message.payload.first() == Some(&(libc::AF_INET6 as u8));
        let (Some(index), Some(rest)) = (u32_at(message.payload, 4), message.payload.get(16..))
        else {
            continue;
        };
        if message.kind != RTM_NEWLINK || !inet6 {
            continue;
        }
        // IFLA_PROTINFO, and in it IFLA_INET6_FLAGS.
        let flags = attributes(rest)
            .filter(|attribute| attribute.kind == 12)
            .flat_map(|attribute| attributes(attribute.value))
            .find(|attribute| attribute.kind == 1)
            .and_then(|attribute| u32_at(attribute.value, 0));
        if flags.unwrap_or(0) & ASK_DHCPV6 != 0 {
            links.push(index);
        }
    }
    links
}

/// The first address on the link `name` that leads beyond it, with its prefix's length, in the kernel's
/// table `/proc/net/if_inet6`.
pub fn address(table: &str, name: &str) -> Option<(Ipv6Addr, u8)> {
    table.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let address = u128::from_str_radix(fields.next()?, 16).ok()?;
        let prefix = u8::from_str_radix(fields.nth(1)?, 16).ok()?;
        let scope = u8::from_str_radix(fields.next()?, 16).ok()?;
        let flags = u32::from_str_radix(fields.next()?, 16).ok()?;
        let here = fields.next()? == name;
        let usable = !NEAR.contains(&scope) && flags & UNSETTLED == 0;
        (here && usable).then_some((Ipv6Addr::from(address), prefix))
    })
}

/// The name servers that one announcement names, `None` for any other. A lifetime of 0 takes a server back.
pub fn name_servers(message: &[u8]) -> Option<Vec<(Ipv6Addr, u32)>> {
    let kind = u16::from_ne_bytes(message.get(4..6)?.try_into().ok()?);
    let head = message.get(16..32)?;
    let advertised = *head.first()? == libc::AF_INET6 as u8 && *head.get(8)? == ADVERTISEMENT;
    if kind != NEWNDUSEROPT || !advertised {
        return None;
    }
    let length = u16::from_ne_bytes(head.get(2..4)?.try_into().ok()?);
    let mut options = message.get(32..)?.get(..usize::from(length))?;
    let mut servers = Vec::new();
    while let [kind, units, ..] = *options {
        let (option, rest) = options.split_at_checked(usize::from(units) * 8)?;
        if kind == RDNSS {
            let lifetime = u32::from_be_bytes(option.get(4..8)?.try_into().ok()?);
            for address in option.get(8..)?.chunks_exact(16) {
                servers.push((
                    Ipv6Addr::from(<[u8; 16]>::try_from(address).ok()?),
                    lifetime,
                ));
            }
        }
        if units == 0 {
            return None;
        }
        options = rest;
    }
    Some(servers)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
fe80000000000000505400fffe000001 02 40 20 80     eth0
fec0000000000000505400fffe000009 02 40 40 40     eth0
00000000000000000000000000000001 01 80 10 80       lo
20010db8000000000000000000000005 03 40 00 00   eth0.5
20010db8000000000000000000000006 02 40 00 20     eth0
";

    #[test]
    fn an_address_counts_once_it_is_settled_and_leads_beyond_the_link() {
        assert_eq!(address(TABLE, "eth0"), None);
        let expected = ("2001:db8::5".parse().unwrap(), 64);
        assert_eq!(address(TABLE, "eth0.5"), Some(expected));
        // A site's own addresses do.
        let settled = TABLE.replace("40 40 40     eth0", "40 40 00     eth0");
        let found = address(&settled, "eth0").unwrap().0;
        assert_eq!(found.to_string(), "fec0::5054:ff:fe00:9");
        for odd in ["", "x", "0 0 0 0", "zz 02 40 00 00 eth0", "\n\n"] {
            assert_eq!(address(odd, "eth0"), None);
        }
    }

    /// As the kernel announces an option of an advertisement.
    fn announcement(options: &[u8]) -> Vec<u8> {
        let mut message = vec![0; 4];
        message.extend_from_slice(&NEWNDUSEROPT.to_ne_bytes());
        message.extend_from_slice(&[0; 10]);
        message.extend_from_slice(&[10, 0]);
        message.extend_from_slice(&u16::try_from(options.len()).unwrap().to_ne_bytes());
        message.extend_from_slice(&2_i32.to_ne_bytes());
        message.extend_from_slice(&[ADVERTISEMENT, 0, 0, 0, 0, 0, 0, 0]);
        message.extend_from_slice(options);
        message
    }

    fn rdnss(lifetime: u32, servers: &[&str]) -> Vec<u8> {
        let units = u8::try_from(1 + 2 * servers.len()).unwrap();
        let mut option = vec![RDNSS, units, 0, 0];
        option.extend_from_slice(&lifetime.to_be_bytes());
        for server in servers {
            option.extend_from_slice(&server.parse::<Ipv6Addr>().unwrap().octets());
        }
        option
    }

    #[test]
    fn name_servers_come_with_their_lifetimes() {
        let two = rdnss(600, &["2001:db8::53", "fe80::1"]);
        // An option that is not known stands before.
        let options = [&[24, 1, 0, 0, 0, 0, 0, 0][..], &two].concat();
        let servers = name_servers(&announcement(&options)).unwrap();
        let texts: Vec<_> = servers
            .iter()
            .map(|(address, lifetime)| (address.to_string(), *lifetime))
            .collect();
        assert_eq!(
            texts,
            [
                ("2001:db8::53".to_owned(), 600),
                ("fe80::1".to_owned(), 600)
            ]
        );
    }

    /// As the kernel announces a link's IPv6 flags.
    fn link(index: u32, flags: u32) -> Vec<u8> {
        let mut message = vec![0; 16 + 16];
        message[4..6].copy_from_slice(&RTM_NEWLINK.to_ne_bytes());
        message[16] = 10;
        message[20..24].copy_from_slice(&index.to_ne_bytes());
        for (kind, length) in [(12_u16, 12_u16), (1, 8)] {
            message.extend_from_slice(&length.to_ne_bytes());
            message.extend_from_slice(&kind.to_ne_bytes());
        }
        message.extend_from_slice(&flags.to_ne_bytes());
        let length = u32::try_from(message.len()).unwrap();
        message[..4].copy_from_slice(&length.to_ne_bytes());
        message
    }

    #[test]
    fn a_router_that_sends_its_hosts_to_dhcpv6_is_told_from_others() {
        let two = [link(2, 0x8000_00b0), link(3, 0x8000_0030), link(4, 0x40)].concat();
        assert_eq!(sends_to_dhcpv6(&two), [2, 4]);
        let mut other = link(2, 0x80);
        other[16] = 0;
        assert!(sends_to_dhcpv6(&other).is_empty(), "a link as such");
        let whole = link(2, 0x80);
        for length in 0..whole.len() {
            assert!(sends_to_dhcpv6(&whole[..length]).is_empty(), "{length}");
        }
        assert!(sends_to_dhcpv6(&announcement(&rdnss(600, &["2001:db8::53"]))).is_empty());
        assert_eq!(flags_request()[..4], 32_u32.to_ne_bytes());
    }

    #[test]
    fn a_broken_announcement_names_nothing() {
        let whole = announcement(&rdnss(600, &["2001:db8::53"]));
        for length in 0..whole.len() {
            let servers = name_servers(&whole[..length]);
            assert!(servers.is_none_or(|servers| servers.is_empty()), "{length}");
        }
        // An option that is as long as nothing would never end.
        assert_eq!(name_servers(&announcement(&[25, 0, 0, 0])), None);
        let mut other = whole.clone();
        other[4] = 16;
        assert_eq!(name_servers(&other), None);
        assert_eq!(name_servers(&[0xff; 64]), None);
    }
}
