"""What init does with a machine: consoles, clock, NICs, addresses; and that mistakes never stop it."""

import time

import pytest

from lab import wait_for
from qemu.machine import silent_network, user_network
from qemu.network import DISCOVER, REQUEST, Server, Wire, packed

# Waiting is most of it; a busy machine boots slowly.
pytestmark = pytest.mark.timeout(400)
FIRST, SECOND = "52:54:00:00:00:01", "52:54:00:00:00:02"
QUIET = "quiet loglevel=3"
STARTED = r"init: bcd ramdisk (failed|refused|ended)"


@pytest.fixture
def wires():
    """wires(...) makes a network; all are closed at the end."""
    made = []

    def make(*arguments, **settings):
        made.append(Wire(*arguments, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_the_second_nic_is_the_boot_one_and_every_mistake_is_said_on_every_console(machine):
    """512 MiB, two NICs, a clock in 1980, two consoles, and a command line full of mistakes."""
    guest = machine(
        f'{QUIET} console=tty0 console=ttyS0 console=ttyS1 console=ttyS0,9600 console=ttyS9 console=../bad BOOTIF=01-{SECOND.replace(":", "-")} '
        'ip=nonsense vlan=9 vlan=5000 bc.debug bc.site="an open quote',
        *silent_network("n0", FIRST), *user_network("n1", SECOND), "-rtc", "base=1980-01-01")
    # vlan=9 is used, being the first; so this machine finds no network, and says so.
    guest.wait_for(r"init: asking for an address on eth1.9 \(52:54:00:00:00:02\)")
    for log in (guest.log, guest.debug):
        guest.wait_for(r"init: the clock stood at 1980-01-01T\S+ before this program was built", log=log)
        guest.wait_for(r'init: console="../bad" is not understood: it is left out', log=log)
        guest.wait_for(r"init: the console /dev/ttyS9 does not open: ", log=log)
        guest.wait_for(r'init: ip="nonsense" is not understood: DHCP is used', log=log)
        guest.wait_for(r'vlan stands twice on the kernel command line, as "9" and as "5000"', log=log)
        guest.wait_for(r"looks cut off after \d+ bytes, in or after bc.site \(it ends inside quotes\)", log=log)
        guest.wait_for(r"init: no network yet: .*eth1\.9 asked \d+ times without an answer", log=log)
    assert "asking for an address on eth0" not in guest.output()
    # And a person can look around.
    shell = guest.shell()
    assert "init: " in shell.run("busybox cat /dev/vcs1; echo"), "the screen shows it too"
    assert "eth1.9" in shell.run("busybox ip link")
    assert shell.number("busybox date +%Y") >= 2025
    # PID 1 has nothing to do, and does nothing.
    switches = "busybox grep ctxt /proc/1/status"
    before = shell.run(switches)
    time.sleep(2)
    assert shell.run(switches) == before


def test_a_network_is_found_bcd_runs_and_what_it_says_is_on_the_console(machine):
    guest = machine(f"{QUIET} console=ttyS0 console=ttyS1 bc.debug", *user_network("n0", FIRST))
    guest.wait_for(r"init: eth0 has the address 10\.0\.2\.15/24, router 10\.0\.2\.2")
    guest.wait_for(STARTED)
    shell = guest.shell()
    assert "nameserver 10.0.2.3" in shell.run("busybox cat /etc/resolv.conf")
    facts = shell.run("busybox cat /run/init/network")
    assert "device=eth0" in facts and f"mac={FIRST}" in facts
    assert "default via 10.0.2.2" in shell.run("busybox ip route")
    # Orphans are taken in: no zombie is left of a grandchild whose parent is gone.
    shell.run("(busybox sleep 0.1 &) ; busybox sleep 0.5")
    assert " Z " not in shell.run("busybox ps -o stat,comm")
    # A child that is killed comes back; the machine stays.
    # They are small, too: what the promise allows for init and bcd together after joining is 5 MiB.
    shell.run("find() { for at in /proc/[0-9]*; do case \"$(busybox tr '\\0' ' ' < $at/cmdline)\" in "
              "\"init $1 \") echo ${at#/proc/};; esac; done; }; network=$(find network) modules=$(find modules)")
    used = shell.run("busybox grep -h VmHWM /proc/1/status /proc/$network/status /proc/$modules/status")
    sizes = [int(line.split()[1]) for line in used.splitlines() if line.startswith("VmHWM")]
    assert len(sizes) == 3 and sum(sizes) <= 2.5 * 1024, sizes
    shell.run("busybox kill -9 $network")
    guest.wait_for(r"init: init network was ended by signal 9; it starts again in 1 s")
    guest.wait_for(r"(?s)starts again in 1 s.*eth0 has the address")
    # Who leaves a shell hangs its terminal up; what is said next is on all consoles as before.
    shell.socket.sendall(b"exit\n")
    for log in (guest.log, guest.debug):
        guest.wait_for(r"init: the shell on /dev/ttyS1 ended; it starts again in 1 s", log=log)
    # A card that goes, as one whose driver begins anew does, and comes back.
    card = shell.run("busybox basename $(busybox dirname $(busybox readlink -f /sys/class/net/eth0/device))").split()[0]
    before = len(guest.output())
    shell.run(f"echo 1 > /sys/bus/pci/devices/{card}/remove")
    guest.wait_for(r"init: the NIC that had the network is gone", after=before)
    shell.run("echo 1 > /sys/bus/pci/rescan")
    guest.wait_for(r"init: eth\d has the address 10\.0\.2\.15/24", after=before)
    assert "default via 10.0.2.2" in shell.run("busybox ip route")


def test_a_link_after_forty_seconds_and_a_tagged_network_with_all_it_says(machine, wires):
    """The boot NIC's link comes late, and then its network is tagged; the clock is years ahead."""
    network = wires([Server("10.7.0.1", "10.7.0.50", options={
        6: packed("10.7.0.53"), 15: b"lab.example", 26: (1400).to_bytes(2, "big"), 42: packed("10.7.0.123"),
        121: bytes([0]) + packed("10.7.0.1") + bytes([12, 172, 16]) + packed("10.7.0.2")})], vlan=5, time="10.7.0.123")
    guest = machine(f"{QUIET} console=ttyS0 console=ttyS1 bc.debug vlan=5 BOOTIF=01-{SECOND.replace(':', '-')}",
                    *silent_network("n0", FIRST), *network.arguments("n1", SECOND), "-rtc", "base=2031-01-01")
    guest.qmp("set_link", name="dn1", up=False)
    guest.wait_for(r"init: no network yet: .*eth1 has no link")
    started = time.monotonic()
    assert "asking for an address on eth0" not in guest.output()
    time.sleep(max(0, 40 - (time.monotonic() - started)))
    guest.qmp("set_link", name="dn1", up=True)
    guest.wait_for(r"init: eth1\.5 has the address 10\.7\.0\.50/24, router 10\.7\.0\.1")
    shell = guest.shell()
    resolv = shell.run("busybox cat /etc/resolv.conf")
    assert "search lab.example" in resolv and "nameserver 10.7.0.53" in resolv
    assert "ntp=10.7.0.123" in shell.run("busybox cat /run/init/network")
    assert "mtu 1400" in shell.run("busybox ip link show eth1.5")
    routes = shell.run("busybox ip route")
    assert "172.16.0.0/12 via 10.7.0.2" in routes and "default via 10.7.0.1" in routes
    guest.wait_for(r"init: the clock stood at 2031-\S+; the time server 10\.7\.0\.123 says 20\S+, and it is set to that")
    assert abs(shell.number("busybox date +%s") - time.time()) < 30


def test_half_a_minute_of_silence_then_two_servers_one_of_which_refuses(machine, wires):
    refusing = Server("10.8.0.2", "10.8.0.60", refuse=True)
    good = Server("10.8.0.1", "10.8.0.50", lease=60)
    network = wires([refusing, good], silent=30.0)
    guest = machine(f"{QUIET} console=ttyS0 console=ttyS1 bc.debug", *network.arguments("n0", FIRST))
    guest.wait_for(r"init: no network yet: eth0 asked \d+ times without an answer")
    # The refusing one answers first, each time: its NAK must start a new round, and let the other one have its turn.
    guest.wait_for(r"init: eth0 has the address 10\.8\.0\.50/24")
    assert network.kinds().count(DISCOVER) >= 5
    assert packed("10.8.0.2") in [options.get(54) for _, kind, options, _ in network.seen if kind == REQUEST]
    # The lease is a minute: after half of it the server alone is asked for more.
    count = len(network.seen)
    wait_for("a renewal", lambda: len(network.seen) > count, 60)
    _, kind, options, unicast = network.seen[count]
    assert (kind, unicast, 54 in options) == (REQUEST, True, False)
    assert "not granted any longer" not in guest.output()
