"""`sshd.reload` of bcd helper, with Debian's own SSH server where systemd is PID 1."""

import json
import shutil

import pytest

from helper.conftest import PEER, PYTHON
from lab import ROOT, wait_for

from .conftest import hosting
from .host import Host
from .test_host import connected, pytestmark, well  # noqa: F401  (pytestmark is pytest's)
from .test_unprivileged import ACCOUNT_TOOLS, CONFIG, pid

SSHD = ROOT / "target/sshd"


@pytest.fixture
def host(fleet, tmp_path):
    """One whose /usr has an SSH server too."""
    assert (SSHD / "usr/sbin/sshd").exists(), "there is no SSH server: run tools/sshd.sh"
    with hosting(Host, fleet, tmp_path, f"--overlay-ro=/usr:{SSHD}/usr:/usr") as host:
        yield host


def test_it_is_reloaded_only_when_its_configuration_holds(host, fleet, made):
    host.tools(ACCOUNT_TOOLS)
    well(host.install(made(unprivileged=True), token=fleet.token()))
    connected(fleet)
    # What asks is not bcd, which has no section for that yet: Python is, here, what is installed.
    host.execute("tee", "-a", CONFIG, stdin=f'[update]\nentrypoint = "{PYTHON}"\n')
    host.run("systemctl", "restart", "bcd-helper.service")
    shutil.copy(PEER, host.shared / "peer.py")

    def reload():
        done = host.execute("setpriv", "--reuid=bcd", "--regid=bcd", "--init-groups", PYTHON, "/opt/peer.py", "/run/bcd-helper/helper.sock",
                            "connect", "hear", "ask=sshd.reload", "hear")
        return json.loads(done.stdout.splitlines()[1])

    wait_for("the helper", lambda: pid(host, "bcd-helper.service") != "0" and host.execute("ls", "/run/bcd-helper/helper.sock").returncode == 0)
    assert reload()["reason"] == "NotRunning"

    host.execute("sh", "-c", "mkdir -p /etc/ssh && ssh-keygen -A && useradd --system --home-dir /run/sshd sshd")
    host.execute("tee", "/etc/ssh/sshd_config", stdin="UsePAM no\nListenAddress 127.0.0.1\n")
    # At a first boot systemd enables what is installed: one was started with the host, again and again, and had no configuration.
    host.run("sh", "-c", "systemctl stop ssh.socket ssh.service; systemctl reset-failed; systemctl start ssh.service")
    wait_for("the SSH server", lambda: host.run("systemctl", "is-active", "ssh.service").strip() == "active")
    server = host.run("systemctl", "show", "--value", "--property=MainPID", "ssh.service").strip()

    def reloads():
        return host.run("journalctl", "--no-pager", "-u", "ssh.service").count("Received SIGHUP; restarting.")

    assert reload() == {"done": True}
    wait_for("the reload", lambda: reloads() == 1)

    host.execute("tee", "/etc/ssh/sshd_config", stdin="Nonsense yes\n")
    refused = reload()
    assert refused["reason"] == "ReloadRefused" and "Bad configuration option: Nonsense" in refused["message"], refused
    assert host.run("systemctl", "show", "--value", "--property=MainPID", "ssh.service").strip() == server
    assert reloads() == 1
