"""Everything the peer can do wrong in a join: bcd refuses it, says why, stores nothing, burns nothing."""

import re

import grpc
import pytest

from . import answers, frontend, pki

# What the error must say of each wrong answer.
ANSWERS = {
    "another CSR": "CSR|request",
    "no CSR digest": "CSR|request",
    "damaged signature": "sign",
    "payload changed after signing": "sign",
    "another signer": "sign",
    "another signer under the pinned keyid": "sign",
    "another signer that shows the pinned key": "sign",
    "no signature": "sign",
    "17 signatures": "sign",
    "signed for another purpose": "trust-bundle|purpose|payload",
    "purpose renamed after signing": "sign",
    "signed without the pre-authentication encoding": "sign",
    "signed garbage": "malformed|decode|parse|not a|truncated|wire",
    "neither result nor deferral": "neither|empty|no outcome|nothing",
    "role that contradicts the SPIFFE id": "role|SPIFFE",
    "role that was not asked for": "role",
    "SPIFFE id of another node": "SPIFFE",
    "SPIFFE id that the leaf does not carry": "SPIFFE|URI|name",
    "SPIFFE id that is no SPIFFE id": "SPIFFE",
    "SPIFFE id with more path": "SPIFFE",
    "node id that is a path": "node id|node_id|SPIFFE",
    "node id in capitals": "node id|node_id|SPIFFE",
    "two URI names in the leaf": "SPIFFE|URI|name",
    "no name in the leaf": "SPIFFE|URI|name",
    "leaf for another key": "key",
    "expired leaf": "expired|valid",
    "leaf expired at the server's time": "expired|valid",
    "leaf not valid yet": "not yet|valid",
    "leaf from another CA": "CA|chain|issuer",
    "leaf from another CA of the same name": "CA|chain|issuer|sign",
    "leaf from the serving CA": "CA|chain|issuer",
    "no chain": "certificate|chain",
    "chain of garbage": "certificate",
    "truncated leaf": "certificate",
    "leaf with bytes after it": "certificate",
    "chain of nine certificates": "certificate|chain",
    "certificate over 16 KiB in the chain": "certificate|chain",
    "another site": "site",
    "no trust bundle": "trust bundle",
    "trust bundle with a damaged signature": "trust.bundle",
    "trust bundle by another signer": "trust.bundle",
    "trust bundle signed for another purpose": "trust.bundle",
    "trust bundle of garbage": "trust.bundle",
    "trust bundle without node CAs": "trust.bundle|CA",
}


def test_every_wrong_answer_has_its_test():
    assert set(ANSWERS) == set(answers.REFUSED)


@pytest.mark.parametrize("name", ANSWERS)
def test_a_wrong_answer_is_refused(peer, machine, name):
    token = peer.join_service.create_token()
    peer.faults.answer = answers.REFUSED[name]
    machine.check_refused(machine.join(token), ANSWERS[name])
    assert peer.join_service.outcomes == ["joined"], "a wrong answer is not asked for again"
    peer.faults.answer = None
    machine.join_well(token)
    assert peer.join_service.outcomes == ["joined", "again"]


@pytest.mark.parametrize(
    "fault, cause",
    [
        ("garbage", "malformed|decode|parse|not a|truncated|wire"),
        ("oversize", "large|big|limit|over|MiB|bytes"),
        ("length", "large|big|limit|over|MiB|bytes"),
        ("compressed", "compress"),
        ("no-trailers", "without a status|no status"),
    ],
)
def test_an_answer_that_is_no_message_is_refused(peer, machine, fault, cause):
    token = peer.join_service.create_token()
    peer.faults.replies = [fault]
    machine.check_refused(machine.join(token), cause)
    assert peer.join_service.outcomes == ["joined"]
    machine.join_well(token)


@pytest.mark.parametrize(
    "code",
    [
        "INVALID_ARGUMENT",
        "UNAUTHENTICATED",
        "PERMISSION_DENIED",
        "FAILED_PRECONDITION",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNKNOWN",
        "DATA_LOSS",
        "CANCELLED",
    ],
)
def test_a_refusal_is_taken_at_its_word(peer, machine, code):
    token = peer.join_service.create_token()
    peer.faults.statuses = [grpc.StatusCode[code]]
    peer.faults.status_message = "the peer's own reason: überraschend 100% sure"
    machine.check_refused(machine.join(token), "the peer's own reason: überraschend 100% sure")
    assert peer.join_service.outcomes == [code], "a refusal is not asked for again"
    machine.join_well(token)


def test_a_hostile_message_does_not_reach_the_terminal_raw(peer, machine):
    token = peer.join_service.create_token()
    peer.faults.statuses = [grpc.StatusCode.PERMISSION_DENIED]
    peer.faults.status_message = "one\nbcd join: joined\r\x1b[2J\x1b]0;title\x07\u202e" + "x" * 4000
    done = machine.join(token)
    machine.check_refused(done, "one")
    assert len(done.stderr) < 3000, "a message of any length is shortened"


def test_a_token_used_by_another_machine_is_refused_and_recorded(peer, make_machine):
    token = peer.join_service.create_token()
    make_machine().join_well(token)
    second = make_machine()
    second.check_refused(second.join(token), "used by another key")
    assert peer.join_service.token(token).attempts_refused == 1
    second.join_well()


@pytest.mark.parametrize(
    "given, cause",
    [
        ({"ttl_s": -1}, "expired"),
        ({"role": "site"}, "role"),
        ({"site": "elsewhere"}, "site"),
    ],
)
def test_a_token_that_does_not_fit_is_refused(peer, machine, given, cause):
    machine.check_refused(machine.join(peer.join_service.create_token(**given)), cause)
    assert peer.join_service.outcomes == ["PERMISSION_DENIED"]


