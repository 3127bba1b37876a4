"""Who is heard at the helper's socket, and who is not, whatever they try."""

import os
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from lab import wait_for

from .conftest import ACCOUNT, PYTHON

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another account")


def refused(lines, reason):
    assert [line.get("reason") for line in lines if "ready" not in line][-1] == reason, lines
    return lines


def test_the_account_and_root_are_heard_and_nobody_else(helper):
    helper.serves()
    assert [line["reason"] for line in helper.said("connect", "hear", "ask=format", "hear", uid=0, gid=0)[1:]] == ["OperationUnsupported"]
    there = helper.socket.stat()
    assert (stat.S_IMODE(there.st_mode), there.st_uid, there.st_gid) == (0o660, 0, ACCOUNT.pw_gid)
    # Another account cannot even knock; with the group's rights it can, and is sent away.
    assert helper.spawn("connect", "hear", uid=1, gid=1).wait(10) != 0
    refused(helper.said("connect", "hear", uid=1), "AccountRefused")
    helper.socket.chmod(0o666)
    refused(helper.said("connect", "hear", gid=1), "AccountRefused")
    for event in helper.events("helper.refused"):
        assert event["reason"] == "AccountRefused" and "helper.user" in event["error"] and event["do"]
    helper.serves()


def test_another_program_is_not_heard_whatever_its_file_is_called(helper):
    refused(helper.said("connect", "hear", program=helper.copy), "ProgramRefused")
    refused(helper.said("connect", "hear", program=helper.copy, uid=0, gid=0), "ProgramRefused")
    # In a place of its own it has the installed one's name.
    names = ["unshare", "--mount", "--propagation", "private", "sh", "-c", f'mount --bind {helper.copy} {PYTHON} && exec "$@"', "sh"]
    refused(helper.said("connect", "hear", before=names), "ProgramRefused")
    # A link to the installed one is the installed one.
    link = helper.dir / "link"
    link.symlink_to(PYTHON)
    assert "nonce" in helper.said("connect", "hear", program=link)[0]
    # In a slot of an update it is installed, while it is root's alone.
    helper.slots.mkdir(mode=0o755)
    slot = helper.slots / "bcd-b"
    os.link(helper.copy, slot)
    assert "nonce" in helper.said("connect", "hear", program=slot)[0]
    slot.chmod(0o775)
    refused(helper.said("connect", "hear", program=slot), "ProgramRefused")
    slot.chmod(0o755)
    os.chown(slot, ACCOUNT.pw_uid, -1)
    refused(helper.said("connect", "hear", program=slot), "ProgramRefused")
    helper.serves()


def test_one_that_asks_and_then_becomes_bcd_is_not_heard(helper):
    """It connects and asks; when the helper looks, it is bcd."""
    with helper.asleep():
        peer = helper.spawn("connect", "ask=sshd.reload", f"execute={PYTHON}|ready/hear/hear/hear", program=helper.copy)
        assert "ready" in peer.stdout.readline()
    greeting, answer = [line for line in peer.communicate(timeout=20)[0].splitlines()][:2]
    # Older kernels do not say who wrote before anybody asked; what was written cannot have the greeting's number.
    assert "nonce" in greeting and ("WriterRefused" in answer or "answers another greeting" in answer)
    assert not helper.events("helper.operation")


def test_one_that_becomes_bcd_cannot_have_another_ask_for_it(helper):
    """Its child, which has the socket too, knows the greeting and answers it in time."""
    with helper.asleep():
        peer = helper.spawn("connect", "fork=hear/ask=sshd.reload/hear", f"execute={PYTHON}|ready/wait=5", program=helper.copy)
        assert "ready" in peer.stdout.readline()
    lines = peer.communicate(timeout=20)[0].splitlines()
    assert "nonce" in lines[0] and "WriterRefused" in lines[1], lines
    assert not helper.events("helper.operation")


def test_one_that_becomes_something_else_once_it_was_greeted_is_not_heard(helper):
    lines = helper.said("connect", "hear", f"execute={helper.copy}|ready/say={{\"x\":1}}\n/hear")
    refused(lines, "ProgramRefused")
    # Nor does it help to end, before the helper has looked again.
    with helper.asleep():
        done = subprocess.run(["setpriv", f"--reuid={ACCOUNT.pw_uid}", f"--regid={ACCOUNT.pw_gid}", "--clear-groups", PYTHON,
                               str(helper.peer), str(helper.socket), "connect", "ask=sshd.reload"], timeout=10, check=False)
        assert done.returncode == 0
    wait_for("the refusal", lambda: helper.events("helper.refused"))
    assert not helper.events("helper.operation")
    helper.serves()


