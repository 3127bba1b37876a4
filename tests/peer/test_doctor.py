"""What `bcd doctor` makes of a gateway that is well in itself, and odd to this node."""

import json
import subprocess

import pytest

HOUR = 3_600_000


def doctor(machine):
    done = subprocess.run([machine.bcd, "doctor", "--json", "--config", machine.config], env=machine._env(),
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert not done.stderr, done.stderr
    return {check["name"]: check for check in json.loads(done.stdout)["checks"]}


@pytest.mark.parametrize("ahead, way", [(2 * HOUR, "behind"), (-2 * HOUR, "ahead of")])
def test_a_host_whose_clock_is_not_the_control_planes_is_told_by_how_much(peer, make_machine, ahead, way):
    peer.faults.signed_ahead_ms = ahead
    machine = make_machine()
    machine.join_well()
    machine.start()
    peer.wait_session()
    machine.wait_log("session.welcome")
    check = doctor(machine)["clock"]
    assert check["level"] == "warn" and f"s {way} the control plane's time" in check["evidence"], check
    seconds = int(check["evidence"].split(" s ")[0].split()[-1])
    assert abs(seconds - 7200) <= 60
    assert "timedatectl" in check["do"]


def test_a_daemon_that_is_too_old_for_its_control_plane_is_told(peer, make_machine):
    machine = make_machine()
    machine.join_well()
    peer.faults.welcome = "upgrade"
    machine.start()
    machine.wait_log("session.upgrade_required")
    check = doctor(machine)["daemon"]
    assert check["level"] == "warn" and "too old for its control plane" in check["evidence"], check
    assert "install a newer bcd" in check["do"]
