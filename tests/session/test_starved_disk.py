"""A node whose disk is full keeps its session, takes no new work, and says so when it is over."""

import base64
import json
import os
import subprocess
import time

import pytest

from lab import wait_for

from .conftest import log


@pytest.fixture
def small_disk(tmp_path):
    """A filesystem of 3 MiB."""
    path = tmp_path / "small"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m,mode=0700", "bcd-small", path], check=True, timeout=10)
    yield path
    subprocess.run(["umount", "--lazy", path], check=True, timeout=10)


def fill(path):
    with open(path / "ballast", "wb") as ballast:
        try:
            while True:
                os.write(ballast.fileno(), b"x" * 4096)
        except OSError:
            pass


# Turned away before it was stored, or stored and not begun.
HELD_UP = ("command.dropped", "command.not_stored")


def events(node):
    return [e["event"] for e in log(node)]


@pytest.mark.slow
def test_a_full_disk_costs_neither_the_session_nor_what_is_acknowledged(dev, behind, small_disk, tmp_path):
    node = behind(data_dir=str(small_disk / "data"))
    process = node.start()
    wait_for("the node to be connected", lambda: dev.state(node.id) == "connected")
    fill(small_disk)
    # What the journal has set aside for itself takes a few more.
    big = tmp_path / "big"
    for generation in range(1, 61):
        big.write_text(base64.b64encode(f"{generation:05}".encode() * 4000).decode())
        dev.run("spec", "set", node.id, "--raw", f"big={big}")
        wait_for("the spec to be judged",
                 lambda: events(node).count("spec.taken") == generation or "spec.not_kept" in events(node))
        if "spec.not_kept" in events(node):
            break
    assert "spec.not_kept" in events(node), "the disk never was full"
    # A command is smaller, and may still find room.
    for _ in range(200):
        command = json.loads(dev.run("commands", "run", node.id, "node.facts", "--json").stdout)["id"]
        judged = wait_for("the command to be judged", lambda: [
            e["event"] for e in log(node) if e.get("command") == command
            and (e["event"] in HELD_UP or e.get("state") == "SUCCEEDED")])
        if judged[0] in HELD_UP:
            break
    assert judged[0] in HELD_UP, "the disk never was full for a command"
    time.sleep(1)
    assert process.running() and dev.state(node.id) == "connected"
    assert events(node).count("session.welcome") == 1, "one session all the time"

    (small_disk / "ballast").unlink()

    def state(command_id):
        return dev.json("commands", "show", command_id)["state"]

    second = json.loads(dev.run("commands", "run", node.id, "node.facts", "--json").stdout)["id"]
    wait_for("a command after it to succeed", lambda: state(second) == "succeeded", 40)
    faults = wait_for("the fault to be told", lambda: [
        json.loads(line)["body"] for line in
        dev.run("events", node.id, "--kind", "storage_fault", "--json").stdout.splitlines()], 40)
    assert {fault["reason"] for fault in faults} == {"DiskFull"}
    # What was held up goes on by itself, and so does what was turned away.
    wait_for("the newest spec to be told of", lambda: [
        s["state"] for s in dev.json("spec", "get", node.id)["sections"]] == ["unsupported"], 40)
    wait_for("the first command to succeed", lambda: state(command) == "succeeded", 70)
