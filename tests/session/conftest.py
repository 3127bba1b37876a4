"""Fixtures: `relay`, and `behind`, a node that reaches its gateway through one."""

import json
import pathlib

import pytest

from .relay import Relay


@pytest.fixture
def make_relay(dev):
    made = []

    def make(**settings):
        made.append(Relay(dev.gateway, **settings))
        return made[-1]

    yield make
    for relay in made:
        relay.close()


@pytest.fixture
def behind(make_relay, make_node, token):
    """behind(name, delay=...) gives a node that has joined through a relay of its own, node.relay."""

    def behind(name="node", delay=0.0, **settings):
        relay = make_relay(delay=delay)
        node = make_node(name, gateway_url=relay.url, **settings)
        node.relay = relay
        node.data_dir = pathlib.Path(settings.get("data_dir", node.data_dir))
        node.id = node.join(token())
        return node

    return behind


def log(node):
    """The events in the node's log."""
    lines = (node.dir / "node.log").read_text(errors="replace").splitlines()
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
