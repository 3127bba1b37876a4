//! What the processor and the kernel say of the machine without a file.

/// As `uname -m` says: "x86_64", "aarch64".
pub fn architecture() -> String {
    rustix::system::uname()
        .machine()
        .to_string_lossy()
        .into_owned()
}

/// What a hypervisor puts into CPUID leaf 0x40000000. Real processors answer that leaf with anything:
/// it means something only where the processor's hypervisor bit is set.
#[cfg(target_arch = "x86_64")]
pub fn hypervisor() -> Option<[u8; 12]> {
    // Safe in newer compilers.
    #[allow(unused_unsafe)]
    // SAFETY: every x86-64 processor has CPUID, and it touches no memory.
    let leaf = unsafe { std::arch::x86_64::__cpuid(0x4000_0000) };
    let mut signature = [0; 12];
    let words = [leaf.ebx, leaf.ecx, leaf.edx];
    for (to, word) in signature.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    Some(signature)
}

/// Other architectures have no such leaf.
#[cfg(not(target_arch = "x86_64"))]
pub fn hypervisor() -> Option<[u8; 12]> {
    None
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_machine_has_an_architecture() {
        assert_eq!(super::architecture(), std::env::consts::ARCH);
    }
}
