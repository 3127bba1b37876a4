"""Images, a server of them, and disks to write them to: what the labs of deploys share."""

import contextlib
import hashlib
import http.server
import json
import os
import re
import subprocess
import threading

import pytest

from lab import wait_for
from qemu.discovery import FIRST

MIB = 1 << 20
SIZE = 48 * MIB
ENV = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}


class Images(http.server.BaseHTTPRequestHandler):
    """Serves the images of a directory, with ranges. The first answer for `cut-NAME` ends after nine tenths; one for
    `held-NAME` sends a half, and no more until `go_on` is set."""

    def log_message(self, *_):
        pass

    def do_GET(self):
        name = self.path.lstrip("/")
        self.server.asked.append((name, self.headers.get("Range", "")))
        try:
            body = (self.server.directory / re.sub("^(cut|held)-", "", name)).read_bytes()
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
            if name.startswith("held-"):
                self.wfile.write(body[start:end // 2])
                start = end // 2
                self.server.go_on.wait(300)
            self.wfile.write(body[start:end])
        if end < len(body):
            self.close_connection = True


@pytest.fixture
def images(tmp_path):
    """A server of images at `url` as guests see it; `asked` is what was asked for."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Images)
    server.directory, server.asked, server.go_on = tmp_path / "images", [], threading.Event()
    server.directory.mkdir()
    server.url = f"http://10.0.2.2:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.go_on.set()
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
    # As is the window: it is full before the end.
    run("zstd", "-q", "-3", "--long=25", raw)
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
    return dev.json("receipts", "show", command["params"]["order"])


def over(dev, id, seconds=120):
    return wait_for("the command's end", lambda: (lambda c: c if c["over"] else None)(dev.json("commands", "show", id)), seconds)
