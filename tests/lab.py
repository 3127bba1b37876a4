"""What every lab uses: the programs under test, a running control plane, nodes. conftest.py has the fixtures.

The programs come from the environment or from where `make test` builds them:
BCD (the static amd64 bcd), BCD_ARM64, BETTER_COMPUTE.
"""

import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import threading
import time
import tomllib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
POOL, SITE = "pool_tests", "dev"


def version():
    return tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]


def program(variable, default):
    """The program under test. That it is missing fails the test: nothing here is skipped."""
    path = pathlib.Path(os.environ.get(variable) or ROOT / default)
    if not path.exists():
        pytest.fail(f"{path} is not built: run `tools/build.sh --tests amd64 arm64`, or set {variable}")
    return path


def wait_for(what, question, seconds=20.0):
    """Asks until the answer is true and returns it; a time-out names what was awaited and the last answer."""
    deadline = time.monotonic() + seconds
    while True:
        answer = question()
        if answer:
            return answer
        if time.monotonic() > deadline:
            pytest.fail(f"waited {seconds:.0f} s for {what}; the last answer was {answer!r}")
        time.sleep(0.05)


def clean_env(**more):
    """The environment without what would redirect bcd or the operator's commands."""
    ours = ("BCD_", "BETTER_COMPUTE_", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy")
    env = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    env.update(more)
    return env


class Background:
    """A program in the background whose output goes to a file; ended by its own pid, never by name."""

    def __init__(self, command, log, env=None):
        self.log = log
        with open(log, "ab") as out:
            self.process = subprocess.Popen(
                [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                env=env or clean_env())
        self.pid = self.process.pid

    def output(self):
        return self.log.read_text(errors="replace")

    def running(self):
        return self.process.poll() is None

    def kill(self):
        """SIGKILL: nothing gets a chance to be put in order."""
        if self.running():
            self.process.kill()
        self.process.wait()

    def terminate(self, seconds=10):
        """SIGTERM; returns the exit code."""
        if self.running():
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            pytest.fail(f"{self.process.args[0]} did not end within {seconds} s of SIGTERM:\n{self.output()}")


_ours = []


def own_port():
    """A port of this host for something that listens later, or again: no other lab gets it while this process lives, and
    it is none that the kernel picks for whoever connects or asks for any."""
    lowest = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in random.sample(range(10_000, lowest), 1000):
        mark, listener = socket.socket(socket.AF_UNIX), socket.socket()
        with listener:
            try:
                mark.bind(f"\0bcd-lab-port-{port}")
                listener.bind(("", port))
            except OSError:
                mark.close()
                continue
        _ours.append(mark)
        return port
    pytest.fail("no port of this host is free")


class Listener:
    """A port of this host where something else answers: `meet` has each connection; what it does not close hangs."""

    def __init__(self, meet):
        self.meet, self.taken = meet, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.taken.append(connection)
            self.meet(connection)

    def close(self):
        self.listener.close()


class ControlPlane:
    """`better-compute dev` in a directory of its own, on ports of its own."""

    flags = ()
    prefix = ()  # what stands before its command, and before the operator's

    def __init__(self, better_compute, directory):
        self.program = better_compute
        self.dir = directory
        self.process = None
        self.ports = {name: f"127.0.0.1:{own_port()}" for name in ("gateway", "http")}
        self.log = directory.parent / f"{directory.name}.log"

    def start(self):
        """Starts it and waits until it serves; after a kill it comes back on the same ports."""
        ready = self.dir / "dev.json"
        ready.unlink(missing_ok=True)
        self.process = Background(
            [*self.prefix, self.program, "dev", "--dir", self.dir, "--gateway", self.ports["gateway"],
             "--http", self.ports["http"], *self.flags], self.log)

        def serving():
            if not self.process.running():
                pytest.fail(f"better-compute dev ended with {self.process.process.returncode}:\n{self.process.output()}")
            with contextlib.suppress(OSError, ValueError):
                return json.loads(ready.read_text())

        self.info = wait_for(f"better-compute dev to write {ready}", serving)
        return self

    @property
    def gateway(self):
        """host:port of the gateway."""
        return self.ports["gateway"]

    def kill(self):
        self.process.kill()

    def run(self, *arguments, check=True, seconds=None):
        """An operator's command against this control plane. What a node does for it may take minutes."""
        seconds = seconds or (600 if "--wait" in arguments else 60)
        done = subprocess.run(
            [*self.prefix, str(self.program), *[str(a) for a in arguments], "--dir", str(self.dir)],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, env=clean_env(), timeout=seconds)
        if check and done.returncode != 0:
            pytest.fail(f"better-compute {' '.join(map(str, arguments))}: exit {done.returncode}\n{done.stderr}")
        return done

    def json(self, *arguments):
        return json.loads(self.run(*arguments, "--json").stdout)

    def token(self, *arguments):
        """A new join token, for the pool and the site of these tests."""
        return self.json("tokens", "create", "--pool", POOL, "--site", SITE, *arguments)["token"]

    def nodes(self):
        return self.json("nodes", "list")["nodes"]

    def node(self, node_id):
        return next((n for n in self.nodes() if n["id"] == node_id), None)

    def state(self, node_id):
        node = self.node(node_id)
        return node and node["state"]


@contextlib.contextmanager
def running(better_compute, directory, *flags):
    """A fresh control plane in `directory`, killed at the end; `flags` are of `better-compute dev`."""
    directory.mkdir()
    control_plane = ControlPlane(better_compute, directory)
    control_plane.flags = (*control_plane.flags, *flags)
    try:
        yield control_plane.start()
    finally:
        if control_plane.process:
            control_plane.kill()


class Node:
    """One machine's bcd: its configuration and its state, in a directory of its own."""

    def __init__(self, command, control_plane, directory, **settings):
        self.command = [str(part) for part in command]
        self.control_plane = control_plane
        self.dir = directory
        self.data_dir = directory / "data"
        self.config = directory / "config.toml"
        directory.mkdir()
        shutil.copy(control_plane.dir / "node/join-encryption.jwk", directory)
        written = tomllib.loads((control_plane.dir / "node/config.toml").read_text())
        written = {k: v for k, v in written.items() if not isinstance(v, dict)}
        written.update(data_dir=str(self.data_dir), socket_path=str(directory / "bcd.sock"))
        written.update(settings)
        self.config.write_text("".join(
            f"{key} = {json.dumps(value)}\n" for key, value in written.items()))
        self.config.chmod(0o600)
        self.process = None

    def run(self, *arguments, token=None, stdin="", **env):
        if token is not None:
            env["BCD_JOIN_TOKEN"] = token
        return subprocess.run(
            [*self.command, *map(str, arguments), "--config", str(self.config)],
            input=stdin, capture_output=True, text=True, env=clean_env(**env), timeout=60)

    def join(self, token, *arguments):
        """`bcd join`, which must succeed; returns the node's id."""
        done = self.run("join", *arguments, token=token)
        assert done.returncode == 0, f"bcd join: exit {done.returncode}\n{done.stdout}{done.stderr}"
        return self.identity()["node_id"]

    def identity(self):
        return json.loads((self.data_dir / "identity.json").read_text())

    def start(self):
        """`bcd node` in the background."""
        self.process = Background(
            [*self.command, "node", "--config", self.config], self.dir / "node.log")
        return self.process

    def stop(self):
        if self.process:
            self.process.kill()
