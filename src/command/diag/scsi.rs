//! What SCSI disks say of themselves: log pages (SPC-5 7.3). Pure.
use super::{Finding, hex, shown};
use crate::proto::DiagVerdict;
pub use crate::sys::passthrough::sense::{ILLEGAL_REQUEST, sense, sense_text};

/// The longest page asked for.
pub const PAGE: usize = 4096;

/// The page of pages, and those that are understood here.
pub const SUPPORTED: u8 = 0x00;
const WRITE_ERRORS: u8 = 0x02;
const READ_ERRORS: u8 = 0x03;
const VERIFY_ERRORS: u8 = 0x05;
const TEMPERATURE: u8 = 0x0d;
const SELF_TESTS: u8 = 0x10;
const SOLID_STATE: u8 = 0x11;
const INFORMATIONAL: u8 = 0x2f;
pub const PAGES: [u8; 7] = [
    INFORMATIONAL,
    TEMPERATURE,
    WRITE_ERRORS,
    READ_ERRORS,
    VERIFY_ERRORS,
    SELF_TESTS,
    SOLID_STATE,
];

/// LOG SENSE for cumulative values of a page.
pub fn log_sense(page: u8) -> [u8; 10] {
    let [high, low] = (PAGE as u16).to_be_bytes();
    [0x4d, 0, 1 << 6 | page, 0, 0, 0, 0, high, low, 0]
}

/// The pages that a disk lists in page [`SUPPORTED`].
pub fn supported(bytes: &[u8]) -> &[u8] {
    match body(bytes, SUPPORTED) {
        Some(pages) => pages,
        None => &[],
    }
}

/// What is in a page, if it is this one.
fn body(bytes: &[u8], page: u8) -> Option<&[u8]> {
    let (&[code, _, high, low], rest) = bytes.split_first_chunk()?;
    let length = usize::from(u16::from_be_bytes([high, low]));
    // What the disk has more than was asked for is not here.
    let body = rest.get(..length).unwrap_or(rest);
    (code & 0x3f == page).then_some(body)
}

/// The parameters of a page: code and value.
fn parameters(body: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = body;
    std::iter::from_fn(move || {
        let (&[high, low, _, length], more) = rest.split_first_chunk()?;
        let value = more.get(..usize::from(length))?;
        rest = more.get(usize::from(length)..)?;
        Some((u16::from_be_bytes([high, low]), value))
    })
}

fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .take(8)
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Reads one of [`PAGES`]; whether it was that.
pub fn log(page: u8, bytes: &[u8], finding: &mut Finding) -> bool {
    let Some(body) = body(bytes, page) else {
        return false;
    };
    for (code, value) in parameters(body) {
        let byte = |at: usize| value.get(at).copied().unwrap_or(0);
        match (page, code) {
            (INFORMATIONAL, 0) => {
                finding.asked();
                let additional = [byte(0), byte(1)];
                if let Some((verdict, text)) = foretold(additional) {
                    let code = hex(u16::from_be_bytes(additional).into());
                    finding.say(verdict, &[text, " (", &code, ")"]);
                }
            }
            // FFh: it does not know.
            (TEMPERATURE, 0) if byte(1) != 0xff => {
                finding.asked();
                finding.number("temperature_c", byte(1).into());
            }
            (TEMPERATURE, 1) if byte(1) != 0xff => {
                finding.number("temperature_limit_c", byte(1).into());
            }
            (SOLID_STATE, 1) => {
                finding.asked();
                let used = u64::from(byte(3));
                finding.number("used_percent", used);
                if used >= 100 {
                    let used = shown(used);
                    finding.say(DiagVerdict::WARN, &[&used, " % of its rated life is used"]);
                }
            }
            (WRITE_ERRORS | READ_ERRORS | VERIFY_ERRORS, 3 | 6) => {
                finding.asked();
                let what = match page {
                    WRITE_ERRORS => "write",
                    READ_ERRORS => "read",
                    _ => "verify",
                };
                let how = match code {
                    3 => "corrected",
                    _ => "uncorrected",
                };
                let count = number(value);
                finding.number(&[what, "_errors_", how].concat(), count);
                if code == 6 && count != 0 {
                    let count = shown(count);
                    finding.say(
                        DiagVerdict::WARN,
                        &[&count, " uncorrected errors to ", what],
                    );
                }
            }
            // The newest; 0 in its last bytes too: none was run.
            (SELF_TESTS, 1) if value.iter().any(|byte| *byte != 0) => {
                let result = byte(0) & 15;
                finding.text(
                    "self_test",
                    match result {
                        0 => "passed",
                        1 | 2 => "aborted",
                        15 => "under way",
                        _ => "failed",
                    },
                );
                if (3..=7).contains(&result) {
                    finding.say(DiagVerdict::FAIL, &["its last self-test failed"]);
                }
            }
            _ => {}
        }
    }
    true
}

