"""A machine that systemd runs: a container whose / is empty and whose /usr is this machine's.

`systemd-nspawn --volatile=yes` boots it in a second and needs no image. Its network is this machine's, its control group
its own: systemd cannot stop a unit in whose group it sees processes of another container. A reboot ends the container, as
power that fails would; `start` is what firmware does then.
"""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess

from lab import clean_env, wait_for

TARGET = """[Unit]
Requires=basic.target dbus.service systemd-logind.service bcd.service
After=basic.target dbus.service systemd-logind.service bcd.service
AllowIsolate=yes
"""
SERVICE = """[Unit]
After=dbus.service systemd-logind.service
[Service]
ExecStart=/opt/bcd node --config /etc/bcd/config.toml
StandardError=append:/var/lib/bcd/node.log
Restart=always
"""
FLASH = """[Service]
ExecStart=/usr/bin/systemd-inhibit --what=shutdown:sleep --who=fwupd "--why=writing firmware" --mode=block /bin/sleep 1000
"""


def own_group():
    """The directory of this process's control group, of version 2."""
    mounts = pathlib.Path("/proc/self/mounts").read_text().splitlines()
    mount = next(fields[1] for fields in map(str.split, mounts) if fields[2] == "cgroup2")
    groups = pathlib.Path("/proc/self/cgroup").read_text().splitlines()
    return pathlib.Path(mount) / next(line.removeprefix("0::/") for line in groups if line.startswith("0::"))


class Container:
    """A node's directory, booted; `directory` keeps what outlives a reboot."""

    def __init__(self, bcd, directory, config):
        self.dir, self.process, self.group = directory, None, None
        self.name = f"bcd-{os.getpid()}-{directory.name}"
        units, etc = directory / "units", directory / "etc"
        units.mkdir()
        etc.mkdir()
        (units / "default.target").write_text(TARGET)
        (units / "bcd.service").write_text(SERVICE)
        (units / "flash.service").write_text(FLASH)
        (units / "systemd-firstboot.service").symlink_to("/dev/null")
        (etc / "config.toml").write_text(config)
        (etc / "config.toml").chmod(0o600)
        self.binds = [f"--bind={directory}/data:/var/lib/bcd", f"--bind-ro={etc}:/etc/bcd", f"--bind-ro={bcd}:/opt/bcd",
                      f"--bind-ro={units}:/etc/systemd/system"]

    def start(self):
        self.group = own_group() / self.name
        self.group.mkdir(exist_ok=True)
        with open(self.dir / "console.log", "ab") as log:
            self.process = subprocess.Popen(
                ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', self.group, "systemd-nspawn", "--quiet", "--directory=/",
                 "--volatile=yes", "--boot", "--register=no", "--keep-unit", f"--machine={self.name}", *self.binds],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=clean_env(SYSTEMD_NSPAWN_UNIFIED_HIERARCHY="1"))

    def leader(self):
        """The container's first process: the child that systemd-nspawn is left with once it has set all up."""
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")

        def child():
            assert self.process.poll() is None, f"systemd-nspawn ended:\n{self.console()}"
            return children.read_text().split()

        return wait_for("the container's first process", child)[-1]

    def console(self):
        return (self.dir / "console.log").read_text(errors="replace")

    def run(self, *command):
        """What a command in the container prints."""
        return subprocess.run(["nsenter", "-t", self.leader(), "-a", *command], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=clean_env(), timeout=30).stdout

    def ended(self):
        """Waits until it went down by itself."""
        wait_for("the container to go down", lambda: self.process.poll() is not None, 60)

    def stop(self):
        if self.process and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(self.leader()), signal.SIGKILL)
            self.process.wait(20)
        if self.group:
            self.remove_group()
        shutil.rmtree(f"/run/systemd/nspawn/propagate/{self.name}", ignore_errors=True)

    def remove_group(self):
        """Once the kernel has ended what was in it."""
        def removed():
            # Busy, or gone while it was walked.
            with contextlib.suppress(OSError):
                for path, _, _ in os.walk(self.group, topdown=False):
                    os.rmdir(path)
            return not self.group.exists()

        wait_for("the container's control group to empty", removed)
