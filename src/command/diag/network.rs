//! `diag.network`: links and their counters, watched for a few seconds: what grows now is wrong now, whatever
//! happened in the months before.
//!
//! Links by rtnetlink, and what their drivers add to it ([`super::ethtool`]); speed, duplex, driver and the bus from
//! sysfs, and the ports of InfiniBand adapters.
use std::time::Duration;

use super::ethtool::{self, Told};
use super::{Finding, Report, shown};
use crate::command::kinds::decode;
use crate::command::machine::Failure;
use crate::command::work::Context;
use crate::facts::nics::{self, Link};
use crate::facts::tree::Tree;
use crate::proto::{DiagNetworkParams, DiagVerdict};
use crate::sys::netlink::{Message, RTM_GETLINK, RTM_NEWLINK, Step, attributes, dump};

const DEFAULT_SECONDS: u32 = 3;
const MAX_SECONDS: u32 = 60;
/// Interfaces told of, links held, ports of InfiniBand, and the longest name.
const INTERFACES: usize = 256;
const HELD: usize = 16 * 1024;
const PORTS: usize = 256;
const NAME: usize = 64;

/// Counters of `struct rtnl_link_stats64`, from 0 on; the others of them are parts of these or count nothing.
const COUNTERS: [(usize, &str); 16] = [
    (0, "rx_packets"),
    (1, "tx_packets"),
    (2, "rx_bytes"),
    (3, "tx_bytes"),
    (4, "rx_errors"),
    (5, "tx_errors"),
    (6, "rx_dropped"),
    (7, "tx_dropped"),
    (9, "collisions"),
    (10, "rx_length_errors"),
    (12, "rx_crc_errors"),
    (13, "rx_frame_errors"),
    (14, "rx_fifo_errors"),
    (15, "rx_missed_errors"),
    (17, "tx_carrier_errors"),
    (18, "tx_fifo_errors"),
];
/// Those of which none shall come: the cable, the transceiver, or the other end.
const ERRORS: [usize; 7] = [4, 5, 9, 12, 13, 17, 18];
/// Of a port of InfiniBand: what none shall come of, too.
const PORT_COUNTERS: [&str; 7] = [
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_xmit_discards",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
];

/// A link with what it has counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    pub link: Link,
    /// In the order of [`COUNTERS`]; 0 where the kernel has none.
    pub counters: [u64; 16],
    /// How often its carrier came and went.
    pub carrier_changes: u64,
    /// RFC 2863's state: 6 is up, 5 dormant.
    pub state: u8,
}

/// Reads an RTM_NEWLINK message's payload.
pub fn counted(payload: &[u8]) -> Option<Counted> {
    let mut counted = Counted {
        link: nics::link(payload)?,
        ..Counted::default()
    };
    for attribute in attributes(payload.get(16..)?) {
        match attribute.kind {
            // IFLA_OPERSTATE, IFLA_CARRIER_CHANGES.
            16 => counted.state = attribute.value.first().copied().unwrap_or(0),
            35 => {
                let value = <[u8; 4]>::try_from(attribute.value).map(u32::from_ne_bytes);
                counted.carrier_changes = value.unwrap_or(0).into();
            }
            // IFLA_STATS64.
            23 => {
                let (values, _) = attribute.value.as_chunks();
                for ((at, _), counter) in COUNTERS.iter().zip(&mut counted.counters) {
                    *counter = values
                        .get(*at)
                        .map_or(0, |value| u64::from_ne_bytes(*value));
                }
            }
            _ => {}
        }
    }
    Some(counted)
}

/// Which interfaces are looked at, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// Empty: all of the machine.
    only: String,
    seconds: u32,
}

