//! A whole machine as its files show it: `/proc`, `/sys`, `/etc`, `/run`. Whatever stands in them, and wherever they
//! are, what is told of it is bounded and clean, and a disk in use is found so or not at all.
use std::path::{Component, Path};

use bcd::command::diag::memory;
use bcd::deploy::disk;
use bcd::facts::tree::Tree;
use bcd::facts::view::FactsView;
use bcd::facts::{self};
use bcd::proto::Message;

use super::fleet::Scratch;

pub const HEAP: super::Heap = super::Heap {
    base: 4 << 20,
    per_byte: 1024,
};

/// Files of one input, and how deep they lie.
const FILES: usize = 64;
const DEPTH: usize = 10;

/// Paths and contents in turn, a null byte behind each; a content that begins with `->` is a symlink's.
pub fn run(data: &[u8]) {
    let place = Scratch::new();
    let root = place.join("");
    let mut parts = data.split(|byte| *byte == 0);
    for _ in 0..FILES {
        let (Some(path), Some(content)) = (parts.next(), parts.next()) else {
            break;
        };
        put(&root, path, content);
    }
    let tree = Tree::new(&root);
    let facts = facts::of_tree(&tree);
    assert!(facts.encoded_len() <= 256 << 10, "{}", facts.encoded_len());
    assert!(facts.disks.len() <= 256 && facts.problems.len() <= 32);
    for disk in &facts.disks {
        let _ = disk::unused(&tree, &disk.kernel_name);
    }
    for text in facts.problems.iter().chain([&facts.hostname]) {
        assert!(text.len() <= 256 && !text.chars().any(char::is_control));
    }
    for (label, line) in FactsView::from(facts).lines() {
        assert!(!line.chars().any(char::is_control), "{label}: {line:?}");
    }
    let _ = memory::allowed(&tree, b"0::/a\n");
}

/// Nothing is made outside of `root`, and no link leads out of it.
fn put(root: &Path, path: &[u8], content: &[u8]) {
    let (Ok(path), true) = (std::str::from_utf8(path), path.len() < 256) else {
        return;
    };
    let path = Path::new(path);
    let depth = path.components().count();
    let plain = |part| matches!(part, Component::Normal(_));
    if depth == 0 || depth > DEPTH || !path.components().all(plain) {
        return;
    }
    let path = root.join(path);
    if let Some(above) = path.parent() {
        let _ = std::fs::create_dir_all(above);
    }
    let Some(target) = content.strip_prefix(b"->") else {
        let _ = std::fs::write(path, content);
        return;
    };
    let Ok(target) = std::str::from_utf8(target) else {
        return;
    };
    let up = |part: &Component<'_>| matches!(part, Component::ParentDir);
    let target = Path::new(target);
    let whole = target
        .components()
        .all(|part| up(&part) || plain(part) || part == Component::CurDir);
    // Links among the directories on the way could lead further up: none is made below one.
    if whole && target.components().filter(up).count() < depth && target.as_os_str().len() < 256 {
        let _ = std::os::unix::fs::symlink(target, path);
    }
}
