//! Where the root file system is: through device mappings and RAID arrays down to the partitions and disks below.
//!
//! A PARTUUID comes from the kernel (since 6.13), from udev, or from the command line that started this boot: whoever of
//! them says it first.
use super::tree::{Tree, clean};
use crate::proto::{Disk, RootFilesystem, RootPart};

/// Of mountinfo, of a device's own words, and of udev's.
const MOUNTS: usize = 256 * 1024;
const WORDS: usize = 16 * 1024;
/// Devices that are looked at.
const DEVICES: usize = 64;

/// `disks` are all of the machine. `None`: the root file system is on no disk.
pub(super) fn read(tree: &Tree, disks: &[Disk], command_line: &str) -> Option<RootFilesystem> {
    let mounts = tree.bytes("proc/self/mountinfo", MOUNTS).ok()?;
    let mounted = mounted(&String::from_utf8_lossy(&mounts))?;
    // btrfs gives its mounts numbers of no device: there the source says which.
    let device = tree
        .link_name(&["sys/dev/block/", &mounted.number].concat())
        .or_else(|| named(tree, &mounted.source))?;
    let mut parts = Vec::new();
    below(tree, &device, &mut Vec::new(), &mut parts);
    parts.sort_unstable_by(|a: &RootPart, b| {
        (&a.kernel_name, a.partition).cmp(&(&b.kernel_name, b.partition))
    });
    parts.dedup();
    if let [only] = parts.as_mut_slice()
        && only.partition != 0
        && only.partuuid.is_empty()
    {
        let roots = command_line.split(' ').rev();
        let mut given = roots.filter_map(|word| word.strip_prefix("root=PARTUUID="));
        only.partuuid = given.next().unwrap_or_default().to_ascii_lowercase();
    }
    for part in &mut parts {
        let disk = disks
            .iter()
            .find(|disk| disk.kernel_name == part.kernel_name);
        part.disk = disk
            .map(|disk| disk.stable_name.clone())
            .unwrap_or_default();
    }
    (!parts.is_empty()).then_some(RootFilesystem {
        device,
        r#type: mounted.kind,
        parts,
    })
}

#[derive(Debug, PartialEq, Eq)]
struct Mounted {
    number: String,
    source: String,
    kind: String,
}

/// What is mounted on "/" last, as proc_pid_mountinfo(5) has it.
fn mounted(mounts: &str) -> Option<Mounted> {
    let lines = mounts.lines().rev();
    lines.into_iter().find_map(|line| {
        let mut fields = line.split(' ');
        let (number, at) = (fields.nth(2)?, fields.nth(1)?);
        if at != "/" {
            return None;
        }
        // Optional fields end with "-".
        let mut rest = fields.skip_while(|field| *field != "-").skip(1);
        let (kind, source) = (rest.next()?, rest.next()?);
        let plain = number
            .bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b':');
        plain.then(|| Mounted {
            number: number.to_owned(),
            source: clean(source.as_bytes()),
            kind: clean(kind.as_bytes()),
        })
    })
}

/// The device at `/dev/NAME`, or where that leads.
fn named(tree: &Tree, source: &str) -> Option<String> {
    let path = source.strip_prefix('/')?;
    let link = tree.link(path);
    let name = link.as_deref().unwrap_or(path).rsplit('/').next()?;
    is_device(tree, name).then(|| name.to_owned())
}

fn is_device(tree: &Tree, name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && tree.exists(&["sys/class/block/", name].concat())
}

/// Adds what `device` stands on, unless it was `seen`: each device is looked at once, however they stand on each other.
fn below(tree: &Tree, device: &str, seen: &mut Vec<String>, parts: &mut Vec<RootPart>) {
    let known = seen.iter().any(|other| other == device);
    if known || seen.len() >= DEVICES || !is_device(tree, device) {
        return;
    }
    seen.push(device.to_owned());
    let at = ["sys/class/block/", device].concat();
    let slaves = [&at, "/slaves"].concat();
    let slaves = tree.names(&slaves, DEVICES).unwrap_or_default();
    for slave in &slaves {
        below(tree, slave, seen, parts);
    }
    if !slaves.is_empty() {
        return;
    }
    let partition = tree.number(&[&at, "/partition"].concat());
    let mut part = RootPart {
        kernel_name: device.to_owned(),
        partition: partition
            .and_then(|number| u32::try_from(number).ok())
            .unwrap_or(0),
        ..RootPart::default()
    };
    if part.partition != 0 {
        // A partition's directory is in its disk's.
        let path = tree.link(&at).unwrap_or_default();
        let mut names = path.rsplit('/').skip(1);
        part.kernel_name = names
            .next()
            .map(|name| clean(name.as_bytes()))
            .unwrap_or_default();
        part.partuuid = partuuid(tree, &at);
    }
    parts.push(part);
}

