//! Identifiers of file systems and the like, from the first bytes of a disk or partition: printable and bounded, or none.
use bcd::deploy::ids;

pub const HEAP: super::Heap = super::Heap {
    base: 1 << 20,
    per_byte: 64,
};

pub fn run(data: &[u8]) {
    let good =
        |id: &str| !id.is_empty() && id.len() <= 40 && id.bytes().all(|b| b.is_ascii_graphic());
    // What is read of it lies where each kind has its mark: the input is put there.
    for at in [0, 510, 1024 + 56, 4086, 65_536 + 0x20] {
        let mut head = vec![0; at];
        head.extend_from_slice(data);
        head.resize(head.len().max(ids::LOOK), 0);
        if let Some((kind, id)) = ids::in_head(&head) {
            assert!(good(&id), "{kind}: {id:?}");
        }
        let mut read = |from: u64, length: usize| {
            let from = usize::try_from(from).unwrap_or(usize::MAX);
            let end = head.len().min(from.saturating_add(length));
            let bytes = head.get(from..end);
            bytes
                .map(<[u8]>::to_vec)
                .ok_or_else(|| std::io::ErrorKind::InvalidInput.into())
        };
        for name in ids::of_disk(512, &mut read) {
            assert!(good(&name.id), "{name}");
        }
    }
}
