"""bcd holds a session against the peer, and survives what the peer does in it."""

import re
import time

import grpc
import pytest

from . import pki, protos
from .machine import DEBUG


def test_a_session_opens_with_hello_and_beats(peer, node):
    identity = node.identity()
    session = peer.sessions[-1]
    hello = session.hello
    assert hello.node_id == identity["node_id"]
    assert list(hello.protocol_versions) == [1]
    assert hello.daemon_version and len(hello.boot_id) == 36
    peer.wait_for(lambda: len(session.heartbeats) >= 3, what="three heartbeats")
    assert [h.sequence for h in session.heartbeats[:3]] == [1, 2, 3]
    assert session.times[0] - session.opened < 1, "the first heartbeat comes at once"
    assert 0.8 < session.times[2] - session.times[1] < 1.4, "then one an interval"
    assert abs(session.heartbeats[0].time_ms - pki.now_ms()) < 60_000
    assert len(peer.sessions) == 1


def test_sigterm_ends_the_session_cleanly(peer, node):
    assert node.terminate() == 0
    session = peer.sessions[-1]
    peer.wait_for(lambda: session.ended, what="the session to end")
    assert session.half_closed and session.ended == "OK"
    assert "panicked" not in node.log.read_text()


def test_sections_and_commands_not_known_are_answered_unsupported(peer, node):
    session = peer.sessions[-1]
    session.send_spec(["host", "a-section-of-the-future"], generation=7)
    command = session.send_command("future.command")
    peer.wait_for(lambda: len(session.told("section_status")) >= 2, what="a status for each section")
    for status, name in zip(session.told("section_status"), ["host", "a-section-of-the-future"]):
        assert (status.generation, status.section) == (7, name)
        assert status.state == protos.SectionState.Value("SECTION_STATE_UNSUPPORTED")
        assert status.reason == "SectionUnsupported"
    (update,) = peer.wait_for(lambda: session.told("command_update"), what="an answer to the command")
    assert update.id == command and update.state == protos.CommandState.Value("COMMAND_STATE_UNSUPPORTED")
    assert len(peer.sessions) == 1


@pytest.mark.parametrize(
    "spoiled",
    [{"key": pki.new_key()}, {"purpose": "trust-bundle"}, {"node_id": pki.ulid("node")}],
    ids=["another signer", "another purpose", "another node"],
)
def test_a_spec_that_does_not_hold_is_dropped_and_the_session_goes_on(peer, node, spoiled):
    session = peer.sessions[-1]
    session.send_spec(["bad"], generation=9, **spoiled)
    session.send_spec(["good"], generation=8)
    peer.wait_for(lambda: session.told("section_status"), what="a status for the good spec")
    assert [s.section for s in session.told("section_status")] == ["good"]
    node.wait_log("spec")
    assert len(peer.sessions) == 1


def test_frames_not_known_and_second_welcomes_are_skipped(peer, node):
    session = peer.sessions[-1]
    session.send(b"\xc2\x3e\x02hi")  # field 1000
    session.send(b"")  # no kind at all
    session.send(protos.GatewayFrame(welcome=protos.Welcome(protocol_version=1)))
    session.send_spec(["after"])
    peer.wait_for(lambda: session.told("section_status"), what="the frames after to be read")
    assert len(peer.sessions) == 1


def test_a_node_that_is_drained_opens_a_new_session_and_then_ends_the_old(peer, node):
    first = peer.sessions[-1]
    # A gateway of this protocol replaces the older session; a draining one has lost its say.
    first.drain(after_ms=200)
    second = peer.wait_session(2)
    assert second is not first and second.hello.node_id == first.node_id
    peer.wait_for(lambda: first.ended, what="the old session to end")
    beats = len(second.heartbeats)
    peer.wait_for(lambda: len(second.heartbeats) > beats, what="the new session to go on")
    assert len(peer.sessions) == 2


def asked_of_each_session(peer, monkeypatch, *frames):
    """Every session hears these right after its Welcome."""
    welcome = peer.session_service._welcome

    def more(session):
        yield from welcome(session)
        yield from (frame.SerializeToString() for frame in frames)

    monkeypatch.setattr(peer.session_service, "_welcome", more)


def test_a_gateway_that_drains_every_session_has_no_node_come_in_a_circle(peer, machine, monkeypatch):
    machine.join_well()
    asked_of_each_session(peer, monkeypatch, protos.GatewayFrame(drain=protos.Drain(reconnect_after_ms=0, reason="always")))
    machine.start()
    peer.wait_session(2)
    time.sleep(3)
    # Half a second apart at least: as after a session that was lost.
    assert len(peer.sessions) <= 9, f"{len(peer.sessions)} sessions in three seconds"


def test_a_gateway_that_asks_for_renewals_without_end_gets_one_now_and_then(peer, node):
    session = peer.sessions[-1]
    before = len(peer.frontend.connections)
    for _ in range(100):
        session.send(protos.GatewayFrame(renew=protos.session.RenewNow(within_ms=0)))
        time.sleep(0.01)
    node.wait_log("identity.renewal_failed")
    time.sleep(1)
    assert len(peer.frontend.connections) == before + 1


