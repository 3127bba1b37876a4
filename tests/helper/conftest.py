"""A helper on this machine, for the account nobody. Python is what is installed as bcd: so what asks can do anything.

`reboot` is asked for in tests/install alone, in a container: here it would be heard.
"""

import contextlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from lab import Background, clean_env, wait_for

PEER = Path(__file__).with_name("peer.py")
ACCOUNT = pwd.getpwnam("nobody")
PYTHON = os.path.realpath("/usr/bin/python3")
PIN = "sha256/" + "A" * 43 + "="


class Helper:
    def __init__(self, bcd, directory):
        self.bcd, self.dir = bcd, directory
        self.run_dir = directory / "run"
        self.run_dir.mkdir(mode=0o755)
        self.socket = self.run_dir / "helper.sock"
        self.config = directory / "config.toml"
        self.slots = directory / "slots"
        self.process = None
        self.write()
        # Somebody's own program: the same bytes in another file.
        self.copy = directory / "python"
        shutil.copy(PYTHON, self.copy)
        self.peer = directory / "peer.py"
        shutil.copy(PEER, self.peer)

    def write(self, user="nobody"):
        self.config.write_text(
            f'gateway_url = "https://127.0.0.1:9"\nsite = "s"\nserving_ca_spki_pin = "{PIN}"\njoin_signing_key_pin = "{PIN}"\n'
            f'join_encryption_key_pin = "{PIN}"\ndata_dir = "{self.dir}/data"\n[helper]\nsocket = "{self.socket}"\nuser = "{user}"\n'
            f'[update]\nentrypoint = "{PYTHON}"\nslots_dir = "{self.slots}"\n')
        self.config.chmod(0o640)

    def command(self):
        return [str(self.bcd), "helper", "--config", str(self.config)]

    def start(self):
        self.process = Background(self.command(), self.dir / "helper.log")
        wait_for("the socket", lambda: self.socket.exists() or not self.process.running(), 10)
        assert self.process.running(), self.process.output()
        return self

    def refuses(self):
        """What a helper says that does not start, and its exit code."""
        done = subprocess.run(self.command(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10, env=clean_env())
        assert not self.socket.exists()
        return done.returncode, done.stderr

    def log(self):
        return [json.loads(line) for line in self.process.output().splitlines() if line.startswith("{")]

    def events(self, name):
        return [line for line in self.log() if line["event"] == name]

    def spawn(self, *actions, program=PYTHON, uid=ACCOUNT.pw_uid, gid=ACCOUNT.pw_gid, before=()):
        rights = ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups"]
        return subprocess.Popen([*before, *rights, str(program), str(self.peer), str(self.socket), *actions],
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/",
                                env=clean_env())

    def said(self, *actions, **how):
        """Each line that the helper said to a peer."""
        peer = self.spawn(*actions, **how)
        out, err = peer.communicate(timeout=40)
        assert out, err
        return [json.loads(line) for line in out.splitlines()]

    def serves(self):
        """Somebody who may ask is heard, to the end."""
        greeting, answer = self.said("connect", "hear", "ask=sshd.reload", "hear")
        assert "done" in answer, self.process.output()[-3000:]
        assert greeting["protocol"] == 1 and greeting["pid"] == self.process.pid
        assert answer["done"] is False and answer["reason"] in ("ReloadRefused", "NotRunning"), answer

    @contextlib.contextmanager
    def asleep(self):
        """Everything that happens meanwhile has happened when the helper looks at it."""
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)


@pytest.fixture
def stopped(bcd):
    """One that is not started. Its directories are root's alone from / down, which pytest's are not."""
    assert sys.platform == "linux"
    directory = Path(tempfile.mkdtemp(prefix="bcd-helper-", dir="/run"))
    directory.chmod(0o755)
    helper = Helper(bcd, directory)
    yield helper
    if helper.process:
        helper.process.kill()
    shutil.rmtree(directory)


@pytest.fixture
def helper(stopped):
    return stopped.start()
