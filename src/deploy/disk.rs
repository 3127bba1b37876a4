//! The disk that is meant: found by its stable name, held against what the control plane knew of it, and looked at
//! as a careful operator would before writing to it.
//!
//! What is in use without showing here (a member of a btrfs over several disks, a process that holds the device)
//! is found by the kernel: whoever writes opens the device with `O_EXCL`.
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::facts::disks;
use crate::facts::tree::Tree;
use crate::proto::{Disk, DiskTarget};
use crate::sys::block::Block;

/// Partitions and holders looked at, and bytes of the kernel's lists.
const NAMES: usize = 1024;
const LIST: usize = 4 * 1024 * 1024;
/// How often and how far apart a disk that is busy is tried.
const LOOKS: u32 = 10;
/// The longest text of a target.
const TEXT: usize = 256;
const LOOK: Duration = Duration::from_millis(300);

/// Whether an order for all disks of a machine is for this one too.
pub fn is_fixed(disk: &Disk) -> bool {
    !disk.removable && disk.transport != "usb"
}

/// Why a disk is no target. Nothing was written to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No disk has this name. What is virtual, optical or without a medium is none.
    NotFound,
    /// Several have it: paths to one disk, or a maker's mistake.
    Ambiguous(Vec<String>),
    /// It is not what it was when the order was made: what differs, and from what.
    Changed {
        what: &'static str,
        ordered: String,
        found: String,
    },
    ReadOnly,
    /// Removable, or behind USB: a stick, or a medium that a BMC shows.
    Removable,
    /// It, or one of its partitions, is mounted here.
    Mounted(String),
    /// It, or one of its partitions, is swapped to.
    Swap(String),
    /// Something is assembled from it: of which kind, and its name.
    Held(Holder, String),
    /// Something on this machine has claimed it: its path.
    Busy(String),
    /// It cannot be opened: its path, and why.
    NotOpened(String, String),
    /// What is at its path is another one by now.
    Replaced(String),
}

/// What holds a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    Raid,
    Multipath,
    Lvm,
    Crypt,
    Other,
}

impl Refusal {
    /// For programs.
    pub fn word(&self) -> &'static str {
        match self {
            Self::NotFound => "DiskNotFound",
            Self::Ambiguous(_) => "DiskAmbiguous",
            Self::Changed { .. } | Self::Replaced(_) => "DiskChanged",
            Self::ReadOnly => "DiskReadOnly",
            Self::Removable => "DiskRemovable",
            Self::Mounted(_) => "DiskMounted",
            Self::Swap(_) => "DiskIsSwap",
            Self::Held(Holder::Raid, _) => "DiskInRaid",
            Self::Held(Holder::Multipath, _) => "DiskIsMultipath",
            Self::Held(Holder::Lvm, _) => "DiskInLvm",
            Self::Held(..) => "DiskHeld",
            Self::Busy(_) => "DiskBusy",
            Self::NotOpened(..) => "DiskNotOpened",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound => f.write_str(
                "this machine has no such disk now: compare the name with the machine's facts",
            ),
            Self::Ambiguous(names) => {
                write!(f, "several disks have this name: {}", names.join(", "))
            }
            Self::Changed {
                what,
                ordered,
                found,
            } => write!(
                f,
                "it is another disk than the order means: its {what} is \"{found}\", and was \"{ordered}\" when the order was made"
            ),
            Self::Busy(path) => write!(
                f,
                "{path} is in use: something on this machine has claimed it"
            ),
            Self::NotOpened(path, why) => write!(f, "cannot open {path}: {why}"),
            Self::Replaced(path) => write!(
                f,
                "{path} is another disk than the one that was found under its name"
            ),
            Self::ReadOnly => f.write_str("it is read-only"),
            Self::Removable => f.write_str("it is removable, or behind USB"),
            Self::Mounted(at) => write!(f, "it is mounted at {at}"),
            Self::Swap(name) => write!(f, "{name} is swapped to"),
            Self::Held(holder, name) => {
                let what = match holder {
                    Holder::Raid => "the RAID array",
                    Holder::Multipath => "the multipath device",
                    Holder::Lvm => "the logical volume",
                    Holder::Crypt => "the encrypted device",
                    Holder::Other => "the device",
                };
                write!(f, "{what} {name} is assembled from it: stop that first")
            }
        }
    }
}

