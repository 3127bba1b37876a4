"""A machine of QEMU's: booted from a kernel and an image, watched over its serial lines, ended by its pid.

Everything is emulated (accel=tcg), so that it runs where machines cannot be virtualised.
"""

import contextlib
import datetime
import json
import pathlib
import re
import shutil
import socket
import subprocess
import threading
import time

import pytest

from lab import clean_env, wait_for


# A host that is busy starves the guest for moments, in which its clock seems not to tick.
TOLERANT = "no_timer_check random.trust_cpu=on"

# The arm64 one has a single serial line, ttyAMA0.
HARDWARE = {
    "amd64": ["qemu-system-x86_64", "-machine", "q35,accel=tcg", "-vga", "std"],
    "arm64": ["qemu-system-aarch64", "-machine", "virt,accel=tcg", "-cpu", "cortex-a57"],
}


class Machine:
    """One guest. `log` is what it said on ttyS0, `debug` what it said on ttyS1. With `direct=False` it has no kernel
    until its firmware finds one. `prefix` is a command that runs another, in a namespace say."""

    def __init__(self, directory, kernel, image, cmdline, *more, memory=512, processors=1, direct=True, prefix=(), arch="amd64"):
        directory.mkdir(parents=True, exist_ok=True)
        self.dir = directory
        self.log = directory / "console.log"
        self.debug = directory / "debug.log"
        self.log.touch()
        self.process = None
        self.command = [
            *prefix, *HARDWARE[arch], "-m", str(memory), "-smp", str(processors), "-display", "none", "-nodefaults",
            "-no-user-config",
            *(["-kernel", str(kernel), "-initrd", str(image), "-append", f"{TOLERANT} {cmdline}"] if direct else []),
            "-chardev", f"file,id=s0,path={self.log},append=on", "-serial", "chardev:s0",
            "-chardev", f"socket,id=s1,path={directory}/s1,server=on,wait=off,logfile={self.debug}",
            *(["-serial", "chardev:s1"] if arch == "amd64" else []),
            "-qmp", f"unix:{directory}/qmp,server=on,wait=off", *more]

    def start(self):
        with open(self.dir / "qemu.log", "ab") as out:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=clean_env())
        self.its_shell = None
        return self

    def kill(self):
        """As if the power went."""
        if self.process:
            if self.process.poll() is None:
                self.process.kill()
            self.process.wait()

    def output(self, log=None):
        return (log or self.log).read_text(errors="replace").replace("\r", "")

    def wait_for(self, pattern, seconds=150.0, log=None, after=0):
        """Waits until the console matches; returns the match. A guest that dies, or the time, fails the test."""
        deadline = time.monotonic() + seconds
        while True:
            found = re.compile(pattern, re.M).search(self.output(log), after)
            if found:
                return found
            if self.process.poll() is not None:
                pytest.fail(f"the guest ended while waiting for {pattern!r}:\n"
                            f"{(self.dir / 'qemu.log').read_text()}\n{self.output(log)[-3000:]}")
            if time.monotonic() > deadline:
                pytest.fail(f"waited {seconds:.0f} s for {pattern!r} on the console:\n{self.output(log)[-4000:]}")
            time.sleep(0.1)

    def qmp(self, command, **arguments):
        """One command of QEMU's monitor."""
        with socket.socket(socket.AF_UNIX) as monitor:
            monitor.settimeout(20)
            wait_for("qemu's monitor", lambda: monitor.connect_ex(str(self.dir / "qmp")) == 0)
            lines = monitor.makefile("rw")
            lines.readline()
            for order in ({"execute": "qmp_capabilities"}, {"execute": command, "arguments": arguments}):
                lines.write(json.dumps(order))
                lines.flush()
                while True:
                    answer = json.loads(lines.readline())
                    if "error" in answer:
                        pytest.fail(f"qemu: {command}: {answer['error']}")
                    if "return" in answer:
                        break
            return answer["return"]

    def shell(self):
        """The shell on ttyS1, if the guest has one there; QEMU serves one client."""
        self.its_shell = self.its_shell or Shell(self)
        return self.its_shell


