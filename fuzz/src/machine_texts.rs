//! Texts that a machine shows itself in (`/proc`, os-release, nvidia-smi): anything may stand in them,
//! and what comes out is clean, bounded and without secrets.
use bcd::facts::{cpu, firmware, gpus, kernel, memory, tree, virtualization};

pub const HEAP: super::Heap = super::Heap {
    base: 64 << 10,
    per_byte: 24,
};

pub fn run(data: &[u8]) {
    let clean = |text: &str| {
        assert!(text.len() <= 256, "{}", text.len());
        assert!(!text.chars().any(char::is_control), "{text:?}");
        assert_eq!(text.trim(), text);
    };
    clean(&tree::clean(data));
    clean(&cpu::cpuinfo(data).model);
    clean(&kernel::os_release(data));
    let listed = gpus::parse(data);
    assert!(listed.gpus.len() <= 64 && listed.complaints.len() <= 8);
    for gpu in &listed.gpus {
        clean(&gpu.uuid);
        clean(&gpu.name);
        clean(&gpu.pci_address);
    }
    let _ = memory::total(data);
    let _ = firmware::secure_boot(data);
    let _ = virtualization::is_container(data);
    let line = kernel::command_line(data);
    assert!(!line.chars().any(char::is_control));
    if let Ok(text) = std::str::from_utf8(data) {
        assert!(line.len() <= text.len() * 4);
        assert!(cpu::count(text) <= 8192 * u32::try_from(text.len() + 1).unwrap_or(1));
        if let Some(telling) = firmware::telling(text) {
            assert!(!telling.is_empty());
        }
    }
    let mut secret = b"bc.token=".to_vec();
    secret.extend(data.iter().filter(|byte| byte.is_ascii_alphanumeric()));
    secret.extend_from_slice(b"5ecret quiet");
    assert_eq!(kernel::command_line(&secret), "bc.token=*** quiet");
}
