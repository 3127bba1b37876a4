"""Five minutes without a gateway, by the clock: most of it is waiting."""

import re
import time

import pytest

from lab import wait_for
from qemu.discovery import CONSOLES, FIRST, JOINED, parameters
from qemu.machine import user_network

pytestmark = pytest.mark.timeout(900)
AWAY = 300


def test_a_gateway_that_is_away_for_five_minutes_is_waited_for(machine, dev):
    """bcd gives up once in that time, and init starts it again; the same key and token then join."""
    line = parameters(dev, FIRST, "--append", CONSOLES)
    dev.kill()
    guest = machine(line, *user_network("n0", FIRST))
    guest.wait_for(r'"event":"join\.failed"')
    began = time.monotonic()
    time.sleep(10)
    shell = guest.shell()

    def memory():
        """Of PID 1, its children and bcd, in KiB, as it is now."""
        said = shell.run("for at in /proc/[0-9]*; do busybox cat $at/cmdline | busybox tr '\\0' ' ' | busybox grep -qE "
                         "'^(/init|init|/usr/bin/bcd)' && busybox grep -h VmRSS $at/status; done")
        sizes = [int(size) for size in re.findall(r"VmRSS:\s+(\d+)", said)]
        assert len(sizes) >= 4, said
        return sum(sizes)

    before = memory()
    # Long before bcd ends: on a busy host the shell takes half a minute for its answer.
    time.sleep(AWAY - 120 - (time.monotonic() - began))
    assert memory() <= before + 512
    # bcd's own patience is five minutes, by the guest's clock.
    guest.wait_for("init: bcd ramdisk failed with exit code 1; it starts again in 1 s", 210)
    # Asked again and again, less and less often; nobody's console is flooded, and nothing grows.
    said = guest.output()
    tries = re.findall(r'"event":"join\.failed".*"wait_ms":(\d+)', said)
    assert tries and said.count("\n") < 100, said
    dev.start()
    # The longest pause is half a minute.
    guest.wait_for(JOINED, 60)
    wait_for("the machine", lambda: any(node["state"] == "connected" for node in dev.nodes()), 30)
    machine_, = dev.json("machines", "list")["machines"]
    assert machine_["boots"] == 1
