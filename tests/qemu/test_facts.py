"""`bcd facts` in a guest whose hardware is known: disks of each kind, two NICs, SMBIOS texts.

The names of the disks are those that udev 252 makes for the same guest under /dev/disk/by-id and by-path.
"""

import json
import os
import subprocess

from qemu.machine import silent_network, user_network

WWN = "5000c500a1b2c3d4"


def drive(directory, name, megabytes):
    path = directory / f"{name}.disk"
    with open(path, "wb") as file:
        file.truncate(megabytes << 20)
    return ["-drive", f"file={path},if=none,id={name},format=raw"]


def test_a_guests_hardware_is_told_by_names_that_last(machine, tmp_path):
    directory = tmp_path / "machine0"
    files = tmp_path / "files"
    for made in (directory, files):
        made.mkdir()
    (files / "run.sh").write_text(
        "for m in virtio_scsi sd_mod; do /sbin/modprobe $m; done\n"
        'n=0; while [ $n -lt 100 ] && ! { [ -b /dev/sdb ] && [ -b /dev/nvme1n1 ]; }; do $b usleep 100000; n=$((n + 1)); done\n'
        "bcd facts --json\n")
    data = directory / "data.disk"
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", files, data, "16M"], check=True, capture_output=True,
                   env={**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"})
    guest = machine(
        "quiet loglevel=3 random.trust_cpu=on console=ttyS0 rdinit=/lab/guest bc.token=hush",
        "-drive", f"file={data},if=none,id=data,format=raw", "-device", "virtio-blk-pci,drive=data",
        *drive(directory, "d1", 17), "-device", "nvme,drive=d1,serial=NVME-1",
        *drive(directory, "d2", 18), "-device", "nvme,serial=NVME-2,id=n2",
        "-device", "nvme-ns,drive=d2,bus=n2,nsid=2,logical_block_size=4096,physical_block_size=4096",
        "-device", "virtio-scsi-pci,id=scsi",
        *drive(directory, "d3", 19), "-device", f"scsi-hd,bus=scsi.0,scsi-id=3,lun=1,drive=d3,serial=SCSI-3,wwn=0x{WWN}",
        *drive(directory, "d4", 20), "-device", "scsi-hd,bus=scsi.0,scsi-id=4,drive=d4,serial=SCSI-4",
        *drive(directory, "d5", 21), "-device", "virtio-blk-pci,drive=d5,serial=VIRTIO-5",
        *user_network("net0", "52:54:00:00:00:01"), *silent_network("net1", "52:54:00:00:00:02"),
        "-smbios", "type=1,manufacturer=Lab,product=Box,serial=SN-77,uuid=4c4c4544-0031-5810-8034-cac04f574433",
        "-smbios", "type=2,serial=To be filled by O.E.M.",
        name="machine0", processors=2)
    told = json.loads(guest.wait_for(r"^(\{.*\})$", 120).group(1))
    places = {disk["stable_name"] for disk in told["disks"] if disk["stable_name"].startswith("pci-")}
    assert len(places) == 1, "the data disk has no serial, so it has a place"
    disks = {disk["stable_name"]: (disk["size_bytes"] >> 20, disk["logical_block_bytes"], disk["transport"], disk["serial"])
             for disk in told["disks"] if disk["stable_name"] not in places}
    assert disks == {
        "nvme-QEMU_NVMe_Ctrl_NVME-1": (17, 512, "nvme", "NVME-1"),
        "nvme-QEMU_NVMe_Ctrl_NVME-2_2": (18, 4096, "nvme", "NVME-2"),
        f"wwn-0x{WWN}": (19, 512, "scsi", "SCSI-3"),
        "scsi-0QEMU_QEMU_HARDDISK_SCSI-4": (20, 512, "scsi", "SCSI-4"),
        "virtio-VIRTIO-5": (21, 512, "virtio", "VIRTIO-5"),
    }
    cards = {card["mac"]: (card["kind"], card["driver"], card["permanent_mac"]) for card in told["interfaces"]
             if card["kind"] != "loopback"}
    assert cards == {mac: ("physical", "virtio_net", mac) for mac in ("52:54:00:00:00:01", "52:54:00:00:00:02")}
    firmware = told["firmware"]
    assert (firmware["system_vendor"], firmware["system_product"], firmware["system_serial"]) == ("Lab", "Box", "SN-77")
    assert firmware["system_uuid"] == "4c4c4544-0031-5810-8034-cac04f574433"
    assert firmware["board_serial"] == "", "what the maker did not fill in is left out"
    assert (firmware["boot_mode"], told["virtualization"]) == ("bios", "qemu")
    assert told["cpu"]["threads"] == 2
    assert "bc.token=***" in told["kernel"]["command_line"] and "hush" not in json.dumps(told)
    assert told["problems"] == []
