"""init on a network that lies to it: it takes the one good answer, keeps calm, and nobody's lies are shown or kept."""

import re
import time

import pytest

from qemu.hostile import Hostile
from qemu.network import REQUEST, Server, packed

pytestmark = pytest.mark.timeout(400)
FIRST = "52:54:00:00:00:01"


@pytest.fixture
def network():
    good = Server("10.9.0.1", "10.9.0.50", options={
        6: packed("10.9.0.53"), 15: b"lab.example", 42: packed("10.9.0.123"), 26: (1280).to_bytes(2, "big"),
        # Renewed at once, and at once again.
        58: bytes(4), 59: bytes(4)})
    wire = Hostile(good, "10.9.0.123")
    yield wire
    wire.close()


def test_of_all_that_a_network_says_the_good_answer_counts_and_nothing_is_said_too_often(machine, network):
    guest = machine("quiet loglevel=3 console=ttyS0 console=ttyS1 bc.debug", *network.arguments("n0", FIRST),
                    "-rtc", "base=2031-01-01")
    guest.wait_for(r"init: eth0 has the address 10\.9\.0\.50/24, router 10\.9\.0\.1")
    guest.wait_for(r"init: the clock stood at 2031-\S+; the time server 10\.9\.0\.123 says 20\S+, and it is set to that")
    shell = guest.shell()

    def memory():
        said = shell.run("for at in /proc/[0-9]*; do case \"$(busybox tr '\\0' ' ' < $at/cmdline)\" in \"init network \") "
                         "busybox grep VmRSS $at/status;; esac; done")
        return int(re.search(r"VmRSS:\s+(\d+)", said)[1])

    before = memory()
    # It goes on lying, and has something to say to whoever asks.
    asked = len(network.seen)
    began = time.monotonic()
    while time.monotonic() - began < 20:
        network.advertise()
        network.rubbish(bytes.fromhex(FIRST.replace(":", "")))
        time.sleep(0.1)
    requests = [kind for _, kind, _, _ in network.seen[asked:]]
    assert requests.count(REQUEST) <= 1 and len(requests) <= 1, requests
    assert 1 <= network.asked6 <= 4
    assert memory() <= before + 256
    resolv = shell.run("busybox cat /etc/resolv.conf")
    lines = [line.split() for line in resolv.splitlines() if line and "resolv" not in line and "#" not in line]
    assert lines[0] == ["search", "lab.example"], resolv
    assert set(map(tuple, lines[1:])) <= {("nameserver", one) for one in ("10.9.0.53", "fd99::53", "fd99::54")}, resolv
    assert ["nameserver", "10.9.0.53"] in lines and ["nameserver", "fd99::53"] in lines
    found = shell.run("busybox cat /run/init/network; busybox cat /run/init/lldp")
    assert "address=10.9.0.50/24" in found and "mac=" + FIRST in found
    assert "\tleaf" not in found and "]0;owned[2Jleaf" in found, repr(found)
    # busybox's shell asks its terminal where it is.
    said = guest.output().replace("\x1b[6n", "")
    assert "\x1b" not in said and "panicked" not in said and "init network was ended" not in said
    assert said.count("eth0 has the address 10.") == 1, said
