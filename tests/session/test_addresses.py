"""A gateway's name with several addresses, of which one is dead above TCP."""

import re

import pytest

from lab import Listener, wait_for

from .conftest import log

# The node sees another /etc/hosts than this machine.
SEES = 'mount --bind "$0" /etc/hosts && exec "$@"'


@pytest.mark.slow
def test_a_dead_address_is_tried_last_the_next_time(dev, make_relay, make_node, token, bcd, tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 gateway.test\n127.0.0.2 gateway.test\n")
    node = make_node(command=["unshare", "--mount", "--propagation", "private", "sh", "-c", SEES, hosts, bcd],
                     gateway_server_name="127.0.0.1")
    node.id = node.join(token())
    dead = Listener(lambda connection: connection.close())
    relay = make_relay(host="127.0.0.2", port=dead.port)
    text = re.sub(r"(?m)^gateway_url = .*$", f'gateway_url = "https://gateway.test:{relay.port}"', node.config.read_text())
    node.config.write_text(text)
    node.start()
    wait_for("the node to be connected", lambda: dev.state(node.id) == "connected", 20)
    lost = [e for e in log(node) if e["event"] == "session.lost"]
    assert (len(dead.taken), len(lost)) == (1, 1), "the dead address came first, and once"
    # Both have failed now: the one that failed first is the first again.
    relay.cut()
    wait_for("the second Welcome", lambda: [e["event"] for e in log(node)].count("session.welcome") == 2, 40)
    assert len(dead.taken) == 2
    dead.close()
