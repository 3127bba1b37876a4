//! The NICs the kernel shows in /sys/class/net, and which of them may be used when.
use std::fs;
use std::path::Path;
use std::time::Duration;

/// How long the boot NIC's link may take: a switch with spanning tree forwards after up to a minute.
pub const LINK_WAIT: Duration = Duration::from_secs(60);
/// How long the boot NIC may ask in vain before the others ask too.
pub const ANSWER_WAIT: Duration = Duration::from_secs(45);
/// How long the boot NIC may take to appear: its driver may load firmware.
pub const APPEAR_WAIT: Duration = Duration::from_secs(15);

/// An Ethernet device of the machine, or a virtual one that stands on top of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nic {
    pub name: String,
    pub index: u32,
    pub mac: [u8; 6],
    /// Whether there is a link; unknown, so no, while the device is down.
    pub carrier: bool,
}

impl Nic {
    /// What /sys says of the device `name`; `None` for anything but Ethernet.
    pub fn read(name: &str) -> Option<Self> {
        let directory = Path::new("/sys/class/net").join(name);
        let text = |file: &str| fs::read_to_string(directory.join(file)).ok();
        // ARPHRD_ETHER.
        if text("type")?.trim() != "1" {
            return None;
        }
        Some(Self {
            index: text("ifindex")?.trim().parse().ok()?,
            mac: mac(text("address")?.trim())?,
            carrier: text("carrier").is_some_and(|carrier| carrier.trim() == "1"),
            name: name.to_owned(),
        })
    }

    /// All that stand for hardware, by name.
    pub fn all() -> Vec<Self> {
        let entries = fs::read_dir("/sys/class/net")
            .into_iter()
            .flatten()
            .flatten();
        let mut all: Vec<Self> = entries
            .filter(|entry| entry.path().join("device").exists())
            .filter_map(|entry| Self::read(entry.file_name().to_str()?))
            .collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }
}

/// What is known when NICs are chosen.
#[derive(Debug, Clone, Copy)]
pub struct Situation<'a> {
    pub nics: &'a [Nic],
    /// The address that `BOOTIF` named.
    pub bootif: Option<[u8; 6]>,
    /// The name that `ip=` or `vlan=` named.
    pub device: Option<&'a str>,
    /// Since the start.
    pub elapsed: Duration,
    /// For how long the boot NIC has been asking.
    pub asking: Option<Duration>,
}

impl Situation<'_> {
    /// Whether this is the NIC that the command line names.
    pub fn is_named(&self, nic: &Nic) -> bool {
        match (self.device, self.bootif) {
            (Some(name), _) => nic.name == name,
            (None, Some(mac)) => nic.mac == mac,
            (None, None) => false,
        }
    }

    /// Whether `nic` may be used now: the named one at once, all others when none is named, or when the
    /// named one had its time to appear, to have a link and to get an answer. A NIC named by `ip=` or
    /// `vlan=` is the only one, for as long as it takes.
    pub fn may_use(&self, nic: &Nic) -> bool {
        if self.device.is_none() && self.bootif.is_none() {
            return true;
        }
        // Two NICs of one address are both it: ports of one card, or a maker's mistake.
        if self.is_named(nic) {
            return true;
        }
        if self.device.is_some() {
            return false;
        }
        let mut named = self.nics.iter().filter(|nic| self.is_named(nic)).peekable();
        match self.asking {
            Some(asking) => asking >= ANSWER_WAIT,
            None if named.peek().is_none() => self.elapsed >= APPEAR_WAIT,
            None => self.elapsed >= LINK_WAIT && !named.any(|nic| nic.carrier),
        }
    }
}

/// The address as text, the way /sys and people write it.
pub fn shown(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

fn mac(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        *byte = u8::from_str_radix(parts.next()?, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nic(name: &str, last: u8, carrier: bool) -> Nic {
        Nic {
            name: name.into(),
            index: last.into(),
            mac: [2, 0, 0, 0, 0, last],
            carrier,
        }
    }

    fn usable(situation: Situation<'_>) -> Vec<&str> {
        let nics = situation.nics;
        nics.iter()
            .filter(|nic| situation.may_use(nic))
            .map(|nic| nic.name.as_str())
            .collect()
    }

    #[test]
    fn the_boot_nic_is_first_and_the_others_come_when_it_had_its_time() {
        let nics = [nic("eth0", 1, true), nic("eth1", 2, false)];
        let at = |seconds, asking: Option<u64>| Situation {
            nics: &nics,
            bootif: Some(nics[1].mac),
            device: None,
            elapsed: Duration::from_secs(seconds),
            asking: asking.map(Duration::from_secs),
        };
        assert_eq!(usable(at(0, None)), ["eth1"]);
        assert_eq!(usable(at(59, None)), ["eth1"]);
        assert_eq!(usable(at(60, None)), ["eth0", "eth1"]);
        // Its link came at 50 s: it gets its time to ask.
        assert_eq!(usable(at(70, Some(20))), ["eth1"]);
        assert_eq!(usable(at(95, Some(45))), ["eth0", "eth1"]);
    }

    #[test]
    fn of_two_nics_of_the_boot_ones_address_the_one_with_a_link_does() {
        let mut nics = [
            nic("eth0", 1, false),
            nic("eth1", 1, true),
            nic("eth2", 3, true),
        ];
        nics[1].index = 2;
        let at = |seconds, asking: Option<u64>| Situation {
            nics: &nics,
            bootif: Some(nics[0].mac),
            device: None,
            elapsed: Duration::from_secs(seconds),
            asking: asking.map(Duration::from_secs),
        };
        assert_eq!(usable(at(0, None)), ["eth0", "eth1"]);
        assert_eq!(usable(at(70, None)), ["eth0", "eth1"]);
        assert_eq!(usable(at(70, Some(45))), ["eth0", "eth1", "eth2"]);
    }

    #[test]
    fn a_boot_nic_that_is_not_there_is_waited_for_a_while() {
        let nics = [nic("eth0", 1, true)];
        let at = |seconds| Situation {
            nics: &nics,
            bootif: Some([2, 0, 0, 0, 0, 9]),
            device: None,
            elapsed: Duration::from_secs(seconds),
            asking: None,
        };
        assert!(usable(at(14)).is_empty());
        assert_eq!(usable(at(15)), ["eth0"]);
    }

    #[test]
    fn without_a_name_all_are_used_and_with_a_device_only_that() {
        let nics = [nic("eth0", 1, true), nic("eth1", 2, true)];
        let situation = Situation {
            nics: &nics,
            bootif: None,
            device: None,
            elapsed: Duration::ZERO,
            asking: None,
        };
        assert_eq!(usable(situation), ["eth0", "eth1"]);
        let named = Situation {
            device: Some("eth1"),
            elapsed: Duration::from_secs(500),
            ..situation
        };
        assert_eq!(usable(named), ["eth1"]);
    }

    #[test]
    fn an_address_reads_back() {
        assert_eq!(
            mac("52:54:00:12:34:ab"),
            Some([0x52, 0x54, 0, 0x12, 0x34, 0xab])
        );
        assert_eq!(
            shown([0x52, 0x54, 0, 0x12, 0x34, 0xab]),
            "52:54:00:12:34:ab"
        );
        assert_eq!(mac("52:54:00"), None);
    }
}
