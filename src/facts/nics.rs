//! Network interfaces: links and addresses by rtnetlink; speed, driver and place from sysfs.
//!
//! What belongs to the machine counts: cards, bonds, bridges, VLANs. Of the others (the veth and
//! tap of each container and guest) those do that carry an address of this host. Link-local,
//! temporary and unsettled IPv6 addresses are left out: they come and go by themselves.
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::tree::{Tree, clean};
use super::{Area, Problems, init};
use crate::config::mac::Mac;
use crate::proto::NetworkInterface;
use crate::sys::netlink::{
    Message, NetlinkError, RTM_GETADDR, RTM_GETLINK, RTM_NEWADDR, RTM_NEWLINK, Step, attributes,
    dump, is_pci_address, u16_at, u32_at,
};

/// Interfaces told of, and addresses of one and of all.
const INTERFACES: usize = 256;
const ADDRESSES: usize = 64;
const ALL: usize = 1024;
/// Links and addresses held while reading.
const HELD: usize = 16 * 1024;
/// The longest name the kernel gives a kind of link.
const KIND: usize = 32;

const IFF_UP: u32 = 1;
const IFF_LOWER_UP: u32 = 1 << 16;
const ARPHRD_INFINIBAND: u16 = 32;
const ARPHRD_LOOPBACK: u16 = 772;
/// Bits of IFA_FLAGS: temporary, duplicate, deprecated, tentative.
const UNSETTLED: u32 = 0x01 | 0x08 | 0x20 | 0x40;
/// RTM_GETLINK for all links, without their statistics (IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS).
const LINKS: [u8; 24] = {
    let mut body = [0; 24];
    let (length, kind, mask) = (
        8_u16.to_ne_bytes(),
        29_u16.to_ne_bytes(),
        8_u32.to_ne_bytes(),
    );
    (body[16], body[17], body[18], body[19]) = (length[0], length[1], kind[0], kind[1]);
    (body[20], body[21], body[22], body[23]) = (mask[0], mask[1], mask[2], mask[3]);
    body
};
/// RTM_GETADDR for all addresses.
const ALL_ADDRESSES: [u8; 8] = [0; 8];

/// A link as rtnetlink shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    pub index: u32,
    /// ARPHRD_…
    pub hardware: u16,
    pub name: String,
    pub mac: String,
    pub permanent_mac: String,
    pub mtu: u32,
    pub up: bool,
    pub carrier: bool,
    /// "bond", "vlan", "veth" …; empty for cards.
    pub kind: String,
}

/// An address as rtnetlink shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Of its link.
    pub index: u32,
    pub address: IpAddr,
    pub prefix: u8,
}

/// Reads an RTM_NEWLINK message's payload.
pub fn link(payload: &[u8]) -> Option<Link> {
    let flags = u32_at(payload, 8)?;
    let mut link = Link {
        hardware: u16_at(payload, 2)?,
        index: u32_at(payload, 4)?,
        up: flags & IFF_UP != 0,
        carrier: flags & IFF_LOWER_UP != 0,
        ..Link::default()
    };
    for attribute in attributes(payload.get(16..)?) {
        match attribute.kind {
            1 => link.mac = mac(attribute.value),
            3 => link.name = clean(attribute.value),
            4 => link.mtu = u32_at(attribute.value, 0)?,
            // IFLA_LINKINFO, and in it IFLA_INFO_KIND.
            18 => {
                for inner in attributes(attribute.value).filter(|inner| inner.kind == 1) {
                    link.kind = clean(inner.value.get(..KIND).unwrap_or(inner.value));
                }
            }
            54 => link.permanent_mac = mac(attribute.value),
            _ => {}
        }
    }
    (!link.name.is_empty()).then_some(link)
}

/// Reads an RTM_NEWADDR message's payload; `None` also for an address that does not count.
pub fn address(payload: &[u8]) -> Option<Address> {
    let prefix = *payload.get(1)?;
    let mut flags = u32::from(*payload.get(2)?);
    let (mut local, mut other) = (None, None);
    for attribute in attributes(payload.get(8..)?) {
        match attribute.kind {
            1 => other = ip(attribute.value),
            // The own end of a point-to-point link; elsewhere the same.
            2 => local = ip(attribute.value),
            8 => flags = u32_at(attribute.value, 0)?,
            _ => {}
        }
    }
    let address = local.or(other)?;
    let settled = match address {
        IpAddr::V4(_) => true,
        IpAddr::V6(v6) => flags & UNSETTLED == 0 && v6.segments().first()? & 0xffc0 != 0xfe80,
    };
    settled.then_some(Address {
        index: u32_at(payload, 4)?,
        address,
        prefix,
    })
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        return Some(Ipv4Addr::from(v4).into());
    }
    let v6 = <[u8; 16]>::try_from(bytes).ok()?;
    Some(Ipv6Addr::from(v6).into())
}

