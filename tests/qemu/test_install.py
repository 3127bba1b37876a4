"""A Debian with a kernel of its own: made a node by the install script, hardened, rebooted, upgraded."""

import contextlib
import hashlib
import os
import pathlib
import re
import shutil
import subprocess

import pytest

from install.conftest import Fleet, Release
from lab import ROOT, wait_for
from networks import Network
from qemu.machine import Machine, user_network

GATEWAY, API = "10.9.9.2", "10.9.9.3"

pytestmark = [pytest.mark.timeout(2400), pytest.mark.skipif(os.geteuid() != 0, reason="only root can make the root file system")]


@pytest.fixture(scope="module")
def root(kernel):
    done = subprocess.run([ROOT / "tools/debian.sh", kernel], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return pathlib.Path(done.stdout.strip())


class Debian:
    """The guest, in the network of its control plane; what is in `beside` it has as /run/lab."""

    def __init__(self, directory, kernel, root, beside, fleet):
        directory.mkdir()
        disk = directory / "beside.disk"
        subprocess.run(["/usr/sbin/mke2fs", "-q", "-t", "ext4", "-d", beside, disk, "96M"], check=True, timeout=60)
        drives = []
        for name, path in (("d0", root), ("d1", disk)):
            written = directory / f"{name}.qcow2"
            subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", path, written], check=True, timeout=60)
            drives += ["-drive", f"if=none,id={name},file={written},format=qcow2", "-device", f"nvme,drive={name},serial={name}"]
        # A reboot ends QEMU, which is started again: some of its resets hang in the kernel's decompressor.
        drives += ["-action", "reboot=shutdown"]
        self.machine = Machine(directory, kernel / "vmlinuz", "/dev/null", "root=/dev/nvme0n1 rw console=ttyS0 quiet systemd.show_status=0",
                               *user_network("n0", "52:54:00:12:34:56"), *drives, memory=768, prefix=fleet.prefix)
        at = self.machine.command.index("-initrd")
        del self.machine.command[at:at + 2]
        self.start()

    def start(self):
        self.machine.start()
        # Its serial lines are there once its monitor answers.
        self.machine.qmp("query-status")
        self.shell = self.machine.shell()

    def booted(self):
        """Waits until the shell answers; the boot's id. What was sent to it as it started may be cut."""
        def answers():
            if self.machine.process.poll() == 0:
                self.start()
            assert self.machine.process.poll() is None, "the guest ended"
            with contextlib.suppress(OSError, pytest.fail.Exception):
                return re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", self.run("cat /proc/sys/kernel/random/boot_id", 15).strip())

        return wait_for("the guest to be up", answers, 900)[0]

    def run(self, command, seconds=60):
        return self.shell.run(command, seconds)

    def show(self, what):
        return self.run(f"systemctl show --value --property={what} bcd.service").strip()


def test_a_debian_becomes_a_hardened_node_and_stays_one(kernel, root, bcd, better_compute, tmp_path):
    release = Release(better_compute, bcd, tmp_path / "release")
    # What is upgraded to is the same program with another digest.
    newer = release.files / "bcd_9.9.9_linux_amd64"
    shutil.copy(bcd, newer)
    with open(newer, "ab") as file:
        file.write(b"\0")
    with contextlib.closing(Network()) as network:
        network.space("fleet")
        for address in (GATEWAY, API):
            network.do("fleet", "ip", "address", "add", f"{address}/32", "dev", "lo")
        directory = tmp_path / "fleet"
        directory.mkdir()
        fleet = Fleet(better_compute, directory, network, release)
        fleet.ports = {"gateway": f"{GATEWAY}:443", "http": f"{API}:443"}
        guest = None
        try:
            fleet.start()

            def connected():
                return wait_for("the node to be connected", lambda: [n["id"] for n in fleet.nodes() if n["state"] == "connected"], 120)

            beside = tmp_path / "beside"
            beside.mkdir()
            at = {"gateway_url": f"https://{GATEWAY}", "base_url": f"https://{API}", "pki": directory / "pki.json", "plugins": True}
            (beside / "install.sh").write_text(release.script(**at))
            digest = hashlib.sha256(newer.read_bytes()).hexdigest()
            (beside / "upgrade.sh").write_text(release.script(**at, bcd_version="9.9.9", sha256=f"amd64={digest}"))
            (beside / "token").write_text(fleet.token() + "\n")
            shutil.copy(directory / "serving-ca.pem", beside / "ca.pem")
            guest = Debian(tmp_path / "guest", kernel, root, beside, fleet)
            guest.booted()
            assert guest.run("stat -f -c %T /sys/fs/cgroup").strip() == "cgroup2fs"
            guest.run("cp /run/lab/ca.pem /etc/ssl/certs/ca-certificates.crt")
            said = guest.run("sh /run/lab/install.sh </run/lab/token; echo code $?", 240)
            assert "code 0" in said, said
            node = connected()

            # What a container has not: the whole unit holds, with a cgroup of its own that bcd may divide.
            pid = guest.show("MainPID")
            status = dict(re.findall(r"(?m)^(\w+):\t(.*)$", guest.run(f"cat /proc/{pid}/status")))
            # The unit's eight capabilities, and SETUID, SETGID and KILL of the drop-in.
            assert int(status["CapBnd"], 16) == sum(1 << n for n in (22, 21, 17, 2, 12, 0, 3, 1, 7, 6, 5)), status
            assert (status["NoNewPrivs"], status["Seccomp"], status["Umask"]) == ("1", "2", "0077")
            assert guest.run(f"cat /proc/{pid}/cgroup").strip().startswith("0::/system.slice/bcd.service")
            assert guest.show("Delegate") == "yes"
            mounts = {line.split()[4]: line.split()[5].split(",") for line in guest.run(f"cat /proc/{pid}/mountinfo").splitlines() if len(line.split()) > 5}
            assert "ro" in mounts["/"] and "rw" in mounts["/var/lib/bcd"] and "rw" in mounts["/etc/bcd"]
            assert guest.run(f"readlink /proc/{pid}/ns/mnt /proc/1/ns/mnt | uniq | wc -l").strip() == "2"

            # It comes back by itself.
            before = guest.booted()
            # Later, so that the shell is still there to say that it was asked.
            guest.run("{ (sleep 2; exec systemctl --no-block reboot) & }")
            wait_for("another boot", lambda: guest.booted() != before, 300)
            assert guest.run("ls /run/lab/upgrade.sh").strip() == "/run/lab/upgrade.sh"
            assert connected() == node
            assert guest.run("systemctl is-active bcd.service").strip() == "active"

            # The upgrade is another binary, and the same node.
            guest.run("cp /run/lab/ca.pem /etc/ssl/certs/ca-certificates.crt")
            said = guest.run("sh /run/lab/upgrade.sh </dev/null; echo code $?", 240)
            assert "code 0" in said and "bcd upgraded to 9.9.9 and restarted." in said, said
            assert digest in guest.run("sha256sum /usr/local/bin/bcd")
            assert connected() == node
            assert guest.run("systemctl is-active bcd.service").strip() == "active"
            assert guest.run("systemctl --failed --no-legend --plain").strip() == ""
        finally:
            if guest:
                guest.machine.kill()
            fleet.kill()
            for disk in (tmp_path / "guest").glob("*.disk"):
                disk.unlink()

