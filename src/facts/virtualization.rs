//! What the machine runs in: a container, a virtual machine of which maker, or nothing.
//!
//! As systemd-detect-virt(1) does, a container comes first, since it bounds what can be done from
//! within; then firmware that names its hypervisor, then what the hypervisor itself says.
use super::tree::Tree;
use crate::proto::Firmware;

/// The environment of a container's first process.
const ENVIRON: usize = 16 * 1024;

/// Where a process's PID namespace is named, and the name of the kernel's first one
/// (PROC_PID_INIT_INO). Container managers give each container another. Files such as `/.dockerenv`
/// are no sign: they stay in images that are booted as machines.
const PID_NAMESPACE: &str = "proc/self/ns/pid";
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// What firmware of virtual machines calls itself (as systemd has them).
const FIRMWARE: &[(&str, &str)] = &[
    ("KVM", "kvm"),
    ("OpenStack", "kvm"),
    ("KubeVirt", "kvm"),
    ("Amazon EC2", "amazon"),
    ("QEMU", "qemu"),
    ("VMware", "vmware"),
    ("VMW", "vmware"),
    ("innotek GmbH", "oracle"),
    ("VirtualBox", "oracle"),
    ("Oracle Corporation", "oracle"),
    ("Xen", "xen"),
    ("Bochs", "bochs"),
    ("Parallels", "parallels"),
    ("BHYVE", "bhyve"),
    ("Hyper-V", "microsoft"),
    ("Apple Virtualization", "apple"),
    ("Google Compute Engine", "google"),
];

/// What hypervisors put into CPUID leaf 0x40000000.
const SIGNATURES: &[(&[u8; 12], &str)] = &[
    (b"KVMKVMKVM\0\0\0", "kvm"),
    (b"Linux KVM Hv", "kvm"),
    (b"TCGTCGTCGTCG", "qemu"),
    (b"VMwareVMware", "vmware"),
    (b"Microsoft Hv", "microsoft"),
    (b"XenVMMXenVMM", "xen"),
    (b"bhyve bhyve ", "bhyve"),
    (b"QNXQVMBSQG\0\0", "qnx"),
    (b"ACRNACRNACRN", "acrn"),
    (b"SRESRESRESRE", "lockheed"),
    (b" lrpepyh  vr", "parallels"),
];

/// What there is to judge by.
#[derive(Debug, Default)]
pub struct Signs<'a> {
    /// A container manager left its mark.
    pub container: bool,
    /// Texts of the firmware: makers and products.
    pub firmware: &'a [&'a str],
    /// The processor says that it is virtual.
    pub hypervisor: bool,
    /// CPUID leaf 0x40000000; nothing on real hardware and on other architectures.
    pub signature: Option<[u8; 12]>,
    /// `/sys/hypervisor/type`.
    pub sys_hypervisor: &'a str,
    /// This is Xen's dom0: it runs on the hardware for all that matters here.
    pub dom0: bool,
    /// `/proc/device-tree/hypervisor/compatible`.
    pub device_tree: &'a str,
}

