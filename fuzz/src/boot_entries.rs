//! The firmware's variables: whatever they hold, ours becomes the first entry and no other is lost.
use bcd::deploy::efi::{LABEL, label, order, plan};

pub const HEAP: super::Heap = super::Heap {
    base: 64 << 10,
    per_byte: 64,
};

pub fn run(data: &[u8]) {
    let name = label(data);
    let before = order(data);
    let entries: Vec<(u16, String)> = before
        .iter()
        .take(64)
        .map(|number| {
            let ours = number % 3 == 0;
            let text = if ours {
                LABEL.to_owned()
            } else {
                name.clone().unwrap_or_default()
            };
            (*number, text)
        })
        .collect();
    let Some(plan) = plan(&entries, &before) else {
        panic!("64 entries leave room");
    };
    assert_eq!(plan.order.first(), Some(&plan.number));
    assert_eq!(
        plan.order
            .iter()
            .filter(|number| **number == plan.number)
            .count(),
        1
    );
    for number in &before {
        let kept = plan.order.contains(number);
        assert_eq!(
            kept,
            !plan.remove.contains(number) || *number == plan.number
        );
    }
}
