//! ELF: what a file names is inside it, and few.
use ramdisk::elf::linkage;

pub const HEAP: super::Heap = super::Heap {
    base: 64 << 10,
    per_byte: 4096,
};

pub fn run(data: &[u8]) {
    if let Ok(found) = linkage(data) {
        for name in found.needed.iter().chain(&found.interpreter) {
            assert!(name.len() < data.len() && !name.contains('\0'));
        }
    }
}