@pytest.mark.parametrize("code", ["OK", "UNAVAILABLE", "INTERNAL", "ABORTED"])
def test_a_session_that_the_gateway_ends_is_opened_again(peer, node, code):
    peer.sessions[-1].end(grpc.StatusCode[code], "said by the peer")
    peer.wait_session(2)


def test_a_connection_that_is_reset_is_opened_again(peer, node):
    peer.frontend.drop_connections()
    peer.wait_session(2)


def test_a_gateway_that_falls_silent_is_left_after_two_intervals(peer, machine):
    machine.join_well()
    peer.faults.answer_heartbeats = False
    machine.start()
    first = peer.wait_session()
    peer.wait_for(lambda: first.ended, what="the node to end the silent session")
    peer.faults.answer_heartbeats = True
    assert 1.5 < time.monotonic() - first.opened < 4
    second = peer.wait_session(2)
    peer.wait_for(lambda: len(second.heartbeats) >= 2, what="the new session to beat")


@pytest.mark.parametrize("how", ["garbage", "not-first", "other-version", "oversize"])
def test_a_wrong_welcome_ends_the_session_and_the_next_is_well(peer, machine, how):
    machine.join_well()
    peer.faults.welcome = how
    machine.start()
    peer.wait_for(lambda: peer.sessions and peer.sessions[0].ended, what="the node to end the session")
    assert peer.sessions[0].heartbeats == []
    peer.faults.welcome = "good"
    peer.wait_for(lambda: peer.sessions[-1].state == "connected", 20, "a session after it")


def test_a_late_welcome_is_waited_for_and_a_second_is_skipped(peer, machine):
    machine.join_well()
    peer.faults.welcome = "late"
    machine.start()
    peer.wait_session()
    peer.faults.welcome = "twice"
    peer.sessions[-1].end()
    session = peer.wait_session(2)
    peer.wait_for(lambda: len(session.heartbeats) >= 2, what="two heartbeats")
    assert len(peer.sessions) == 2


@pytest.mark.slow
def test_a_gateway_that_never_welcomes_is_left_after_ten_seconds(peer, machine):
    machine.join_well()
    peer.faults.welcome = "none"
    peer.faults.heartbeat_interval_ms = 60_000
    machine.start()
    first = peer.wait_session(state="adopting")
    peer.wait_for(lambda: first.ended, 15, "the node to give up")
    assert 9 < time.monotonic() - first.opened < 13
    machine.wait_log("welcome")


def test_a_node_told_to_upgrade_says_so_and_stays(peer, machine):
    machine.join_well()
    peer.faults.welcome = "upgrade"
    machine.start()
    session = peer.wait_session()
    machine.wait_log("upgrade")
    peer.wait_for(lambda: len(session.heartbeats) >= 2, what="heartbeats while waiting for the upgrade")
    assert len(peer.sessions) == 1


@pytest.mark.parametrize("code", ["PERMISSION_DENIED", "UNAUTHENTICATED"])
def test_a_node_that_is_refused_says_so_and_does_not_hammer(peer, machine, code):
    machine.join_well()
    peer.faults.session_status = [(grpc.StatusCode[code], "this node was deleted")] * 9
    machine.start()
    machine.wait_log("this node was deleted")
    time.sleep(2)
    assert len(peer.session_service.refused) == 1
    assert machine.process.poll() is None, "the node waits for an operator; it does not end"
    assert machine.terminate() == 0


@pytest.mark.parametrize("name, cause", [("other-ca", "pin|CA"), ("expired", "expired")])
def test_a_gateway_whose_certificate_does_not_hold_gets_no_session(peer, machine, name, cause):
    machine.join_well()
    peer.faults.serving = name
    peer.frontend.connections.clear()
    machine.start()
    said = machine.wait_log(cause)
    assert not DEBUG.search(said), f"the log shows Rust's own form of a value: {said}"
    time.sleep(1)
    assert len(peer.frontend.connections) == 1 and peer.sessions == []
    assert machine.terminate() == 0


def test_a_gateway_that_comes_back_is_found(peer, machine):
    machine.join_well()
    peer.faults.connections = ["close", "reset"]
    machine.start()
    peer.wait_session()


def http2(kind: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, 0]) + stream.to_bytes(4, "big") + payload


def test_a_goaway_moves_the_session(peer, node):
    first = peer.sessions[-1]
    peer.frontend.inject(http2(7, 0, (2**31 - 1).to_bytes(4, "big") + bytes(4)))
    second = peer.wait_session(2)
    peer.wait_for(lambda: first.ended, what="the old session to end")
    peer.wait_for(lambda: len(second.heartbeats) >= 2, what="the new session to go on")
    assert "GOAWAY" in node.wait_log("session.leaving")
    assert "session.lost" not in node.log.read_text()


@pytest.mark.parametrize("code, word", [(0, "error"), (2, "INTERNAL|internal"), (8, "cancel|CANCEL|no longer needed")])
def test_a_reset_stream_is_said_and_opened_again(peer, node, code, word):
    peer.frontend.inject(http2(3, 1, code.to_bytes(4, "big")))
    peer.wait_session(2)
    (line,) = [line for line in node.wait_log("session.lost").splitlines() if "session.lost" in line]
    assert re.search(word, line), line
