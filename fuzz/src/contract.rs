//! Commands' parameters and spec sections as operators write them, and what nodes send as operators read
//! it: what is taken is shown, and taken again for the same bytes; whatever a node sends is shown as JSON.
use bcd::crypto::json;
use better_compute::contract::{
    encode_params, encode_section, event_body, show_facts, show_params, show_result, show_section,
};
use better_compute::json::Json;

pub const HEAP: super::Heap = super::Heap {
    base: 64 << 10,
    per_byte: 512,
};

const KINDS: &[&str] = &[
    "node.reboot",
    "logs.collect",
    "node.facts",
    "daemon.upgrade",
    "diag.dcgm",
    "diag.memory",
    "diag.disks",
    "diag.network",
    "disk.polish",
    "disks.wipe",
    "deploy.image",
    "machine.boot",
];
const SECTIONS: &[&str] = &["log", "daemon", "site"];
const NOW: i64 = 1_795_000_000_000;

/// The first byte says for which.
pub fn run(data: &[u8]) {
    let Some((first, bytes)) = data.split_first() else {
        return;
    };
    let kind = KINDS[usize::from(*first) % KINDS.len()];
    let section = SECTIONS[usize::from(*first) % SECTIONS.len()];
    if let Ok(given) = Json::parse(bytes, 64 << 10, 8) {
        let text = given.to_string();
        assert_eq!(
            Json::parse(text.as_bytes(), 1 << 20, 8).as_ref(),
            Ok(&given),
            "{text}"
        );
        match encode_params(kind, &given, NOW) {
            Err(why) => super::one_line(&why),
            Ok(encoded) => {
                let shown = show_params(kind, &encoded);
                assert_eq!(
                    encode_params(kind, &shown, NOW).as_ref(),
                    Ok(&encoded),
                    "{shown}"
                );
            }
        }
        match encode_section(section, &given) {
            Err(why) => super::one_line(&why),
            Ok(encoded) => {
                let shown = show_section(section, &encoded);
                assert_eq!(
                    encode_section(section, &shown).as_ref(),
                    Ok(&encoded),
                    "{shown}"
                );
            }
        }
    }
    let shown = [
        Some(show_params(kind, bytes)),
        show_result(kind, bytes),
        Some(show_section(section, bytes)),
        Some(show_facts(bytes)),
        Some(event_body(bytes, |_| Some(kind.to_owned()))),
    ];
    for shown in shown.into_iter().flatten() {
        let text = shown.to_string();
        assert!(
            json::check(text.as_bytes(), usize::MAX, 16).is_ok(),
            "{text}"
        );
        assert!(!matches!(shown, Json::Null), "something is shown");
    }
}
