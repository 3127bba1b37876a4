#!/usr/bin/env python3
"""A bare machine's way to its session beside busybox udhcpc and one TLS handshake by curl, in the same guest.

    target/venv/bin/python benches/ramdisk_vs_busybox.py [--quick] [--rounds N] [--json PATH]

One image holds both, and one kernel boots it; the command line says which is to run. A round is one boot of each, in
turns. Ours is measured from the moment before init is executed to the `session.welcome` that bcd logs: modules for all
hardware, DHCP, the join with its own TLS handshake, and the session with another. The other is measured from its first
line to the end of curl's handshake (time_appconnect): the two modules of its NIC, udhcpc, curl with --insecure. Both tell
times of the guest's own clock on the serial console.

The guest's clock goes by the instructions that it executes (-icount), 8 ns each, and while it waits by the host's: what
else the host does hardly shows, and runs differ by hundredths of a second.

QEMU emulates (accel=tcg), so that it runs where machines cannot be virtualised; cryptography is many times slower there
than on hardware.
"""

import datetime
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

from rounds import ROOT, main, promise, show, take_turns
import lab
from qemu.machine import Machine, user_network

MAC = "52:54:00:00:00:01"
SERIAL = "quiet loglevel=3 console=ttyS0 rdinit=/lab/boot"


def build(directory):
    """The kernel, and the image with both in it."""
    kernel = pathlib.Path(subprocess.run(
        [ROOT / "tools/kernel.sh", "amd64", "cloud"], check=True, capture_output=True, text=True).stdout.strip())
    bcd = os.environ.get("BCD", ROOT / f"dist/bcd_{lab.version()}_linux_amd64")
    init = os.environ.get("INIT", ROOT / f"dist/init_{lab.version()}_linux_amd64")
    image = directory / "initrd.img"
    subprocess.run(
        [os.environ.get("RAMDISK", ROOT / "target/operator/ramdisk"), "build", "--bcd", bcd, "--init", init,
         "--modules", next((kernel / "lib/modules").iterdir()), "--level", "1", "--tools", "busybox,curl",
         "--files", f"{ROOT}/benches/boot.sh=/lab/boot,{ROOT}/benches/lease.sh=/lab/lease", "--output", image],
        check=True, stdout=subprocess.DEVNULL)
    return kernel / "vmlinuz", image


def boot(directory, kernel, image, line):
    return Machine(directory, kernel, image, line, *user_network("n0", MAC), "-icount", "shift=3").start()


def said(guest, pattern):
    return guest.wait_for(pattern, 120)[1]


def ours(plane, directory, kernel, image):
    """Seconds to the lease, to the join, to Welcome."""
    port = plane.gateway.rsplit(":", 1)[1]
    line = plane.run("machines", "boot-params", "--mac", MAC, "--gateway", f"https://10.0.2.2:{port}",
                     "--server-name", "localhost", "--append", f"{SERIAL} lab=ours").stdout.strip()
    guest = boot(directory, kernel, image, line)
    try:
        second, at = guest.wait_for(r"^lab: second (\d+) at (\S+)$").groups()
        start = float(said(guest, r"^lab: start (\S+)$"))

        def since(event):
            time = said(guest, rf'^\{{"time":"([^"]+)".*"event":"{event}"')
            wall = datetime.datetime.fromisoformat(time.replace("Z", "+00:00")).timestamp()
            return wall - int(second) + float(at) - start

        return {"joined": since("ramdisk.joined"), "end": since("session.welcome")}
    finally:
        guest.kill()


def peer(plane, directory, kernel, image):
    """Seconds to the lease, and to the end of the handshake."""
    port = plane.gateway.rsplit(":", 1)[1]
    guest = boot(directory, kernel, image, f"{SERIAL} lab=peer lab.url=https://10.0.2.2:{port}/")
    try:
        start, lease, handshake = (float(said(guest, rf"^lab: {what} (\S+)$")) for what in ("start", "lease", "handshake"))
        if handshake == 0:
            sys.exit(f"curl made no handshake:\n{guest.output()}")
        return {"lease": lease - start, "end": lease - start + handshake}
    finally:
        guest.kill()


def measure(rounds):
    operator = os.environ.get("BETTER_COMPUTE", ROOT / "target/operator/better-compute")
    with tempfile.TemporaryDirectory(prefix="bcd-bench-") as temporary:
        directory = pathlib.Path(temporary)
        kernel, image = build(directory)
        with lab.running(operator, directory / "dev") as plane:
            runs = take_turns(rounds, {
                name: lambda n, name=name, run=run: run(plane, directory / f"{name}{n}", kernel, image)
                for name, run in (("ours", ours), ("peer", peer))})

    def column(name, what):
        return [one[what] for one in runs[name]]

    mine, other = column("ours", "end"), column("peer", "end")
    print("from the first instruction on")
    show({"init and bcd: joined": column("ours", "joined"), "init and bcd: Welcome": mine,
          "busybox: lease": column("peer", "lease"), "busybox and curl: handshake done": other}, "s")
    beside = f"{statistics.median(mine):.2f} and {statistics.median(other):.2f} s"
    return {"unit": "s", "runs": runs, "difference": promise("ramdisk.welcome", mine, other, lambda a, b: a - b, beside)}


if __name__ == "__main__":
    main(__file__, measure, rounds=7, quick=2)