def test_a_revoked_token_and_an_unknown_one_are_refused(peer, machine):
    token = peer.join_service.create_token()
    peer.join_service.token(token).revoked = True
    machine.check_refused(machine.join(token), "revoked")
    machine.check_refused(machine.join(token[:-1] + ("A" if token[-1] != "A" else "B")), "not known")
    assert peer.join_service.outcomes == ["PERMISSION_DENIED", "UNAUTHENTICATED"]


SERVING = {
    "other-name": "name|localhost",
    "no-name": "name|localhost",
    "expired": "expired",
    "other-ca": "pin|CA",
    "other-ca-same-name": "pin|CA",
    "pinned-ca-as-decoration": "CA|chain|sign|issue",
    "pinned-ca-as-decoration-same-name": "CA|chain|sign|issue",
    "ca-missing": "CA|pin",
    "self-signed": "CA|pin",
    "node-leaf": "certificate|usage|name",
}


@pytest.mark.parametrize("name", frontend.SERVING_REFUSED)
def test_a_serving_certificate_that_does_not_hold_is_refused_before_a_word(peer, machine, name):
    token = peer.join_service.create_token()
    peer.faults.serving = name
    machine.check_refused(machine.join(token), SERVING[name])
    assert peer.join_service.requests == [] and peer.join_service.outcomes == []
    assert len(peer.frontend.connections) == 1, "pins do not heal by waiting"
    peer.faults.serving = "good"
    machine.join_well(token)


@pytest.mark.parametrize("key", ["serving_ca_spki_pin", "join_signing_key_pin", "join_encryption_key_pin"])
def test_each_wrong_pin_is_refused_and_named(peer, make_machine, key):
    machine = make_machine(**{key: pki.pin(pki.new_key())})
    token = peer.join_service.create_token()
    machine.check_refused(machine.join(token), key)
    if key != "join_signing_key_pin":
        assert peer.join_service.requests == [], "nothing is sent to whom the pins do not vouch for"
    machine.config = peer.write_node_config(machine.dir)
    machine.join_well(token)


def _gives_up(peer, machine, token, cause):
    done = machine.join(token, "--timeout", "1")
    machine.check_refused(done, cause)
    return done


def test_a_gateway_that_is_down_is_given_up_in_the_end(peer, make_machine):
    import socket

    with socket.socket() as unused:  # bound and not listening: the port refuses
        unused.bind(("127.0.0.1", 0))
        machine = make_machine(gateway_url=f"https://localhost:{unused.getsockname()[1]}")
        token = peer.join_service.create_token()
        _gives_up(peer, machine, token, "refused")
    machine.config = peer.write_node_config(machine.dir)
    machine.join_well(token)


def test_a_gateway_whose_name_is_not_known_is_given_up_in_the_end(peer, make_machine):
    machine = make_machine(gateway_url="https://gateway.invalid:443")
    _gives_up(peer, machine, peer.join_service.create_token(), "gateway.invalid")


@pytest.mark.parametrize("fault", ["close", "reset", "plain", "tls-close", "tls-garbage"])
def test_a_gateway_that_always_breaks_the_connection_is_given_up_in_the_end(peer, machine, fault):
    token = peer.join_service.create_token()
    peer.faults.connections = [fault] * 50
    _gives_up(peer, machine, token, "TLS|HTTP/2|connection|connect|closed|broke")
    assert 1 < len(peer.frontend.connections) < 12, "tried again, and not hammered"
    peer.faults.connections = []
    machine.join_well(token)


@pytest.mark.parametrize("fault", ["lost", "cut", "rst", "goaway"])
def test_an_answer_that_always_breaks_off_is_given_up_in_the_end(peer, machine, fault):
    token = peer.join_service.create_token()
    peer.faults.replies = [fault] * 50
    _gives_up(peer, machine, token, "connection|broke|answer|reset|stream")
    assert peer.join_service.outcomes[0] == "joined" and set(peer.join_service.outcomes[1:]) <= {"again"}
    peer.faults.replies = []
    machine.join_well(token)


@pytest.mark.parametrize("code", ["UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "ABORTED"])
def test_trouble_that_does_not_pass_is_given_up_with_the_last_reason(peer, machine, code):
    token = peer.join_service.create_token()
    peer.faults.statuses = [grpc.StatusCode[code]] * 50
    peer.faults.status_message = "the store is away"
    _gives_up(peer, machine, token, "the store is away")
    assert len(peer.join_service.outcomes) > 1
    peer.faults.statuses = []
    machine.join_well(token)


@pytest.mark.parametrize("serving, cause", [("tls12", "TLS|version"), ("no-alpn", "HTTP/2|h2|ALPN")])
def test_a_gateway_that_speaks_something_else_is_refused(peer, machine, serving, cause):
    token = peer.join_service.create_token()
    peer.faults.serving = serving
    _gives_up(peer, machine, token, cause)
    assert peer.join_service.requests == []
    peer.faults.serving = "good"
    machine.join_well(token)


ONLY_TLS_1_2 = "the server speaks only TLS 1.2 or older, and TLS 1.3 is needed"


def test_a_gateway_that_speaks_only_tls_1_2_is_named_as_such(peer, machine, old_gateway):
    token = peer.join_service.create_token()
    text = machine.config.read_text()
    old = re.sub(r"(?m)^gateway_url = .*$", f'gateway_url = "{old_gateway}"', text)
    machine.config.write_text(old)
    _gives_up(peer, machine, token, ONLY_TLS_1_2)
    machine.config.write_text(text)
    machine.join_well(token)
    machine.config.write_text(old)
    machine.start()
    machine.wait_log(ONLY_TLS_1_2)
