"""The control plane under pressure: a full disk, nodes that do not read, nodes that send too fast."""

import concurrent.futures
import contextlib
import json
import pathlib
import subprocess
import time

import grpc
import pytest
from gateway_api import call
from lab import ControlPlane, program, running, wait_for
from peer import protos
from peer.node import Journal
from peer.test_python_node import node_of
from promises import hold


def joined(dev):
    node = node_of(dev)
    node.join(dev.token())
    node.id = node.result.node_id
    return node


def status(size):
    return protos.SectionStatus(section="log", message="x" * size)


def resident(process):
    """Bytes of memory that a process has."""
    for line in pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


@pytest.fixture
def small_disk(better_compute, tmp_path):
    """A control plane whose directory is a filesystem of 32 MiB, in a mount namespace of its own; its
    directory is reached through /proc, from inside and from outside."""
    directory = tmp_path / "dev"
    directory.mkdir()
    inner = f'mount -t tmpfs -o size=32m,mode=700 none "{directory}" && echo ready && exec sleep 600'
    keeper = subprocess.Popen(["unshare", "-rm", "sh", "-c", inner], stdout=subprocess.PIPE, text=True)
    program = tmp_path / "better-compute"
    program.write_text(f"#!/bin/sh\nexec nsenter -t {keeper.pid} -U -m --preserve-credentials {better_compute} \"$@\"\n")
    program.chmod(0o755)
    dev = ControlPlane(program, pathlib.Path(f"/proc/{keeper.pid}/root{directory}"))
    dev.log = tmp_path / "dev.log"
    try:
        assert keeper.stdout.readline() == "ready\n"
        yield dev
    finally:
        if dev.process:
            dev.kill()
        keeper.kill()
        keeper.wait()


