"""Fleets of simulated nodes against a real gateway: `bcd sim`, `better-compute dev --sim`, and what the control
plane has in the end."""

import contextlib
import json
import pathlib
import re
import subprocess
import time

import pytest

from lab import POOL, SITE, Background, clean_env, program, running, wait_for
from promises import hold

NODES = 200

FLEET = ["--heartbeat", "2s"]


class Fleet:
    """`bcd sim` against a control plane."""

    def __init__(self, bcd, dev, directory):
        self.bcd, self.dev, self.dir = bcd, dev, directory
        self.tokens, self.ledger = directory / "tokens", directory / "ledger"
        self.config = dev.dir / "node/config.toml"

    def make_tokens(self, count):
        made = self.dev.run("tokens", "create", "--pool", POOL, "--site", SITE, "--count", count)
        self.tokens.write_text(made.stdout)
        lines = made.stdout.splitlines()
        assert len(set(lines)) == count
        return lines

    def command(self, *flags):
        return [self.bcd, "sim", "--config", self.config, "--token-file", self.tokens, "--ledger", self.ledger,
                "--json", *flags]

    def run(self, *flags, code=0, seconds=300):
        done = subprocess.run([str(part) for part in self.command(*flags)], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, env=clean_env(), timeout=seconds)
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}{done.stderr}"
        return json.loads(done.stdout)

    def start(self, *flags):
        """In the background; its report is the last line of the log."""
        return Background(self.command(*flags), self.dir / "sim.log")

    def check(self, code=0):
        """What the control plane has, held against the ledger; the numbers of its verdict."""
        done = self.dev.run("events", "--check", self.ledger, check=False)
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}{done.stderr}"
        found = re.match(r"the control plane has (\d+) events of (\d+) nodes: (\d+) missing, (\d+) doubled", done.stdout)
        return [int(number) for number in found.groups()]


@pytest.fixture
def fleet(bcd, better_compute, tmp_path):
    with running(better_compute, tmp_path / "dev", *FLEET) as dev:
        yield Fleet(bcd, dev, tmp_path)


def report_of(process):
    return json.loads(process.output().splitlines()[-1])


