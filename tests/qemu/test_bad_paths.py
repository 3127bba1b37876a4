"""A bare machine on a path that loses, doubles, delays and reorders packets, both ways: it joins, holds its session and takes an image; a path that
carries nothing for a while is noticed and outlived. The host's kernel has no netem, so the path is bad inside the guest."""

import json
import pathlib
import re
import shutil
import subprocess

import pytest

from lab import running, wait_for
from qemu.discovery import FIRST, parameters, with_facts
from qemu.images import ENV, MIB, deploy, disk, images, receipt, sha256  # noqa: F401

BAD = "delay 20ms 10ms loss 8% duplicate 3% reorder 25%"
DEAD = "loss 100%"
MODULES = "ifb sch_ingress act_mirred cls_matchall sch_netem"
# What comes goes through a second device, so that both ways are as bad. Then the machine's bcd, as init runs it.
SCRIPT = """
for module in MODULES; do $b insmod /data/$module.ko || echo "guest: no $module"; done
echo '/data/tc/ld.so --library-path /data/tc /data/tc/tc "$@"' > /run/tc
$b ip link add ifb0 type ifb 2>/dev/null; $b ip link set ifb0 up
sh /run/tc qdisc add dev eth0 handle ffff: ingress
sh /run/tc filter add dev eth0 parent ffff: protocol all matchall action mirred egress redirect dev ifb0
for device in eth0 ifb0; do sh /run/tc qdisc add dev $device root netem BAD; done
sh /run/tc qdisc show | $b sed 's/^/guest: /'
$b sh < /dev/ttyS1 > /dev/ttyS1 2>&1 &
bcd ramdisk --cmdline /data/cmdline --data-dir /run/bcd
""".replace("MODULES", MODULES).replace("BAD", BAD)


@pytest.fixture
def dev(better_compute, tmp_path):
    with running(better_compute, tmp_path / "dev", "--heartbeat", "4s") as dev:
        yield dev


def tools(modules, files):
    """tc with its libraries, and the modules it needs."""
    (files / "tc").mkdir(parents=True)
    tc = shutil.which("tc", path=ENV["PATH"])
    needed = subprocess.run(["ldd", tc], check=True, capture_output=True, text=True, timeout=30).stdout
    for library in re.findall(r"(/\S+) \(", needed):
        name = "ld.so" if "/ld-linux" in library else pathlib.Path(library).name
        shutil.copy(library, files / "tc" / name)
    shutil.copy(tc, files / "tc")
    for module in MODULES.split():
        (path,) = modules.rglob(f"{module}.ko")
        shutil.copy(path, files)


@pytest.mark.timeout(900)
def test_a_machine_on_a_bad_path_joins_takes_an_image_and_outlives_silence(machine, dev, modules, images, tmp_path):  # noqa: F811
    files = tmp_path / "files"
    tools(modules, files)
    (files / "cmdline").write_text(parameters(dev, FIRST) + "\n")
    (files / "run.sh").write_text(SCRIPT)
    data = tmp_path / "data.disk"
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", files, data, "64M"], check=True, capture_output=True, env=ENV)
    target = disk(tmp_path, "target", 8 * MIB)
    raw = images.directory / "image.raw"
    raw.write_bytes(bytes(6 * MIB) + b"".join(b"%d " % n for n in range(40_000)))
    with open(raw, "ab") as file:
        file.truncate(7 * MIB)
    subprocess.run(["sgdisk", "-n1:2048:0", raw], check=True, capture_output=True, timeout=30, env=ENV)
    subprocess.run(["zstd", "-q", raw], check=True, timeout=30, env=ENV)
    packed = raw.with_name("image.raw.zst")

    guest = machine(
        "quiet loglevel=3 console=ttyS0 rdinit=/lab/guest",
        "-netdev", "user,id=n0", "-device", f"virtio-net-pci,netdev=n0,mac={FIRST},romfile=",
        "-drive", f"file={data},if=none,id=d,format=raw,cache=writethrough", "-device", "virtio-blk-pci,drive=d",
        "-drive", f"file={target},if=none,id=t,format=raw,cache=writethrough", "-device", "virtio-blk-pci,drive=t,serial=TARGET01")
    assert guest.wait_for(r"^guest: qdisc netem .* dev ifb0 .*loss 8%", 120)
    guest.wait_for(r'"event":"ramdisk\.joined"', 240)
    facts = with_facts(dev, FIRST, 240, lambda facts: any(disk["serial"] == "TARGET01" for disk in facts["disks"]))["facts"]
    name = next(disk["stable_name"] for disk in facts["disks"] if disk["serial"] == "TARGET01")

    # The server hangs up at nine tenths, too.
    command = deploy(dev, name, f"{images.url}/cut-{packed.name}", "--sha256", sha256(packed), check=False)
    assert command["state"] == "succeeded", command
    said = receipt(dev, command)["says"]
    assert (said["outcome"], said["readBack"]) == ("deployed", True) and said["resumed"] >= 1, said
    assert target.read_bytes()[MIB:6 * MIB] == raw.read_bytes()[MIB:6 * MIB]

    # For a while nothing passes. Both ends notice, and the node comes back by itself.
    def state():
        return dev.json("machines", "show", FIRST)["node"]["state"]

    shell = guest.shell()
    for device in ("eth0", "ifb0"):
        shell.run(f"sh /run/tc qdisc change dev {device} root netem {DEAD}")
    silent = guest.output().count('"event":"session.silent"')
    guest.wait_for(r'"event":"session\.silent"', 120)
    wait_for("the control plane to notice", lambda: state() != "connected", 120)
    for device in ("eth0", "ifb0"):
        shell.run(f"sh /run/tc qdisc change dev {device} root netem {BAD}")
    wait_for("the machine to be back", lambda: state() == "connected", 240)
    node = dev.json("machines", "show", FIRST)["node"]["id"]
    done = json.loads(dev.run("commands", "run", node, "node.facts", "--wait", "--json", check=False).stdout)
    assert done["state"] == "succeeded", (done, silent)
    assert "panicked" not in guest.output()
