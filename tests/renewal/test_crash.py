"""bcd node killed at every step of a renewal: the identity is never lost, and the next start finishes.

As in join/test_crash.py, strace kills it on the way into the N-th call of a kind. The nodes' certificates have
ended, so that each start renews at once.
"""

import collections
import contextlib
import os
import pathlib
import re
import shutil
import signal
import time

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from join.test_crash import strace
from lab import Node, running, wait_for
from renewal.conftest import key_of, leaf, on_disk, spki

KINDS = "write fsync renameat openat2 fchmod unlinkat flock connect sendto sendmsg recvfrom".split()
LIFETIME = 10


@pytest.fixture(scope="module")
def fleet(better_compute, tmp_path_factory):
    with running(better_compute, tmp_path_factory.mktemp("fleet") / "dev", "--heartbeat", "1s",
                 "--certificate-lifetime", f"{LIFETIME}s") as plane:
        yield plane


def make(fleet, bcd, directory):
    node = Node([bcd], fleet, directory)
    node.id = node.join(fleet.token())
    return node


def traced(node, log, *options):
    """`bcd node` under strace; its own child is the process to end."""
    whole = node.command
    node.command = [*strace("-o", log, *options), *whole]
    try:
        return node.start()
    finally:
        node.command = whole


def end(process):
    """Ends what strace runs, and with it strace."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for child in children:
            os.kill(int(child), signal.SIGKILL)
    process.process.wait(20)


@pytest.fixture(scope="module")
def steps(fleet, bcd, tmp_path_factory):
    """How often a start makes each kind of call until the renewed session stands."""
    directory = tmp_path_factory.mktemp("steps")
    node = make(fleet, bcd, directory / "node")
    time.sleep(LIFETIME + 1.1)
    log = directory / "trace"
    process = traced(node, log, "-e", "trace=" + ",".join(KINDS))
    wait_for("the session", lambda: fleet.state(node.id) == "connected", 30)
    end(process)
    counted = collections.Counter(re.findall(r"^\d+ +(\w+)\(", log.read_text(), re.MULTILINE))
    # node.key.next, identity.json, the promotion, and the journal's own.
    assert counted["renameat"] >= 3 and counted["fsync"] >= 5, counted
    return counted


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_a_renewal_killed_at_any_step_never_loses_the_identity(fleet, bcd, steps, tmp_path, kind):
    # How often sockets are read and the clock is looked at differs from run to run.
    most = 12 if kind in ("write", "recvfrom", "sendto", "sendmsg", "getrandom") else 40
    numbers = range(1, min(steps[kind], most) + 1)
    nodes = [(number, make(fleet, bcd, tmp_path / f"{kind}{number}")) for number in numbers]
    time.sleep(LIFETIME + 1.1)
    for number, node in nodes:
        where = f"killed at {kind} number {number}"
        before, certified = on_disk(node.data_dir)
        # Twice, since strace counts in each thread: the second time the next key is there already, and the
        # first call of that kind is the identity's.
        for _ in range(2):
            process = traced(node, "/dev/null", "-e", f"inject={kind}:signal=KILL:when={number}")
            # Either it dies there, or it needs fewer calls this time.
            wait_for(where, lambda: not process.running() or fleet.state(node.id) == "connected", 30)
            end(process)
            wait_for("the end of its session", lambda: fleet.state(node.id) != "connected", 30)
            identity, after = on_disk(node.data_dir)
            assert identity["node_id"] == before["node_id"], where

        node.start()
        wait_for(f"the session, {where}", lambda: fleet.state(node.id) == "connected", 30)
        wait_for(f"the promotion, {where}", lambda: key_of(node) == spki(leaf(node).public_key()))
        assert key_of(node) != certified, f"{where}: not renewed"
        if after != certified:
            assert "identity.expired" not in node.process.output().split("node.start")[-1], f"{where}: renewed twice"
        assert not list(node.data_dir.glob("*.new")), f"{where}: a half-written file is left"
        node.stop()
        shutil.rmtree(node.dir)


def test_a_reply_that_is_lost_with_the_process_is_given_again(fleet, bcd, tmp_path):
    """Killed before the identity is replaced, again and again: one certificate."""
    node = make(fleet, bcd, tmp_path / "node")
    time.sleep(LIFETIME + 1.1)
    answered = fleet.process.output().count("outcome=reissued")
    # With the next key there, the first rename is the identity's.
    next_key = ec.generate_private_key(ec.SECP256R1())
    path = node.data_dir / "node.key.next"
    path.write_bytes(next_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    path.chmod(0o600)
    for _ in range(3):
        process = traced(node, "/dev/null", "-e", "inject=renameat:signal=KILL:when=1")
        wait_for("the kill", lambda p=process: not p.running(), 30)
    assert leaf(node).not_valid_after_utc.timestamp() < time.time(), "the identity is the former one"
    assert fleet.process.output().count("outcome=reissued") > answered
    node.start()
    wait_for("the session", lambda: fleet.state(node.id) == "connected", 30)
    assert spki(leaf(node).public_key()) == spki(next_key.public_key())
    node.stop()
