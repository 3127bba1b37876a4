//! What a machine is made of, as an operator reads it. Names are the contract's.

use bcd::proto::{Disk, Facts, Gpu, Message, NetworkInterface};

use super::kinds::raw;
use crate::json::{Json, Object};

/// Encoded facts as an operator reads them.
pub fn show_facts(bytes: &[u8]) -> Json {
    match Facts::decode(bytes) {
        Ok(facts) => show(&facts),
        Err(_) => raw(bytes),
    }
}

/// All that is known; what is empty is left out.
pub fn show(facts: &Facts) -> Json {
    let mut shown = Object::new()
        .with_text("hostname", &facts.hostname)
        .with_text("machine_id", &facts.machine_id)
        .with_text("os_release", &facts.os_release);
    if let Some(kernel) = &facts.kernel {
        let kernel = Object::new()
            .with_text("release", &kernel.release)
            .with_text("version", &kernel.version)
            .with_text("architecture", &kernel.architecture)
            .with_text("command_line", &kernel.command_line);
        shown = shown.with("kernel", kernel);
    }
    if let Some(cpu) = &facts.cpu {
        let cpu = Object::new()
            .with_text("model", &cpu.model)
            .with("sockets", cpu.sockets)
            .with("cores", cpu.cores)
            .with("threads", cpu.threads);
        shown = shown.with("cpu", cpu);
    }
    shown = shown
        .with("memory_bytes", facts.memory_bytes)
        .with("disks", list(&facts.disks, disk))
        .with("interfaces", list(&facts.interfaces, interface))
        .with("gpus", list(&facts.gpus, gpu));
    if let Some(firmware) = &facts.firmware {
        let firmware = Object::new()
            .with_text("vendor", &firmware.vendor)
            .with_text("version", &firmware.version)
            .with_text("date", &firmware.date)
            .with_text("boot_mode", &firmware.boot_mode)
            .with_text("secure_boot", &firmware.secure_boot)
            .with_text("system_vendor", &firmware.system_vendor)
            .with_text("system_product", &firmware.system_product)
            .with_text("system_serial", &firmware.system_serial)
            .with_text("system_uuid", &firmware.system_uuid)
            .with_text("board_serial", &firmware.board_serial);
        shown = shown.with("firmware", firmware);
    }
    shown
        .with_text("virtualization", &facts.virtualization)
        .with("has_tpm", facts.has_tpm)
        .with(
            "problems",
            list(&facts.problems, |text| text.as_str().into()),
        )
        .into()
}

fn list<T>(items: &[T], show: impl Fn(&T) -> Json) -> Vec<Json> {
    items.iter().map(show).collect()
}

fn disk(disk: &Disk) -> Json {
    Object::new()
        .with_text("stable_name", &disk.stable_name)
        .with_text("kernel_name", &disk.kernel_name)
        .with_text("model", &disk.model)
        .with_text("serial", &disk.serial)
        .with_text("wwn", &disk.wwn)
        .with_text("firmware", &disk.firmware)
        .with("size_bytes", disk.size_bytes)
        .with("logical_block_bytes", disk.logical_block_bytes)
        .with("rotational", disk.rotational)
        .with("removable", disk.removable)
        .with("read_only", disk.read_only)
        .with_text("transport", &disk.transport)
        .into()
}

fn interface(interface: &NetworkInterface) -> Json {
    Object::new()
        .with_text("name", &interface.name)
        .with_text("mac", &interface.mac)
        .with_text("permanent_mac", &interface.permanent_mac)
        .with("mtu", interface.mtu)
        .with("up", interface.up)
        .with("carrier", interface.carrier)
        .with_some(
            "speed_mbits",
            (interface.speed_mbits != 0).then_some(interface.speed_mbits),
        )
        .with(
            "addresses",
            list(&interface.addresses, |text| text.as_str().into()),
        )
        .with_text("kind", &interface.kind)
        .with_text("driver", &interface.driver)
        .with_text("device_path", &interface.device_path)
        .into()
}

fn gpu(gpu: &Gpu) -> Json {
    Object::new()
        .with_text("uuid", &gpu.uuid)
        .with_text("name", &gpu.name)
        .with_text("serial", &gpu.serial)
        .with_text("pci_address", &gpu.pci_address)
        .with("memory_bytes", gpu.memory_bytes)
        .with_text("driver_version", &gpu.driver_version)
        .with_text("vbios_version", &gpu.vbios_version)
        .into()
}
