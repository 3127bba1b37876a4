"""What a join executes: SPECIFICATION.md, "join.instructions"."""

import ctypes
import re
import struct
import subprocess

from lab import clean_env
from promises import hold

# From linux/prctl.h, linux/seccomp.h, linux/filter.h.
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, PR_GET_AUXV = 22, 38, 0x41555856
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, EINVAL = 0x7FFF0000, 0x00050016
NR_PRCTL = 157  # amd64


def refuse_auxv():
    """bcd asks the kernel for the auxiliary vector, and an old valgrind passes that on: bcd then finds the kernel's vDSO, which
    is not mapped there. Refused, it reads /proc/self/auxv, which valgrind makes. Nothing else is changed."""
    code = [(LOAD, 0, 0, 0), (EQUAL, 0, 3, NR_PRCTL), (LOAD, 0, 0, 16), (EQUAL, 0, 1, PR_GET_AUXV), (RETURN, 0, 0, EINVAL), (RETURN, 0, 0, ALLOW)]
    filter_ = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in code))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(code), ctypes.addressof(filter_)))
    libc = ctypes.CDLL(None)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, 2, program, 0, 0):
        raise OSError("the kernel takes no filter of system calls")


def test_a_join_executes_few_instructions(dev, make_node, token, tmp_path):
    node = make_node()
    # Which of ring's routines run is told by valgrind's processor, and hardly by this machine's: it knows no SHA instructions.
    done = subprocess.run(
        ["valgrind", "--tool=callgrind", f"--callgrind-out-file={tmp_path / 'callgrind.out'}",
         *node.command, "join", "--config", node.config],
        env=clean_env(BCD_JOIN_TOKEN=token()), capture_output=True, text=True, timeout=100, preexec_fn=refuse_auxv)
    assert done.returncode == 0, done.stdout + done.stderr
    # Keys and nonces are other ones each time: runs differ by less than a thousandth.
    executed = int(re.search(r"I +refs: +([\d,]+)", done.stderr)[1].replace(",", ""))
    hold("join.instructions", executed, room=1 if "linux_amd64" in str(node.command[0]) else 20,
         otherwise=f"`callgrind_annotate {tmp_path}/callgrind.out` tells where, with a bcd that has its symbols (CARGO_PROFILE_RELEASE_STRIP=none).")