/// "52:54:00:12:34:56"; InfiniBand's has 20 bytes, a tunnel's 4 or 16. All zeros is none.
fn mac(bytes: &[u8]) -> String {
    let bytes = bytes.get(..32).unwrap_or(bytes);
    let mut text = String::new();
    if bytes.iter().any(|byte| *byte != 0) {
        for byte in bytes {
            if !text.is_empty() {
                text.push(':');
            }
            text.extend(
                [byte >> 4, byte & 15]
                    .map(|digit| char::from_digit(u32::from(digit), 16).unwrap_or_default()),
            );
        }
    }
    text
}

pub(super) fn read(tree: &Tree, problems: &mut Problems) -> Vec<NetworkInterface> {
    let mut links = Vec::new();
    let listed = table(RTM_GETLINK, &LINKS, RTM_NEWLINK, link, &mut links);
    let mut addresses = Vec::new();
    let listed = listed.and_then(|()| {
        table(
            RTM_GETADDR,
            &ALL_ADDRESSES,
            RTM_NEWADDR,
            address,
            &mut addresses,
        )
    });
    if let Err(error) = listed {
        problems.say(Area::Nics, &error.to_string());
    }
    let mut interfaces = told(tree, links, &addresses, problems);
    init::read_neighbours(tree, &mut interfaces);
    interfaces
}

fn table<T>(
    request: u16,
    body: &[u8],
    answer: u16,
    parse: fn(&[u8]) -> Option<T>,
    to: &mut Vec<T>,
) -> Result<(), NetlinkError> {
    dump(request, body, &mut |step| match step {
        Step::Start => to.clear(),
        Step::Entry(Message { kind, payload, .. }) => {
            if kind == answer && to.len() < HELD {
                to.extend(parse(payload));
            }
        }
    })
}

/// What is told of `links`, those of the machine first.
fn told(
    tree: &Tree,
    links: Vec<Link>,
    addresses: &[Address],
    problems: &mut Problems,
) -> Vec<NetworkInterface> {
    let mut interfaces: Vec<(bool, NetworkInterface)> = links
        .into_iter()
        .filter_map(|link| {
            let own = own(addresses, link.index);
            let interface = interface(tree, link, own);
            let lasting = is_lasting(&interface.kind);
            (lasting || !interface.addresses.is_empty()).then_some((!lasting, interface))
        })
        .collect();
    interfaces.sort_unstable_by(|(a_passing, a), (b_passing, b)| {
        (a_passing, &a.name).cmp(&(b_passing, &b.name))
    });
    // No counts in what is said: they would change as containers come and go.
    if interfaces.len() > INTERFACES {
        problems.say(
            Area::Nics,
            "more than 256 interfaces: the others are left out",
        );
        interfaces.truncate(INTERFACES);
    }
    let mut interfaces: Vec<NetworkInterface> = interfaces
        .into_iter()
        .map(|(_, interface)| interface)
        .collect();
    let (mut room, mut cut) = (ALL, false);
    for addresses in interfaces
        .iter_mut()
        .map(|interface| &mut interface.addresses)
    {
        let most = room.min(ADDRESSES);
        cut |= addresses.len() > most;
        addresses.truncate(most);
        room -= addresses.len();
    }
    if cut {
        problems.say(Area::Nics, "very many addresses: some are left out");
    }
    interfaces
}

/// The addresses of the link `index`, IPv4 first.
fn own(addresses: &[Address], index: u32) -> Vec<String> {
    let mut own: Vec<(IpAddr, u8)> = addresses
        .iter()
        .filter(|address| address.index == index)
        .map(|address| (address.address, address.prefix))
        .collect();
    own.sort_unstable();
    own.dedup();
    own.into_iter()
        .map(|(address, prefix)| format!("{address}/{prefix}"))
        .collect()
}

