//! Names for disks that last, formed as udev forms those of `/dev/disk/by-id` and, where a disk has
//! no identifier, of `/dev/disk/by-path` (systemd's `60-persistent-storage.rules` and `path_id`).
use super::super::nics::pci_address;
use super::super::tree::{TEXT, Tree};

/// Where a disk is in sysfs.
pub struct Place<'a> {
    pub tree: &'a Tree,
    /// Of `/sys/block/NAME`: `../devices/pci0000:00/…/block/sda`.
    pub path: &'a str,
    /// `sys/block/NAME`.
    pub base: &'a str,
}

/// A text as udev puts it into a name: what is ASCII and no letter, digit or one of `#+-.:=@_` becomes an
/// underscore, several blanks one.
pub fn whole(text: &str) -> String {
    let mut name = String::with_capacity(text.len());
    for word in text.split_ascii_whitespace() {
        if !name.is_empty() {
            name.push('_');
        }
        name.extend(word.chars().map(|c| match c {
            c if !c.is_ascii() || c.is_ascii_alphanumeric() || "#+-.:=@_".contains(c) => c,
            _ => '_',
        }));
    }
    name
}

impl Place<'_> {
    pub fn text(&self, file: &str) -> String {
        self.tree.text(&[self.base, "/", file].concat())
    }

    pub fn bytes(&self, file: &str, max: usize) -> Vec<u8> {
        let path = [self.base, "/", file].concat();
        self.tree.bytes(&path, max).unwrap_or_default()
    }

    /// The serial number of the USB device that the disk is in; empty where there is none.
    pub fn usb_serial(&self) -> String {
        let serial = || {
            // The interface, `1-1.2:1.0`, stands below the device, `1-1.2`.
            let (device, _) = self.usb_interface()?.split_once(':')?;
            let end = self.path.find(&["/", device, "/"].concat())? + 1 + device.len();
            let up = self.path.get(..end)?.strip_prefix("../")?;
            Some(self.tree.text(&["sys/", up, "/serial"].concat()))
        };
        serial().unwrap_or_default()
    }

    /// `-TARGET:LUN` of a SCSI disk: several of them may be in one USB device.
    pub fn instance(&self) -> String {
        match self.scsi_address() {
            Some((_, _, target, lun)) => ["-", target, ":", lun].concat(),
            None => String::new(),
        }
    }

    /// The way a SCSI disk is connected.
    pub fn scsi_transport(&self, is_ata: bool) -> &'static str {
        let has = |part: &str| self.path.contains(part);
        if self.usb_interface().is_some() {
            "usb"
        } else if has("/ata") && is_ata {
            "sata"
        } else if has("/end_device-") {
            "sas"
        } else if has("/rport-") {
            "fc"
        } else if has("/session") {
            "iscsi"
        } else {
            "scsi"
        }
    }

    /// The place in the machine: bus address, port and unit. Empty when there is none.
    pub fn by_path(&self) -> String {
        let parent = match (pci_address(self.path), self.component(is_platform)) {
            (Some(address), _) => ["pci-", address].concat(),
            (None, Some(device)) if device.starts_with("vbd-") => {
                return ["xen-", device].concat();
            }
            (None, Some(device)) => ["platform-", device].concat(),
            (None, None) => return String::new(),
        };
        let rest = if self.path.contains("/nvme/") {
            ["-nvme-", &self.text("nsid")].concat()
        } else if let Some(ata) = self.component(|name| numbered(name, "ata")) {
            let port = ["sys/class/ata_port/", ata, "/port_no"].concat();
            ["-ata-", &self.tree.text(&port)].concat()
        } else if let Some((host, channel, target, lun)) = self.scsi_address() {
            let usb = match self.usb_interface().and_then(|name| name.split_once('-')) {
                Some((_, port)) => ["-usb-0:", port].concat(),
                None => String::new(),
            };
            let host = self.host_of_controller(host);
            [&usb, "-scsi-", &host, ":", channel, ":", target, ":", lun].concat()
        } else {
            String::new()
        };
        let name = [parent, rest].concat();
        match name.len() {
            0..=TEXT => whole(&name),
            _ => String::new(),
        }
    }

    fn component(&self, fits: impl Fn(&str) -> bool) -> Option<&str> {
        self.path.split('/').find(|name| fits(name))
    }

    fn usb_interface(&self) -> Option<&str> {
        self.component(|name| {
            let Some((bus, rest)) = name.split_once('-') else {
                return false;
            };
            let Some((port, interface)) = rest.split_once(':') else {
                return false;
            };
            [bus, port, interface].iter().all(|part| {
                !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit() || b == b'.')
            })
        })
    }

    /// `host:channel:target:lun`.
    fn scsi_address(&self) -> Option<(&str, &str, &str, &str)> {
        let name = self.path.rsplit("/block/").nth(1)?.rsplit('/').next()?;
        let mut parts = name.split(':');
        let address = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let [a, b, c, d] = [address.0, address.1, address.2, address.3];
        let is_number = |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        let fits = parts.next().is_none() && [a, b, c, d].iter().all(is_number);
        fits.then_some(address)
    }

    /// The kernel numbers hosts as they come up; what lasts is the number among those of one controller.
    fn host_of_controller(&self, host: &str) -> String {
        let own = || {
            let at = self.path.find(&["/host", host, "/"].concat())?;
            let parent = self.path.get(..at)?.strip_prefix("../")?;
            let names = self.tree.names(&["sys/", parent].concat(), 4096).ok()?;
            let first = names
                .iter()
                .filter_map(|name| name.strip_prefix("host")?.parse().ok())
                .min()?;
            host.parse::<u32>().ok()?.checked_sub(first)
        };
        own().map_or_else(|| host.to_owned(), |number| number.to_string())
    }
}

