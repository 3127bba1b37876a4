"""Fixtures of the peer's lab: `peer`, and `machine`, a bcd that joins it."""

import os
import pathlib
import socket
import ssl
import threading

import pytest

from . import frontend, pki
from .gateway import Peer
from .machine import Machine

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def bcd():
    """BCD, else the static build, else the debug build. None of them fails the test."""
    built = sorted((ROOT / "dist").glob("bcd_*_linux_amd64"))
    for path in [os.environ.get("BCD"), *built, ROOT / "target" / "debug" / "bcd"]:
        if path and pathlib.Path(path).exists():
            return pathlib.Path(path)
    pytest.fail("no bcd is built: run `make static` or `cargo build`, or set BCD")


@pytest.fixture(scope="module")
def shared_peer(tmp_path_factory):
    with Peer(tmp_path_factory.mktemp("peer")) as peer:
        yield peer


@pytest.fixture
def peer(shared_peer):
    """One peer a module, with its misbehaviour and its memory cleared for each test."""
    shared_peer.faults.reset()
    shared_peer.join_service.requests.clear()
    shared_peer.join_service.outcomes.clear()
    shared_peer.session_service.sessions.clear()
    shared_peer.session_service.refused.clear()
    shared_peer.frontend.connections.clear()
    yield shared_peer
    shared_peer.faults.reset()
    shared_peer.frontend.drop_connections()


@pytest.fixture
def make_machine(peer, bcd, tmp_path):
    """make_machine(**config) gives a Machine; a config value of None leaves the key out."""
    made = []

    def make(**config):
        machine = Machine(bcd, peer, tmp_path / f"machine{len(made)}", **config)
        made.append(machine)
        return machine

    yield make
    for machine in made:
        machine.kill()


@pytest.fixture
def old_gateway(peer, tmp_path):
    """URL of a gateway with the right certificate that speaks only TLS 1.2, and says so by an alert, as servers
    do; asyncio, which the peer is built on, closes without a word."""
    key, chain = frontend.serving_chain("good", peer.frontend.serving_ca, peer.frontend.names)
    pem = tmp_path / "old-serving.pem"
    pem.write_bytes(pki.key_pem(key) + b"".join(map(pki.pem, chain)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_server(("127.0.0.1", 0)) as listener:
        def serve():
            while True:
                try:
                    connection, _ = listener.accept()
                    with connection:
                        context.wrap_socket(connection, server_side=True)
                except ssl.SSLError:
                    pass
                except OSError:
                    return

        threading.Thread(target=serve, daemon=True).start()
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def machine(make_machine):
    return make_machine()


@pytest.fixture
def node(machine):
    """A machine that has joined, with `bcd node` running and its session connected."""
    machine.join_well()
    machine.start()
    machine.peer.wait_session()
    return machine
