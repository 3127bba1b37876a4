"""A gateway that is reached through a proxy alone, and not at all without."""

import json
import pathlib

import pytest

from lab import Background, Node, wait_for
from networks import control_plane, network, sees

USER, PASSWORD = "node", "hushhush"

TINYPROXY = """
Port {port}
Listen 10.201.1.1
Timeout 600
LogLevel Connect
LogFile "{log}"
MaxClients 50
ViaProxyName "lab"
ConnectPort 7443
ConnectPort 7444
"""


class Lab:
    """Three namespaces: the node's, the proxies', the gateway's. Nothing is forwarded between them."""

    open, closed = 8888, 8889  # ports of the proxy that anybody may use, and of the one that wants a password

    def __init__(self, net, dev, bcd, directory):
        self.net, self.dev, self.bcd, self.dir = net, dev, bcd, directory
        self.nodes = []

    def node(self, name="node", *wrap, **env):
        """A machine beyond the proxy, with this environment."""
        command = [*self.net.inside("node"), *wrap, "env", *(f"{k}={v}" for k, v in env.items()), self.bcd]
        made = Node(command, self.dev, self.dir / name)
        self.nodes.append(made)
        return made

    def proxy(self, kind="open", credentials=""):
        return f"http://{credentials}10.201.1.1:{getattr(self, kind)}"

    def log(self, kind):
        return pathlib.Path(self.dir / f"tinyproxy-{kind}.log").read_text()


@pytest.fixture(scope="module")
def beyond(better_compute, tmp_path_factory):
    directory = tmp_path_factory.mktemp("beyond")
    with network() as net:
        for name in ("node", "proxy", "gateway"):
            net.space(name)
        net.cable("node", "proxy", ("10.201.1.2/24", "10.201.1.1/24"))
        net.cable("proxy", "gateway", ("10.201.2.1/24", "10.201.2.2/24"))
        net.do("proxy", "sysctl", "-qw", "net.ipv4.ip_forward=0")
        running = []
        try:
            for kind, more in (("open", ""), ("closed", f"BasicAuth {USER} {PASSWORD}\n")):
                log = directory / f"tinyproxy-{kind}.log"
                config = directory / f"tinyproxy-{kind}.conf"
                log.touch()
                log.chmod(0o666)
                port = getattr(Lab, kind)
                config.write_text(TINYPROXY.format(port=port, log=log) + more)
                running.append(Background([*net.inside("proxy"), "tinyproxy", "-d", "-c", config],
                                          directory / f"tinyproxy-{kind}.out"))
                wait_for("tinyproxy to listen",
                         lambda port=port: f":{port} " in net.do("proxy", "ss", "-Hltn"))
            with control_plane(better_compute, directory / "dev", net.inside("gateway"), "10.201.2.2") as dev:
                yield net, dev, directory
        finally:
            for process in running:
                process.kill()


@pytest.fixture
def lab(beyond, bcd, tmp_path):
    net, dev, directory = beyond
    made = Lab(net, dev, bcd, tmp_path)
    made.log = lambda kind: (directory / f"tinyproxy-{kind}.log").read_text()
    yield made
    for node in made.nodes:
        node.stop()


def events(node):
    """The events in a node's log."""
    lines = (node.dir / "node.log").read_text(errors="replace").splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


__all__ = ["sees"]
