"""The peer against its own Python node: what the tests of bcd lean on must itself be right."""

import grpc
import pytest

from . import answers, dsse, frontend, hpke, pki, protos
from .node import Node, Refused


def node_of(peer, **changes) -> Node:
    import tomllib

    return Node(tomllib.loads(peer.config(**changes)), peer.jwk())


def test_hpke_opens_what_cryptography_seals():
    library = pytest.importorskip("cryptography.hazmat.primitives.hpke")
    key = pki.new_key()
    suite = library.Suite(library.KEM.P256, library.KDF.HKDF_SHA256, library.AEAD.AES_256_GCM)
    sealed = suite.encrypt(b"a token", key.public_key(), info=b"better-compute join v1")
    assert hpke.open_sealed(key, sealed[:65], b"better-compute join v1", b"", sealed[65:]) == b"a token"
    enc, ciphertext = hpke.seal(key.public_key(), b"info", b"", b"another")
    assert suite.decrypt(enc + ciphertext, key, info=b"info") == b"another"


def test_hpke_refuses_another_context_and_bad_points():
    key = pki.new_key()
    enc, ciphertext = hpke.seal(key.public_key(), b"info", b"aad", b"text")
    assert hpke.open_sealed(key, enc, b"info", b"aad", ciphertext) == b"text"
    for bad in (
        (key, enc, b"inf0", b"aad", ciphertext),
        (key, enc, b"info", b"aad2", ciphertext),
        (key, enc, b"info", b"aad", ciphertext[:-1] + bytes([ciphertext[-1] ^ 1])),
        (pki.new_key(), enc, b"info", b"aad", ciphertext),
        (key, enc[:-1] + bytes([enc[-1] ^ 1]), b"info", b"aad", ciphertext),
        (key, enc[:64], b"info", b"aad", ciphertext),
        (key, bytes([2 + (enc[64] & 1)]) + enc[1:33], b"info", b"aad", ciphertext),
    ):
        with pytest.raises(hpke.Refused):
            hpke.open_sealed(*bad)


def test_an_envelope_holds_for_its_purpose_and_key_alone():
    key = pki.new_key()
    assert dsse.pae("a/b", b"hello") == b"DSSEv1 3 a/b 5 hello"
    envelope = dsse.sign(b"payload", "node-spec", key)
    assert dsse.verify(envelope, "node-spec", [pki.pin(key)]) == b"payload"
    for purpose, pins in (("trust-bundle", [pki.pin(key)]), ("node-spec", [pki.pin(pki.new_key())])):
        with pytest.raises(dsse.Refused):
            dsse.verify(envelope, purpose, pins)


def test_a_node_joins_and_the_same_key_joins_again(peer):
    token = peer.join_service.create_token()
    node = node_of(peer)
    first = node.join(token)
    again = node.join(token)
    assert peer.join_service.outcomes == ["joined", "again"]
    assert list(first.certificate_chain) == list(again.certificate_chain)
    assert first.csr_sha256 != again.csr_sha256, "ECDSA's nonce makes every CSR its own"
    assert peer.frontend.connections[-1]["certificate"] is None


def test_another_key_is_refused_and_recorded(peer):
    token = peer.join_service.create_token()
    node_of(peer).join(token)
    with pytest.raises(grpc.RpcError) as error:
        node_of(peer).join(token)
    assert error.value.code() == grpc.StatusCode.PERMISSION_DENIED
    assert "another key" in error.value.details()
    assert peer.join_service.token(token).attempts_refused == 1


@pytest.mark.parametrize(
    "changes, code",
    [
        ({"role": 9}, "INVALID_ARGUMENT"),
        ({"csr": b"not a csr"}, "INVALID_ARGUMENT"),
        ({"attestor": "hearsay"}, "INVALID_ARGUMENT"),
        ({"role": 2}, "PERMISSION_DENIED"),
        ({"site": "elsewhere"}, "PERMISSION_DENIED"),
        ({"claims": protos.HardwareClaims(hostname="x" * 257)}, "INVALID_ARGUMENT"),
        ({"claims": protos.HardwareClaims(macs=["x"] * 65)}, "INVALID_ARGUMENT"),
    ],
)
def test_a_request_that_does_not_fit_is_refused_by_name(peer, changes, code):
    node = node_of(peer)
    with pytest.raises(grpc.RpcError) as error:
        node.call_join(node.request(peer.join_service.create_token(), **changes))
    assert error.value.code().name == code


def test_a_token_sealed_for_another_csr_does_not_open(peer):
    node = node_of(peer)
    one, two = (node.request(peer.join_service.create_token()) for _ in range(2))
    one.sealed_token.CopyFrom(two.sealed_token)
    with pytest.raises(grpc.RpcError) as error:
        node.call_join(one)
    assert error.value.code() == grpc.StatusCode.UNAUTHENTICATED


REFUSED_ANYHOW = set(answers.REFUSED) - {
    # Checks that this small node leaves out; bcd does not.
    "expired leaf",
    "leaf expired at the server's time",
    "leaf not valid yet",
    "chain of nine certificates",
    "certificate over 16 KiB in the chain",
    "leaf with bytes after it",
}


@pytest.mark.parametrize("name", sorted(REFUSED_ANYHOW))
def test_each_wrong_answer_is_wrong(peer, name):
    peer.faults.answer = answers.REFUSED[name]
    with pytest.raises(Exception) as error:
        node_of(peer).join(peer.join_service.create_token())
    assert not isinstance(error.value, grpc.RpcError), "the fault must reach the node, not break the peer"


