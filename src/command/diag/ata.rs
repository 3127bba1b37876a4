//! What ATA disks say of themselves: IDENTIFY DEVICE, and SMART (ATA8-ACS 7.53: READ DATA with the vendors'
//! attributes, their thresholds, RETURN STATUS), asked inside SCSI commands (SAT-3: ATA PASS-THROUGH). Pure.
use super::{Finding, shown};
use crate::proto::DiagVerdict;

/// Bytes of each page.
pub const PAGE: usize = 512;

/// An ATA command, as an ATA PASS-THROUGH(16) that reads a page, or has the registers given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    Identify,
    SmartData,
    SmartThresholds,
    SmartStatus,
}

impl Command {
    /// The command's bytes.
    pub fn cdb(self) -> [u8; 16] {
        let (command, feature) = match self {
            Self::Identify => (0xec, 0),
            Self::SmartData => (0xb0, 0xd0),
            Self::SmartThresholds => (0xb0, 0xd1),
            Self::SmartStatus => (0xb0, 0xda),
        };
        let mut cdb = [0; 16];
        // PIO data-in: the length is in the count field, in blocks, from the disk. Non-data: give the registers.
        let (protocol, flags, count) = match self {
            Self::SmartStatus => (3, 1 << 5, 0),
            _ => (4, 0x0e, 1),
        };
        // SMART's signature in LBA mid and high.
        let (mid, high) = match command {
            0xb0 => (0x4f, 0xc2),
            _ => (0, 0),
        };
        cdb[0] = 0x85;
        cdb[1] = protocol << 1;
        cdb[2] = flags;
        cdb[4] = feature;
        cdb[6] = count;
        cdb[10] = mid;
        cdb[12] = high;
        cdb[14] = command;
        cdb
    }
}

/// Whether a disk has SMART, and has it on.
pub fn smart(identify: &[u8]) -> (bool, bool) {
    // Words 82 to 87 mean something where bits 15:14 of word 83 and 87 are 01b.
    let valid = |word: usize| word16(identify, word) >> 14 == 1;
    let has = valid(83) && word16(identify, 82) & 1 == 1;
    let is_on = valid(87) && word16(identify, 85) & 1 == 1;
    (has, has && is_on)
}

fn word16(bytes: &[u8], word: usize) -> u16 {
    match bytes.get(word * 2..word * 2 + 2) {
        Some(&[low, high]) => u16::from_le_bytes([low, high]),
        _ => 0,
    }
}

/// All bytes of a page add up to 0.
fn is_whole(page: &[u8]) -> bool {
    page.len() >= PAGE
        && page
            .iter()
            .take(PAGE)
            .fold(0_u8, |sum, byte| sum.wrapping_add(*byte))
            == 0
}

/// What attributes are called, which bytes of their raw value count (some keep other things above), and whether
/// any count at all is a reason for concern.
const NAMES: [(u8, &str, u32, bool); 26] = [
    (1, "raw_read_error_rate", 6, false),
    (3, "spin_up_time", 2, false),
    (4, "start_stop_count", 6, false),
    (5, "reallocated_sectors", 4, true),
    (7, "seek_error_rate", 6, false),
    (9, "power_on_hours", 4, false),
    (10, "spin_retries", 4, false),
    (12, "power_cycles", 4, false),
    (171, "program_failures", 4, false),
    (172, "erase_failures", 4, false),
    (173, "wear_leveling", 2, false),
    (177, "wear_leveling_count", 4, false),
    (184, "end_to_end_errors", 4, true),
    (187, "reported_uncorrectable", 4, true),
    (188, "command_timeouts", 2, false),
    (190, "airflow_temperature_c", 1, false),
    (192, "unsafe_shutdowns", 4, false),
    (193, "load_cycles", 4, false),
    (194, "temperature_c", 1, false),
    (196, "reallocation_events", 4, false),
    (197, "pending_sectors", 4, true),
    (198, "offline_uncorrectable", 4, true),
    (199, "interface_crc_errors", 4, false),
    (233, "media_wearout", 4, false),
    (241, "written_units", 6, false),
    (242, "read_units", 6, false),
];

/// Results of the last self-test, by the high half of byte 363.
const SELF_TESTS: [&str; 9] = [
    "passed",
    "aborted by the host",
    "interrupted by a reset",
    "failed: it could not be completed",
    "failed in an unknown part",
    "failed in the electrical part",
    "failed in the servo part",
    "failed in the read part",
    "failed: the disk is suspected to be damaged",
];

/// The attributes of a page, 12 bytes each.
fn attributes(page: &[u8]) -> impl Iterator<Item = &[u8; 12]> {
    let (attributes, _) = page.get(2..362).unwrap_or_default().as_chunks::<12>();
    attributes.iter().filter(|attribute| attribute[0] != 0)
}

