"""`node.reboot` on a machine that really reboots."""

import json
import subprocess
import time

import pytest

from lab import clean_env, wait_for

pytestmark = pytest.mark.timeout(300)


def test_a_reboot_that_is_asked_for_happens_once_and_its_command_succeeds(node_guest, dev):
    guest = node_guest()
    guest.start()
    node = guest.connected()
    assert len(guest.boots()) == 1
    # --wait waits through the reboot; a busy host boots its guests slowly.
    done = subprocess.run([dev.program, "commands", "run", node, "node.reboot", "--wait", "--json", "--dir", dev.dir],
                          capture_output=True, text=True, env=clean_env(), timeout=200)
    assert done.returncode == 0, done.stderr + guest.guest.output()
    command = json.loads(done.stdout)
    assert command["state"] == "succeeded", command
    # Back with another boot id, after exactly one reboot; and it stays up.
    guest.connected()
    first, second = guest.boots()
    assert first != second
    time.sleep(8)
    assert guest.boots() == [first, second]
    assert wait_for("the node", lambda: dev.state(node)) == "connected"
