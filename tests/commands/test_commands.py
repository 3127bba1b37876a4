"""Commands end to end: each kind, each refusal, each way to end."""

import hashlib
import os
import time

from commands.conftest import RUNNING
from peer import protos


def file_logs(path, max_bytes=0):
    return protos.command.LogsCollectParams(file=protos.command.FileSource(path=str(path)), max_bytes=max_bytes)


def test_a_command_given_many_times_runs_once_and_says_each_state_once(lab):
    id = lab.command("node.facts")
    lab.done(id)
    lab.give(lab.session(), repeat=5)
    other = lab.command("node.facts")
    lab.give(lab.session())
    final = lab.done(other)
    assert lab.states(id) == [("RUNNING", ""), ("SUCCEEDED", "")]
    facts = protos.facts.Facts.FromString(final.result)
    assert facts.memory_bytes > 0 and facts.kernel.release


def wipe(*disks):
    disks = [protos.deploy.DiskTarget(stable_name=name) for name in disks]
    return protos.deploy.DisksWipeParams(order_id="ord_01kb7w3x9qn5v8m2r6t4y0sdfh", disks=disks)


def test_unknown_kinds_late_ones_and_bad_params_are_refused_with_their_reason(lab):
    refused = {
        lab.command("disk.polish"): ("UNSUPPORTED", "CommandUnsupported"),
        # A node with an installed system wipes nothing, whoever orders it.
        lab.command("disks.wipe", wipe("wwn-0x1")): ("UNSUPPORTED", "CommandUnsupported"),
        lab.command("disks.wipe", wipe()): ("FAILED", "InvalidParams"),
        lab.command("disks.wipe", wipe("a", "a")): ("FAILED", "InvalidParams"),
        lab.command("node.facts", deadline_s=-5): ("FAILED", "DeadlineExceeded"),
        lab.command("node.facts", deadline_s=31 * 86400): ("FAILED", "InvalidParams"),
        lab.command("node.reboot", protos.command.RebootParams(delay_s=601)): ("FAILED", "InvalidParams"),
        lab.command("logs.collect"): ("FAILED", "InvalidParams"),
        lab.command("logs.collect", b"\xff"): ("FAILED", "InvalidParams"),
        lab.command("logs.collect", file_logs("/etc/shadow")): ("FAILED", "InvalidParams"),
        lab.command("logs.collect", file_logs("no-such/bcd-test")): ("FAILED", "NotFound"),
    }
    lab.give(lab.session())
    for id, end in refused.items():
        assert lab.done(id) and lab.states(id)[-1] == end, lab.updates(id)
        assert lab.final(id).message.isprintable()
    # One without a proper id gets no answer, and does no harm.
    lab.command("node.facts", id="cmd_../../etc/passwd")
    good = lab.command("node.facts")
    lab.give(lab.session())
    assert lab.done(good) and not lab.updates("cmd_../../etc/passwd")


def test_a_log_is_collected_fetched_in_pieces_and_released(lab):
    text = b"".join(b"%d a line of a log\n" % n for n in range(30_000))
    (lab.logs / "app.log").write_bytes(text)
    id = lab.command("logs.collect", file_logs("/var/log/app.log", 300_000))
    lab.give(lab.session())
    final = lab.done(id)
    result = protos.command.LogsCollectResult.FromString(final.result)
    assert lab.states(id)[-1] == ("SUCCEEDED", "") and result.truncated
    assert lab.outputs() == [id] and (lab.data / "outputs" / id).stat().st_mode & 0o777 == 0o600
    for step in (1024 * 1024, 50_000, 64 * 1024):
        got = lab.fetch(id, step, release=False)
        assert len(got) == result.size <= 300_000 and hashlib.sha256(got).digest() == result.sha256
        assert text.endswith(got) and got.split(b" ")[0].isdigit()
    # It outlives the daemon, with its result.
    lab.kill()
    lab.run()
    lab.until("a session", lab.session)
    assert lab.fetch(id) == got
    lab.until("the release", lambda: not lab.outputs())


def test_nothing_outside_var_log_and_no_pipe_is_read(lab):
    os.mkfifo(lab.logs / "pipe")
    (lab.logs / "out").symlink_to("/etc/hostname")
    (lab.logs / "dir").mkdir()
    ids = [lab.command("logs.collect", file_logs(name)) for name in ("pipe", "out", "dir", "../../etc/hostname")]
    lab.give(lab.session())
    for id in ids:
        assert lab.done(id) and lab.states(id)[-1] == ("FAILED", "InvalidParams"), lab.updates(id)
    assert lab.outputs() == []


def test_a_reboot_is_done_once_acknowledged_first_and_decided_by_the_boot_id(lab):
    id = lab.command("node.reboot", protos.command.RebootParams(reason="a new kernel"))
    second = lab.command("node.reboot")
    lab.give(lab.session())
    lab.until("the reboot", lambda: lab.reboots() == [id])
    assert lab.states(id) == [("RUNNING", "")], "stored by the gateway before the machine went down"
    lab.done(second)
    assert lab.states(second) == [("FAILED", "Busy")]
    lab.kill()
    lab.boot = 2
    lab.run()
    final = lab.done(id)
    result = protos.command.RebootResult.FromString(final.result)
    assert lab.states(id) == [("RUNNING", ""), ("SUCCEEDED", "")]
    assert (result.boot_id_before[-1], result.boot_id_after[-1]) == ("1", "2")
    lab.give(lab.session(), repeat=3)
    third = lab.command("node.facts")
    lab.give(lab.session())
    lab.done(third)
    assert lab.reboots() == [id]


def test_a_reboot_during_its_delay_can_be_cancelled(lab):
    id = lab.command("node.reboot", protos.command.RebootParams(delay_s=600))
    lab.give(lab.session())
    lab.until("RUNNING", lambda: lab.states(id))
    session = lab.session()
    for cancelled in ("cmd_00000000000000000000000000", "", id, id):
        session.send(protos.GatewayFrame(cancel=protos.command.CancelCommand(id=cancelled)))
    lab.done(id)
    assert lab.states(id) == [("RUNNING", ""), ("FAILED", "Cancelled")]
    assert lab.reboots() == []
    again = lab.command("node.reboot")
    lab.give(session)
    lab.until("the place is free", lambda: lab.reboots() == [again])


def test_a_reboot_does_not_wait_for_ever_for_an_acknowledgement(lab, peer):
    peer.faults.store_events = False
    id = lab.command("node.reboot")
    began = time.monotonic()
    lab.give(lab.session())
    lab.until("the reboot", lambda: lab.reboots() == [id], 30)
    assert time.monotonic() - began >= 9


def test_a_daemon_that_was_stopped_and_started_runs_nothing_twice(lab):
    ids = [lab.command("node.facts") for _ in range(5)] + [lab.command("node.reboot", protos.command.RebootParams(delay_s=600))]
    lab.give(lab.session())
    for _ in range(2):
        lab.until("RUNNING", lambda: lab.states(ids[-1]))
        assert lab.terminate() == 0
        lab.run()
        lab.until("a session", lab.session)
    for id in ids[:-1]:
        lab.done(id)
        assert lab.begun(id) <= 1
        assert sum(u.state == RUNNING for u in lab.updates(id)) <= 1
    assert lab.begun(ids[-1]) == 1 and lab.reboots() == []