/// Reads SMART data and the thresholds that belong to it (empty: they are not known).
pub fn data(page: &[u8], thresholds: &[u8], finding: &mut Finding) {
    if !is_whole(page) {
        finding.say(
            DiagVerdict::UNKNOWN,
            &["its SMART data is damaged: the checksum is wrong"],
        );
        return;
    }
    finding.asked();
    let threshold = |id: u8| {
        let known = match is_whole(thresholds) {
            true => thresholds,
            false => &[],
        };
        let of = attributes(known).find(|threshold| threshold[0] == id);
        of.map_or(0, |threshold| threshold[1])
    };
    for &[id, flags, _, value, _, raw @ ..] in attributes(page) {
        let known = NAMES.iter().find(|(known, ..)| *known == id);
        let (name, width, counts) = match known {
            Some(&(_, name, width, counts)) => (name.to_owned(), width, counts),
            None => (["attribute_", &shown(id.into())].concat(), 6, false),
        };
        let raw = raw
            .iter()
            .take(width as usize)
            .rev()
            .fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
        finding.number(&name, raw);
        if counts && raw != 0 {
            finding.say(DiagVerdict::WARN, &[&shown(raw), " ", &name]);
        }
        let least = threshold(id);
        if least != 0 && value <= least {
            // Pre-failure attributes foretell a failure, the others say that its life is over.
            let verdict = match flags & 1 {
                1 => DiagVerdict::FAIL,
                _ => DiagVerdict::WARN,
            };
            let (value, least) = (shown(value.into()), shown(least.into()));
            let parts: [&str; 5] = [
                &name,
                " is at ",
                &value,
                ", not above its threshold ",
                &least,
            ];
            finding.say(verdict, &parts);
        }
    }
    let status = page.get(363).copied().unwrap_or(0);
    match SELF_TESTS.get(usize::from(status >> 4)) {
        // 0 also where none was ever run.
        Some(_) if status >> 4 == 0 => {}
        Some(text) => {
            finding.text("self_test", text);
            if status >> 4 > 2 {
                finding.say(DiagVerdict::FAIL, &["its last self-test ", text]);
            }
        }
        // Fh: one runs, and tenths of it are left.
        None if status >> 4 == 15 => {
            finding.number(
                "self_test_percent",
                100 - 10 * u64::from(status & 15).min(10),
            );
        }
        None => {}
    }
}

