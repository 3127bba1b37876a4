"""What the campaigns share: a program under the injector, the faults to try on it, and what must be true of what it says."""

import errno
import hashlib
import itertools
import json
import os
import pathlib
import signal
import sys

import pytest

from lab import wait_for

# FAULTS=all tries every call that a run makes, FAULTS=20 so many of each kind and what becomes of it; without it, one.
ALL = os.environ.get("FAULTS") == "all"
TRIED = None if ALL else int(os.environ.get("FAULTS", "1"))

FULL, BROKEN, MANY, SIGNAL, SHORT = "ENOSPC", "EIO", "EMFILE", "EINTR", "short"
# What may become of a call, by its kind. Nobody may notice the last two.
FAULTS = {
    "open": (BROKEN, MANY, SIGNAL),
    "create": (FULL, BROKEN, MANY, SIGNAL),
    "read": (BROKEN, SIGNAL, SHORT),
    "readv": (BROKEN, SIGNAL, SHORT),
    "pread": (BROKEN, SIGNAL, SHORT),
    "write": (FULL, BROKEN, SIGNAL, SHORT),
    "writev": (FULL, BROKEN, SIGNAL, SHORT),
    "pwrite": (FULL, BROKEN, SIGNAL, SHORT),
    "sync": (FULL, BROKEN, SIGNAL),
    "allocate": (FULL, BROKEN, SIGNAL),
    "truncate": (BROKEN, SIGNAL),
    "rename": (FULL, BROKEN),
    "link": (FULL, BROKEN),
    "unlink": (BROKEN,),
    "mkdir": (FULL, BROKEN),
    "chmod": (BROKEN,),
    "list": (BROKEN,),
    "stat": (BROKEN,),
    "flock": (SIGNAL,),
    "ioctl": (BROKEN,),
    "socket": (MANY,),
    "accept": (MANY, SIGNAL),
    "dup": (MANY,),
    "pipe": (MANY,),
    "eventfd": (MANY,),
    "epoll_create": (MANY,),
    "signalfd": (MANY,),
    "timerfd": (MANY,),
    "send": (BROKEN, SIGNAL, SHORT),
    "sendmsg": (BROKEN, SIGNAL, SHORT),
    # Not short: as epoll(7) has it, a socket that gives less than was asked for has no more.
    "receive": (BROKEN, SIGNAL),
    "receivemsg": (BROKEN, SIGNAL),
    "epoll": (SIGNAL,),
    "poll": (SIGNAL,),
    "sleep": (SIGNAL,),
    "futex": (SIGNAL,),
    "getrandom": (SIGNAL,),
}
UNSEEN = (SIGNAL, SHORT)
PLAN = itertools.count(1)


class Injected:
    """What a program is run by, so that its calls go wrong."""

    def __init__(self, directory, data):
        directory.mkdir(exist_ok=True)
        self.plan, self.report_path = directory / "plan", directory / "report"
        self.prefix = [sys.executable, str(pathlib.Path(__file__).with_name("inject.py")), "--plan", str(self.plan),
                       "--report", str(self.report_path), "--data", str(data), "--"]

    def arm(self, *faults):
        """What goes wrong from the program's start on."""
        id = next(PLAN)
        new = self.plan.with_suffix(".new")
        new.write_text(json.dumps({"id": id, "faults": faults}))
        new.rename(self.plan)
        return id

    def rearm(self, process, *faults):
        """What goes wrong from now on in a program that runs; what was made and what went wrong until now."""
        id = self.arm(*faults)

        def taken():
            # Again and again: one that comes just before the injector waits for calls is looked at after the next of them.
            process.process.send_signal(signal.SIGUSR1)
            return not process.running() or self.report()["plan"] == id

        wait_for("the injector to take a plan", taken)
        return self.report()["before"]

    def report(self):
        return json.loads(self.report_path.read_text())


def fault(kind, where, nth, what, times=1):
    return {"kind": kind, "where": where, "nth": nth, "what": what, "times": times}


def campaign(counts, leave_out=()):
    """The faults to try on a run that made so many calls of each kind."""
    for name, count in sorted(counts.items()):
        kind, where = name.split()
        # An eventfd neither fails nor waits, but when it has been called 2^64 times.
        if where in ("library", "anon") or (kind, where) in leave_out:
            continue
        for what in FAULTS.get(kind, ()):
            if (where, what) == ("datagram", SHORT):
                continue
            numbers = sorted(range(1, count + 1), key=lambda n: hashlib.sha256(f"{name} {what} {n}".encode()).digest())
            for nth in sorted(numbers[:TRIED]):
                yield fault(kind, where, nth, what)


def says(text, what):
    """Whether a text names an error, as Rust has it in every C library's words."""
    return f"(os error {getattr(errno, what)})" in text


@pytest.fixture
def injected(tmp_path):
    """injected(name, data) gives what a program is run by."""
    return lambda name, data: Injected(tmp_path / f"{name}-faults", data)
