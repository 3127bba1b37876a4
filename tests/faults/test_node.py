"""`bcd node` while its system calls go wrong, one by one, as it starts and as it works: it says what is wrong and goes on, and what the
control plane has in the end is whole."""

import json
import time

import pytest

from faults.conftest import UNSEEN, campaign, says
from gateway_api import call
from lab import Node, running, wait_for
from session.test_chaos import stored

# Seconds; below a heartbeat's interval.
LATE = 20
# Events of a node (EVENTS_PER_NODE in better-compute's store/events.rs).
KEPT = 2000
FINAL = ("succeeded", "failed", "unsupported")


@pytest.fixture(scope="module")
def fleet(better_compute, tmp_path_factory):
    with running(better_compute, tmp_path_factory.mktemp("fleet") / "dev", "--heartbeat", "30s") as plane:
        yield plane


@pytest.fixture
def node(fleet, bcd, tmp_path, injected):
    """A node that has joined; `node.faults` is what it is run by."""
    made = Node([bcd], fleet, tmp_path / "node")
    made.id = made.join(fleet.token())
    made.faults = injected("node", made.dir)
    made.bcd, made.command = made.command, [*made.faults.prefix, *made.command]
    yield made
    made.stop()


def answer(fleet, method, path, body=None):
    status, said = call(fleet, method, path, body)
    assert status in (200, 201), (status, said)
    return said


def state(fleet, node):
    return answer(fleet, "GET", f"nodes/{node.id}")["state"]


def order(fleet, node, number):
    """What a node is to do once, and what it is to be."""
    level = {"level": ["info", "debug"][number % 2]}
    answer(fleet, "POST", f"nodes/{node.id}/spec", {"sections": [{"name": "log", "value": level}]})
    return answer(fleet, "POST", f"nodes/{node.id}/commands", {"kind": "node.facts"})["id"]


def complaints(output):
    """The warnings and errors of a log, but for the counts of those before."""
    events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return [event for event in events if event["level"] in ("warn", "error") and event["event"] != "log.repeated"]


def over(fleet, node, id):
    """A command that has come to its end, and whether that took until something else woke the node."""
    def ended():
        command = answer(fleet, "GET", f"commands/{id}")
        return command if command["over"] else None

    deadline = time.monotonic() + LATE
    while time.monotonic() < deadline:
        if command := ended():
            return command, False
        time.sleep(0.03)
    return wait_for(f"{id} to end\n{node.process.output()[-3000:]}", ended, 60), True


def connected(fleet, node):
    wait_for("the session", lambda: not node.process.running() or state(fleet, node) == "connected", 60)
    assert node.process.running(), node.process.output()[-3000:]


@pytest.mark.timeout(3600)
def test_a_node_whose_calls_go_wrong_at_work_says_so_goes_on_and_loses_nothing(fleet, node):
    node.faults.arm()
    node.start()
    connected(fleet, node)
    over(fleet, node, order(fleet, node, 0))
    node.faults.rearm(node.process)
    over(fleet, node, order(fleet, node, 1))
    counts = node.faults.rearm(node.process)["counts"]
    assert counts["sync data"] >= 2 and counts["pwrite data"] >= 2 and counts["send socket"] >= 2, counts
    tried, wrong, findings, commands = 0, 0, [], []
    for number, fault in enumerate(campaign(counts)):
        seen = len(node.process.output())
        node.faults.rearm(node.process, fault)
        commands.append(order(fleet, node, number))
        command, late = over(fleet, node, commands[-1])
        connected(fleet, node)
        done = node.faults.rearm(node.process)["done"]
        said = node.process.output()[seen:]
        tried, wrong = tried + 1, wrong + bool(done)
        try:
            assert "panicked" not in said
            if not done or fault["what"] in UNSEEN:
                assert command["state"] == "succeeded" and not late and not complaints(said), command
            elif complaints(said):
                # HTTP/2 has a word of its own for every failure of its connection.
                told = [json.dumps(event) for event in complaints(said)]
                assert any(says(one, fault["what"]) or "the connection broke" in one for one in told), "other words"
            assert command["state"] == "succeeded" or says(command["message"], fault["what"]), command
        except AssertionError as finding:
            findings.append(f"{finding}: {done}\n{said}")
    print(f"{tried} faults armed, {wrong} came to pass")  # shown by -s -n 0
    assert node.process.terminate(20) == 0, node.process.output()[-3000:]
    assert not findings, "\n".join([f"{len(findings)} findings", *findings])
    assert wrong > tried * 3 // 4, "the faults do not come to pass"
    whole(fleet, node, commands)


@pytest.mark.timeout(3600)
def test_a_node_whose_calls_go_wrong_at_its_start_says_so_and_starts_again(fleet, node):
    """What systemd does with one that ends: it is started again."""
    def start(*faults):
        node.faults.arm(*faults)
        if node.process:
            node.process.terminate(20)
            wait_for("the end of its session", lambda: state(fleet, node) != "connected")
        (node.dir / "node.log").unlink(missing_ok=True)
        node.start()
        wait_for("the session, or an end", lambda: not node.process.running() or state(fleet, node) == "connected", 60)

    start()
    connected(fleet, node)
    counts = node.faults.rearm(node.process)["counts"]
    assert counts["open data"] >= 3 and counts["epoll_create nowhere"] == 1, counts
    tried, ended, findings = 0, 0, []
    for fault in campaign(counts):
        start(fault)
        tried += 1
        said, done = node.process.output(), node.faults.report()["done"]
        try:
            assert "panicked" not in said
            if not node.process.running():
                ended += 1
                # A configuration that cannot be read is refused.
                assert node.process.process.returncode in (1, 2) and fault["what"] not in UNSEEN, "it ends"
                assert says(said.splitlines()[-1], fault["what"]), "other words"
            elif fault["what"] in UNSEEN:
                assert not complaints(said), "it is seen"
        except AssertionError as finding:
            findings.append(f"{finding}: {done or fault}\n{said}")
    print(f"{tried} starts, {ended} ended")  # shown by -s -n 0
    start()
    connected(fleet, node)
    command, _ = over(fleet, node, order(fleet, node, 0))
    assert command["state"] == "succeeded", command
    assert node.process.terminate(20) == 0
    assert not findings, "\n".join([f"{len(findings)} findings", *findings])
    whole(fleet, node, [command["id"]])


def whole(fleet, node, commands):
    """What the control plane has of a node: each event once, in order, without a gap; each command with one end."""
    # One journal a node.
    for events in stored(fleet).values():
        sequences = [sequence for sequence, _ in events]
        # Of very many the newest are kept.
        first = sequences[0] if len(sequences) >= KEPT else 1
        assert sequences == list(range(first, first + len(sequences))), sequences
    told = {}
    for line in fleet.run("events", node.id, "--kind", "command_update", "--limit", "1000", "--json").stdout.splitlines():
        update = json.loads(line)["body"]
        told.setdefault(update["id"], []).append(update["state"])
    for id in commands[-400:]:
        assert sum(state in FINAL for state in told[id]) == 1, (id, told[id])
    node.command = node.bcd
    verified = node.run("journal", "verify")
    assert verified.returncode == 0, verified.stdout + verified.stderr
