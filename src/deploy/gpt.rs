//! GUID partition tables (UEFI 2.10, chapter 5), read and checked from an image's first bytes, and fitted to the disk
//! that the image is written to: its copy belongs at the disk's end, wherever the image ended.
//!
//! MBR tables are told apart and left as they are.
use std::fmt;

use super::image::crc::crc32;

const SIGNATURE: &[u8] = b"EFI PART";
/// Of a header; what is behind it in its sector is zeros.
const HEADER: usize = 92;
/// Entries, bytes of one, and bytes of all, at most: the usual table has 128 of 128.
const ENTRIES: u32 = 1024;
const ENTRY: usize = 1024;
const TABLE: usize = 256 * 1024;
const SECTORS: [u32; 2] = [512, 4096];

/// What an image's first bytes say of its partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Table {
    Mbr(Vec<Partition>),
    Gpt(Gpt),
}

/// A GUID partition table that is as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpt {
    sector: u32,
    header: Vec<u8>,
    entries: Vec<u8>,
    entry: usize,
    at: u64,
}

/// A partition, in bytes of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// From 1 on.
    pub number: u32,
    pub start: u64,
    pub length: u64,
    /// Of GPT; zeros on an MBR.
    pub kind: Guid,
    pub guid: Guid,
}

/// As it stands on the disk: the first three fields are little-endian.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guid(pub [u8; 16]);

/// An EFI system partition.
pub const ESP: Guid = Guid::written(0xc12a_7328_f81f_11d2_ba4b_00a0_c93e_c93b);
/// A root file system of this architecture, by the Discoverable Partitions Specification.
#[cfg(target_arch = "x86_64")]
pub const ROOT: Guid = Guid::written(0x4f68_bce3_e8cd_4db1_96e7_fbca_f984_b709);
/// A root file system of this architecture, by the Discoverable Partitions Specification.
#[cfg(target_arch = "aarch64")]
pub const ROOT: Guid = Guid::written(0xb921_b045_1df0_41c3_af44_4c6f_280d_3fae);

/// Why there is no table to go by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// Neither an MBR nor a GPT.
    None,
    /// Made for sectors of another size than the disk's: no firmware or kernel would find it there.
    Sector { image: u32, disk: u32 },
    /// The first, or what it says of the disk, is damaged.
    Damaged(&'static str),
    /// It needs more room than the disk has.
    TooSmall,
}

/// What is to be written so that a table fits its disk, each at its byte.
#[derive(Debug, PartialEq, Eq)]
pub struct Fitted {
    /// Into the first MiB.
    pub first: Vec<(u64, Vec<u8>)>,
    /// At the disk's end.
    pub last: Vec<(u64, Vec<u8>)>,
    /// The partition that was grown, and by how much.
    pub grown: Option<(u32, u64)>,
}

impl Table {
    /// Reads the table of an image from its first bytes (the first MiB, or all), for a disk with sectors of that size.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn read(head: &[u8], sector: u32) -> Result<Self, Error> {
        for size in SECTORS {
            let at = size as usize;
            if head.get(at..).is_some_and(|at| at.starts_with(SIGNATURE)) {
                return match size == sector {
                    true => Gpt::read(head, sector).map(Self::Gpt),
                    false => Err(Error::Sector {
                        image: size,
                        disk: sector,
                    }),
                };
            }
        }
        if head.get(510..512) != Some(&[0x55, 0xaa]) {
            return Err(Error::None);
        }
        // Four entries of 16 bytes; logical partitions are in chains behind, and left alone like the rest.
        let entries = head.get(446..510).unwrap_or_default();
        let mut partitions = Vec::new();
        for (number, entry) in (1..).zip(entries.as_chunks::<16>().0) {
            let (start, length) = (u32_at(entry, 8), u32_at(entry, 12));
            let [_, _, _, _, kind, ..] = *entry;
            if kind == 0xee {
                // A protective entry, and no GPT behind it.
                return Err(Error::Damaged("its MBR points to a GPT that is not there"));
            }
            if kind != 0 && length != 0 {
                partitions.push(Partition {
                    number,
                    start: u64::from(start) * u64::from(sector),
                    length: u64::from(length) * u64::from(sector),
                    kind: Guid::default(),
                    guid: Guid::default(),
                });
            }
        }
        Ok(Self::Mbr(partitions))
    }

    pub fn partitions(&self) -> Vec<Partition> {
        match self {
            Self::Mbr(partitions) => partitions.clone(),
            Self::Gpt(gpt) => gpt.partitions(),
        }
    }

    /// "mbr", or "gpt".
    pub fn name(&self) -> &'static str {
        match self {
            Self::Mbr(_) => "mbr",
            Self::Gpt(_) => "gpt",
        }
    }
}

