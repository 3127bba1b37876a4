#!/usr/bin/env python3
"""Writing an image to a disk beside `curl | zstd -dc | dd`, in turns, onto the same loop device.

    target/venv/bin/python benches/image_vs_curl.py [--quick] [--rounds N] [--mib N] [--json PATH]

The image is a disk of 2 GiB, a third of it zeros and the rest as hard to pack as programs are, packed by `zstd -6` and served
over HTTP on loopback. Ours downloads, digests what comes, unpacks, digests what it unpacked and writes (IMAGE_WRITE, else
what `tools/static.sh --example image_write amd64` built: as bcd ships); the other is
`curl -s URL | zstd -dc | dd of=DISK bs=4M iflag=fullblock oflag=direct conv=fsync`, which digests nothing. Reading back is told apart.
Both end with a flush. Needs root, for the loop device.
"""

import functools
import hashlib
import http.server
import json
import os
import pathlib
import random
import statistics
import subprocess
import tempfile
import threading
import time

from rounds import ROOT, main, promise, show, take_turns

MIB = 1 << 20


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def make(path, mib):
    """A disk with an MBR; the same for every run."""
    chance = random.Random(7)
    words = [chance.randbytes(chance.randint(3, 12)) for _ in range(4096)]
    with open(path, "wb") as disk:
        for n in range(mib):
            if n % 3 == 2:
                disk.seek(MIB, os.SEEK_CUR)
                continue
            part = b"".join(chance.choices(words, k=MIB // 7))
            disk.write((part + chance.randbytes(MIB))[:MIB])
        disk.truncate(mib * MIB)
        disk.seek(510)
        disk.write(b"\x55\xaa")
        disk.seek(446)
        disk.write(bytes(64))


def measure(rounds, mib):
    program = os.environ.get("IMAGE_WRITE", ROOT / "target/static/amd64/x86_64-unknown-linux-musl/release/examples/image_write")
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as directory:
        directory = pathlib.Path(directory)
        raw, packed, disk = (directory / name for name in ("raw", "raw.zst", "disk"))
        make(raw, mib)
        subprocess.run(["zstd", "-q", "-6", raw, "-o", packed], check=True)
        raw.unlink()
        with open(packed, "rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        with open(disk, "wb") as file:
            file.truncate((mib + 8) * MIB)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=directory))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/raw.zst"
        loop = subprocess.run(["losetup", "--find", "--show", "--direct-io=on", disk], check=True, capture_output=True, text=True)
        loop = loop.stdout.strip()

        def ours(_):
            done = subprocess.run([program, url, sha256, loop], check=True, capture_output=True, text=True)
            return json.loads(done.stdout)

        def theirs(_):
            begun = time.monotonic()
            subprocess.run(
                ["bash", "-c", 'set -o pipefail; curl -sf "$0" | zstd -dc | dd of="$1" bs=4M iflag=fullblock oflag=direct '
                 'conv=fsync status=none', url, loop], check=True)
            return time.monotonic() - begun

        try:
            runs = take_turns(rounds, {"ours": ours, "theirs": theirs})
        finally:
            subprocess.run(["losetup", "--detach", loop], check=True)
            server.shutdown()
        size = packed.stat().st_size
    write, back = ([one[what] for one in runs["ours"]] for what in ("write_s", "read_back_s"))
    print(f"{mib} MiB unpacked, {size / MIB:.0f} MiB packed")
    show({"image_write": write, "curl | zstd -dc | dd": runs["theirs"], "reading back": back}, "s")
    beside = f"{statistics.median(write):.2f} and {statistics.median(runs['theirs']):.2f} s"
    return {"packed": size, "ours": write, "theirs": runs["theirs"], "read_back": back,
            "ratio": promise("image.time", write, runs["theirs"], beside=beside)}


if __name__ == "__main__":
    main(__file__, measure, rounds=5, quick=2, mib=(2048, 256))
