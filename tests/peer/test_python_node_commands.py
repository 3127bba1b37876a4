"""Commands, specs and outputs between the operator and a node in Python."""

import hashlib
import json
import os
import random
import subprocess
import threading
import time

import grpc
import pytest
from lab import clean_env, wait_for

from . import dsse, pki, protos
from .node import Journal, Refused
from .test_python_node import node_of

STATE = protos.CommandState.Value


@pytest.fixture
def node(dev):
    node = node_of(dev)
    node.join(dev.token())
    node.id = node.result.node_id
    return node


class Session:
    """A session with a journal, welcomed; kept short in the tests."""

    def __init__(self, node, journal=None, **fields):
        self.journal = journal or Journal()
        self.session = node.session(journal=self.journal, **fields)
        self.welcomed = self.session.welcome()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.session.close()

    def report(self, command_id, state, **fields):
        update = protos.CommandUpdate(id=command_id, state=STATE(f"COMMAND_STATE_{state}"), **fields)
        self.session.event(self.journal.append(command_update=update))
        self.session.acknowledged(self.journal.position)

    def wait(self, kind, **more):
        return self.session.wait(kind, **more)

    def nothing(self, kind, seconds=0.5):
        """No frame of this kind comes."""
        with pytest.raises(Exception):
            self.session.wait(kind, timeout=seconds)


def run(dev, node, kind, *arguments):
    return dev.json("commands", "run", node.id, kind, *arguments)


def show(dev, command):
    return dev.json("commands", "show", command["id"])


def test_a_command_is_sent_at_once_and_its_result_is_shown(dev, node):
    with Session(node) as s:
        command = run(dev, node, "node.reboot", "--param", "delay_s=5", "--param", "reason=a new kernel")
        assert command["state"] in ("queued", "sent")
        got = s.wait("command")
        assert (got.id, got.kind, got.deadline_ms) == (command["id"], "node.reboot", command["deadlineMs"])
        params = protos.command.RebootParams.FromString(got.params)
        assert (params.delay_s, params.reason) == (5, "a new kernel")
        assert show(dev, command)["state"] == "sent"
        s.report(got.id, "PENDING")
        assert show(dev, command)["state"] == "pending"
        s.report(got.id, "RUNNING")
        s.session.send(protos.NodeFrame(command_progress=protos.CommandProgress(id=got.id, percent=40, message="halfway")))
        progress = wait_for("progress", lambda: show(dev, command).get("progress"))
        assert (progress["percent"], progress["message"]) == (40, "halfway")
        result = protos.command.RebootResult(boot_id_before="a", boot_id_after="b")
        s.report(got.id, "SUCCEEDED", result=result.SerializeToString())
    shown = show(dev, command)
    assert (shown["state"], shown["over"]) == ("succeeded", True)
    assert shown["result"] == {"boot_id_before": "a", "boot_id_after": "b"}
    assert "progress" not in shown
    assert "succeeded" in dev.run("commands", "list", "--node", node.id).stdout


def test_a_node_that_was_away_gets_its_commands_in_order_until_it_has_reported(dev, node):
    made = [run(dev, node, "node.facts") for _ in range(20)]
    with Session(node) as s:
        assert [s.wait("command").id for _ in made] == [c["id"] for c in made]
    journal = Journal()
    with Session(node, journal) as s:
        assert [s.wait("command").id for _ in made] == [c["id"] for c in made], "no report came: they are sent again"
        for command in made[:19]:
            s.report(command["id"], "PENDING")
    dev.kill()
    dev.start()
    with Session(node, journal) as s:
        assert s.wait("command").id == made[19]["id"]
        s.nothing("command")


def test_a_command_is_never_sent_past_its_deadline_and_has_failed_then(dev, node):
    command = run(dev, node, "node.facts", "--deadline", "1s")
    assert command["state"] == "queued"
    wait_for("the deadline", lambda: show(dev, command)["state"] == "failed")
    shown = show(dev, command)
    assert (shown["reason"], shown["over"]) == ("DeadlineExceeded", True)
    with Session(node) as s:
        s.nothing("command")
    done = dev.run("commands", "run", node.id, "node.facts", "--deadline", "1s", "--wait", check=False)
    assert done.returncode == 1 and "DeadlineExceeded" in done.stdout


