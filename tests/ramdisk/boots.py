"""One boot of a machine, as `bcd ramdisk` sees it: a file with its command line, and a directory for its tmpfs."""

import re
import subprocess

import pytest

from lab import Background, clean_env, wait_for

OTHER = "52:54:00:99:99:99"


class Boot:
    """One boot of a machine: its command line, and what is on its tmpfs."""

    def __init__(self, bcd, dev, directory, line):
        self.bcd, self.dev, self.dir = bcd, dev, directory
        directory.mkdir()
        self.line = line
        self.data_dir = directory / "run"
        self.process = None

    @property
    def command(self):
        line = self.line if isinstance(self.line, bytes) else self.line.encode()
        (self.dir / "cmdline").write_bytes(line + b"\n")
        return [self.bcd, "ramdisk", "--cmdline", self.dir / "cmdline", "--data-dir", self.data_dir]

    def run(self):
        """It must end by itself: its exit code and its errors."""
        done = subprocess.run(self.command, capture_output=True, text=True, timeout=60, env=clean_env())
        return done.returncode, done.stderr

    def start(self):
        self.process = Background(self.command, self.dir / "log")
        return self.process

    def connected(self):
        def node():
            if not self.process.running():
                pytest.fail(f"bcd ramdisk ended:\n{self.process.output()}")
            return next((n for n in self.dev.nodes() if n["state"] == "connected"), None)
        return wait_for("the ramdisk to be connected", node)

    def parameter(self, name):
        return re.search(rf"(?:^| ){re.escape(name)}=(\S+)", self.line)[1]

    def with_parameter(self, name, value):
        self.line = self.line.replace(f"{name}={self.parameter(name)}", f"{name}={value}")


def secrets(boot):
    return [boot.parameter("bc.token").split(".")[1], boot.parameter("bc.assertion")]
