"""What operators watch: nodes as they change, events as they come, through restarts of the control plane."""

import json
import os
import pty
import re
import select
import subprocess
import threading
import time

import pytest
from gateway_api import call
from lab import clean_env, wait_for
from peer import protos
from peer.node import Journal
from peer.test_python_node import node_of


class Following:
    """An operator's command that goes on; its lines are gathered."""

    def __init__(self, dev, *arguments):
        self.process = subprocess.Popen(
            [str(dev.program), *map(str, arguments), "--dir", str(dev.dir)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_env())
        self.lines, self.errors = [], []
        self.readers = [
            threading.Thread(target=lambda f=f, to=to: to.extend(iter(f.readline, "")), daemon=True)
            for f, to in ((self.process.stdout, self.lines), (self.process.stderr, self.errors))]
        for reader in self.readers:
            reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def wait(self, pattern, seconds=15):
        return wait_for(f"a line with {pattern}", lambda: next((x for x in self.lines if re.search(pattern, x)), None), seconds)


@pytest.fixture
def node(dev):
    node = node_of(dev)
    node.join(dev.token())
    node.id = node.result.node_id
    return node


def test_each_change_of_a_node_is_a_line_and_a_restart_is_survived(dev, node):
    with Following(dev, "nodes", "watch") as watch:
        watch.wait(f"{node.id} joining")
        session = node.session()
        session.wait("welcome")
        watch.wait(f"{node.id} adopting")
        session.heartbeat(1)
        watch.wait(f"{node.id} connected")
        dev.run("nodes", "cordon", node.id)
        watch.wait(f"{node.id} connected,cordoned")
        dev.kill()
        session.close()
        wait_for("the watcher to say so", lambda: any("does not answer" in e for e in watch.errors))
        dev.start()
        wait_for("the watcher to be back", lambda: any("answers again" in e for e in watch.errors))
        watch.wait(f"{node.id} disconnected,cordoned")
        other = node_of(dev)
        other.join(dev.token())
        watch.wait(f"{other.result.node_id} joining")
        dev.run("nodes", "delete", other.result.node_id, "--yes")
        watch.wait(f"{other.result.node_id} deleted")
        assert watch.process.poll() is None


def test_watching_for_programs_is_one_object_a_line(dev, node):
    with Following(dev, "nodes", "watch", "--json") as watch:
        watch.wait(node.id)
        session = node.session()
        session.wait("welcome")
        session.heartbeat(1)
        watch.wait('"connected"')
        session.close()
        watch.wait('"disconnected"')
        states = [json.loads(line)["state"] for line in watch.lines]
        assert states[0] == "joining" and states[-1] == "disconnected" and "connected" in states


def test_on_a_terminal_the_list_is_drawn_anew(dev, node):
    ours, theirs = pty.openpty()
    watch = subprocess.Popen([str(dev.program), "nodes", "watch", "--dir", str(dev.dir)],
                             stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=clean_env())
    os.close(theirs)
    seen = b""

    def reads(what):
        nonlocal seen
        if select.select([ours], [], [], 0.2)[0]:
            seen += os.read(ours, 65536)
        return what in seen

    try:
        wait_for("the first screen", lambda: reads(b"1 nodes, 0 connected"))
        session = node.session()
        session.wait("welcome")
        session.heartbeat(1)
        wait_for("the next screen", lambda: reads(b"1 nodes, 1 connected"))
        assert seen.count(b"\x1b[H\x1b[2J") >= 2
        session.close()
    finally:
        watch.terminate()
        watch.wait()
        os.close(ours)


def test_events_are_listed_filtered_and_followed_through_a_restart(dev, node):
    journal = Journal()
    session = node.session(journal=journal)
    session.welcome()
    for index in range(3):
        session.event(journal.append(section_status=protos.SectionStatus(section="log", generation=index)))
    session.event(journal.append(facts=protos.Facts(hostname="machine\n\x1b[1m", memory_bytes=5)))
    session.event(journal.append(storage_fault=protos.session.StorageFault(reason="DiskFull", refused_commands=2)))
    session.event(journal.append())
    session.acknowledged(6)
    listed = [json.loads(line) for line in dev.run("events", node.id, "--json").stdout.splitlines()]
    assert [e["sequence"] for e in listed] == [1, 2, 3, 4, 5, 6]
    assert listed[3]["body"]["hostname"] == "machine\n\x1b[1m"
    assert listed[4]["body"] == {"reason": "DiskFull", "message": "", "since_ms": 0, "until_ms": 0, "refused_commands": 2}
    text = dev.run("events").stdout
    assert "\x1b" not in text and len(text.splitlines()) == 6
    assert [json.loads(x)["sequence"] for x in dev.run("events", "--kind", "section_status", "--json").stdout.splitlines()] == [1, 2, 3]
    assert len(dev.run("events", "--limit", "2").stdout.splitlines()) == 2
    assert len(dev.run("events", "--since", "1h").stdout.splitlines()) == 6
    shown = dev.json("nodes", "facts", node.id)
    assert shown["facts"]["memory_bytes"] == 5
    assert "5 B" in dev.run("nodes", "facts", node.id).stdout
    other = node_of(dev)
    other.join(dev.token())
    assert dev.run("events", other.result.node_id).stdout == ""
    assert dev.run("nodes", "facts", other.result.node_id, check=False).returncode == 1

    with Following(dev, "events", node.id, "--follow", "--json", "--limit", "1") as following:
        following.wait('"sequence":6')
        session.event(journal.append())
        following.wait('"sequence":7')
        session.close()
        dev.kill()
        time.sleep(0.3)
        dev.start()
        session = node.session(journal=journal)
        session.welcome()
        session.event(journal.append())
        following.wait('"sequence":8')
        sequences = [json.loads(line)["sequence"] for line in following.lines]
        assert sequences == [6, 7, 8], "each once"
    session.close()


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["events", "node_1"], "node id"),
        (["events", "--kind", "a b"], "--kind"),
        (["events", "--kind", "command_updates"], "kind is one of section_status, command_update"),
        (["events", "--since", "x"], "--since"),
        (["events", "--limit", "1001"], "--limit"),
        (["nodes", "watch", "x"], "positional"),
    ],
)
def test_what_cannot_be_watched_is_refused(dev, arguments, says):
    done = dev.run(*arguments, check=False)
    assert done.returncode == 2 and says in done.stderr, done.stderr