impl Gpt {
    fn read(head: &[u8], sector: u32) -> Result<Self, Error> {
        let header = head.get(sector as usize..).unwrap_or_default();
        let length = usize::try_from(u32_at(header, 12)).unwrap_or(0);
        if !(HEADER..=sector as usize).contains(&length) {
            return Err(Error::Damaged("the header has an impossible length"));
        }
        let header = header.get(..length).ok_or(Error::Damaged("it is cut"))?;
        let mut blank = header.to_vec();
        put(&mut blank, 16, &[0; 4]);
        if crc32(&blank) != u32_at(header, 16) {
            return Err(Error::Damaged("the header's checksum is wrong"));
        }
        let (count, size) = (u32_at(header, 80), u32_at(header, 84));
        let entry = usize::try_from(size).unwrap_or(0);
        let all = usize::try_from(u64::from(count) * u64::from(size)).unwrap_or(usize::MAX);
        if !(128..=ENTRY).contains(&entry)
            || !entry.is_power_of_two()
            || !(1..=ENTRIES).contains(&count)
            || all > TABLE
        {
            return Err(Error::Damaged("the entries have an impossible size"));
        }
        let at = u64_at(header, 72).saturating_mul(sector.into());
        let from = usize::try_from(at).unwrap_or(usize::MAX);
        let entries = head.get(from..).and_then(|rest| rest.get(..all));
        // The table lies in the first MiB: nothing else is looked at before it is written.
        let entries = entries.ok_or(Error::Damaged("the entries are not in its first MiB"))?;
        if crc32(entries) != u32_at(header, 88) {
            return Err(Error::Damaged("the entries' checksum is wrong"));
        }
        let gpt = Self {
            sector,
            header: header.to_vec(),
            entries: entries.to_vec(),
            entry,
            at,
        };
        let (first, last) = (u64_at(header, 40), u64_at(header, 48));
        let first = first.saturating_mul(sector.into());
        let end = last.saturating_add(1).saturating_mul(sector.into());
        let mut all = gpt.partitions();
        all.sort_unstable_by_key(|partition| partition.start);
        let mut before = first;
        for partition in all {
            // One that ends past all numbers does so on every disk.
            let after = partition.start.saturating_add(partition.length);
            if partition.length == 0 || partition.start < before || after > end || after == u64::MAX
            {
                return Err(Error::Damaged(
                    "two partitions overlap, or one is outside of the disk",
                ));
            }
            before = after;
        }
        Ok(gpt)
    }

    /// The disk's own.
    pub fn guid(&self) -> Guid {
        Guid::at(&self.header, 56)
    }

    /// Where the image has its copy, as its header says.
    pub fn copy_at(&self) -> u64 {
        u64_at(&self.header, 32).saturating_mul(self.sector.into())
    }

    pub fn partitions(&self) -> Vec<Partition> {
        let sector = u64::from(self.sector);
        let entries = self.entries.chunks_exact(self.entry);
        let partition = |(number, entry): (u32, &[u8])| {
            let kind = Guid::at(entry, 0);
            let (first, last) = (u64_at(entry, 32), u64_at(entry, 40));
            let sectors = last.saturating_add(1).saturating_sub(first);
            (kind != Guid::default()).then(|| Partition {
                number,
                start: first.saturating_mul(sector),
                length: sectors.saturating_mul(sector),
                kind,
                guid: Guid::at(entry, 16),
            })
        };
        (1..).zip(entries).filter_map(partition).collect()
    }

    /// Gives the disk and each partition the GUIDs that `fresh` makes.
    ///
    /// What names a partition by its old GUID (a root on the kernel's command line, `fstab`) is not changed with it.
    pub fn renew(&mut self, fresh: &mut dyn FnMut() -> Guid) {
        put(&mut self.header, 56, &fresh().0);
        for entry in self.entries.chunks_exact_mut(self.entry) {
            if Guid::at(entry, 0) != Guid::default() {
                put(entry, 16, &fresh().0);
            }
        }
    }

