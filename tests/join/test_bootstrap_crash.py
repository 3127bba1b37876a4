"""A join without config.toml, killed at any step, and run again: the machine ends with its identity, its
configuration and the key beside it, whole, and with one node in the fleet.
"""

import collections
import json
import re
import shutil
import subprocess
import tomllib

import pytest

from join.conftest import token_file
from join.test_crash import strace, whole_or_none
from lab import clean_env

KINDS = (
    "write pwrite64 fsync fdatasync rename renameat renameat2 openat openat2 fchmod mkdirat unlinkat flock connect "
    "exit_group"
).split()


class Bare:
    """A machine without config.toml; /var/lib is its own by a mount namespace, as nothing else could say data_dir."""

    def __init__(self, bcd, fleet, directory):
        self.bcd, self.fleet, self.dir = bcd, fleet, directory
        self.etc, self.lib = directory / "etc", directory / "lib"
        for made in (directory, self.etc, self.lib):
            made.mkdir()
        self.config, self.data = self.etc / "config.toml", self.lib / "bcd"

    def join(self, *arguments, tracer=()):
        known = tomllib.loads((self.fleet.dir / "node/config.toml").read_text())
        pins = {"serving-ca": "serving_ca_spki_pin", "join-signing": "join_signing_key_pin",
                "join-encryption": "join_encryption_key_pin"}
        flags = [part for flag, key in pins.items() for part in (f"--{flag}-pin", known[key])]
        inner = f'mount --bind "{self.lib}" /var/lib && exec "$@"'
        command = ["unshare", "-rm", "sh", "-c", inner, "sh", *tracer, self.bcd, "join", "--config", self.config,
                   "--server", self.fleet.info["serverUrl"], *flags, *arguments]
        return subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              env=clean_env(SSL_CERT_FILE=self.fleet.info["caFile"]), timeout=60)

    def check_configuration(self, identity):
        written = tomllib.loads(self.config.read_text())
        assert written["site"] == identity["site"]
        assert written["gateway_url"] == self.fleet.info["gatewayUrl"]
        assert self.config.stat().st_mode & 0o777 == 0o600
        key = json.loads((self.etc / "join-encryption.jwk").read_text())
        assert key["x"] == json.loads((self.fleet.dir / "node/join-encryption.jwk").read_text())["x"]


@pytest.fixture
def bare(fleet, bcd, tmp_path):
    return lambda name: Bare(bcd, fleet, tmp_path / name)


@pytest.fixture(scope="module")
def steps(fleet, bcd, tmp_path_factory):
    """How often a whole join of this kind makes each kind of call."""
    directory = tmp_path_factory.mktemp("steps")
    machine = Bare(bcd, fleet, directory / "whole")
    file, log = token_file(machine.dir, fleet.token()), directory / "trace"
    done = machine.join("--token-file", file, tracer=strace("-o", log, "-e", "trace=" + ",".join(KINDS)))
    assert done.returncode == 0, done.stderr
    counted = collections.Counter(re.findall(r"^\d+ +(\w+)\(", log.read_text(), re.MULTILINE))
    renames = sum(counted[kind] for kind in ("rename", "renameat", "renameat2"))
    assert renames >= 4, f"key, identity, JWK and configuration are each renamed into place: {counted}"
    return counted


@pytest.mark.parametrize("kind", KINDS)
def test_a_bootstrap_killed_at_any_step_is_finished_by_running_it_again(fleet, steps, bare, kind):
    for number in range(1, steps[kind] + 1):
        where = f"killed at {kind} number {number}"
        machine = bare(f"{kind}{number}")
        file = token_file(machine.dir, fleet.token())
        before = {node["id"] for node in fleet.nodes()}
        tracer = strace("-o", "/dev/null", "-e", f"inject={kind}:signal=KILL:when={number}")
        killed = machine.join("--token-file", file, tracer=tracer)
        assert killed.returncode != 0, f"strace did not kill it at {kind} number {number}"
        stored = whole_or_none(machine.data)
        if machine.config.exists():
            assert stored, f"{where}: a configuration without an identity"
            machine.check_configuration(stored)

        again = machine.join(*(["--token-file", file] if file.exists() else []))
        assert again.returncode == 0, f"{where}: {again.stderr}"
        identity = whole_or_none(machine.data)
        assert stored in (None, identity), f"{where}: a stored identity changed"
        machine.check_configuration(identity)
        assert not file.exists(), f"{where}: the token file is left"
        assert not [*machine.etc.glob("*.new"), *machine.data.glob("*.new")], f"{where}: a half-written file is left"
        assert {node["id"] for node in fleet.nodes()} - before == {identity["node_id"]}, where
        shutil.rmtree(machine.dir)