impl Network {
    /// # Errors
    /// What is wrong with the params.
    pub fn read(params: &[u8]) -> Result<Self, String> {
        let params: DiagNetworkParams = decode(params)?;
        if params.interface.len() > NAME {
            return Err("interface is longer than 64 bytes".to_owned());
        }
        if params.seconds > MAX_SECONDS {
            let seconds = shown(params.seconds.into());
            return Err(["seconds is ", &seconds, ", more than 60"].concat());
        }
        Ok(Self {
            only: params.interface,
            seconds: match params.seconds {
                0 => DEFAULT_SECONDS,
                seconds => seconds,
            },
        })
    }

    /// # Errors
    /// There is no such interface, the kernel does not tell of any, the command is to stop, or what was
    /// found cannot be told.
    pub fn run(&self, context: &mut Context, report: &mut Report<'_>) -> Result<(), Failure> {
        let tree = Tree::new("/".as_ref());
        let before = self.links(&tree)?;
        let told_before = ethtool::read();
        let ports = self.ports(&tree);
        if before.is_empty() && ports.is_empty() && !self.only.is_empty() {
            return Err(Failure::new(
                "NotFound",
                "this machine has no such interface",
            ));
        }
        let names = before.len();
        context.progress.say(0, || {
            ["watching ", &shown(names as u64), " interfaces"].concat()
        });
        if context.stop.wait(Duration::from_secs(self.seconds.into())) {
            return Err(Failure::new("Cancelled", "stopped"));
        }
        let now = self.links(&tree)?;
        let told = ethtool::read();
        for counted in &now {
            let index = counted.link.index;
            let earlier = before.iter().find(|earlier| earlier.link.index == index);
            let own = Told::of(&told, index);
            let mut finding = judged(counted, earlier.unwrap_or(counted), own.no_link());
            own.judge(&Told::of(&told_before, index), &mut finding);
            device(&tree, &counted.link, &mut finding);
            report.add(finding)?;
        }
        for gone in &before {
            if !now.iter().any(|one| one.link.index == gone.link.index) {
                let mut finding = Finding::new(&gone.link.name);
                finding.say(DiagVerdict::FAIL, &["it went away while it was watched"]);
                report.add(finding)?;
            }
        }
        for (earlier, now) in ports.iter().zip(self.ports(&tree)) {
            report.add(now.judged(earlier))?;
        }
        Ok(())
    }

    /// The interfaces that belong to the machine: cards, and what is made of them.
    fn links(&self, tree: &Tree) -> Result<Vec<Counted>, Failure> {
        let mut links: Vec<Counted> = Vec::new();
        // All links, with their statistics.
        let listed = dump(RTM_GETLINK, &[0; 16], &mut |step| match step {
            Step::Start => links.clear(),
            Step::Entry(Message { kind, payload, .. }) => {
                if kind == RTM_NEWLINK && links.len() < HELD {
                    links.extend(counted(payload));
                }
            }
        });
        listed.map_err(|error| crate::command::kinds::explained("ReadFailed", &error))?;
        links.retain(|counted| match self.only.as_str() {
            "" => match counted.link.kind.as_str() {
                "" => has_device(tree, &counted.link),
                kind => nics::is_lasting(kind),
            },
            only => counted.link.name == only,
        });
        links.sort_unstable_by(|a, b| a.link.name.cmp(&b.link.name));
        links.truncate(INTERFACES);
        Ok(links)
    }

    fn ports(&self, tree: &Tree) -> Vec<Port> {
        const ROOT: &str = "sys/class/infiniband";
        let mut ports = Vec::new();
        for adapter in tree.names(ROOT, PORTS).unwrap_or_default() {
            let base = [ROOT, "/", &adapter, "/ports"].concat();
            for number in tree.names(&base, PORTS).unwrap_or_default() {
                let name = [&adapter, "/", &number].concat();
                if ports.len() < PORTS && (self.only.is_empty() || self.only == name) {
                    ports.push(Port::read(tree, name, &[&base, "/", &number].concat()));
                }
            }
        }
        ports
    }
}

