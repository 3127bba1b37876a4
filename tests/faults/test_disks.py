"""Wipes and deploys while the system calls of the machine's bcd go wrong, one by one: none ever claims what is not on the disk.

`bcd ramdisk` runs on this host, in a mount namespace whose only disk is a loop device: /sys/block and /dev are made for it.
"""

import hashlib
import http.server
import json
import pathlib
import subprocess
import threading

import pytest

from faults.conftest import UNSEEN, campaign, fault, says
from gateway_api import call
from lab import Background, running, wait_for
from qemu.images import ENV, Images
from ramdisk.boots import Boot
from ramdisk.conftest import mac  # noqa: F401

MIB = 1 << 20
DISK, IMAGE = 12 * MIB, 9 * MIB
OLD = b"\xee" * MIB
# What a session and a journal do with these is asked by the others.
ASIDE = {("send", "socket"), ("receive", "socket"), ("write", "output"), ("pwrite", "data"), ("sync", "data"), ("stat", "data"),
         ("stat", "file"), ("getrandom", "nowhere")}
# How an end is told that has no errno in it; the second where the kernel does not say the disk's number, the last where it
# does not say the serial that the disk is named by.
WORDS = ("cannot be read back", "another disk than the one that was found", "this machine has no such disk now")
SERIAL = "FAULTS01"
# What the machine has: one disk, and the few devices that every program needs.
MACHINE = """
set -e
mount -t tmpfs -o mode=755 faults-block /sys/block
mount -t tmpfs -o mode=755 faults-dev /dev
for name in null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9; do
  mknod -m 666 "/dev/${name%%:*}" c $(echo "${name#*:}" | tr : ' ')
done
ln -s /proc/self/fd /dev/fd
number=$1 size=$2 discard=$3; shift 3
mknod /dev/vdz b $(echo "$number" | tr : ' ')
mkdir -p /sys/block/vdz/device /sys/block/vdz/queue
cd /sys/block/vdz
ln -s /sys/class/virtio device/subsystem
echo "$number" > dev; echo $((size / 512)) > size; echo SERIAL > serial; echo 0 > ro; echo 0 > removable
echo 512 > queue/logical_block_size; echo "$discard" > queue/discard_max_bytes
cd /
exec "$@"
""".replace("SERIAL", SERIAL)


@pytest.fixture(scope="module")
def fleet(better_compute, tmp_path_factory):
    with running(better_compute, tmp_path_factory.mktemp("fleet") / "dev", "--heartbeat", "5s") as plane:
        yield plane


