"""The files that the OS on an image is given."""

import hashlib
import json
import re
import shutil

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from lab import wait_for
from qemu.discovery import CONSOLES, FIRST, JOINED, parameters, with_disks
from qemu.images import MIB, deploy, disk, images, make, receipt, run, sha256  # noqa: F401
from qemu.machine import uefi, user_network

pytestmark = pytest.mark.timeout(900)


USER_DATA = "#cloud-config\npassword: hunter2\n"
ROOT_AT = 9 * MIB


def look(disk, request):
    return run("debugfs", "-R", request, f"{disk}?offset={ROOT_AT}")


def test_an_os_gets_its_files_and_nobody_else_their_secrets(machine, dev, tmp_path, images, kernel, deploying):  # noqa: F811
    image = make(images.directory, "first")
    odd = {"xfs": ROOT_AT, "lvm": None}
    for name, at in odd.items():
        copy = images.directory / f"{name}.raw"
        copy.write_bytes(image.read_bytes())
        if at is None:
            run("sgdisk", "-t2:8e00", copy)
        else:
            with open(copy, "r+b") as raw:
                raw.seek(at)
                raw.write(b"XFSB" + b"\1" * 4092)
    target = disk(tmp_path, "virt", 64 * MIB)
    guest = machine(
        parameters(dev, FIRST, "--append", CONSOLES), *user_network("n0", FIRST), "-device", "virtio-blk-pci,serial=VIRT0001,drive=virt",
        "-drive", f"file={target},if=none,id=virt,format=raw,cache=writethrough", boots=(kernel / "vmlinuz", deploying), memory=512)
    guest.wait_for(JOINED, 300)
    name, = with_disks(dev, FIRST).values()
    (tmp_path / "user-data").write_text(USER_DATA)
    token = dev.token()
    (tmp_path / "token").write_text(token + "\n")
    files = ["--join", "--join-token-file", tmp_path / "token", "--user-data", tmp_path / "user-data", "--hostname", "gpu-7"]

    # What no file can be written to is found out before the first byte, where the table shows it.
    for kind, left in [("lvm", b"\xee"), ("xfs", b"\0")]:
        raw = images.directory / f"{kind}.raw"
        command = deploy(dev, name, f"{images.url}/{raw.name}", "--sha256", sha256(raw), *files, check=False)
        assert command["reason"] == "RootUnsupported" and kind.upper() in command["message"], command
        assert target.read_bytes()[:MIB] == left * MIB, kind
    # Without files nobody looks.
    raw = images.directory / "xfs.raw"
    assert deploy(dev, name, f"{images.url}/{raw.name}", "--sha256", sha256(raw))["state"] == "succeeded"

    command = deploy(dev, name, f"{images.url}/{image.name}", "--sha256", sha256(image), *files)
    assert command["state"] == "succeeded", command
    run("e2fsck", "-fn", f"{target}?offset={ROOT_AT}")
    config = look(target, "cat /etc/bcd/config.toml")
    jwk = look(target, "cat /etc/bcd/join-encryption.jwk")
    assert jwk.strip() == (dev.dir / "node/join-encryption.jwk").read_text().strip()
    ours = {line.split(" = ")[0]: line for line in (dev.dir / "node/config.toml").read_text().splitlines()}
    for pin in ("serving_ca_spki_pin", "join_signing_key_pin", "join_encryption_key_pin"):
        assert ours[pin] in config, config
    assert 'gateway_url = "https://10.0.2.2:' in config and "site = " in config, config
    assert look(target, "cat /etc/bcd/join-token") == token
    seed = "/var/lib/cloud/seed/nocloud"
    assert look(target, f"cat {seed}/user-data") == USER_DATA
    assert "local-hostname: gpu-7" in look(target, f"cat {seed}/meta-data")
    said = receipt(dev, command)["says"]
    paths = [file["path"] for file in said["files"]]
    assert said["rootPartition"] == 2 and len(paths) == 6, said
    assert said["bootEntry"]["reason"] == "NotUefi", said
    order, key = look(target, "cat /etc/bcd/provisioned.key").split("\n", 1)
    public = load_pem_private_key(key.encode(), None).public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert (order, hashlib.sha256(public).hexdigest()) == (said["order"], said["joinKeySha256"])
    for path in paths:
        assert "Mode:  0600" in look(target, f"stat {path}") and "User:     0   Group:     0" in look(target, f"stat {path}")
    assert "Mode:  0700" in look(target, "stat /etc/bcd")

    # Of a secret there is neither text nor digest.
    secrets = [file["path"].rsplit("/", 1)[1] for file in said["files"] if "sha256" not in file]
    assert secrets == ["provisioned.key", "join-token", "user-data"], said["files"]
    shown = json.dumps([dev.json("commands", "show", command["id"]), dev.json("commands", "list"), said])
    shown += dev.run("events", "--json").stdout + guest.output()
    for secret in (key.split("\n")[1], "hunter2", token.split(".")[1], "aHVudGVyMg", sha256(tmp_path / "user-data")):
        assert secret not in shown, secret