@pytest.mark.parametrize("name", sorted(answers.REFUSED))
def test_each_wrong_answer_leaves_the_peer_well(peer, name):
    """The fault function runs, its answer decodes, and it differs from the honest one."""
    node = node_of(peer)
    request = node.request(peer.join_service.create_token())
    peer.faults.answer = answers.REFUSED[name]
    wrong = node.call_join(request)
    assert wrong != peer.faults
    peer.faults.answer = None
    node.verify(node.call_join(request).signed, request)


@pytest.mark.parametrize("name", sorted(answers.ACCEPTED))
def test_each_odd_answer_is_right(peer, name):
    peer.faults.answer = answers.ACCEPTED[name]
    assert node_of(peer).join(peer.join_service.create_token()).node_id


@pytest.mark.parametrize("name", frontend.SERVING_REFUSED)
def test_no_wrong_serving_certificate_is_taken(peer, name):
    peer.faults.serving = name
    with pytest.raises((grpc.RpcError, Refused)):
        node_of(peer).join(peer.join_service.create_token())
    assert peer.join_service.outcomes == []


@pytest.mark.parametrize("fault", ["lost", "cut", "rst", "goaway", "compressed", "length", "no-trailers", "silent", "garbage", "oversize", "headers"])
def test_a_spoiled_answer_is_an_error_and_the_token_still_works(peer, fault):
    token = peer.join_service.create_token()
    node = node_of(peer)
    peer.faults.replies.append(fault)
    channel = node.channel(False, extra=[("grpc.enable_retries", 0), ("grpc.max_receive_message_length", 1 << 20)])
    with pytest.raises(grpc.RpcError):
        node.call_join(node.request(token), timeout=1, channel=channel)
    assert node.join(token).node_id
    assert peer.join_service.outcomes == ["joined", "again"]


@pytest.mark.parametrize("fault", ["close", "reset", "plain", "tls-close", "tls-garbage"])
def test_a_broken_connection_is_an_error(peer, fault):
    peer.faults.connections += [None, fault] * 5
    with pytest.raises((grpc.RpcError, OSError)):
        node = node_of(peer)
        channel = node.channel(False, extra=[("grpc.initial_reconnect_backoff_ms", 60_000)])
        node.call_join(node.request(peer.join_service.create_token()), timeout=2, channel=channel)
    assert peer.frontend.connections[1]["fault"] == fault
    assert peer.join_service.outcomes == []


# ---- sessions -------------------------------------------------------------------------------


def joined(peer) -> Node:
    node = node_of(peer)
    node.join(peer.join_service.create_token())
    return node


def test_a_session_is_welcomed_beats_and_ends_well(peer):
    session = joined(peer).session()
    welcome = session.receive().welcome
    assert welcome.protocol_version == 1 and pki.is_id(welcome.session_id, "sess")
    session.heartbeat(1)
    assert session.receive().heartbeat.sequence == 1
    assert peer.wait_session().hello.daemon_version == "peer-node"
    session.half_close()
    assert session.receive() == grpc.StatusCode.OK
    peer.wait_for(lambda: peer.sessions[-1].ended == "OK")
    session.close()


def test_a_session_needs_the_certificate_of_its_node(peer):
    node = joined(peer)
    session = node.session(with_certificate=False)
    assert session.receive() == grpc.StatusCode.UNAUTHENTICATED
    session.close()
    hello = protos.NodeFrame(hello=protos.Hello(node_id=pki.ulid("node"), protocol_versions=[1]))
    session = node.session(hello=hello)
    assert session.receive() == grpc.StatusCode.PERMISSION_DENIED
    session.close()
    peer.join_service.nodes[node.result.node_id].deleted = True
    session = node.session()
    assert session.receive() == grpc.StatusCode.PERMISSION_DENIED
    session.close()


def test_a_silent_node_is_dropped_after_two_intervals(peer):
    peer.faults.heartbeat_interval_ms = 200
    session = joined(peer).session()
    session.receive()
    assert session.receive(2) == grpc.StatusCode.DEADLINE_EXCEEDED
    session.close()


def test_a_second_session_replaces_the_first(peer):
    node = joined(peer)
    one = node.session()
    one.receive()
    two = node.session()
    assert two.receive().WhichOneof("kind") == "welcome"
    assert one.receive() == grpc.StatusCode.ABORTED
    one.close()
    two.close()


def test_a_first_frame_that_is_not_hello_is_refused(peer):
    node = joined(peer)
    session = node.session(hello=protos.NodeFrame(heartbeat=protos.Heartbeat(sequence=1)))
    assert session.receive() == grpc.StatusCode.INVALID_ARGUMENT
    session.close()


def test_a_node_without_a_common_version_must_upgrade(peer):
    node = joined(peer)
    hello = protos.NodeFrame(hello=protos.Hello(node_id=node.result.node_id, protocol_versions=[7, 8]))
    session = node.session(hello=hello)
    welcome = session.receive().welcome
    assert welcome.upgrade_required and welcome.protocol_version == 0
    session.close()


def test_the_program_serves_a_node_from_the_files_it_writes(tmp_path):
    import json
    import pathlib
    import subprocess
    import sys
    import tomllib

    command = [sys.executable, "-m", "peer", "--dir", tmp_path / "fleet"]
    where = pathlib.Path(__file__).resolve().parents[1]
    with subprocess.Popen(command, cwd=where, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout.readline().startswith("listening on 127.0.0.1:")
            assert program.stdout.readline().startswith("bcd join --config ")
            config = tomllib.loads((tmp_path / "fleet" / "config.toml").read_text())
            token = tmp_path / "fleet" / "token"
            assert token.stat().st_mode & 0o777 == 0o600
            node = Node(config, json.loads((tmp_path / "fleet" / "join-encryption.jwk").read_text()))
            assert node.join(token.read_text().strip()).node_id
        finally:
            program.terminate()
