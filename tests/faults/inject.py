"""Runs a program and has some of its system calls go wrong: what a disk, a kernel or a signal may do at any moment.

    python inject.py --plan PLAN --report REPORT --data DIR -- PROGRAM ...

A call is known by its kind and by where it goes, whatever the C library makes of it (see `KINDS` and `place`). The plan is a
JSON object `{"id": ..., "faults": [{"kind", "where", "nth", "times", "what"}, ...]}`: the nth call of that kind there, and the
`times - 1` after it, counted over all threads and children from when the plan was read, go wrong. `what` is the name of an
error, and then the call is not made; or `short`, and then it is made, for half of the bytes. On SIGUSR1 the plan is read anew.

The report has the plan's `id`, how many calls of each kind were made, and what went wrong where; the same of the plan `before`. It replaces the one before in one
rename, at each fault, at each new plan and at the end. SIGTERM goes to the program; a death of this one takes the program with it. The exit code is
the program's. x86-64 alone.
"""

import argparse
import ctypes
import errno
import functools
import json
import os
import signal
import socket
import stat
import struct
import sys

# linux/ptrace.h
PEEKDATA, POKEDATA, POKEUSER = 2, 5, 6
CONT_SYSCALL, SEIZE, LISTEN, GET_SYSCALL_INFO = 24, 0x4206, 0x4208, 0x420E
# TRACESYSGOOD, TRACEFORK, TRACEVFORK, TRACECLONE, TRACEEXEC, EXITKILL
OPTIONS = 1 | 2 | 4 | 8 | 16 | 1 << 20
EVENT_STOP = 128
PIDFD_GETFD = 438
WALL = 0x40000000
ENTRY, EXIT = 1, 2
# Offsets in user_regs_struct.
RAX, RDX, ORIG_RAX = 10 * 8, 12 * 8, 15 * 8
O_CREAT = 0o100

BY_FD, BY_PATH, BY_AT = "fd", "path", "at"
# x86-64's numbers: the kind, and how the call says what it goes to.
KINDS = {
    0: ("read", BY_FD), 1: ("write", BY_FD), 2: ("open", BY_PATH), 4: ("stat", BY_PATH), 5: ("stat", BY_FD),
    6: ("stat", BY_PATH), 7: ("poll", None), 16: ("ioctl", BY_FD),
    17: ("pread", BY_FD), 18: ("pwrite", BY_FD), 19: ("readv", BY_FD), 20: ("writev", BY_FD), 22: ("pipe", None),
    23: ("poll", None), 32: ("dup", BY_FD), 35: ("sleep", None), 41: ("socket", None), 42: ("connect", BY_FD),
    43: ("accept", BY_FD), 44: ("send", BY_FD), 45: ("receive", BY_FD), 46: ("sendmsg", BY_FD), 47: ("receivemsg", BY_FD),
    72: ("fcntl", BY_FD), 73: ("flock", BY_FD), 74: ("sync", BY_FD), 75: ("sync", BY_FD), 77: ("truncate", BY_FD),
    82: ("rename", BY_PATH), 83: ("mkdir", BY_PATH), 87: ("unlink", BY_PATH), 91: ("chmod", BY_FD), 217: ("list", BY_FD),
    202: ("futex", None), 230: ("sleep", None), 232: ("epoll", None), 257: ("open", BY_AT), 258: ("mkdir", BY_AT),
    260: ("chown", BY_AT), 262: ("stat", BY_AT), 263: ("unlink", BY_AT), 264: ("rename", BY_AT), 265: ("link", BY_AT),
    271: ("poll", None), 281: ("epoll", None), 283: ("timerfd", None), 285: ("allocate", BY_FD), 288: ("accept", BY_FD),
    289: ("signalfd", None), 290: ("eventfd", None), 291: ("epoll_create", None), 292: ("dup", BY_FD), 293: ("pipe", None),
    316: ("rename", BY_AT), 318: ("getrandom", None), 332: ("stat", BY_AT), 437: ("open", BY_AT), 441: ("epoll", None),
}
OPENAT2 = 437
# FUTEX_WAIT and FUTEX_WAIT_BITSET: the others wake somebody, and never fail.
FUTEX_CMD_MASK, FUTEX_WAITS = 127, (0, 9)
# Where the bytes are counted by the third argument.
COUNTED = {"read", "write", "pread", "pwrite", "send", "receive", "list"}
VECTORS = {"readv", "writev"}
MESSAGES = {"sendmsg", "receivemsg"}
# A disk takes and gives whole sectors, also when it is less than was asked for.
SECTOR = 512

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.restype = ctypes.c_long
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def ptrace(request, tid, address=0, data=0):
    """-1 is an answer of PEEKDATA's too, so it is errno that tells; a thread that is gone is no error."""
    ctypes.set_errno(0)
    done = libc.ptrace(request, tid, address, data)
    number = ctypes.get_errno()
    if done == -1 and number not in (0, errno.ESRCH):
        raise OSError(number, f"ptrace {request:#x}: {os.strerror(number)}")
    return done