/// What an informational exception means, by its additional sense code and qualifier.
fn foretold(additional: [u8; 2]) -> Option<(DiagVerdict, &'static str)> {
    match additional {
        [0x5d, 0xff] => None, // A test's.
        [0x5d, _] => Some((DiagVerdict::FAIL, "it foretells its failure")),
        [0x0b, 0x01] => Some((DiagVerdict::WARN, "its temperature is beyond its limit")),
        [0x0b, _] => Some((DiagVerdict::WARN, "it warns")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    fn page(code: u8, parameters: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = Vec::new();
        for (code, value) in parameters {
            body.extend(code.to_be_bytes());
            body.push(3);
            body.push(u8::try_from(value.len()).unwrap());
            body.extend(*value);
        }
        let mut page = vec![code, 0];
        page.extend(u16::try_from(body.len()).unwrap().to_be_bytes());
        page.extend(body);
        page
    }

    fn read(pages: &[Vec<u8>]) -> Finding {
        let mut finding = Finding::new("scsi");
        for page in pages {
            assert!(log(page[0], page, &mut finding));
        }
        finding
    }

    /// Pages of a SAS disk of the field (sg_logs -H), their vendors' parameters left out.
    fn healthy() -> Vec<Vec<u8>> {
        vec![
            page(0x2f, &[(0, &[0, 0, 34, 0])]),
            vec![0x0d, 0, 0, 12, 0, 0, 3, 2, 0, 34, 0, 1, 3, 2, 0, 60],
            page(
                3,
                &[
                    (0, &[0; 8]),
                    (3, &[0, 0, 0, 0, 0, 9, 0xac, 0x11]),
                    (6, &[0; 8]),
                ],
            ),
        ]
    }

    #[test]
    fn a_healthy_disk_is_well_and_its_numbers_are_told() {
        let finding = read(&healthy());
        assert_eq!(
            (finding.0.verdict, finding.0.problems.len()),
            (DiagVerdict::OK, 0)
        );
        let told: Vec<(&str, i64)> = finding
            .0
            .readings
            .iter()
            .map(|r| (r.name.as_str(), r.number))
            .collect();
        assert_eq!(
            told,
            [
                ("temperature_c", 34),
                ("temperature_limit_c", 60),
                ("read_errors_corrected", 633_873),
                ("read_errors_uncorrected", 0),
            ]
        );
    }

    #[test]
    fn what_a_disk_foretells_and_could_not_correct_is_said() {
        for (page, verdict, said) in [
            (
                page(0x2f, &[(0, &[0x5d, 0x10, 40])]),
                DiagVerdict::FAIL,
                "it foretells its failure (0x5d10)",
            ),
            (
                page(0x2f, &[(0, &[0x0b, 0x01, 80])]),
                DiagVerdict::WARN,
                "its temperature is beyond its limit (0xb01)",
            ),
            (
                page(2, &[(6, &[0, 2])]),
                DiagVerdict::WARN,
                "2 uncorrected errors to write",
            ),
            (
                page(0x11, &[(1, &[0, 0, 0, 101])]),
                DiagVerdict::WARN,
                "101 % of its rated life is used",
            ),
            (
                page(0x10, &[(1, &[0x27, 0, 0x10, 0])]),
                DiagVerdict::FAIL,
                "its last self-test failed",
            ),
        ] {
            let finding = read(&[page]);
            assert_eq!(
                (finding.0.verdict, finding.0.problems),
                (verdict, vec![said.to_owned()])
            );
        }
        // A test of the reporting is no failure, and a page of nothing no health.
        assert_eq!(
            read(&[page(0x2f, &[(0, &[0x5d, 0xff, 40])])]).0.verdict,
            DiagVerdict::OK
        );
        assert_eq!(read(&[page(0x0d, &[(0, &[0, 0xff])])]).0.verdict.0, 0);
        assert_eq!(read(&[page(0x10, &[(1, &[0; 16])])]).0.readings, []);
    }

    #[test]
    fn pages_are_listed_and_those_of_another_code_are_none() {
        assert_eq!(supported(&[0, 0, 0, 4, 0, 2, 3, 0x2f]), [0, 2, 3, 0x2f]);
        assert_eq!(supported(&[0, 0, 0, 200, 0, 2]), [0, 2], "cut short");
        assert_eq!(supported(&[0x2f, 0, 0, 1, 0]), []);
        let mut finding = Finding::new("scsi");
        for bytes in [&[][..], &[0x2f], &[0x0d, 0, 0, 0]] {
            assert!(!log(0x2f, bytes, &mut finding), "{bytes:?}");
        }
        assert_eq!(log_sense(0x2f), [0x4d, 0, 0x6f, 0, 0, 0, 0, 0x10, 0, 0]);
    }
}
