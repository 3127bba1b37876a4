"""A release signed and served, and scripts for it. The control plane has port 443, as scripts name no other."""

import contextlib
import hashlib
import shutil
import subprocess

import pytest

from lab import ControlPlane, clean_env, version
from networks import Network

from .host import Host

GATEWAY, API = "127.0.0.2", "127.0.0.3"


class Release:
    """The static bcd, in a directory of its own, as a release."""

    def __init__(self, better_compute, bcd, directory):
        self.program, self.dir, self.files = better_compute, directory, directory / "files"
        self.files.mkdir(parents=True)
        self.binary = self.files / f"bcd_{version()}_linux_amd64"
        shutil.copy(bcd, self.binary)
        self.sha256 = hashlib.sha256(self.binary.read_bytes()).hexdigest()

    def run(self, *arguments, **env):
        return subprocess.run([str(self.program), *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, env=clean_env(**env), timeout=60)

    def pki(self):
        path = self.dir / "pki.json"
        if not path.exists():
            done = self.run("pki", "init", "--out", path, "--key-file", self.dir / "pki.key")
            assert done.returncode == 0, done.stderr
        return path

    def flags(self, **changes):
        """What every script is made with, and what is changed; None leaves a flag out."""
        flags = {"pool": "pool_tests", "site": "dev", "gateway-url": f"https://{GATEWAY}", "base-url": f"https://{API}",
                 "bcd-version": version(), "sha256": f"amd64={self.sha256}", "pki": None}
        flags.update({name.replace("_", "-"): value for name, value in changes.items()})
        if flags["pki"] is None:
            flags["pki"] = self.pki()
        given = []
        for name, value in flags.items():
            given += [f"--{name}"] if value is True else [f"--{name}={value}"] if value is not None else []
        return given

    def script(self, **changes):
        done = self.run("daemon", "install-script", *self.flags(**changes))
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def release(better_compute, bcd, tmp_path):
    return Release(better_compute, bcd, tmp_path / "release")


class Fleet(ControlPlane):
    """A control plane in a network of its own, with the release's files to download."""

    def __init__(self, better_compute, directory, network, release):
        super().__init__(better_compute, directory)
        self.prefix = network.inside("fleet")
        self.flags = ("--downloads", release.files)
        self.ports = {"gateway": f"{GATEWAY}:443", "http": f"{API}:443"}
        self.space = f"/run/netns/{network.full('fleet')}"


@pytest.fixture
def fleet(better_compute, tmp_path, release):
    with contextlib.closing(Network()) as network:
        network.space("fleet")
        directory = tmp_path / "fleet"
        directory.mkdir()
        control_plane = Fleet(better_compute, directory, network, release)
        try:
            yield control_plane.start()
        finally:
            control_plane.kill()


@contextlib.contextmanager
def hosting(kind, fleet, tmp_path, *binds):
    """A host of a kind that systemd runs, in the fleet's network; `binds` are for its container, before its own."""
    directory = tmp_path / "host"
    directory.mkdir()
    host = kind(directory, fleet)
    host.binds[:0] = binds
    try:
        host.start()
        yield host
    finally:
        host.stop()


@pytest.fixture
def host(fleet, tmp_path):
    with hosting(Host, fleet, tmp_path) as host:
        yield host


@pytest.fixture
def made(release, fleet):
    """made(**changes): a script for this fleet."""
    return lambda **changes: release.script(pki=fleet.dir / "pki.json", **changes)
