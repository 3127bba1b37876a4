"""The fixtures of every lab; what they are made of is in lab.py."""

import pytest

from lab import Node, program, running, version

# The programs that `make test` builds last, beside the labs that do not need them.
BUILT_LAST = {"bcd_arm64", "init_arm64", "fakehw"}


def pytest_collection_modifyitems(items):
    for item in items:
        if BUILT_LAST.intersection(item.fixturenames):
            item.add_marker("late")


@pytest.fixture(scope="session")
def bcd():
    """Path of the static bcd for this machine."""
    return program("BCD", f"dist/bcd_{version()}_linux_amd64")


@pytest.fixture(scope="session")
def bcd_arm64():
    """Path of the static arm64 bcd; run it through qemu-aarch64-static."""
    return program("BCD_ARM64", f"dist/bcd_{version()}_linux_arm64")


@pytest.fixture(scope="session")
def init():
    """Path of the static init, the ramdisk's first program."""
    return program("INIT", f"dist/init_{version()}_linux_amd64")


@pytest.fixture(scope="session")
def init_arm64():
    """Path of the static arm64 init; run it through qemu-aarch64-static."""
    return program("INIT_ARM64", f"dist/init_{version()}_linux_arm64")


@pytest.fixture(scope="session")
def ramdisk():
    """Path of the image builder."""
    return program("RAMDISK", "target/operator/ramdisk")


@pytest.fixture(scope="session")
def better_compute():
    """Path of the operator's program."""
    return program("BETTER_COMPUTE", "target/operator/better-compute")


@pytest.fixture
def dev(better_compute, tmp_path):
    """A fresh control plane, killed at the end."""
    with running(better_compute, tmp_path / "dev") as control_plane:
        yield control_plane


@pytest.fixture
def token(dev):
    """token(*flags) makes a join token: token("--role", "site")."""
    return dev.token


@pytest.fixture
def make_node(dev, bcd, tmp_path):
    """make_node(name) gives a Node that has not joined; make_node(name, command=[...]) runs another bcd."""
    made = []

    def make(name="node", command=None, **settings):
        node = Node(command or [bcd], dev, tmp_path / name, **settings)
        made.append(node)
        return node

    yield make
    for node in made:
        node.stop()


@pytest.fixture
def join(make_node, token):
    """join(name) gives a Node that has joined, and its id as node.id."""

    def joined(name="node", **settings):
        node = make_node(name, **settings)
        node.id = node.join(token())
        return node

    return joined
