"""Paths that swallow what is larger than a size, and every word about it: a join fails in time and names the phase, a session is given
up and comes back, and what was under way is finished then."""

import pytest

from doctor.paths import between
from lab import Node, wait_for
from networks import control_plane

from .conftest import events

BEAT = 2
NARROW = 1000


@pytest.fixture
def far(better_compute, tmp_path):
    """A path, and the control plane behind it."""
    with between() as path, control_plane(better_compute, tmp_path / "dev", path.enter(path.far), path.GATEWAY,
                                          "--heartbeat", f"{BEAT}s") as dev:
        yield path, dev


@pytest.mark.slow
def test_a_black_hole_is_named_by_a_join_noticed_by_a_session_and_outlived(far, bcd, tmp_path):
    path, dev = far
    logs = tmp_path / "log"
    logs.mkdir()
    text = "".join(f"line {n}\n" for n in range(40_000))
    (logs / "long.log").write_text(text)
    mounted = ("unshare", "--mount", "--propagation", "private", "sh", "-c", 'mount --bind "$0" /var/log && exec "$@"', logs)
    node = Node([*path.enter(path.node), *mounted, bcd], dev, tmp_path / "node")
    token = dev.token()

    path.narrow(NARROW)
    done = node.run("join", "--timeout", "5", token=token)
    assert done.returncode == 1 and "the TLS handshake took longer than" in done.stderr, done.stderr
    assert "the token is not used up" in done.stderr
    path.widen()
    node.id = node.join(token)

    try:
        node.start()
        wait_for("the node to be connected", lambda: dev.state(node.id) == "connected")
        path.narrow(NARROW)
        command = dev.json("commands", "run", node.id, "logs.collect", "--param", "path=long.log")["id"]
        # What is sent is stuck, and all beats behind it; a new session comes as far as the join did.
        # Whoever notices first: the gateway's word for it is small enough to pass.
        wait_for("the node to notice", lambda: any(e["event"] in ("session.silent", "session.lost") for e in events(node)), 60)
        wait_for("the control plane to notice", lambda: dev.state(node.id) == "disconnected", 60)
        wait_for("the next try to fail", lambda: any("the TLS handshake took longer" in e.get("error", "") for e in events(node)), 120)
        path.widen()
        wait_for("the output", lambda: dev.run("commands", "show", command, "--output", tmp_path / "got",
                                               check=False).returncode == 0, 120)
        assert (tmp_path / "got").read_text() == text
    finally:
        node.stop()
