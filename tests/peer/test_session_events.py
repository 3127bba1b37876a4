"""What a node tells by events, and what it keeps of specs: docs/protocol.md 6 against a second gateway."""

import json
import re
import time

import pytest

from . import pki, protos

STATES = protos.SectionState


def log(machine):
    return [json.loads(line) for line in machine.log.read_text().splitlines() if line.startswith("{")]


def spec(session, sections, generation):
    """A spec whose sections are (name, body) pairs."""
    from . import dsse

    message = protos.NodeSpec(node_id=session.node_id, generation=generation)
    for name, body in sections:
        message.sections.add(name=name, body=body)
    key = session.gateway.join_service.signing_key
    session.send(protos.GatewayFrame(spec=dsse.sign(message.SerializeToString(), "node-spec", key)))


def level(name):
    return ("log", protos.LogSection(level=name).SerializeToString())


def statuses(session):
    return [(s.generation, s.section, STATES.Name(s.state)[len("SECTION_STATE_"):], s.reason)
            for s in session.told("section_status")]


def restart(peer, machine):
    sessions = len(peer.sessions)
    machine.kill()
    machine.start()
    return peer.wait_session(sessions + 1)


def test_hello_names_the_journal_and_a_restart_goes_on_with_it(peer, node):
    first = peer.sessions[-1]
    assert len(first.hello.journal_id) == 16
    spec(first, [("host", b"")], 3)
    peer.wait_for(lambda: statuses(first), what="a status")
    position = peer.session_service.journal(first).position
    assert position >= 1
    second = restart(peer, node)
    assert second.hello.journal_id == first.hello.journal_id
    assert second.hello.journal_position == position
    assert second.hello.spec_generation == 3
    time.sleep(0.5)
    assert second.of_kind("event") == [], "nothing is told twice"


def test_a_log_section_changes_the_level_and_holds_over_a_restart(peer, node):
    session = peer.sessions[-1]
    spec(session, [level("error"), ("later", b"x")], 1)
    peer.wait_for(lambda: len(statuses(session)) == 2, what="two statuses")
    assert statuses(session) == [(1, "log", "APPLIED", ""), (1, "later", "UNSUPPORTED", "SectionUnsupported")]
    lines = len(log(node))
    peer.frontend.drop_connections()  # which is said at level warn
    session = peer.wait_session(2)
    assert len(log(node)) == lines, "level error says no more"
    session = restart(peer, node)
    lines = len(log(node))
    spec(session, [level("")], 2)
    peer.wait_for(lambda: statuses(session), what="a status")
    peer.frontend.drop_connections()
    session = peer.wait_session(4)
    assert [e["event"] for e in log(node)[lines:]].count("session.lost") == 1
    # A section that is gone is let go of, and its last report with it.
    spec(session, [], 3)
    spec(session, [level("")], 4)
    peer.wait_for(lambda: (4, "log", "APPLIED", "") in statuses(session), what="the status of generation 4")


def test_an_invalid_section_fails_alone_and_says_why(peer, node):
    session = peer.sessions[-1]
    for generation, body in enumerate([protos.LogSection(level="loud").SerializeToString(), b"\xff"], 1):
        spec(session, [("log", body), ("host", b"")], generation)
        peer.wait_for(lambda: len(statuses(session)) == 2 * generation, what="two statuses")
        assert statuses(session)[-2:] == [(generation, "log", "FAILED", "InvalidSection"),
                                          (generation, "host", "UNSUPPORTED", "SectionUnsupported")]
    assert "loud" in session.told("section_status")[0].message


def test_a_spec_that_comes_again_is_told_once_and_an_older_one_is_dropped(peer, node):
    session = peer.sessions[-1]
    for generation in [5, 5, 4, 5, 6]:
        spec(session, [("host", b"")], generation)
    peer.wait_for(lambda: (6, "host", "UNSUPPORTED", "SectionUnsupported") in statuses(session), what="generation 6")
    assert [s[0] for s in statuses(session)] in ([5, 6], [6])
    text = node.wait_log("spec.dropped")
    assert re.search("older than (the one held|one that is being stored)", text)
    # The newest is on the disk before anything is told of it.
    assert restart(peer, node).hello.spec_generation == 6


def test_a_spec_with_a_section_twice_is_dropped(peer, node):
    session = peer.sessions[-1]
    spec(session, [("log", b""), ("log", b"")], 9)
    node.wait_log("spec.dropped")
    assert statuses(session) == []