/// All disks below `tree`, as [`find`] takes them.
pub fn list(tree: &Tree) -> Vec<Disk> {
    disks::list(tree)
}

/// Whether an order names a disk so that it can be found.
///
/// # Errors
/// What is wrong, in words.
pub fn check(target: &DiskTarget) -> Result<(), String> {
    let texts = [&target.stable_name, &target.serial, &target.wwn];
    match target.stable_name.is_empty() || texts.iter().any(|text| text.len() > TEXT) {
        true => Err("a disk has no stable_name, or a text of over 256 bytes".to_owned()),
        false => Ok(()),
    }
}

/// The disk among `disks` (those below `tree`) that `target` means, if it may be written to.
///
/// # Errors
/// See [`Refusal`].
pub fn find(tree: &Tree, disks: &[Disk], target: &DiskTarget) -> Result<Disk, Refusal> {
    let mut named = disks
        .iter()
        .filter(|disk| !disk.stable_name.is_empty() && disk.stable_name == target.stable_name);
    let disk = named.next().ok_or(Refusal::NotFound)?;
    let others: Vec<String> = named.map(|disk| disk.kernel_name.clone()).collect();
    if !others.is_empty() {
        return Err(Refusal::Ambiguous(
            [vec![disk.kernel_name.clone()], others].concat(),
        ));
    }
    same("serial number", &target.serial, &disk.serial)?;
    same("WWN", &target.wwn, &disk.wwn)?;
    same(
        "size in bytes",
        &target.size_bytes.to_string(),
        &disk.size_bytes.to_string(),
    )?;
    if disk.read_only {
        return Err(Refusal::ReadOnly);
    }
    if disk.removable || disk.transport == "usb" {
        return Err(Refusal::Removable);
    }
    unused(tree, &disk.kernel_name)?;
    Ok(disk.clone())
}

/// Where a disk is in /dev.
pub fn node(disk: &Disk) -> PathBuf {
    ["/dev/", &disk.kernel_name.replace('!', "/")]
        .concat()
        .into()
}

/// Opens `found`, which [`find`] has given, and holds it: nobody mounts or claims it from here on.
///
/// # Errors
/// Somebody has claimed it, it cannot be opened, or another disk has its name by now.
pub fn hold(tree: &Tree, found: &Disk) -> Result<Block, Refusal> {
    let path = node(found).display().to_string();
    let number = tree.text(&["sys/block/", &found.kernel_name, "/dev"].concat());
    let opened = patiently(|| Block::open(Path::new(&path)));
    let block = match opened {
        Ok(block) => block,
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            return Err(Refusal::Busy(path));
        }
        Err(error) => return Err(Refusal::NotOpened(path, error.to_string())),
    };
    // The name in /dev is another's between two looks, at worst.
    match block.number() {
        Ok(of) if of == number && block.size() == found.size_bytes => Ok(block),
        Ok(_) => Err(Refusal::Replaced(path)),
        Err(error) => Err(Refusal::NotOpened(path, error.to_string())),
    }
}

/// Has the kernel look at the partition table anew. What is on the disk does not depend on it.
///
/// # Errors
/// Somebody held a partition all the time, or the disk takes none.
pub fn reread(block: &Block) -> io::Result<()> {
    patiently(|| block.reread_partitions())
}

/// udev looks at disks that appear or change, and lets go of them soon.
fn patiently<T>(mut what: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 1..LOOKS {
        match what() {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => std::thread::sleep(LOOK),
            done => return done,
        }
    }
    what()
}

fn same(what: &'static str, ordered: &str, found: &str) -> Result<(), Refusal> {
    match ordered == found {
        true => Ok(()),
        false => Err(Refusal::Changed {
            what,
            ordered: ordered.to_owned(),
            found: found.to_owned(),
        }),
    }
}