/// Reads the registers that RETURN STATUS leaves, from the sense data they come in: whether a threshold
/// is passed. `None`: they are not there.
pub fn is_failing(sense: &[u8]) -> Option<bool> {
    let (mid, high) = match sense.first()? & 0x7f {
        // An ATA Status Return descriptor.
        0x72 if sense.get(8..10) == Some(&[9, 12]) => (*sense.get(17)?, *sense.get(19)?),
        0x70 => (*sense.get(10)?, *sense.get(11)?),
        _ => return None,
    };
    match (mid, high) {
        (0x4f, 0xc2) => Some(false),
        (0xf4, 0x2c) => Some(true),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    /// Bytes that add up to 0.
    fn sealed(mut page: Vec<u8>) -> Vec<u8> {
        page[511] = 0;
        let sum = page.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
        page[511] = sum.wrapping_neg();
        page
    }

    /// Attributes as a SATA disk of 4 TB had them: id, flags, value, worst, raw. Two of them pack other
    /// things into their high bytes.
    const DISK: [(u8, u16, u8, u8, [u8; 6]); 8] = [
        (1, 0x0f, 83, 64, [0xd8, 0x57, 0x2a, 0x0c, 0, 0]),
        (5, 0x33, 100, 100, [0; 6]),
        (9, 0x32, 58, 58, [0x13, 0x94, 0, 0, 0x5e, 0x7f]),
        (194, 0x22, 33, 45, [33, 0, 0, 0, 18, 0]),
        (197, 0x12, 100, 100, [0; 6]),
        (198, 0x10, 100, 100, [0; 6]),
        (199, 0x3e, 200, 200, [0; 6]),
        (240, 0x00, 100, 253, [1, 0, 0, 0, 0, 0]),
    ];

    fn page(change: impl Fn(&mut [u8])) -> Vec<u8> {
        let mut page = vec![0; PAGE];
        page[0] = 10;
        for (n, (id, flags, value, worst, raw)) in DISK.into_iter().enumerate() {
            let attribute = &mut page[2 + n * 12..][..12];
            attribute[0] = id;
            attribute[1..3].copy_from_slice(&flags.to_le_bytes());
            attribute[3..5].copy_from_slice(&[value, worst]);
            attribute[5..11].copy_from_slice(&raw);
        }
        change(&mut page);
        sealed(page)
    }

    fn thresholds() -> Vec<u8> {
        let mut page = vec![0; PAGE];
        page[0] = 10;
        for (n, (id, threshold)) in [(1, 44), (5, 10), (9, 0), (198, 99)]
            .into_iter()
            .enumerate()
        {
            page[2 + n * 12..][..2].copy_from_slice(&[id, threshold]);
        }
        sealed(page)
    }

    fn read(page: &[u8]) -> Finding {
        let mut finding = Finding::new("ata");
        data(page, &thresholds(), &mut finding);
        finding
    }

    #[test]
    fn a_healthy_disk_is_well_and_its_attributes_have_names() {
        let finding = read(&page(|_| ()));
        assert_eq!(
            (finding.0.verdict, finding.0.problems.len()),
            (DiagVerdict::OK, 0)
        );
        let readings = &finding.0.readings;
        for (name, number) in [
            ("raw_read_error_rate", 0x0c2a_57d8),
            ("power_on_hours", 37_907),
            ("temperature_c", 33),
            ("attribute_240", 1),
        ] {
            let reading = readings.iter().find(|one| one.name == name).unwrap();
            assert_eq!(reading.number, number, "{name}");
        }
    }

    #[test]
    fn bad_sectors_passed_thresholds_and_failed_tests_are_said() {
        let pending = read(&page(|page| page[2 + 4 * 12 + 5] = 8));
        assert_eq!(pending.0.verdict, DiagVerdict::WARN);
        assert_eq!(pending.0.problems, ["8 pending_sectors"]);
        let failing = read(&page(|page| page[2 + 12 + 3] = 10));
        assert_eq!(failing.0.verdict, DiagVerdict::FAIL);
        let said = "reallocated_sectors is at 10, not above its threshold 10";
        assert_eq!(failing.0.problems, [said]);
        let old = read(&page(|page| page[2 + 5 * 12 + 3] = 1));
        assert_eq!(old.0.verdict, DiagVerdict::WARN);
        for (status, verdict) in [
            (0x00, 1),
            (0x10, 1),
            (0x28, 1),
            (0x73, 4),
            (0xf4, 1),
            (0xc0, 1),
        ] {
            let tested = read(&page(|page| page[363] = status));
            assert_eq!(tested.0.verdict.0, verdict, "{status:#x}");
        }
    }

    #[test]
    fn a_page_that_does_not_add_up_says_nothing() {
        let mut bad = page(|_| ());
        bad[100] ^= 1;
        for page in [&bad[..], &[], &bad[..PAGE - 1]] {
            let finding = read(page);
            assert_eq!(finding.0.verdict, DiagVerdict::UNKNOWN);
            assert!(finding.0.readings.is_empty());
        }
        // Thresholds that do not: the data alone.
        let mut finding = Finding::new("ata");
        data(&page(|page| page[2 + 12 + 3] = 1), &[7; PAGE], &mut finding);
        assert_eq!(finding.0.verdict, DiagVerdict::OK);
    }

    #[test]
    fn what_return_status_leaves_is_found_in_both_forms_of_sense_data() {
        let descriptor = |mid: u8, high: u8| {
            let mut sense = vec![0x72, 1, 0, 0x1d, 0, 0, 0, 14, 9, 12];
            sense.extend([0, 0, 0, 0, 0, 0, 0, mid, 0, high, 0, 0x50]);
            sense
        };
        let fixed = |mid: u8, high: u8| vec![0x70, 0, 1, 0, 0x50, 0, 0, 10, 0, 0, mid, high];
        for sense in [&descriptor as &dyn Fn(u8, u8) -> Vec<u8>, &fixed] {
            assert_eq!(is_failing(&sense(0x4f, 0xc2)), Some(false));
            assert_eq!(is_failing(&sense(0xf4, 0x2c)), Some(true));
            assert_eq!(is_failing(&sense(0, 0)), None);
        }
        assert_eq!(is_failing(&[]), None);
        assert_eq!(is_failing(&[0x72, 5, 0x20, 0, 0, 0, 0, 0]), None);
    }

    #[test]
    fn commands_are_as_sat_writes_them() {
        let status = Command::SmartStatus.cdb();
        assert_eq!(
            status,
            [
                0x85, 6, 0x20, 0, 0xda, 0, 0, 0, 0, 0, 0x4f, 0, 0xc2, 0, 0xb0, 0
            ]
        );
        let data = Command::SmartData.cdb();
        assert_eq!(
            data,
            [
                0x85, 8, 0x0e, 0, 0xd0, 0, 1, 0, 0, 0, 0x4f, 0, 0xc2, 0, 0xb0, 0
            ]
        );
        assert_eq!(Command::Identify.cdb()[14], 0xec);
    }

    #[test]
    fn smart_is_there_where_the_disk_says_so_in_words_that_count() {
        let identify = |words: &[(usize, u16)]| {
            let mut page = vec![0; PAGE];
            for (word, value) in words {
                page[word * 2..][..2].copy_from_slice(&value.to_le_bytes());
            }
            page
        };
        let on = identify(&[(82, 1), (83, 0x4000), (85, 1), (87, 0x4000)]);
        assert_eq!(smart(&on), (true, true));
        let off = identify(&[(82, 1), (83, 0x4000), (85, 0), (87, 0x4000)]);
        assert_eq!(smart(&off), (true, false));
        assert_eq!(smart(&identify(&[(82, 1), (85, 1)])), (false, false));
        assert_eq!(smart(&[]), (false, false));
    }
}