class Bare:
    """A bare machine with one disk, whose bcd runs under the injector."""

    def __init__(self, fleet, bcd, mac, directory, injected, discard):  # noqa: F811
        self.fleet, self.mac, self.dir = fleet, mac, directory
        self.file = directory / "disk"
        self.fill()
        self.loop = subprocess.run(["losetup", "--find", "--show", "--direct-io=off", self.file], check=True,
                                   capture_output=True, text=True, timeout=30, env=ENV).stdout.strip()
        name = pathlib.Path(self.loop).name
        number = pathlib.Path(f"/sys/block/{name}/dev").read_text().strip()
        line = fleet.run("machines", "boot-params", "--mac", mac).stdout.strip()
        self.boot = Boot(bcd, fleet, directory / "boot", line)
        self.faults = injected("bare", self.boot.data_dir)
        inside = ["unshare", "--mount", "--propagation", "private", "sh", "-c", MACHINE, "sh", number, DISK, discard]
        self.command = [*inside, *self.faults.prefix, *self.boot.command]

    def start(self):
        self.faults.arm()
        self.process = Background(self.command, self.dir / "bare.log")
        self.connected()

        def disks():
            status, said = call(self.fleet, "GET", f"machines/{self.mac}")
            return status == 200 and said.get("facts", {}).get("disks")

        (disk,) = wait_for("the machine's disk", disks, 30)
        assert (disk["serial"], disk["size_bytes"]) == (SERIAL, DISK), disk
        self.name = disk["stable_name"]

    def connected(self):
        def there():
            assert self.process.running(), self.process.output()[-3000:]
            status, said = call(self.fleet, "GET", f"machines/{self.mac}")
            return status == 200 and said["node"]["state"] == "connected"

        wait_for("the ramdisk's session", there, 60)

    def fill(self):
        with open(self.file, "wb") as file:
            for _ in range(DISK // MIB):
                file.write(OLD)

    def content(self):
        """What is on the disk, past the caches of whoever wrote it."""
        subprocess.run(["blockdev", "--flushbufs", self.loop], check=True, timeout=30, env=ENV)
        return self.file.read_bytes()

    def close(self):
        if process := getattr(self, "process", None):
            process.kill()
        subprocess.run(["losetup", "--detach", self.loop], check=False, timeout=30, env=ENV)


@pytest.fixture
def bare(fleet, bcd, mac, tmp_path, injected):  # noqa: F811
    made = []

    def make(discard=0):
        made.append(Bare(fleet, bcd, mac, tmp_path, injected, discard))
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.close()


def ordered(machine, what, body):
    """An order and what came of it: the command, and the receipt if there is one."""
    status, said = call(machine.fleet, "POST", f"machines/{machine.mac}/{what}", body)
    assert status in (200, 201), said
    id = said["command"]["id"]

    def over():
        assert machine.process.running(), machine.process.output()[-3000:]
        command = call(machine.fleet, "GET", f"commands/{id}")[1]
        return command if command["over"] else None

    command = wait_for(f"the end of {what}\n{machine.process.output()[-2000:]}", over, 60)
    status, receipt = call(machine.fleet, "GET", f"receipts/{command['params']['order']}")
    return command, receipt["says"] if status == 200 else None


def try_all(machine, counts, what, body, judge, *always):
    """Every fault of the campaign, on an order each. `judge` has the command, its receipt and what is on the disk."""
    tried, passed, findings, ends = 0, 0, [], {}
    for one in campaign(counts, leave_out=ASIDE):
        machine.fill()
        seen = len(machine.process.output())
        machine.faults.rearm(machine.process, one, *always)
        command, receipt = ordered(machine, what, body)
        machine.connected()
        done = machine.faults.rearm(machine.process)["done"]
        done = [wrong for wrong in done if wrong["what"] == one["what"]]
        tried, passed = tried + 1, passed + bool(done)
        ends[command["state"]] = ends.get(command["state"], 0) + 1
        try:
            said = machine.process.output()[seen:]
            assert "panicked" not in said, said
            if not done or one["what"] in UNSEEN:
                assert command["state"] == "succeeded", "it does not succeed"
            elif command["state"] != "succeeded":
                assert says(json.dumps(command), one["what"]) or any(w in command["message"] for w in WORDS), "no reason is told"
            judge(command, receipt, machine.content())
        except AssertionError as finding:
            findings.append(f"{finding}: {done or one}\n{command['state']} {command.get('reason')} {command.get('message')}")
    print(f"{what}: {tried} faults armed, {passed} came to pass: {ends}")  # shown by -s -n 0
    assert not findings, "\n".join([f"{len(findings)} findings", *findings])
    assert passed > tried * 3 // 4, "the faults do not come to pass"


def judge_wipe(command, receipt, content):
    zeros = content == bytes(DISK)
    if command["state"] == "succeeded":
        (disk,) = receipt["disks"]
        assert zeros and disk["outcome"] == "wiped", "a wipe is claimed that was none"
    elif receipt:
        assert receipt["disks"][0]["outcome"] in ("failed", "refused"), receipt


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("method", "discard", "always"), [
    pytest.param("overwrite", 0, (), id="by-the-kernel"),
    # The third of its calls is the first that has a range zeroed.
    pytest.param("overwrite", 0, (fault("ioctl", "disk", 3, "EOPNOTSUPP"),), id="by-writing"),
    pytest.param("discard", 1 << 30, (), id="by-discards"),
])
def test_a_wipe_whose_calls_go_wrong_claims_nothing_that_is_not_so(bare, method, discard, always):
    machine = bare(discard)
    machine.faults.rearm(machine.process, *always)
    command, receipt = ordered(machine, "wipe", {"disks": [machine.name]})
    assert command["state"] == "succeeded" and receipt["disks"][0]["attempts"][-1]["method"] == method, receipt
    counts = machine.faults.rearm(machine.process)["counts"]
    assert counts["sync disk"] and (counts.get("pwrite disk", 0) >= DISK // MIB) == bool(always), counts
    if method == "discard" or always:
        # The rest is what the first does.
        counts = {name: count for name, count in counts.items() if name.endswith(" disk")}
    try_all(machine, counts, "wipe", {"disks": [machine.name]}, judge_wipe, *always)


@pytest.fixture
def image(tmp_path):
    """A packed image with a partition table, its URL and digest, and what it is unpacked."""
    directory = tmp_path / "images"
    directory.mkdir()
    raw, packed = directory / "image.raw", directory / "image.raw.zst"
    noise = b"".join(hashlib.sha256(b"%d" % n).digest() for n in range(IMAGE // 32))
    raw.write_bytes(bytes(MIB) + noise[:5 * MIB] + bytes(MIB) + noise[:2 * MIB])
    subprocess.run(["sgdisk", "-n1:2048:0", raw], check=True, capture_output=True, timeout=30, env=ENV)
    subprocess.run(["zstd", "-q", "-1", raw, "-o", packed], check=True, capture_output=True, timeout=30, env=ENV)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Images)
    server.directory, server.asked, server.go_on = directory, [], threading.Event()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}/{packed.name}"
    yield url, hashlib.sha256(packed.read_bytes()).hexdigest(), raw.read_bytes()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.timeout(3600)
def test_a_deploy_whose_calls_go_wrong_leaves_the_image_or_what_boots_nothing(bare, image):
    machine = bare()
    url, sha256, raw = image
    body = {"disk": machine.name, "image": url, "sha256": sha256}

    def judge(command, receipt, content):
        if command["state"] == "succeeded":
            assert receipt["outcome"] == "deployed" and receipt["readBack"], receipt
            # A table's copy moves to the end of the disk, and its head says so.
            assert content[:512] == raw[:512] and content[MIB:IMAGE - MIB] == raw[MIB:IMAGE - MIB], "it is not the image"
        else:
            assert not receipt or receipt["outcome"] == "failed", receipt
            # Where not even its first MiB could be cleared, the disk is what it was.
            assert content[:MIB] == OLD or content[:512] + content[-MIB:] == bytes(512 + MIB), "it boots something"

    machine.faults.rearm(machine.process)
    command, receipt = ordered(machine, "deploy", body)
    assert command["state"] == "succeeded", command
    judge(command, receipt, machine.content())
    counts = machine.faults.rearm(machine.process)["counts"]
    assert counts["pwrite disk"] >= 5 and counts["pread disk"] >= 3 and counts["sync disk"] >= 3, counts
    try_all(machine, counts, "deploy", body, judge)
