"""What coming back costs: SPECIFICATION.md, "reconnect after a gateway restart"."""

import datetime

import pytest

from lab import wait_for
from promises import hold

from .conftest import log

# One way. Long beside what two programs of a busy machine take between two flights.
DELAY = 0.25


def welcomes(node):
    return [e for e in log(node) if e["event"] == "session.welcome"]


@pytest.mark.slow
def test_a_node_is_welcomed_one_round_trip_after_tls(dev, behind):
    node = behind(delay=DELAY)
    node.start()
    wait_for("the first Welcome", lambda: welcomes(node))
    dev.kill()
    dev.start()
    # The relay dials where the gateway was; tries that it refused are no round trips of a session.
    wait_for("the second Welcome", lambda: len(welcomes(node)) == 2, 40)
    at = datetime.datetime.fromisoformat(welcomes(node)[-1]["time"]).timestamp()
    # The relay's accept ends TCP's round trip, which it does not delay: what follows is TLS 1.3's one
    # and the session's one, Hello with the node's certificate and Welcome.
    took = at - max(accepted for accepted in node.relay.accepted if accepted <= at)
    hold("session.delays", int(took / DELAY), otherwise=f"From TCP to Welcome it took {took:.3f} s.")
