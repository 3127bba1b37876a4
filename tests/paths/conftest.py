"""A node and a gateway in namespaces of their own, with a name server beside the gateway."""

import json
import pathlib
import sys

import pytest

from lab import Background, Node, wait_for
from networks import control_plane, network, sees

NAMES = pathlib.Path(__file__).with_name("dns.py")


class Path:
    """A cable between node and gateway; the gateway's control plane listens on `host`."""

    def __init__(self, net, dev, bcd, directory):
        self.net, self.dev, self.bcd, self.dir = net, dev, bcd, directory
        self.running = []

    def node(self, name="node", *wrap, **settings):
        made = Node([*self.net.inside("node"), *wrap, self.bcd], self.dev, self.dir / name, **settings)
        self.running.append(made)
        return made

    def names(self, address, rules, resolv):
        """A name server on this address of the gateway's namespace; gives what a command needs before it to use it."""
        self.server = Background([*self.net.inside("gateway"), sys.executable, NAMES, address, json.dumps(rules)],
                                 self.dir / "dns.log")
        wait_for("the name server", lambda: ":53 " in self.net.do("gateway", "ss", "-Hltn"))
        resolv_conf, hosts = self.dir / "resolv.conf", self.dir / "hosts"
        resolv_conf.write_text(resolv)
        hosts.write_text("127.0.0.1 localhost\n")
        return sees(resolv_conf=resolv_conf, hosts=hosts)

    def asked(self):
        return self.server.output()

    def close(self):
        for node in self.running:
            node.stop()
        if server := getattr(self, "server", None):
            server.kill()


@pytest.fixture
def path(better_compute, bcd, tmp_path):
    """path(host, *pairs, flags=()) lays the cable and starts the control plane."""
    opened = []
    with network() as net:

        def lay(host, *pairs, flags=()):
            net.space("node")
            net.space("gateway")
            ends = net.cable("node", "gateway", *pairs)
            context = control_plane(better_compute, tmp_path / "dev", net.inside("gateway"), host, *flags)
            opened.append(context)
            made = Path(net, context.__enter__(), bcd, tmp_path)
            made.ends = ends
            opened.append(made)
            return made

        yield lay
        for thing in reversed(opened):
            if isinstance(thing, Path):
                thing.close()
            else:
                thing.__exit__(None, None, None)


def events(node):
    lines = (node.dir / "node.log").read_text(errors="replace").splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]
