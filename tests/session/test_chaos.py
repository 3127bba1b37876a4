"""A campaign: nodes and the gateway are killed and connections cut at random, while specs and commands
go on. Afterwards every event is stored once, in order, without a gap that no event names."""

import json
import random
import sqlite3
import time

import pytest

from lab import wait_for

SECONDS = 35
NODES = 3
FINAL = ("succeeded", "failed", "unsupported")


def stored(dev):
    """Of each journal: (sequence, kind) in the order in which the events came."""
    (path,) = [p for p in dev.dir.rglob("*.db")]
    journals = {}
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
        for journal, sequence, kind in db.execute("SELECT journal, sequence, kind FROM events ORDER BY number"):
            journals.setdefault(journal, []).append((sequence, kind))
    return journals


def set_spec(dev, node, directory, number):
    """A spec whose sections all differ from the ones before: two events."""
    level, unknown = directory / f"{node.id}-log.json", directory / f"{node.id}-unknown"
    level.write_text(json.dumps({"level": ["info", "debug"][number % 2]}))
    unknown.write_text("AA==")
    return dev.run("spec", "set", node.id, "--section", f"log={level}", "--raw", f"campaign={unknown}", check=False)


@pytest.mark.slow
def test_nothing_is_lost_doubled_or_reordered_whatever_dies(dev, behind, tmp_path):
    seed = time.time_ns() % 1_000_000
    print(f"seed {seed}")
    dice = random.Random(seed)
    nodes = [behind(f"node{n}") for n in range(NODES)]
    for node in nodes:
        node.start()
        wait_for("the node to be connected", lambda: dev.state(node.id) == "connected")
    commands, done = {}, {"node": 0, "gateway": 0, "cut": 0, "stop": 0}
    end = time.monotonic() + SECONDS
    number = 0
    while time.monotonic() < end:
        node = dice.choice(nodes)
        number += 1
        set_spec(dev, node, tmp_path, number)
        run = dev.run("commands", "run", node.id, "node.facts", "--json", check=False)
        if run.returncode == 0:
            commands[json.loads(run.stdout)["id"]] = node
        time.sleep(dice.choice([0, 0, 0.05, 0.3, 1.0]))
        what = dice.choices(list(done), [10, 2, 4, 2])[0]
        done[what] += 1
        if what == "node":
            node.stop()
            node.start()
        elif what == "gateway":
            dev.kill()
            dev.start()
        elif what == "cut":
            node.relay.cut()
        else:
            assert node.process.terminate() == 0
            node.start()
    print(f"{number} specs, {len(commands)} commands, {done}")
    assert len(commands) > 5 and all(done.values())

    def over():
        shown = {c["id"]: c for c in dev.json("commands", "list", "--limit", "1000")["commands"]}
        return all(shown[c]["state"] in FINAL for c in commands)

    wait_for("all commands to be over", over, 60)
    for node in nodes:
        wait_for("the spec to be told of", lambda: told(dev, node), 30)

    journals = stored(dev)
    assert len(journals) == NODES, "no node began another journal"
    for journal, events in journals.items():
        sequences = [sequence for sequence, _ in events]
        assert sequences == sorted(set(sequences)), f"journal {journal}: doubled or out of order"
        assert not any(kind == "events_dropped" for _, kind in events)
        assert sequences == list(range(1, len(sequences) + 1)), f"journal {journal}: a gap"
    told_of = {}
    for update in events_of(dev, "command_update"):
        told_of.setdefault(update["id"], []).append(update["state"])
    for command in commands:
        *before, last = told_of[command]
        assert last in FINAL and before in ([], ["pending"], ["running"], ["pending", "running"]), told_of[command]
    for node in nodes:
        assert "panicked" not in node.process.output()


def told(dev, node):
    """Whether the node has told of each section of its newest spec."""
    spec = dev.json("spec", "get", node.id)
    return all(s["state"] in ("applied", "unsupported") for s in spec["sections"])


def events_of(dev, kind):
    return [json.loads(line)["body"] for line in
            dev.run("events", "--kind", kind, "--limit", "1000", "--json").stdout.splitlines()]
