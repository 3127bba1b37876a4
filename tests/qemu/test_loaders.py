"""Loaders besides GRUB, with Secure Boot and without: what a disk's own loader would start is what starts."""

import json
import struct

import pytest

from qemu.discovery import CONSOLES, FIRST, JOINED, parameters, with_disks
from qemu.images import MIB, run
from qemu.machine import TOLERANT, nvme, uefi, user_network, virtio

pytestmark = pytest.mark.timeout(900)

INIT = """#!/bin/busybox sh
/bin/busybox mkdir -p /proc
/bin/busybox mount -t proc proc /proc
echo "lab: $(/bin/busybox cat /second) of $(/bin/busybox cat /proc/cmdline)"
while :; do /bin/busybox sleep 60; done
"""
OPTIONS = f"root=LABEL=none rdinit=/init console=ttyS0 {TOLERANT} lab.default"


def archive(directory, name, files):
    """An initrd of `files` (path, bytes), all of them programs."""
    root = directory / f"{name}.root"
    root.mkdir()
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
        (root / path).chmod(0o755)
    made = directory / name
    run("sh", "-c", f"cd {root} && find . | cpio --quiet -o -H newc > {made}")
    # Not a multiple of four: the next one begins on a boundary all the same.
    made.write_bytes(made.read_bytes() + b"\0" * 2)
    return made


@pytest.fixture
def system(kernel, tmp_path):
    """A kernel and two initrds that tell how they were started."""
    busybox = open("/bin/busybox", "rb").read()
    first = archive(tmp_path, "initrd.img", {"bin/busybox": busybox, "init": INIT.encode()})
    return {"vmlinuz": kernel / "vmlinuz", "initrd.img": first, "second.img": archive(tmp_path, "second.img", {"second": b"the default"})}


def table(directory, name, kind):
    path = directory / f"{name}.disk"
    with open(path, "wb") as disk:
        disk.truncate(64 * MIB)
    run("sgdisk", "-n1:2048:+62M", f"-t1:{kind}", path)
    return path


def systemd_boot(directory, name, system):
    path = table(directory, name, "ef00")
    at = f"{path}@@{MIB}"
    run("mformat", "-i", at, "-T", str(62 * MIB // 512), "-h", "16", "-s", "63", "::")
    run("mmd", "-i", at, "::/EFI", "::/EFI/systemd", "::/loader", "::/loader/entries")
    entry = "title {0}\nversion {1}\nlinux /vmlinuz\n{2}options " + OPTIONS.replace("default", "{0}") + "\n"
    texts = {
        "EFI/systemd/systemd-bootx64.efi": "a loader",
        "loader/loader.conf": "timeout 3\ndefault lab-*\n",
        "loader/entries/lab-1.conf": entry.format("old", 1, ""),
        "loader/entries/lab-2.conf": entry.format("default", 2, "initrd /initrd.img\ninitrd /second.img\n"),
        "loader/entries/other-3.conf": entry.format("other", 3, ""),
    }
    for place, text in texts.items():
        (directory / "text").write_text(text)
        run("mcopy", "-o", "-i", at, directory / "text", f"::/{place}")
    for place, source in system.items():
        run("mcopy", "-i", at, source, f"::/{place}")
    return path


def extlinux(directory, system):
    path = table(directory, "extlinux", "8304")
    root = directory / "extlinux.root"
    (root / "boot/extlinux").mkdir(parents=True)
    (root / "boot/extlinux/extlinux.conf").write_text(
        "DEFAULT old\nTIMEOUT 30\nLABEL old\n  LINUX /boot/vmlinuz\n  APPEND lab.old\n"
        "LABEL new\n  MENU DEFAULT\n  MENU LABEL the default\n  LINUX ../vmlinuz\n"
        f"  INITRD ../initrd.img,/boot/second.img\n  APPEND {OPTIONS}\n")
    for place, source in system.items():
        (root / "boot" / place).write_bytes(source.read_bytes())
    run("mke2fs", "-q", "-t", "ext4", "-d", root, "-E", f"offset={MIB}", path, "62M")
    return path


def unsigned(directory, kernel):
    """The same kernel without its signature: a PE file whose table of certificates is empty."""
    content = bytearray(kernel.read_bytes())
    header, = struct.unpack_from("<I", content, 0x3c)
    assert content[header:header + 4] == b"PE\0\0" and struct.unpack_from("<H", content, header + 24)[0] == 0x20b
    entry = header + 24 + 112 + 4 * 8
    at, size = struct.unpack_from("<II", content, entry)
    assert at and at + size == len(content), "the kernel is not signed"
    content[entry:entry + 8] = bytes(8)
    stripped = directory / "unsigned"
    stripped.write_bytes(content[:at])
    return stripped


def boots(dev, name, *more):
    done = dev.run("machines", "boot", FIRST, "--disk", name, *more, "--wait", "--json", check=False, seconds=600)
    return json.loads(done.stdout)


@pytest.mark.parametrize("loader", ["systemd-boot", "extlinux"])
def test_what_a_loader_would_start_is_started(machine, dev, kernel, deploying, system, tmp_path, loader):
    is_uefi = loader == "systemd-boot"
    disk = systemd_boot(tmp_path, "disk", system) if is_uefi else extlinux(tmp_path, system)
    guest = machine(
        parameters(dev, FIRST, "--append", CONSOLES), *user_network("n0", FIRST),
        *([*nvme(disk, "DISK"), *uefi(tmp_path / "vars.fd")] if is_uefi else virtio(disk, "DISK")), boots=(kernel / "vmlinuz", deploying), memory=1024)
    guest.wait_for(JOINED, 400)
    started = boots(dev, with_disks(dev, FIRST)["DISK"], "--append", "lab.appended")
    result = started["result"]
    assert (started["state"], result["mode"], result["loader"]) == ("succeeded", "kexec", loader), started
    assert "lab.default" in result["command_line"] and result["command_line"].endswith(" lab.appended"), result
    assert guest.wait_for("^lab: the default of (.*)$", 300)[1] == result["command_line"]


def test_under_secure_boot_no_kernel_starts_that_is_not_trusted(machine, dev, kernel, deploying, system, tmp_path):
    """Debian's is signed, by a key that this firmware does not have: shim would bring it."""
    signed = systemd_boot(tmp_path, "signed", system)
    other = systemd_boot(tmp_path, "other", {**system, "vmlinuz": unsigned(tmp_path, system["vmlinuz"])})
    guest = machine(
        parameters(dev, FIRST, "--append", CONSOLES), *user_network("n0", FIRST), *uefi(tmp_path / "vars.fd", keys=True),
        *nvme(signed, "SIGNED"), *nvme(other, "OTHER"), boots=(kernel / "vmlinuz", deploying), memory=1024)
    guest.wait_for(JOINED, 400)
    names = with_disks(dev, FIRST, 2)
    why = "the image's kernel has no signature that the ramdisk's kernel trusts"
    refused = boots(dev, names["OTHER"], "--no-fallback")
    assert (refused["state"], refused["reason"]) == ("failed", "NotStarted") and why in refused["message"], refused
    started = boots(dev, names["SIGNED"])
    assert started["state"] == "succeeded" and started["result"]["mode"] == "reboot" and why in started["result"]["fallback"], started
    guest.wait_for("reboot: Restarting system", 200)