    /// What is to be written for a disk of `size` bytes, the last partition grown to its end if that is wished.
    ///
    /// # Errors
    /// The disk is too small for the table.
    pub fn fit(mut self, size: u64, grow: bool) -> Result<Fitted, Error> {
        let sector = u64::from(self.sector);
        let length = self.entries.len() as u64;
        let table = length.div_ceil(sector);
        let last = (size / sector).checked_sub(1).ok_or(Error::TooSmall)?;
        let last_entries = last.checked_sub(table).ok_or(Error::TooSmall)?;
        let usable = last_entries.checked_sub(1).ok_or(Error::TooSmall)?;
        let end = (usable + 1) * sector;
        let partitions = self.partitions();
        let furthest = partitions
            .iter()
            .copied()
            .max_by_key(|p| p.start.saturating_add(p.length));
        if furthest.is_some_and(|p| p.start.saturating_add(p.length) > end)
            || u64_at(&self.header, 40) > usable
        {
            return Err(Error::TooSmall);
        }
        let mut grown = None;
        if let Some(partition) = furthest.filter(|_| grow) {
            // To a whole MiB, as all partitioning tools align.
            let to = end.min(size) & !((1 << 20) - 1);
            let by = to.saturating_sub(partition.start.saturating_add(partition.length));
            let index = usize::try_from(partition.number - 1).unwrap_or(usize::MAX);
            let mut entries = self.entries.chunks_exact_mut(self.entry);
            if by > 0
                && let Some(entry) = entries.nth(index)
            {
                put(entry, 40, &(to / sector - 1).to_le_bytes());
                grown = Some((partition.number, by));
            }
        }
        let sum = crc32(&self.entries).to_le_bytes();
        put(&mut self.header, 88, &sum);
        put(&mut self.header, 48, &usable.to_le_bytes());
        let whole = |header: &[u8]| {
            let mut bytes = header.to_vec();
            put(&mut bytes, 16, &[0; 4]);
            let sum = crc32(&bytes).to_le_bytes();
            put(&mut bytes, 16, &sum);
            bytes.resize(self.sector as usize, 0);
            bytes
        };
        let mut first = self.header.clone();
        put(&mut first, 24, &1_u64.to_le_bytes());
        put(&mut first, 32, &last.to_le_bytes());
        let mut copy = self.header.clone();
        put(&mut copy, 24, &last.to_le_bytes());
        put(&mut copy, 32, &1_u64.to_le_bytes());
        put(&mut copy, 72, &last_entries.to_le_bytes());
        let mut padded = self.entries.clone();
        padded.resize(usize::try_from(table * sector).unwrap_or(0), 0);
        Ok(Fitted {
            // The sizes in the protective MBR are ones that everybody ignores: they differ between tools.
            first: vec![(sector, whole(&first)), (self.at, self.entries.clone())],
            last: vec![
                (last_entries * sector, padded),
                (last * sector, whole(&copy)),
            ],
            grown,
        })
    }
}

impl Guid {
    fn at(bytes: &[u8], at: usize) -> Self {
        let guid = bytes.get(at..at + 16).unwrap_or_default();
        Self(guid.try_into().unwrap_or_default())
    }

    /// A random one (RFC 9562, version 4).
    pub fn random(bytes: [u8; 16]) -> Self {
        let mut guid = bytes;
        let [.., version, variant, _, _, _, _, _, _, _] = &mut guid;
        *version = (*version & 0x0f) | 0x40;
        *variant = (*variant & 0x3f) | 0x80;
        Self(guid)
    }
}

impl Guid {
    /// As people write it, without the dashes.
    pub const fn written(digits: u128) -> Self {
        let [a, b, c, d, e, f, g, h, rest @ ..] = digits.to_be_bytes();
        let [i, j, k, l, m, n, o, p] = rest;
        Self([d, c, b, a, f, e, h, g, i, j, k, l, m, n, o, p])
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, at) in [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15]
            .into_iter()
            .enumerate()
        {
            if matches!(n, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{:02x}", self.0.get(at).copied().unwrap_or_default())?;
        }
        Ok(())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("it has neither an MBR nor a GPT"),
            Self::Sector { image, disk } => write!(
                f,
                "its partition table is made for sectors of {image} bytes, and the disk's have {disk}: nothing would find \
                 it there; choose another disk, or an image made for this one's"
            ),
            Self::Damaged(what) => write!(f, "its partition table is damaged: {what}"),
            Self::TooSmall => f.write_str("its partition table needs a larger disk"),
        }
    }
}

