//! Facts for people and for programs: one JSON object, and lines of text. `bcd facts` prints them on
//! the machine, `better-compute nodes facts` at the other end.

// What nanoserde derives is written so.
#![allow(clippy::question_mark)]

use nanoserde::{DeJson, SerJson};

use crate::proto::{Disk, Facts, Gpu, NetworkInterface, RootFilesystem, RootPart};

/// The message `Facts` as JSON, with the contract's names; docs/facts.md explains each field.
#[derive(Clone, Debug, Default, PartialEq, DeJson, SerJson)]
#[nserde(default)]
pub struct FactsView {
    pub hostname: String,
    pub machine_id: String,
    pub os_release: String,
    pub kernel: KernelView,
    pub cpu: CpuView,
    pub memory_bytes: u64,
    pub disks: Vec<DiskView>,
    pub root: RootView,
    pub interfaces: Vec<InterfaceView>,
    pub gpus: Vec<GpuView>,
    pub firmware: FirmwareView,
    pub virtualization: String,
    pub has_tpm: bool,
    pub bmc_address: String,
    pub bmc_mac: String,
    pub problems: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, DeJson, SerJson)]
#[nserde(default)]
pub struct KernelView {
    pub release: String,
    pub version: String,
    pub architecture: String,
    pub command_line: String,
}

#[derive(Clone, Debug, Default, PartialEq, DeJson, SerJson)]
#[nserde(default)]
pub struct CpuView {
    pub model: String,
    pub sockets: u32,
    pub cores: u32,
    pub threads: u32,
}

#[derive(Clone, Debug, Default, PartialEq, DeJson, SerJson)]
#[nserde(default)]
pub struct DiskView {
    pub stable_name: String,
    pub kernel_name: String,
    pub model: String,
    pub serial: String,
    pub wwn: String,
    pub firmware: String,
    pub size_bytes: u64,
    pub logical_block_bytes: u32,
    pub rotational: bool,
    pub removable: bool,
    pub read_only: bool,
    pub transport: String,
}

#[derive(Clone, Debug, Default, PartialEq, DeJson, SerJson)]
#[nserde(default)]
pub struct RootView {
    pub device: String,
    pub filesystem: String,
    pub parts: Vec<RootPartView>,
}

#[derive(Clone, Debug, Default, PartialEq, DeJson, SerJson)]
#[nserde(default)]
pub struct RootPartView {
    pub disk: String,
    pub kernel_name: String,
    pub partition: u32,
    pub partuuid: String,
}

#[derive(Clone, Debug, Default, PartialEq, DeJson, SerJson)]
#[nserde(default)]
pub struct InterfaceView {
    pub name: String,
    pub kind: String,
    pub mac: String,
    pub permanent_mac: String,
    pub mtu: u32,
    pub up: bool,
    pub carrier: bool,
    pub speed_mbits: u32,
    pub addresses: Vec<String>,
    pub driver: String,
    pub device_path: String,
    pub lldp_system: String,
    pub lldp_port: String,
    pub lldp_chassis: String,
}

#[derive(Clone, Debug, Default, PartialEq, DeJson, SerJson)]
#[nserde(default)]
pub struct GpuView {
    pub uuid: String,
    pub name: String,
    pub serial: String,
    pub pci_address: String,
    pub memory_bytes: u64,
    pub driver_version: String,
    pub vbios_version: String,
}

#[derive(Clone, Debug, Default, PartialEq, DeJson, SerJson)]
#[nserde(default)]
pub struct FirmwareView {
    pub vendor: String,
    pub version: String,
    pub date: String,
    pub boot_mode: String,
    pub secure_boot: String,
    pub system_vendor: String,
    pub system_product: String,
    pub system_serial: String,
    pub system_uuid: String,
    pub board_serial: String,
}

impl From<Facts> for FactsView {
    fn from(facts: Facts) -> Self {
        let kernel = facts.kernel.unwrap_or_default();
        let cpu = facts.cpu.unwrap_or_default();
        let firmware = facts.firmware.unwrap_or_default();
        Self {
            hostname: facts.hostname,
            machine_id: facts.machine_id,
            os_release: facts.os_release,
            kernel: KernelView {
                release: kernel.release,
                version: kernel.version,
                architecture: kernel.architecture,
                command_line: kernel.command_line,
            },
            cpu: CpuView {
                model: cpu.model,
                sockets: cpu.sockets,
                cores: cpu.cores,
                threads: cpu.threads,
            },
            memory_bytes: facts.memory_bytes,
            disks: facts.disks.into_iter().map(DiskView::from).collect(),
            root: facts.root.map(RootView::from).unwrap_or_default(),
            interfaces: facts
                .interfaces
                .into_iter()
                .map(InterfaceView::from)
                .collect(),
            gpus: facts.gpus.into_iter().map(GpuView::from).collect(),
            firmware: FirmwareView {
                vendor: firmware.vendor,
                version: firmware.version,
                date: firmware.date,
                boot_mode: firmware.boot_mode,
                secure_boot: firmware.secure_boot,
                system_vendor: firmware.system_vendor,
                system_product: firmware.system_product,
                system_serial: firmware.system_serial,
                system_uuid: firmware.system_uuid,
                board_serial: firmware.board_serial,
            },
            virtualization: facts.virtualization,
            has_tpm: facts.has_tpm,
            bmc_address: facts.bmc_address,
            bmc_mac: facts.bmc_mac,
            problems: facts.problems,
        }
    }
}

