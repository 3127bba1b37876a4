"""Diagnoses on this host: what they find, how they end, and what a machine without the hardware says."""

import json
import os
import pathlib
import time

from commands.conftest import protos_state
from peer import protos

DIAG = protos.diag


def reports(lab, id):
    """What was told of a diagnosis, in order."""
    journals = [j for (node, _), j in lab.peer.session_service.journals.items() if node == lab.node_id]
    events = [e.diag_report for j in journals for e in list(j.events) if e.WhichOneof("body") == "diag_report"]
    return [r for r in events if r.command_id == id]


def findings(lab, id):
    return {f.subject: f for r in reports(lab, id) for f in r.findings}


def done(lab, id, seconds=60):
    final = lab.done(id, seconds)
    assert protos_state(final) == ("SUCCEEDED", ""), final
    result = DIAG.DiagResult.FromString(final.result)
    assert result.reports == len(reports(lab, id)) and [r.part for r in reports(lab, id)] == list(range(1, result.reports + 1))
    found = findings(lab, id)
    assert result.ok + result.unknown + result.warn + result.fail == len(found)
    assert result.verdict == max(f.verdict for f in found.values()) if found else result.verdict == 0
    return result, found


def readings(finding):
    return {r.name: r.text or r.number for r in finding.readings}


def children(pid):
    """The diagnosing children of a process."""
    found = []
    for at in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            parent = int((at / "stat").read_text().rsplit(")", 1)[1].split()[1])
            words = (at / "cmdline").read_bytes().split(b"\0")
        except (OSError, IndexError):
            continue
        if parent == pid and b"worker" in words:
            found.append(int(at.name))
    return found


