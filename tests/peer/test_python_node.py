"""A node in Python, from docs/protocol.md alone, against this project's control plane."""

import hashlib
import json
import re
import tomllib

import grpc
import pytest

from . import dsse, pki, protos
from .node import Node, NodeSession


def node_of(dev) -> Node:
    ready = dev.dir / "node"
    config = tomllib.loads((ready / "config.toml").read_text())
    return Node(config, json.loads((ready / "join-encryption.jwk").read_text()))


def states(dev, node):
    return dev.state(node.result.node_id)


def wait_state(dev, node, state):
    import time

    deadline = time.monotonic() + 10
    while (seen := states(dev, node)) != state:
        assert time.monotonic() < deadline, f"the control plane shows {seen}, not {state}"
        time.sleep(0.05)


def test_a_python_node_joins_and_holds_a_session(dev):
    node = node_of(dev)
    result = node.join(dev.token())
    assert pki.is_id(result.node_id, "node")
    assert states(dev, node) == "joining"
    session = node.session()
    welcome = session.receive().welcome
    assert welcome.protocol_version == 1 and pki.is_id(welcome.session_id, "sess")
    assert abs(welcome.server_time_ms - pki.now_ms()) < 60_000
    assert states(dev, node) == "adopting"
    for sequence in (1, 2, 3):
        session.heartbeat(sequence)
        assert session.receive().heartbeat.sequence == sequence
    wait_state(dev, node, "connected")
    session.half_close()
    assert session.receive() == grpc.StatusCode.OK
    wait_state(dev, node, "disconnected")
    session.close()


def test_two_machines_with_one_identity_are_noticed(dev):
    node = node_of(dev)
    node_id = node.join(dev.token()).node_id
    boots = [f"{n}1111111-2222-4333-8444-555555555555" for n in range(3)]

    def session(boot):
        session = NodeSession(node, boot_id=boots[boot])
        session.welcome()
        session.heartbeat(1)
        wait_state(dev, node, "connected")
        return session

    # A machine that reboots is one machine; so is one that reconnects.
    for boot in (0, 1, 1):
        session(boot).close()
    assert "identitySharedAtMs" not in dev.json("nodes", "show", node_id)
    # A copy of its disk, in a machine that has been up since before.
    first, second = session(2), session(1)
    assert first.ended() == grpc.StatusCode.ABORTED
    assert dev.json("nodes", "show", node_id)["identitySharedAtMs"] > 0
    assert "one must join anew" in dev.run("nodes", "show", node_id).stdout
    assert "connected,shared" in dev.run("nodes", "list").stdout
    (line,) = [line for line in dev.log.read_text().splitlines() if "node.identity_shared" in line]
    assert node_id in line and "bcd join --reset" in line
    second.close()


def test_a_renewed_key_is_shown_as_pending_until_it_opens_a_session(dev):
    node = node_of(dev)
    node_id = node.join(dev.token()).node_id
    assert "pendingKeySha256" not in dev.json("nodes", "show", node_id)["details"]
    key = pki.new_key()
    renewal = protos.join.Renewal(node_id=node_id, csr=pki.csr(key), time_ms=pki.now_ms(), daemon_version="peer-node")
    signed = dsse.sign(renewal.SerializeToString(), "renewal", node.key)
    with node.channel(False) as channel:
        renew = channel.unary_unary(
            "/bettercompute.v1.JoinService/Renew",
            request_serializer=lambda m: m.SerializeToString(),
            response_deserializer=protos.JoinResponse.FromString,
        )
        answer = renew(protos.join.RenewRequest(signed=signed), timeout=10)
    details = dev.json("nodes", "show", node_id)["details"]
    digest = hashlib.sha256(pki.spki(key)).hexdigest()
    assert details["pendingKeySha256"] == digest != details["keySha256"]
    assert details["pendingUntilMs"] > pki.now_ms()
    assert re.search(f"pending key: +{digest}, good for ", dev.run("nodes", "show", node_id).stdout)
    node.key = key
    node.result.certificate_chain[:] = protos.JoinResult.FromString(answer.signed.payload).certificate_chain
    session = node.session()
    session.receive()
    details = dev.json("nodes", "show", node_id)["details"]
    assert details["keySha256"] == digest and "pendingKeySha256" not in details
    session.close()


