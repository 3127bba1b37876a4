"""`node.reboot` where systemd is PID 1."""

import json
import os
import re

import pytest

from lab import wait_for

from .container import Container

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can boot a container")


@pytest.fixture
def machine(dev, bcd, join, tmp_path):
    node = join("node")
    config = re.sub(r"(?m)^(data_dir|socket_path) = .*\n", "", node.config.read_text())
    container = Container(bcd, node.dir, config)
    container.id = node.id
    try:
        container.start()
        wait_for("the node to be connected", lambda: dev.state(node.id) == "connected", 60)
        yield container
    finally:
        container.stop()


def over(dev, id):
    return wait_for(f"the end of {id}", lambda: (c := dev.json("commands", "show", id))["over"] and c, 60)


def test_systemd_is_asked_what_blocks_a_reboot_stands_and_one_that_nothing_blocks_is_orderly(dev, machine):
    # Firmware is being written: without a terminal, systemctl would pass over that for root.
    def flashing(verb):
        # Asked for again until it is so: the bus of a machine that has just booted may not be there yet.
        machine.run("systemctl", verb, "flash.service")
        return "fwupd" in machine.run("systemd-inhibit", "--list", "--no-pager")

    wait_for("the inhibitor", lambda: flashing("start"), 60)
    done = dev.run("commands", "run", machine.id, "node.reboot", "--wait", "--json", check=False)
    refused = json.loads(done.stdout)
    assert (done.returncode, refused["state"], refused["reason"]) == (1, "failed", "RebootRefused"), refused
    assert '"fwupd" blocks it for now ("writing firmware")' in refused["message"]
    assert machine.process.poll() is None
    wait_for("the inhibitor to be gone", lambda: not flashing("stop"), 60)

    id = dev.json("commands", "run", machine.id, "node.reboot", "--param", "reason=a new kernel")["id"]
    machine.ended()
    assert "Rebooting." in machine.console(), "an orderly reboot, by systemd"
    assert "node.stop" in (machine.dir / "data/node.log").read_text(), "its services were stopped"
    machine.start()
    done = over(dev, id)
    assert done["state"] == "succeeded", done
    assert done["result"]["boot_id_before"] != done["result"]["boot_id_after"]