class Shell:
    """Runs commands on a guest's second serial line."""

    def __init__(self, machine):
        self.machine = machine
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(machine.dir / "s1"))
        # What nobody reads would stop the guest's line; the log has it.
        threading.Thread(target=self.drain, daemon=True).start()
        self.count = 0

    def drain(self):
        with contextlib.suppress(OSError):
            while self.socket.recv(65536):
                pass

    def run(self, command, seconds=120.0):
        """The command's output."""
        self.count += 1
        # The marks in two parts: the terminal echoes the command, once or twice, and neither may be taken for them. What init
        # and bcd say on the same terminal may stand before them on their lines.
        before = len(self.machine.output(self.machine.debug))
        self.socket.sendall(f"echo be''gin-{self.count}; {command}; echo do''ne-{self.count}\n".encode())
        done = self.machine.wait_for(f"done-{self.count}$", seconds, self.machine.debug, before)
        text = self.machine.output(self.machine.debug)[before:done.start()]
        return re.split(f"begin-{self.count}\n", text, maxsplit=1)[-1]

    def number(self, command):
        """The number that a command prints, whatever else is said around it."""
        return int(re.search(r"^\d+$", self.run(command), re.M)[0])


def days_ahead(days):
    """Where a clock stands that is ahead by so much, for QEMU's `-rtc base=`."""
    now = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=days)
    return now.strftime("%Y-%m-%dT%H:%M:%S")


def uefi(variables, keys=False):
    """UEFI firmware that keeps its variables in the file `variables`; with `keys` under Secure Boot, by Microsoft's."""
    directory, kind = pathlib.Path("/usr/share/OVMF"), ".ms.fd" if keys else ".fd"
    if not variables.exists():
        shutil.copy(directory / f"OVMF_VARS_4M{kind}", variables)
    return ["-drive", f"if=pflash,format=raw,unit=0,readonly=on,file={directory}/OVMF_CODE_4M{kind}",
            "-drive", f"if=pflash,format=raw,unit=1,file={variables}"]


def nvme(path, serial, *device):
    return [*drive(path, serial, cache="unsafe"), "-device",
            ",".join([f"nvme,drive={serial},serial={serial}", *device])]


def drive(path, name, *options, cache="writethrough"):
    return ["-drive", ",".join([f"file={path},if=none,id={name},format=raw,cache={cache}", *options])]


def virtio(path, serial, *options, device=(), cache="writethrough"):
    return [*drive(path, serial, *options, cache=cache), "-device",
            ",".join([f"virtio-blk-pci,drive={serial},serial={serial}", *device])]


@contextlib.contextmanager
def swapped(guest, drive, **device):
    """The guest's SCSI disk `disk` is another from here on, `disk2`, of the same name; bcd stands still until the block is left."""
    with standing_still(guest) as shell:
        guest.qmp("device_del", id="disk")
        wait_for("the disk to go", lambda: "sda" not in shell.run("busybox ls /sys/block"), 60)
        plugged(guest, shell, "sda", lun="1", id="disk2", drive=drive, device_id="same", **device)
        yield


@contextlib.contextmanager
def standing_still(guest):
    """bcd sees nothing of what happens to the guest, and tells of nothing; gives the guest's shell."""
    shell = guest.shell()
    shell.run("busybox killall -STOP bcd")
    yield shell
    shell.run("busybox killall -CONT bcd")


def plugged(guest, shell, name, **device):
    """A SCSI disk, which the guest's kernel calls `name`."""
    guest.qmp("device_add", driver="scsi-hd", bus="scsi.0", **device)
    wait_for("the other disk", lambda: name in shell.run("busybox ls /sys/block"), 60)


def user_network(name, mac, *more, options="", model="virtio-net-pci"):
    """A NIC on QEMU's own network: its DHCP server gives 10.0.2.15, the host is 10.0.2.2."""
    return ["-netdev", f"user,id={name}{options}", "-device", ",".join([f"{model},netdev={name},mac={mac},romfile=", *more])]


def silent_network(name, mac):
    """A NIC on a network where nobody answers."""
    return ["-netdev", f"hubport,id={name},hubid=9", "-device", f"virtio-net-pci,netdev={name},mac={mac},romfile="]
