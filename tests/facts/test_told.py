"""What a node tells its control plane of its machine, and how often."""

import json
import subprocess

from lab import wait_for


def own(bcd):
    return json.loads(subprocess.run([bcd, "facts", "--json"], capture_output=True, check=True, timeout=60).stdout)


def told(dev, node):
    """How many events the node's facts were, as the control plane has them."""
    lines = dev.run("events", node.id, "--kind", "facts", "--json").stdout.splitlines()
    return [json.loads(line) for line in lines]


def test_a_node_tells_its_facts_once_and_again_only_when_they_changed(dev, join, bcd):
    node = join()
    node.start()
    wait_for("the node's facts", lambda: dev.run("nodes", "facts", node.id, check=False).returncode == 0)
    shown = dev.json("nodes", "facts", node.id)["facts"]
    facts = own(bcd)
    # Other tests may be adding interfaces to this machine.
    assert {**shown, "interfaces": []} == {**facts, "interfaces": []}
    lines = dev.run("nodes", "facts", node.id).stdout.splitlines()
    assert f"hostname:     {facts['hostname']}" in lines

    # Nothing changed: neither a restart nor a command that asks makes news of it.
    node.process.terminate()
    node.start()
    wait_for("the node to be connected", lambda: dev.state(node.id) == "connected")
    done = json.loads(dev.run("commands", "run", node.id, "node.facts", "--wait", "--json").stdout.splitlines()[-1])
    assert done["state"].lower() == "succeeded", done
    assert {**done["result"], "interfaces": []} == {**facts, "interfaces": []}
    events = told(dev, node)
    changes = [one["body"]["interfaces"] for one in events]
    assert all(one != other for one, other in zip(changes, changes[1:])), "the same facts were told twice"
    if done["result"]["interfaces"] == shown["interfaces"]:
        assert len(events) == 1
