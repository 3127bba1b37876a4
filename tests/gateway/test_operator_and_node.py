"""An operator and a real bcd: commands, specs and events, from end to end."""

import json
import re

import pytest
from lab import wait_for


@pytest.fixture
def node(dev, join):
    node = join()
    node.start()
    wait_for("the node to be connected", lambda: dev.state(node.id) == "connected")
    return node


def test_facts_are_asked_for_and_kept(dev, node):
    done = dev.run("commands", "run", node.id, "node.facts", "--wait", "--json")
    command = json.loads(done.stdout)
    assert command["state"] == "succeeded"
    assert command["result"]["memory_bytes"] > 0 and command["result"]["cpu"]["threads"] > 0
    listed = [json.loads(line) for line in dev.run("events", node.id, "--json").stdout.splitlines()]
    states = [e["body"]["state"] for e in listed if e["kind"] == "command_update" and e["body"]["id"] == command["id"]]
    assert states[-1] == "succeeded" and states == sorted(set(states), key=states.index), "each once"
    assert len(dev.json("commands", "list", "--state", "succeeded")["commands"]) == 1


def test_a_node_is_shown_with_what_it_is_made_of_and_what_it_can_do(dev, node):
    details = wait_for("the facts", lambda: (d := dev.json("nodes", "show", node.id)["details"]).get("facts") and d)
    assert details["facts"] == dev.json("nodes", "facts", node.id)["facts"]
    assert details["factsReceivedMs"] > 0
    commands = ["node.reboot", "logs.collect", "node.facts", "diag.memory", "diag.disks", "diag.network"]
    assert details["capabilities"] == [*(f"command.{kind}" for kind in commands), "section.log"]
    text = dev.run("nodes", "show", node.id).stdout
    facts = details["facts"]
    for line in (rf"kernel: +{re.escape(facts['kernel']['release'])} ", r"cpu: +.*\(\d+ sockets?, ", r"memory: +[0-9.]+ GiB",
                 r"capabilities: command\.node\.reboot command\.logs\.collect "):
        assert re.search(line, text), text
    assert bool(facts["disks"]) == ("disks: " in text) and text.count("kernel:") == 1


def test_a_kind_the_node_does_not_know_is_unsupported(dev, node):
    done = dev.run("commands", "run", node.id, "diag.later", "--params-base64", "AQI=", "--wait", check=False)
    assert done.returncode == 1 and re.search(r"state: +unsupported", done.stdout), done.stdout


def test_a_spec_is_applied_and_what_the_node_does_not_know_is_said(dev, node, tmp_path):
    level, raw = tmp_path / "log.json", tmp_path / "raw"
    level.write_text('{"level": "debug"}')
    raw.write_text("AQI=")
    dev.run("spec", "set", node.id, "--section", f"log={level}", "--raw", f"later={raw}")

    def states():
        shown = {s["name"]: s["state"] for s in dev.json("spec", "get", node.id)["sections"]}
        return shown == {"log": "applied", "later": "unsupported"} and shown

    wait_for("the sections to be reported", states)


def test_a_node_that_was_away_is_given_its_commands_once_it_is_back(dev, node):
    node.process.terminate()
    wait_for("the node to be away", lambda: dev.state(node.id) == "disconnected")
    made = [dev.json("commands", "run", node.id, "node.facts")["id"] for _ in range(3)]
    dev.kill()
    dev.start()
    node.start()

    def done():
        states = {c["id"]: c["state"] for c in dev.json("commands", "list", "--node", node.id)["commands"]}
        return all(states[command] == "succeeded" for command in made)

    wait_for("all three to be done", done, 40)


def test_a_killed_control_plane_and_a_killed_node_lose_no_command(dev, node):
    made = []
    for turn in range(4):
        made.append(dev.json("commands", "run", node.id, "node.facts")["id"])
        if turn % 2:
            dev.kill()
            dev.start()
        else:
            node.process.kill()
            node.start()

    def over():
        states = {c["id"]: (c["state"], c.get("reason")) for c in dev.json("commands", "list")["commands"]}
        ended = all(states[command][0] in ("succeeded", "failed") for command in made)
        return ended and states

    states = wait_for("every command to be over", over, 90)
    for command in made:
        # What ran when the daemon was killed is not run again: the node says so.
        assert states[command][0] == "succeeded" or states[command][1] == "Interrupted", states
