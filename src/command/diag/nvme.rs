//! What NVMe controllers say of themselves (NVM Express base specification 2.0, 5.16.1 and 5.17.2): Identify
//! Controller, and the log pages for errors (01h), health (02h) and self-tests (06h). Pure.
use super::{Finding, hex, shown};
use crate::proto::DiagVerdict;

/// Bytes of the data structure of Identify, and of each page; an error's entry has 64.
pub const IDENTIFY: usize = 4096;
pub const HEALTH: usize = 512;
pub const SELF_TESTS: usize = 564;
pub const ERROR: usize = 64;
/// Error entries asked for, and told.
pub const ERRORS: usize = 16;
const ERRORS_TOLD: usize = 4;

/// Kelvin at 0 degrees Celsius, as the specification rounds it.
const FREEZING: i64 = 273;

/// What a controller can do, as far as it matters here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Controller {
    /// Entries of its error log.
    pub errors: usize,
    /// Whether it keeps a log of self-tests.
    pub self_tests: bool,
    /// From which temperature it complains, and from which it is in danger, in Kelvin; 0: it does not say.
    warning: u16,
    critical: u16,
}

/// Reads Identify Controller.
pub fn identify(bytes: &[u8]) -> Controller {
    Controller {
        // Both count from 0.
        errors: (number(bytes, 262, 1) as usize + 1).min(ERRORS),
        self_tests: number(bytes, 256, 2) & 1 << 4 != 0,
        warning: number(bytes, 266, 2) as u16,
        critical: number(bytes, 268, 2) as u16,
    }
}

