"""What an idle node asks of the kernel: SPECIFICATION.md, "idle.syscalls"."""

import re
import subprocess
import time

import pytest

from lab import running, wait_for
from promises import hold


@pytest.fixture
def dev(better_compute, tmp_path):
    """A control plane that wants heartbeats often, so that some can be watched in seconds."""
    with running(better_compute, tmp_path / "dev", "--heartbeat", "2s") as control_plane:
        yield control_plane


def test_a_heartbeat_takes_few_system_calls_and_there_are_none_between_them(dev, join, tmp_path):
    node = join()
    process = node.start()
    log = tmp_path / "calls"

    def calls():
        """All there were from the first heartbeat watched to the last, and how many heartbeats that were."""
        made = [call for line in log.read_text().splitlines() if (call := re.match(r"\d+ +(\w+)\(", line)) and "<detached" not in line]
        made = [call[1] for call in made]
        sent = [at for at, call in enumerate(made) if call in ("sendto", "sendmsg", "write", "writev")]
        return made[sent[0]:sent[-1]] if sent else [], len(sent) - 1

    wait_for("the node to be connected", lambda: dev.state(node.id) == "connected")
    # What follows the first heartbeat at once (its acknowledgement, HTTP/2's own) is part of connecting.
    time.sleep(3)
    tracer = subprocess.Popen(["strace", "-f", "-qq", "-p", str(process.pid), "-o", log])
    try:
        wait_for("heartbeats", lambda: log.exists() and calls()[1] >= 3)
    finally:
        tracer.terminate()
        tracer.wait()
    made, heartbeats = calls()
    hold("idle.syscalls", len(made) / heartbeats, otherwise=f"A heartbeat, its answer and the way back to sleep were: {' '.join(made)}.")
