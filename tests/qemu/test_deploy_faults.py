"""Deploys that something goes wrong with: what is said of them is true, and a disk boots nothing that is not the whole image."""

import base64
import json

import pytest

from gateway_api import call
from lab import wait_for
from qemu.discovery import CONSOLES, FIRST, JOINED, parameters, with_disks, with_facts
from qemu.images import MIB, SIZE, deploy, disk, images, make, over, receipt, run, sha256  # noqa: F401
from qemu.machine import drive, swapped, user_network

pytestmark = pytest.mark.timeout(900)

OLD = b"\xee" * MIB
SLOW = "throttling.bps-read=6000000"


def ordered(dev, name, url, digest):
    """The id of a command that goes on while the test does."""
    done = dev.run("machines", "deploy", FIRST, "--disk", name, "--image", url, "--sha256", digest, "--yes", "--json")
    return json.loads(done.stdout)["command"]["id"]


def nonzero(path, begin, end):
    with open(path, "rb") as file:
        file.seek(begin)
        return file.read(end - begin).strip(b"\0") != b""


def boots_nothing(path):
    """Neither by its first sector, nor by a table's copy at its end that firmware would repair it from."""
    size = path.stat().st_size
    return not nonzero(path, 0, 512) and not nonzero(path, size - MIB, size)


def the_last_step_is_slow(dev, guest, id, drive, path):
    """Waits until the last step of a deploy has begun. The drive reads slowly, so that there is time to see it read back;
    from then on it writes six times a second, of 8 KiB each."""
    wait_for("it to be read back", lambda: "read back" in dev.json("commands", "show", id).get("progress", {}).get("message", ""), 120)
    limits = {"bps": 0, "bps_rd": 0, "bps_wr": 0, "iops": 0, "iops_rd": 0}
    guest.qmp("block_set_io_throttle", device=drive, **limits, iops_wr=6)
    wait_for("the first MiB to come", lambda: nonzero(path, 512, MIB), 120)


def test_disks_that_fail_or_were_swapped_and_orders_that_come_again(machine, dev, tmp_path, images):  # noqa: F811
    image = make(images.directory, "image")
    packed = image.with_name("image.raw.zst")
    broken, first, second = disk(tmp_path, "broken", 64 * MIB), disk(tmp_path, "first", 64 * MIB), disk(tmp_path, "second", 72 * MIB)
    rules = tmp_path / "blkdebug.conf"
    # The 13th MiB cannot be written: in the middle of what is on the image.
    rules.write_text(f'[inject-error]\nevent = "none"\niotype = "write"\nerrno = "5"\nsector = "{12 * MIB // 512}"\n')
    guest = machine(
        parameters(dev, FIRST, "--append", CONSOLES), *user_network("n0", FIRST), "-device", "virtio-scsi-pci,id=scsi",
        "-drive", f"if=none,id=broken,format=raw,cache=writethrough,file.driver=blkdebug,file.config={rules},"
                  f"file.image.driver=file,file.image.filename={broken}",
        "-device", "virtio-blk-pci,drive=broken,serial=BROKEN01,discard=off,write-zeroes=off,werror=report",
        *drive(first, "a"), *drive(second, "b", SLOW),
        "-device", "scsi-hd,bus=scsi.0,lun=1,id=disk,drive=a,device_id=same,max_io_size=8192")
    guest.wait_for(JOINED, 300)
    names = with_disks(dev, FIRST, 2)
    bad = names.pop("BROKEN01")
    good, = names.values()

    # It fails in the middle. So does the deploy, and the receipt says where.
    command = deploy(dev, bad, f"{images.url}/{packed.name}", "--sha256", sha256(packed), check=False)
    assert (command["state"], command["reason"]) == ("failed", "DiskFailed"), command
    said = receipt(dev, command)["says"]
    assert (said["outcome"], said["reason"]) == ("failed", "DiskFailed") and not said["readBack"], said
    assert f"byte {12 * MIB}" in said["message"] or "write to the disk" in said["message"], said
    assert boots_nothing(broken) and broken.read_bytes()[40 * MIB:41 * MIB] == OLD

    # The same order again is the same order: nothing is done for it. Nor by its params alone, nor by its id for something else.
    asked = len(images.asked)
    order = {"disk": bad, "image": f"{images.url}/{packed.name}", "sha256": sha256(packed), "orderId": command["params"]["order"]}
    status, again = call(dev, "POST", f"machines/{FIRST}/deploy", order | {"commandId": command["id"]})
    assert status == 200 and again["command"]["state"] == "failed", again
    status, other = call(dev, "POST", f"machines/{FIRST}/deploy", order)
    assert (status, other["error"]["code"]) == (409, "ALREADY_EXISTS"), other
    params = played_back(command["params"]["order"], bad, f"{images.url}/{packed.name}", sha256(packed))
    node = dev.json("machines", "show", FIRST)["node"]["id"]
    done = dev.run("commands", "run", node, "deploy.image", "--params-base64", params, "--wait", "--json", check=False)
    assert (json.loads(done.stdout)["reason"]) == "OrderUnsigned", done.stdout
    assert len(images.asked) == asked and len(dev.json("receipts", "list")["receipts"]) == 1

    # Another disk under the name that was ordered: it is not touched, and the order not spent on it.
    asked = len(images.asked)
    with swapped(guest, "b", max_io_size=8192):
        id = ordered(dev, good, f"{images.url}/{packed.name}", sha256(packed))
    command = over(dev, id)
    assert (command["state"], command["reason"]) == ("failed", "DiskChanged"), command
    assert str(64 * MIB) in command["message"] and str(72 * MIB) in command["message"], command
    assert second.read_bytes() == 72 * OLD
    assert len(images.asked) == asked and len(dev.json("receipts", "list")["receipts"]) == 1

    # It is told of, unasked, and can be ordered then. Pulled in the last step: its write fails, and nothing claims that it was done.
    with_facts(dev, FIRST, 300, lambda facts: any(disk["size_bytes"] == 72 * MIB for disk in facts["disks"]))
    id = ordered(dev, good, f"{images.url}/{packed.name}", sha256(packed))
    the_last_step_is_slow(dev, guest, id, "b", second)
    guest.qmp("device_del", id="disk2")
    command = over(dev, id)
    assert (command["state"], command["reason"]) == ("failed", "DiskFailed"), command
    said = receipt(dev, command)["says"]
    assert (said["outcome"], said["readBack"]) == ("failed", True) and boots_nothing(second), said


