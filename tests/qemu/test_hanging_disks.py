"""Disks that never answer: what waits for them is given up in minutes and told, everything else goes on, and the machine restarts."""

import json

import pytest

from lab import wait_for
from qemu.discovery import CONSOLES, FIRST, JOINED, parameters, with_disks
from qemu.images import MIB, deploy, disk, images, make, over, receipt, sha256  # noqa: F401
from qemu.machine import user_network, virtio

pytestmark = pytest.mark.timeout(1500)

SLOW = ["throttling.bps-read=4000000", "throttling.bps-write=8000000"]
# What a call to a disk may take (src/sys/block.rs), and some time of a busy machine.
GIVEN_UP = 200 + 60


def hang(guest, name):
    """Nothing that the disk is asked comes back: a byte a second is never."""
    guest.qmp("block_set_io_throttle", device=name, bps=1, bps_rd=0, bps_wr=0, iops=0, iops_rd=0, iops_wr=0)


def ordered(dev, *order):
    return json.loads(dev.run("machines", *order, "--yes", "--json").stdout)["command"]["id"]


def says(dev, id, word):
    wait_for(word, lambda: word in dev.json("commands", "show", id).get("progress", {}).get("message", ""), 120)


def test_a_disk_that_hangs_is_given_up_and_told_and_the_machine_goes_on(machine, dev, tmp_path, images):  # noqa: F811
    packed = make(images.directory, "image").with_name("image.raw.zst")
    paths = {name: disk(tmp_path, name, 64 * MIB) for name in ("read", "wiped", "well")}
    hardware = [virtio(path, name, *([] if name == "well" else SLOW), device=["discard=off", "write-zeroes=off"])
                for name, path in paths.items()]
    guest = machine(parameters(dev, FIRST, "--append", CONSOLES), *user_network("n0", FIRST), *sum(hardware, []))
    guest.wait_for(JOINED, 300)
    names = with_disks(dev, FIRST, 3)

    # One while it is read back, the other in the middle of its wipe.
    deploying = ordered(dev, "deploy", FIRST, "--disk", names["read"], "--image", f"{images.url}/{packed.name}",
                        "--sha256", sha256(packed))
    says(dev, deploying, "read back")
    hang(guest, "read")
    wiping = ordered(dev, "wipe", FIRST, "--disk", names["wiped"], "--disk", names["well"], "--method", "overwrite")
    wait_for("the first bytes to go", lambda: not any(paths["wiped"].read_bytes()[:4096]), 60)
    hang(guest, "wiped")

    command = over(dev, deploying, GIVEN_UP)
    assert (command["state"], command["reason"]) == ("failed", "DiskHangs") and names["read"] in command["message"], command
    said = receipt(dev, command)["says"]
    assert (said["outcome"], said["reason"], said["readBack"]) == ("failed", "DiskHangs", False), said
    assert not any(paths["read"].read_bytes()[:512]), "it boots nothing"

    # The disk beside it was wiped meanwhile.
    command = over(dev, wiping, GIVEN_UP)
    assert (command["state"], command["reason"]) == ("failed", "NotWiped"), command
    wiped = {one["disk"]: one for one in receipt(dev, command)["says"]["disks"]}
    assert (wiped[names["wiped"]]["outcome"], wiped[names["wiped"]]["reason"]) == ("failed", "DiskHangs"), wiped
    assert wiped[names["well"]]["outcome"] == "wiped" and not any(paths["well"].read_bytes()), wiped

    # Who would write to a disk that is still waited for is told so; what is not asked for it goes on.
    command = deploy(dev, names["read"], f"{images.url}/{packed.name}", "--sha256", sha256(packed), check=False)
    assert (command["state"], command["reason"]) == ("failed", "DiskBusy"), command
    node = dev.json("machines", "show", FIRST)["node"]["id"]
    facts = json.loads(dev.run("commands", "run", node, "node.facts", "--wait", "--json").stdout)
    assert facts["state"] == "succeeded", facts

    # And the machine restarts when it is told to.
    before = len(guest.output())
    boot = json.loads(dev.run("machines", "boot", FIRST, "--reboot", "--wait", "--json").stdout)
    assert boot["state"] == "succeeded", boot
    # What firmware makes of such a disk afterwards is its own affair.
    guest.wait_for("reboot: Restarting system", 150, after=before)
