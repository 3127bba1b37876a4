"""`bcd doctor`'s check `unit` before a real systemd, with bcd.service as it is installed, and in each state it can be in."""

import json
import os
import re

import pytest

from lab import ROOT, wait_for

from .container import Container

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can boot a container")

# What the install script writes, but for the place of the program.
UNIT = (ROOT / "src/bin/better-compute/install/bcd.service").read_text().replace("/usr/local/bin/bcd", "/opt/bcd")
TARGET = """[Unit]
Requires=basic.target dbus.service
After=basic.target dbus.service
AllowIsolate=yes
"""


class Machine(Container):
    """A container that an operator is logged in to."""

    def __init__(self, bcd, directory, config):
        super().__init__(bcd, directory, config)
        self.units = directory / "units"
        (self.units / "default.target").write_text(TARGET)
        (self.units / "bcd.service").unlink()
        # systemctl enable and disable write there.
        self.binds = [bind.replace("--bind-ro", "--bind") if bind.endswith("/etc/systemd/system") else bind
                      for bind in self.binds]

    def systemctl(self, *arguments):
        return self.run("systemctl", *arguments)

    def install(self, unit=UNIT, name="bcd.service"):
        path = self.units / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(unit)
        self.systemctl("daemon-reload")

    def remove(self, name="bcd.service"):
        (self.units / name).unlink()
        self.systemctl("daemon-reload")

    def unit(self, *before):
        """The check as an operator sees it."""
        said = self.run(*before, "/opt/bcd", "doctor", "--json", "--config", "/etc/bcd/config.toml")
        checks = {check["name"]: check for check in json.loads(said)["checks"]}
        return checks["unit"]

    def becomes(self, level, *words):
        """Waits until the check says so, and gives it."""
        def there():
            check = self.unit()
            return check["level"] == level and all(word in check["evidence"] for word in words) and check

        return wait_for(f"{level}: {words}", there, 40)


@pytest.fixture
def boot(bcd, tmp_path):
    booted = []

    def boot(node):
        config = re.sub(r"(?m)^(data_dir|socket_path) = .*\n", "", node.config.read_text())
        machine = Machine(bcd, node.dir, config)
        booted.append(machine)
        machine.start()

        def manages():
            assert machine.process.poll() is None, machine.console()
            return machine.systemctl("is-system-running").strip() in ("running", "degraded")

        wait_for("systemd to be up", manages, 60)
        return machine

    yield boot
    for machine in booted:
        machine.stop()


def test_each_state_that_systemd_can_have_the_unit_in_is_told_with_what_to_do(dev, join, boot):
    node = join("node")
    machine = boot(node)

    # Never installed.
    check = machine.becomes("warn", "systemd knows no bcd.service")
    assert "install the unit" in check["do"]

    # Installed, and not started.
    machine.install()
    check = machine.becomes("fail", "inactive (dead)", "disabled")
    assert check["do"] == "run systemctl enable --now bcd.service"

    # Started by hand: it works, and will not after a reboot.
    machine.systemctl("start", "bcd.service")
    wait_for("the node to be connected, in the sandbox of its unit", lambda: dev.state(node.id) == "connected", 60)
    check = machine.becomes("warn", "active (running)", "will not start with this machine")
    assert check["do"] == "run systemctl enable bcd.service"

    # As it shall be; also for somebody without rights.
    machine.systemctl("enable", "bcd.service")
    check = machine.becomes("ok", "active (running)", "enabled", "0 restarts")
    assert check["do"] is None
    assert machine.unit("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups") == check

    # Its file is another than the one that runs.
    (machine.units / "bcd.service").write_text(UNIT + "# newer\n")
    check = machine.becomes("warn", "its unit was changed since systemd read it")
    assert "daemon-reload" in check["do"]
    machine.systemctl("daemon-reload")
    machine.becomes("ok", "active (running)")

    # Stopped by somebody.
    machine.systemctl("stop", "bcd.service")
    machine.becomes("fail", "inactive (dead)", "enabled")

    # It ends as soon as it starts, and systemd starts it again.
    broken = "[Service]\nExecStart=\nExecStart=/bin/false\n"
    machine.install(broken, "bcd.service.d/broken.conf")
    machine.systemctl("start", "--no-block", "bcd.service")
    check = machine.becomes("fail", "activating (auto-restart)", "it does not stay up")
    assert "journalctl -u bcd.service" in check["do"]

    # Too often, or once where it is not started again: given up.
    machine.install(broken + "Restart=no\n", "bcd.service.d/broken.conf")
    machine.systemctl("restart", "--no-block", "bcd.service")
    check = machine.becomes("fail", "failed (failed)", "exit-code")
    assert "journalctl -u bcd.service" in check["do"] and "systemctl restart" in check["do"]
    machine.install("[Unit]\nStartLimitBurst=1\n" + broken + "RestartSec=10ms\n", "bcd.service.d/broken.conf")
    machine.systemctl("reset-failed", "bcd.service")
    machine.systemctl("start", "--no-block", "bcd.service")
    machine.becomes("fail", "failed (failed)")

    # A unit that systemd does not take.
    machine.install("[Service]\nExecStart=\n", "bcd.service.d/broken.conf")
    check = machine.becomes("fail", "systemd cannot use bcd.service: bad-setting")
    assert "systemd-analyze verify" in check["do"]
    machine.remove("bcd.service.d/broken.conf")

    # Masked.
    (machine.units / "bcd.service").unlink()
    (machine.units / "bcd.service").symlink_to("/dev/null")
    machine.systemctl("daemon-reload")
    check = machine.becomes("fail", "bcd.service is masked")
    assert "systemctl unmask bcd.service" in check["do"]


def test_before_the_first_join_a_unit_that_waits_is_well(make_node, boot):
    node = make_node()
    node.data_dir.mkdir(mode=0o700)
    machine = boot(node)
    machine.install()
    machine.becomes("ok", "inactive (dead)")


def test_a_systemctl_that_cannot_be_asked_is_told_and_holds_nothing_up(make_node, boot):
    node = make_node()
    node.data_dir.mkdir(mode=0o700)
    machine = boot(node)

    def instead(script):
        """What stands before a command to run it where systemctl is this script."""
        file = machine.dir / "etc/systemctl"
        file.write_text(script)
        file.chmod(0o755)
        return ("unshare", "--mount", "--propagation", "private", "sh", "-c",
                'mount --bind /etc/bcd/systemctl "$(readlink -f "$(command -v systemctl)")" && exec "$@"', "sh")

    check = machine.unit(*instead("#!/bin/sh\nsleep 1000\n"))
    assert check["level"] == "warn" and check["evidence"].startswith("not checked: "), check
    assert "took longer" in check["evidence"] or "5 s" in check["evidence"], check
    check = machine.unit(*instead("#!/bin/sh\necho 'Failed to connect to bus: No such file' >&2\nexit 1\n"))
    assert check["level"] == "warn" and "Failed to connect to bus" in check["evidence"], check
    check = machine.unit(*instead("#!/bin/sh\nyes LoadState=loaded | head -c 3000000\n"))
    assert check["level"] == "fail" and len(check["evidence"]) < 500, check
