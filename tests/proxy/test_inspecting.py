"""`[websocket]` through mitmproxy, which opens TLS with a CA of its own, writes down all it sees, and meddles."""

import base64
import contextlib
import json
import pathlib

import pytest

from lab import Background, Node, program, wait_for
from networks import control_plane, network

from .conftest import PASSWORD, USER, events

INSPECTOR = pathlib.Path(__file__).with_name("inspector.py")
NODE, PROXY, GATEWAY = "10.203.1.2", "10.203.1.1", "10.203.2.2"
PORT, REVERSE = 8890, 8891
HANDSHAKE, CHANGE_CIPHER_SPEC, APPLICATION_DATA = 22, 20, 23  # TLS records
REVOKED = "1503030002022c"  # an alert, in the clear: certificate_revoked


class Inspected:
    """A node, an inspecting proxy and a gateway, each in a namespace; nothing is forwarded between them."""

    def __init__(self, net, dev, directory):
        self.net, self.dev, self.dir = net, dev, directory
        self.ca = directory / "ca/mitmproxy-ca-cert.pem"
        (directory / "orders").mkdir()
        self.running = []

    def mitmdump(self, mode, port, record, *more):
        record.mkdir(exist_ok=True)
        mitmdump = program("MITMDUMP", "target/mitmproxy/bin/mitmdump")
        settings = [f"confdir={self.dir}/ca", f"lab={record}", "flow_detail=0",
                    f"ssl_verify_upstream_trusted_ca={self.dev.dir}/serving-ca.pem", *more]
        self.running.append(Background(
            [*self.net.inside("proxy"), mitmdump, "--mode", f"{mode}@{PROXY}:{port}", "-s", INSPECTOR,
             *(word for setting in settings for word in ("--set", setting))],
            self.dir / f"mitmdump-{port}.out"))

        def listens():
            assert self.running[-1].running(), self.running[-1].output()
            return f":{port} " in self.net.do("proxy", "ss", "-Hltn")

        wait_for("mitmdump to listen", listens, 60)

    def seen(self, what=None):
        lines = (self.dir / "seen").read_text().splitlines()
        return [line for line in map(json.loads, lines) if what in (None, line["what"])]

    def connections(self):
        return len(self.seen("websocket"))

    def order(self, connection, do, way, **more):
        """To be obeyed with the next message of that connection and direction."""
        path = self.dir / "orders" / str(connection)
        path.with_suffix(".new").write_text(json.dumps({"do": do, "way": way, **more}))
        path.with_suffix(".new").rename(path)

    def close(self):
        for process in self.running:
            process.kill()


@pytest.fixture(scope="module")
def inspected(better_compute, tmp_path_factory):
    directory = tmp_path_factory.mktemp("inspected")
    with network() as net:
        for name in ("node", "proxy", "gateway"):
            net.space(name)
        net.cable("node", "proxy", (f"{NODE}/24", f"{PROXY}/24"))
        net.cable("proxy", "gateway", ("10.203.2.1/24", f"{GATEWAY}/24"))
        net.do("proxy", "sysctl", "-qw", "net.ipv4.ip_forward=0")
        with control_plane(better_compute, directory / "dev", net.inside("gateway"), GATEWAY, "--heartbeat", "5s") as dev:
            made = Inspected(net, dev, directory)
            try:
                made.mitmdump("regular", PORT, directory, f"proxyauth={USER}:{PASSWORD}")
                yield made
            finally:
                made.close()


@pytest.fixture
def lab(inspected, bcd, tmp_path):
    nodes = []

    def node(name="node", websocket=f"wss://{GATEWAY}:7444/v1/session", proxied=True, **env):
        """A machine beyond the proxy. Without `websocket` it goes to the gateway by its pin."""
        if proxied:
            env["HTTPS_PROXY"] = f"http://{USER}:{PASSWORD}@{PROXY}:{PORT}"
        command = [*inspected.net.inside("node"), "env", *(f"{k}={v}" for k, v in env.items()), bcd]
        made = Node(command, inspected.dev, tmp_path / name)
        if websocket:
            made.config.write_text(made.config.read_text() + f'[websocket]\nurl = "{websocket}"\naudience = "{GATEWAY}"\n'
                                   f'proxy_ca_file = "{inspected.ca}"\n')
        nodes.append(made)
        return made

    inspected.node = node
    yield inspected
    for made in nodes:
        made.stop()
    for order in (inspected.dir / "orders").iterdir():
        order.unlink()
    for made in nodes:
        with contextlib.suppress(FileNotFoundError):
            wait_for("the session's end", lambda made=made: inspected.dev.state(made.identity()["node_id"]) != "connected")