/// Nothing on this machine uses the disk called `name`, or a partition of it.
///
/// # Errors
/// What does.
pub fn unused(tree: &Tree, name: &str) -> Result<(), Refusal> {
    let base = ["sys/block/", name].concat();
    // The disk itself, and what is below it with a number of its own: its partitions.
    let mut parts = vec![(name.to_owned(), base.clone())];
    for below in tree.names(&base, NAMES).unwrap_or_default() {
        let at = [&base, "/", &below].concat();
        if below.starts_with(name) && tree.exists(&[&at, "/partition"].concat()) {
            parts.push((below, at));
        }
    }
    let list = |path: &str| {
        let bytes = tree.bytes(path, LIST).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let (mounts, swaps) = (list("proc/self/mountinfo"), list("proc/swaps"));
    for (name, at) in &parts {
        let number = tree.text(&[at, "/dev"].concat());
        let device = ["/dev/", name].concat();
        for mount in mounts.lines() {
            let mut fields = mount.split(' ');
            let (number_of, at) = (fields.nth(2), fields.nth(1));
            if number_of.is_some_and(|of| !of.is_empty() && of == number) {
                return Err(Refusal::Mounted(shown(at.unwrap_or_default())));
            }
        }
        if swaps
            .lines()
            .any(|line| line.split_whitespace().next() == Some(device.as_str()))
        {
            return Err(Refusal::Swap(device));
        }
        let holders = tree.names(&[at, "/holders"].concat(), NAMES);
        if let Some(holder) = holders.unwrap_or_default().into_iter().next() {
            let base = ["sys/block/", &holder].concat();
            let uuid = tree.text(&[&base, "/dm/uuid"].concat());
            let kind = match uuid.split('-').next() {
                _ if holder.starts_with("md") => Holder::Raid,
                Some("mpath") => Holder::Multipath,
                Some("LVM") => Holder::Lvm,
                Some("CRYPT") => Holder::Crypt,
                _ => Holder::Other,
            };
            let name = tree.text(&[&base, "/dm/name"].concat());
            let name = match name.is_empty() {
                true => holder,
                false => name,
            };
            return Err(Refusal::Held(kind, name));
        }
    }
    Ok(())
}

/// A path of the kernel's list, for a sentence.
fn shown(path: &str) -> String {
    crate::facts::tree::clean(path.as_bytes())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::facts::tree::tests::Fixture;

    fn target() -> DiskTarget {
        DiskTarget {
            stable_name: "virtio-abc".to_owned(),
            serial: "abc".to_owned(),
            wwn: String::new(),
            size_bytes: 1 << 20,
        }
    }

    /// A machine with one virtio disk of two partitions, and what else is given.
    fn machine(more: &[(&str, &str)]) -> Fixture {
        let fixture = Fixture::new(&[]);
        let at = "sys/devices/pci0000:00/0000:00:02.0/virtio1/block/vda";
        fixture.put(
            "sys/block/vda -> ../devices/pci0000:00/0000:00:02.0/virtio1/block/vda",
            b"",
        );
        fixture.put(&format!("{at}/device -> ../.."), b"");
        fixture.put(
            "sys/devices/pci0000:00/0000:00:02.0/virtio1/subsystem -> /sys/class/virtio",
            b"",
        );
        for (file, text) in [
            ("size", "2048\n"),
            ("serial", "abc"),
            ("dev", "253:0\n"),
            ("vda1/dev", "253:1\n"),
            ("vda1/partition", "1\n"),
            ("vda2/dev", "253:2\n"),
            ("vda2/partition", "2\n"),
        ] {
            fixture.put(&format!("{at}/{file}"), text.as_bytes());
        }
        fixture.put(
            "proc/self/mountinfo",
            b"22 1 0:21 / / rw - rootfs rootfs rw\n23 22 8:1 / /data rw shared:1 - ext4 /dev/sda1 rw\n",
        );
        fixture.put("proc/swaps", b"Filename\tType\tSize\tUsed\tPriority\n");
        for (file, text) in more {
            let file = file.replace("VDA", at);
            fixture.put(&file, text.as_bytes());
        }
        fixture
    }

    fn found(fixture: &Fixture, target: &DiskTarget) -> Result<String, Refusal> {
        let disks = list(&fixture.tree);
        find(&fixture.tree, &disks, target).map(|disk| disk.kernel_name)
    }

    #[test]
    fn a_disk_that_nobody_uses_and_is_what_it_was_is_found() {
        assert_eq!(found(&machine(&[]), &target()), Ok("vda".to_owned()));
    }

    #[test]
    fn every_use_of_a_disk_has_a_word_of_its_own() {
        let mounted = "9 1 253:2 / /mnt\\040a rw - ext4 /dev/vda2 rw\n";
        let swaps = "Filename Type\n/dev/vda1 partition 1 0 -2\n";
        for (more, word) in [
            (&[("proc/self/mountinfo", mounted)][..], "DiskMounted"),
            (&[("proc/swaps", swaps)], "DiskIsSwap"),
            (&[("VDA/ro", "1\n")], "DiskReadOnly"),
            (&[("VDA/removable", "1\n")], "DiskRemovable"),
            (&[("VDA/vda1/holders/md127", "")], "DiskInRaid"),
            (
                &[
                    ("VDA/holders/dm-0", ""),
                    ("sys/block/dm-0/dm/uuid", "mpath-3600\n"),
                    ("sys/block/dm-0/dm/name", "mpatha\n"),
                ],
                "DiskIsMultipath",
            ),
            (
                &[
                    ("VDA/vda2/holders/dm-0", ""),
                    ("sys/block/dm-0/dm/uuid", "LVM-x\n"),
                ],
                "DiskInLvm",
            ),
            (
                &[
                    ("VDA/vda2/holders/dm-0", ""),
                    ("sys/block/dm-0/dm/uuid", "CRYPT-LUKS2-x\n"),
                ],
                "DiskHeld",
            ),
            (&[("VDA/holders/bcache0", "")], "DiskHeld"),
        ] {
            let refusal = found(&machine(more), &target()).unwrap_err();
            assert_eq!(refusal.word(), word);
            assert!(!refusal.to_string().contains('\n'));
        }
    }

    #[test]
    fn a_disk_that_was_swapped_is_another() {
        let with = |change: &dyn Fn(&mut DiskTarget)| {
            let mut target = target();
            change(&mut target);
            found(&machine(&[]), &target).unwrap_err()
        };
        let other = with(&|target| target.serial = "abd".to_owned());
        assert_eq!(
            other.to_string(),
            "it is another disk than the order means: its serial number is \"abc\", and was \"abd\" when the order was made"
        );
        for refusal in [
            other,
            with(&|target| target.size_bytes += 512),
            with(&|target| target.wwn = "0x1".to_owned()),
        ] {
            assert_eq!(refusal.word(), "DiskChanged");
        }
        for name in ["vda", "", "virtio-abd"] {
            let refusal = with(&|target| target.stable_name = name.to_owned());
            assert_eq!(refusal, Refusal::NotFound);
        }
    }

    #[test]
    fn two_disks_of_one_name_are_neither() {
        let fixture = machine(&[]);
        let mut disks = list(&fixture.tree);
        let mut other = disks.first().unwrap().clone();
        other.kernel_name = "vdb".to_owned();
        disks.push(other);
        let refusal = find(&fixture.tree, &disks, &target()).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "several disks have this name: vda, vdb"
        );
    }

    #[test]
    fn what_is_busy_for_a_moment_is_waited_for_and_nothing_else_is() {
        let busy = || io::Error::from_raw_os_error(libc::EBUSY);
        let mut tries = 0;
        let done = patiently(|| {
            tries += 1;
            if tries < 3 { Err(busy()) } else { Ok(tries) }
        });
        assert_eq!(done.unwrap(), 3);
        let mut tries = 0;
        let refused = patiently(|| -> io::Result<()> {
            tries += 1;
            Err(io::ErrorKind::NotFound.into())
        });
        assert_eq!(
            (refused.unwrap_err().kind(), tries),
            (io::ErrorKind::NotFound, 1)
        );
    }

    #[test]
    fn what_is_at_a_disks_path_must_be_the_disk_that_was_found() {
        // Everywhere there, and no disk; whether it can be opened at all depends on who asks.
        let found = Disk {
            kernel_name: "null".to_owned(),
            size_bytes: 1 << 20,
            ..Disk::default()
        };
        let tree = Tree::new("/".as_ref());
        let refusal = hold(&tree, &found).unwrap_err();
        assert_eq!(refusal, Refusal::Replaced("/dev/null".to_owned()));
        let gone = Disk {
            kernel_name: "no!such".to_owned(),
            ..found
        };
        let refusal = hold(&tree, &gone).unwrap_err();
        assert_eq!(refusal.word(), "DiskNotOpened");
        assert!(
            refusal
                .to_string()
                .starts_with("cannot open /dev/no/such: "),
            "{refusal}"
        );
    }
}