def test_watching_where_nothing_runs_fails_at_once(dev):
    dev.kill()
    for command in (["nodes", "watch"], ["events", "--follow"]):
        done = dev.run(*command, check=False)
        assert done.returncode == 1 and "no answer from the control plane" in done.stderr


def test_a_request_that_waits_is_bounded_and_takes_no_other_query(dev, node):
    after = call(dev, "GET", "nodes")[1]["next"]
    started = time.monotonic()
    status, view = call(dev, "GET", f"nodes?after={after}&wait=1")
    assert (status, view["nodes"]) == (200, []) and 0.9 < time.monotonic() - started < 5
    # A number from a future that was rolled back: everything, at once.
    assert call(dev, "GET", f"nodes?after={after + 1000}&wait=30")[1]["whole"]
    for path in ("nodes?wait=31", "nodes?x=1", "nodes?after=-1", "events?after=a", "events?limit=1001",
                 "events?node=a%20b", "commands?state=", "commands?before=1&before=2"):
        status, refusal = call(dev, "GET", path)
        assert status == 400 and refusal["error"]["code"] == "INVALID_INPUT", path
    statuses = []
    waiting = [threading.Thread(target=lambda: statuses.append(call(dev, "GET", f"nodes?after={after}&wait=4")[0])) for _ in range(140)]
    for thread in waiting:
        thread.start()
    for thread in waiting:
        thread.join()
    assert statuses.count(503) == 12 and statuses.count(200) == 128
