//! `root=` of a command line, pinned to the disk that it came from: another disk with the same label or file system must
//! not be what is started.
use super::Volume;

/// A command line, and whether its root is on a partition of this disk.
#[derive(Debug, PartialEq, Eq)]
pub struct Pinned {
    pub command_line: String,
    /// The partition; `None`: the root is none that is known here (LVM, RAID, encrypted), and was left as it is.
    pub partition: Option<u32>,
}

/// Has `root=` name one of `volumes` by its PARTUUID. Without a `root=` it is the partition whose type says so.
pub fn pin(command_line: &str, volumes: &[Volume]) -> Pinned {
    let words = words(command_line);
    // The last one holds.
    let at = words.iter().rposition(|word| word.starts_with("root="));
    let named = at
        .and_then(|at| words.get(at))
        .and_then(|word| word.strip_prefix("root="));
    let volume = match named {
        Some(device) => named_volume(device.trim_matches('"'), volumes),
        None => {
            let mut roots = volumes.iter().filter(|volume| volume.is_root);
            roots.next().filter(|_| roots.next().is_none())
        }
    };
    let Some(volume) = volume.filter(|volume| !volume.partuuid.is_empty()) else {
        return Pinned {
            command_line: command_line.trim().to_owned(),
            partition: None,
        };
    };
    let root = ["root=PARTUUID=", &volume.partuuid].concat();
    let mut pinned = String::new();
    for (number, word) in words.iter().enumerate() {
        let word = match Some(number) == at {
            true => &root,
            false if word.starts_with("root=") => continue,
            false => *word,
        };
        if !pinned.is_empty() {
            pinned.push(' ');
        }
        pinned.push_str(word);
    }
    if at.is_none() {
        // In front of "--", behind which all is init's.
        pinned = [&root, " ", &pinned].concat();
    }
    Pinned {
        command_line: pinned.trim().to_owned(),
        partition: Some(volume.partition),
    }
}

fn named_volume<'a>(device: &str, volumes: &'a [Volume]) -> Option<&'a Volume> {
    let by = |is: &dyn Fn(&Volume) -> bool| {
        let mut found = volumes.iter().filter(|volume| is(volume));
        found.next().filter(|_| found.next().is_none())
    };
    for (prefixes, of) in [
        (["UUID=", "/dev/disk/by-uuid/"], 0),
        (["LABEL=", "/dev/disk/by-label/"], 1),
        (["PARTUUID=", "/dev/disk/by-partuuid/"], 2),
    ] {
        if let Some(wanted) = prefixes
            .iter()
            .find_map(|prefix| device.strip_prefix(prefix))
        {
            return by(&|volume| {
                let own = match of {
                    0 => &volume.uuid,
                    1 => &volume.label,
                    _ => &volume.partuuid,
                };
                !own.is_empty() && own.eq_ignore_ascii_case(wanted)
            });
        }
    }
    // "/dev/sda2", "/dev/nvme0n1p2": the image was made for one disk, which is this one.
    let name = device.strip_prefix("/dev/")?;
    let digits = name.rfind(|c: char| !c.is_ascii_digit())? + 1;
    let (disk, number) = name.split_at_checked(digits)?;
    let is_disk = match disk.strip_suffix('p') {
        Some(disk) if disk.ends_with(|c: char| c.is_ascii_digit()) => {
            disk.starts_with("nvme") || disk.starts_with("mmcblk")
        }
        _ => ["sd", "vd", "hd", "xvd"].iter().any(|kind| {
            disk.strip_prefix(kind).is_some_and(|rest| {
                !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_lowercase())
            })
        }),
    };
    let number = number.parse::<u32>().ok().filter(|_| is_disk)?;
    by(&|volume| volume.partition == number)
}

/// The words of a command line; what is in quotes stays whole.
fn words(line: &str) -> Vec<&str> {
    let mut quoted = false;
    line.split(|c: char| {
        quoted ^= c == '"';
        !quoted && c.is_whitespace()
    })
    .filter(|word| !word.is_empty())
    .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing)]
    use super::*;

    fn volumes() -> Vec<Volume> {
        let volume = |partition, uuid: &str, label: &str, is_root| Volume {
            partition,
            uuid: uuid.to_owned(),
            label: label.to_owned(),
            partuuid: format!("0000000{partition}-aaaa-bbbb-cccc-dddddddddddd"),
            is_root,
            ..Volume::default()
        };
        vec![
            volume(1, "6f2c-root", "cloudimg-rootfs", true),
            volume(15, "AB12-CD34", "UEFI", false),
            volume(16, "boot-uuid", "BOOT", false),
        ]
    }

    #[test]
    fn the_root_is_the_partition_of_this_disk_however_it_is_named() {
        let pinned = "root=PARTUUID=00000001-aaaa-bbbb-cccc-dddddddddddd";
        for (line, wanted) in [
            ("root=UUID=6F2C-ROOT ro quiet", "ROOT ro quiet"),
            ("ro root=LABEL=cloudimg-rootfs", "ro ROOT"),
            ("root=/dev/disk/by-label/cloudimg-rootfs ro", "ROOT ro"),
            ("root=/dev/vda1 ro", "ROOT ro"),
            ("root=/dev/nvme0n1p1 ro", "ROOT ro"),
            ("root=PARTUUID=00000001-AAAA-bbbb-cccc-dddddddddddd", "ROOT"),
            ("root=/dev/sda9 x=\"a b\" root=/dev/sda1", "x=\"a b\" ROOT"),
            ("console=ttyS0 -- single", "ROOT console=ttyS0 -- single"),
            ("", "ROOT"),
        ] {
            let got = pin(line, &volumes());
            assert_eq!(got.command_line, wanted.replace("ROOT", pinned), "{line}");
            assert_eq!(got.partition, Some(1));
        }
    }

    #[test]
    fn a_root_that_is_not_known_stays_as_it_is() {
        let mut twins = volumes();
        twins.push(twins[0].clone());
        for (line, volumes) in [
            ("root=/dev/mapper/vg-root ro", volumes()),
            ("root=UUID=other ro", volumes()),
            ("root=/dev/loop1", volumes()),
            ("root=/dev/nvme0n1", volumes()),
            ("root=", volumes()),
            ("root=UUID=6f2c-root", twins.clone()),
            ("ro", twins),
            ("ro", Vec::new()),
        ] {
            let got = pin(line, &volumes);
            assert_eq!((got.command_line.as_str(), got.partition), (line, None));
        }
    }
}