/// What two looks at a link say, and its driver of why there is none.
fn judged(now: &Counted, before: &Counted, no_link: Option<&str>) -> Finding {
    let mut finding = Finding::new(&now.link.name);
    finding.asked();
    let link = &now.link;
    finding.text("mac", &link.mac);
    finding.number("mtu", link.mtu.into());
    finding.number("up", link.up.into());
    finding.number("carrier", link.carrier.into());
    finding.number("carrier_changes", now.carrier_changes);
    let flaps = now.carrier_changes.saturating_sub(before.carrier_changes);
    let counters = COUNTERS.iter().zip(now.counters).zip(before.counters);
    for (((_, name), now), _) in counters.clone() {
        finding.number(name, now);
    }
    if flaps > 0 {
        let flaps = shown(flaps);
        let parts = [
            "its carrier changed ",
            &flaps,
            " times while it was watched",
        ];
        finding.say(DiagVerdict::FAIL, &parts);
    }
    if link.up && !link.carrier {
        let why = no_link.map_or_else(String::new, |why| [" (", why, ")"].concat());
        let parts = [
            "it is up and has no carrier",
            &why,
            ": see cable, transceiver and switch",
        ];
        finding.say(DiagVerdict::WARN, &parts);
    }
    for (((at, name), now), before) in counters {
        let grown = now.saturating_sub(before);
        if grown > 0 && ERRORS.contains(at) {
            let grown = shown(grown);
            finding.say(
                DiagVerdict::WARN,
                &[name, " grew by ", &grown, " while it was watched"],
            );
        }
    }
    finding
}

/// Whether sysfs shows the link, in this network namespace, with a device behind it.
fn has_device(tree: &Tree, link: &Link) -> bool {
    let base = ["sys/class/net/", &link.name].concat();
    !link.name.contains('/')
        && tree.number(&[&base, "/ifindex"].concat()) == Some(link.index.into())
        && tree.exists(&[&base, "/device"].concat())
}

/// What sysfs says of the card behind a link.
fn device(tree: &Tree, link: &Link, finding: &mut Finding) {
    if !has_device(tree, link) {
        finding.text("kind", &link.kind);
        return;
    }
    let at = |file: &str| ["sys/class/net/", &link.name, "/", file].concat();
    let text = |file: &str| tree.text(&at(file));
    finding.text(
        "driver",
        &tree.link_name(&at("device/driver")).unwrap_or_default(),
    );
    if link.carrier {
        // -1, or an error, where there is none.
        if let Some(speed) = tree
            .number(&at("speed"))
            .filter(|speed| *speed < u32::MAX.into())
        {
            finding.number("speed_mbits", speed);
        }
        let duplex = text("duplex");
        finding.text("duplex", &duplex);
        if duplex == "half" {
            finding.say(
                DiagVerdict::WARN,
                &["it runs at half duplex: see what the switch's port is set to"],
            );
        }
    }
    // Lanes; 0 and 255 are the kernel's words for not knowing.
    let lanes = |base: &str, file: &str| {
        let lanes = tree.number(&at(&[base, file].concat()));
        lanes.filter(|lanes| (1..=32).contains(lanes))
    };
    finding.text("pcie_speed", &text("device/current_link_speed"));
    if let Some(now) = lanes("device/", "current_link_width") {
        // The slot's other end has limits too, and is the directory above.
        let ends = ["device/", "device/../"].map(|base| lanes(base, "max_link_width"));
        let most = ends.into_iter().flatten().min().unwrap_or(now);
        finding.number("pcie_width", now);
        if now < most {
            let (now, most) = (shown(now), shown(most));
            let parts = [
                "its PCIe link has ",
                &now,
                " of ",
                &most,
                " lanes: reseat the card",
            ];
            finding.say(DiagVerdict::WARN, &parts);
        }
    }
}

/// A port of an InfiniBand adapter.
struct Port {
    name: String,
    /// "4: ACTIVE"
    state: String,
    /// "5: LinkUp"
    physical: String,
    rate: String,
    counters: [u64; 7],
}

