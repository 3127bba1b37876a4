"""A network of IPv6 alone whose router sends its hosts to DHCPv6 for the rest: dnsmasq in a namespace."""

import datetime
import sys

import pytest

from lab import ROOT, Background
from networks import network

pytestmark = pytest.mark.timeout(400)
FIRST = "52:54:00:00:00:01"


def test_names_domains_and_the_time_come_by_stateless_dhcpv6(machine, tmp_path):
    """The guest's clock is years ahead; a time server is known by DHCPv6 alone."""
    running = []
    with network() as net:
        net.space("lan")
        for command in ("tuntap add tap0 mode tap", "address add fd77::1/64 dev tap0", "link set tap0 up"):
            net.do("lan", "ip", *command.split())
        inside = net.inside("lan")
        try:
            running.append(Background(
                [*inside, "dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--interface=tap0", "--enable-ra",
                 "--dhcp-range=fd77::,ra-stateless,64", "--dhcp-option=option6:dns-server,[fd77::53],[fd77::54]",
                 "--dhcp-option=option6:ntp-server,[fd77::1]", "--dhcp-option=option6:domain-search,lab.example,other.example",
                 f"--dhcp-leasefile={tmp_path}/leases", "--pid-file=", "--user=root", "--log-facility=-", "--log-dhcp"],
                tmp_path / "dnsmasq.log"))
            running.append(Background([*inside, sys.executable, ROOT / "tests/qemu/timeserver.py", "fd77::1"], tmp_path / "time.log"))
            guest = machine(
                "quiet loglevel=3 console=ttyS0 console=ttyS1 bc.debug",
                "-netdev", "tap,id=n0,ifname=tap0,script=no,downscript=no",
                "-device", f"virtio-net-pci,netdev=n0,mac={FIRST},romfile=", "-rtc", "base=2031-01-01", prefix=inside)
            guest.wait_for(r"init: eth0 has the address fd77::5054:ff:fe00:1/64 from a router")
            told = r"init: the clock stood at 2031-\S+; the time server fd77::1 says 20\S+, and it is set to that"
            guest.wait_for(told)
            shell = guest.shell()
            clock = datetime.datetime.fromtimestamp(shell.number("busybox date +%s"), datetime.timezone.utc)
            assert abs((clock - datetime.datetime.now(datetime.timezone.utc)).total_seconds()) < 30

            def check():
                resolv = shell.run("busybox cat /etc/resolv.conf")
                assert "search lab.example other.example" in resolv
                assert "nameserver fd77::53\nnameserver fd77::54\n" in resolv and resolv.count("nameserver") == 2
                found = shell.run("busybox cat /run/init/network")
                assert "device=eth0" in found and "address=fd77::5054:ff:fe00:1/64" in found and "ntp=fd77::1" in found

            check()
            # Started again, it does not wait for the router's next word to know that there is DHCPv6.
            shell.run("busybox rm /etc/resolv.conf; for at in /proc/[0-9]*; do case \"$(busybox tr '\\0' ' ' < $at/cmdline)\" in "
                      "\"init network \") busybox kill -9 ${at#/proc/};; esac; done")
            guest.wait_for(r"init: init network was ended by signal 9")
            shell.run("n=0; while [ $n -lt 150 ] && ! busybox grep -qs lab.example /etc/resolv.conf; do busybox usleep 100000; "
                      "n=$((n + 1)); done", 60)
            check()
            # And the clock, which is right now, was left alone.
            assert guest.output().count("the clock stood at") == 1
        finally:
            for process in running:
                process.kill()