def resident(pid):
    """Bytes of memory that a process has."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def connected(fleet):
    return sum(1 for node in fleet.dev.nodes() if node["state"] == "connected")


def test_two_hundred_nodes_through_every_fault_lose_and_double_nothing(fleet):
    fleet.make_tokens(NODES)
    faults = "storms=8s,cuts=10s,crashes=15s,slow-readers=10,clock-skew=1d,lost-joins=25,lost-acks=5"
    report = fleet.run("--duration", "30s", "--event-every", "1s", "--faults", faults)
    assert report["good"] and report["joined"] == NODES
    assert (report["lost"], report["doubled"], report["unacknowledged"]) == (0, 0, 0)
    # All of it happened.
    for name in ("reconnects", "cuts", "crashes", "joins_lost", "acks_lost", "resumed"):
        assert report[name] > 0, f"{name}: {report}"
    assert report["events"] == report["acknowledged"] > NODES * 10
    stored, nodes, missing, doubled = fleet.check()
    assert (stored, nodes) == (report["events"], NODES)
    hold("sim.lost", missing)
    hold("sim.doubled", doubled)
    # One node a token, however often its answer got lost.
    assert len(fleet.dev.nodes()) == NODES


def test_what_the_control_plane_lost_or_has_twice_is_found(fleet):
    fleet.make_tokens(3)
    report = fleet.run("--duration", "3s", "--event-every", "100ms")
    good = fleet.ledger.read_text()
    assert fleet.check() == [report["events"], 3, 0, 0]
    first, *rest = [json.loads(line) for line in good.splitlines()]
    for change, found in (
        ({"events": first["events"] + 2}, [2, 0]),
        ({"events": first["events"] - 1}, [0, 1]),
        ({"said": first["said"] + 1}, [1, 0]),
        ({"journal": "00" * 16}, [first["events"] + first["said"], first["events"]]),
    ):
        fleet.ledger.write_text("".join(json.dumps(one) + "\n" for one in [{**first, **change}, *rest]))
        assert fleet.check(code=1)[2:] == found, change
    fleet.ledger.write_text(good + "no ledger\n")
    done = fleet.dev.run("events", "--check", fleet.ledger, check=False)
    assert (done.returncode, "line 4" in done.stderr) == (2, True), done.stderr


def test_a_signal_ends_a_fleet_with_its_report(fleet):
    fleet.make_tokens(20)
    process = fleet.start("--event-every", "300ms", "--faults", "cuts=2s")
    wait_for("the fleet to be connected", lambda: connected(fleet) > 10)
    time.sleep(2)  # for events to tell
    assert process.terminate(seconds=120) == 0, process.output()
    report = report_of(process)
    assert report["good"] and report["joined"] == 20 and report["events"] > 0
    assert fleet.check()[1:] == [20, 0, 0]


def test_a_second_signal_does_not_wait_for_a_control_plane_that_is_gone(fleet):
    fleet.make_tokens(5)
    process = fleet.start("--event-every", "200ms")
    wait_for("the fleet to be connected", lambda: connected(fleet) == 5)
    fleet.dev.kill()
    time.sleep(2)  # events that nobody acknowledges
    process.process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.process.wait(2)
    assert process.running(), "it waits for what is not acknowledged"
    assert process.terminate(seconds=30) == 1
    report = report_of(process)
    assert not report["good"] and report["unacknowledged"] > 0


def test_commands_reach_simulated_nodes_and_do_nothing_to_this_machine(fleet):
    fleet.make_tokens(2)
    process = fleet.start("--event-every", "1s", "--faults", "cuts=1s,crashes=3s")
    wait_for("the fleet to be there", lambda: len(fleet.dev.nodes()) == 2)
    node = fleet.dev.nodes()[0]["id"]
    asked = [fleet.dev.json("commands", "run", node, kind)["id"] for kind in ("node.facts", "node.reboot")]

    def states():
        shown = [fleet.dev.json("commands", "show", one) for one in asked]
        return all(one["state"] in ("succeeded", "failed") for one in shown) and shown

    facts, reboot = wait_for("both commands to end", states, seconds=60)
    # One whose node was killed while it ran says so, and is not run again.
    assert "bcd sim" in json.dumps(facts) or facts["reason"] == "Interrupted", facts
    assert reboot["state"] == "failed" and reboot["reason"] in ("Simulated", "Interrupted"), reboot
    assert process.terminate(seconds=120) == 0, process.output()
    assert report_of(process)["commands"] in (1, 2)


def test_a_node_costs_little_on_either_side(fleet):
    few, many = 100, 400
    fleet.make_tokens(few + many)
    lines = fleet.tokens.read_text().splitlines(keepends=True)
    fleet.tokens.write_text("".join(lines[:few]))
    first = fleet.start("--event-every", "5s")
    wait_for("a few to be connected", lambda: connected(fleet) == few, seconds=120)
    own, gateway = resident(first.pid), resident(fleet.dev.process.pid)
    fleet.tokens.write_text("".join(lines[few:]))
    second = fleet.start("--event-every", "5s")
    wait_for("all to be connected", lambda: connected(fleet) == few + many, seconds=200)
    ours, theirs = (resident(second.pid) - own) / (many - few), (resident(fleet.dev.process.pid) - gateway) / many
    for process in (first, second):
        assert process.terminate(seconds=200) == 0, process.output()
    hold("sim.node", ours / 1024)
    hold("sim.gateway", theirs / 1024)


@pytest.mark.parametrize(("flags", "said"), [
    (["--faults", "storm"], "storms, cuts, crashes"),
    (["--faults", "cuts=5"], "cuts is how often"),
    (["--faults", "lost-acks=200"], "lost-acks is a percentage"),
    (["--duration", "soon"], "--duration is a span"),
    (["--event-every", "1ms"], "--event-every is 10ms or more"),
    (["--nodes", "0"], "--nodes is a number"),
    (["--nodes", "3"], "tokens create --count 3"),
])
def test_what_it_cannot_do_is_refused_with_what_it_can(fleet, flags, said):
    fleet.make_tokens(2)
    done = subprocess.run([str(part) for part in fleet.command(*flags)], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, env=clean_env(), timeout=60)
    assert (done.returncode, done.stdout) == (2, "") and said in done.stderr, done.stderr


def test_a_token_that_is_none_is_named_by_its_line_alone(fleet):
    good, = fleet.make_tokens(1)
    fleet.tokens.write_text(f"{good}\n\nbcjt_jt_secret-of-mine\n")
    done = subprocess.run([str(part) for part in fleet.command()], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, env=clean_env(), timeout=60)
    assert done.returncode == 2 and "line 3" in done.stderr and "secret-of-mine" not in done.stderr


def test_used_tokens_join_nobody_and_the_exit_code_says_so(fleet):
    fleet.make_tokens(2)
    fleet.run("--duration", "1s", "--event-every", "200ms")
    report = fleet.run("--duration", "1s", code=1, seconds=400)
    assert (report["joined"], report["not_joined"], report["good"]) == (0, 2, False)


def test_the_control_plane_runs_a_fleet_against_itself(better_compute, tmp_path):
    done = subprocess.run(
        [str(program("BETTER_COMPUTE", "target/operator/better-compute")), "dev", "--dir", str(tmp_path / "dev"),
         "--gateway", "127.0.0.1:0", "--http", "127.0.0.1:0", "--sim", "30", "--duration", "8s",
         "--event-every", "500ms", "--faults", "all", "--json"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, env=clean_env(), timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["good"] and report["joined"] == 30
    assert f"has {report['events']} events of 30 nodes: 0 missing, 0 doubled" in done.stderr
