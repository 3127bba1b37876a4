//! What loaders and kernels find disks by: the identifiers of partition tables, file systems and the like, read from a
//! disk's bytes.
//!
//! Two disks with one identifier are a trap: an image on the right one boots with the root of the other.
use std::fmt;
use std::io;

use super::gpt::{Guid, Table};

/// Bytes looked at from a disk's or a partition's first on: up to the end of btrfs's superblock.
pub const LOOK: usize = 68 * 1024;
/// Of a disk, for its table.
const HEAD: usize = 1 << 20;
/// Partitions looked into.
const PARTITIONS: usize = 128;

/// An identifier, and what has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    pub kind: &'static str,
    pub id: String,
    /// Of which partition; 0: of the disk itself.
    pub partition: u32,
}

/// All identifiers on a disk of which `read` gives bytes, as many as there are. What cannot be read has none.
pub fn of_disk(sector: u32, read: &mut dyn FnMut(u64, usize) -> io::Result<Vec<u8>>) -> Vec<Name> {
    let Ok(head) = read(0, HEAD) else {
        return Vec::new();
    };
    let mut names = Vec::new();
    let mut name = |kind, id: String, partition| {
        names.push(Name {
            kind,
            id,
            partition,
        });
    };
    // A disk may be a file system as a whole.
    if let Some((kind, id)) = in_head(&head) {
        name(kind, id, 0);
    }
    let Ok(table) = Table::read(&head, sector) else {
        return names;
    };
    if let Table::Gpt(gpt) = &table {
        name("GPT", gpt.guid().to_string(), 0);
    }
    for partition in table.partitions().into_iter().take(PARTITIONS) {
        if partition.guid != Guid::default() {
            name("partition", partition.guid.to_string(), partition.number);
        }
        let found = read(partition.start, LOOK).ok();
        if let Some((kind, id)) = found.and_then(|head| in_head(&head)) {
            name(kind, id, partition.number);
        }
    }
    names
}

/// The first of `ours` that is also one of `theirs`.
pub fn shared<'a>(ours: &'a [Name], theirs: &'a [Name]) -> Option<(&'a Name, &'a Name)> {
    ours.iter().find_map(|our| {
        let their = theirs
            .iter()
            .find(|their| (their.kind, &their.id) == (our.kind, &our.id))?;
        Some((our, their))
    })
}

/// What begins with these bytes, and its identifier.
pub fn in_head(head: &[u8]) -> Option<(&'static str, String)> {
    let at = |at: usize, length: usize| head.get(at..at + length);
    let is = |place: usize, magic: &[u8]| at(place, magic.len()) == Some(magic);
    let uuid = |kind, place: usize| {
        let bytes: [u8; 16] = at(place, 16)?.try_into().ok()?;
        (bytes != [0; 16]).then(|| (kind, plain(&bytes)))
    };
    let text = |kind, place: usize, length: usize| {
        let bytes = at(place, length)?;
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(length);
        let text = bytes.get(..end)?;
        let good = !text.is_empty() && text.iter().all(u8::is_ascii_graphic);
        good.then(|| (kind, String::from_utf8_lossy(text).into_owned()))
    };
    if is(0, b"LUKS\xba\xbe") {
        return text("LUKS", 168, 40);
    }
    if is(0, b"XFSB") {
        return uuid("XFS", 32);
    }
    if is(1024 + 0x38, &[0x53, 0xef]) {
        return uuid("ext", 1024 + 0x68);
    }
    if is(65_536 + 0x40, b"_BHRfS_M") {
        return uuid("btrfs", 65_536 + 0x20);
    }
    if is(4096, &[0xfc, 0x4e, 0x2b, 0xa9]) {
        return uuid("RAID", 4096 + 16);
    }
    if is(4086, b"SWAPSPACE2") {
        return uuid("swap", 1024 + 12);
    }
    for label in [0, 512, 1024, 1536] {
        if is(label, b"LABELONE") && is(label + 24, b"LVM2 001") {
            let offset = at(label + 20, 4)?.try_into().map(u32::from_le_bytes).ok()?;
            let place = label.checked_add(usize::try_from(offset).ok()?)?;
            return match place < 4096 {
                true => text("LVM", place, 32),
                false => None,
            };
        }
    }
    if is(510, &[0x55, 0xaa]) {
        let place = match (
            is(82, b"FAT32   "),
            is(54, b"FAT12   ") || is(54, b"FAT16   "),
        ) {
            (true, _) => 67,
            (_, true) => 39,
            _ => return None,
        };
        let bytes: [u8; 4] = at(place, 4)?.try_into().ok()?;
        let [a, b, c, d] = bytes;
        return (bytes != [0; 4]).then(|| ("FAT", format!("{d:02X}{c:02X}-{b:02X}{a:02X}")));
    }
    None
}

