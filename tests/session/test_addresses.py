"""A gateway's name with several addresses, of which one is dead above TCP."""

import re
import socket
import threading

import pytest

from lab import wait_for

from .conftest import log

# The node sees another /etc/hosts than this machine.
SEES = 'mount --bind "$0" /etc/hosts && exec "$@"'


class Dead:
    """Takes connections and closes them."""

    def __init__(self):
        self.taken = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.taken += 1
            connection.close()


@pytest.mark.slow
def test_a_dead_address_is_tried_last_the_next_time(dev, make_relay, make_node, token, bcd, tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 gateway.test\n127.0.0.2 gateway.test\n")
    node = make_node(command=["unshare", "--mount", "--propagation", "private", "sh", "-c", SEES, hosts, bcd],
                     gateway_server_name="127.0.0.1")
    node.id = node.join(token())
    dead = Dead()
    relay = make_relay(host="127.0.0.2", port=dead.port)
    text = re.sub(r"(?m)^gateway_url = .*$", f'gateway_url = "https://gateway.test:{relay.port}"', node.config.read_text())
    node.config.write_text(text)
    node.start()
    wait_for("the node to be connected", lambda: dev.state(node.id) == "connected", 20)
    lost = [e for e in log(node) if e["event"] == "session.lost"]
    assert (dead.taken, len(lost)) == (1, 1), "the dead address came first, and once"
    # Both have failed now: the one that failed first is the first again.
    relay.cut()
    wait_for("the second Welcome", lambda: [e["event"] for e in log(node)].count("session.welcome") == 2, 40)
    assert dead.taken == 2
    dead.listener.close()