def test_a_process_number_that_another_has_by_now_is_not_taken_for_the_first(helper):
    """Whoever connected has ended; an installed bcd of the account has its number; a child of the first has the socket."""
    last = Path("/proc/sys/kernel/ns_last_pid")
    if not last.exists():
        pytest.skip("this kernel gives no process number again on request")
    for _ in range(20):
        with helper.asleep():
            peer = helper.spawn("connect", "fork=wait=1/hear/ask=sshd.reload/hear", "ready", program=helper.copy)
            assert "ready" in peer.stdout.readline()
            peer.wait(10)
            last.write_text(str(peer.pid - 1))
            other = helper.spawn("ready", "wait=4")
            # No setpriv beside it: it became the peer by exec.
            other.stdout.readline()
        lines = peer.communicate(timeout=20)[0].splitlines()
        other.kill()
        other.communicate(timeout=10)
        assert not helper.events("helper.operation")
        if other.pid == peer.pid:
            assert not any("nonce" in line for line in lines), lines
            return
    pytest.skip("others were faster each time")


def test_the_silent_and_the_slow_are_cut_off_and_keep_nobody_out(helper):
    silent = [helper.spawn("connect", "hear", "ready", "hear") for _ in range(8)]
    for peer in silent:
        assert "nonce" in peer.stdout.readline() and "ready" in peer.stdout.readline()
    refused(helper.said("connect", "hear"), "Busy")
    # Root has places of its own.
    assert "nonce" in helper.said("connect", "hear", uid=0, gid=0)[0]
    for peer in silent:
        assert "no request came" in peer.communicate(timeout=20)[0]
    helper.serves()
    slow = helper.said("connect", "hear", "dribble=20", "hear")
    assert slow[1]["reason"] == "BadRequest", slow
    helper.serves()


def test_a_flood_of_those_who_may_not_ask_keeps_nobody_out(helper):
    flood = [helper.spawn("flood=8", program=helper.copy) for _ in range(2)]
    served = 0
    while all(peer.poll() is None for peer in flood):
        done = helper.spawn("connect", "hear", "ask=sshd.reload", "hear").communicate(timeout=20)[0]
        served += '"done": false' in done
    assert served >= 3
    for peer in flood:
        peer.communicate(timeout=20)
    # It is told once, and then counted.
    assert len(helper.events("helper.refused")) < 10
    helper.serves()


@pytest.mark.parametrize("actions, reason", [
    (["fill=5000"], "BadRequest"),
    (["say=\n"], "BadRequest"),
    (["say={}\n"], "ProtocolUnsupported"),
    (["say={\"protocol\":2,\"nonce\":\"NONCE\",\"operation\":\"reboot\",\"for\":\"\"}\n"], "ProtocolUnsupported"),
    (["say={\"protocol\":1,\"nonce\":\"NONCE\",\"operation\":\"sshd.reload\",\"for\":\"\",\"later\":1}\n"], "BadRequest"),
    (["say={\"protocol\":1,\"nonce\":\"NONCE\",\"operation\":\"sshd.reload\",\"for\":\"\"}\nmore"], "BadRequest"),
    (["hand"], "BadRequest"),
])
def test_what_is_no_request_is_refused_in_words(helper, actions, reason):
    lines = helper.said("connect", "hear", *actions, "hear")
    assert lines[1]["reason"] == reason and lines[1]["message"], lines
    helper.serves()


def test_it_is_killed_and_started_again_at_any_time(helper):
    for _ in range(3):
        helper.process.kill()
        assert helper.socket.exists()
        (helper.run_dir / ".new").mkdir(mode=0o700, exist_ok=True)
        helper.start()
        wait_for("the new helper", lambda: helper.events("helper.start"))
        helper.serves()
    # A second one leaves the first alone.
    second = subprocess.run(helper.command(), capture_output=True, text=True, timeout=10)
    assert second.returncode == 1 and "another process answers there" in second.stderr
    helper.serves()
    helper.process.process.send_signal(signal.SIGTERM)
    assert helper.process.process.wait(10) == 0
    assert list(helper.run_dir.iterdir()) == []


def test_while_nobody_asks_it_sleeps(helper):
    def woken():
        status = Path(f"/proc/{helper.process.pid}/status").read_text()
        return int(status.split("voluntary_ctxt_switches:")[1].split()[0])

    helper.serves()
    wait_for("its threads to end", lambda: len(os.listdir(f"/proc/{helper.process.pid}/task")) == 1)
    before = woken()
    subprocess.run(["sleep", "10"], check=True)
    assert woken() == before
