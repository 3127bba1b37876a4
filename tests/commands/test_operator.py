"""Commands as an operator gives them, from `better-compute commands` to a machine and back."""

import json

import pytest

from lab import Node, wait_for


class Machine(Node):
    """A node with a boot id and logs of its own."""

    def __init__(self, fakehw, dev, directory):
        super().__init__([], dev, directory)
        self.fakehw, self.logs = fakehw, directory / "log"
        self.logs.mkdir()
        self.boots(1)

    def boots(self, boot):
        self.command = ["env", f"BCD_FAKEHW_BOOT_ID=c0ffee00-0000-4000-8000-{boot:012}", f"BCD_FAKEHW_LOGS={self.logs}", self.fakehw]


@pytest.fixture
def machine(dev, fakehw, tmp_path):
    machine = Machine(str(fakehw), dev, tmp_path / "machine")
    machine.id = machine.join(dev.token())
    machine.start()
    wait_for("the node", lambda: dev.state(machine.id) == "connected")
    yield machine
    machine.stop()


def shown(dev, id):
    return dev.json("commands", "show", id)


def over(dev, id):
    return wait_for(f"the end of {id}", lambda: (c := shown(dev, id))["over"] and c)


def test_facts_are_asked_for_and_shown(dev, machine):
    done = dev.run("commands", "run", machine.id, "node.facts", "--wait", "--json")
    command = json.loads(done.stdout)
    assert command["state"] == "succeeded", command
    assert command["id"] in dev.run("commands", "list").stdout


def test_a_log_ends_up_in_the_operators_file(dev, machine, tmp_path):
    text = b"".join(b"line %d of a log\n" % n for n in range(40_000))
    (machine.logs / "app.log").write_bytes(text)
    id = json.loads(dev.run("commands", "run", machine.id, "logs.collect", "--param", "path=app.log",
                            "--param", "max_bytes=500000", "--wait", "--json").stdout)["id"]
    # The control plane and the node die while it is on its way, and come back.
    machine.process.kill()
    dev.kill()
    dev.start()
    machine.start()
    file = tmp_path / "out"

    def kept():
        return dev.run("commands", "show", id, "--output", file, check=False).returncode == 0 and file.read_bytes()

    got = wait_for("the whole output", kept)
    assert len(got) > 499_000 and text.endswith(got)
    wait_for("the release", lambda: not list((machine.data_dir / "outputs").iterdir()), 60)


def test_a_machine_that_was_told_to_restart_says_so_from_its_next_boot(dev, machine):
    id = dev.json("commands", "run", machine.id, "node.reboot", "--param", "reason=a new kernel")["id"]
    wait_for("the reboot", lambda: (machine.data_dir / "fakehw-reboot").exists())
    assert shown(dev, id)["state"] == "running"
    machine.process.kill()
    machine.boots(2)
    machine.start()
    assert over(dev, id)["state"] == "succeeded"
    assert len((machine.data_dir / "fakehw-reboot").read_text().splitlines()) == 1


def test_a_command_is_cancelled_and_one_that_is_refused_says_why(dev, machine):
    id = dev.json("commands", "run", machine.id, "node.reboot", "--param", "delay_s=600")["id"]
    wait_for("RUNNING", lambda: shown(dev, id)["state"] == "running")
    busy = dev.json("commands", "run", machine.id, "node.reboot")["id"]
    assert over(dev, busy)["reason"] == "Busy"
    dev.run("commands", "cancel", id)
    assert over(dev, id)["reason"] == "Cancelled"
    missing = dev.run("commands", "run", machine.id, "logs.collect", "--param", "path=no-such.log", "--wait", check=False)
    assert missing.returncode == 1 and "NotFound" in missing.stdout + missing.stderr
    assert not (machine.data_dir / "fakehw-reboot").exists()


def test_a_node_that_is_away_does_it_when_it_comes_back(dev, machine):
    machine.process.kill()
    id = dev.json("commands", "run", machine.id, "node.facts")["id"]
    machine.start()
    assert over(dev, id)["state"] == "succeeded"
