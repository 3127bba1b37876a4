"""Events from a node in Python: what the gateway stores, acknowledges, and refuses."""

import json
import random
import threading
import time

import grpc
import pytest
from lab import wait_for

from . import protos
from .node import Journal, NodeSession, Refused
from .test_python_node import node_of


@pytest.fixture
def node(dev):
    node = node_of(dev)
    node.join(dev.token())
    return node


def status(section="log", **fields):
    return protos.SectionStatus(section=section, generation=1, **fields)


def test_an_event_is_acknowledged_once_it_is_stored_and_not_asked_for_again(dev, node):
    journal = Journal()
    session = node.session(journal=journal)
    assert session.welcome().resume_position == 0
    for _ in range(3):
        session.event(journal.append(section_status=status()))
    session.acknowledged(3)
    session.close()
    dev.kill()
    dev.start()
    session = node.session(journal=journal)
    assert session.welcome().resume_position == 3
    session.event(journal.append())
    session.acknowledged(4)
    session.close()


def test_a_replay_is_acknowledged_again_and_another_journal_begins_anew(dev, node):
    journal = Journal()
    events = [journal.append(section_status=status()) for _ in range(4)]
    session = node.session(journal=journal)
    session.welcome()
    session.acknowledged(4)
    session.close()
    session = node.session(journal=journal)
    assert session.receive().welcome.resume_position == 4
    session.event(events[2])
    assert session.wait("ack").position == 3
    session.event(events[3])
    session.event(journal.append())
    session.acknowledged(5)
    session.close()
    session = node.session(journal=Journal())
    assert session.receive().welcome.resume_position == 0
    session.close()


@pytest.mark.parametrize(
    "sequences, code, says",
    [
        ([0], "INVALID_ARGUMENT", "sequence"),
        ([1 << 63], "INVALID_ARGUMENT", "sequence"),
        ([1, 3], "DATA_LOSS", "event 3 came after event 1"),
        ([1, 2, 2], "OUT_OF_RANGE", "event 2 came after event 2"),
        ([1, 2, 1], "OUT_OF_RANGE", "event 1 came after event 2"),
    ],
)
def test_events_out_of_order_end_the_session_with_a_status_of_their_own(dev, node, sequences, code, says):
    session = node.session(journal=Journal())
    session.receive()
    for sequence in sequences:
        session.event(protos.Event(sequence=sequence))
    ended = []
    while not isinstance(frame := session.receive(), grpc.StatusCode):
        ended.append(frame)
    assert frame.name == code, session.details
    assert says in session.details
    session.close()


def test_events_without_a_journal_or_that_are_none_end_the_session(dev, node):
    session = node.session()
    session.receive()
    session.event(protos.Event(sequence=1))
    assert session.ended() == grpc.StatusCode.INVALID_ARGUMENT and "journal" in session.details
    session.close()
    for junk in (b"\x2a\x02\x08", b"\x2a\x05\xff\xff\xff\xff\xff", b"\x2a\x03\x08\x01\x1a"):
        session = node.session(journal=Journal())
        session.receive()
        session.send(junk)
        assert session.ended() == grpc.StatusCode.INVALID_ARGUMENT, junk
        assert "decode" in session.details
        session.close()
    for wrong in (b"short", b"x" * 17):
        session = node.session(journal_id=wrong)
        assert session.ended() == grpc.StatusCode.INVALID_ARGUMENT and "journal_id" in session.details
        session.close()


def test_an_oversized_event_is_refused_before_it_is_taken(dev, node):
    session = node.session(journal=Journal())
    session.receive()
    session.event(protos.Event(sequence=1, section_status=status(message="x" * (1 << 20))))
    assert session.ended() == grpc.StatusCode.RESOURCE_EXHAUSTED
    session.close()


def test_the_largest_event_is_stored(dev, node):
    journal = Journal()
    session = node.session(journal=journal)
    session.welcome()
    for _ in range(3):
        session.event(journal.append(section_status=status(message="x" * ((1 << 20) - 100))))
    session.acknowledged(3)
    session.close()


def test_ranges_that_the_node_dropped_are_named_not_refused(dev, node):
    journal = Journal()
    journal.position = 12
    session = node.session(journal=journal)
    session.receive()
    session.event(protos.Event(sequence=1))
    session.event(protos.Event(sequence=9, events_dropped=protos.EventsDropped(first=2, last=9, count=8)))
    session.event(protos.Event(sequence=10))
    session.acknowledged(10)
    session.event(protos.Event(sequence=12, events_dropped=protos.EventsDropped(first=12, last=12, count=1)))
    assert session.ended() == grpc.StatusCode.DATA_LOSS
    session.close()


