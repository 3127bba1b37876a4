"""Paths that swallow packets: all of them, without a word, or those above a size."""

import json
import time

import pytest

from lab import wait_for

from .conftest import events

V4 = ("10.202.1.2/24", "10.202.1.1/24")
GATEWAY = "10.202.1.1"
BEAT = 2


def cut(net):
    net.do("gateway", "nft", "add table inet cut; add chain inet cut in { type filter hook prerouting priority -300; policy drop; }; "
           "add chain inet cut out { type filter hook output priority -300; }; "
           "add rule inet cut out oif != lo drop; add rule inet cut in iif lo accept")


@pytest.mark.slow
def test_a_path_that_drops_everything_silently_is_noticed_within_two_heartbeats_on_both_sides(path):
    lab = path(GATEWAY, V4, flags=("--heartbeat", f"{BEAT}s"))
    node = lab.node()
    node.id = node.join(lab.dev.token())
    node.start()
    wait_for("the node to be connected", lambda: lab.dev.state(node.id) == "connected")
    # A beat has been answered: from here on the silence is counted.
    time.sleep(BEAT + 0.5)
    cut(lab.net)
    began = time.monotonic()
    wait_for("the node to notice", lambda: any(e["event"] == "session.silent" for e in events(node)), 4 * BEAT)
    noticed = time.monotonic() - began
    wait_for("the control plane to notice", lambda: lab.dev.state(node.id) == "disconnected", 4 * BEAT)
    assert noticed <= 2 * BEAT + 1, f"{noticed:.1f} s"
    # Nothing was closed or refused: the connection looked whole all the time.
    assert not any(e["event"] == "session.lost" for e in events(node)[:-1] if e.get("error", "").startswith("the gateway ended"))
    lab.net.do("gateway", "nft", "delete table inet cut")
    wait_for("the node to be back", lambda: lab.dev.state(node.id) == "connected", 60)


@pytest.mark.slow
def test_a_path_with_a_smaller_mtu_that_says_so_carries_joins_sessions_and_outputs(path, tmp_path):
    """1280 bytes in the middle; both ends believe in 1500, and ICMP tells them."""
    lab = path("10.202.3.1", ("10.202.3.9/24", "10.202.3.1/24"))
    net = lab.net
    # The cable of before is only the gateway's address; the way leads through a router.
    net.do("node", "ip", "link", "del", lab.ends[0])
    for router in ("near", "far"):
        net.space(router)
        net.do(router, "sysctl", "-qw", "net.ipv4.ip_forward=1")
    near = net.cable("node", "near", ("10.202.2.2/24", "10.202.2.1/24"))
    narrow = net.cable("near", "far", ("10.202.5.1/24", "10.202.5.2/24"))
    net.cable("far", "gateway", ("10.202.4.2/24", "10.202.4.1/24"))
    for router, end in zip(("near", "far"), narrow, strict=True):
        net.do(router, "ip", "link", "set", end, "mtu", "1280")
    net.do("gateway", "ip", "address", "add", "10.202.3.1/32", "dev", "lo")
    for space, via in (("node", "10.202.2.1"), ("near", "10.202.5.2"), ("far", "10.202.4.1")):
        net.do(space, "ip", "route", "add", "10.202.3.1/32", "via", via)
    for space, via in (("gateway", "10.202.4.2"), ("far", "10.202.5.1")):
        net.do(space, "ip", "route", "add", "10.202.2.0/24", "via", via)
    # Routers answer from where the narrow cable is.
    net.do("gateway", "ip", "route", "add", "10.202.5.0/24", "via", "10.202.4.2")
    net.do("node", "ip", "route", "add", "10.202.5.0/24", "via", "10.202.2.1")
    assert "mtu 1500" in net.do("node", "ip", "link", "show", near[0])
    logs = tmp_path / "log"
    logs.mkdir()
    text = "".join(f"line {n}\n" for n in range(40_000))
    (logs / "long.log").write_text(text)
    mounted = ("unshare", "--mount", "--propagation", "private", "sh", "-c", 'mount --bind "$0" /var/log && exec "$@"', logs)
    node = lab.node("node", *mounted)
    node.id = node.join(lab.dev.token())
    node.start()
    wait_for("the node to be connected", lambda: lab.dev.state(node.id) == "connected")
    made = lab.dev.run("commands", "run", node.id, "logs.collect", "--param", "path=long.log", "--wait", "--json")
    command = json.loads(made.stdout.splitlines()[-1])["id"]
    wait_for("the output", lambda: lab.dev.run("commands", "show", command, "--output", tmp_path / "got",
                                               check=False).returncode == 0)
    assert (tmp_path / "got").read_text() == text
    # A gateway that has been told offers smaller segments to its next peers, so that the node need not be.
    told = [net.do(space, "ip", "route", "get", far) for space, far in (("gateway", "10.202.2.2"), ("node", "10.202.3.1"))]
    assert any("mtu 1280" in route for route in told), f"nobody was told by ICMP: {told}"
