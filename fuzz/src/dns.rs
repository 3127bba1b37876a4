//! A name server's answer: as many addresses as it says at most, of the family that was asked for.
use bcd::rt::read_dns_answer;

pub const HEAP: super::Heap = super::Heap {
    base: 16 << 10,
    per_byte: 8,
};

pub fn run(data: &[u8]) {
    let id = [data.first(), data.get(1)].map(|byte| byte.copied().unwrap_or_default());
    for (kind, v4, length) in [(1, true, 16), (28, false, 28)] {
        let Some(addresses) = read_dns_answer(data, id, kind) else {
            continue;
        };
        assert!(addresses.iter().all(|address| address.is_ipv4() == v4));
        // Each has stood in it, with the shortest name before it.
        assert!(
            addresses.len() * (length - 1) <= data.len(),
            "{addresses:?}"
        );
    }
}
