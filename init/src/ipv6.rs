//! IPv6 as the kernel does it: an address and a route from a router's advertisements. Left to init is to
//! notice that there is an address, and to keep the name servers that came along (RFC 8106): the kernel
//! announces them once (RTM_NEWNDUSEROPT, rtnetlink) and forgets them. Bytes only; the socket is in
//! [`crate::edge`].
use std::net::Ipv6Addr;

/// RTM_NEWNDUSEROPT.
const NEWNDUSEROPT: u16 = 68;
/// The ICMPv6 type of an advertisement, and the option with name servers in it.
const ADVERTISEMENT: u8 = 134;
const RDNSS: u8 = 25;
/// Scopes of addresses (`/proc/net/if_inet6`) that lead nowhere: this host's and this link's.
const NEAR: [u8; 2] = [0x10, 0x20];
/// IFA_F_DADFAILED, IFA_F_DEPRECATED, IFA_F_TENTATIVE: not to be used, or not yet.
const UNSETTLED: u32 = 0x08 | 0x20 | 0x40;

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