def test_hundreds_of_events_at_once_are_stored_in_order_within_bounds(dev, node):
    journal = Journal()
    session = node.session(journal=journal)
    session.welcome()
    for index in range(800):
        session.event(journal.append(section_status=status(message=str(index) * 50)))
    session.acknowledged(800, timeout=30)
    assert not journal.events
    session.close()


def test_random_frames_from_hostile_nodes_never_stop_the_gateway(dev, node):
    """Sessions that say anything at all, in any order: each ends with a status or goes on, and an honest
    node beside them is served."""
    chance = random.Random(0x686F7374)

    def anything(journal):
        kinds = [
            lambda: protos.NodeFrame(hello=protos.Hello(node_id="x" * chance.randrange(300))),
            lambda: protos.NodeFrame(heartbeat=protos.Heartbeat(sequence=chance.randrange(1 << 64))),
            lambda: protos.NodeFrame(event=protos.Event(sequence=chance.choice([0, 1, 2, 3, 1 << 62, (1 << 64) - 1]))),
            lambda: protos.NodeFrame(event=journal.append(section_status=status())),
            lambda: protos.NodeFrame(event=journal.append(command_update=protos.CommandUpdate(
                id=chance.choice(["", "cmd_x", "cmd_" + "0" * 26]), state=chance.randrange(9), result=b"\xff"))),
            lambda: protos.NodeFrame(event=journal.append(facts=protos.Facts(hostname="x" * chance.randrange(2000)))),
            lambda: protos.NodeFrame(command_progress=protos.CommandProgress(id="cmd_" + "0" * 26, percent=1 << 31)),
            lambda: protos.NodeFrame(output=protos.OutputChunk(
                command_id="cmd_" + "0" * 26, offset=chance.randrange(1 << 64), data=b"x" * chance.randrange(70_000),
                size=chance.randrange(1 << 64), gone=chance.random() < 0.5)),
            lambda: protos.NodeFrame(),
            lambda: chance.randbytes(chance.randrange(60)),
        ]
        return chance.choice(kinds)()

    codes = set()
    for _ in range(40):
        journal = Journal()
        session = node.session(journal=journal)
        session.receive()
        for _ in range(chance.randrange(1, 30)):
            session.send(anything(journal))
        session.half_close()
        while not isinstance(frame := session.receive(), grpc.StatusCode):
            pass
        codes.add(frame.name)
        session.close()
    assert codes <= {"OK", "INVALID_ARGUMENT", "OUT_OF_RANGE", "DATA_LOSS"}, codes
    journal = Journal()
    session = node.session(journal=journal)
    session.welcome()
    session.event(journal.append())
    session.acknowledged(1)
    session.close()


def test_kills_of_the_control_plane_lose_no_acknowledged_event(dev):
    """Nodes send events while the control plane is killed at random moments. An acknowledged event is never
    asked for again, one that is not is sent again, and none is stored twice."""
    chance = random.Random(0x6B696C6C)
    nodes = []
    for _ in range(3):
        node = node_of(dev)
        node.join(dev.token())
        nodes.append((node, Journal()))

    def work(node, journal, stop):
        while not stop.is_set():
            session = None
            try:
                session = NodeSession(node, journal=journal)
                resume = session.welcome().resume_position
                assert journal.acknowledged <= resume <= journal.position, "an acknowledged event is lost"
                while not stop.is_set():
                    session.event(journal.append(section_status=status(message=f"event {journal.position + 1}")))
                    session.acknowledged(journal.position, timeout=2)
            except (Refused, grpc.RpcError, OSError, Exception) as error:
                if isinstance(error, AssertionError):
                    failures.append(error)
                time.sleep(0.02)
            finally:
                if session:
                    session.close()

    failures = []
    for _ in range(6):
        stop = threading.Event()
        workers = [threading.Thread(target=work, args=(node, journal, stop)) for node, journal in nodes]
        for worker in workers:
            worker.start()
        time.sleep(chance.uniform(0.2, 0.8))
        dev.kill()
        stop.set()
        for worker in workers:
            worker.join()
        dev.start()
    assert not failures
    for node, journal in nodes:
        assert journal.acknowledged > 5, "hardly anything was done between the kills"
        session = node.session(journal=journal)
        assert session.welcome().resume_position >= journal.acknowledged
        if journal.position:
            wait_for("the rest to be acknowledged", lambda: not journal.events or session.wait("ack"))
        session.close()
        listed = dev.run("events", node.result.node_id, "--json", "--limit", "1000").stdout.splitlines()
        sequences = [json.loads(line)["sequence"] for line in listed]
        assert sequences == list(range(1, journal.position + 1))[-1000:], "each once, none missing"
