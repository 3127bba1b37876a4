"""What a careless administrator, or another account of the machine, does to a node's files while it runs or is off."""

import os
import resource
import signal
import subprocess
import time

import pytest

from gateway_api import call
from lab import clean_env, wait_for

from .conftest import log


@pytest.fixture
def node(dev, join):
    node = join()
    node.start()
    wait_for("the node to be connected", lambda: dev.state(node.id) == "connected")
    return node


def said(node, event):
    return [line for line in log(node) if line["event"] == event]


def test_a_journal_deleted_under_the_daemon_is_written_anew(dev, node):
    journal = node.data_dir / "journal.db"
    for _ in range(2):
        journal.unlink()
        done = dev.run("commands", "run", node.id, "node.facts", "--wait", "--json")
        assert '"state":"succeeded"' in done.stdout
        assert journal.stat().st_mode & 0o777 == 0o600
    assert said(node, "journal.deleted")
    assert node.run("journal", "verify").returncode == 0
    # What it remembers is what it remembered: nothing runs again after a restart.
    node.process.kill()
    node.start()
    wait_for("the node to be back", lambda: len(said(node, "session.welcome")) == 2)
    time.sleep(0.5)
    ran = [line["command"] for line in said(node, "command.state") if line["state"] == "RUNNING"]
    assert len(ran) == len(set(ran)) == 2


def test_a_journal_replaced_under_the_daemon_is_left_alone_and_said(dev, node):
    journal = node.data_dir / "journal.db"
    (node.data_dir / "mine").write_bytes(b"another")
    (node.data_dir / "mine").rename(journal)
    dev.run("commands", "run", node.id, "node.facts")
    told = wait_for("the log", lambda: said(node, "command.not_stored"))
    assert told[0]["do"] == "restart bcd node"
    assert journal.read_bytes() == b"another"


def test_files_that_were_open_to_others_are_closed_and_it_is_said(dev, node):
    node.process.terminate()
    node.data_dir.chmod(0o777)
    (node.data_dir / "node.key").chmod(0o644)
    (node.data_dir / "identity.json").chmod(0o666)
    node.config.chmod(0o646)
    node.start()
    wait_for("the node to be back", lambda: len(said(node, "session.welcome")) == 2)
    assert node.data_dir.stat().st_mode & 0o777 == 0o755
    assert [(node.data_dir / name).stat().st_mode & 0o777 for name in ("node.key", "identity.json")] == [0o600, 0o600]
    told = {line["path"].rsplit("/", 1)[-1]: line for line in said(node, "identity.open_to_others")}
    assert {name: line["was"] for name, line in told.items()} == {"data": "0777", "node.key": "0644", "identity.json": "0666"}
    assert "bcd join --reset --yes" in told["node.key"]["do"]
    (line,) = said(node, "node.config_open_to_others")
    assert "chmod 0600" in line["warning"]
    node.process.terminate()
    node.start()
    wait_for("the node to be back", lambda: len(said(node, "session.welcome")) == 3)
    assert len(said(node, "identity.open_to_others")) == 3, "said once"


def test_a_log_that_nobody_reads_stops_nothing(dev, join):
    node = join()
    reading, writing = os.pipe()
    node.process = subprocess.Popen([*node.command, "node", "--config", str(node.config)], stdin=subprocess.DEVNULL, stdout=writing,
                                    stderr=writing, env=clean_env())
    os.close(writing)
    try:
        wait_for("the node to be connected", lambda: dev.state(node.id) == "connected")
        # Each command is two lines: far more than a pipe holds.
        for _ in range(2):
            for _ in range(200):
                call(dev, "POST", f"nodes/{node.id}/commands", {"kind": "node.facts", "params": {}})
            wait_for("all to be done", lambda: all(c["over"] for c in dev.json("commands", "list", "--limit", "1000")["commands"]), 60)
        assert dev.state(node.id) == "connected"
    finally:
        node.process.kill()
        node.process.wait()
        node.process = None
        os.close(reading)


def core_of(command, ready, directory):
    """Whether the kernel writes a core file of the program when it crashes."""
    def unlimited():
        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    with open(directory / "crash.log", "ab") as out:
        process = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                   env=clean_env(), cwd=directory, preexec_fn=unlimited)
    try:
        ready()
    finally:
        os.kill(process.pid, signal.SIGABRT)
        _, status = os.waitpid(process.pid, 0)
    assert os.WTERMSIG(status) == signal.SIGABRT
    return os.WCOREDUMP(status)


def test_a_crash_leaves_no_key_in_a_core_file(dev, node, tmp_path):
    node.process.terminate()
    crash = tmp_path / "crash"
    crash.mkdir()

    def connected():
        wait_for("the session", lambda: "session.welcome" in (crash / "crash.log").read_text())

    assert core_of(["sleep", "100"], lambda: time.sleep(0.2), crash), "this machine writes core files"
    for core in crash.glob("core*"):
        core.unlink()
    assert not core_of([*node.command, "node", "--config", node.config], connected, crash)
    assert not list(crash.glob("core*"))
