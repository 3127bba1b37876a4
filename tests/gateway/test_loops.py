"""A gateway of several loops: one fleet, whichever loop a session is on."""

import os
import pathlib
import queue
import re
import signal
import subprocess
import threading

import grpc
import pytest
from lab import running, wait_for
from peer.node import Journal
from peer.test_python_node import node_of

LOOPS = 3


@pytest.fixture
def looped(better_compute, tmp_path):
    """A control plane with three loops, however many cores there are."""
    with running(better_compute, tmp_path / "dev", "--loops", LOOPS) as control_plane:
        yield control_plane


def joined(dev):
    node = node_of(dev)
    node.join(dev.token())
    node.id = node.result.node_id
    return node


def opened(node, **options):
    session = node.session(**options)
    session.welcome_frame = session.welcome()
    return session


def on_loops(dev):
    """By loop (its epoll instance): the connections of the gateway, by their client's port."""
    pid, port = dev.process.pid, int(dev.gateway.rsplit(":", 1)[1])
    clients = {}
    for line in pathlib.Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[1].split(":")[1], 16) == port and fields[3] == "01":
            clients[fields[9]] = int(fields[2].split(":")[1], 16)
    found = {}
    for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        if os.readlink(fd) != "anon_inode:[eventpoll]":
            continue
        watched = re.findall(r"tfd:\s+(\d+)", pathlib.Path(f"/proc/{pid}/fdinfo/{fd.name}").read_text())
        for other in watched:
            try:
                inode = os.readlink(f"/proc/{pid}/fd/{other}")
            except FileNotFoundError:
                continue
            if inode.startswith("socket:[") and inode[8:-1] in clients:
                found.setdefault(fd.name, set()).add(clients[inode[8:-1]])
    return found


def spread(dev):
    return sorted(len(clients) for clients in on_loops(dev).values())


def test_sessions_are_spread_over_all_loops_and_evenly(looped):
    nodes = [joined(looped) for _ in range(2 * LOOPS)]
    wait_for("the joins' connections to end", lambda: spread(looped) == [])
    sessions = [opened(node) for node in nodes]
    assert spread(looped) == [2] * LOOPS
    # What ends makes room on its loop.
    for session in sessions[:LOOPS]:
        session.close()
    wait_for("three to end", lambda: sum(spread(looped)) == LOOPS)
    sessions += [opened(node) for node in nodes[:LOOPS]]
    assert spread(looped) == [2] * LOOPS
    for session in sessions:
        session.close()


def test_a_second_session_of_a_node_ends_the_first_on_whatever_loop(looped):
    node = joined(looped)
    wait_for("the join's connection to end", lambda: spread(looped) == [])
    last = opened(node)
    for _ in range(2 * LOOPS):
        former, last = last, opened(node)
        assert former.ended() == grpc.StatusCode.ABORTED
        assert "another session" in former.details
        last.heartbeat(1)
        assert last.wait("heartbeat").sequence == 1
        former.close()
    wait_for("the node to be connected", lambda: looped.state(node.id) == "connected")
    last.close()
    wait_for("the node to be gone", lambda: looped.state(node.id) == "disconnected")


def test_of_many_sessions_of_one_node_at_once_the_last_opened_one_stays(looped):
    node = joined(looped)
    sessions = [None] * 12

    def open_one(place):
        sessions[place] = node.session()

    threads = [threading.Thread(target=open_one, args=(place,)) for place in range(len(sessions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    def alive():
        left = []
        for session in sessions:
            frames = [session.frames.get() for _ in range(session.frames.qsize())]
            session.gone = getattr(session, "gone", False) or any(isinstance(f, grpc.StatusCode) for f in frames)
            if not session.gone:
                left.append(session)
        return left if len(left) == 1 else None

    [last] = wait_for("one session to be left", alive)
    last.heartbeat(1)
    last.wait("heartbeat")
    wait_for("the node to be connected", lambda: looped.state(node.id) == "connected")
    # The control plane and the gateway mean the same one: what is owed reaches it.
    command = looped.json("commands", "run", node.id, "node.facts")
    assert last.wait("command").id == command["id"]
    for session in sessions:
        session.close()


def test_commands_specs_and_deletions_reach_the_sessions_of_every_loop(looped, tmp_path):
    nodes = [joined(looped) for _ in range(LOOPS)]
    wait_for("the joins' connections to end", lambda: spread(looped) == [])
    sessions = [opened(node, journal=Journal()) for node in nodes]
    assert spread(looped) == [1] * LOOPS
    level = tmp_path / "log.json"
    level.write_text('{"level": "debug"}')
    for node, session in zip(nodes, sessions):
        command = looped.json("commands", "run", node.id, "node.facts")
        assert session.wait("command").id == command["id"]
        looped.run("commands", "cancel", command["id"])
        assert session.wait("cancel").id == command["id"]
        looped.run("spec", "set", node.id, "--section", f"log={level}")
        assert session.wait("spec").payload
        with pytest.raises(queue.Empty):
            session.receive(0.2)
    for node, session in zip(nodes, sessions):
        session.event(session.journal.append())
        session.acknowledged(1)
        looped.run("nodes", "delete", node.id, "--yes")
        assert session.ended() == grpc.StatusCode.PERMISSION_DENIED
        session.close()


def test_a_watcher_hears_of_sessions_on_every_loop(looped):
    nodes = [joined(looped) for _ in range(LOOPS)]
    for node in nodes:
        watcher = subprocess.Popen(
            [looped.program, "nodes", "watch", "--json", "--dir", looped.dir], stdout=subprocess.PIPE, text=True)
        try:
            while node.id not in watcher.stdout.readline():
                pass
            session = opened(node)
            session.heartbeat(1)
            while not ((line := watcher.stdout.readline()) and node.id in line and '"connected"' in line):
                assert watcher.poll() is None
        finally:
            watcher.kill()
            watcher.wait()
        session.close()


def test_all_loops_are_asked_to_move_and_end_with_the_program(looped):
    nodes = [joined(looped) for _ in range(LOOPS)]
    wait_for("the joins' connections to end", lambda: spread(looped) == [])
    sessions = [opened(node) for node in nodes]
    assert spread(looped) == [1] * LOOPS
    looped.process.process.send_signal(signal.SIGTERM)
    for session in sessions:
        session.wait("drain")
        session.half_close()
    for session in sessions:
        assert session.ended() == grpc.StatusCode.OK
        session.close()
    assert looped.process.process.wait(10) == 0
    assert "panicked" not in looped.process.output()
    looped.start()
    assert {looped.state(node.id) for node in nodes} == {"disconnected"}


@pytest.mark.parametrize("loops", ["0", "257", "many"])
def test_a_number_of_loops_that_is_none_is_refused(better_compute, tmp_path, loops):
    done = subprocess.run([better_compute, "dev", "--dir", tmp_path / "dev", "--loops", loops],
                          capture_output=True, text=True, timeout=20)
    assert done.returncode == 2 and "--loops is from 1 to 256" in done.stderr
