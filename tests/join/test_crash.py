"""A join killed at any step, and joined again: never half an identity, never a burnt token.

strace kills bcd on the way into the N-th call of a kind, for every kind that changes something outside
the process and every N that a whole join comes to.
"""

import collections
import json
import re
import shutil

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from join.conftest import token_file

KINDS = (
    "write pwrite64 fsync fdatasync rename renameat renameat2 openat openat2 fchmod mkdirat unlinkat flock "
    "connect sendto sendmsg writev recvfrom recvmsg epoll_wait epoll_pwait getrandom exit_group"
).split()


def spki(key):
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def whole_or_none(data):
    """The identity in `data`, which fits its key; None when there is none. Never anything between."""
    if not (data / "identity.json").exists():
        return None
    identity = json.loads((data / "identity.json").read_text())
    leaf = x509.load_pem_x509_certificate(identity["certificate_chain"][0].encode())
    key = load_pem_private_key((data / "node.key").read_bytes(), None)
    assert spki(leaf.public_key()) == spki(key.public_key())
    return identity


def strace(*arguments):
    program = shutil.which("strace")
    assert program, "strace is not installed: apt-get install strace"
    return [program, "-f", "-qq", *arguments]


@pytest.fixture(scope="module")
def steps(fleet, bcd, tmp_path_factory):
    """How often a whole join makes each kind of call."""
    from lab import Node

    directory = tmp_path_factory.mktemp("steps")
    log = directory / "trace"
    node = Node([*strace("-o", log, "-e", "trace=" + ",".join(KINDS)), bcd], fleet, directory / "whole")
    file = token_file(node.dir, fleet.token())
    done = node.run("join", "--token-file", file)
    assert done.returncode == 0, done.stderr
    counted = collections.Counter(re.findall(r"^\d+ +(\w+)\(", log.read_text(), re.MULTILINE))
    assert counted["write"] >= 3 and counted["fsync"] >= 4 and counted["unlinkat"] >= 1, counted
    return counted


@pytest.mark.parametrize("kind", KINDS)
def test_a_join_killed_at_any_step_is_finished_by_joining_again(fleet, bcd, steps, machine, kind):
    # Some more, since a run may take a call or two more than the one that was counted.
    for number in range(1, steps[kind] + 2) if steps[kind] else ():
        node = machine(f"{kind}{number}")
        token = fleet.token()
        file = token_file(node.dir, token)
        whole = node.command
        node.command = [*strace("-o", "/dev/null", "-e", f"inject={kind}:signal=KILL:when={number}"), *whole]
        killed = node.run("join", "--token-file", file)
        # How often sockets are read and waited for differs from run to run.
        certain = number <= steps[kind] and not kind.startswith(("epoll", "recv"))
        assert not certain or killed.returncode != 0, f"strace did not kill it at {kind} number {number}"
        before = whole_or_none(node.data_dir)

        node.command = whole
        if not file.exists():
            assert before, "the token is deleted only after the identity is stored"
            again = node.run("join")
        else:
            again = node.run("join", "--token-file", file)
        where = f"killed at {kind} number {number}"
        assert again.returncode == 0, f"{where}: {again.stderr}"
        identity = whole_or_none(node.data_dir)
        assert identity, where
        assert before in (None, identity), f"{where}: a stored identity changed"
        assert identity["spiffe_id"] in again.stdout
        assert not file.exists(), f"{where}: the token file is left"
        assert not list(node.data_dir.glob("*.new")), f"{where}: a half-written file is left"
        assert fleet.state(identity["node_id"]) == "joining"
        shutil.rmtree(node.dir)


def test_killed_joins_leave_no_second_node(fleet, bcd, machine):
    """Killed after the control plane has spoken and before the answer is stored, five times."""
    node = machine()
    token = fleet.token()
    before = {n["id"] for n in fleet.nodes()}
    whole = node.command
    node.command = [*strace("-o", "/dev/null", "-e", "inject=renameat,renameat2:signal=KILL:when=2"), *whole]
    for _ in range(5):
        node.run("join", token=token)
    node.command = whole
    node_id = node.join(token)
    assert {n["id"] for n in fleet.nodes()} - before == {node_id}
