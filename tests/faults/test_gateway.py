"""The gateway killed at random under a fleet of simulated nodes: all come back, and no event is lost or stored twice."""

import random
import time

import pytest

from faults.conftest import ALL
from lab import running, wait_for
from sim.test_fleets import Fleet, connected, report_of

# How many nodes, for how many seconds it is killed, and how often each is heard of.
NODES, SECONDS, BEAT, EVENTS = (2000, 120, "15s", "10s") if ALL else (200, 15, "5s", "2s")


@pytest.fixture
def fleet(bcd, better_compute, tmp_path):
    with running(better_compute, tmp_path / "dev", "--heartbeat", BEAT) as dev:
        yield Fleet(bcd, dev, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_fleet_whose_gateway_is_killed_at_random_comes_back_and_loses_nothing(fleet):
    seed = time.time_ns() % 1_000_000
    print(f"seed {seed}")
    dice = random.Random(seed)
    fleet.make_tokens(NODES)
    process = fleet.start("--event-every", EVENTS)
    try:
        kills, most, back, report = campaign(fleet, process, dice)
    finally:
        process.kill()
    assert fleet.check() == [report["events"], NODES, 0, 0]
    assert len(fleet.dev.nodes()) == NODES, "one node a token, however often its answer got lost"
    # Shown by -s -n 0.
    print(f"{kills} kills under {NODES} nodes, at most {most} of them connected at one; all were back {back:.1f} s after the last; "
          f"{report['reconnects']} reconnects, {report['events']} events")


def campaign(fleet, process, dice):
    """Kills the gateway until the time is over; how often, and how the fleet took it."""
    # While they join, too.
    wait_for("the first of them", lambda: connected(fleet) > 0, 60)
    end, kills, most = time.monotonic() + SECONDS, 0, 0
    while time.monotonic() < end:
        fleet.dev.kill()
        time.sleep(dice.choice([0, 0.2, 2]))
        fleet.dev.start()
        kills += 1
        # Long enough for a part of them, now and then for all.
        time.sleep(dice.choice([0.1, 1, 3, SECONDS / 8]))
        most = max(most, connected(fleet))
    began = time.monotonic()
    while (there := connected(fleet)) < NODES:
        assert time.monotonic() < began + 500, f"{there} of {NODES} are back\n{process.output()[-3000:]}"
        time.sleep(0.5)
    back = time.monotonic() - began
    assert process.terminate(seconds=400) == 0, process.output()
    report = report_of(process)
    assert report["good"] and report["joined"] == NODES, report
    assert report["reconnects"] > 0 and report["events"] > NODES
    assert (report["lost"], report["doubled"], report["unacknowledged"]) == (0, 0, 0), report
    return kills, most, back, report