impl Port {
    fn read(tree: &Tree, name: String, base: &str) -> Self {
        let text = |file: &str| tree.text(&[base, "/", file].concat());
        Self {
            name,
            state: text("state"),
            physical: text("phys_state"),
            rate: text("rate"),
            counters: PORT_COUNTERS.map(|counter| {
                tree.number(&[base, "/counters/", counter].concat())
                    .unwrap_or(0)
            }),
        }
    }

    fn judged(&self, before: &Self) -> Finding {
        let mut finding = Finding::new(&self.name);
        finding.asked();
        finding.text("state", &self.state);
        finding.text("physical_state", &self.physical);
        finding.text("rate", &self.rate);
        if !self.state.ends_with("ACTIVE") {
            let parts = ["its state is ", &self.state, " (", &self.physical, ")"];
            finding.say(DiagVerdict::WARN, &parts);
        }
        let counters = PORT_COUNTERS.iter().zip(self.counters).zip(before.counters);
        for ((name, now), before) in counters {
            finding.number(name, now);
            let grown = now.saturating_sub(before);
            if grown > 0 {
                let grown = shown(grown);
                finding.say(
                    DiagVerdict::WARN,
                    &[name, " grew by ", &grown, " while it was watched"],
                );
            }
        }
        finding
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use crate::facts::tree::tests::Fixture;
    use crate::proto::Message as _;
    use crate::sys::netlink::tests::attribute;

    fn link() -> Counted {
        Counted {
            link: Link {
                index: 2,
                name: "eth0".to_owned(),
                up: true,
                carrier: true,
                ..Link::default()
            },
            carrier_changes: 2,
            ..Counted::default()
        }
    }

    #[test]
    fn a_links_counters_are_read_from_what_the_kernel_gives() {
        let stats: Vec<u8> = (100_u64..125).flat_map(u64::to_ne_bytes).collect();
        let mut payload = vec![0; 16];
        payload[4] = 2;
        for part in [
            attribute(3, b"eth0\0"),
            attribute(16, &[6]),
            attribute(35, &7_u32.to_ne_bytes()),
            attribute(23, &stats),
        ] {
            payload.extend(part);
        }
        let found = counted(&payload).unwrap();
        assert_eq!((found.carrier_changes, found.state), (7, 6));
        for ((at, name), counter) in COUNTERS.iter().zip(found.counters) {
            assert_eq!(counter, 100 + *at as u64, "{name}");
        }
        for end in 0..payload.len() {
            counted(&payload[..end]);
        }
    }

    #[test]
    fn this_machines_links_are_counted() {
        let all = Network {
            only: "lo".to_owned(),
            seconds: 1,
        };
        let links = all.links(&Tree::new("/".as_ref())).unwrap();
        assert_eq!(links.len(), 1);
        assert_eq!(links[0].link.name, "lo");
    }

    #[test]
    fn what_grows_while_it_is_watched_is_wrong_and_what_happened_before_is_told() {
        let mut before = link();
        before.counters[4] = 900;
        let same = judged(&before, &before, None);
        assert_eq!(
            (same.0.verdict, same.0.problems.len()),
            (DiagVerdict::OK, 0)
        );
        let mut now = before.clone();
        now.counters[10] = 3;
        now.counters[0] = 5000;
        let grown = judged(&now, &before, None);
        assert_eq!(grown.0.verdict, DiagVerdict::WARN);
        assert_eq!(
            grown.0.problems,
            ["rx_crc_errors grew by 3 while it was watched"]
        );
        now.carrier_changes = 4;
        assert_eq!(judged(&now, &before, None).0.verdict, DiagVerdict::FAIL);
        let mut dark = link();
        dark.link.carrier = false;
        let found = judged(&dark, &dark, Some("no cable")).0;
        assert_eq!(found.verdict, DiagVerdict::WARN);
        assert!(found.problems[0].starts_with("it is up and has no carrier (no cable): see"));
        dark.link.up = false;
        assert_eq!(judged(&dark, &dark, None).0.verdict, DiagVerdict::OK);
    }

    #[test]
    fn a_card_with_too_few_lanes_or_half_duplex_is_said() {
        let pci = "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0";
        let fixture = Fixture::new(&[
            (
                "sys/class/net/eth0 -> ../../devices/pci0000:00/0000:00:01.0/0000:01:00.0/net/eth0",
                b"",
            ),
            (&format!("{pci}/net/eth0/ifindex"), b"2\n"),
            (
                &format!("{pci}/net/eth0/device -> ../../../0000:01:00.0"),
                b"",
            ),
            (&format!("{pci}/net/eth0/speed"), b"100000\n"),
            (&format!("{pci}/net/eth0/duplex"), b"half\n"),
            (
                &format!("{pci}/driver -> ../../../../bus/pci/drivers/mlx5_core"),
                b"",
            ),
            (&format!("{pci}/current_link_width"), b"8\n"),
            (&format!("{pci}/max_link_width"), b"16\n"),
            (&format!("{pci}/current_link_speed"), b"16.0 GT/s PCIe\n"),
        ]);
        let told = || {
            let mut finding = Finding::new("eth0");
            device(&fixture.tree, &link().link, &mut finding);
            finding.0
        };
        let found = told();
        let lanes = "its PCIe link has 8 of 16 lanes: reseat the card";
        assert_eq!(found.problems.len(), 2);
        assert_eq!(found.problems[1], lanes);
        let names: Vec<&str> = found.readings.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "driver",
                "speed_mbits",
                "duplex",
                "pcie_speed",
                "pcie_width"
            ]
        );
        // The slot has no more.
        fixture.put("sys/devices/pci0000:00/0000:00:01.0/max_link_width", b"8\n");
        fixture.put(&format!("{pci}/net/eth0/duplex"), b"full\n");
        assert_eq!(told().problems, [""; 0]);
    }

    #[test]
    fn a_port_that_is_not_active_is_said_and_so_is_what_it_counts() {
        let base = "sys/class/infiniband/mlx5_0/ports/1";
        let fixture = Fixture::new(&[]);
        for (file, text) in [
            ("state", "4: ACTIVE\n"),
            ("phys_state", "5: LinkUp\n"),
            ("rate", "400 Gb/sec (4X NDR)\n"),
            ("counters/symbol_error", "17\n"),
        ] {
            fixture.put(&format!("{base}/{file}"), text.as_bytes());
        }
        let all = Network {
            only: String::new(),
            seconds: 1,
        };
        let before = all.ports(&fixture.tree);
        assert_eq!(before.len(), 1);
        assert_eq!(before[0].judged(&before[0]).0.verdict, DiagVerdict::OK);
        fixture.put(&format!("{base}/counters/symbol_error"), b"20\n");
        fixture.put(&format!("{base}/state"), b"1: DOWN\n");
        let now = all.ports(&fixture.tree);
        let found = now[0].judged(&before[0]);
        assert_eq!(found.0.verdict, DiagVerdict::WARN);
        assert_eq!(
            found.0.problems,
            [
                "its state is 1: DOWN (5: LinkUp)",
                "symbol_error grew by 3 while it was watched"
            ]
        );
    }

    #[test]
    fn params_have_defaults_and_bounds() {
        let read = |interface: &str, seconds| {
            let interface = interface.to_owned();
            Network::read(&DiagNetworkParams { interface, seconds }.encode_to_vec())
        };
        assert_eq!(read("", 0).unwrap().seconds, 3);
        assert_eq!(read("eth0", 60).unwrap().only, "eth0");
        assert_eq!(read("", 61).unwrap_err(), "seconds is 61, more than 60");
        assert!(read(&"x".repeat(65), 1).is_err());
    }
}
