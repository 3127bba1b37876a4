"""A host to install on: systemd as PID 1, nothing of bcd, and a script's own programs in the path."""

import os
import shutil
import subprocess

from lab import clean_env, wait_for
from systemd.container import Container

# What the script needs of a host. A path of nothing else holds it to that.
TOOLS = ["awk", "cat", "chmod", "curl", "env", "grep", "id", "mkdir", "mktemp", "mv", "rm", "sh", "sha256sum", "sync", "systemctl", "uname"]


class Host(Container):
    """Its /usr is this machine's, /usr/local and all else its own; what is in `shared` it sees as /opt."""

    def __init__(self, directory, fleet):
        self.dir, self.process, self.group = directory, None, None
        self.name = f"bcd-{os.getpid()}-{os.path.basename(fleet.space)}"
        self.shared, self.local = directory / "shared", directory / "local"
        units = self.local / "lib/systemd/system"
        for made in (self.shared, self.local, self.local / "bin", units):
            made.mkdir(parents=True)
        # They ask at the console.
        for unit in ("systemd-firstboot.service", "console-getty.service", "getty@.service"):
            (units / unit).symlink_to("/dev/null")
        hosts = self.shared / "hosts"
        hosts.write_text("127.0.0.1 localhost\n")
        self.binds = [
            f"--network-namespace-path={fleet.space}", f"--bind={self.local}:/usr/local", f"--bind={self.shared}:/opt",
            f"--bind-ro={fleet.dir}/serving-ca.pem:/etc/ssl/certs/ca-certificates.crt", f"--bind-ro={hosts}:/etc/hosts",
            "--", "systemd.unit=multi-user.target"]
        self.tools(TOOLS)

    def tools(self, names):
        """The programs that are in the path of a script."""
        path = self.shared / "tools"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        for name in names:
            # Not by Debian's alternatives, whose links are in /etc.
            (path / name).symlink_to(os.path.realpath(shutil.which(name)) if name == "awk" else shutil.which(name))

    def start(self):
        super().start()
        wait_for("the host to be up", lambda: self.run("systemctl", "is-system-running").strip() in ("running", "degraded"), 60)

    def execute(self, *command, stdin=None, env=None, timeout=90):
        return subprocess.run(
            ["nsenter", "-t", self.leader(), "-a", "env", "-i", *(f"{k}={v}" for k, v in (env or {}).items()), *command],
            input=stdin, stdin=subprocess.DEVNULL if stdin is None else None, capture_output=True, text=True, env=clean_env(),
            timeout=timeout)

    def install(self, script, *, token=None, stdin=None, shell=("dash",), path="/opt/tools"):
        (self.shared / "install.sh").write_text(script)
        env = {"PATH": path}
        if token:
            env["BCD_JOIN_TOKEN"] = token
        # The shell itself is found before the script's path holds.
        return self.execute(*[shutil.which(shell[0]), *shell[1:]], "/opt/install.sh", stdin=stdin, env=env)

    def text(self, path):
        return self.run("cat", path)

    def mode(self, path):
        return self.run("stat", "-c", "%a %U:%G", path).strip()

    def files(self):
        """All that could have changed, with modes, times and digests."""
        return self.run("sh", "-c", "find /etc/bcd /etc/cdi /etc/systemd/system /usr/local /var/lib/bcd /tmp -xdev ! -name 'systemd-private-*'"
                                    " \\( -type d -printf '%p %m\\n' -o -printf '%p %m %T@\\n' \\) 2>/dev/null | sort; sha256sum /etc/bcd/* 2>/dev/null")
