//! Disks: what has a device behind it in `/sys/block`, by a name that lasts.
//!
//! Left out are what is no disk of the machine (loop, ram and zram devices, device mappings, RAID
//! arrays: they have no device), what holds no medium, optical and floppy drives, the boot partitions
//! of eMMC, and the hidden paths of NVMe multipathing.
use super::tree::{Tree, clean};
use super::{Area, Problems};
use crate::proto::Disk;

pub mod names;
pub mod vpd;

use self::names::Place;

/// Disks told of, and names looked at.
const DISKS: usize = 256;
const NAMES: usize = 8192;
/// A page of vital product data.
const PAGE: usize = 1024;

/// The disks of the machine below `tree`.
pub fn list(tree: &Tree) -> Vec<Disk> {
    read(tree, &mut Problems::default())
}

pub(super) fn read(tree: &Tree, problems: &mut Problems) -> Vec<Disk> {
    let names = match tree.names("sys/block", NAMES) {
        Ok(names) => names,
        Err(error) => {
            problems.unread(Area::Disks, "/sys/block", &error);
            return Vec::new();
        }
    };
    let mut disks: Vec<Disk> = names.iter().filter_map(|name| disk(tree, name)).collect();
    disks.sort_unstable_by(|a, b| {
        (&a.stable_name, &a.kernel_name).cmp(&(&b.stable_name, &b.kernel_name))
    });
    if disks.len() > DISKS {
        problems.say(Area::Disks, "more than 256 disks: the others are left out");
        disks.truncate(DISKS);
    }
    let mut before: Option<&Disk> = None;
    for disk in &disks {
        if disk.stable_name.is_empty() {
            problems.say(
                Area::Disks,
                &[&disk.kernel_name, " has no name that lasts"].concat(),
            );
        } else if let Some(before) = before.filter(|before| before.stable_name == disk.stable_name)
        {
            problems.say(
                Area::Disks,
                &[
                    &before.kernel_name,
                    " and ",
                    &disk.kernel_name,
                    " are both ",
                    &disk.stable_name,
                    ": two paths to one disk, or a maker's mistake",
                ]
                .concat(),
            );
        }
        before = Some(disk);
    }
    disks
}

fn disk(tree: &Tree, name: &str) -> Option<Disk> {
    let base = ["sys/block/", name].concat();
    let at = |file: &str| [&base, "/", file].concat();
    let flag = |file: &str| tree.number(&at(file)) == Some(1);
    let size_bytes = tree.number(&at("size"))?.saturating_mul(512);
    let is_none = ["loop", "ram", "zram", "fd", "sr", "dm-", "md"]
        .iter()
        .any(|prefix| name.starts_with(prefix));
    let is_boot_partition = name.starts_with("mmcblk") && name.contains("boot");
    if size_bytes == 0
        || is_none
        || is_boot_partition
        || flag("hidden")
        || !tree.exists(&at("device"))
    {
        return None;
    }
    let path = tree.link(&base).unwrap_or_default();
    let subsystem = tree.link_name(&at("device/subsystem")).unwrap_or_default();
    let disk = Disk {
        kernel_name: name.to_owned(),
        size_bytes,
        logical_block_bytes: tree
            .number(&at("queue/logical_block_size"))
            .and_then(|size| u32::try_from(size).ok())
            .unwrap_or(512),
        rotational: flag("queue/rotational"),
        removable: flag("removable"),
        read_only: flag("ro"),
        ..Disk::default()
    };
    let place = Place {
        tree,
        path: &path,
        base: &base,
    };
    let mut disk = match subsystem.as_str() {
        "nvme" | "nvme-subsystem" => nvme(&place, disk),
        "scsi" => scsi(&place, disk)?,
        "mmc" => mmc(&place, disk),
        _ => plain(&place, disk, &subsystem),
    };
    // Made of several texts, each within its bound.
    disk.stable_name = clean(disk.stable_name.as_bytes());
    disk.model = clean(disk.model.as_bytes());
    Some(disk)
}

