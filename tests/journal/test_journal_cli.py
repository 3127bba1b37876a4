"""`bcd journal show|verify`: reads what a daemon writes while it writes, and says what is wrong with what is damaged."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import pytest

from lab import clean_env, program, wait_for
from promises import hold

SAMPLE = pathlib.Path(__file__).with_name("format-1.db")


@pytest.fixture(scope="session")
def load():
    return program("JOURNAL_LOAD", "target/operator/examples/journal_load")


def run(bcd, what, *arguments):
    return subprocess.run([bcd, "journal", what, *map(str, arguments)], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=60, env=clean_env())


def lines(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_whole_journal_is_shown_as_text_and_as_json(bcd):
    done = run(bcd, "show", "--file", SAMPLE)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^node +node_01k5zq6w8e3x9m2n7p4r0t1v5y$", done.stdout, re.M)
    assert re.search(r"^whole +yes$", done.stdout, re.M)
    assert re.search(r"^event +9 +\S+ dropped +events_dropped 7 of 3 to 9 ", done.stdout, re.M)
    head, *rest = lines(run(bcd, "show", "--json", "--file", SAMPLE))
    assert head["ok"] and head["damage"] is None and head["path"] == str(SAMPLE)
    assert (head["position"], head["acknowledged"], head["unacknowledged"], head["keys"]) == (23, 2, 15, 3)
    keys = [line for line in rest if line["type"] == "key"]
    assert [(key["kind"], key["key"], key["bytes"]) for key in keys] == [
        ("command", "cmd_2", 0), ("spec", "spec", 100), ("mark", "boot", 2)]
    events = [line for line in rest if line["type"] == "event"]
    assert [event["sequence"] for event in events] == list(range(9, 24))
    assert events[0]["subject"] == "7 of 3 to 9" and events[-1]["class"] == "result"


def test_verify_counts_every_record(bcd):
    done = run(bcd, "verify", "--json", "--file", SAMPLE)
    records = sum(1 for line in SAMPLE.with_suffix(".txt").read_text().splitlines() if "durable to" in line)
    assert done.returncode == 0
    assert lines(done)[0]["records"] == records


def test_it_reads_while_another_process_appends_and_compacts(bcd, load, tmp_path):
    with open(tmp_path / "positions", "wb") as out:
        writer = subprocess.Popen([load, "write", tmp_path], stdout=out, stderr=subprocess.PIPE)
    try:
        wait_for("the first commits", lambda: (tmp_path / "positions").stat().st_size > 1000)
        before, seen = 0, set()
        deadline = time.monotonic() + 4
        while time.monotonic() < deadline:
            done = run(bcd, "verify", "--json", "--file", tmp_path / "journal.db")
            assert done.returncode == 0, done.stdout + done.stderr
            head = lines(done)[0]
            assert head["ok"] and head["position"] >= before
            before = head["position"]
            seen.add((tmp_path / "journal.db").stat().st_ino)
            shown = lines(run(bcd, "show", "--json", "--file", tmp_path / "journal.db"))
            sequences = [line["sequence"] for line in shown if line["type"] == "event"]
            assert sequences == list(range(sequences[0], sequences[-1] + 1))
        assert writer.poll() is None, writer.stderr.read()
        assert len(seen) > 1, "it was never compacted meanwhile"
    finally:
        writer.kill()
        writer.wait()
    # And what was printed as committed before the kill is there.
    last = int((tmp_path / "positions").read_text().rsplit("\n", 2)[-2])
    dump = json.loads(subprocess.run([load, "dump", tmp_path], check=True, capture_output=True, text=True).stdout)
    assert dump["position"] >= last and not dump["damaged"]


def test_killed_again_and_again_it_loses_nothing_it_confirmed(load, tmp_path):
    for _ in range(12):
        out = tmp_path / "positions"
        with open(out, "wb") as file:
            writer = subprocess.Popen([load, "write", tmp_path], stdout=file)
        wait_for("commits", lambda: out.stat().st_size > 300)
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        text = out.read_text()
        last = int(text[:text.rindex("\n")].rsplit("\n", 1)[-1])
        dump = json.loads(subprocess.run([load, "dump", tmp_path], check=True, capture_output=True, text=True).stdout)
        assert dump["position"] >= last and not dump["damaged"]


@pytest.mark.parametrize("content, words", [
    (b"", "it is empty (0 bytes)"),
    (bytes(9000), "it holds nothing but zeros (9000 bytes)"),
    (b"no journal at all" * 99, "it is no journal, or both its headers are damaged"),
])
def test_what_is_no_journal_is_named(bcd, tmp_path, content, words):
    path = tmp_path / "journal.db"
    path.write_bytes(content)
    for what in ("show", "verify"):
        done = run(bcd, what, "--file", path)
        assert done.returncode == 1 and done.stdout == ""
        assert words in done.stderr and len(done.stderr.splitlines()) == 1
        done = run(bcd, what, "--json", "--file", path)
        assert done.returncode == 1 and not lines(done)[0]["ok"]
    assert path.read_bytes() == content


def test_a_damaged_record_is_found_and_the_rest_is_shown(bcd, tmp_path):
    path = tmp_path / "journal.db"
    damaged = bytearray(SAMPLE.read_bytes())
    damaged[damaged.index(b"event 12")] ^= 1
    path.write_bytes(damaged)
    done = run(bcd, "verify", "--file", path)
    assert done.returncode == 1
    assert re.search(r"^whole +no: a record cannot be read, and later ones can, at byte \d+; \d+ records can be read, "
                     r"\d+ bytes cannot$", done.stdout, re.M)
    head, *rest = lines(run(bcd, "show", "--json", "--file", path))
    sequences = [line["sequence"] for line in rest if line["type"] == "event"]
    assert not head["ok"] and 12 not in sequences and {11, 13, 23} <= set(sequences)
    assert path.read_bytes() == damaged


def test_a_write_that_did_not_end_is_no_damage(bcd, tmp_path):
    path = tmp_path / "journal.db"
    whole = SAMPLE.read_bytes()
    end = int(SAMPLE.with_suffix(".txt").read_text().splitlines()[-1].split()[0])
    path.write_bytes(whole[:end - 20])
    head = lines(run(bcd, "verify", "--json", "--file", path))[0]
    assert head["ok"] and head["torn_bytes"] > 0 and head["position"] < 23


def test_a_newer_version_a_missing_file_and_other_things_have_their_own_words(bcd, tmp_path):
    done = run(bcd, "verify", "--file", tmp_path / "none.db")
    assert done.returncode == 1 and f"there is no journal at {tmp_path}/none.db" in done.stderr
    (tmp_path / "folder").mkdir()
    assert "it is a directory, not a regular file" in run(bcd, "verify", "--file", tmp_path / "folder").stderr
    (tmp_path / "link").symlink_to(SAMPLE)
    assert "it is a symlink, not a regular file" in run(bcd, "show", "--file", tmp_path / "link").stderr
    os.mkfifo(tmp_path / "fifo")
    assert "pipe or socket" in run(bcd, "show", "--file", tmp_path / "fifo").stderr


def test_the_configuration_says_where_it_is(bcd, tmp_path, join):
    node = join()
    done = node.run("journal", "show")
    assert done.returncode == 1 and f"there is no journal at {node.data_dir}/journal.db" in done.stderr
    shutil.copy(SAMPLE, node.data_dir / "journal.db")
    done = node.run("journal", "verify")
    assert done.returncode == 0 and f"{node.data_dir}/journal.db\n" in done.stdout


def test_a_full_journal_is_checked_in_little_time_and_memory(bcd, load, tmp_path):
    subprocess.run([load, "fill", tmp_path], check=True, timeout=300)
    path = tmp_path / "journal.db"
    assert 63 << 20 < path.stat().st_size < 66 << 20
    # It prints more than a pipe takes: with nobody reading it stands still, with everything opened.
    show = subprocess.Popen([bcd, "journal", "show", "--json", "--file", path], stdout=subprocess.PIPE)
    wait_for("bcd to wait for its reader", lambda: pathlib.Path(f"/proc/{show.pid}/wchan").read_text().startswith("pipe")
             or pathlib.Path(f"/proc/{show.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "S")
    status = pathlib.Path(f"/proc/{show.pid}/status").read_text()
    peak = int(re.search(r"^VmHWM:\s+(\d+) kB", status, re.M)[1])
    assert len(show.communicate()[0].splitlines()) > 9000 and show.returncode == 0
    times = []
    for _ in range(3):
        child = subprocess.Popen([bcd, "journal", "verify", "--json", "--file", path], stdout=subprocess.PIPE)
        head = json.loads(child.stdout.read())
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        assert child.returncode == 0 and head["ok"] and head["unacknowledged"] > 8000 and head["keys"] == 1000
        times.append(usage.ru_utime + usage.ru_stime)
    hold("journal.open.peak", peak)
    # What else the machine does makes it slower, never faster.
    hold("journal.open.cpu", min(times) * 1e3)