def test_a_cancellation_is_kept_and_asked_for_until_the_command_is_over(dev, node):
    unsent = run(dev, node, "node.facts")
    assert "was not sent" in dev.run("commands", "cancel", unsent["id"]).stdout
    assert show(dev, unsent)["reason"] == "Cancelled"
    journal = Journal()
    with Session(node, journal) as s:
        command = run(dev, node, "node.facts")
        s.wait("command")
        s.report(command["id"], "RUNNING")
        assert "asked the node" in dev.run("commands", "cancel", command["id"]).stdout
        assert s.wait("cancel").id == command["id"]
    dev.kill()
    dev.start()
    assert show(dev, command)["cancelRequested"]
    with Session(node, journal) as s:
        assert s.wait("cancel").id == command["id"]
        s.report(command["id"], "FAILED", reason="Cancelled")
    with Session(node, journal) as s:
        s.nothing("cancel")
    done = dev.run("commands", "cancel", command["id"], check=False)
    assert done.returncode == 1 and "over" in done.stderr


def test_a_command_that_was_sent_and_then_cancelled_is_not_sent_again(dev, node):
    with Session(node) as s:
        command = run(dev, node, "node.reboot")
        s.wait("command")
    dev.run("commands", "cancel", command["id"])
    with Session(node) as s:
        assert s.wait("cancel").id == command["id"]
        s.nothing("command")


def test_waiting_for_a_command_ends_with_it(dev, node):
    for state, code in [("SUCCEEDED", 0), ("FAILED", 1), ("UNSUPPORTED", 1)]:
        with Session(node) as s:
            waiting = subprocess.Popen(
                [str(dev.program), "commands", "run", node.id, "node.facts", "--wait", "--dir", str(dev.dir)],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_env())
            command = s.wait("command")
            s.report(command.id, "RUNNING")
            s.report(command.id, state, message="so it went")
            out, err = waiting.communicate(timeout=20)
        assert waiting.returncode == code, err
        assert "so it went" in out and command.id in out
        assert "running" in err or state.lower() in err


def test_one_node_cannot_report_on_anothers_command(dev, node):
    other = node_of(dev)
    other.join(dev.token())
    command = run(dev, node, "node.facts")
    with Session(other) as s:
        s.report(command["id"], "SUCCEEDED")
        s.report("cmd_" + "0" * 26, "SUCCEEDED")
        s.report("", "SUCCEEDED")
    assert show(dev, command)["state"] == "queued"


def test_a_node_that_must_upgrade_gets_upgrades_alone(dev, node):
    run(dev, node, "node.facts")
    upgrade = run(dev, node, "daemon.upgrade", "--params-json", json.dumps(
        {"version": "9.9.9", "url": "https://x/y", "sha256": "ab" * 32}))
    write = dev.dir / "log.json"
    write.write_text('{"level": "debug"}')
    dev.run("spec", "set", node.id, "--section", f"log={write}")
    with Session(node, protocol_versions=[7]) as s:
        assert s.welcomed.upgrade_required
        assert s.wait("command").id == upgrade["id"]
        s.nothing("command")
        s.nothing("spec")
        s.report(upgrade["id"], "RUNNING")
    assert show(dev, upgrade)["state"] == "running"


