"""An image onto the disks of a bare machine, and the receipts of it."""

import re

import pytest

from promises import hold
from qemu.discovery import CONSOLES, FIRST, JOINED, parameters, with_disks
from qemu.images import MIB, SIZE, deploy, disk, images, make, receipt, run, sha256  # noqa: F401
from qemu.machine import user_network

pytestmark = pytest.mark.timeout(900)


def test_images_go_to_all_kinds_of_disks_and_nothing_boots_what_is_not_the_image(machine, dev, tmp_path, images):  # noqa: F811
    first, second = make(images.directory, "first"), make(images.directory, "second")
    disks = {name: disk(tmp_path, name, size) for name, size in
             [("virt", 64 * MIB), ("nv", 64 * MIB), ("four", 64 * MIB), ("small", 32 * MIB)]}
    devices = {"virt": "virtio-blk-pci,serial=VIRT0001", "nv": "nvme,serial=NVME0001", "small": "virtio-blk-pci,serial=SMALL001",
               "four": "virtio-blk-pci,serial=FOUR0001,logical_block_size=4096,physical_block_size=4096"}
    guest = machine(
        parameters(dev, FIRST, "--cache", f"{images.url}/cache", "--append", CONSOLES), *user_network("n0", FIRST),
        *[part for name, device in devices.items()
          for part in ("-drive", f"file={disks[name]},if=none,id={name},format=raw,cache=writethrough",
                       "-device", f"{device},drive={name}")])
    guest.wait_for(JOINED, 300)
    names = with_disks(dev, FIRST, 4)
    packed = first.with_name("first.raw.zst")
    pinned = ["--sha256", sha256(packed)]

    # Nothing is ordered without --yes, without a digest over http, or for a disk that is known to be too small.
    for more, says in [([*pinned], "--yes"), (["--yes"], "SHA-256"), ([*pinned, "--unpacked-size", SIZE * 2, "--yes"], "larger disk")]:
        refused = dev.run("machines", "deploy", FIRST, "--disk", names["VIRT0001"], "--image", f"{images.url}/x", *map(str, more),
                          check=False)
        assert refused.returncode != 0 and says in refused.stderr, refused.stderr
    assert images.asked == []

    # The cache does not have it, and the source cuts: it goes on by its range.
    command = deploy(dev, names["VIRT0001"], f"{images.url}/cut-{packed.name}", *pinned)
    assert command["state"] == "succeeded", command
    (cached, _), (_, whole), (_, rest) = images.asked
    assert cached == f"cache/{pinned[1]}" and whole == "" and rest == f"bytes={packed.stat().st_size * 9 // 10}-", images.asked
    said = receipt(dev, command)["says"]
    assert (said["outcome"], said["readBack"], said["resumed"], said["formats"]) == ("deployed", True, 1, ["zstd"]), said
    assert said["unpackedSha256"] == sha256(first) and [part["number"] for part in said["partitions"]] == [1, 2], said
    wanted, found = first.read_bytes(), disks["virt"].read_bytes()
    # All of it is there; the table's copy is at this disk's end now.
    assert found[MIB:SIZE - MIB] == wanted[MIB:SIZE - MIB] and found[:512] == wanted[:512]
    assert "No problems found" in run("sgdisk", "-v", disks["virt"])
    kept = tmp_path / "receipt.json"
    dev.run("receipts", "show", command["result"]["order"], "--output", kept)
    assert "deployed, and read back" in dev.run("receipts", "verify", kept).stdout

    # The same image on a second disk would be taken for the first.
    again = deploy(dev, names["NVME0001"], f"{images.url}/{packed.name}", *pinned, "--new-guids", check=False)
    assert again["reason"] == "SharedIdentifier" and names["VIRT0001"] in again["message"], again
    assert disks["nv"].read_bytes()[:MIB] == b"\0" * MIB

    # qcow2 within xz, onto NVMe; the last partition grows.
    packed = second.with_name("second.qcow2.xz")
    command = deploy(dev, names["NVME0001"], f"{images.url}/{packed.name}", "--sha256", sha256(packed), "--grow", "--new-guids")
    said = receipt(dev, command)["says"]
    assert said["formats"] == ["xz", "qcow2"] and said["grownPartition"] == 2 and said["grownBytes"] >= 15 * MIB, said
    assert "No problems found" in run("sgdisk", "-v", disks["nv"])
    assert said["partitions"][1]["guid"].upper() in run("sgdisk", "-i2", disks["nv"])

    # What is refused leaves a disk as it was; what is found to be wrong later, one that boots nothing.
    packed = first.with_name("first.raw.zst")
    for name, url, more, reason, left in [
            ("four", packed.name, pinned, "SectorSize", b"\xee"),
            ("small", "none", pinned, "DownloadFailed", b"\xee"),
            ("small", packed.name, pinned, "DiskTooSmall", b"\0"),
            ("virt", first.name, ["--sha256", "ab" * 32], "ImageDigest", b"\0")]:
        serial = re.search("serial=(.{8})", devices[name])[1]
        command = deploy(dev, names[serial], f"{images.url}/{url}", *more, check=False)
        assert (command["state"], command["reason"]) == ("failed", reason), command
        assert disks[name].read_bytes()[:MIB] == left * MIB, reason
        listed = dev.json("receipts", "list")["receipts"][0]
        assert (listed["succeeded"], listed["outcome"]) == (False, f"failed: {reason}"), listed

    # Small, whatever the image.
    used = guest.shell().run("busybox grep -h VmHWM $(busybox ls -d /proc/[0-9]*/status)")
    peak = max(int(kib) for kib in re.findall(r"VmHWM:\s+(\d+) kB", used))
    hold("deploy.peak", peak, otherwise=used)