impl std::error::Error for Error {}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let bytes = bytes.get(at..at + 4).unwrap_or_default();
    bytes.try_into().map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let bytes = bytes.get(at..at + 8).unwrap_or_default();
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    for (to, from) in bytes.iter_mut().skip(at).zip(value) {
        *to = *from;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A disk of 64 MiB as sgdisk makes it, with partitions at these sectors.
    fn table(sector: u32, partitions: &[(u64, u64)]) -> Vec<u8> {
        let size = sector as usize;
        let mut head = vec![0; MIB as usize];
        head[510] = 0x55;
        head[511] = 0xaa;
        head[450] = 0xee;
        let mut entries = vec![0; 128 * 128];
        for (n, (first, last)) in partitions.iter().enumerate() {
            let entry = &mut entries[n * 128..];
            entry[..16].fill(0xaf);
            entry[16..32].fill(n as u8 + 1);
            put(entry, 32, &first.to_le_bytes());
            put(entry, 40, &last.to_le_bytes());
        }
        let mut header = vec![0; HEADER];
        put(&mut header, 0, b"EFI PART\0\0\x01\0");
        put(&mut header, 12, &92_u32.to_le_bytes());
        put(&mut header, 24, &1_u64.to_le_bytes());
        let last = 64 * MIB / u64::from(sector) - 1;
        put(&mut header, 32, &last.to_le_bytes());
        put(&mut header, 40, &34_u64.to_le_bytes());
        put(&mut header, 48, &(last - 33).to_le_bytes());
        header[56..72].fill(0xd1);
        put(&mut header, 72, &2_u64.to_le_bytes());
        put(&mut header, 80, &128_u32.to_le_bytes());
        put(&mut header, 84, &128_u32.to_le_bytes());
        put(&mut header, 88, &crc32(&entries).to_le_bytes());
        head[size..size + HEADER].copy_from_slice(&header);
        head[2 * size..2 * size + entries.len()].copy_from_slice(&entries);
        summed(head, size)
    }

    /// With the header's checksum.
    fn summed(mut head: Vec<u8>, at: usize) -> Vec<u8> {
        put(&mut head, at + 16, &[0; 4]);
        let sum = crc32(&head[at..at + HEADER]);
        put(&mut head, at + 16, &sum.to_le_bytes());
        head
    }

    fn gpt(head: &[u8], sector: u32) -> Gpt {
        match Table::read(head, sector).unwrap() {
            Table::Gpt(gpt) => gpt,
            Table::Mbr(_) => panic!("an MBR"),
        }
    }

    #[test]
    fn a_table_is_read_and_fits_any_larger_disk_with_both_its_halves_whole() {
        for sector in SECTORS {
            let per_mib = MIB / u64::from(sector);
            let head = table(
                sector,
                &[
                    (2 * per_mib, 4 * per_mib - 1),
                    (4 * per_mib, 9 * per_mib - 1),
                ],
            );
            let read = gpt(&head, sector);
            let partitions = read.partitions();
            assert_eq!((partitions[1].number, partitions[1].start), (2, 4 * MIB));
            assert_eq!(partitions[1].length, 5 * MIB);
            for (grow, grown) in [(false, None), (true, Some((2, 990 * MIB)))] {
                let size = 1000 * MIB;
                let fitted = read.clone().fit(size, grow).unwrap();
                assert_eq!(fitted.grown, grown);
                let mut disk = head.clone();
                for (at, bytes) in &fitted.first {
                    put(&mut disk, *at as usize, bytes);
                }
                let again = gpt(&disk, sector);
                assert_eq!(again.guid(), read.guid());
                let end = again.partitions()[1].start + again.partitions()[1].length;
                assert_eq!(end, if grow { 999 * MIB } else { 9 * MIB });
                // The copy at the end is the same table, seen from there.
                let (at, copy) = &fitted.last[1];
                assert_eq!(*at, size - u64::from(sector));
                assert_eq!(u64_at(copy, 24), size / u64::from(sector) - 1);
                assert_eq!(u64_at(copy, 32), 1);
                let (entries_at, entries) = &fitted.last[0];
                assert_eq!(u64_at(copy, 72) * u64::from(sector), *entries_at);
                assert_eq!(crc32(&entries[..128 * 128]), u32_at(copy, 88));
                let mut blank = copy[..HEADER].to_vec();
                put(&mut blank, 16, &[0; 4]);
                assert_eq!(crc32(&blank), u32_at(copy, 16));
                assert_eq!(entries_at + entries.len() as u64, *at);
            }
        }
    }

    #[test]
    fn a_table_for_other_sectors_is_refused_with_the_reason() {
        let head = table(512, &[(2048, 4095)]);
        let error = Table::read(&head, 4096).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("sectors of 512 bytes, and the disk's have 4096")
        );
        assert_eq!(
            Table::read(&table(4096, &[]), 512),
            Err(Error::Sector {
                image: 4096,
                disk: 512
            })
        );
    }

    #[test]
    fn whatever_is_wrong_in_a_table_is_damage() {
        let head = table(512, &[(2048, 4095), (4096, 8191)]);
        for at in (512..604).chain(1024..1024 + 300) {
            let mut damaged = head.clone();
            damaged[at] ^= 1;
            assert!(Table::read(&damaged, 512).is_err(), "at {at}");
        }
        for partitions in [
            &[(2048, 4096), (4096, 8191)][..],
            &[(4, 100)],
            &[(2048, 2047)],
            &[(2048, u64::MAX)],
            &[(u64::MAX, 1)],
            &[(2048, 1 << 40)],
        ] {
            let error = Table::read(&table(512, partitions), 512).unwrap_err();
            assert!(matches!(error, Error::Damaged(_)), "{partitions:?}");
        }
        // No disk is so large, whatever the header says of this one.
        let mut endless = table(512, &[(2048, u64::MAX / 512)]);
        put(&mut endless, 512 + 48, &u64::MAX.to_le_bytes());
        let error = Table::read(&summed(endless, 512), 512).unwrap_err();
        assert!(matches!(error, Error::Damaged(_)), "{error}");
        assert!(Table::read(&head[..4096], 512).is_err(), "cut");
        assert_eq!(Table::read(&[0; 8192], 512), Err(Error::None));
    }

    #[test]
    fn a_disk_without_room_for_the_table_is_too_small() {
        let read = gpt(&table(512, &[(2048, 20479)]), 512);
        assert_eq!(read.clone().fit(10 * MIB, false), Err(Error::TooSmall));
        assert!(read.clone().fit(10 * MIB + 33 * 512, false).is_ok());
        for size in [0, 511, 4096] {
            assert_eq!(read.clone().fit(size, true), Err(Error::TooSmall));
        }
    }

    #[test]
    fn new_guids_are_new_everywhere_and_nothing_else_is() {
        let mut read = gpt(&table(512, &[(2048, 4095), (4096, 8191)]), 512);
        let before = read.partitions();
        let mut next = 0x40;
        read.renew(&mut || {
            next += 1;
            Guid::random([next; 16])
        });
        let after = read.partitions();
        assert_eq!(read.guid(), Guid::random([0x41; 16]));
        assert_eq!(after[1].guid, Guid::random([0x43; 16]));
        assert_eq!(
            (after[1].start, after[1].kind),
            (before[1].start, before[1].kind)
        );
        assert_eq!(
            Guid([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]).to_string(),
            "03020100-0504-0706-0809-0a0b0c0d0e0f"
        );
    }

    #[test]
    fn an_mbr_is_told_apart_and_left_alone() {
        let mut head = vec![0; 4096];
        head[510] = 0x55;
        head[511] = 0xaa;
        head[450] = 0x83;
        put(&mut head, 454, &2048_u32.to_le_bytes());
        put(&mut head, 458, &4096_u32.to_le_bytes());
        let table = Table::read(&head, 512).unwrap();
        let partitions = table.partitions();
        assert_eq!((table.name(), partitions.len()), ("mbr", 1));
        assert_eq!((partitions[0].start, partitions[0].length), (MIB, 2 * MIB));
        head[450] = 0xee;
        assert!(matches!(Table::read(&head, 512), Err(Error::Damaged(_))));
    }
}
