//! What the kernel command line asks of init itself: consoles, the NIC, a static address, a VLAN. A mistake
//! never stops the machine: the option is left out, and a complaint says so.
use std::net::Ipv4Addr;

use bcd::config::cmdline::{CommandLine, shown};
use bcd::config::mac::Mac;

/// A static configuration: the kernel's `ip=` (Documentation/admin-guide/nfs/nfsroot.rst).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Static {
    pub address: Ipv4Addr,
    pub prefix: u8,
    pub router: Option<Ipv4Addr>,
    /// The NIC's name; any with a link when it is not named.
    pub device: Option<String>,
    pub dns: Vec<Ipv4Addr>,
    pub ntp: Vec<Ipv4Addr>,
}

/// What the command line asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// Names below /dev, in the line's order.
    pub consoles: Vec<String>,
    /// The hardware address of the NIC that the machine booted from.
    pub bootif: Option<[u8; 6]>,
    pub address: Option<Static>,
    /// `ip=off`: configure nothing.
    pub no_network: bool,
    pub vlan: Option<u16>,
    /// The NIC below the VLAN.
    pub vlan_device: Option<String>,
    /// A shell on every console.
    pub debug: bool,
    /// What was not understood, each a sentence with what is done instead.
    pub complaints: Vec<String>,
}

impl Options {
    /// Reads the command line.
    pub fn new(line: &CommandLine) -> Self {
        let mut options = Self {
            debug: line.has("bc.debug"),
            ..Self::default()
        };
        if let Some(cut) = line.cut() {
            options.complaints.push(cut.to_string());
        }
        for console in line.values("console") {
            let name = console.split(',').next().unwrap_or_default();
            if is_device(name) {
                if !options.consoles.iter().any(|known| known == name) {
                    options.consoles.push(name.to_owned());
                }
            } else if !matches!(name, "" | "null") {
                options.complain("console", name, "it is left out");
            }
        }
        if let Some(value) = options.take(line, "BOOTIF") {
            options.bootif = Mac::parse(&value).map(|mac| mac.0);
            if options.bootif.is_none() {
                options.complain("BOOTIF", &value, "every NIC is tried");
            }
        }
        if let Some(value) = options.take(line, "vlan") {
            match vlan(&value) {
                Some((id, device)) => {
                    options.vlan = Some(id);
                    options.vlan_device = device;
                }
                None => options.complain("vlan", &value, "the network is used untagged"),
            }
        }
        if let Some(value) = options.take(line, "ip") {
            options.ip(&value);
        }
        options
    }

    fn ip(&mut self, value: &str) {
        match value {
            "off" | "none" => self.no_network = true,
            "dhcp" | "on" | "any" | "both" | "bootp" | "auto" | "auto6" => {}
            _ => match fixed(value) {
                Some(Some(address)) => self.address = Some(address),
                // `ip=eth0:dhcp` and the kernel's form with nothing but a device and dhcp.
                Some(None) => {}
                None => self.complain("ip", value, "DHCP is used"),
            },
        }
    }

    /// The value of a parameter that may stand once; doubled, the first counts and a complaint says so.
    fn take(&mut self, line: &CommandLine, name: &str) -> Option<String> {
        match line.one(name) {
            Ok(value) => value.map(str::to_owned),
            Err(doubled) => {
                self.complaints
                    .push(format!("{doubled}; the first is used"));
                line.values(name).next().map(str::to_owned)
            }
        }
    }

    fn complain(&mut self, name: &str, value: &str, instead: &str) {
        let value = shown(name, value);
        self.complaints
            .push(format!("{name}={value} is not understood: {instead}"));
    }
}

