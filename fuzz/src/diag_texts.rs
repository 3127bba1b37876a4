//! What diagnoses read besides disks: dcgmi's JSON, links with their counters, control groups, a child's
//! frames. What is told of it is bounded, and one line each.
use std::path::Path;

use bcd::command::diag::{Finding, dcgm, memory, network};
use bcd::command::worker;
use bcd::facts::tree::Tree;

pub const HEAP: super::Heap = super::Heap {
    base: 512 << 10,
    per_byte: 1024,
};

/// The first byte says which.
pub fn run(data: &[u8]) {
    let Some((first, bytes)) = data.split_first() else {
        return;
    };
    match first {
        0 => {
            let findings = dcgm::findings(bytes);
            assert!(findings.len() <= 512);
            findings.iter().for_each(holds);
        }
        1 => {
            if let Some(counted) = network::counted(bytes) {
                assert!(!counted.link.name.is_empty());
            }
        }
        2 => {
            let nowhere = Tree::new(Path::new("/nonexistent"));
            assert_eq!(memory::allowed(&nowhere, bytes), None);
            let _ = memory::kilobytes(bytes, "MemAvailable:");
        }
        _ => {
            // Cut anywhere, it says the same.
            let heard = |step: usize| {
                let (mut frames, mut said) = (worker::Frames::default(), Vec::new());
                let whole = bytes
                    .chunks(step)
                    .all(|piece| frames.push(piece, &mut |one| said.push(one)).is_some());
                (whole, said)
            };
            assert!(heard(7) == heard(bytes.len().max(1)));
        }
    }
}

/// What holds for every finding.
pub fn holds(finding: &Finding) {
    let finding = &finding.0;
    assert!(finding.problems.len() <= 16 && finding.readings.len() <= 128);
    assert!((0..=4).contains(&finding.verdict.0));
    let texts = finding
        .readings
        .iter()
        .flat_map(|reading| [&reading.name, &reading.text]);
    for text in texts.chain(&finding.problems) {
        assert!(
            text.len() <= 256 && !text.chars().any(char::is_control),
            "{text:?}"
        );
    }
    for (n, reading) in finding.readings.iter().enumerate() {
        let later = finding.readings.iter().skip(n + 1);
        assert!(!later.into_iter().any(|other| other.name == reading.name));
    }
}
