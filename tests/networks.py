"""Network namespaces with cables between them, for labs about odd networks. Needs root."""

import contextlib
import os
import subprocess

from lab import ControlPlane


def _run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, f"{' '.join(map(str, command))}: {done.stderr}"
    return done.stdout


class Network:
    """Namespaces by short names of their own; all of them are deleted at the end."""

    def __init__(self):
        # Two labs at once, and two runs, have names of their own.
        self.prefix = f"bcd{os.getpid():x}"
        self.made = []
        self.cables = 0

    def space(self, name):
        """A namespace, with its loopback up."""
        _run("ip", "netns", "add", self.full(name))
        self.made.append(name)
        self.do(name, "ip", "link", "set", "lo", "up")
        # An address that is tentative cannot be listened on, and nobody else is here.
        for which in ("all", "default"):
            self.do(name, "sysctl", "-qw", f"net.ipv6.conf.{which}.accept_dad=0")

    def full(self, name):
        return f"{self.prefix}-{name}"

    def cable(self, one, other, *addresses):
        """A cable between two namespaces; `addresses` are pairs (of `one`, of `other`) with prefix length."""
        self.cables += 1
        ends = [f"{self.prefix[-6:]}{side}{self.cables}" for side in "ab"]
        _run("ip", "link", "add", ends[0], "netns", self.full(one), "type", "veth", "peer", "name", ends[1], "netns",
             self.full(other))
        for name, end, mine in ((one, ends[0], 0), (other, ends[1], 1)):
            for pair in addresses:
                # Without it the kernel makes an IPv6 address good for listening a moment later.
                nodad = ["nodad"] if ":" in pair[mine] else []
                self.do(name, "ip", "address", "add", pair[mine], "dev", end, *nodad)
            self.do(name, "ip", "link", "set", end, "up")
        return ends

    def inside(self, name):
        """What stands before a command to run it there."""
        return ("nsenter", f"--net=/run/netns/{self.full(name)}")

    def do(self, name, *command):
        return _run(*self.inside(name), *command)

    def close(self):
        for name in self.made:
            subprocess.run(["ip", "netns", "del", self.full(name)], capture_output=True, timeout=30, check=False)


@contextlib.contextmanager
def network():
    network = Network()
    try:
        yield network
    finally:
        network.close()


@contextlib.contextmanager
def control_plane(better_compute, directory, inside, host, *flags):
    """A control plane in the namespace that `inside` enters, on the address `host`."""
    directory.mkdir()
    made = ControlPlane(better_compute, directory)
    made.prefix, made.flags = inside, flags
    made.ports = {"gateway": f"{host}:7443", "http": f"{host}:7444"}
    try:
        yield made.start()
    finally:
        if made.process:
            made.kill()


def sees(**files):
    """What stands before a command so that it sees other files in /etc than this machine: sees(hosts=path)."""
    mounts = "".join(f'mount --bind "{path}" "/etc/{name.replace("_", ".")}" && ' for name, path in files.items())
    return ("unshare", "--mount", "--propagation", "private", "sh", "-c", mounts + 'exec "$@"', "sh")
