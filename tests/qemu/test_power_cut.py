"""The power goes while the journal is written: what was acknowledged is still there, and nothing runs twice."""

import json
import random
import time

import pytest

from lab import wait_for

pytestmark = pytest.mark.timeout(600)
CUTS = 3


def test_no_acknowledged_event_is_lost_when_the_power_goes(node_guest, dev):
    guest = node_guest()
    guest.start()
    node = guest.connected()
    chance = random.Random(20261129)
    commands = []
    for _ in range(CUTS):
        # Each command is several events, each durable before the next. The cut comes anywhere among them.
        for _ in range(chance.randint(2, 5)):
            done = dev.run("commands", "run", node, "node.facts", "--json")
            commands.append(json.loads(done.stdout)["id"])
        time.sleep(chance.random() * 0.7)
        guest.guest.kill()
        wait_for("the control plane to miss the node", lambda: dev.state(node) != "connected", 150)
        guest.start()
        guest.connected()
        assert "joined with exit code 0" in guest.guest.output()

    def states():
        listed = {c["id"]: c["state"] for c in dev.json("commands", "list", "--node", node, "--limit", "1000")["commands"]}
        now = [listed[command] for command in commands]
        return now if all(state in ("succeeded", "failed") for state in now) else None

    ended = wait_for("every command to end", states, 90)
    # A command that the cut went through is said to have failed; the others succeeded.
    assert ended.count("failed") <= CUTS, ended
    events = [json.loads(line) for line in dev.run("events", node, "--limit", "1000", "--json").stdout.splitlines()]
    # A node that had lost what was acknowledged would have begun another journal; a hole would be a lost event.
    assert len({event["journalId"] for event in events}) == 1
    assert sorted(event["sequence"] for event in events) == list(range(1, len(events) + 1))
    # And its file is whole.
    assert "damage" not in guest.guest.output() and "corrupt" not in guest.guest.output()
