"""What a node costs while nothing happens: SPECIFICATION.md, "bcd node"."""

import json
import pathlib
import re
import time

import pytest

from lab import wait_for
from promises import hold

QUIET_SECONDS = 60


def status(pid, field):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise AssertionError(f"/proc/{pid}/status has no {field}")


def wake_ups(pid):
    """How often the node's threads went to sleep and were woken again, since it started."""
    total = 0
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        for line in (task / "status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches:"):
                total += int(line.split()[1])
    return total


def writes(pid, node):
    """What tells of a write: bytes sent to a disk, and each file's size and time."""
    io = pathlib.Path(f"/proc/{pid}/io").read_text()
    written = int(re.search(r"^write_bytes: (\d+)$", io, re.M)[1])
    files = {p.name: (p.stat().st_size, p.stat().st_mtime_ns) for p in sorted(node.data_dir.iterdir())}
    return written, files


def through_a_websocket(node, dev):
    """The gateway's own endpoint; nothing listens where the gateway is said to be."""
    section = {"url": f"wss://{dev.ports['http']}/v1/session", "proxy_ca_file": str(dev.dir / "serving-ca.pem")}
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in section.items())
    node.config.write_text(node.config.read_text().replace(dev.gateway, "127.0.0.1:9") + "[websocket]\n" + lines)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["plain", "websocket"])
def test_an_idle_node_with_a_session_stays_small_and_sleeps(dev, join, way):
    node = join()
    if way == "websocket":
        through_a_websocket(node, dev)
    process = node.start()
    wait_for("the node to be connected", lambda: dev.state(node.id) == "connected")
    # What follows the first heartbeat at once (its acknowledgement, HTTP/2's own) is part of connecting.
    time.sleep(3)

    # One heartbeat falls into the minute: it goes out, and its answer comes in.
    before, written = wake_ups(process.pid), writes(process.pid, node)
    time.sleep(QUIET_SECONDS)
    woken = wake_ups(process.pid) - before

    assert process.running()
    assert dev.state(node.id) == "connected"
    hold("idle.wakeups", woken)
    (bytes_before, files_before), (bytes_after, files_after) = written, writes(process.pid, node)
    hold("idle.writes", bytes_after - bytes_before)
    assert files_after == files_before, "an idle node wrote to a file"
    hold("idle.threads", len(list(pathlib.Path(f"/proc/{process.pid}/task").iterdir())))
    # Nearly all of it are pages of the program file.
    hold("idle.peak" if way == "plain" else "idle.peak.websocket", status(process.pid, "VmHWM"),
         otherwise="Look which pages are mapped then in /proc/PID/smaps; what runs seldom belongs apart in the file.")
