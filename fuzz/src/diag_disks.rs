//! What disks say of their health: whatever it is, what is told of it is bounded, one line each, and named once.
use bcd::command::diag::{Finding, ata, nvme, scsi};

pub const HEAP: super::Heap = super::Heap {
    base: 128 << 10,
    per_byte: 64,
};

/// The first byte says which page it is.
pub fn run(data: &[u8]) {
    let Some((first, page)) = data.split_first() else {
        return;
    };
    let mut finding = Finding::new("disk");
    match first {
        0 => nvme::health(page, nvme::identify(page), &mut finding),
        1 => nvme::errors(page, &mut finding),
        2 => nvme::self_tests(page, &mut finding),
        3 => {
            let controller = nvme::identify(page);
            assert!((1..=nvme::ERRORS).contains(&controller.errors));
        }
        4 => ata::data(page, page, &mut finding),
        5 => {
            let (data, thresholds) = page.split_at(page.len().min(ata::PAGE));
            ata::data(data, thresholds, &mut finding);
        }
        6 => {
            let (has, is_on) = ata::smart(page);
            assert!(has || !is_on);
            let _ = ata::is_failing(page);
        }
        7 => {
            let text = scsi::sense_text(page);
            assert!(text.is_ascii() && text.len() < 64);
        }
        8 => assert!(scsi::supported(page).len() <= page.len()),
        _ => {
            for code in scsi::PAGES {
                scsi::log(code, page, &mut finding);
            }
        }
    }
    super::diag_texts::holds(&finding);
}