def test_memory_is_tested_within_its_bounds_by_a_child_that_yields_to_everybody(lab):
    params = DIAG.DiagMemoryParams(max_bytes=16 << 20, seconds=600, passes=1000)
    id = lab.command("diag.memory", params)
    lab.give(lab.session())
    child, = lab.until("the child", lambda: children(lab.process.pid))
    lab.until("the child to be expendable", lambda: pathlib.Path(f"/proc/{child}/oom_score_adj").read_text() == "1000\n")
    assert os.getpriority(os.PRIO_PROCESS, child) == 19
    lab.until("progress", lambda: [p for p in lab.session().of_kind("command_progress") if p.id == id],
              seconds=100)  # it yields to everybody
    resident = int(pathlib.Path(f"/proc/{child}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    assert resident < 40 << 20
    # The session goes on meanwhile: other commands are done.
    other = lab.command("node.facts")
    lab.give(lab.session())
    assert lab.done(other)
    busy = lab.command("diag.memory")
    lab.give(lab.session())
    assert lab.done(busy) and lab.states(busy)[-1] == ("FAILED", "Busy")
    # It ends at once when it is not wanted any more, and leaves nobody behind.
    said = time.monotonic()
    lab.session().send(protos.GatewayFrame(cancel=protos.command.CancelCommand(id=id)))
    assert lab.done(id) and lab.states(id)[-1] == ("FAILED", "Cancelled")
    assert time.monotonic() - said < 5 and not children(lab.process.pid)


def test_a_tests_time_bounds_it_and_what_was_done_is_told(lab):
    id = lab.command("diag.memory", DIAG.DiagMemoryParams(max_bytes=64 << 20, seconds=3, passes=1000))
    lab.give(lab.session())
    _, found = done(lab, id)
    test = readings(found["test"])
    assert test["tested_bytes"] == 64 << 20 and test["bad_words"] == 0 and test["seconds"] <= 5, test
    assert test["passes_done"] < 1000


def test_a_daemon_that_is_killed_takes_its_test_along(lab):
    id = lab.command("diag.memory", DIAG.DiagMemoryParams(max_bytes=4 << 20, seconds=600, passes=1000))
    lab.give(lab.session())
    child, = lab.until("the child", lambda: children(lab.process.pid))
    lab.until("the child to know its parent", lambda: pathlib.Path(f"/proc/{child}/oom_score_adj").read_text() == "1000\n")
    lab.process.kill()
    lab.process.wait()
    deadline = time.monotonic() + 10
    while pathlib.Path(f"/proc/{child}").exists() and "Z" not in pathlib.Path(f"/proc/{child}/stat").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    lab.run()
    assert lab.done(id) and lab.states(id)[-1] == ("FAILED", "Interrupted")


def test_disks_and_links_of_this_host_are_told_honestly(lab):
    disks, network = lab.command("diag.disks"), lab.command("diag.network", DIAG.DiagNetworkParams(interface="lo", seconds=1))
    lab.give(lab.session())
    _, found = done(lab, disks)
    for finding in found.values():
        # Well, or there is a reason.
        assert finding.verdict == DIAG.DiagVerdict.Value("DIAG_VERDICT_OK") or finding.problems, finding
        assert "kernel_name" in readings(finding)
    _, found = done(lab, network)
    assert set(found) == {"lo"} and readings(found["lo"])["carrier"] == 1
    stats = pathlib.Path("/sys/class/net/lo/statistics/rx_packets")
    if stats.exists():
        assert readings(found["lo"])["rx_packets"] <= int(stats.read_text())


def test_what_is_asked_wrongly_or_is_not_there_says_so(lab):
    refused = {
        lab.command("diag.memory", DIAG.DiagMemoryParams(seconds=3601)): ("FAILED", "InvalidParams"),
        lab.command("diag.disks", DIAG.DiagDisksParams(disk="no-such-disk")): ("FAILED", "NotFound"),
        lab.command("diag.network", DIAG.DiagNetworkParams(interface="no-such-link", seconds=1)): ("FAILED", "NotFound"),
        lab.command("diag.network", DIAG.DiagNetworkParams(seconds=61)): ("FAILED", "InvalidParams"),
        lab.command("diag.dcgm", DIAG.DiagDcgmParams(level=5)): ("FAILED", "InvalidParams"),
        # No GPU here, and so no dcgmi.
        lab.command("diag.dcgm"): ("UNSUPPORTED", "CommandUnsupported"),
    }
    lab.give(lab.session())
    for id, end in refused.items():
        assert lab.done(id, 40) and lab.states(id)[-1] == end, lab.updates(id)
        assert lab.final(id).message.isprintable()


DCGM = {"DCGM Diagnostic": {"test_categories": [
    {"category": "Deployment", "tests": [{"name": "software", "results": [
        {"entity_group": "GPU", "entity_id": 0, "status": "Pass"},
        {"entity_group": "GPU", "entity_id": 1, "status": "Fail", "warnings": [{"error_id": 29, "warning": "Persistence mode is off."}]}],
        "test_summary": {"status": "Fail"}}]},
    {"category": "Integration", "tests": [{"name": "pcie", "results": [
        {"entity_group": "GPU", "entity_id": 0, "status": "Pass"}]}]}]}}


def test_dcgm_is_run_where_it_is_and_bounded(make_lab, fakehw, tmp_path):
    """A stand-in for dcgmi, which needs a GPU: it prints what DCGM 4 prints, and ends as that does when a test fails."""
    lab = make_lab(fakehw)
    script = tmp_path / "dcgmi"
    script.write_text(f"""#!/bin/sh
[ "$1 $2 $4" = "diag -r -j" ] || exit 9
case $3 in
  1) echo 'Warning: odd'; echo '{json.dumps(DCGM)}'; exit 226 ;;
  2) echo 'Error: unable to connect to host engine' >&2; exit 255 ;;
  3) exec sleep 600 ;;
  4) while :; do echo '{{"a": [1, 2, 3]}}'; done ;;
esac
""")
    script.chmod(0o755)
    # Where programs are looked for there is another directory, in a mount namespace of its own.
    lab.run("unshare", "-m", "--", "sh", "-c",
            f"'mount -t tmpfs dcgm /usr/sbin && cp {script} /usr/sbin/dcgmi && exec \"$0\" \"$@\"'")
    session = lab.until("a session", lab.session)
    assert "command.diag.dcgm" in session.hello.capabilities

    def run(level):
        id = lab.command("diag.dcgm", DIAG.DiagDcgmParams(level=level))
        lab.give(session)
        return id

    # One after the other: GPUs are diagnosed by one at a time.
    good = run(1)
    result, found = done(lab, good)
    assert (result.ok, result.fail) == (1, 1)
    assert list(found["Deployment/software"].problems) == ["GPU 1: Persistence mode is off."]
    assert readings(found["Integration/pcie"]) == {"GPU 0": "Pass"}
    away = run(2)
    assert lab.done(away) and lab.states(away)[-1] == ("FAILED", "DiagFailed") and "host engine" in lab.final(away).message
    loud = run(4)
    assert lab.done(loud, 40) and lab.states(loud)[-1] == ("FAILED", "DiagFailed")
    hangs = run(3)
    lab.until("RUNNING", lambda: lab.states(hangs))
    session.send(protos.GatewayFrame(cancel=protos.command.CancelCommand(id=hangs)))
    assert lab.done(hangs) and lab.states(hangs)[-1] == ("FAILED", "Cancelled")
