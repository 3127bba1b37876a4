"""What the labs of `bcd ramdisk` share."""

import json
import subprocess

import pytest

from lab import clean_env
from ramdisk.boots import Boot


@pytest.fixture(scope="session")
def mac(bcd):
    """The MAC of a card of this machine."""
    done = subprocess.run([bcd, "facts", "--json"], capture_output=True, text=True, timeout=60, env=clean_env())
    cards = [one["mac"] for one in json.loads(done.stdout)["interfaces"] if one["kind"] == "physical"]
    if not cards:
        pytest.fail("this machine has no network card, so it cannot be one that boots by network")
    return cards[0]


@pytest.fixture
def boot(bcd, dev, mac, tmp_path):
    """boot(mac) makes boot parameters for a machine, and the boot they are for."""
    made = []

    def make(address=mac, *flags):
        line = dev.run("machines", "boot-params", "--mac", address, *flags).stdout.strip()
        made.append(Boot(bcd, dev, tmp_path / f"boot{len(made)}", line))
        return made[-1]

    yield make
    for one in made:
        if one.process:
            one.process.kill()
