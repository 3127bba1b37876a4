"""What a node costs while nothing happens: SPECIFICATION.md, "bcd node"."""

import pathlib
import time

import pytest

from lab import wait_for

PEAK_KIB = 2.5 * 1024
QUIET_SECONDS = 20


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


@pytest.mark.slow
def test_an_idle_node_with_a_session_stays_small_and_sleeps(dev, join):
    node = join()
    process = node.start()
    wait_for("the node to be connected", lambda: dev.state(node.id) == "connected")
    # What follows the first heartbeat at once (its acknowledgement, HTTP/2's own) is part of connecting.
    time.sleep(3)

    # Heartbeats go every 45 s by default, so none is due in the window: nothing at all may wake the node.
    before = wake_ups(process.pid)
    time.sleep(QUIET_SECONDS)
    woken = wake_ups(process.pid) - before

    assert process.running()
    assert dev.state(node.id) == "connected"
    assert woken == 0, f"woken {woken} times in {QUIET_SECONDS} s without a heartbeat"
    peak = status(process.pid, "VmHWM")
    assert peak <= PEAK_KIB, f"peak memory {peak} KiB, promised are {PEAK_KIB:.0f} KiB"
    assert len(list(pathlib.Path(f"/proc/{process.pid}/task").iterdir())) <= 2