/// The number of `width` bytes at `at`, little-endian; what has more than 64 bits is held at their end, and
/// what is not there is 0.
fn number(bytes: &[u8], at: usize, width: usize) -> u64 {
    let bytes = bytes.get(at..at + width).unwrap_or_default();
    let (low, high) = bytes.split_at(bytes.len().min(8));
    if high.iter().any(|byte| *byte != 0) {
        return u64::MAX;
    }
    low.iter()
        .rev()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Of the health page: name, offset, width.
const READINGS: [(&str, usize, usize); 15] = [
    ("available_spare_percent", 3, 1),
    ("available_spare_threshold_percent", 4, 1),
    ("used_percent", 5, 1),
    // In thousands of 512 bytes.
    ("data_units_read", 32, 16),
    ("data_units_written", 48, 16),
    ("host_reads", 64, 16),
    ("host_writes", 80, 16),
    ("busy_minutes", 96, 16),
    ("power_cycles", 112, 16),
    ("power_on_hours", 128, 16),
    ("unsafe_shutdowns", 144, 16),
    ("media_errors", 160, 16),
    ("error_log_entries", 176, 16),
    ("warning_temperature_minutes", 192, 4),
    ("critical_temperature_minutes", 196, 4),
];

/// Bits of the critical warning.
const WARNINGS: [(DiagVerdict, &str); 6] = [
    (
        DiagVerdict::FAIL,
        "its spare capacity is below the threshold",
    ),
    (
        DiagVerdict::WARN,
        "its temperature is beyond its own threshold",
    ),
    (
        DiagVerdict::FAIL,
        "it says that it is not reliable any more",
    ),
    (DiagVerdict::FAIL, "it takes no more writes"),
    (DiagVerdict::FAIL, "its backup of volatile memory failed"),
    (
        DiagVerdict::FAIL,
        "its persistent memory region is read-only or not reliable",
    ),
];

/// Reads the health page.
pub fn health(bytes: &[u8], controller: Controller, finding: &mut Finding) {
    if bytes.len() < HEALTH {
        finding.say(DiagVerdict::UNKNOWN, &["its health log is cut short"]);
        return;
    }
    finding.asked();
    let warning = number(bytes, 0, 1);
    finding.number("critical_warning", warning);
    for (bit, (verdict, text)) in WARNINGS.into_iter().enumerate() {
        if warning >> bit & 1 == 1 {
            finding.say(verdict, &[text]);
        }
    }
    let kelvin = number(bytes, 1, 2);
    if kelvin != 0 {
        finding.signed("temperature_c", kelvin as i64 - FREEZING);
    }
    for (verdict, limit) in [
        (DiagVerdict::FAIL, controller.critical),
        (DiagVerdict::WARN, controller.warning),
    ] {
        if limit != 0 && kelvin >= limit.into() {
            let limit = (i64::from(limit) - FREEZING).to_string();
            finding.say(verdict, &["it is at or above its limit of ", &limit, " C"]);
            break;
        }
    }
    for (name, at, width) in READINGS {
        finding.number(name, number(bytes, at, width));
    }
    let used = number(bytes, 5, 1);
    if used >= 100 {
        let used = shown(used);
        finding.say(DiagVerdict::WARN, &[&used, " % of its rated life is used"]);
    }
    let errors = number(bytes, 160, 16);
    if errors != 0 {
        finding.say(DiagVerdict::WARN, &[&shown(errors), " media errors"]);
    }
}

/// Reads the error log, the newest first. What is in it is told; of its own it is no reason for
/// concern, since commands that a controller does not know are in it as well.
pub fn errors(bytes: &[u8], finding: &mut Finding) {
    let entries = bytes.chunks_exact(ERROR).take(ERRORS);
    let valid = entries.filter(|entry| number(entry, 0, 8) != 0);
    for (n, entry) in valid.take(ERRORS_TOLD).enumerate() {
        // Bit 0 is the phase tag; then the code, its type, and flags.
        let status = number(entry, 12, 2) >> 1;
        let text = [
            "number ",
            &shown(number(entry, 0, 8)),
            ", status ",
            &hex(status & 0x7ff),
            ", queue ",
            &shown(number(entry, 8, 2)),
            ", namespace ",
            &shown(number(entry, 24, 4)),
            ", block ",
            &shown(number(entry, 16, 8)),
        ];
        finding.text(&["error_", &shown(n as u64 + 1)].concat(), &text.concat());
    }
}

/// Results of a self-test (figure 208), from 0 on.
const RESULTS: [&str; 10] = [
    "passed",
    "aborted by a command",
    "aborted by a reset",
    "aborted: a namespace was removed",
    "aborted by a format",
    "failed: it could not be completed",
    "failed in an unknown segment",
    "failed",
    "aborted",
    "aborted by a sanitize",
];

/// Reads the self-test log: the newest result counts.
pub fn self_tests(bytes: &[u8], finding: &mut Finding) {
    if bytes.len() < SELF_TESTS {
        return;
    }
    if number(bytes, 0, 1) & 15 != 0 {
        finding.number("self_test_percent", number(bytes, 1, 1) & 127);
    }
    let entry = bytes.get(4..32).unwrap_or_default();
    let result = number(entry, 0, 1) & 15;
    let Some(text) = RESULTS.get(result as usize) else {
        // Fh: there is none.
        return;
    };
    finding.text("self_test", text);
    finding.number("self_test_hours", number(entry, 4, 8));
    if matches!(result, 5..=7) {
        let block = match number(entry, 2, 1) & 2 {
            0 => String::new(),
            _ => [", at block ", &shown(number(entry, 16, 8))].concat(),
        };
        finding.say(DiagVerdict::FAIL, &["its last self-test ", text, &block]);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    /// The health page of a disk of the field: what `nvme smart-log --raw-binary` gives of a data centre's SSD after two
    /// years, rebuilt byte by byte.
    fn page() -> Vec<u8> {
        let mut page = vec![0; HEALTH];
        let mut put = |at: usize, bytes: &[u8]| page[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &[0, 0x36, 0x01, 100, 10, 3]);
        put(32, &415_827_331_u64.to_le_bytes());
        put(48, &291_117_004_u64.to_le_bytes());
        put(64, &7_912_345_678_u64.to_le_bytes());
        put(80, &5_112_345_678_u64.to_le_bytes());
        put(96, &18_211_u64.to_le_bytes());
        put(112, &41_u64.to_le_bytes());
        put(128, &17_412_u64.to_le_bytes());
        put(144, &22_u64.to_le_bytes());
        put(200, &[0x36, 0x01, 0x44, 0x01]);
        page
    }

    fn read(page: &[u8], controller: Controller) -> Finding {
        let mut finding = Finding::new("nvme");
        health(page, controller, &mut finding);
        finding
    }

    fn reading(finding: &Finding, name: &str) -> i64 {
        let readings = &finding.0.readings;
        readings.iter().find(|one| one.name == name).unwrap().number
    }

    #[test]
    fn a_healthy_disk_is_well_and_its_numbers_are_told() {
        let finding = read(&page(), Controller::default());
        assert_eq!(finding.0.verdict, DiagVerdict::OK);
        assert!(finding.0.problems.is_empty());
        for (name, number) in [
            ("temperature_c", 37),
            ("used_percent", 3),
            ("data_units_written", 291_117_004),
            ("power_on_hours", 17_412),
            ("unsafe_shutdowns", 22),
            ("media_errors", 0),
        ] {
            assert_eq!(reading(&finding, name), number, "{name}");
        }
    }

    #[test]
    fn each_warning_has_its_words_and_its_weight() {
        for (bit, verdict) in [
            (0, DiagVerdict::FAIL),
            (1, DiagVerdict::WARN),
            (2, DiagVerdict::FAIL),
            (3, DiagVerdict::FAIL),
            (4, DiagVerdict::FAIL),
            (5, DiagVerdict::FAIL),
        ] {
            let mut page = page();
            page[0] = 1 << bit;
            let finding = read(&page, Controller::default());
            assert_eq!((finding.0.verdict, finding.0.problems.len()), (verdict, 1));
        }
        let mut worn = page();
        worn[5] = 104;
        worn[160] = 7;
        let finding = read(&worn, Controller::default());
        assert_eq!(finding.0.verdict, DiagVerdict::WARN);
        assert_eq!(
            finding.0.problems,
            ["104 % of its rated life is used", "7 media errors"]
        );
        let mut endless = page();
        endless[32..48].fill(0xff);
        let finding = read(&endless, Controller::default());
        assert_eq!(reading(&finding, "data_units_read"), i64::MAX);
    }

    #[test]
    fn temperatures_are_held_against_the_controllers_own_limits() {
        let mut bytes = vec![0; IDENTIFY];
        bytes[262] = 63;
        bytes[256] = 1 << 4;
        bytes[266..268].copy_from_slice(&310_u16.to_le_bytes());
        bytes[268..270].copy_from_slice(&343_u16.to_le_bytes());
        let controller = identify(&bytes);
        assert_eq!((controller.errors, controller.self_tests), (ERRORS, true));
        let finding = read(&page(), controller);
        assert_eq!(finding.0.verdict, DiagVerdict::WARN);
        assert_eq!(finding.0.problems, ["it is at or above its limit of 37 C"]);
        let mut hot = page();
        hot[1..3].copy_from_slice(&350_u16.to_le_bytes());
        assert_eq!(read(&hot, controller).0.verdict, DiagVerdict::FAIL);
        assert_eq!(identify(&[]).errors, 1);
    }

    #[test]
    fn errors_and_self_tests_are_told() {
        let mut log = vec![0; ERROR * 3];
        log[..8].copy_from_slice(&9_u64.to_le_bytes());
        log[12..14].copy_from_slice(&(0x281_u16 << 1).to_le_bytes());
        log[16..24].copy_from_slice(&4096_u64.to_le_bytes());
        log[24] = 1;
        let mut finding = Finding::new("nvme");
        errors(&log, &mut finding);
        let told = "number 9, status 0x281, queue 0, namespace 1, block 4096";
        assert_eq!(finding.0.readings.len(), 1);
        assert_eq!(finding.0.readings[0].text, told);

        for (result, verdict) in [(0, 0), (1, 0), (7, 4), (6, 4), (15, 0), (10, 0)] {
            let mut log = vec![0; SELF_TESTS];
            log[4] = 1 << 4 | result;
            log[6] = 2;
            log[8] = 100;
            log[20] = 5;
            let mut finding = Finding::new("nvme");
            self_tests(&log, &mut finding);
            assert_eq!(finding.0.verdict.0, verdict, "{result}");
            assert_eq!(finding.0.readings.is_empty(), result >= 10);
            if result == 7 {
                assert_eq!(
                    finding.0.problems,
                    ["its last self-test failed, at block 5"]
                );
            }
        }
    }

    #[test]
    fn pages_that_are_cut_short_say_nothing() {
        for end in [0, 1, 3, 200, HEALTH - 1] {
            let finding = read(&page()[..end], Controller::default());
            assert_eq!(finding.0.verdict, DiagVerdict::UNKNOWN);
        }
        let mut finding = Finding::new("nvme");
        errors(&[1; ERROR - 1], &mut finding);
        self_tests(&[1; SELF_TESTS - 1], &mut finding);
        assert!(finding.0.readings.is_empty());
    }
}
