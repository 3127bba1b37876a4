//! What disks are known by: whatever stands where superblocks are, an identifier is one word, a label one line, and
//! two looks at one disk find the same.
use bcd::deploy::ids::{LOOK, in_head, label, of_disk, shared};

pub const HEAP: super::Heap = super::Heap {
    base: 6 << 20,
    per_byte: 4096,
};

/// Pieces of a disk: a place in three bytes, a length in one, and so many bytes. The disk is these again and again.
pub fn run(data: &[u8]) {
    let mut head = vec![0; LOOK];
    let mut rest = data;
    while let [a, b, c, length, more @ ..] = rest {
        let (piece, after) = more.split_at(usize::from(*length).min(more.len()));
        let at = u32::from_be_bytes([0, *a, *b, *c]) as usize % LOOK;
        let end = LOOK.min(at + piece.len());
        head[at..end].copy_from_slice(&piece[..end - at]);
        rest = after;
    }
    if let Some((kind, id)) = in_head(&head) {
        assert!((1..=40).contains(&id.len()), "{kind} {id:?}");
        assert!(id.bytes().all(|byte| byte.is_ascii_graphic()), "{id:?}");
        let label = label(&head, kind);
        assert!(label.len() <= 256 && !label.chars().any(char::is_control));
    }
    let look = || {
        of_disk(512, &mut |at, length| {
            let from = usize::try_from(at % LOOK as u64).expect("it is small");
            let (before, after) = head.split_at(from);
            let mut bytes = [after, before].concat();
            bytes.truncate(length);
            Ok(bytes)
        })
    };
    let names = look();
    assert!(names.len() <= 2 + 2 * 128, "{}", names.len());
    assert_eq!(look(), names);
    assert_eq!(shared(&names, &names).is_none(), names.is_empty());
    names.iter().for_each(super::one_line);
}