/// A name that can stand below /dev.
fn is_device(name: &str) -> bool {
    (1..=31).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

/// A network interface's name (IFNAMSIZ, without its NUL).
fn is_interface(name: &str) -> bool {
    (1..=15).contains(&name.len())
        && !matches!(name, "." | "..")
        && name
            .bytes()
            .all(|b| b.is_ascii_graphic() && b != b'/' && b != b':')
}

/// `5`, or `NAME:DEVICE` with the id at the name's end (`vlan5:eth0`, `eth0.5:eth0`), as dracut has it.
fn vlan(value: &str) -> Option<(u16, Option<String>)> {
    let (name, device) = match value.split_once(':') {
        Some((name, device)) => (name, Some(device)),
        None => (value, None),
    };
    let digits = name.trim_start_matches(|c: char| !c.is_ascii_digit());
    let digits = digits.rsplit('.').next().unwrap_or(digits);
    let id: u16 = digits.parse().ok().filter(|id| (1..=4094).contains(id))?;
    match device {
        Some(device) if !is_interface(device) => None,
        device => Some((id, device.map(str::to_owned))),
    }
}

/// `client:server:router:mask:host:device:method:dns0:dns1:ntp0`; `Some(None)` for DHCP said in this form.
fn fixed(value: &str) -> Option<Option<Static>> {
    let fields: Vec<&str> = value.split(':').collect();
    if let [device, method] = fields.as_slice() {
        return (is_interface(device) && *method == "dhcp").then_some(None);
    }
    let field = |index: usize| fields.get(index).copied().unwrap_or_default();
    let optional = |index: usize| match field(index) {
        "" => Some(None),
        text => text.parse::<Ipv4Addr>().ok().map(Some),
    };
    if fields.len() > 10 {
        return None;
    }
    if field(0).is_empty() {
        return matches!(field(6), "dhcp" | "on" | "any").then_some(None);
    }
    let address: Ipv4Addr = field(0).parse().ok()?;
    let prefix = match field(3) {
        "" => 24,
        text => prefix(text)?,
    };
    let device = match field(5) {
        "" => None,
        name if is_interface(name) => Some(name.to_owned()),
        _ => return None,
    };
    if !matches!(field(6), "" | "off" | "none" | "static") {
        return None;
    }
    Some(Some(Static {
        address,
        prefix,
        router: optional(2)?,
        device,
        dns: [optional(7)?, optional(8)?].into_iter().flatten().collect(),
        ntp: optional(9)?.into_iter().collect(),
    }))
}

/// A mask, dotted or as a number of bits.
fn prefix(text: &str) -> Option<u8> {
    if let Ok(bits) = text.parse::<u8>() {
        return (bits <= 32).then_some(bits);
    }
    let mask = u32::from(text.parse::<Ipv4Addr>().ok()?);
    let whole = mask.leading_ones() + mask.trailing_zeros() == 32 || mask == 0;
    u8::try_from(mask.leading_ones()).ok().filter(|_| whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Options {
        Options::new(&CommandLine::parse(line.as_bytes()))
    }

    #[test]
    fn every_console_is_taken_once_and_none_outside_dev() {
        let options =
            read("console=tty0 console=ttyS0,115200n8 console=ttyS0 console= console=../x");
        assert_eq!(options.consoles, ["tty0", "ttyS0"]);
        assert_eq!(options.complaints.len(), 1);
    }

    #[test]
    fn the_boot_nic_is_read_in_every_spelling() {
        let mac = Some([0x52, 0x54, 0, 0x12, 0x34, 0xab]);
        for line in [
            "BOOTIF=01-52-54-00-12-34-ab",
            "BOOTIF=52:54:00:12:34:AB",
            "BOOTIF=01:52:54:00:12:34:ab",
        ] {
            assert_eq!(read(line).bootif, mac, "{line}");
        }
        for line in ["BOOTIF=01-52", "BOOTIF=00:00:00:00:00:00", "BOOTIF=x"] {
            let options = read(line);
            assert_eq!(
                (options.bootif, options.complaints.len()),
                (None, 1),
                "{line}"
            );
        }
    }

    #[test]
    fn a_static_address_is_read_as_the_kernel_does() {
        let options = read("ip=192.0.2.5::192.0.2.1:255.255.255.0:host:eth0:off:192.0.2.53");
        let address = options.address.unwrap();
        assert_eq!(
            (address.address, address.prefix),
            (Ipv4Addr::new(192, 0, 2, 5), 24)
        );
        assert_eq!(address.router, Some(Ipv4Addr::new(192, 0, 2, 1)));
        assert_eq!(address.device.as_deref(), Some("eth0"));
        assert_eq!(address.dns, [Ipv4Addr::new(192, 0, 2, 53)]);
        for line in ["ip=dhcp", "ip=eth0:dhcp", "ip=:::::eth0:dhcp"] {
            let options = read(line);
            assert_eq!(
                (options.address, options.complaints.len()),
                (None, 0),
                "{line}"
            );
        }
        assert!(read("ip=off").no_network);
        for line in [
            "ip=192.0.2.5:::255.0.255.0",
            "ip=nonsense",
            "ip=1.2.3.4:::::bad/name",
        ] {
            let options = read(line);
            assert_eq!(
                (options.address, options.complaints.len()),
                (None, 1),
                "{line}"
            );
        }
    }

    #[test]
    fn a_vlan_is_read_in_every_spelling() {
        for (line, device) in [
            ("vlan=5", None),
            ("vlan=vlan5:eth0", Some("eth0")),
            ("vlan=eth0.0005:eth0", Some("eth0")),
        ] {
            let options = read(line);
            assert_eq!(
                (options.vlan, options.vlan_device.as_deref()),
                (Some(5), device),
                "{line}"
            );
        }
        for line in ["vlan=0", "vlan=4095", "vlan=x", "vlan=5:a/b"] {
            let options = read(line);
            assert_eq!(
                (options.vlan, options.complaints.len()),
                (None, 1),
                "{line}"
            );
        }
    }

    #[test]
    fn a_complaint_shows_no_secret_that_a_quote_has_swallowed() {
        for name in ["console", "BOOTIF", "vlan", "ip"] {
            let options = read(&format!(
                "{name}=\"a/b bc.token=bcjt_jt_1.hush\" {name}=bcjt_hush/"
            ));
            assert!(!options.complaints.is_empty(), "{name}");
            let all = options.complaints.concat();
            assert!(!all.contains("hush") && !all.contains("bcjt"), "{all}");
        }
    }

    #[test]
    fn a_doubled_option_is_named_and_the_first_is_used() {
        let options = read("vlan=5 vlan=6");
        assert_eq!(options.vlan, Some(5));
        assert!(options.complaints[0].contains("\"5\"") && options.complaints[0].contains("\"6\""));
    }
}