fn nvme(place: &Place<'_>, disk: Disk) -> Disk {
    let wwid = place.text("wwid");
    let model = place.text("device/model");
    let serial = place.text("device/serial");
    let namespace = place.text("nsid");
    // Over a fabric: "tcp", "rdma", "fc".
    let transport = match place.text("device/transport") {
        local if local.is_empty() || local == "pcie" => "nvme".to_owned(),
        fabric => ["nvme-", &fabric].concat(),
    };
    // The kernel makes up "nvme.VENDOR-SERIAL-MODEL-NSID" for those that have no identifier.
    let has_identifier = ["eui.", "nvme.", "uuid.", "naa."]
        .iter()
        .position(|prefix| wwid.starts_with(prefix))
        .is_some_and(|prefix| prefix != 1);
    let stable_name = if has_identifier {
        ["nvme-", &names::whole(&wwid)].concat()
    } else if !serial.is_empty() {
        let name = ["nvme-", &names::whole(&model), "_", &names::whole(&serial)].concat();
        match namespace.as_str() {
            "" | "1" => name,
            other => [&name, "_", other].concat(),
        }
    } else {
        place.by_path()
    };
    Disk {
        stable_name,
        firmware: place.text("device/firmware_rev"),
        wwn: if has_identifier { wwid } else { String::new() },
        transport,
        model,
        serial,
        ..disk
    }
}

fn scsi(place: &Place<'_>, disk: Disk) -> Option<Disk> {
    // Disk, simplified disk, host-managed zones: the rest are tapes, optical drives, enclosures.
    if !matches!(place.text("device/type").as_str(), "" | "0" | "14" | "20") {
        return None;
    }
    let vendor = place.text("device/vendor");
    let product = place.text("device/model");
    let mut serial = vpd::serial(&place.bytes("device/vpd_pg80", PAGE));
    let identify = vpd::ata(&place.bytes("device/vpd_pg89", PAGE)).unwrap_or_default();
    let is_ata = vendor == "ATA";
    let (model, firmware) = match (is_ata, vendor.is_empty()) {
        (true, _) if !identify.model.is_empty() => (identify.model, identify.firmware),
        (true, _) | (_, true) => (product.clone(), place.text("device/rev")),
        _ => ([&vendor, " ", &product].concat(), place.text("device/rev")),
    };
    if serial.is_empty() {
        serial = identify.serial;
    }
    let pages = vpd::identifier(&place.bytes("device/vpd_pg83", PAGE), &vendor, &product);
    let wwid = place.text("device/wwid");
    let wwn = match wwid.strip_prefix("naa.") {
        Some(digits) => ["0x", digits].concat(),
        None => pages.wwn,
    };
    let usb_serial = place.usb_serial();
    let stable_name = if !wwn.is_empty() {
        ["wwn-", &names::whole(&wwn)].concat()
    } else if is_ata && !serial.is_empty() {
        let name = [&model, "_", &serial].concat();
        ["ata-", &names::whole(&name)].concat()
    } else if !usb_serial.is_empty() {
        let name = [&vendor, "_", &product, "_", &usb_serial].concat();
        ["usb-", &names::whole(&name), &place.instance()].concat()
    } else if !pages.name.is_empty() {
        ["scsi-", &names::whole(&pages.name)].concat()
    } else if !serial.is_empty() {
        let name = [&vendor, "_", &product, "_", &serial].concat();
        ["scsi-S", &names::whole(&name)].concat()
    } else {
        place.by_path()
    };
    if serial.is_empty() {
        serial = usb_serial;
    }
    Some(Disk {
        stable_name,
        transport: place.scsi_transport(is_ata).to_owned(),
        model,
        firmware,
        serial,
        wwn,
        ..disk
    })
}

fn mmc(place: &Place<'_>, disk: Disk) -> Disk {
    let model = place.text("device/name");
    let serial = place.text("device/serial");
    let stable_name = match serial.as_str() {
        "" => place.by_path(),
        serial => ["mmc-", &names::whole(&model), "_", &names::whole(serial)].concat(),
    };
    Disk {
        stable_name,
        transport: "mmc".to_owned(),
        firmware: place.text("device/fwrev"),
        model,
        serial,
        ..disk
    }
}

/// virtio, Xen, persistent memory and what else there may be: a serial number at most.
fn plain(place: &Place<'_>, disk: Disk, subsystem: &str) -> Disk {
    let transport = match subsystem {
        "virtio" => "virtio",
        "xen" => "xen",
        "nd" => "nvdimm",
        _ => "",
    };
    let serial = match transport {
        "nvdimm" => place.text("device/uuid"),
        _ => clean(&place.bytes("serial", PAGE)),
    };
    let stable_name = match (transport, serial.as_str()) {
        ("virtio", serial) if !serial.is_empty() => ["virtio-", &names::whole(serial)].concat(),
        ("nvdimm", serial) if !serial.is_empty() => ["pmem-", &names::whole(serial)].concat(),
        _ => place.by_path(),
    };
    Disk {
        stable_name,
        transport: transport.to_owned(),
        serial,
        ..disk
    }
}

#[cfg(test)]
mod tests {
    use super::super::tree::tests::Fixture;
    use super::*;