/// "none", "container", "kvm", "qemu" and so on; "other" when all that is known is that it is virtual.
pub fn judge(signs: &Signs<'_>) -> &'static str {
    if signs.container {
        return "container";
    }
    if signs.dom0 {
        return "none";
    }
    let by_signature = signs.signature.as_ref().and_then(|signature| {
        let known = SIGNATURES.iter().find(|(known, _)| *known == signature);
        known.map(|(_, name)| *name)
    });
    let by_firmware = FIRMWARE.iter().find_map(|(prefix, name)| {
        let texts = &mut signs.firmware.iter();
        texts.any(|text| text.starts_with(prefix)).then_some(*name)
    });
    let is_arm = cfg!(target_arch = "aarch64");
    // On x86 the processor knows: Oracle and Amazon build real machines too. Elsewhere the firmware
    // and the device tree are all there is.
    if !signs.hypervisor && signs.sys_hypervisor.is_empty() && signs.device_tree.is_empty() {
        return match by_firmware {
            Some(name @ ("kvm" | "qemu" | "vmware" | "apple" | "microsoft")) if is_arm => name,
            _ => "none",
        };
    }
    match (by_firmware, by_signature) {
        // QEMU is the machine, KVM what runs it.
        (Some("qemu"), Some("kvm")) => "kvm",
        (Some(name), _) => name,
        (None, Some(name)) => name,
        (None, None) if signs.sys_hypervisor == "xen" => "xen",
        (None, None) if signs.device_tree.contains("kvm") => "kvm",
        (None, None) if signs.device_tree.contains("xen") => "xen",
        (None, None) => "other",
    }
}

/// Whether an environment is that of a container's first process (`container=lxc`).
pub fn is_container(environ: &[u8]) -> bool {
    environ
        .split(|byte| *byte == 0)
        .filter_map(|variable| variable.strip_prefix(b"container="))
        .any(|value| !value.is_empty())
}

pub(super) fn read(
    tree: &Tree,
    firmware: &Firmware,
    hypervisor: bool,
    signature: Option<[u8; 12]>,
) -> String {
    let container = tree.exists("run/systemd/container")
        || tree
            .link(PID_NAMESPACE)
            .is_some_and(|ns| ns != FIRST_PID_NAMESPACE)
        || tree
            .bytes("proc/1/environ", ENVIRON)
            .is_ok_and(|environ| is_container(&environ));
    let board = tree.text("sys/class/dmi/id/board_vendor");
    let signs = Signs {
        container,
        firmware: &[
            &firmware.system_product,
            &firmware.system_vendor,
            &board,
            &firmware.vendor,
        ],
        hypervisor,
        signature,
        sys_hypervisor: &tree.text("sys/hypervisor/type"),
        dom0: tree.text("proc/xen/capabilities").contains("control_d"),
        device_tree: &tree.text("proc/device-tree/hypervisor/compatible"),
    };
    judge(&signs).to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::tree::tests::Fixture;
    use super::*;

    fn virtual_x86<'a>(firmware: &'a [&'a str], signature: &[u8; 12]) -> Signs<'a> {
        Signs {
            firmware,
            hypervisor: true,
            signature: Some(*signature),
            ..Signs::default()
        }
    }

    #[test]
    fn each_maker_is_known_by_its_marks() {
        let kvm = b"KVMKVMKVM\0\0\0";
        for (signs, name) in [
            (Signs::default(), "none"),
            (virtual_x86(&[], kvm), "kvm"),
            (
                virtual_x86(&["Standard PC (Q35 + ICH9, 2009)", "QEMU"], kvm),
                "kvm",
            ),
            (
                virtual_x86(&["Standard PC", "QEMU"], b"TCGTCGTCGTCG"),
                "qemu",
            ),
            (
                virtual_x86(&["VMware7,1", "VMware, Inc."], b"VMwareVMware"),
                "vmware",
            ),
            (
                virtual_x86(
                    &["Virtual Machine", "Microsoft Corporation"],
                    b"Microsoft Hv",
                ),
                "microsoft",
            ),
            (virtual_x86(&["HVM domU", "Xen"], b"XenVMMXenVMM"), "xen"),
            (
                virtual_x86(&["Google Compute Engine", "Google"], kvm),
                "google",
            ),
            (virtual_x86(&["m7i.large", "Amazon EC2"], kvm), "amazon"),
            (virtual_x86(&[], b"whatisthis??"), "other"),
            // Real machines of makers of virtual ones.
            (
                Signs {
                    firmware: &["m5.metal", "Amazon EC2"],
                    ..Signs::default()
                },
                "none",
            ),
            (
                Signs {
                    firmware: &["SUN FIRE X4170", "Oracle Corporation"],
                    ..Signs::default()
                },
                "none",
            ),
            // A paravirtual guest and its host.
            (
                Signs {
                    sys_hypervisor: "xen",
                    ..Signs::default()
                },
                "xen",
            ),
            (
                Signs {
                    sys_hypervisor: "xen",
                    dom0: true,
                    ..Signs::default()
                },
                "none",
            ),
            (
                Signs {
                    device_tree: "linux,kvm",
                    ..Signs::default()
                },
                "kvm",
            ),
            (
                Signs {
                    container: true,
                    ..virtual_x86(&[], kvm)
                },
                "container",
            ),
        ] {
            assert_eq!(judge(&signs), name, "{signs:?}");
        }
    }

    #[test]
    fn a_container_is_known_by_its_namespace_and_not_by_a_file_left_behind() {
        let first = ["proc/self/ns/pid -> ", FIRST_PID_NAMESPACE].concat();
        for (files, expected) in [
            (
                &[(".dockerenv", &b""[..]), (first.as_str(), b"")][..],
                "none",
            ),
            (
                &[("proc/self/ns/pid -> pid:[4026532233]", b"")],
                "container",
            ),
            (
                &[
                    ("run/systemd/container", b"systemd-nspawn"),
                    (first.as_str(), b""),
                ],
                "container",
            ),
            (&[("proc/1/environ", b"container=lxc\0")], "container"),
            (&[], "none"),
        ] {
            let fixture = Fixture::new(files);
            let found = read(&fixture.tree, &Firmware::default(), false, None);
            assert_eq!(found, expected, "{files:?}");
        }
    }

    #[test]
    fn a_containers_first_process_says_so() {
        assert!(is_container(b"PATH=/bin\0container=lxc\0TERM=x\0"));
        for environ in [
            &b""[..],
            b"container=\0",
            b"mycontainer=x\0",
            b"PATH=/bin\0",
        ] {
            assert!(!is_container(environ));
        }
    }
}