impl From<Disk> for DiskView {
    fn from(disk: Disk) -> Self {
        Self {
            stable_name: disk.stable_name,
            kernel_name: disk.kernel_name,
            model: disk.model,
            serial: disk.serial,
            wwn: disk.wwn,
            firmware: disk.firmware,
            size_bytes: disk.size_bytes,
            logical_block_bytes: disk.logical_block_bytes,
            rotational: disk.rotational,
            removable: disk.removable,
            read_only: disk.read_only,
            transport: disk.transport,
        }
    }
}

impl From<RootFilesystem> for RootView {
    fn from(root: RootFilesystem) -> Self {
        Self {
            device: root.device,
            filesystem: root.r#type,
            parts: root.parts.into_iter().map(RootPartView::from).collect(),
        }
    }
}

impl From<RootPart> for RootPartView {
    fn from(part: RootPart) -> Self {
        Self {
            disk: part.disk,
            kernel_name: part.kernel_name,
            partition: part.partition,
            partuuid: part.partuuid,
        }
    }
}

impl From<NetworkInterface> for InterfaceView {
    fn from(interface: NetworkInterface) -> Self {
        Self {
            name: interface.name,
            kind: interface.kind,
            mac: interface.mac,
            permanent_mac: interface.permanent_mac,
            mtu: interface.mtu,
            up: interface.up,
            carrier: interface.carrier,
            speed_mbits: interface.speed_mbits,
            addresses: interface.addresses,
            driver: interface.driver,
            device_path: interface.device_path,
            lldp_system: interface.lldp_system,
            lldp_port: interface.lldp_port,
            lldp_chassis: interface.lldp_chassis,
        }
    }
}

impl From<Gpu> for GpuView {
    fn from(gpu: Gpu) -> Self {
        Self {
            uuid: gpu.uuid,
            name: gpu.name,
            serial: gpu.serial,
            pci_address: gpu.pci_address,
            memory_bytes: gpu.memory_bytes,
            driver_version: gpu.driver_version,
            vbios_version: gpu.vbios_version,
        }
    }
}

impl FactsView {
    /// Lines for a person: a label, and what there is to say. Nothing is said of what is empty.
    pub fn lines(&self) -> Vec<(&'static str, String)> {
        let firmware = &self.firmware;
        let mut lines = vec![
            ("hostname", self.hostname.clone()),
            ("machine id", self.machine_id.clone()),
            (
                "system",
                words(&[&firmware.system_vendor, &firmware.system_product]),
            ),
            ("serial", firmware.system_serial.clone()),
            ("uuid", firmware.system_uuid.clone()),
            ("board serial", firmware.board_serial.clone()),
            (
                "firmware",
                words(&[&firmware.vendor, &firmware.version, &firmware.date]),
            ),
            ("boot", self.boot()),
            ("virtual", self.virtualization.clone()),
            ("os", self.os_release.clone()),
            (
                "kernel",
                words(&[&self.kernel.release, &self.kernel.architecture]),
            ),
            ("command line", self.kernel.command_line.clone()),
            ("cpu", self.cpu.line()),
            ("memory", size(self.memory_bytes)),
            ("bmc", words(&[&self.bmc_address, &self.bmc_mac])),
            ("tpm", if self.has_tpm { "yes" } else { "no" }.to_owned()),
        ];
        lines.extend(self.disks.iter().map(|disk| ("disk", disk.line())));
        lines.extend(self.root.parts.iter().map(|part| ("root", part.line())));
        lines.extend(self.interfaces.iter().map(|one| ("interface", one.line())));
        lines.extend(self.gpus.iter().map(|gpu| ("gpu", gpu.line())));
        lines.extend(self.problems.iter().map(|line| ("problem", line.clone())));
        lines.retain(|(_, text)| !text.is_empty());
        lines
    }

    fn boot(&self) -> String {
        match self.firmware.boot_mode.as_str() {
            "uefi" => ["uefi, secure boot ", &self.firmware.secure_boot].concat(),
            other => other.to_owned(),
        }
    }
}

