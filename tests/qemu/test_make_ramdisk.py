"""The image that `make ramdisk` builds: the same bytes wherever it is built, and a machine that boots it joins."""

import os
import re
import subprocess
import threading

import pytest

from lab import ROOT, running
from qemu.bmc import Bmc
from qemu.discovery import CONSOLES, FIRST, JOINED, SECOND, parameters, with_facts
from qemu.machine import user_network
from qemu.network import Wire

pytestmark = pytest.mark.timeout(1200)
SWITCH, GROUP, LLDP = bytes.fromhex("001c73010203"), bytes.fromhex("0180c200000e"), 0x88CC


@pytest.fixture
def build(bcd, init, ramdisk):
    """build(directory) does what `make ramdisk` does, by its own script, with the programs that are built already."""

    def run(directory, **more):
        env = os.environ | {"BCD": str(bcd), "INIT": str(init), "RAMDISK": str(ramdisk), "OUTPUT": str(directory)}
        # All as it is by default, but compressed in a second: the best takes a minute.
        env |= {"LEVEL": "3"} | more
        done = subprocess.run([ROOT / "tools/ramdisk.sh", "amd64"], capture_output=True, text=True, env=env, timeout=400,
                              umask=int(more.get("UMASK", "022"), 8), cwd="/")
        assert done.returncode == 0, done.stderr
        return directory / "vmlinuz-amd64", directory / "initrd-amd64.img"

    return run


def tlv(kind, value):
    return (kind << 9 | len(value)).to_bytes(2, "big") + value


@pytest.fixture
def switch():
    """A wire with a switch at its far end that says every second who it is, and gives no addresses."""
    wire, over = Wire(), threading.Event()
    said = (tlv(1, b"\x04" + SWITCH) + tlv(2, b"\x05Ethernet7/1") + tlv(3, b"\x00\x78") + tlv(5, b"leaf-12") + tlv(0, b""))

    def run():
        while not over.wait(1):
            wire.send(GROUP, SWITCH, LLDP, said)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield wire
    over.set()
    thread.join()
    wire.close()


def test_the_full_list_has_what_the_minimal_one_has_and_the_rest(build, ramdisk, tmp_path):
    def names(image):
        listed = subprocess.run([ramdisk, "list", image], capture_output=True, text=True, check=True).stdout
        return {line.split()[2] for line in listed.splitlines()}

    minimal, full = (names(build(tmp_path / name, LIST=name)[1]) for name in ("minimal", "full"))
    assert minimal <= full and len(full) > len(minimal) + 500
    have = {name.rsplit("/", 1)[-1] for name in full - minimal}
    assert have >= {"hfi1.ko", "qla2xxx.ko", "sfc.ko", "ipmi_watchdog.ko", "squashfs.ko"}


def test_the_image_is_the_same_bytes_twice_and_a_machine_that_boots_it_joins_and_is_known(
        build, machine, better_compute, switch, tmp_path):
    """A kernel of servers, a server's NIC, a BMC, and a switch on the other NIC; the image as a newcomer gets it."""
    first = build(tmp_path / "first")
    again = build(tmp_path / "again", UMASK="077", TZ="Asia/Tokyo", LC_ALL="C", SOURCE_DATE_EPOCH="1")
    for one, other in zip(first, again):
        assert one.read_bytes() == other.read_bytes(), one.name
    bmc = Bmc(tmp_path / "bmc.sock", 1, {3: bytes([192, 0, 2, 77]), 5: bytes.fromhex("02000000004d")}, busy=1)
    with running(better_compute, tmp_path / "dev", "--heartbeat", "2s") as dev:
        guest = machine(parameters(dev, FIRST, "--append", CONSOLES), *user_network("n0", FIRST, model="e1000e"),
                        *switch.arguments("n1", SECOND), *bmc.arguments(), boots=first)
        guest.wait_for(JOINED, 240)
        found = with_facts(dev, FIRST, 300, lambda facts: facts["bmc_address"] and any(
            one["lldp_system"] for one in facts["interfaces"]))["facts"]
        assert (found["bmc_address"], found["bmc_mac"]) == ("192.0.2.77", "02:00:00:00:00:4d")
        heard = {one["mac"]: [one[f"lldp_{part}"] for part in ("system", "port", "chassis")] for one in found["interfaces"]}
        assert heard[SECOND] == ["leaf-12", "Ethernet7/1", "00:1c:73:01:02:03"]
        assert heard[FIRST] == ["", "", ""]
        assert {one["driver"] for one in found["interfaces"] if one["kind"] == "physical"} == {"e1000e", "virtio_net"}
        text = dev.run("machines", "show", FIRST).stdout
        assert "192.0.2.77 02:00:00:00:00:4d" in text and "at leaf-12 Ethernet7/1 00:1c:73:01:02:03" in text
        # Channel 1 has it, so no other was asked; it was busy once.
        assert bmc.asked == [(1, 3), (1, 3), (1, 5)]
        # The outside programs start, with all their libraries, and a person gets a shell.
        shell = guest.shell()
        for program in ("nvme version", "hdparm -V", "blkdiscard -V", "blockdev -V", "lsblk -V", "mount -V", "umount -V",
                        "debugfs -V", "e2fsck -V", "mcopy -V", "mdir -V", "mtype -V", "udevadm -V", "kexec -v"):
            # By their paths: the shell has some of these names itself.
            said = shell.run(f"$(busybox which {program.split()[0]}) {program.split()[1]} >/tmp/said 2>&1; echo code $?; busybox cat /tmp/said")
            assert re.search(r"^code 0$", said, re.M) and "error while loading" not in said, f"{program}: {said}"
    bmc.close()