fn interface(tree: &Tree, link: Link, addresses: Vec<String>) -> NetworkInterface {
    let base = ["sys/class/net/", &link.name].concat();
    let at = |name: &str| [&base, "/", name].concat();
    // sysfs may show another network namespace than this process is in.
    let is_same =
        !link.name.contains('/') && tree.number(&at("ifindex")) == Some(u64::from(link.index));
    let has_device = is_same && tree.exists(&at("device"));
    let place = if has_device { tree.link(&base) } else { None }.unwrap_or_default();
    let kind = match (link.hardware, has_device) {
        _ if !link.kind.is_empty() => link.kind,
        (ARPHRD_LOOPBACK, _) => "loopback".to_owned(),
        (ARPHRD_INFINIBAND, true) => "infiniband".to_owned(),
        (_, true) => "physical".to_owned(),
        _ => "virtual".to_owned(),
    };
    // -1 or an error where there is none.
    let speed = if is_same && link.carrier {
        tree.number(&at("speed"))
    } else {
        None
    };
    NetworkInterface {
        speed_mbits: speed
            .and_then(|speed| u32::try_from(speed).ok())
            .unwrap_or(0),
        driver: match has_device {
            true => tree.link_name(&at("device/driver")).unwrap_or_default(),
            false => String::new(),
        },
        device_path: pci_address(&place).unwrap_or_default().to_owned(),
        name: link.name,
        mac: link.mac,
        permanent_mac: link.permanent_mac,
        mtu: link.mtu,
        up: link.up,
        carrier: link.carrier,
        addresses,
        kind,
        ..NetworkInterface::default()
    }
}

/// Whether such an interface is part of how the machine is set up, with or without an address.
pub fn is_lasting(kind: &str) -> bool {
    matches!(
        kind,
        "physical" | "infiniband" | "ipoib" | "bond" | "team" | "vlan" | "bridge"
    )
}

/// The last PCI address in a path of sysfs.
pub fn pci_address(path: &str) -> Option<&str> {
    path.rsplit('/').find(|name| is_pci_address(name))
}

/// The addresses of a machine's Ethernet cards, as they were made, sorted: for a join's claims.
pub fn card_macs(interfaces: &[NetworkInterface], max: usize) -> Vec<String> {
    let mut macs: Vec<String> = interfaces
        .iter()
        .filter(|interface| interface.kind == "physical")
        // In a bond, all cards have one address.
        .map(|interface| match interface.permanent_mac.is_empty() {
            true => interface.mac.clone(),
            false => interface.permanent_mac.clone(),
        })
        .filter(|mac| mac.len() == 17)
        .collect();
    macs.sort_unstable();
    macs.dedup();
    macs.truncate(max);
    macs
}

/// The MAC of the card that the machine booted from: `named` by the boot loader, if it has such a
/// card, else the one with an address on it or on what stands upon it. Empty when neither is there.
pub fn boot_mac(interfaces: &[NetworkInterface], named: Option<Mac>) -> String {
    let cards = || interfaces.iter().filter(|one| one.kind == "physical");
    if let Some(named) = named {
        let text = named.to_string();
        if cards().any(|card| card.mac == text || card.permanent_mac == text) {
            return text;
        }
    }
    // A VLAN or a bond has the address of a card of its own.
    let card = interfaces
        .iter()
        .filter(|one| !one.addresses.is_empty())
        .find_map(|one| cards().find(|card| card.mac == one.mac));
    card.map_or_else(String::new, |card| card.mac.clone())
}

#[cfg(test)]
mod tests {
    use super::super::tree::tests::Fixture;
    use super::*;
    use crate::sys::netlink::tests::attribute;

    const ARPHRD_ETHER: u16 = 1;

