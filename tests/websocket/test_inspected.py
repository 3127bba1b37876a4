"""Joins, sessions and renewals through proxies that open TLS: nginx, and one in Python with the frames of `websockets`."""

import asyncio
import contextlib
import json
import socket
import ssl

import pytest
import websockets.exceptions
from websockets.asyncio.client import connect

from lab import running, wait_for

from .conftest import SPOKEN, event, events


def welcomes(node):
    return [e for e in events(node) if e["event"] == "session.welcome"]


def test_join_session_command_and_renewal_go_through_nginx(dev, inspected, token):
    node = inspected()
    node.id = node.join(token())
    node.start()
    wait_for("the node to be connected", lambda: dev.state(node.id) == "connected")
    done = json.loads(dev.run("commands", "run", node.id, "node.facts", "--wait", "--json").stdout.splitlines()[-1])
    assert done["state"] == "succeeded", done
    before = node.identity()["certificate_chain"]
    dev.run("pki", "rotate", "node-ca", "--begin")
    dev.run("pki", "rotate", "node-ca", "--switch", "--within", "1s")
    wait_for("the certificate to be renewed", lambda: node.identity()["certificate_chain"] != before)
    wait_for("the session with it", lambda: len(welcomes(node)) == 2)
    opened = (node.proxy.dir / "nginx-errors.log").read_text()
    assert "upgraded" in opened or (node.proxy.dir / "nginx.conf").exists()
    assert next(e for e in events(node) if e["event"] == "node.start")["websocket"].endswith("/v1/session")


def test_a_session_outlives_the_control_plane_and_nginx_says_so(dev, inspected, token):
    node = inspected()
    node.id = node.join(token())
    node.start()
    wait_for("the node to be connected", lambda: dev.state(node.id) == "connected")
    dev.kill()
    lost = event(node, "session.lost")
    dev.start()
    wait_for("the second Welcome", lambda: len(welcomes(node)) == 2, 40)
    assert lost["error"]


def test_an_inspecting_proxy_that_is_not_trusted_is_named_with_what_to_do(inspected, token):
    node = inspected(trusted=False)
    done = node.run("join", token=token())
    assert done.returncode == 1
    assert "WebSocket failed: no TLS with the WebSocket endpoint wss://127.0.0.1:" in done.stderr, done.stderr
    assert "set websocket.proxy_ca_file" in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("text, words", [(None, "cannot read"), ("no certificate\n", "holds no certificate")])
def test_a_proxy_ca_file_that_is_none_is_refused_at_once(inspected, token, tmp_path, text, words):
    file = tmp_path / "other.pem"
    if text:
        file.write_text(text)
    node = inspected(proxy_ca_file=str(file))
    done = node.run("join", token=token())
    assert done.returncode == 2 and words in done.stderr and "websocket.proxy_ca_file" in done.stderr, done.stderr


def test_the_proxys_ca_speaks_for_no_gateway(better_compute, inspected, token, tmp_path):
    """A man in the middle with all that a proxy has leads to a gateway of his own."""
    with running(better_compute, tmp_path / "other") as other:
        node = inspected(api=other.ports["http"])
        done = node.run("join", token=token())
    assert done.returncode == 1 and "serving_ca_spki_pin" in done.stderr, done.stderr


def test_a_gateway_that_is_not_the_audience_is_refused(inspected, token):
    node = inspected(audience="other.example")
    done = node.run("join", token=token())
    assert done.returncode == 1 and "other.example" in done.stderr, done.stderr


def test_another_librarys_frames_in_fragments_are_the_same_bytes(dev, inspected, token):
    def fragments(_, message):
        return [message[:1], message[1:3], message[3:]] if len(message) > 3 else message

    node = inspected(change=fragments)
    node.id = node.join(token())
    node.start()
    wait_for("the node to be connected", lambda: dev.state(node.id) == "connected")
    assert len(welcomes(node)) == 1


def test_the_man_in_the_middle_reads_nothing_that_he_could_use(dev, inspected, token):
    node = inspected(change=lambda _, message: message)
    secret = token()
    node.id = node.join(secret)
    node.start()
    wait_for("the node to be connected", lambda: dev.state(node.id) == "connected")
    for direction in ("up", "down"):
        passed = b"".join(node.proxy.taken[direction])
        assert len(passed) > 1000
        for known in (secret.encode(), secret.split(".")[1].encode(), node.id.encode(), b"bettercompute", b"PRI * HTTP"):
            assert known not in passed, f"{known!r} went {direction} in the clear"


