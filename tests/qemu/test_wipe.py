"""Used disks of every kind are wiped at an order, once, and what is left is read from outside."""

import base64
import json
import os
import struct
import subprocess
import time

import pytest

from lab import clean_env, wait_for
from qemu.discovery import CONSOLES, FIRST, JOINED, parameters, with_disks, with_facts
from qemu.images import over
from qemu.machine import drive, plugged, standing_still, swapped, user_network, virtio

pytestmark = pytest.mark.timeout(580)

MIB = 1 << 20
TENANT = b"what the last tenant left behind "
ENV = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}


def used(path, mib, sector=512):
    """A disk full of somebody's data: a partition table at both ends, a file system, and labels of storage stacks."""
    with open(path, "wb") as disk:
        line = TENANT * (MIB // len(TENANT) + 1)
        for n in range(mib):
            disk.write((b"%08d " % n + line)[:MIB])
        size = mib * MIB
        for offset, mark in [
                (sector, b"EFI PART"), (size - sector, b"EFI PART"), (512 if sector != 512 else 3 * 512, b"LABELONE"),
                (4096, struct.pack("<I", 0xa92b4efc)), (size - 8192, struct.pack("<I", 0xa92b4efc)), (65600, b"_BHRfS_M"),
                (size - 256 * 1024 + 128 * 1024, b"\x0c\xb1\xba\x00")]:
            disk.seek(offset)
            disk.write(mark)
    subprocess.run(["mke2fs", "-q", "-F", "-t", "ext4", "-E", f"offset={MIB},nodiscard", path, f"{mib - 2}M"],
                   check=True, capture_output=True, env=ENV)
    return path


def left(path):
    """What of the tenant is in a disk's image."""
    data = path.read_bytes()
    return [mark for mark in (TENANT, b"EFI PART", b"LABELONE", b"_BHRfS_M", struct.pack("<I", 0xa92b4efc)) if mark in data]


def better_compute(dev, *arguments):
    return subprocess.run([dev.program, *map(str, arguments), "--dir", dev.dir], capture_output=True, text=True,
                          env=clean_env(), timeout=400)


def booted(dev, guest, disks, beside=()):
    """The node of a machine's boot, once it has told of so many disks."""
    guest.wait_for(JOINED)
    node = wait_for("the machine", lambda: next(
        (n["id"] for n in dev.nodes() if n["state"] == "connected" and n["id"] not in beside), None), 90)
    wait_for("it to be the machine's", lambda: dev.json("machines", "show", FIRST)["node"]["id"] == node, 90)
    with_disks(dev, FIRST, disks)
    return node


def wiped(dev, *what):
    """The command of an order that was waited for, and its receipt."""
    done = better_compute(dev, "machines", "wipe", FIRST, *what, "--yes", "--wait", "--json")
    command = json.loads(done.stdout)
    assert done.returncode == (0 if command["state"] == "succeeded" else 1), done.stderr
    receipt = dev.json("receipts", "show", command["params"]["order"])
    return command, receipt, {disk["disk"]: disk for disk in receipt["says"]["disks"]}


def methods(disk):
    return [attempt["method"] for attempt in disk["attempts"]]


def test_used_disks_of_every_kind_are_wiped_and_the_receipt_says_how(server, dev, tmp_path):
    paths = {name: used(tmp_path / f"{name}.disk", 24, 4096 if name == "big" else 512)
             for name in ("nvme", "sata", "scsi", "virt", "plain", "big", "broken", "swap")}
    rules = tmp_path / "blkdebug.conf"
    # Sectors of 512 bytes: the 17th MiB cannot be written.
    rules.write_text('[inject-error]\nevent = "none"\niotype = "write"\nerrno = "5"\nsector = "34816"\n')
    guest = server(
        "wiped", f"{parameters(dev, FIRST)} {CONSOLES}", *user_network("n0", FIRST), "-device", "virtio-scsi-pci,id=scsi",
        *drive(paths["nvme"], "nv", "discard=unmap"), "-device", "nvme,drive=nv,serial=NVME0001",
        *drive(paths["sata"], "sa", "discard=unmap"), "-device", "ide-hd,bus=ide.0,drive=sa,serial=SATA0001",
        *drive(paths["scsi"], "sc", "discard=unmap"), "-device", "scsi-hd,bus=scsi.0,drive=sc,serial=SCSI0001",
        *virtio(paths["virt"], "VIRT", "discard=unmap"),
        *virtio(paths["plain"], "PLAIN", device=["discard=off"]),
        *virtio(paths["big"], "BIG", device=["discard=off", "logical_block_size=4096", "physical_block_size=4096"]),
        *virtio(paths["swap"], "SWAP", device=["discard=off"]),
        "-drive", f"if=none,id=BROKEN,format=raw,cache=writethrough,file.driver=blkdebug,file.config={rules},"
                  f"file.image.driver=file,file.image.filename={paths['broken']}",
        "-device", "virtio-blk-pci,drive=BROKEN,serial=BROKEN,discard=off,write-zeroes=off,werror=report")
    node = booted(dev, guest, 8)
    disks = {disk["serial"]: disk for disk in dev.json("machines", "show", FIRST)["facts"]["disks"]}
    assert "command.disks.wipe" in dev.json("nodes", "show", node)["details"]["capabilities"]
    shell = guest.shell()
    name = disks["SWAP"]["kernel_name"]
    shell.run(f"busybox mkswap /dev/{name} && busybox swapon /dev/{name}")

    # Said, and not done.
    said = better_compute(dev, "machines", "wipe", FIRST, "--all")
    assert said.returncode == 2 and "nothing was ordered" in said.stderr, said
    assert all(disk["stable_name"] in said.stdout for disk in disks.values()), said.stdout
    # Nor by a command that stands on no order.
    forged = better_compute(dev, "commands", "run", node, "disks.wipe", "--params-json", "{}")
    assert forged.returncode == 2 and "machines wipe" in forged.stderr
    assert dev.json("receipts", "list")["receipts"] == []

    command, receipt, found = wiped(dev, "--all")
    print(json.dumps({name: [disk["outcome"], methods(disk), disk.get("message")] for name, disk in found.items()}, indent=1))
    assert (command["state"], command["reason"]) == ("failed", "NotWiped"), command
    by_serial = {disk["serial"]: disk for disk in found.values()}
    outcomes = {serial: disk["outcome"] for serial, disk in by_serial.items()}
    assert outcomes == {**dict.fromkeys(by_serial, "wiped"), "BROKEN": "failed", "SWAP": "refused"}
    assert methods(by_serial["NVME0001"]) == ["nvme-format-erase"]
    for serial in ("SATA0001", "SCSI0001", "VIRT"):
        assert methods(by_serial[serial])[-1] == "discard", by_serial[serial]["attempts"]
        assert by_serial[serial]["attempts"][-1]["bytesVerified"] == 24 * MIB
    for serial in ("PLAIN", "BIG"):
        assert methods(by_serial[serial]) == ["overwrite"]
        assert by_serial[serial]["attempts"][-1]["bytesWritten"] == 24 * MIB
    assert by_serial["SWAP"]["reason"] == "DiskIsSwap" and not by_serial["SWAP"]["attempts"]
    assert by_serial["BROKEN"]["reason"] == "WriteFailed" and "could not be written" in by_serial["BROKEN"]["message"]
    for disk in by_serial.values():
        if disk["outcome"] == "wiped":
            assert {sample["content"] for sample in disk["samples"]} == {"zeros"}
            assert {"front", "gpt-backup", "md-1.0", "zfs-back", "btrfs", "random"} <= {s["place"] for s in disk["samples"]}
    for name in ("nvme", "sata", "scsi", "virt", "plain", "big"):
        assert left(paths[name]) == [], name
        assert not any(paths[name].read_bytes()), name
    assert TENANT in paths["swap"].read_bytes()
    broken = paths["broken"].read_bytes()
    assert TENANT not in broken[:17 * MIB] and TENANT not in broken[18 * MIB:], "the rest is overwritten all the same"

    # It is verified without a control plane, by the bundle or by the pin of the CA alone.
    file = tmp_path / "receipt.json"
    order = command["params"]["order"]
    dev.run("receipts", "show", order, "--output", file)
    verified = better_compute(dev, "receipts", "verify", file, "--json")
    shown = json.loads(verified.stdout)
    assert verified.returncode == 1 and shown["verified"] and not shown["succeeded"], "it holds, and not all were wiped"
    assert shown["says"]["node"] == node and shown["role"] == "ramdisk"
    again = subprocess.run([dev.program, "receipts", "verify", file, "--node-ca-pin", shown["nodeCaPin"]],
                           capture_output=True, text=True, env=clean_env(), timeout=30)
    assert "the signature holds" in again.stdout and "6 wiped, 1 failed, 1 refused" in again.stdout, again
    forged = file.read_text().replace('"certificateChain"', '"certificateChain": [], "was"')
    (tmp_path / "forged.json").write_text(forged)
    refused = better_compute(dev, "receipts", "verify", tmp_path / "forged.json")
    assert refused.returncode == 1 and "certificate" in refused.stderr

    # One more order, for what can be wiped: it all holds.
    used(paths["plain"], 24)
    command, _, found = wiped(dev, "--disk", disks["PLAIN"]["stable_name"], "--method", "overwrite")
    assert command["state"] == "succeeded" and command["result"]["wiped"] == 1, command
    assert not any(paths["plain"].read_bytes())
    file = tmp_path / "second.json"
    dev.run("receipts", "show", command["params"]["order"], "--output", file)
    assert better_compute(dev, "receipts", "verify", file).returncode == 0
    listed = dev.json("receipts", "list", "--machine", FIRST)["receipts"]
    assert [receipt["outcome"] for receipt in listed] == ["1 wiped", "6 wiped, 1 failed, 1 refused"]


def test_an_order_that_the_power_cut_short_is_never_taken_up_again(server, dev, tmp_path):
    path = used(tmp_path / "slow.disk", 64)
    slow = virtio(path, "SLOW", "throttling.bps-write=1000000", device=["discard=off", "write-zeroes=off"])
    guest = server("first", f"{parameters(dev, FIRST)} {CONSOLES}", *user_network("n0", FIRST), *slow)
    node = booted(dev, guest, 1)
    disk = dev.json("machines", "show", FIRST)["facts"]["disks"][0]["stable_name"]
    order = better_compute(dev, "machines", "wipe", FIRST, "--disk", disk, "--method", "overwrite", "--yes", "--json")
    order = json.loads(order.stdout)
    id = order["command"]["id"]
    progress = wait_for("some progress", lambda: dev.json("commands", "show", id).get("progress"), 60)
    assert "overwrite" in progress["message"], progress
    wait_for("the first bytes to go", lambda: not any(path.read_bytes()[:4096]), 60)
    guest.kill()
    # The next tenant's, if the order came to life again.
    kept = used(path, 64).read_bytes()

    guest = server("second", f"{parameters(dev, FIRST)} {CONSOLES}", *user_network("n0", FIRST), *slow)
    again = booted(dev, guest, 1, [node])
    command = over(dev, id, 30)
    assert (command["state"], command["reason"]) == ("failed", "Interrupted"), command
    assert "without a receipt" in command["message"]
    # Played back to the machine's next boot, by whoever knows the order.
    done = better_compute(dev, "commands", "run", again, "disks.wipe", "--params-base64", params(order), "--wait", "--json")
    replayed = json.loads(done.stdout)
    assert (replayed["state"], replayed["reason"]) == ("failed", "OrderUnsigned"), replayed
    assert dev.json("receipts", "list")["receipts"] == []
    time.sleep(3)
    assert path.read_bytes() == kept

    # The daemon dies in the middle, and comes back in the same boot.
    order = better_compute(dev, "machines", "wipe", FIRST, "--disk", disk, "--method", "overwrite", "--yes", "--json")
    id = json.loads(order.stdout)["command"]["id"]
    wait_for("some progress", lambda: dev.json("commands", "show", id).get("progress"), 60)
    guest.shell().run("busybox killall -9 bcd")
    command = over(dev, id, 90)
    assert (command["state"], command["reason"]) == ("failed", "Interrupted"), command


def test_a_disk_that_took_the_place_of_another_is_refused_and_a_late_one_not_forgotten(server, dev, tmp_path):
    first, second, third = (used(tmp_path / f"{name}.disk", size) for name, size in [("first", 16), ("second", 20), ("third", 24)])
    guest = server(
        "swapped", f"{parameters(dev, FIRST)} {CONSOLES}", *user_network("n0", FIRST), "-device", "virtio-scsi-pci,id=scsi",
        *drive(first, "a"), *drive(second, "b"), *drive(third, "c"), "-device", "scsi-hd,bus=scsi.0,lun=1,id=disk,drive=a,device_id=same")
    booted(dev, guest, 1)
    disk = dev.json("machines", "show", FIRST)["facts"]["disks"][0]["stable_name"]
    with swapped(guest, "b"):
        order = json.loads(better_compute(dev, "machines", "wipe", FIRST, "--disk", disk, "--yes", "--json").stdout)
    command = over(dev, order["command"]["id"])
    refused, = dev.json("receipts", "show", order["orderId"])["says"]["disks"]
    assert (refused["outcome"], refused["reason"]) == ("refused", "DiskChanged"), refused
    assert str(16 * MIB) in refused["message"] and str(20 * MIB) in refused["message"]
    assert command["reason"] == "NotWiped" and TENANT in second.read_bytes()

    # All disks are ordered, and there is one that the machine has not told of yet: nobody shall believe that it was wiped.
    with standing_still(guest) as shell:
        plugged(guest, shell, "sdb", lun="2", id="disk3", drive="c", device_id="late")
        done = better_compute(dev, "machines", "wipe", FIRST, "--all", "--yes", "--json")
    command = over(dev, json.loads(done.stdout)["command"]["id"])
    assert (command["state"], command["reason"]) == ("failed", "DiskNotOrdered") and "late" in command["message"], command
    assert TENANT in second.read_bytes() and TENANT in third.read_bytes() and len(dev.json("receipts", "list")["receipts"]) == 1
    # It does so by itself.
    sizes = [20 * MIB, 24 * MIB]
    with_facts(dev, FIRST, 300, lambda facts: sorted(disk["size_bytes"] for disk in facts["disks"]) == sizes)
    command, _, found = wiped(dev, "--all")
    assert command["result"]["wiped"] == len(found) == 2 and not left(second) and not left(third), command


def params(order):
    """The params of an order's command, encoded: what somebody would play back."""
    return base64.b64encode(b"\x0a" + bytes([len(order["orderId"])]) + order["orderId"].encode()
                            + target(order["command"]["params"]["disks"][0])).decode()


def target(name):
    text = b"\x0a" + bytes([len(name)]) + name.encode()
    return b"\x12" + bytes([len(text)]) + text
