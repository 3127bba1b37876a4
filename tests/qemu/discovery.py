"""What the labs of machines that join by discovery share."""

import json

import pytest

from lab import wait_for

FIRST, SECOND, OTHER = "52:54:00:00:00:01", "52:54:00:00:00:02", "52:54:00:00:00:99"
CONSOLES = "console=ttyS0 console=ttyS1 bc.debug quiet loglevel=3"
JOINED = r'"event":"ramdisk\.joined","node":"node_'


def parameters(dev, mac, *flags, host="10.0.2.2"):
    """A command line for a guest, which sees the host's loopback device at `host`."""
    port = dev.gateway.rsplit(":", 1)[1]
    return dev.run("machines", "boot-params", "--mac", mac, "--gateway", f"https://{host}:{port}",
                   "--server-name", "localhost", *flags).stdout.strip()


def with_facts(dev, mac, seconds, good=lambda facts: True):
    """The machine, once it has said what it is made of, and that is `good`."""
    seen = {}

    def shown():
        done = dev.run("machines", "show", mac, "--json", check=False)
        found = json.loads(done.stdout) if done.returncode == 0 else {}
        seen.update(found)
        return found if "facts" in found and good(found["facts"]) else None
    try:
        return wait_for("the machine's facts", shown, seconds)
    except pytest.fail.Exception as failure:
        failure.add_note(f"it was known as {json.dumps(seen)}")
        raise


def with_disks(dev, mac, count=1):
    """Its disks' names by their serial numbers, once it has told of so many. What it found after its first look is asked for."""
    def told(facts):
        if len(facts["disks"]) == count:
            return True
        node = dev.json("machines", "show", mac)["node"]["id"]
        dev.run("commands", "run", node, "node.facts", "--wait", check=False)
        return False
    return {disk["serial"]: disk["stable_name"] for disk in with_facts(dev, mac, 300, told)["facts"]["disks"]}
