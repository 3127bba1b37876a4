//! Where a used disk shows what it was: both ends, the places where storage stacks keep their labels, where
//! partitions begin and end, and places by chance. Pure.
use crate::crypto::digest;
use crate::proto::Disk;

/// Bytes of a place, on disks whose blocks are not larger still.
pub const LENGTH: u32 = 4096;
/// The largest block of a disk that is taken at its word.
const BLOCK: u32 = 64 * 1024;
/// Places by chance, and partitions whose ends are looked at.
const RANDOM: u64 = 32;
const PARTITIONS: usize = 12;

/// Somewhere to look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub offset: u64,
    pub length: u32,
    /// What stands there on used disks.
    pub name: &'static str,
}

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
const GIB: u64 = 1024 * MIB;

/// From the front. Where sectors of 512 and of 4096 bytes differ, both are in one place.
const FRONT: [(&str, u64); 18] = [
    // Boot code, GPT's header, LVM's label, LUKS, XFS, ext4 (at 1 KiB), DRBD, md 1.1, swap (its end).
    ("front", 0),
    // GPT of 4096-byte sectors, md 1.2, bcache, LVM's metadata.
    ("md-1.2", 4 * KIB),
    ("gpt-entries", 8 * KIB),
    // LUKS2's second header, ZFS' name-value pairs.
    ("luks2", 16 * KIB),
    ("jfs", 32 * KIB),
    ("btrfs", 64 * KIB),
    ("zfs-front", 128 * KIB),
    ("zfs-front", 256 * KIB),
    ("zfs-front", 384 * KIB),
    ("luks2", 512 * KIB),
    // The first partition of most disks, and what stands in it.
    ("first-partition", MIB),
    ("first-partition", MIB + 4 * KIB),
    ("first-partition", MIB + 64 * KIB),
    ("luks2", 4 * MIB),
    ("btrfs", 64 * MIB),
    // ext4's second superblock in a partition of its own.
    ("ext4", MIB + 128 * MIB),
    ("btrfs", 256 * GIB),
    ("luks-data", 16 * MIB),
];

/// All places of a disk, without doubles, each once and whole. Which are by chance follows from `seed`.
pub fn all(disk: &Disk, partitions: &[(u64, u64)], seed: [u8; 8]) -> Vec<Place> {
    let size = disk.size_bytes;
    let block = match disk.logical_block_bytes {
        block if block.is_power_of_two() && block <= BLOCK => block,
        _ => LENGTH,
    };
    let length = LENGTH.max(block);
    let unit = u64::from(length);
    let mut places: Vec<Place> = Vec::new();
    // A disk need not be a whole number of units: the last place ends where it ends.
    let last = (size / u64::from(block) * u64::from(block)).saturating_sub(unit);
    let mut add = |name, offset: u64| {
        let offset = match offset > last {
            true => return,
            false if offset == last => last,
            false => offset / unit * unit,
        };
        if size >= unit && !places.iter().any(|known| known.offset == offset) {
            places.push(Place {
                offset,
                length,
                name,
            });
        }
    };
    for (name, offset) in FRONT {
        add(name, offset);
    }
    // GPT's backup header, DDF's and Intel's anchors, DRBD's metadata.
    add("gpt-backup", last);
    add("end", size.saturating_sub(unit) / unit * unit);
    // md 1.0: 8 KiB from the end, down to 4 KiB; md 0.90: the last whole 64 KiB but one.
    add(
        "md-1.0",
        size.saturating_sub(8 * KIB) / (4 * KIB) * (4 * KIB),
    );
    let md = (size / (64 * KIB) * (64 * KIB)).saturating_sub(64 * KIB);
    add("md-0.90", md);
    // The backup of GPT's entries.
    for back in [8, 16, 20] {
        add("gpt-backup", size.saturating_sub(back * KIB));
    }
    // ZFS' two labels at the back: name-value pairs and uberblocks of each.
    let zfs = size / (256 * KIB) * (256 * KIB);
    for back in [512, 512 - 16, 512 - 128, 256, 256 - 16, 256 - 128] {
        add("zfs-back", zfs.saturating_sub(back * KIB));
    }
    for (start, end) in partitions.iter().take(PARTITIONS) {
        add("partition", *start);
        add("partition", start.saturating_add(64 * KIB));
        add("partition-end", end.saturating_sub(unit));
    }
    let units = size / unit;
    for n in 0..RANDOM {
        let drawn = digest::sha256(&[&seed[..], &n.to_le_bytes()[..]].concat());
        let drawn = drawn
            .first_chunk()
            .map_or(0, |bytes| u64::from_le_bytes(*bytes));
        add("random", drawn.checked_rem(units).unwrap_or(0) * unit);
    }
    places
}