/// `ata5`.
fn numbered(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix)
        .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
}

/// `a003e00.virtio_mmio`, `fe340000.mmc`, `vbd-51712`.
fn is_platform(name: &str) -> bool {
    let is_address = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_hexdigit());
    match name.split_once('.') {
        Some((address, device)) => {
            is_address(address) && device.starts_with(|c: char| c.is_ascii_alphabetic())
        }
        None => name.starts_with("vbd-"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::tree::tests::Fixture;
    use super::*;

    #[test]
    fn texts_become_names_as_udev_makes_them() {
        for (text, name) in [
            ("  Samsung  SSD 860 EVO ", "Samsung_SSD_860_EVO"),
            ("PERC H730P/Mini", "PERC_H730P_Mini"),
            ("a#b+c-d.e:f=g@h_i", "a#b+c-d.e:f=g@h_i"),
            ("x$(y)\"z", "x__y__z"),
            ("", ""),
        ] {
            assert_eq!(whole(text), name);
        }
    }

    #[test]
    fn the_second_host_of_a_controller_is_its_second_wherever_the_kernel_began_to_count() {
        let device = "devices/pci0000:00/0000:00:05.0";
        let host = |number| format!("sys/{device}/host{number}/x");
        let fixture = Fixture::new(&[]);
        for number in [7, 8] {
            fixture.put(&host(number), b"");
        }
        let path = format!("../{device}/host8/target8:0:3/8:0:3:1/block/sdc");
        let place = Place {
            tree: &fixture.tree,
            path: &path,
            base: "sys/block/sdc",
        };
        assert_eq!(place.by_path(), "pci-0000:00:05.0-scsi-1:0:3:1");
    }

    #[test]
    fn paths_of_nonsense_have_no_place() {
        let fixture = Fixture::new(&[]);
        for path in [
            "",
            "/",
            "../devices/virtual/x",
            "/block/",
            "a:b:c:d/block/x",
            "1-:1/2-/3:",
        ] {
            let place = Place {
                tree: &fixture.tree,
                path,
                base: "sys/block/x",
            };
            assert_eq!(place.by_path(), "", "{path}");
            assert_eq!(place.usb_serial() + &place.instance(), "");
        }
    }
}