VARIABLES, GLOBAL = "/sys/firmware/efi/efivars", "8be4df61-93ca-11d2-aa0d-00e098032b8c"


def variable(shell, name):
    """In hex, what firmware keeps. A serial line under load doubles a character now and then: two readings have to agree."""
    readings = []

    def agreed():
        readings.append(re.sub(r"\s", "", shell.run(f"busybox od -An -v -tx1 {VARIABLES}/{name}-{GLOBAL}")))
        return readings.count(readings[-1]) > 1
    wait_for(f"{name} to be read", agreed)
    return readings[-1]


def test_the_firmware_starts_the_disk_first_and_has_one_entry_for_it(machine, dev, tmp_path, images, kernel, deploying):  # noqa: F811
    first = make(images.directory, "first")
    place = f"{first}@@{MIB}"
    run("mformat", "-i", place, "-T", "16384", "-h", "16", "-s", "63", "::")
    run("mmd", "-i", place, "::/EFI", "::/EFI/debian")
    run("mcopy", "-i", place, __file__, "::/EFI/debian/shimx64.efi")
    second = images.directory / "second.raw"
    shutil.copy(first, second)
    run("mmd", "-i", f"{second}@@{MIB}", "::/EFI/BOOT")
    run("mcopy", "-i", f"{second}@@{MIB}", __file__, "::/EFI/BOOT/BOOTX64.EFI")
    target = disk(tmp_path, "virt", 64 * MIB)
    guest = machine(
        parameters(dev, FIRST, "--append", CONSOLES), *user_network("n0", FIRST), "-device", "virtio-blk-pci,serial=VIRT0001,drive=virt",
        *uefi(tmp_path / "vars.fd"),
        "-drive", f"file={target},if=none,id=virt,format=raw,cache=writethrough", boots=(kernel / "vmlinuz", deploying), memory=512)
    guest.wait_for(JOINED, 400)
    name, = with_disks(dev, FIRST).values()
    entries = []
    for image, loader in [(first, "\\EFI\\debian\\shimx64.efi"), (second, "\\EFI\\BOOT\\BOOTX64.EFI")]:
        command = deploy(dev, name, f"{images.url}/{image.name}", "--sha256", sha256(image), "--new-guids")
        assert command["state"] == "succeeded", command
        said = receipt(dev, command)["says"]
        entry = said["bootEntry"]
        assert entry.get("loader", "").lower() == loader.lower() and entry["bootOrder"][0] == entry["entry"], entry
        assert entry["partitionGuid"] == said["partitions"][0]["guid"], said
        entries.append(entry)
    assert entries[0]["entry"] == entries[1]["entry"] and entries[0]["bootOrder"] == entries[1]["bootOrder"], entries

    # As the firmware keeps it.
    shell = guest.shell()
    order = variable(shell, "BootOrder")
    assert order[8:12] == int(entry["entry"][4:], 16).to_bytes(2, "little").hex(), order
    option = variable(shell, entry["entry"])
    for text in ("better-compute", entry["loader"]):
        assert text.encode("utf-16-le").hex() in option, option
    ours = shell.run(f"busybox grep -l b.e.t.t.e.r.-.c.o.m.p.u.t.e {VARIABLES}/Boot0*")
    assert len(re.findall(r"Boot0[0-9A-F]{3}-", ours)) == 1, ours