    /// A disk `name` whose device is at `device` below sys/devices, of `subsystem`.
    fn put(fixture: &Fixture, name: &str, device: &str, subsystem: &str, files: &[(&str, &[u8])]) {
        // NVMe's disks stand beside their controller's files, all others below block/.
        let (dir, up) = match subsystem {
            "nvme" | "nvme-subsystem" => (format!("{device}/{name}"), ".."),
            _ => (format!("{device}/block/{name}"), "../.."),
        };
        let at = format!("sys/devices/{dir}");
        fixture.put(&format!("sys/block/{name} -> ../devices/{dir}"), b"");
        fixture.put(&format!("{at}/size"), b"2048\n");
        fixture.put(&format!("{at}/device -> {up}"), b"");
        fixture.put(
            &format!("sys/devices/{device}/subsystem -> /sys/class/{subsystem}"),
            b"",
        );
        for (file, bytes) in files {
            fixture.put(
                &format!("{at}/{file}").replace("/device/", &format!("/{up}/")),
                bytes,
            );
        }
    }

    fn only(fixture: &Fixture) -> Disk {
        let mut problems = Problems::default();
        let mut disks = read(&fixture.tree, &mut problems);
        assert!(problems.lines().is_empty(), "{:?}", problems.lines());
        assert_eq!(disks.len(), 1);
        disks.remove(0)
    }

    #[test]
    fn an_nvme_disk_is_named_by_its_identifier_else_by_model_and_serial() {
        let fixture = Fixture::new(&[]);
        let device = "pci0000:00/0000:00:1d.0/0000:01:00.0/nvme/nvme0";
        put(
            &fixture,
            "nvme0n1",
            device,
            "nvme",
            &[
                ("wwid", b"eui.0025385b21404321\n"),
                ("nsid", b"1\n"),
                ("queue/logical_block_size", b"4096\n"),
                (
                    "device/model",
                    b"SAMSUNG MZQL23T8HCLS-00A07              \n",
                ),
                ("device/serial", b"S64HNE0R602345      \n"),
                ("device/firmware_rev", b"GDC5602Q\n"),
                ("device/transport", b"pcie\n"),
            ],
        );
        let expected = Disk {
            stable_name: "nvme-eui.0025385b21404321".to_owned(),
            kernel_name: "nvme0n1".to_owned(),
            model: "SAMSUNG MZQL23T8HCLS-00A07".to_owned(),
            serial: "S64HNE0R602345".to_owned(),
            wwn: "eui.0025385b21404321".to_owned(),
            firmware: "GDC5602Q".to_owned(),
            size_bytes: 1 << 20,
            logical_block_bytes: 4096,
            transport: "nvme".to_owned(),
            ..Disk::default()
        };
        assert_eq!(only(&fixture), expected);

        fixture.put(
            "sys/block/nvme0n1/wwid",
            b"nvme.1af4-6465616462656566-51454d55204e564d65204374726c-00000001\n",
        );
        let disk = only(&fixture);
        let name = "nvme-SAMSUNG_MZQL23T8HCLS-00A07_S64HNE0R602345";
        assert_eq!((disk.stable_name.as_str(), disk.wwn.as_str()), (name, ""));
        fixture.put("sys/block/nvme0n1/nsid", b"2\n");
        assert_eq!(only(&fixture).stable_name, format!("{name}_2"));
        fixture.put(&format!("sys/devices/{device}/serial"), b"\n");
        assert_eq!(only(&fixture).stable_name, "pci-0000:01:00.0-nvme-2");
    }

    #[test]
    fn a_sas_disk_is_named_by_its_wwn() {
        let fixture = Fixture::new(&[]);
        put(
            &fixture,
            "sda",
            "pci0000:00/0000:3b:00.0/host0/port-0:0/end_device-0:0/target0:0:0/0:0:0:0",
            "scsi",
            &[
                ("queue/rotational", b"1\n"),
                ("device/type", b"0\n"),
                ("device/vendor", b"SEAGATE \n"),
                ("device/model", b"ST4000NM0023    \n"),
                ("device/rev", b"0004\n"),
                ("device/wwid", b"naa.5000c500a1b2c3d4\n"),
                ("device/vpd_pg80", b"\0\x80\0\x14Z1Z0ABCD0000R5010000"),
            ],
        );
        let disk = only(&fixture);
        assert_eq!(disk.stable_name, "wwn-0x5000c500a1b2c3d4");
        assert_eq!(disk.wwn, "0x5000c500a1b2c3d4");
        assert_eq!(disk.serial, "Z1Z0ABCD0000R5010000");
        assert_eq!(disk.model, "SEAGATE ST4000NM0023");
        assert_eq!(
            (disk.transport.as_str(), disk.firmware.as_str()),
            ("sas", "0004")
        );
        assert!(disk.rotational);
    }

