//! logind's list of inhibitors, whose texts any account of the machine chooses: a blocker is found in what
//! it is a part of, and what is put in quotes cannot pass for another entry.
use bcd::sys::power::blocker;

pub const HEAP: super::Heap = super::Heap {
    base: 4 << 10,
    per_byte: 64,
};

pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Some((who, why)) = blocker(&text) {
        assert!(who.len() + why.len() <= text.len());
    }
    let quoted: String = text
        .chars()
        .flat_map(|c| {
            ['\\', c]
                .into_iter()
                .skip(usize::from(c != '"' && c != '\\'))
        })
        .collect();
    let delays = format!("a(ssssuu) 1 \"shutdown\" \"x\" \"{quoted}\" \"delay\" 0 1");
    assert_eq!(blocker(&delays), None);
    let blocks = format!("a(ssssuu) 1 \"idle:shutdown\" \"x\" \"{quoted}\" \"block\" 0 1");
    assert_eq!(blocker(&blocks), Some(("x".to_owned(), text.into_owned())));
}