def text(tid, address):
    """A string in the program's memory."""
    with open(f"/proc/{tid}/mem", "rb", 0) as memory:
        memory.seek(address)
        return memory.read(4096 - address % 4096).split(b"\0")[0].decode(errors="replace")


def word(tid, address):
    return ptrace(PEEKDATA, tid, address) & (1 << 64) - 1


class Injector:
    """The program's threads, and what is to become of their calls."""

    def __init__(self, plan, report, data):
        self.plan_path, self.report_path, self.data = plan, report, data
        self.id, self.faults, self.counts, self.done, self.before = None, [], {}, [], None
        self.changed = {}  # by thread: what is to be put right when its call returns

    def read_plan(self, *_):
        with open(self.plan_path) as file:
            plan = json.load(file)
        if plan["id"] == self.id:
            return
        self.before = {"counts": self.counts, "done": self.done}
        self.id, self.faults, self.counts, self.done = plan["id"], plan["faults"], {}, []
        self.write_report()

    def write_report(self):
        new = f"{self.report_path}.new"
        with open(new, "w") as file:
            json.dump({"plan": self.id, "counts": self.counts, "done": self.done, "before": self.before}, file)
        os.rename(new, self.report_path)

    def run(self, command):
        go, ready = os.pipe()
        self.child = os.fork()
        if self.child == 0:
            os.close(ready)
            os.read(go, 1)
            os.close(go)
            os.execvp(command[0], command)
        os.close(go)
        ptrace(SEIZE, self.child, 0, OPTIONS)
        os.write(ready, b".")
        os.close(ready)
        signal.signal(signal.SIGTERM, lambda *_: os.kill(self.child, signal.SIGTERM))
        signal.signal(signal.SIGUSR1, self.read_plan)
        while True:
            tid, status = os.waitpid(-1, WALL)
            if not os.WIFSTOPPED(status):
                self.changed.pop(tid, None)
                if tid == self.child:
                    self.write_report()
                    return status
                continue
            self.stopped(tid, os.WSTOPSIG(status), status >> 16)

    def stopped(self, tid, number, event):
        if number == signal.SIGTRAP | 0x80:
            self.call(tid)
            number = 0
        elif event == EVENT_STOP and number != signal.SIGTRAP:
            ptrace(LISTEN, tid)
            return
        elif event:
            number = 0
        ptrace(CONT_SYSCALL, tid, 0, number)

    def call(self, tid):
        info = ctypes.create_string_buffer(88)
        if ptrace(GET_SYSCALL_INFO, tid, len(info), ctypes.addressof(info)) <= 0:
            return
        if info.raw[0] == EXIT:
            for request, address, value in self.changed.pop(tid, ()):
                ptrace(request, tid, address, value)
        elif info.raw[0] == ENTRY:
            call, *arguments = struct.unpack_from("7Q", info.raw, 24)
            if call in KINDS:
                self.enter(tid, call, arguments)

    def enter(self, tid, call, arguments):
        kind, by = KINDS[call]
        if kind == "futex" and arguments[1] & FUTEX_CMD_MASK not in FUTEX_WAITS:
            return
        path = self.path(tid, by, arguments)
        if kind == "open":
            at = arguments[1] if by == BY_PATH else arguments[2]
            kind = "create" if (word(tid, at) if call == OPENAT2 else at) & O_CREAT else "open"
        where = self.place(tid, path, arguments[0] if by == BY_FD else None)
        name = f"{kind} {where}"
        count = self.counts[name] = self.counts.get(name, 0) + 1
        for fault in self.faults:
            nth, times = fault["nth"], fault.get("times", 1)
            if (fault["kind"], fault["where"]) == (kind, where) and nth <= count < nth + times:
                if self.spoil(tid, kind, arguments, fault["what"], SECTOR if where == "disk" else 1):
                    self.done.append({**fault, "path": path, "count": count})
                    self.write_report()
                return

    def spoil(self, tid, kind, arguments, what, grain):
        """Has a call go wrong; whether it can."""
        if what != "short":
            ptrace(POKEUSER, tid, ORIG_RAX, -1)
            self.changed[tid] = [(POKEUSER, RAX, -getattr(errno, what))]
            return True
        if kind in COUNTED:
            request, address, length = POKEUSER, RDX, arguments[2]
        else:
            vector, count = arguments[1], arguments[2]
            if kind in MESSAGES:
                vector, count = (word(tid, arguments[1] + at) for at in (16, 24))
            # Of the first piece alone, which is what is cut.
            length = word(tid, vector + 8) if count else 0
            if kind in MESSAGES and count > 1:
                request, address, length = POKEDATA, arguments[1] + 24, count
            elif kind in VECTORS and count > 1:
                request, address, length = POKEUSER, RDX, count
            else:
                request, address = POKEDATA, vector + 8
        less = length // 2 // grain * grain
        if less == 0:
            return False
        ptrace(request, tid, address, less)
        self.changed[tid] = [(request, address, length)]
        return True

    def path(self, tid, by, arguments):
        try:
            if by == BY_FD:
                return os.readlink(f"/proc/{tid}/fd/{arguments[0]}")
            if by == BY_PATH:
                return text(tid, arguments[0])
            if by == BY_AT:
                return os.path.join(self.directory(tid, arguments[0]), text(tid, arguments[1])).rstrip("/")
        except OSError:
            pass
        return ""

    @staticmethod
    def directory(tid, fd):
        fd = ctypes.c_int(fd & 0xFFFFFFFF).value
        return os.readlink(f"/proc/{tid}/cwd" if fd < 0 else f"/proc/{tid}/fd/{fd}")

    def place(self, tid, path, fd):
        """Where a call goes, in a word."""
        if fd in (1, 2):
            return "output"
        if path.startswith(self.data):
            return "data"
        if path.startswith("/dev/"):
            return "disk" if is_disk(path) else "device"
        if path.startswith(("/proc/", "/sys/")):
            return "kernel"
        if path.startswith("/"):
            # A program that is not static is loaded by another's code.
            return "library" if ".so" in os.path.basename(path) else "file"
        if path.startswith("socket:") and is_datagram(tid, fd, path):
            return "datagram"
        # socket:[12], pipe:[12], anon_inode:[eventfd]
        return path.split(":[")[0].split("_")[0] or "nowhere"


def is_disk(path):
    try:
        return stat.S_ISBLK(os.stat(path).st_mode)
    except OSError:
        return False


@functools.cache
def is_datagram(tid, fd, _):
    """Whether what is sent over a socket goes whole or not at all. The last, its inode, is for the cache."""
    with open(f"/proc/{tid}/status") as status:
        process = next(int(line.split()[1]) for line in status if line.startswith("Tgid:"))
    pidfd = os.pidfd_open(process)
    copy = libc.syscall(PIDFD_GETFD, pidfd, fd, 0)
    os.close(pidfd)
    if copy < 0:
        return False
    with socket.socket(fileno=copy) as same:
        return same.type != socket.SOCK_STREAM


def main():
    parser = argparse.ArgumentParser()
    for flag in ("--plan", "--report", "--data"):
        parser.add_argument(flag, required=True)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    injector = Injector(options.plan, options.report, options.data)
    injector.read_plan()
    status = injector.run(options.command)
    if os.WIFSIGNALED(status):
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    return os.WEXITSTATUS(status)


if __name__ == "__main__":
    sys.exit(main())