def test_the_same_key_gets_the_same_certificate_and_another_key_none(dev):
    token = dev.token()
    node = node_of(dev)
    first, again = node.join(token), node.join(token)
    assert list(first.certificate_chain) == list(again.certificate_chain)
    assert first.node_id == again.node_id and first.csr_sha256 != again.csr_sha256
    with pytest.raises(grpc.RpcError) as error:
        node_of(dev).join(token)
    assert error.value.code() == grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize(
    "changes, code",
    [
        ({"role": 9}, "INVALID_ARGUMENT"),
        ({"role": 0}, "INVALID_ARGUMENT"),
        ({"csr": b"not a csr"}, "INVALID_ARGUMENT"),
        ({"csr": b""}, "INVALID_ARGUMENT"),
        ({"attestor": "hearsay"}, "INVALID_ARGUMENT"),
        ({"attestor": ""}, "INVALID_ARGUMENT"),
        ({"role": 2}, "PERMISSION_DENIED"),
        ({"site": "elsewhere"}, "PERMISSION_DENIED"),
        ({"sealed_token": None}, "INVALID_ARGUMENT"),
        ({"sealed_token": protos.SealedToken(key_pin=pki.pin(pki.new_key()), enc=b"x" * 65, ciphertext=b"y" * 90)}, "FAILED_PRECONDITION"),
        ({"claims": protos.HardwareClaims(hostname="x" * 257)}, "INVALID_ARGUMENT"),
        ({"claims": protos.HardwareClaims(macs=["x"] * 65)}, "INVALID_ARGUMENT"),
        ({"daemon_version": "v" * 70_000}, "INVALID_ARGUMENT"),
    ],
)
def test_a_request_that_does_not_fit_is_refused_by_its_code(dev, changes, code):
    node = node_of(dev)
    token = dev.token()
    with pytest.raises(grpc.RpcError) as error:
        node.call_join(node.request(token, **changes))
    assert error.value.code().name == code, error.value.details()
    assert error.value.details(), "a refusal says why"
    assert node.join(token).node_id, "the token is not burnt"


def test_a_csr_with_a_broken_signature_is_refused(dev):
    node = node_of(dev)
    request = node.request(dev.token())
    csr = bytearray(request.csr)
    csr[-1] ^= 1
    with pytest.raises(grpc.RpcError) as error:
        node.call_join(node.request(dev.token(), csr=bytes(csr)))
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_a_token_sealed_for_another_csr_does_not_open(dev):
    node = node_of(dev)
    one, two = (node.request(dev.token()) for _ in range(2))
    one.sealed_token.CopyFrom(two.sealed_token)
    with pytest.raises(grpc.RpcError) as error:
        node.call_join(one)
    assert error.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_a_token_not_known_is_refused(dev):
    node = node_of(dev)
    for text in ["", "bcjt_jt_01.short", f"bcjt_{pki.ulid('jt')}.{'A' * 43}", "\x00" * 90, "é"]:
        with pytest.raises(grpc.RpcError) as error:
            node.call_join(node.request(text))
        assert error.value.code() == grpc.StatusCode.UNAUTHENTICATED, text


def test_bytes_that_are_no_request_are_refused(dev):
    node = node_of(dev)
    for junk in (b"\xff" * 40, b"\x0a\x7f"):
        with pytest.raises(grpc.RpcError) as error:
            node.call_join(junk)
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_a_session_needs_the_certificate_of_its_node(dev):
    node = node_of(dev)
    node.join(dev.token())
    session = node.session(with_certificate=False)
    assert session.receive() == grpc.StatusCode.UNAUTHENTICATED
    session.close()
    hello = protos.NodeFrame(hello=protos.Hello(node_id=pki.ulid("node"), protocol_versions=[1]))
    session = node.session(hello=hello)
    assert session.receive() == grpc.StatusCode.PERMISSION_DENIED
    session.close()
    session = node.session(hello=protos.NodeFrame(heartbeat=protos.Heartbeat(sequence=1)))
    assert session.receive() == grpc.StatusCode.INVALID_ARGUMENT
    session.close()


def test_a_certificate_of_another_ca_opens_no_session(dev):
    node = node_of(dev)
    result = node.join(dev.token())
    forged = pki.CA("forged").node_leaf(node.key.public_key(), [result.spiffe_id])
    result.certificate_chain[:] = [pki.der(forged)]
    session = node.session()
    assert isinstance(ended := session.receive(), grpc.StatusCode) and ended != grpc.StatusCode.OK
    session.close()
    assert states(dev, node) == "joining"


def test_a_second_session_replaces_the_first(dev):
    node = node_of(dev)
    node.join(dev.token())
    one = node.session()
    assert one.receive().WhichOneof("kind") == "welcome"
    two = node.session()
    assert two.receive().WhichOneof("kind") == "welcome"
    assert one.receive() == grpc.StatusCode.ABORTED
    two.heartbeat(1)
    assert two.receive().heartbeat.sequence == 1
    wait_state(dev, node, "connected")
    one.close()
    two.close()


def test_a_node_without_a_common_version_must_upgrade(dev):
    node = node_of(dev)
    node.join(dev.token())
    hello = protos.NodeFrame(hello=protos.Hello(node_id=node.result.node_id, protocol_versions=[7, 8]))
    session = node.session(hello=hello)
    welcome = session.receive().welcome
    assert welcome.upgrade_required and welcome.protocol_version == 0
    session.close()


def test_frames_younger_than_the_gateway_are_skipped(dev):
    node = node_of(dev)
    node.join(dev.token())
    session = node.session()
    session.receive()
    session.send(b"\xc2\x3e\x02hi")
    session.heartbeat(1)
    assert session.receive().heartbeat.sequence == 1
    session.close()


def test_a_deleted_node_is_refused(dev):
    node = node_of(dev)
    node.join(dev.token())
    dev.run("nodes", "delete", node.result.node_id, "--yes")
    session = node.session()
    assert session.receive() == grpc.StatusCode.PERMISSION_DENIED
    session.close()
