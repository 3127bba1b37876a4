"""bcd joins the peer: what it sends, what it stores, and what it tries again."""

import signal
import time

import grpc
import pytest
from cryptography import x509

from . import answers, pki, protos


def test_a_join_stores_an_identity_that_holds(peer, machine):
    token = peer.join_service.create_token(pool="gpu", site="site1")
    identity = machine.join_well(token)
    assert peer.join_service.outcomes == ["joined"]
    assert (identity["pool"], identity["site"], identity["role"]) == ("gpu", "site1", "node")


def test_a_join_sends_what_the_protocol_says(peer, machine):
    machine.join_well()
    (request,) = peer.join_service.requests
    assert request.attestor == "join-token"
    assert request.role == protos.Role.Value("ROLE_NODE")
    assert request.site == "site1"
    assert request.node_id == ""
    assert request.daemon_version
    csr = x509.load_der_x509_csr(request.csr)
    assert list(csr.subject) == [] and pki.spki(csr.public_key()) == pki.spki(machine.key())
    assert len(request.sealed_token.enc) == 65
    assert request.claims.hostname and request.claims.cpus > 0 and request.claims.memory_bytes > 0
    (connection,) = peer.frontend.connections
    assert (connection["version"], connection["alpn"], connection["sni"]) == ("TLSv1.3", "h2", "localhost")
    assert connection["certificate"] is None


def test_the_other_roles_are_asked_for_and_granted(peer, make_machine):
    for role in ("site", "ramdisk"):
        machine = make_machine()
        done = machine.join(peer.join_service.create_token(role=role), "--role", role)
        assert done.returncode == 0, done.stderr
        assert machine.check_identity()["spiffe_id"].startswith(f"spiffe://better-compute/{role}/node_")


def test_a_joined_machine_says_so_and_asks_nobody(peer, machine):
    identity = machine.join_well()
    peer.frontend.connections.clear()
    done = machine.join(None)
    assert done.returncode == 0 and f"already joined as {identity['spiffe_id']}" in done.stdout + done.stderr
    assert peer.frontend.connections == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_gateway_is_known_by_the_name_of_its_url_or_the_one_configured(peer, make_machine, host):
    make_machine(gateway_url=f"https://{host}:{peer.port}").join_well()
    make_machine(gateway_url=f"https://127.0.0.1:{peer.port}", gateway_server_name="localhost").join_well()
    assert peer.frontend.connections[-1]["sni"] == "localhost"


@pytest.mark.parametrize("name", sorted(answers.ACCEPTED))
def test_an_odd_answer_that_is_right_is_taken(peer, machine, name):
    peer.faults.answer = answers.ACCEPTED[name]
    machine.join_well()


def test_a_serving_certificate_younger_than_the_clock_is_taken(peer, machine):
    peer.faults.serving = "not-yet"
    machine.join_well()


def test_unrelated_certificates_in_the_serving_chain_are_ignored(peer, machine):
    peer.faults.serving = "ca-first"
    machine.join_well()


def test_a_deferral_is_answered_by_the_same_request(peer, machine):
    peer.faults.deferrals = 2
    started = time.monotonic()
    machine.join_well()
    assert peer.join_service.outcomes == ["deferred", "deferred", "joined"]
    first, second, third = peer.join_service.requests
    assert first == second == third
    assert time.monotonic() - started >= 2, "retry_after_ms is clamped to at least one second"


@pytest.mark.parametrize("code", ["UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "ABORTED"])
def test_passing_trouble_is_tried_again(peer, machine, code):
    peer.faults.statuses = [grpc.StatusCode[code]]
    machine.join_well()
    assert peer.join_service.outcomes == [code, "joined"]


@pytest.mark.parametrize("fault", ["lost", "cut", "rst", "goaway"])
def test_a_lost_reply_costs_nothing(peer, machine, fault):
    peer.faults.replies = [fault]
    machine.join_well()
    assert peer.join_service.outcomes == ["joined", "again"]


@pytest.mark.parametrize("fault", ["close", "reset", "plain", "tls-close", "tls-garbage"])
def test_a_broken_connection_is_tried_again(peer, machine, fault):
    peer.faults.connections = [fault]
    machine.join_well()
    assert peer.frontend.connections[0]["fault"] == fault
    assert peer.join_service.outcomes == ["joined"]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["hang", "tls-hang"])
def test_a_gateway_that_hangs_after_accept_is_given_up_and_tried_again(peer, machine, fault):
    peer.faults.connections = [fault]
    machine.join_well()
    assert peer.join_service.outcomes == ["joined"]
    waited = peer.frontend.connections[1]["at"] - peer.frontend.connections[0]["at"]
    assert 5 < waited < 31.5, f"gave up after {waited:.1f} s"


def test_a_slow_answer_is_waited_for(peer, machine):
    peer.faults.replies = ["slow"]
    peer.faults.slow_s = 1.5
    machine.join_well()
    assert peer.join_service.outcomes == ["joined"]


def test_a_join_killed_before_its_answer_joins_again_as_the_same_node(peer, machine):
    token = peer.join_service.create_token()
    peer.faults.replies = ["slow"]
    process = machine.start_join(token)
    peer.wait_for(lambda: peer.join_service.outcomes, what="the join to be processed")
    process.send_signal(signal.SIGKILL)
    process.wait(5)
    assert not (machine.data / "identity.json").exists()
    key = machine.key()
    identity = machine.join_well(token)
    assert pki.spki(machine.key()) == pki.spki(key)
    assert peer.join_service.outcomes == ["joined", "again"]
    assert list(peer.join_service.nodes)[-1] == identity["node_id"]