    fn link_message(index: u32, hardware: u16, flags: u32, attributes: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = vec![0, 0];
        bytes.extend_from_slice(&hardware.to_ne_bytes());
        bytes.extend_from_slice(&index.to_ne_bytes());
        bytes.extend_from_slice(&flags.to_ne_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend(attributes.concat());
        bytes
    }

    fn address_message(index: u32, prefix: u8, flags: u8, attributes: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = vec![2, prefix, flags, 0];
        bytes.extend_from_slice(&index.to_ne_bytes());
        bytes.extend(attributes.concat());
        bytes
    }

    #[test]
    fn a_link_is_read_with_its_kind_and_its_made_address() {
        let info = [attribute(1, b"bond\0"), attribute(2, &[9; 8])].concat();
        let payload = link_message(
            7,
            ARPHRD_ETHER,
            IFF_UP | IFF_LOWER_UP,
            &[
                attribute(3, b"bond0\0"),
                attribute(1, &[2, 0, 0, 0, 0, 1]),
                attribute(54, &[0x52, 0x54, 0, 0x12, 0x34, 0xff]),
                attribute(4, &9000_u32.to_ne_bytes()),
                attribute(18 | 0x8000, &info),
            ],
        );
        let expected = Link {
            index: 7,
            hardware: ARPHRD_ETHER,
            name: "bond0".to_owned(),
            mac: "02:00:00:00:00:01".to_owned(),
            permanent_mac: "52:54:00:12:34:ff".to_owned(),
            mtu: 9000,
            up: true,
            carrier: true,
            kind: "bond".to_owned(),
        };
        assert_eq!(link(&payload), Some(expected));
        for end in 0..payload.len() {
            link(&payload[..end]);
        }
    }

    #[test]
    fn addresses_that_come_and_go_by_themselves_do_not_count() {
        let v4 = attribute(2, &[192, 0, 2, 1]);
        let v6 = |first: [u8; 2]| {
            let mut bytes = [0; 16];
            bytes[..2].copy_from_slice(&first);
            bytes[15] = 1;
            attribute(1, &bytes)
        };
        let shown = |payload: &[u8]| {
            address(payload).map(|found| format!("{}/{}", found.address, found.prefix))
        };
        let global = || v6([0x20, 0x01]);
        for (payload, text) in [
            (
                address_message(1, 24, 0, &[attribute(1, &[10, 0, 0, 9]), v4]),
                Some("192.0.2.1/24"),
            ),
            (
                address_message(1, 64, 0x80, &[global()]),
                Some("2001::1/64"),
            ),
            (address_message(1, 64, 0, &[v6([0xfe, 0x80])]), None),
            (address_message(1, 64, 0, &[v6([0xfe, 0xbf])]), None),
            (
                address_message(1, 64, 0, &[v6([0xfd, 0])]),
                Some("fd00::1/64"),
            ),
            (address_message(1, 64, 0x40, &[global()]), None),
            (
                address_message(1, 64, 0, &[global(), attribute(8, &1_u32.to_ne_bytes())]),
                None,
            ),
            (address_message(1, 64, 0, &[attribute(1, &[1, 2, 3])]), None),
            (address_message(1, 64, 0, &[]), None),
            (vec![2, 24], None),
        ] {
            assert_eq!(shown(&payload).as_deref(), text);
            for end in 0..payload.len() {
                address(&payload[..end]);
            }
        }
    }

    fn plain(index: u32, name: &str, kind: &str) -> Link {
        Link {
            index,
            hardware: ARPHRD_ETHER,
            name: name.to_owned(),
            kind: kind.to_owned(),
            carrier: true,
            ..Link::default()
        }
    }

    fn on(index: u32, last: u8) -> Address {
        Address {
            index,
            address: Ipv4Addr::new(192, 0, 2, last).into(),
            prefix: 24,
        }
    }

    #[test]
    fn the_machines_own_interfaces_come_first_and_passing_ones_need_an_address() {
        let links = vec![
            plain(1, "veth9", "veth"),
            plain(2, "tap0", "tun"),
            plain(3, "br0", "bridge"),
            plain(4, "a-veth", "veth"),
            plain(5, "vlan5", "vlan"),
        ];
        let fixture = Fixture::new(&[]);
        let addresses = [on(4, 9), on(4, 2), on(4, 9), on(3, 7)];
        let mut problems = Problems::default();
        let told = told(&fixture.tree, links, &addresses, &mut problems);
        let names: Vec<&str> = told.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["br0", "vlan5", "a-veth"]);
        assert_eq!(told[2].addresses, ["192.0.2.2/24", "192.0.2.9/24"]);
        assert!(problems.lines().is_empty());
    }