@contextlib.contextmanager
def full(directory):
    """The filesystem is full, until the end of the block."""
    ballast = directory / "ballast"
    with open(ballast, "wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * size)
    try:
        yield
    finally:
        ballast.unlink()


def test_a_full_disk_is_said_nothing_is_acknowledged_and_space_heals_it(small_disk):
    dev = small_disk.start()
    node = joined(dev)
    journal = Journal()
    session = node.session(journal=journal)
    session.welcome()
    session.event(journal.append(section_status=status(8_000)))
    session.acknowledged(1)
    command = dev.json("commands", "run", node.id, "node.facts")
    session.wait("command")
    before = resident(dev.process)
    with full(dev.dir):
        # What the log has room for is still stored; then nothing is acknowledged any more.
        for _ in range(600):
            session.event(journal.append(section_status=status(8_000)))
        stuck = journal.acknowledged

        def settled():
            nonlocal stuck
            with contextlib.suppress(Exception):
                session.wait("ack", timeout=3)
            same, stuck = journal.acknowledged == stuck, journal.acknowledged
            return same

        wait_for("the acknowledgements to stop", settled, 60)
        assert stuck < 601, "the disk was not full"
        refused = dev.run("tokens", "create", "--pool", "p", "--site", "s", check=False)
        assert refused.returncode == 1 and "UNAVAILABLE" in refused.stderr and "full" in refused.stderr, refused.stderr
        refused = dev.run("commands", "run", node.id, "node.facts", check=False)
        assert refused.returncode == 1 and "full" in refused.stderr, refused.stderr
        assert dev.node(node.id)["state"] == "connected", "what is stored can be read"
        assert dev.json("commands", "show", command["id"])["state"] == "sent"
        hold("gateway.session.full-disk", (resident(dev.process) - before) / 1024, otherwise="So much was buffered for one session.")
        assert "disk is full" in dev.process.output()
    session.acknowledged(601, timeout=60)
    assert not journal.events
    dev.run("commands", "run", node.id, "node.facts")
    session.wait("command")
    dev.kill()
    dev.start()
    session = node.session(journal=journal)
    assert session.welcome().resume_position == 601
    session.close()


@pytest.fixture
def brisk(better_compute, tmp_path):
    """A control plane with a heartbeat of a second."""

    class Brisk(ControlPlane):
        flags = ["--heartbeat", "1s"]

    (tmp_path / "brisk").mkdir()
    dev = Brisk(better_compute, tmp_path / "brisk")
    try:
        yield dev.start()
    finally:
        dev.kill()


def test_a_node_that_does_not_read_is_given_up_while_it_goes_on_beating(brisk):
    node = joined(brisk)
    for _ in range(120):
        made, _ = call(brisk, "POST", f"nodes/{node.id}/commands", {"kind": "x", "paramsBase64": "QUJD" * 12_000})
        assert made == 201
    before = resident(brisk.process)
    session = node.session(reads=False)
    wait_for("the session", lambda: brisk.state(node.id) in ("adopting", "connected"))

    def given_up():
        session.heartbeat(1)
        time.sleep(0.2)
        return brisk.state(node.id) == "disconnected"

    wait_for("the node to be given up", given_up, 30)
    assert "does not take what it is sent" in brisk.process.output()
    assert resident(brisk.process) - before < 3 << 20
    session.close()
    other = joined(brisk)
    session = other.session()
    session.wait("welcome")
    session.close()


def test_too_many_joins_from_one_address_are_slowed_and_told_when_to_come_back(dev):
    node = node_of(dev)
    request = node.request("bcjt_jt_00000000000000000000000000." + "A" * 43)
    codes = {}
    with node.channel(False) as channel:
        ask = channel.unary_unary(protos.JOIN, request_serializer=lambda m: m.SerializeToString(),
                                  response_deserializer=protos.JoinResponse.FromString)
        # 500 at once, and 20 a second meanwhile, however slow this machine is just now.
        for _ in range(5000):
            with pytest.raises(grpc.RpcError) as error:
                ask(request, timeout=10)
            code = error.value.code().name
            codes[code] = codes.get(code, 0) + 1
            if code == "RESOURCE_EXHAUSTED":
                assert "try again in 1 s" in error.value.details()
                break
    assert codes.get("RESOURCE_EXHAUSTED") == 1 and codes["UNAUTHENTICATED"] >= 500, codes
    # A node that honours it joins.
    time.sleep(1.1)
    assert node.join(dev.token()).node_id


def test_a_session_costs_little_memory(dev):
    """Sessions that have sent an event and are idle: what one more costs the gateway, TLS and HTTP/2 included."""
    sessions = []

    def open_one():
        node, journal = joined(dev), Journal()
        session = node.session(journal=journal)
        session.welcome()
        session.event(journal.append(section_status=status(1_000)))
        session.acknowledged(1)
        sessions.append(session)

    for _ in range(20):
        open_one()
    before = resident(dev.process)
    for _ in range(40):
        open_one()
    each = (resident(dev.process) - before) / 40
    for session in sessions:
        session.close()
    hold("gateway.session", each / 1024)


@pytest.fixture
def quiet(better_compute, tmp_path):
    """A control plane that expects no heartbeat while a test lasts."""
    with running(better_compute, tmp_path / "quiet", "--heartbeat", "10m") as control_plane:
        yield control_plane


def test_a_thousand_sessions_cost_as_little_each(quiet):
    """The sessions of one program, each with a key and an address of its own, after their first event."""
    load = program("GATEWAY_LOAD", "target/operator/examples/gateway_load")
    holding = []

    def token(_):
        made, answer = call(quiet, "POST", "tokens", {"pool": "pool_tests", "site": "dev", "role": "node"})
        assert made == 201, answer
        return answer["token"]

    def tokens(count):
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            return list(pool.map(token, range(count)))

    try:
        for count in (200, 800):
            given = "\n".join(tokens(count)) + "\n\n"
            before = resident(quiet.process)
            process = subprocess.Popen(
                [load, "hold", quiet.gateway, quiet.dir / "node/join-encryption.jwk"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            holding.append(process)
            process.stdin.write(given)
            process.stdin.flush()
            assert json.loads(process.stdout.readline()) == {"sessions": count, "failed": 0}
        hold("gateway.session", (resident(quiet.process) - before) / count / 1024)
    finally:
        for process in holding:
            process.kill()
            process.wait()