@pytest.mark.parametrize(
    "arguments, code, says",
    [
        (["run", "NODE", "node.reboot", "--param", "delay=5"], 2, "there are delay_s, reason"),
        (["run", "NODE", "node.reboot", "--param", "delay_s=900"], 2, "from 0 to 600"),
        (["run", "NODE", "node.facts", "--param", "x=1"], 2, "there are none"),
        (["run", "NODE", "logs.collect", "--param", "path=/etc/shadow"], 2, "beneath /var/log"),
        (["run", "NODE", "disk.polish"], 2, "paramsBase64"),
        (["run", "NODE", "node.facts", "--deadline", "31d"], 2, "1s to 30d"),
        (["run", "NODE", "node.facts", "--deadline", "soon"], 2, "--deadline"),
        (["run", "NODE", "node.facts", "--params-json", "{"], 2, "JSON"),
        (["run", "NODE", "node.facts", "--params-json", "{}", "--param", "a=b"], 2, "exclude"),
        (["run", "node_1", "node.facts"], 2, "node id"),
        (["run", "node_" + "0" * 26, "node.facts"], 1, "no such node"),
        (["show", "cmd_1"], 2, "command id"),
        (["show", "cmd_" + "0" * 26], 1, "no such command"),
        (["cancel", "cmd_" + "0" * 26], 1, "no such command"),
        (["list", "--state", "odd"], 2, "--state"),
        (["list", "--limit", "0"], 2, "--limit"),
    ],
)
def test_what_is_no_command_is_refused(dev, node, arguments, code, says):
    done = dev.run("commands", *[a.replace("NODE", node.id) for a in arguments], check=False)
    assert done.returncode == code and says in done.stderr, done.stderr
    assert not dev.json("commands", "list")["commands"]


def test_a_list_of_commands_comes_in_pages(dev, node):
    made = [run(dev, node, "node.facts")["id"] for _ in range(5)]
    first = dev.json("commands", "list", "--limit", "3")
    assert [c["id"] for c in first["commands"]] == made[:1:-1]
    rest = dev.json("commands", "list", "--limit", "3", "--before", first["nextBefore"])
    assert [c["id"] for c in rest["commands"]] == made[1::-1] and "nextBefore" not in rest
    assert len(dev.json("commands", "list", "--state", "queued")["commands"]) == 5


def test_a_node_has_a_bounded_number_of_commands_that_are_not_over(dev, node):
    from gateway_api import call

    for _ in range(256):
        status, _ = call(dev, "POST", f"nodes/{node.id}/commands", {"kind": "node.facts"})
        assert status == 201
    status, refusal = call(dev, "POST", f"nodes/{node.id}/commands", {"kind": "node.facts"})
    assert status == 429 and refusal["error"]["code"] == "RESOURCE_EXHAUSTED"


# ---- outputs ------------------------------------------------------------------------------------


def collected(data):
    return protos.command.LogsCollectResult(size=len(data), sha256=hashlib.sha256(data).digest())


def answer(session, request, data, piece=64 * 1024):
    """Sends what an OutputRequest asks for."""
    end = min(request.offset + request.max_bytes, len(data))
    for offset in range(request.offset, end, piece):
        session.send(protos.NodeFrame(output=protos.OutputChunk(
            command_id=request.command_id, offset=offset, data=data[offset:min(offset + piece, end)], size=len(data))))


def test_an_output_is_fetched_across_breaks_and_restarts_and_then_released(dev, node, tmp_path):
    data = random.Random(1).randbytes(1_000_000)
    command = run(dev, node, "logs.collect", "--param", "unit=ssh.service")
    journal = Journal()
    offsets = []
    with Session(node, journal) as s:
        s.wait("command")
        s.report(command["id"], "SUCCEEDED", result=collected(data).SerializeToString())
        for _ in range(4):
            request = s.wait("output_request")
            offsets.append(request.offset)
            answer(s.session, request, data, piece=30_000)
        s.wait("output_request")
    dev.kill()
    dev.start()
    shown = show(dev, command)["output"]
    assert (shown["state"], shown["received"]) == ("fetching", 4 * 65536)
    refused = dev.run("commands", "show", command["id"], "--output", "-", check=False)
    assert refused.returncode == 1 and "262144 of 1000000 bytes" in refused.stderr
    with Session(node, journal) as s:
        while True:
            request = s.wait("output_request")
            if request.release:
                break
            offsets.append(request.offset)
            answer(s.session, request, data)
        assert request.command_id == command["id"]
        assert offsets == sorted(set(offsets)), "nothing that is stored was asked for again"
        file = tmp_path / "log"
        dev.run("commands", "show", command["id"], "--output", file)
        assert file.read_bytes() == data
    with Session(node, journal) as s:
        assert s.wait("output_request").release, "said again: nothing proves yet that it was read"
        for sequence in range(1, 5):
            s.session.heartbeat(sequence)
            s.wait("heartbeat")
        wait_for("the release to be taken as read", lambda: show(dev, command)["output"]["state"] == "released")
    with Session(node, journal) as s:
        s.nothing("output_request")