    #[test]
    fn a_card_has_a_driver_a_speed_and_a_place_if_sysfs_shows_this_namespace() {
        let files: &[(&str, &[u8])] = &[
            (
                "sys/devices/pci0000:00/0000:00:1c.0/0000:01:00.1/net/eth0/ifindex",
                b"2\n",
            ),
            (
                "sys/devices/pci0000:00/0000:00:1c.0/0000:01:00.1/net/eth0/speed",
                b"100000\n",
            ),
            (
                "sys/devices/pci0000:00/0000:00:1c.0/0000:01:00.1/net/eth0/device -> ../../../0000:01:00.1",
                b"",
            ),
            (
                "sys/devices/pci0000:00/0000:00:1c.0/0000:01:00.1/driver -> ../../../../bus/pci/drivers/mlx5_core",
                b"",
            ),
            (
                "sys/class/net/eth0 -> ../../devices/pci0000:00/0000:00:1c.0/0000:01:00.1/net/eth0",
                b"",
            ),
        ];
        let fixture = Fixture::new(files);
        let card = interface(&fixture.tree, plain(2, "eth0", ""), Vec::new());
        assert_eq!(card.kind, "physical");
        assert_eq!(card.driver, "mlx5_core");
        assert_eq!(card.device_path, "0000:01:00.1");
        assert_eq!(card.speed_mbits, 100_000);
        let of_another = interface(&fixture.tree, plain(3, "eth0", ""), Vec::new());
        assert_eq!(
            (of_another.kind.as_str(), of_another.speed_mbits),
            ("virtual", 0)
        );
        fixture.put("sys/class/net/eth0/speed", b"-1\n");
        let unknown = interface(&fixture.tree, plain(2, "eth0", ""), Vec::new());
        assert_eq!(unknown.speed_mbits, 0);
    }

    #[test]
    fn thousands_of_interfaces_and_addresses_are_bounded() {
        let links = (0..5000).map(|i| plain(i, &format!("vlan{i:04}"), "vlan"));
        let addresses: Vec<Address> = (0..50)
            .flat_map(|index| (0..=255).map(move |last| on(index, last)))
            .collect();
        let mut problems = Problems::default();
        let tree = Fixture::new(&[]).tree;
        let found = told(&tree, links.collect(), &addresses, &mut problems);
        assert_eq!(found.len(), INTERFACES);
        assert_eq!(found[0].addresses.len(), ADDRESSES);
        let all: usize = found.iter().map(|one| one.addresses.len()).sum();
        assert_eq!(all, ALL);
        assert_eq!(problems.lines().len(), 2);
    }

    #[test]
    fn claims_name_each_card_once_as_it_was_made() {
        let card = |kind: &str, mac: &str, permanent: &str| NetworkInterface {
            kind: kind.to_owned(),
            mac: mac.to_owned(),
            permanent_mac: permanent.to_owned(),
            ..NetworkInterface::default()
        };
        let interfaces = [
            card("physical", "aa:bb:cc:00:00:02", ""),
            card("physical", "aa:bb:cc:00:00:02", "aa:bb:cc:00:00:01"),
            card("bond", "aa:bb:cc:00:00:02", ""),
            card("infiniband", "00:11:22:33", ""),
            card("physical", "", ""),
        ];
        let macs = card_macs(&interfaces, 64);
        assert_eq!(macs, ["aa:bb:cc:00:00:01", "aa:bb:cc:00:00:02"]);
        assert_eq!(card_macs(&interfaces, 1).len(), 1);
    }

    #[test]
    fn the_boot_card_is_the_named_one_else_the_one_with_the_network() {
        let one = |kind: &str, mac: &str, address: &str| NetworkInterface {
            kind: kind.to_owned(),
            mac: mac.to_owned(),
            addresses: Some(address.to_owned())
                .filter(|address| !address.is_empty())
                .into_iter()
                .collect(),
            ..NetworkInterface::default()
        };
        let (first, second) = ("aa:bb:cc:00:00:01", "aa:bb:cc:00:00:02");
        let mut interfaces = vec![
            one("loopback", "", "127.0.0.1/8"),
            one("physical", first, ""),
            one("physical", second, ""),
            one("vlan", second, "192.0.2.1/24"),
        ];
        assert_eq!(boot_mac(&interfaces, Mac::parse(first)), first);
        assert_eq!(boot_mac(&interfaces, None), second);
        // A name that no card has is no answer.
        assert_eq!(
            boot_mac(&interfaces, Mac::parse("aa:bb:cc:00:00:03")),
            second
        );
        interfaces.pop();
        assert_eq!(boot_mac(&interfaces, None), "");
        interfaces[1].mac = second.to_owned();
        interfaces[1].permanent_mac = first.to_owned();
        assert_eq!(boot_mac(&interfaces, Mac::parse(first)), first);
    }
}