def test_the_power_goes_while_an_image_is_written_and_in_the_last_step(machine, dev, tmp_path, images):  # noqa: F811
    image = make(images.directory, "image")
    packed = image.with_name("image.raw.zst")
    target = disk(tmp_path, "target", 64 * MIB)

    def boot(number):
        """Its commands have at most 8 KiB each, so that the power can go between two of a MiB; and it reads slowly."""
        guest = machine(
            parameters(dev, FIRST, "--append", CONSOLES), *user_network("n0", FIRST),
            *drive(target, "nv", SLOW), "-device", "nvme,drive=nv,serial=NVME0001,mdts=1",
            name=f"boot{number}")
        guest.wait_for(JOINED, 300)
        nodes = {node["id"] for node in dev.nodes()}
        wait_for("its session", lambda: dev.json("machines", "show", FIRST)["node"]["state"] == "connected"
                 and len(nodes) == number, 120)
        return guest, with_disks(dev, FIRST)["NVME0001"]

    # In the middle of the download.
    guest, name = boot(1)
    id = ordered(dev, name, f"{images.url}/held-{packed.name}", sha256(packed))
    wait_for("bytes of the image", lambda: target.read_bytes()[10 * MIB:11 * MIB] != OLD, 120)
    guest.kill()
    assert boots_nothing(target) and target.read_bytes()[47 * MIB:48 * MIB] == OLD
    kept = target.read_bytes()

    # Nobody takes it up again.
    guest, name = boot(2)
    command = over(dev, id)
    assert (command["state"], command["reason"]) == ("failed", "Interrupted") and "without a receipt" in command["message"], command
    assert target.read_bytes() == kept and dev.json("receipts", "list")["receipts"] == []

    # In the last step: all is there, and was read back, but for a part of the first MiB.
    id = ordered(dev, name, f"{images.url}/{packed.name}", sha256(packed))
    the_last_step_is_slow(dev, guest, id, "nv", target)
    guest.kill()
    wanted, found = image.read_bytes(), target.read_bytes()
    assert found[MIB:SIZE - MIB] == wanted[MIB:SIZE - MIB], "the rest is there"
    assert nonzero(target, 512, MIB) and boots_nothing(target), "a part of the first MiB is, and not its first sector"

    guest, name = boot(3)
    command = over(dev, id)
    assert (command["state"], command["reason"]) == ("failed", "Interrupted"), command
    assert boots_nothing(target) and dev.json("receipts", "list")["receipts"] == []
    # A new order does it all.
    command = deploy(dev, name, f"{images.url}/{packed.name}", "--sha256", sha256(packed))
    said = receipt(dev, command)["says"]
    assert (command["state"], said["outcome"], said["readBack"]) == ("succeeded", "deployed", True), command
    assert target.read_bytes()[:512] == wanted[:512] and "No problems found" in run("sgdisk", "-v", target)
    assert [known["succeeded"] for known in dev.json("receipts", "list")["receipts"]] == [True]


def played_back(order, name, url, digest):
    """The params of an order's command, encoded: what somebody would play back."""
    def field(number, value):
        size = [len(value)] if len(value) < 128 else [len(value) & 127 | 128, len(value) >> 7]
        return bytes([number << 3 | 2, *size]) + value
    return base64.b64encode(field(1, order.encode()) + field(2, field(1, name.encode())) + field(3, url.encode())
                            + field(4, bytes.fromhex(digest))).decode()