    #[test]
    fn a_sata_disk_is_named_by_wwn_else_by_model_and_serial() {
        let fixture = Fixture::new(&[]);
        let device = "pci0000:00/0000:00:1f.2/ata5/host4/target4:0:0/4:0:0:0";
        let identify = vpd::tests::page_89("Samsung SSD 860 EVO 500GB", "S3Z2NB0K1234", "RVT02B6Q");
        put(
            &fixture,
            "sdb",
            device,
            "scsi",
            &[
                ("device/type", b"0\n"),
                ("device/vendor", b"ATA     \n"),
                ("device/model", b"Samsung SSD 860 \n"),
                ("device/vpd_pg89", &identify),
                ("device/vpd_pg80", b"\0\x80\0\x14        S3Z2NB0K1234"),
            ],
        );
        let disk = only(&fixture);
        assert_eq!(
            disk.stable_name,
            "ata-Samsung_SSD_860_EVO_500GB_S3Z2NB0K1234"
        );
        assert_eq!(
            (disk.model.as_str(), disk.firmware.as_str()),
            ("Samsung SSD 860 EVO 500GB", "RVT02B6Q")
        );
        assert_eq!(
            (disk.transport.as_str(), disk.serial.as_str()),
            ("sata", "S3Z2NB0K1234")
        );
        fixture.put("sys/block/sdb/device/wwid", b"naa.5002538e40a1b2c3\n");
        assert_eq!(only(&fixture).stable_name, "wwn-0x5002538e40a1b2c3");
        // No identifier at all: the port it hangs on.
        for file in ["vpd_pg80", "vpd_pg89", "wwid"] {
            fixture.put(&format!("sys/block/sdb/device/{file}"), b"");
        }
        fixture.put("sys/class/ata_port/ata5/port_no", b"1\n");
        assert_eq!(only(&fixture).stable_name, "pci-0000:00:1f.2-ata-1");
    }

    #[test]
    fn virtual_and_removable_disks_have_names_too() {
        for (name, device, subsystem, files, stable, transport) in [
            (
                "vda",
                "pci0000:00/0000:00:02.0/virtio1",
                "virtio",
                &[("serial", &b"1986642227723594"[..])][..],
                "virtio-1986642227723594",
                "virtio",
            ),
            (
                "vda",
                "pci0000:00/0000:00:02.0/virtio1",
                "virtio",
                &[],
                "pci-0000:00:02.0",
                "virtio",
            ),
            (
                "vda",
                "platform/a003e00.virtio_mmio/virtio1",
                "virtio",
                &[],
                "platform-a003e00.virtio_mmio",
                "virtio",
            ),
            ("xvda", "vbd-51712", "xen", &[], "xen-vbd-51712", "xen"),
            (
                "mmcblk0",
                "platform/soc/fe340000.mmc/mmc_host/mmc0/mmc0:0001",
                "mmc",
                &[
                    ("device/name", b"DG4064\n"),
                    ("device/serial", b"0x1a2b3c4d\n"),
                ],
                "mmc-DG4064_0x1a2b3c4d",
                "mmc",
            ),
            (
                "sda",
                "pci0000:00/0000:00:14.0/usb1/1-1/1-1.2/1-1.2:1.0/host6/target6:0:0/6:0:0:0",
                "scsi",
                &[
                    ("device/type", b"0\n"),
                    ("device/vendor", b"Kingston\n"),
                    ("device/model", b"DataTraveler 3.0\n"),
                ],
                "pci-0000:00:14.0-usb-0:1.2:1.0-scsi-0:0:0:0",
                "usb",
            ),
            (
                "sda",
                "pci0000:00/0000:00:05.0/virtio2/host3/target3:0:1/3:0:1:0",
                "scsi",
                &[
                    ("device/type", b"0\n"),
                    ("device/vendor", b"QEMU    \n"),
                    ("device/model", b"QEMU HARDDISK   \n"),
                    ("device/vpd_pg83", b"\0\x83\0\x0c\x02\0\0\x08serial-7"),
                ],
                "scsi-0QEMU_QEMU_HARDDISK_serial-7",
                "scsi",
            ),
            (
                "sda",
                "pci0000:00/0000:00:05.0/virtio2/host3/target3:0:1/3:0:1:0",
                "scsi",
                &[
                    ("device/type", b"0\n"),
                    ("device/vendor", b"QEMU    \n"),
                    ("device/model", b"QEMU HARDDISK   \n"),
                    ("device/vpd_pg80", b"\0\x80\0\x08serial-7"),
                ],
                "scsi-SQEMU_QEMU_HARDDISK_serial-7",
                "scsi",
            ),
        ] {
            let fixture = Fixture::new(&[]);
            put(&fixture, name, device, subsystem, files);
            let disk = only(&fixture);
            assert_eq!(
                (disk.stable_name.as_str(), disk.transport.as_str()),
                (stable, transport)
            );
        }
        let fixture = Fixture::new(&[]);
        let device = "pci0000:00/0000:00:14.0/usb1/1-1/1-1:1.0/host6/target6:0:0/6:0:0:0";
        put(
            &fixture,
            "sda",
            device,
            "scsi",
            &[
                ("device/vendor", b"Kingston\n"),
                ("device/model", b"DataTraveler 3.0\n"),
                ("removable", b"1\n"),
            ],
        );
        fixture.put(
            "sys/devices/pci0000:00/0000:00:14.0/usb1/1-1/serial",
            b"E0D55E\n",
        );
        let disk = only(&fixture);
        assert_eq!(disk.stable_name, "usb-Kingston_DataTraveler_3.0_E0D55E-0:0");
        assert_eq!(disk.serial, "E0D55E");
        assert!(disk.removable);
    }