def test_events_that_are_not_acknowledged_are_told_again_in_order(peer, node):
    peer.faults.store_events = False
    first = peer.sessions[-1]
    spec(first, [(f"s{n:03}", b"") for n in range(200)], 1)
    # No more than the bound goes out without an acknowledgement.
    stored = peer.session_service.journal(first).position
    waiting = lambda: [e for e in first.of_kind("event") if e.sequence > stored]
    peer.wait_for(lambda: len(waiting()) >= 64, what="64 events")
    time.sleep(0.5)
    assert len(waiting()) == 64
    beats = len(first.heartbeats)
    peer.wait_for(lambda: len(first.heartbeats) > beats + 1, what="heartbeats to go on")
    peer.faults.store_events = True
    peer.frontend.drop_connections()
    second = peer.wait_session(2)
    peer.wait_for(lambda: len(second.told("section_status")) == 200, what="all 200")
    sequences = [e.sequence for e in second.of_kind("event")]
    assert sequences == list(range(sequences[0], sequences[0] + len(sequences)))


def test_a_drain_loses_no_event(peer, node):
    first = peer.sessions[-1]
    spec(first, [(f"s{n:03}", b"") for n in range(100)], 1)
    first.drain(after_ms=1)
    second = peer.wait_session(2)
    spec(second, [("after", b"")], 2)
    journal = peer.session_service.journal(second)
    peer.wait_for(lambda: [e for e in journal.events if e.section_status.section == "after"], what="the last event")
    told = [e.section_status.section for e in journal.events if e.WhichOneof("body") == "section_status"]
    assert told == [f"s{n:03}" for n in range(100)] + ["after"]
    assert [e.sequence for e in journal.events] == list(range(1, len(journal.events) + 1))


def test_an_acknowledgement_beyond_what_was_sent_ends_the_session(peer, node):
    first = peer.sessions[-1]
    first.ack(1 << 40)
    peer.wait_session(2)
    assert "only those up to" in node.wait_log("session.lost")


def test_a_control_plane_that_knows_more_than_was_written_gets_a_new_journal(peer, node):
    first = peer.sessions[-1]
    peer.faults.store_events = False
    spec(first, [("kept", b"")], 2)
    peer.wait_for(lambda: statuses(first), what="a status")
    peer.faults.store_events = True
    peer.faults.resume_position = 1000
    peer.frontend.drop_connections()
    node.wait_log("the disk went back in time")
    peer.faults.resume_position = None
    session = peer.wait_for(
        lambda: next((s for s in peer.sessions if s.hello.journal_id != first.hello.journal_id), None), 20, "a new journal")
    peer.wait_for(lambda: statuses(session), what="the status, carried over")
    assert statuses(session) == statuses(first)
    assert session.hello.spec_generation == 2


def test_a_control_plane_that_lost_events_is_told_which(peer, node):
    first = peer.sessions[-1]
    spec(first, [("a", b""), ("b", b"")], 1)
    peer.wait_for(lambda: len(statuses(first)) == 2, what="two statuses")
    journal = peer.session_service.journal(first)
    peer.wait_for(lambda: journal.position >= 2, what="the events to be stored")
    time.sleep(0.3)
    last, journal.position, journal.events = journal.position, 0, []  # restored from an old backup
    peer.frontend.drop_connections()
    second = peer.wait_session(2)
    (gap,) = peer.wait_for(lambda: second.told("events_dropped"), what="the gap to be named")
    assert (gap.first, gap.last, gap.count) == (1, last, last)


def test_a_node_that_must_be_upgraded_takes_nothing_else(peer, machine):
    machine.join_well()
    peer.faults.welcome = "upgrade"
    machine.start()
    session = peer.wait_session()
    spec(session, [level("error")], 7)
    command = session.send_command("node.facts")
    (update,) = peer.wait_for(lambda: session.told("command_update"), what="an answer to the command")
    assert (update.id, update.reason) == (command, "UpgradeRequired")
    assert update.state == protos.CommandState.Value("COMMAND_STATE_UNSUPPORTED")
    machine.wait_log("spec.not_applied")
    assert statuses(session) == []
    peer.faults.welcome = "good"
    peer.frontend.drop_connections()
    assert peer.wait_session(2).hello.spec_generation == 0


@pytest.mark.parametrize("damage", ["other node", "garbage"])
def test_a_journal_that_is_not_this_nodes_is_refused_and_a_damaged_one_set_aside(peer, machine, make_machine, damage):
    machine.join_well()
    machine.start()
    session = peer.wait_session()
    spec(session, [("host", b"")], 1)
    peer.wait_for(lambda: statuses(session), what="a status")
    machine.terminate()
    if damage == "other node":
        other = make_machine()
        other.join_well()
        (other.data / "journal.db").write_bytes((machine.data / "journal.db").read_bytes())
        (other.data / "journal.db").chmod(0o600)
        other.start()
        assert other.process.wait(10) == 1
        expected = f"the journal belongs to node `{session.node_id}`, not `{other.identity()['node_id']}`"
        assert expected in other.log.read_text()
        return
    (machine.data / "journal.db").write_bytes(b"\xa5" * 10_000)
    machine.start()
    again = peer.wait_session(2)
    assert again.hello.journal_id != session.hello.journal_id
    (told,) = peer.wait_for(lambda: again.told("journal_damaged"), what="the damage to be told")
    assert (machine.data / told.kept_as).read_bytes() == b"\xa5" * 10_000
