"""Hardware that lies about itself, and a disk that does not answer any more: both cost nobody else anything."""

import json
import subprocess

import pytest

from lab import ROOT, wait_for
from qemu.discovery import CONSOLES, FIRST, JOINED, parameters, with_facts
from qemu.machine import user_network

pytestmark = pytest.mark.timeout(500)
# Clears a screen, turns what follows around, ends a line, ends a cell.
LIE = "\x1b[2J\u202ex\x07\r\n|"


@pytest.fixture(scope="session")
def scsi_image(ramdisk, bcd, init, modules, tmp_path_factory):
    """An image with the kernel's own SCSI disk that hangs when it is told to."""
    directory = tmp_path_factory.mktemp("scsi")
    (directory / "list").write_text("include minimal\nscsi_debug\n")
    output = directory / "initrd.img"
    done = subprocess.run(
        [ramdisk, "build", "--bcd", bcd, "--init", init, "--modules", modules, "--list", directory / "list", "--level", "1",
         "--tools", "busybox", "--links", "/bin/sh=busybox", "--output", output], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    yield output
    output.unlink()


def run(dev, node, kind, *arguments, seconds=150):
    said = dev.run("commands", "run", node, kind, *arguments, "--wait", "--json", check=False, seconds=seconds).stdout
    return json.loads(said)


def plain(text):
    return not any(c in text for c in "\x1b\x07\r\u202e")


def test_texts_and_sizes_that_no_disk_has_and_a_disk_that_hangs(machine, kernel, scsi_image, dev, tmp_path):
    for name in ("n", "v"):
        with open(tmp_path / f"{name}.disk", "wb") as disk:
            disk.truncate(16 << 20)
    guest = machine(
        parameters(dev, FIRST, "--append", CONSOLES), *user_network("n0", FIRST),
        "-drive", f"file={tmp_path}/n.disk,if=none,id=n,format=raw", "-device", f"nvme,drive=n,serial=N{LIE}",
        "-drive", f"file={tmp_path}/v.disk,if=none,id=v,format=raw", "-device", f"virtio-blk-pci,drive=v,serial=V{LIE}",
        "-blockdev", f"driver=null-co,node-name=huge,size={(1 << 63) - (1 << 30)}", "-device", "nvme,drive=huge,serial=HUGE",
        "-smbios", f"type=1,manufacturer=Lab,product={LIE},serial=S{LIE}", boots=(kernel / "vmlinuz", scsi_image))
    guest.wait_for(JOINED)
    shell = guest.shell()
    shell.run("/sbin/modprobe sd_mod; busybox insmod $(busybox find /lib/modules/ -name scsi_debug.ko) virtual_gb=1000000 max_luns=2 "
              "inq_vendor=\"$(busybox printf '\\033[2Jx')\" inq_product=\"$(busybox printf 'odd\\007\\t\\033c')\"")
    wait_for("the SCSI disks", lambda: "sdb" in shell.run("busybox ls /sys/block"), 30)
    node = dev.json("machines", "show", FIRST)["node"]["id"]
    assert run(dev, node, "node.facts")["state"] == "succeeded"
    found = with_facts(dev, FIRST, 300, lambda facts: len(facts["disks"]) == 5)["facts"]
    serials = {disk["serial"] for disk in found["disks"]}
    assert {"N[2Jx", "HUGE"} <= {serial[:5] for serial in serials}, serials
    assert found["firmware"]["system_serial"] == "S[2Jx", found["firmware"]
    sizes = {disk["kernel_name"]: disk["size_bytes"] for disk in found["disks"]}
    assert max(sizes.values()) > 1 << 62 and sizes["sda"] > 1 << 49, sizes
    for text in (json.dumps(found, ensure_ascii=False), dev.run("machines", "show", FIRST).stdout,
                 dev.run("machines", "list").stdout, guest.output().replace("\x1b[6n", "")):
        assert plain(text.replace("\r\n", "\n")), repr(text)
    assert len(dev.run("machines", "list").stdout.splitlines()) == 2

    diagnosed = run(dev, node, "diag.disks")
    verdicts = {one["readings"]["kernel_name"]: one["verdict"] for one in diagnosed["findings"]}
    assert len(verdicts) == 5 and "fail" not in verdicts.values(), diagnosed
    assert plain(dev.run("commands", "show", diagnosed["id"]).stdout)

    # From now on no command to the SCSI disks is ever answered.
    at = "/sys/bus/pseudo/drivers/scsi_debug"
    shell.run(f"echo 4 > {at}/opts; echo -1 > {at}/every_nth")
    diagnosed = run(dev, node, "diag.disks", "--param", "disk=sda")
    one, = diagnosed["findings"]
    assert one["verdict"] == "fail" and "did not answer" in " ".join(one["problems"]), one
    diagnosed = run(dev, node, "diag.disks")
    after = {one["readings"]["kernel_name"]: one["verdict"] for one in diagnosed["findings"]}
    assert [after.pop(name) for name in ("sda", "sdb")] == ["fail", "fail"], diagnosed
    assert after == {name: verdict for name, verdict in verdicts.items() if name in after}
    # The machine does its work meanwhile; nobody wrote to any disk.
    assert run(dev, node, "node.facts")["state"] == "succeeded"
    assert next(n["state"] for n in dev.nodes() if n["id"] == node) == "connected"
    shell.run(f"echo 0 > {at}/every_nth; echo 0 > {at}/opts")
    assert run(dev, node, "diag.disks", "--param", "disk=sda")["findings"][0]["verdict"] == verdicts["sda"]
    for name in ("n", "v"):
        assert (tmp_path / f"{name}.disk").stat().st_blocks == 0
        assert not (tmp_path / f"{name}.disk").read_bytes().strip(b"\0")
