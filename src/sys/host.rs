//! What the machine says of itself: names, numbers and sizes from `/proc`, `/sys` and uname.
//! Claims, not proof. Whatever is missing or unreadable is left empty: a join never fails for it.
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The most network cards named, lest a host with thousands of interfaces fill the request.
const MAX_MACS: usize = 64;
/// The longest text, in bytes; docs/protocol.md refuses longer ones.
const MAX_TEXT: usize = 256;

/// The facts; empty or 0 where the machine does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    pub hostname: String,
    pub machine_id: String,
    pub system_vendor: String,
    pub system_product: String,
    pub system_serial: String,
    pub system_uuid: String,
    /// Of physical cards, lower case, sorted, each once.
    pub macs: Vec<String>,
    /// As `uname -m` says.
    pub architecture: String,
    /// As `uname -r` says.
    pub kernel: String,
    /// Logical processors online.
    pub cpus: u32,
    pub memory_bytes: u64,
    pub has_tpm: bool,
}

/// Collects the facts of this machine.
pub fn facts() -> Facts {
    let uname = rustix::system::uname();
    let info = rustix::system::sysinfo();
    let facts = facts_below(Path::new("/"));
    Facts {
        hostname: uname.nodename().to_string_lossy().into_owned(),
        architecture: uname.machine().to_string_lossy().into_owned(),
        kernel: uname.release().to_string_lossy().into_owned(),
        // The field's width differs between architectures.
        #[allow(clippy::useless_conversion, clippy::unnecessary_fallible_conversions)]
        memory_bytes: u64::try_from(info.totalram)
            .unwrap_or(0)
            .saturating_mul(u64::from(info.mem_unit)),
        ..facts
    }
}

/// The facts that files tell, from the files below `root`.
fn facts_below(root: &Path) -> Facts {
    let dmi = |name: &str| line(&root.join("sys/class/dmi/id").join(name));
    // Machines without DMI (most arm64 boards) describe themselves in the device tree.
    let or_tree = |found: String, name: &str| {
        if found.is_empty() {
            line(&root.join("proc/device-tree").join(name))
        } else {
            found
        }
    };
    Facts {
        machine_id: line(&root.join("etc/machine-id")),
        system_vendor: dmi("sys_vendor"),
        system_product: or_tree(dmi("product_name"), "model"),
        system_serial: or_tree(dmi("product_serial"), "serial-number"),
        system_uuid: dmi("product_uuid").to_ascii_lowercase(),
        macs: macs(&root.join("sys/class/net")),
        cpus: processors(&line(&root.join("sys/devices/system/cpu/online"))),
        has_tpm: root.join("dev/tpmrm0").exists() || root.join("sys/class/tpm/tpm0").exists(),
        ..Facts::default()
    }
}

/// The first line of a small file, at most 256 bytes, without blanks around it and control
/// characters in it.
fn line(path: &Path) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(path) {
        // A file that fails half-way says nothing.
        if file.take(MAX_TEXT as u64).read_to_end(&mut bytes).is_err() {
            bytes.clear();
        }
    }
    let text = String::from_utf8_lossy(&bytes);
    let first = text.split(['\n', '\0']).next().unwrap_or_default();
    let mut text: String = first.chars().filter(|c| !c.is_control()).collect();
    // What was no text has grown in becoming some.
    while text.len() > MAX_TEXT {
        text.pop();
    }
    text.trim().to_owned()
}

fn macs(net: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(net) else {
        return Vec::new();
    };
    let mut macs: Vec<String> = entries
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        // Only cards have a device behind them; bridges, bonds and veths have none.
        .filter(|card| card.join("device").exists())
        // ARPHRD_ETHER.
        .filter(|card| line(&card.join("type")) == "1")
        .map(|card| line(&card.join("address")).to_ascii_lowercase())
        .filter(|mac| mac.len() == 17 && mac != "00:00:00:00:00:00")
        .collect();
    macs.sort_unstable();
    macs.dedup();
    macs.truncate(MAX_MACS);
    macs
}

/// How many processors a list such as `0-3,8` names.
fn processors(list: &str) -> u32 {
    list.split(',')
        .filter_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
            last.checked_sub(first)?.checked_add(1)
        })
        .fold(0, u32::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn this_machine_has_a_kernel_processors_and_memory() {
        let facts = facts();
        assert!(!facts.kernel.is_empty() && !facts.architecture.is_empty());
        assert!(facts.cpus > 0 && facts.memory_bytes > 1 << 20);
    }

    #[test]
    fn nothing_to_read_gives_empty_facts() {
        let root = crate::sys::fs::tests::scratch("facts-none");
        assert_eq!(facts_below(&root), Facts::default());
    }

    #[test]
    fn facts_are_read_trimmed_and_bounded() {
        let root = crate::sys::fs::tests::scratch("facts");
        put(
            &root,
            "etc/machine-id",
            "0123456789abcdef0123456789abcdef\n",
        );
        put(
            &root,
            "sys/class/dmi/id/sys_vendor",
            "  Super\x07micro \nsecond line\n",
        );
        put(&root, "sys/class/dmi/id/product_name", &"x".repeat(10_000));
        put(&root, "sys/class/dmi/id/product_uuid", "ABCD-EF\n");
        put(&root, "proc/device-tree/model", "unused\0");
        put(&root, "proc/device-tree/serial-number", "4711\0");
        put(&root, "sys/devices/system/cpu/online", "0-3,8\n");
        put(&root, "dev/tpmrm0", "");
        let facts = facts_below(&root);
        assert_eq!(facts.machine_id, "0123456789abcdef0123456789abcdef");
        assert_eq!(facts.system_vendor, "Supermicro");
        assert_eq!(facts.system_product.len(), 256);
        put(&root, "sys/class/dmi/id/product_serial", "");
        std::fs::write(root.join("sys/class/dmi/id/product_serial"), [0xff; 256]).unwrap();
        assert_eq!(facts_below(&root).system_serial.len(), 255);
        assert_eq!(facts.system_uuid, "abcd-ef");
        assert_eq!(facts.system_serial, "4711");
        assert_eq!(facts.cpus, 5);
        assert!(facts.has_tpm);
    }

    #[test]
    fn only_physical_ethernet_cards_are_named_each_once() {
        let root = crate::sys::fs::tests::scratch("macs");
        for (card, device, kind, address) in [
            ("eth1", true, "1", "AA:BB:CC:00:00:02"),
            ("eth0", true, "1", "aa:bb:cc:00:00:01"),
            ("eth2", true, "1", "aa:bb:cc:00:00:01"),
            ("br0", false, "1", "aa:bb:cc:00:00:03"),
            ("ib0", true, "32", "aa:bb:cc:00:00:04"),
            ("usb0", true, "1", "00:00:00:00:00:00"),
        ] {
            put(&root, &format!("sys/class/net/{card}/address"), address);
            put(&root, &format!("sys/class/net/{card}/type"), kind);
            if device {
                put(
                    &root,
                    &format!("sys/class/net/{card}/device/vendor"),
                    "0x8086",
                );
            }
        }
        assert_eq!(
            facts_below(&root).macs,
            ["aa:bb:cc:00:00:01", "aa:bb:cc:00:00:02"]
        );
    }

    #[test]
    fn a_processor_list_is_counted_and_nonsense_counts_nothing() {
        for (list, count) in [
            ("0", 1),
            ("0-63", 64),
            ("0-1,4-5,7", 5),
            ("", 0),
            ("x", 0),
            ("5-1", 0),
            ("0-4294967295", 0),
        ] {
            assert_eq!(processors(list), count, "{list}");
        }
    }
}