def named(node, event):
    return [e for e in events(node) if e["event"] == event]


def up(lab, node, count=1):
    """Waits for the session of this number, with its first heartbeats answered."""
    wait_for(f"welcome {count}", lambda: len(named(node, "session.welcome")) == count, 60)
    wait_for("the node to be connected", lambda: lab.dev.state(node.id) == "connected")


def records(stream):
    """The kinds of the TLS records that a stream of bytes is, and the first one's content."""
    kinds, first, at = [], b"", 0
    while at < len(stream):
        length = int.from_bytes(stream[at + 3:at + 5], "big")
        assert stream[at + 1] == 3 and length <= 16384 + 256, "not TLS"
        kinds.append(stream[at])
        first = first or stream[at + 5:at + 5 + length]
        at += 5 + length
    return kinds, first


def test_join_session_command_and_renewal_pass_and_the_proxy_sees_nothing_it_could_reuse(lab):
    node, secret = lab.node(), lab.dev.token()
    before = len(lab.seen())
    node.id = node.join(secret)
    node.start()
    up(lab, node)
    done = json.loads(lab.dev.run("commands", "run", node.id, "node.facts", "--wait", "--json").stdout.splitlines()[-1])
    assert done["state"] == "succeeded", done
    first = node.identity()["certificate_chain"]
    lab.dev.run("pki", "rotate", "node-ca", "--begin")
    lab.dev.run("pki", "rotate", "node-ca", "--switch", "--within", "1s")
    wait_for("the certificate to be renewed", lambda: node.identity()["certificate_chain"] != first)
    up(lab, node, 2)
    node.stop()
    seen = lab.seen()[before:]

    # What it has of the opened TLS: the host, the path, and headers that say nothing of the node.
    connects = [line for line in seen if line["what"] == "connect"]
    assert {(line["host"], line["port"]) for line in connects} == {(GATEWAY, 7444)}
    for line in (line for line in seen if line["what"] == "request"):
        assert (line["method"], line["path"], line["body"]) == ("GET", "/v1/session", "")
        assert {name.lower() for name, _ in line["headers"]} == {
            "host", "user-agent", "upgrade", "connection", "sec-websocket-version", "sec-websocket-key",
            "sec-websocket-protocol"}
    opened = [line for line in seen if line["what"] == "websocket"]
    assert len(opened) == 4, "the join, two sessions and the renewal"
    assert all(line["certificates_of_the_node"] == [] for line in opened)

    # And of what passed inside: two hellos in the clear, and ciphertext.
    streams = {}
    for line in (line for line in seen if line["what"] == "message"):
        assert line["text"] is False
        streams.setdefault((line["connection"], line["way"]), bytearray()).extend(bytes.fromhex(line["bytes"]))
    assert len(streams) == 8
    randoms = set()
    for (_, way), stream in streams.items():
        kinds, hello = records(bytes(stream))
        assert kinds[0] == HANDSHAKE and hello[0] == (1 if way == "up" else 2)
        assert set(kinds[1:]) <= {CHANGE_CIPHER_SPEC, APPLICATION_DATA} and kinds.count(CHANGE_CIPHER_SPEC) <= 1
        randoms.add(hello[6:38])
    assert len(randoms) == len(streams), "each handshake is over a challenge of its own"
    everything = (lab.dir / "seen").read_bytes() + b"".join(streams.values())
    pems = first + node.identity()["certificate_chain"]
    certificates = [base64.b64decode("".join(pem.strip().splitlines()[1:-1])) for pem in pems]
    assert all(len(certificate) > 300 for certificate in certificates)
    for known in (secret.encode(), secret.split(".")[1].encode(), node.id.encode(), b"PRI * HTTP", *certificates):
        assert known not in everything, known


def test_the_websocket_passes_a_reverse_proxy_that_opens_tls_too(lab):
    # With a record of its own: connections are numbered by each proxy.
    lab.mitmdump(f"reverse:https://{GATEWAY}:7444", REVERSE, lab.dir / "reverse")
    node = lab.node(websocket=f"wss://{PROXY}:{REVERSE}/v1/session", proxied=False)
    node.id = node.join(lab.dev.token())
    node.start()
    up(lab, node)
    tls = next(line for line in node.run("doctor").stdout.splitlines() if line.split()[1] == "tls")
    assert tls.startswith("ok") and "proved itself" in tls, tls


