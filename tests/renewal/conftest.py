"""Fixtures of the renewal lab: control planes whose certificates live for seconds, and what is on a node's disk."""

import contextlib
import json
import threading
import time

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from lab import Node, running


@pytest.fixture
def fleet(better_compute, tmp_path):
    """fleet(*flags) is a running control plane; its nodes' heartbeats come every second."""
    with contextlib.ExitStack() as stack:
        def start(*flags):
            return stack.enter_context(
                running(better_compute, tmp_path / "dev", "--heartbeat", "1s", *flags))

        yield start


@pytest.fixture
def machine(bcd, tmp_path):
    """machine(fleet, name) gives a node that has joined, and its id as node.id; stopped at the end."""
    made = []

    def make(fleet, name="node", command=None, **settings):
        node = Node(command or [bcd], fleet, tmp_path / name, **settings)
        made.append(node)
        node.id = node.join(fleet.token())
        return node

    yield make
    for node in made:
        node.stop()


def spki(key):
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def leaf(node):
    """The certificate in identity.json."""
    return x509.load_pem_x509_certificate(node.identity()["certificate_chain"][0].encode())


def key_of(node, name="node.key"):
    """The public half of a key file, DER; None when it is missing."""
    path = node.data_dir / name
    return spki(load_pem_private_key(path.read_bytes(), None).public_key()) if path.exists() else None


def unwanted(log):
    """What a log says of sessions that were lost, but for the one that its successor replaced."""
    return [line for line in log.splitlines()
            if ("session.lost" in line and "which replaces this one" not in line) or "session.refused" in line]


class Watch(threading.Thread):
    """Asks for the state of nodes all the time: `with Watch(fleet, ids) as seen: …; seen.states[id]`."""

    def __init__(self, fleet, ids):
        super().__init__(daemon=True)
        self.fleet, self.ids = fleet, ids
        self.states = {i: [] for i in ids}
        self.done = threading.Event()

    def run(self):
        while not self.done.is_set():
            for node in self.fleet.nodes():
                states = self.states.get(node["id"])
                if states is not None and states[-1:] != [node["state"]]:
                    states.append(node["state"])
            time.sleep(0.05)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        self.join(10)

    def never_gone(self):
        """No node was seen without a session."""
        for node_id, states in self.states.items():
            assert states and set(states) <= {"adopting", "connected"}, (node_id, states)


def on_disk(directory):
    """What a node's files are at this instant: the identity, whose leaf is for one of the keys there."""
    identity = json.loads((directory / "identity.json").read_text())
    certified = spki(x509.load_pem_x509_certificate(identity["certificate_chain"][0].encode()).public_key())
    keys = [spki(load_pem_private_key((directory / name).read_bytes(), None).public_key())
            for name in ("node.key", "node.key.next") if (directory / name).exists()]
    assert certified in keys, "the identity is lost"
    return identity, certified