def test_an_output_that_is_gone_or_not_what_it_was_said_to_be_is_not_kept(dev, node):
    data = b"x" * 100
    with Session(node) as s:
        gone = run(dev, node, "logs.collect")
        s.wait("command")
        s.report(gone["id"], "SUCCEEDED", result=collected(data).SerializeToString())
        s.wait("output_request")
        s.session.send(protos.NodeFrame(output=protos.OutputChunk(command_id=gone["id"], gone=True)))
        wait_for("the output to be gone", lambda: show(dev, gone)["output"]["state"] == "gone")
        damaged = run(dev, node, "logs.collect")
        s.wait("command")
        s.report(damaged["id"], "SUCCEEDED", result=collected(data).SerializeToString())
        answer(s.session, s.wait("output_request"), b"y" * 100)
        assert s.wait("output_request").release
    assert show(dev, damaged)["output"]["state"] == "damaged"
    for command, says in [(gone, "gone"), (damaged, "not what the node said")]:
        done = dev.run("commands", "show", command["id"], "--output", "-", check=False)
        assert done.returncode == 1 and says in done.stderr


@pytest.mark.parametrize("change", [
    {"command_id": "cmd_" + "0" * 26}, {"offset": 1}, {"size": 101}, {"data": b""}, {"data": b"x" * 101}])
def test_a_piece_of_output_that_was_not_asked_for_ends_the_session(dev, node, change):
    with Session(node) as s:
        command = run(dev, node, "logs.collect")
        s.wait("command")
        s.report(command["id"], "SUCCEEDED", result=collected(b"x" * 100).SerializeToString())
        s.wait("output_request")
        piece = {"command_id": command["id"], "offset": 0, "size": 100, "data": b"x" * 100} | change
        s.session.send(protos.NodeFrame(output=protos.OutputChunk(**piece)))
        assert s.session.ended() == grpc.StatusCode.INVALID_ARGUMENT
        assert "output" in s.session.details


# ---- specs --------------------------------------------------------------------------------------


def spec_of(node, envelope):
    payload = dsse.verify(envelope, "node-spec", {node.config["join_signing_key_pin"]})
    return protos.NodeSpec.FromString(payload)