@pytest.mark.parametrize("direction", ["up", "down"])
def test_one_bit_changed_on_the_way_ends_the_session_and_is_never_believed(dev, inspected, token, direction):
    """Every message in turn; the join ends well by itself, as one node, once the meddler leaves off."""
    before = {n["id"] for n in dev.nodes()}
    state = {"seen": 0, "flip": 0}

    def flip(way, message):
        if way != direction:
            return message
        state["seen"] += 1
        if state["flip"] < 6 and state["seen"] > state["flip"]:
            state["flip"], state["seen"] = state["flip"] + 1, 0
            return message[:-1] + bytes([message[-1] ^ 1])
        return message

    node = inspected(change=flip)
    node.id = node.join(token())
    # Down, what follows the handshake may come as one.
    least = {"up": 3, "down": 2}[direction]
    assert state["flip"] >= least, "a connection has few messages this way, but each was hit"
    assert {n["id"] for n in dev.nodes()} - before == {node.id}


def test_what_is_played_back_opens_no_session(dev, inspected, token):
    """All that a node said, again, to the same gateway: the proof is for one connection."""
    node = inspected(change=lambda _, message: message)
    node.id = node.join(token())
    node.proxy.taken["up"].clear()
    node.start()
    wait_for("the node to be connected", lambda: dev.state(node.id) == "connected")
    said = list(node.proxy.taken["up"])
    node.stop()
    wait_for("the end of it", lambda: dev.state(node.id) == "disconnected")

    async def play():
        async with connect(f"wss://{dev.ports['http']}/v1/session", ssl=node.proxy.far, **SPOKEN) as played:
            await played.send(said[0])
            # Waited for: the rest makes the gateway hang up, and what is not read by then may be lost.
            assert await asyncio.wait_for(played.recv(), 20), "the gateway's side of the handshake"
            with contextlib.suppress(websockets.exceptions.ConnectionClosed, TimeoutError):
                for message in said[1:]:
                    await played.send(message)
                while True:
                    await asyncio.wait_for(played.recv(), 5)

    asyncio.run(play())
    assert dev.state(node.id) == "disconnected"


def context():
    made = ssl.create_default_context()
    made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    return made


@pytest.mark.parametrize("path", ["/v1/session", "/api/compute/v1/session"])
def test_the_endpoint_says_what_it_is_to_whoever_is_no_node(dev, path):
    host, port = dev.ports["http"].split(":")
    upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    key = "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    protocol = "Sec-WebSocket-Protocol: bettercompute.v1\r\n"
    for headers, status in (("", 426), (upgrade, 400), (upgrade + key, 400), (upgrade.replace("13", "8") + key, 426),
                            (upgrade + key + protocol, 101)):
        with socket.create_connection((host, int(port)), timeout=10) as tcp, \
                context().wrap_socket(tcp, server_hostname=host) as tls:
            tls.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode())
            assert tls.recv(4096).startswith(f"HTTP/1.1 {status} ".encode()), headers


@pytest.mark.parametrize("frame, code", [
    (b"\x82\x01x", 1002),  # not masked
    (b"\xc2\x81\0\0\0\0x", 1002),  # a reserved bit
    (b"\x81\x81\0\0\0\0x", 1003),  # text
    (b"\x82\xff\0\0\0\0\x40\0\0\0\0\0\0\0", 1009),  # a gibibyte
    (b"\x80\x81\0\0\0\0x", 1002),  # continues nothing
    (b"\x89\x80\0\0\0\0" * 257, 1008),  # pings without end
])
def test_a_hostile_peer_is_closed_with_its_code_and_costs_nobody_else(dev, frame, code):
    host, port = dev.ports["http"].split(":")
    with socket.create_connection((host, int(port)), timeout=10) as tcp, \
            context().wrap_socket(tcp, server_hostname=host) as tls:
        tls.sendall(b"GET /v1/session HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
                    b"Sec-WebSocket-Protocol: bettercompute.v1\r\n\r\n" + frame)
        said = b""
        try:
            while piece := tls.recv(4096):
                said += piece
        except OSError:
            pass
    assert b"\x88\x02" + code.to_bytes(2, "big") in said, said[-100:]
    assert dev.run("nodes", "list").returncode == 0