/// The label that `bytes`, those of a place, hold, if it is one that storage is known by.
pub fn label(bytes: &[u8]) -> Option<&'static str> {
    /// Name, offset in a place, and what is there.
    const LABELS: [(&str, usize, &[u8]); 12] = [
        ("GPT", 0, b"EFI PART"),
        ("GPT", 512, b"EFI PART"),
        ("GPT", 4096 - 512, b"EFI PART"),
        ("LVM", 0, b"LABELONE"),
        ("LVM", 512, b"LABELONE"),
        ("LUKS", 0, b"LUKS\xba\xbe"),
        ("LUKS2", 0, b"SKUL\xba\xbe"),
        ("XFS", 0, b"XFSB"),
        ("btrfs", 64, b"_BHRfS_M"),
        ("md", 0, &[0xfc, 0x4e, 0x2b, 0xa9]),
        ("swap", 4086, b"SWAPSPACE2"),
        ("bcache", 24, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca"),
    ];
    let known =
        |(_, at, mark): &&(&str, usize, &[u8])| bytes.get(*at..*at + mark.len()) == Some(*mark);
    LABELS.iter().find(known).map(|(name, ..)| *name)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn places(size_bytes: u64, block: u32) -> Vec<Place> {
        let disk = Disk {
            size_bytes,
            logical_block_bytes: block,
            ..Disk::default()
        };
        let partitions = [(MIB, 512 * MIB), (512 * MIB, size_bytes - MIB)];
        all(&disk, &partitions, *b"12345678")
    }

    #[test]
    fn the_places_of_labels_are_among_them_each_once_and_within_the_disk() {
        for (size, block) in [
            (GIB, 512),
            (GIB + 7 * 512, 512),
            (2 * GIB, 4096),
            (3000 * GIB, 512),
        ] {
            let places = places(size, block);
            for (n, place) in places.iter().enumerate() {
                assert!(place.offset + u64::from(place.length) <= size, "{place:?}");
                assert_eq!(place.offset % u64::from(block), 0);
                assert!(
                    places
                        .iter()
                        .skip(n + 1)
                        .all(|other| other.offset != place.offset)
                );
            }
            let covered = |at: u64| {
                places
                    .iter()
                    .any(|p| (p.offset..p.offset + u64::from(p.length)).contains(&at))
            };
            // mdadm's and ZFS' own rules, written out: super0.c, super1.c, vdev_label.c.
            let sectors = size / 512;
            let md_0 = ((sectors & !127) - 128) * 512;
            let md_10 = ((sectors - 16) & !7) * 512;
            let zfs = size / (256 * KIB) * (256 * KIB);
            for at in [
                0,
                511,
                512,
                1080,
                4096,
                65_600,
                128 * KIB,
                MIB,
                MIB + 1080,
                md_0,
                md_10,
                zfs - 512 * KIB,
                zfs - 512 * KIB + 16 * KIB,
                zfs - 256 * KIB + 128 * KIB,
                size - 1,
                size - 512,
                size - 33 * 512,
                512 * MIB,
                512 * MIB - 1,
            ] {
                assert!(covered(at), "{at} of {size}");
            }
            assert!(places.iter().filter(|place| place.name == "random").count() > 20);
        }
    }

    #[test]
    fn chance_follows_from_the_seed() {
        let disk = Disk {
            size_bytes: 100 * GIB,
            logical_block_bytes: 512,
            ..Disk::default()
        };
        let first = all(&disk, &[], [1; 8]);
        assert_eq!(first, all(&disk, &[], [1; 8]));
        assert_ne!(first, all(&disk, &[], [2; 8]));
    }

    #[test]
    fn small_and_strange_disks_have_places_too() {
        for (size, block) in [
            (0, 512),
            (512, 512),
            (4096, 512),
            (5 * 512, 512),
            (9 * 512, 512),
            (u64::MAX, 512),
            (1 << 20, 3),
            (1 << 20, 0),
            (1 << 20, 1 << 16),
        ] {
            let disk = Disk {
                size_bytes: size,
                logical_block_bytes: block,
                ..Disk::default()
            };
            for place in all(&disk, &[(0, u64::MAX), (u64::MAX, 0)], [0; 8]) {
                assert!(place.offset.checked_add(place.length.into()).unwrap() <= size);
            }
        }
    }

    #[test]
    fn labels_are_known_where_they_stand() {
        let with = |at: usize, mark: &[u8]| {
            let mut bytes = vec![7; 4096];
            bytes.splice(at..at + mark.len(), mark.iter().copied());
            label(&bytes)
        };
        assert_eq!(with(512, b"EFI PART"), Some("GPT"));
        assert_eq!(with(64, b"_BHRfS_M"), Some("btrfs"));
        assert_eq!(with(4086, b"SWAPSPACE2"), Some("swap"));
        assert_eq!(with(100, b"EFI PART"), None);
        assert_eq!(label(b"EFI"), None);
    }
}
