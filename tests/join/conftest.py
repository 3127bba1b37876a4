"""Fixtures of the join lab: one control plane for a file's tests, and machines with a token file."""

import pathlib

import pytest

from lab import Node, running


@pytest.fixture(scope="module")
def fleet(better_compute, tmp_path_factory):
    """A control plane that the file's tests share; every test brings its own machine and token."""
    with running(better_compute, tmp_path_factory.mktemp("fleet") / "dev") as control_plane:
        yield control_plane


@pytest.fixture
def machine(fleet, bcd, tmp_path):
    """machine(name, command=None, **settings) gives a machine that has not joined."""

    def make(name="machine", command=None, **settings):
        return Node(command or [bcd], fleet, tmp_path / name, **settings)

    return make


def token_file(directory: pathlib.Path, token: str, mode=0o600) -> pathlib.Path:
    path = directory / "token"
    path.write_text(token + "\n")
    path.chmod(mode)
    return path