/// The label of a file system of `kind` that begins with these bytes; empty: none.
pub fn label(head: &[u8], kind: &str) -> String {
    let (at, length) = match kind {
        "ext" => (1024 + 0x78, 16),
        "XFS" => (108, 12),
        "btrfs" => (65_536 + 0x12b, 256),
        "FAT" if head.get(82..90) == Some(b"FAT32   ") => (71, 11),
        "FAT" => (43, 11),
        _ => return String::new(),
    };
    let bytes = head.get(at..at + length).unwrap_or_default();
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    match std::str::from_utf8(text).map(str::trim_end) {
        Ok(text) if text != "NO NAME" && !text.chars().any(char::is_control) => text.to_owned(),
        _ => String::new(),
    }
}

/// As blkid shows it.
fn plain(bytes: &[u8; 16]) -> String {
    let mut text = crate::crypto::digest::hex(bytes);
    for at in [20, 16, 12, 8] {
        text.insert(at, '-');
    }
    text
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.partition {
            0 => write!(f, "{} {}", self.kind, self.id),
            partition => write!(f, "{} {} (partition {partition})", self.kind, self.id),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    fn head(parts: &[(usize, &[u8])]) -> Vec<u8> {
        let mut head = vec![0; LOOK];
        for (at, bytes) in parts {
            head[*at..at + bytes.len()].copy_from_slice(bytes);
        }
        head
    }

    #[test]
    fn each_kind_is_known_by_its_own_mark() {
        let uuid: Vec<u8> = (1..=16).collect();
        let shown = "01020304-0506-0708-090a-0b0c0d0e0f10";
        for (parts, kind, id) in [
            (&[(1080, &b"\x53\xef"[..]), (1128, &uuid)][..], "ext", shown),
            (&[(0, b"XFSB"), (32, &uuid)], "XFS", shown),
            (&[(65_600, b"_BHRfS_M"), (65_568, &uuid)], "btrfs", shown),
            (&[(4086, b"SWAPSPACE2"), (1036, &uuid)], "swap", shown),
            (&[(4096, b"\xfc\x4e\x2b\xa9"), (4112, &uuid)], "RAID", shown),
            (&[(0, b"LUKS\xba\xbe"), (168, b"an-id\0")], "LUKS", "an-id"),
            (
                &[
                    (512, b"LABELONE"),
                    (532, &[32]),
                    (536, b"LVM2 001"),
                    (544, &[b'v'; 32]),
                ],
                "LVM",
                "vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv",
            ),
            (
                &[
                    (510, b"\x55\xaa"),
                    (82, b"FAT32   "),
                    (67, b"\xef\xbe\xad\xde"),
                ],
                "FAT",
                "DEAD-BEEF",
            ),
            (
                &[
                    (510, b"\x55\xaa"),
                    (54, b"FAT16   "),
                    (39, b"\x04\x03\x02\x01"),
                ],
                "FAT",
                "0102-0304",
            ),
        ] {
            let head = head(parts);
            assert_eq!(in_head(&head), Some((kind, id.to_owned())));
            // Cut anywhere it is something else or nothing, and no harm.
            (0..head.len())
                .step_by(97)
                .for_each(|end| drop(in_head(&head[..end])));
        }
        assert_eq!(in_head(&head(&[(0, b"XFSB")])), None, "no identifier");
        assert_eq!(in_head(&head(&[(510, b"\x55\xaa")])), None);
    }

    #[test]
    fn what_two_disks_share_is_found_wherever_it_is() {
        let name = |kind, id: &str, partition| Name {
            kind,
            id: id.to_owned(),
            partition,
        };
        let ours = [name("GPT", "a", 0), name("ext", "b", 2)];
        let theirs = [name("XFS", "b", 1), name("ext", "b", 0)];
        let (our, their) = shared(&ours, &theirs).unwrap();
        assert_eq!(
            (our.to_string(), their.to_string()),
            ("ext b (partition 2)".to_owned(), "ext b".to_owned())
        );
        assert_eq!(shared(&ours, &[name("GPT", "b", 0)]), None);
    }

    #[test]
    fn a_disk_with_a_table_is_looked_into_and_one_without_is_looked_at() {
        let uuid = [9; 16];
        let mut disk = vec![0; 3 << 20];
        disk[510..512].copy_from_slice(&[0x55, 0xaa]);
        disk[450] = 0x83;
        disk[454..458].copy_from_slice(&2048_u32.to_le_bytes());
        disk[458..462].copy_from_slice(&4096_u32.to_le_bytes());
        let superblock = (1 << 20) + 1024;
        disk[superblock + 56..superblock + 58].copy_from_slice(&[0x53, 0xef]);
        disk[superblock + 104..superblock + 120].copy_from_slice(&uuid);
        let mut read = |from: u64, length: usize| {
            let from = from as usize;
            let bytes = disk.get(from..disk.len().min(from + length));
            bytes
                .map(<[u8]>::to_vec)
                .ok_or_else(|| io::ErrorKind::InvalidInput.into())
        };
        let names = of_disk(512, &mut read);
        assert_eq!(names.len(), 1);
        assert_eq!((names[0].kind, names[0].partition), ("ext", 1));
        assert!(of_disk(512, &mut |_, _| Err(io::ErrorKind::Other.into())).is_empty());
    }
}
