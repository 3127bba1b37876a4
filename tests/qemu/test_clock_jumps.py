"""A machine whose clock jumps by years, both ways, while its node is at work: the session, deadlines and renewals go by what the control
plane signed and what has passed since."""

import json
import time

import pytest

from lab import running, wait_for
from qemu.conftest import NodeGuest

LIFETIME = 60
YEAR = 366 * 86_400
# A shell on the second line: to turn the clock.
SHELL = "$b sh < /dev/ttyS1 > /dev/ttyS1 2>&1 &"


@pytest.fixture
def dev(better_compute, tmp_path):
    with running(better_compute, tmp_path / "dev", "--heartbeat", "2s", "--certificate-lifetime", f"{LIFETIME}s") as dev:
        yield dev


@pytest.mark.timeout(900)
def test_a_clock_that_jumps_by_years_costs_no_session_no_command_and_no_renewal(machine, dev, tmp_path):
    node = NodeGuest(machine, dev, tmp_path / "guest", SHELL)
    guest = node.start()
    id = node.connected(150)
    shell = guest.shell()
    began = time.monotonic()

    def count(event):
        return guest.output().count(f'"event":"{event}"')

    def jump(years):
        """Where the clock stood is where it is counted from: the true time."""
        shell.run(f"busybox date -u -s @{int(time.time() + years * YEAR)}", 60)
        assert abs(shell.number("busybox date +%s") - time.time() - years * YEAR) < 300

    def do():
        """A command with a deadline of minutes."""
        done = dev.run("commands", "run", id, "node.facts", "--deadline", "5m", "--wait", "--json", check=False)
        command = json.loads(done.stdout)
        assert command["state"] == "succeeded", command

    def back():
        """The gateway goes and comes, and so does the session."""
        welcomes = count("session.welcome")
        dev.kill()
        dev.start()
        wait_for("another session", lambda: count("session.welcome") > welcomes, 120)

    do()
    # A clock that could be right: nearer than ten years.
    jump(3)
    do()
    assert count("session.lost") == 0 and dev.state(id) == "connected"
    jump(-30)
    do()
    back()
    do()
    # One that cannot: it is left out.
    jump(25)
    do()
    back()
    do()
    wait_for("a renewal", lambda: count("identity.renewed") >= 1, 120)
    jump(-1)
    before = count("identity.renewed")
    wait_for("the next renewal", lambda: count("identity.renewed") > before, 120)
    do()
    # Neither a storm nor a stop; a renewal comes after two thirds of a life.
    assert count("identity.renewed") <= (time.monotonic() - began) / (LIFETIME / 2) + 1
    assert count("identity.renewal_failed") <= 2, guest.output()[-5000:]
    assert "panicked" not in guest.output()
    sequences = [json.loads(line)["sequence"] for line in
                 dev.run("events", id, "--limit", "1000", "--json").stdout.splitlines()]
    assert sorted(sequences) == list(range(1, len(sequences) + 1)), "each event once, whatever time it has"
