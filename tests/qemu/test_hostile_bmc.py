"""A BMC whose answers are none: the machine joins, and has no address of it."""

import pytest

from qemu.bmc import TRANSPORT, Bmc
from qemu.discovery import CONSOLES, FIRST, JOINED, parameters, with_facts
from qemu.machine import user_network

pytestmark = pytest.mark.timeout(500)


class Liar(Bmc):
    """What it says of its network is something else each time, and in the end nothing."""

    LIES = [
        b"", b"\0", b"\0\x11", b"\0\x11\xc0\x00\x02", b"\0\x11" + bytes(4), b"\0\x11" + b"\xff" * 4, b"\0\x11\xe0\0\0\x09", b"\0\x11\x7f\0\0\x01",
        b"\0\x11" + b"\xff" * 200, b"\xff" * 30, b"\xc0", b"\xc3", b"\xd5", b"\0\x11" + bytes([0, 0x80]) + bytes(16) + b"\x40\0",
        b"\0\x11" + bytes([0, 0x80]) + b"\xfe\x80" + bytes(14) + b"\x40\0",
    ]

    def reply(self, number, function, command, data):
        lies = function >> 2 == TRANSPORT and len(self.asked)
        # Somebody else's answer comes first now and then.
        other = super().reply(number ^ 0x04, function, 0x2D, b"") if lies and lies % 3 == 0 else b""
        return other + super().reply(number, function, command, data)

    def answer(self, function, command, data):
        if function != TRANSPORT:
            return super().answer(function, command, data)
        self.asked.append(tuple(data[:2]))
        return self.LIES[len(self.asked) % len(self.LIES)]


def test_a_bmc_that_answers_nonsense_costs_nothing_but_its_address(server, dev, tmp_path):
    bmc = Liar(tmp_path / "bmc.sock")
    try:
        guest = server("machine", parameters(dev, FIRST, "--append", CONSOLES), *user_network("n0", FIRST), *bmc.arguments())
        guest.wait_for(JOINED, 240)
        shell = guest.shell()
        # It was asked, and the asking is over.
        assert "done" in shell.run("n=0; while [ $n -lt 600 ] && { [ ! -e /dev/ipmi0 ] || busybox fuser /dev/ipmi0 2>/dev/null; }; do "
                                   "busybox usleep 200000; n=$((n + 1)); done; echo done", 200)
        assert bmc.asked
        found = with_facts(dev, FIRST, 300)["facts"]
        assert (found["bmc_address"], found["bmc_mac"]) == ("", ""), found
        said = guest.output()
        assert "init modules was ended" not in said and "init modules failed" not in said and "panicked" not in said
    finally:
        bmc.close()