impl CpuView {
    fn line(&self) -> String {
        let count = |number: u32, one: &str| match number {
            1 => ["1 ", one].concat(),
            _ => [&number.to_string(), " ", one, "s"].concat(),
        };
        let counts = [
            count(self.sockets, "socket"),
            count(self.cores, "core"),
            count(self.threads, "thread"),
        ];
        words(&[&self.model, &["(", &counts.join(", "), ")"].concat()])
    }
}

impl DiskView {
    fn line(&self) -> String {
        let kind = if self.rotational { "rotational" } else { "" };
        let removable = if self.removable { "removable" } else { "" };
        let read_only = if self.read_only { "read-only" } else { "" };
        words(&[
            &self.stable_name,
            &["(", &self.kernel_name, ")"].concat(),
            &size(self.size_bytes),
            &self.transport,
            kind,
            removable,
            read_only,
            &self.model,
            &self.serial,
        ])
    }
}

impl RootPartView {
    fn line(&self) -> String {
        let partition = match self.partition {
            0 => String::new(),
            number => ["partition ", &number.to_string()].concat(),
        };
        words(&[
            &self.disk,
            &["(", &self.kernel_name, ")"].concat(),
            &partition,
            &self.partuuid,
        ])
    }
}

impl InterfaceView {
    fn line(&self) -> String {
        let state = match (self.up, self.carrier) {
            (false, _) => "down",
            (true, false) => "up, no carrier",
            (true, true) => "up",
        };
        let speed = match self.speed_mbits {
            0 => String::new(),
            speed => [&speed.to_string(), " Mbit/s"].concat(),
        };
        words(&[
            &self.name,
            &self.kind,
            state,
            &speed,
            &self.mac,
            &self.driver,
            &self.device_path,
            &self.addresses.join(" "),
            if self.lldp_chassis.is_empty() {
                ""
            } else {
                "at"
            },
            &self.lldp_system,
            &self.lldp_port,
            &self.lldp_chassis,
        ])
    }
}

impl GpuView {
    fn line(&self) -> String {
        words(&[
            &self.name,
            &size(self.memory_bytes),
            &self.pci_address,
            &self.uuid,
            &["driver ", &self.driver_version].concat(),
        ])
    }
}

/// Those that are not empty, a blank between them.
fn words(words: &[&str]) -> String {
    let there: Vec<&str> = words
        .iter()
        .copied()
        .filter(|word| !word.is_empty())
        .collect();
    there.join(" ")
}

/// "15.5 GiB": one decimal, in the largest unit that leaves a whole part.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = [" B", " KiB", " MiB", " GiB", " TiB", " PiB"];
    let mut tenths = u128::from(bytes) * 10;
    let mut unit = 0;
    while tenths >= 10_240 && unit + 1 < UNITS.len() {
        tenths /= 1024;
        unit += 1;
    }
    let name = UNITS.get(unit).copied().unwrap_or_default();
    let whole = (tenths / 10).to_string();
    match tenths % 10 {
        0 => [&whole, name].concat(),
        tenth => [&whole, ".", &tenth.to_string(), name].concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_for_people() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1_932_735_283_200, "1.7 TiB"),
            (8_346_927_104, "7.7 GiB"),
            (u64::MAX, "16383.9 PiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn json_comes_back_as_it_went() {
        let facts = Facts {
            hostname: "gpu-7".to_owned(),
            memory_bytes: u64::MAX,
            disks: vec![Disk {
                stable_name: "wwn-0x1".to_owned(),
                kernel_name: "sda".to_owned(),
                size_bytes: 4_000_787_030_016,
                rotational: true,
                ..Disk::default()
            }],
            interfaces: vec![NetworkInterface {
                name: "eth0".to_owned(),
                up: true,
                addresses: vec!["192.0.2.1/24".to_owned()],
                lldp_system: "leaf-12".to_owned(),
                lldp_port: "swp3".to_owned(),
                lldp_chassis: "00:1c:73:01:02:03".to_owned(),
                ..NetworkInterface::default()
            }],
            gpus: vec![Gpu {
                name: "NVIDIA \"H100\"\u{7}".to_owned(),
                ..Gpu::default()
            }],
            problems: vec!["gpus: \\".to_owned()],
            ..Facts::default()
        };
        let view = FactsView::from(facts);
        let json = view.serialize_json();
        assert_eq!(FactsView::deserialize_json(&json).unwrap(), view);
        assert_eq!(
            crate::crypto::json::check(json.as_bytes(), 4096, 4).unwrap(),
            json
        );
        let text: Vec<String> = view.lines().into_iter().map(|(_, text)| text).collect();
        assert!(
            text.contains(&"wwn-0x1 (sda) 3.6 TiB rotational".to_owned()),
            "{text:?}"
        );
        assert!(
            text.contains(
                &"eth0 up, no carrier 192.0.2.1/24 at leaf-12 swp3 00:1c:73:01:02:03".to_owned()
            ),
            "{text:?}"
        );
    }
}
