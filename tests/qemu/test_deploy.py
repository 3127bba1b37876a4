"""An image onto the disks of a bare machine, and the receipts of it."""

import contextlib
import hashlib
import http.server
import json
import os
import re
import subprocess
import threading

import pytest

from qemu.discovery import CONSOLES, FIRST, JOINED, parameters, with_facts
from qemu.machine import user_network

pytestmark = pytest.mark.timeout(900)

MIB = 1 << 20
SIZE = 48 * MIB
ENV = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}


class Images(http.server.BaseHTTPRequestHandler):
    """Serves the images of a directory, with ranges; cuts the first answer for `cut` at nine tenths."""

    def log_message(self, *_):
        pass

    def do_GET(self):
        name = self.path.lstrip("/")
        self.server.asked.append((name, self.headers.get("Range", "")))
        try:
            body = (self.server.directory / name.removeprefix("cut-")).read_bytes()
        except OSError:
            self.send_error(404)
            return
        start = int(re.sub(r"\D", "", self.headers.get("Range", "0")))
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        end = len(body) * 9 // 10 if name.startswith("cut-") and not start else len(body)
        with contextlib.suppress(OSError):
            self.wfile.write(body[start:end])
        if end < len(body):
            self.close_connection = True


@pytest.fixture
def images(tmp_path):
    """A server of images at `url` as guests see it; `asked` is what was asked for."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Images)
    server.directory, server.asked = tmp_path / "images", []
    server.directory.mkdir()
    server.url = f"http://10.0.2.2:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120, env=ENV).stdout


def make(directory, name):
    """A disk of 48 MiB with a GPT, on it an ext4 file system: NAME.raw, NAME.raw.zst and NAME.qcow2.xz."""
    raw, qcow2 = directory / f"{name}.raw", directory / f"{name}.qcow2"
    with open(raw, "wb") as disk:
        disk.truncate(SIZE)
    run("sgdisk", "-n1:2048:+8M", "-t1:ef00", "-n2:0:0", "-t2:8304", raw)
    root = directory / f"{name}.root"
    root.mkdir()
    (root / "noise").write_bytes(b"".join(hashlib.sha256(f"{name}{n}".encode()).digest() for n in range(200_000)))
    run("mke2fs", "-q", "-t", "ext4", "-d", root, "-E", f"offset={9 * MIB}", raw, "36M")
    run("qemu-img", "convert", "-O", "qcow2", raw, qcow2)
    # The largest dictionary that is taken.
    run("xz", "-8", "-k", qcow2)
    run("zstd", "-q", "-3", raw)
    return raw


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def disk(directory, name, size):
    path = directory / f"{name}.disk"
    with open(path, "wb") as out:
        for _ in range(size // MIB):
            out.write(b"\xee" * MIB)
    return path


def deploy(dev, name, url, *more, check=True):
    done = dev.run("machines", "deploy", FIRST, "--disk", name, "--image", url, *more, "--yes", "--wait", "--json", check=check)
    return json.loads(done.stdout)


def receipt(dev, command):
    return dev.json("receipts", "show", command["result"]["order"] if command["result"] else command["params"]["order"])


def test_images_go_to_all_kinds_of_disks_and_nothing_boots_what_is_not_the_image(machine, dev, tmp_path, images):
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
    facts = with_facts(dev, FIRST, 300)["facts"]
    names = {disk["serial"]: disk["stable_name"] for disk in facts["disks"]}
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
    print("peak memory, KiB:", peak)
    assert peak <= 64 * 1024, used
