"""The daemon killed at any step of a command's life: nothing runs twice, no stored result changes, and every
command comes to one end.

strace kills bcd on the way into the N-th call of a kind, for every kind that changes something outside the
process and every N that a whole life comes to; then the gateway gives everything again.
"""

import collections
import hashlib
import re
import shutil
import time

import pytest

from commands.conftest import FINAL, RUNNING, Lab
from peer import protos

KINDS = """pwrite64 write writev fdatasync fsync rename renameat openat2 unlinkat fchmod fallocate ftruncate clone clone3 eventfd2
           sendto sendmsg""".split()
TEXT = b"".join(b"line %d\n" % n for n in range(5000))


def strace(*arguments):
    program = shutil.which("strace")
    assert program, "strace is not installed: apt-get install strace"
    # -D: bcd is our child and strace its, so that killing bcd kills bcd.
    return [program, "-D", "-f", "-qq", *map(str, arguments)]


LOGS = protos.command.LogsCollectParams(file=protos.command.FileSource(path="app.log"), max_bytes=10_000)


def live(lab, wrapper):
    """A daemon's life with three commands, until it is killed or all is done. The ids."""
    (lab.logs / "app.log").write_bytes(TEXT)
    ids = {
        "logs": lab.command("logs.collect", LOGS),
        "facts": lab.command("node.facts"),
        "reboot": lab.command("node.reboot"),
    }
    lab.run(*wrapper)
    deadline, given = time.monotonic() + 40, None
    while lab.process.poll() is None:
        session = lab.session()
        if session and session is not given:
            lab.give(session)
            given = session
        finals = [lab.final(id) for name, id in ids.items() if name != "reboot"]
        if all(finals) and lab.reboots():
            break
        assert time.monotonic() < deadline, lab.log.read_text()[-3000:]
        time.sleep(0.02)
    lab.kill()
    return ids


@pytest.fixture(scope="module")
def steps(fakehw, shared_peer, tmp_path_factory):  # noqa: F811
    """How often a whole life makes each kind of call after it has its session."""
    shared_peer.faults.reset()
    directory = tmp_path_factory.mktemp("steps")
    lab = Lab(fakehw, shared_peer, directory / "whole")
    lab.node_id = lab.join_well()["node_id"]
    live(lab, strace("-o", directory / "trace", "-e", "trace=" + ",".join(KINDS)))
    counted = collections.Counter(re.findall(r"^\d+ +(\w+)\(", (directory / "trace").read_text(), re.MULTILINE))
    assert counted["fdatasync"] >= 5 and counted["clone"] + counted["clone3"] >= 4, counted
    return counted


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_a_daemon_killed_at_any_step_runs_nothing_twice_and_loses_no_result(kind, steps, fakehw, make_lab):
    tried = 0
    for number in range(1, steps[kind] + 1):
        lab = make_lab(fakehw, f"{kind}{number}")
        ids = live(lab, strace("-o", "/dev/null", "-e", f"inject={kind}:signal=KILL:when={number}"))
        where = f"killed at {kind} number {number}"
        stored = {name: [u.SerializeToString() for u in lab.updates(id) if u.state in FINAL] for name, id in ids.items()}
        begun = {name: lab.begun(id) for name, id in ids.items()}
        rebooted = lab.reboots()

        # The machine comes up again, and once more for a reboot that it had not heard of before.
        lab.boot = 2
        lab.run()
        ended = lambda: lab.final(ids["reboot"]) or lab.reboots() != rebooted  # noqa: E731
        lab.until(f"the reboot, {where}", ended, 30)
        for name in ("logs", "facts"):
            lab.done(ids[name], 30)
        if not lab.final(ids["reboot"]):
            lab.kill()
            lab.boot = 3
            lab.run()
            lab.done(ids["reboot"], 30)
        session = lab.session()
        lab.give(session, repeat=2)
        last = lab.command("node.facts")
        lab.give(session)
        lab.done(last)
        for name, id in ids.items():
            finals = [u.SerializeToString() for u in lab.updates(id) if u.state in FINAL]
            assert len(finals) == 1, f"{where}: {name} has {len(finals)} ends"
            assert finals[0:1] == (stored[name] or finals), f"{where}: the end of {name} changed"
            assert sum(u.state == RUNNING for u in lab.updates(id)) <= 1, f"{where}: {name} ran twice"
            assert lab.begun(id) <= 1, f"{where}: {name} began twice"
            assert begun[name] <= lab.begun(id)
            state = lab.states(id)[-1]
            assert state[0] == "SUCCEEDED" or state == ("FAILED", "Interrupted"), f"{where}: {name} {state}"
        assert lab.reboots().count(ids["reboot"]) <= 1, f"{where}: the machine restarted twice"
        assert set(rebooted) <= set(lab.reboots())

        state = lab.states(ids["logs"])[-1][0]
        if state == "SUCCEEDED":
            result = protos.command.LogsCollectResult.FromString(lab.final(ids["logs"]).result)
            got = lab.fetch(ids["logs"])
            assert hashlib.sha256(got).digest() == result.sha256 and TEXT.endswith(got), where
            lab.until("the release", lambda: not lab.outputs())
        assert lab.outputs() == [], f"{where}: what was half written is left"
        tried += 1
        lab.kill()
        shutil.rmtree(lab.dir)
    print(f"{kind}: killed {tried} times")  # shown by -s -n 0