MEDDLING = [(do, way) for do in ("flip", "drop", "twice", "swap", "inject") for way in ("up", "down")]


@pytest.mark.slow
def test_whatever_it_does_to_a_message_ends_the_session_with_the_reason_and_is_never_believed(lab):
    nodes = {}
    for meddling in MEDDLING:
        node = nodes[meddling] = lab.node("-".join(meddling))
        node.id = node.join(lab.dev.token())
        node.start()
        up(lab, node)
        node.connection = lab.connections() - 1
    for (do, way), node in nodes.items():
        more = {"bytes": "aa" * 40} if do == "inject" else {}
        lab.order(node.connection, do, way, **more)
        # What it meddles with is a command, or what the node has to say of one.
        node.command_id = json.loads(lab.dev.run("commands", "run", node.id, "node.facts", "--json").stdout)["id"]
    for meddling, node in nodes.items():
        up(lab, node, 2)
        lost = [e for e in events(node) if e["event"].startswith("session.") and e["level"] in ("warn", "error")]
        assert [e["event"] for e in lost] == ["session.lost"], (meddling, lost)
        assert "what came is not what was sent" in lost[0]["error"], (meddling, lost)
        assert "look at the proxies and filters" in lost[0]["do"], (meddling, lost)
        over = wait_for("the command", lambda node=node: (c := lab.dev.json("commands", "show", node.command_id))["over"] and c)
        assert over["state"] == "succeeded", (meddling, over)
    assert len({node.id for node in nodes.values()}) == len(MEDDLING)


def test_an_alert_of_its_own_making_does_not_make_a_node_believe_that_it_is_turned_away(lab):
    """Before there are keys anybody can say anything: that is no word on this node's certificate."""
    node = lab.node()
    node.id = node.join(lab.dev.token())
    lab.order(lab.connections(), "before", "down", bytes=REVOKED)
    node.start()
    up(lab, node)
    assert not named(node, "session.refused") and not named(node, "identity.renewed")
    lost = named(node, "session.lost")
    assert lost and "CertificateRevoked" in lost[0]["error"], lost
    assert "reset" not in lost[0]["do"]


@pytest.mark.parametrize("way", ["up", "down"])
def test_what_one_connection_said_opens_nothing_in_another(lab, way):
    node = lab.node()
    node.id = node.join(lab.dev.token())
    node.start()
    up(lab, node)
    first = lab.connections() - 1
    node.stop()
    wait_for("the end of it", lambda: lab.dev.state(node.id) == "disconnected")
    (node.dir / "node.log").unlink()
    lab.order(first + 1, "replay", way, **{"from": first})
    node.start()
    lost = wait_for("the failed try", lambda: named(node, "session.lost"))
    assert not named(node, "session.welcome") and lab.dev.state(node.id) == "disconnected", lost
    up(lab, node)


def test_without_the_websocket_the_proxys_certificate_is_refused_and_the_way_out_is_said(lab):
    node = lab.node(websocket=None)
    done = node.run("join", token=lab.dev.token())
    assert done.returncode == 1 and "serving_ca_spki_pin" in done.stderr and "[websocket]" in done.stderr, done.stderr
    tls = next(line for line in node.run("doctor").stdout.splitlines() if line.split()[1] == "tls")
    assert tls.startswith("fail") and "[websocket]" in tls, tls


def test_the_document_of_a_join_is_read_through_it_and_what_it_changes_there_is_refused(lab):
    """`--server`: what a proxy could change is held against the pins."""
    server, key = lab.dev.info["serverUrl"], "join-encryption.jwk"
    untrusting = lab.node("untrusting")
    (untrusting.dir / key).unlink()
    done = untrusting.run("join", "--server", server, token=lab.dev.token())
    assert done.returncode == 1 and "SSL_CERT_FILE" in done.stderr, done.stderr
    node = lab.node(SSL_CERT_FILE=lab.ca)
    jwk = json.loads((node.dir / key).read_text())
    (node.dir / key).unlink()
    # Another key, that the proxy has the private half of.
    (lab.dir / "orders/response").write_text(json.dumps({jwk["x"]: jwk["y"], jwk["y"]: jwk["x"]}))
    token = lab.dev.token()
    done = node.run("join", "--server", server, token=token)
    assert done.returncode != 0 and "the join encryption pin is sha256/" in done.stderr, done.stderr
    done = node.run("join", "--server", server, token=token)
    assert done.returncode == 0, done.stderr