    #[test]
    fn what_is_no_disk_of_the_machine_is_left_out() {
        let fixture = Fixture::new(&[
            // A device mapping has no device.
            ("sys/devices/virtual/block/dm-0/size", b"2048\n"),
            ("sys/block/dm-0 -> ../devices/virtual/block/dm-0", b""),
            ("sys/devices/virtual/block/nbd0/size", b"2048\n"),
            ("sys/block/nbd0 -> ../devices/virtual/block/nbd0", b""),
        ]);
        let scsi = "pci0000:00/0000:00:1f.2/ata1/host0/target0:0:0/0:0:0:0";
        put(&fixture, "sr0", scsi, "scsi", &[("device/type", b"5\n")]);
        put(
            &fixture,
            "sdx",
            "pci0000:00/host9/target9:0:0/9:0:0:0",
            "scsi",
            &[("device/type", b"5\n")],
        );
        put(
            &fixture,
            "sdy",
            "pci0000:00/host8/target8:0:0/8:0:0:0",
            "scsi",
            &[("size", b"0\n")],
        );
        put(&fixture, "fd0", "platform/floppy.0", "platform", &[]);
        put(&fixture, "loop7", "platform/x", "platform", &[]);
        put(&fixture, "mmcblk0boot0", "platform/mmc0:0001", "mmc", &[]);
        put(
            &fixture,
            "nvme0c0n1",
            "pci0000:00/0000:01:00.0/nvme/nvme0",
            "nvme",
            &[("hidden", b"1\n")],
        );
        let mut problems = Problems::default();
        assert_eq!(read(&fixture.tree, &mut problems), []);
        assert!(problems.lines().is_empty());
    }

    #[test]
    fn one_name_for_two_disks_and_a_disk_without_one_are_problems() {
        let fixture = Fixture::new(&[]);
        for (name, host) in [("sda", 0), ("sdb", 1)] {
            let device = format!(
                "pci0000:00/0000:3b:00.0/host{host}/rport-{host}:0-0/target{host}:0:0/{host}:0:0:0"
            );
            put(
                &fixture,
                name,
                &device,
                "scsi",
                &[("device/wwid", b"naa.5000c500a1b2c3d4\n")],
            );
        }
        put(&fixture, "odd0", "virtual/odd/dev", "odd", &[]);
        let mut problems = Problems::default();
        let disks = read(&fixture.tree, &mut problems);
        assert_eq!(disks.len(), 3);
        assert_eq!(disks[1].transport, "fc");
        assert_eq!(
            problems.into_lines(),
            [
                "disks: odd0 has no name that lasts",
                "disks: sda and sdb are both wwn-0x5000c500a1b2c3d4: two paths to one disk, or a maker's mistake",
            ]
        );
    }

    #[test]
    fn hundreds_of_disks_are_bounded() {
        let fixture = Fixture::new(&[]);
        for i in 0..300 {
            let device = format!("pci0000:00/0000:00:02.0/virtio{i}");
            let serial = format!("s{i}");
            put(
                &fixture,
                &format!("vd{i}"),
                &device,
                "virtio",
                &[("serial", serial.as_bytes())],
            );
        }
        let mut problems = Problems::default();
        assert_eq!(read(&fixture.tree, &mut problems).len(), DISKS);
        assert_eq!(
            problems.lines(),
            ["disks: more than 256 disks: the others are left out"]
        );
    }
}
