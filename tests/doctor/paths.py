"""A node and its gateway in namespaces of their own, with a router between, whose faults can be chosen."""

import contextlib
import itertools
import os
import subprocess

COUNT = itertools.count()


def sh(*command, **options):
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True, **options)


class Path:
    """node (10.9.1.2) -- router -- gateway (10.9.2.2), each a namespace; deleted by close()."""

    NODE, GATEWAY = "10.9.1.2", "10.9.2.2"

    def __init__(self):
        tag = f"{os.getpid()}-{next(COUNT)}"
        self.node, self.router, self.far = (f"bcd-{role}-{tag}" for role in ("n", "r", "g"))
        self.made = []
        for name in (self.node, self.router, self.far):
            sh("ip", "netns", "add", name)
            self.made.append(name)
            self.inside(name, "ip", "link", "set", "lo", "up")
        for number, name in ((1, self.node), (2, self.far)):
            sh("ip", "link", "add", "eth0", "netns", name, "type", "veth",
               "peer", "name", f"to{number}", "netns", self.router)
            self.inside(name, "ip", "addr", "add", f"10.9.{number}.2/24", "dev", "eth0")
            self.inside(name, "ip", "link", "set", "eth0", "up")
            self.inside(self.router, "ip", "addr", "add", f"10.9.{number}.1/24", "dev", f"to{number}")
            self.inside(self.router, "ip", "link", "set", f"to{number}", "up")
            self.inside(name, "ip", "route", "add", "default", "via", f"10.9.{number}.1")
        self.inside(self.router, "sysctl", "-qw", "net.ipv4.ip_forward=1")

    def inside(self, name, *command, **options):
        return sh("ip", "netns", "exec", name, *command, **options)

    def enter(self, name):
        """What goes before a command to run it there."""
        return ["ip", "netns", "exec", name]

    def nft(self, rules):
        self.inside(self.router, "nft", "-f", "-", input=rules)

    def drop_silently(self):
        self.nft("table ip bad { chain f { type filter hook forward priority 0; ip daddr 10.9.2.2 drop; }; }")

    def reject(self):
        self.nft("table ip bad { chain f { type filter hook forward priority 0; "
                 "ip daddr 10.9.2.2 tcp dport 1-65535 reject with tcp reset; }; }")

    def narrow(self, mtu):
        """The far link is narrower than anybody is told: packets over it vanish."""
        for name in (self.node, self.far):
            self.inside(name, "sysctl", "-qw", "net.ipv4.tcp_mtu_probing=0")
        # The kernel's own word about it is swallowed too.
        self.nft("table ip bad { chain f { type filter hook forward priority 0; "
                 f"ip length > {mtu} drop; icmp type destination-unreachable drop; }}; }}")

    def widen(self):
        """Whatever was dropped passes again."""
        self.nft("delete table ip bad")

    def close(self):
        for name in reversed(self.made):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@contextlib.contextmanager
def between():
    path = Path()
    try:
        yield path
    finally:
        path.close()
