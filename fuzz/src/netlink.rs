//! Netlink: what the kernel sends is taken apart without a panic, and nothing of it is larger than
//! what came.
use bcd::command::diag::ethtool;
use bcd::facts::nics;
use bcd::sys::netlink::{attributes, messages};

pub const HEAP: super::Heap = super::Heap {
    base: 4096,
    per_byte: 16,
};

pub fn run(data: &[u8]) {
    let mut payloads = 0;
    for message in messages(data) {
        let Ok(message) = message else {
            break;
        };
        payloads += message.payload.len() + 16;
        walk(message.payload);
    }
    // The last one needs no padding.
    assert!(payloads <= data.len() + 3);
    walk(data);
}

fn walk(payload: &[u8]) {
    for attribute in attributes(payload) {
        assert!(attribute.value.len() < payload.len());
        assert_eq!(attribute.kind & 0xc000, 0);
    }
    if let Some(link) = nics::link(payload) {
        for text in [&link.name, &link.kind, &link.mac, &link.permanent_mac] {
            assert!(text.len() <= 256 && !text.chars().any(char::is_control));
        }
        assert!(!link.name.is_empty());
    }
    let mut told = Vec::new();
    ethtool::take(payload, &mut told);
    assert!(told.len() <= 1);
    if let Some(address) = nics::address(payload) {
        assert!(!address.address.to_string().is_empty());
    }
}