fn partuuid(tree: &Tree, at: &str) -> String {
    let number = tree.text(&[at, "/dev"].concat());
    let places = [
        ([at, "/uevent"].concat(), "PARTUUID="),
        (
            ["run/udev/data/b", &number].concat(),
            "E:ID_PART_ENTRY_UUID=",
        ),
    ];
    let found = places.iter().find_map(|(path, key)| {
        let words = tree.bytes(path, WORDS).ok()?;
        let words = String::from_utf8_lossy(&words).into_owned();
        let word = words.lines().find_map(|line| line.strip_prefix(key))?;
        Some(clean(word.as_bytes()).to_ascii_lowercase())
    });
    found.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::tree::tests::Fixture;
    use super::*;

    const NVME: &str = "../../devices/pci0000:00/0000:01:00.0/nvme/nvme0/nvme0n1";

    fn machine(mounts: &str) -> Fixture {
        let fixture = Fixture::new(&[
            ("proc/self/mountinfo", mounts.as_bytes()),
            (
                "sys/devices/pci0000:00/0000:01:00.0/nvme/nvme0/nvme0n1/dev",
                b"259:0\n",
            ),
            (
                "sys/devices/pci0000:00/0000:01:00.0/nvme/nvme0/nvme0n1/nvme0n1p2/dev",
                b"259:2\n",
            ),
            (
                "sys/devices/pci0000:00/0000:01:00.0/nvme/nvme0/nvme0n1/nvme0n1p2/partition",
                b"2\n",
            ),
            (
                "run/udev/data/b259:2",
                b"E:ID_FS_TYPE=ext4\nE:ID_PART_ENTRY_UUID=AAAA-02\n",
            ),
        ]);
        for (link, to) in [
            ("sys/class/block/nvme0n1", NVME.to_owned()),
            ("sys/class/block/nvme0n1p2", format!("{NVME}/nvme0n1p2")),
            ("sys/dev/block/259:2", format!("{NVME}/nvme0n1p2")),
        ] {
            fixture.put(&format!("{link} -> {to}"), b"");
        }
        fixture
    }

    fn disks() -> Vec<Disk> {
        vec![Disk {
            kernel_name: "nvme0n1".to_owned(),
            stable_name: "nvme-eui.1".to_owned(),
            ..Disk::default()
        }]
    }

    fn part() -> RootPart {
        RootPart {
            disk: "nvme-eui.1".to_owned(),
            kernel_name: "nvme0n1".to_owned(),
            partition: 2,
            partuuid: "aaaa-02".to_owned(),
        }
    }

    #[test]
    fn the_root_is_a_partition_of_a_disk() {
        let mounts = "21 1 0:5 / /proc rw - proc proc rw\n\
                      22 1 259:2 / / rw,relatime shared:1 master:2 - ext4 /dev/root rw\n";
        let root = read(&machine(mounts).tree, &disks(), "").unwrap();
        assert_eq!(
            (root.device.as_str(), root.r#type.as_str()),
            ("nvme0n1p2", "ext4")
        );
        assert_eq!(root.parts, [part()]);
    }

    #[test]
    fn btrfs_and_mappings_lead_to_their_disks() {
        let btrfs = "22 1 0:31 /@ / rw - btrfs /dev/nvme0n1p2 rw,subvol=/@\n";
        assert_eq!(
            read(&machine(btrfs).tree, &disks(), "").unwrap().parts,
            [part()]
        );
        let mapped = "22 1 0:31 / / rw - xfs /dev/mapper/vg-root rw\n";
        let fixture = machine(mapped);
        fixture.put("dev/mapper/vg-root -> ../dm-1", b"");
        for (at, below) in [("dm-1", "dm-0"), ("dm-0", "nvme0n1p2")] {
            fixture.put(&format!("sys/class/block/{at}/slaves/{below}/x"), b"");
        }
        let root = read(&fixture.tree, &disks(), "").unwrap();
        assert_eq!(
            (root.device.as_str(), root.parts.as_slice()),
            ("dm-1", &[part()][..])
        );
        // Devices that stand on each other end somewhere.
        fixture.put("sys/class/block/dm-0/slaves/dm-1/x", b"");
        assert_eq!(read(&fixture.tree, &disks(), "").unwrap().parts, [part()]);
        // Nor is any looked at once more for each way to it.
        for (at, below) in (0..60_u32).flat_map(|at| (0..60_u32).map(move |below| (at, below))) {
            fixture.put(&format!("sys/class/block/dm-{at}/slaves/dm-{below}/x"), b"");
        }
        assert_eq!(read(&fixture.tree, &disks(), "").unwrap().parts, [part()]);
    }

    #[test]
    fn without_udev_the_kernel_or_its_command_line_says_which() {
        let mounts = "22 1 259:2 / / rw - ext4 /dev/root rw\n";
        let fixture = machine(mounts);
        fixture.put("run/udev/data/b259:2", b"E:ID_FS_TYPE=ext4\n");
        let said = |line: &str| {
            read(&fixture.tree, &disks(), line).unwrap().parts[0]
                .partuuid
                .clone()
        };
        assert_eq!(said("ro quiet"), "");
        assert_eq!(said("root=PARTUUID=X root=PARTUUID=BBBB-02 ro"), "bbbb-02");
        let uevent = "sys/class/block/nvme0n1p2/uevent";
        fixture.put(uevent, b"DEVNAME=nvme0n1p2\nPARTUUID=cccc-02\n");
        assert_eq!(said("root=PARTUUID=BBBB-02"), "cccc-02");
    }

    #[test]
    fn what_is_on_no_disk_is_none() {
        for mounts in [
            "",
            "22 1 0:2 / / rw - rootfs rootfs rw\n",
            "22 1 0:31 / / rw - overlay overlay rw\n",
            "22 1 259:9 / / rw - ext4 /dev/root rw\n",
            "22 1 0:9 / / rw - nfs 10.0.0.1:/srv rw\n",
            "22 1 ../../x / / rw - ext4 /dev/.. rw\n",
            "22 1 0:3 / / rw -",
        ] {
            assert_eq!(read(&machine(mounts).tree, &disks(), ""), None, "{mounts}");
        }
    }
}
