//! depmod's files: what is read is written and read back the same; a walk of dependencies ends.
use init::modules::{Aliases, Dependencies, SoftDependencies, matches, name_of};

pub const HEAP: super::Heap = super::Heap {
    base: 32 << 10,
    per_byte: 512,
};

pub fn run(data: &[u8]) {
    if let Ok(found) = Dependencies::parse(data) {
        let text = found.filtered(|_| true);
        let again = Dependencies::parse(text.as_bytes()).expect("what was read reads back");
        assert_eq!(again.filtered(|_| true), text);
        for path in found.paths().take(32) {
            if let Ok(order) = found.order(&name_of(path)) {
                assert!(!order.is_empty() && order.len() <= found.paths().count());
            }
        }
    }
    if let Ok(found) = Aliases::parse(data) {
        let text = found.filtered(|_| true);
        let again = Aliases::parse(text.as_bytes()).expect("what was read reads back");
        assert_eq!(again.filtered(|_| true), text);
        let _ = found.matching("pci:v00008086d00000001").count();
    }
    if let Ok(found) = SoftDependencies::parse(data) {
        let text = found.filtered(|_| true);
        assert!(SoftDependencies::parse(text.as_bytes()).is_ok());
    }
    let text = String::from_utf8_lossy(data);
    let (pattern, name) = text.split_once('\n').unwrap_or((&text, ""));
    let _ = matches(pattern, name);
}