def test_a_spec_is_signed_sent_at_once_and_shown_with_what_the_node_says(dev, node, tmp_path):
    level = tmp_path / "log.json"
    level.write_text('{"level": "debug"}')
    raw = tmp_path / "site.b64"
    raw.write_text("CgNhYmM=\n")
    assert "no spec" in dev.run("spec", "get", node.id).stdout
    with Session(node) as s:
        dev.run("spec", "set", node.id, "--section", f"log={level}", "--raw", f"site={raw}")
        spec = spec_of(node, s.wait("spec"))
        assert (spec.node_id, spec.generation) == (node.id, 1)
        assert [section.name for section in spec.sections] == ["log", "site"]
        assert protos.spec.LogSection.FromString(spec.sections[0].body).level == "debug"
        assert spec.sections[1].body == b"\n\x03abc"
        s.session.event(s.journal.append(section_status=protos.SectionStatus(
            generation=1, section="log", state=protos.SectionState.Value("SECTION_STATE_APPLIED"))))
        s.session.event(s.journal.append(section_status=protos.SectionStatus(
            generation=1, section="site", state=protos.SectionState.Value("SECTION_STATE_UNSUPPORTED"),
            reason="SectionUnsupported")))
        s.session.acknowledged(2)
        shown = dev.json("spec", "get", node.id)
        assert [(x["name"], x["state"]) for x in shown["sections"]] == [("log", "applied"), ("site", "unsupported")]
        assert shown["sections"][0]["value"] == {"level": "debug"}
        assert shown["sections"][1]["value"] == {"base64": "CgNhYmM="}
        dev.run("spec", "set", node.id, "--section", f"log={level}")
        s.nothing("spec")
        level.write_text('{"level": "warn"}')
        dev.run("spec", "set", node.id, "--section", f"log={level}", "--remove", "site")
        assert spec_of(node, s.wait("spec")).generation == 2
    assert [x["state"] for x in dev.json("spec", "get", node.id)["sections"]] == ["unreported"]
    dev.kill()
    dev.start()
    with Session(node, spec_generation=1) as s:
        spec = spec_of(node, s.wait("spec"))
        assert (spec.generation, len(spec.sections)) == (2, 1)
    with Session(node, spec_generation=2) as s:
        s.nothing("spec")


@pytest.mark.parametrize(
    "content, flag, says",
    [
        ('{"level": "loud"}', "--section", "debug, info"),
        ('{"lvl": "info"}', "--section", "there are level"),
        ("{", "--section", "JSON"),
        ("???", "--raw", "base64"),
        ("x" * 60_000, "--section", "size"),
    ],
)
def test_a_section_that_is_wrong_changes_nothing(dev, node, tmp_path, content, flag, says):
    file = tmp_path / "section"
    file.write_text(content)
    done = dev.run("spec", "set", node.id, flag, f"log={file}", check=False)
    assert done.returncode == 2, done.stderr
    assert dev.json("spec", "get", node.id)["generation"] == 0


# ---- kill -9 ------------------------------------------------------------------------------------


def test_kills_in_a_row_lose_no_command_no_result_and_no_spec(dev, node, tmp_path):
    from gateway_api import call

    chance = random.Random(0x636D6473)
    accepted, reported, generations = {}, {}, [0]
    journal = Journal()
    failures = []

    def operate(stop):
        turn = 0
        while not stop.is_set():
            turn += 1
            try:
                status, made = call(dev, "POST", f"nodes/{node.id}/commands", {"kind": "node.facts"})
                if status == 201:
                    accepted[made["id"]] = made
                status, spec = call(dev, "POST", f"nodes/{node.id}/spec", {
                    "sections": [{"name": "x", "bodyBase64": f"{turn % 9000 + 1000}"}]})
                if status == 200:
                    generations.append(spec["generation"])
            except Exception:
                time.sleep(0.02)

    def serve(stop):
        while not stop.is_set():
            try:
                with Session(node, journal) as s:
                    while not stop.is_set():
                        command = s.wait("command", timeout=1)
                        if command.id in reported:
                            failures.append(f"{command.id} came again after its report was acknowledged")
                        s.report(command.id, "SUCCEEDED", message=command.id)
                        reported[command.id] = True
            except Exception:
                time.sleep(0.02)

    for _ in range(6):
        stop = threading.Event()
        workers = [threading.Thread(target=work, args=(stop,)) for work in (operate, serve)]
        for worker in workers:
            worker.start()
        time.sleep(chance.uniform(0.3, 1.0))
        dev.kill()
        stop.set()
        for worker in workers:
            worker.join()
        dev.start()
    assert not failures
    assert len(accepted) >= 8 and len(reported) >= 4, (len(accepted), len(reported))
    known = {c["id"]: c for c in dev.json("commands", "list", "--limit", "1000")["commands"]}
    assert accepted.keys() <= known.keys()
    for command in reported:
        assert (known[command]["state"], known[command]["message"]) == ("succeeded", command)
    assert dev.json("spec", "get", node.id)["generation"] >= max(generations)
