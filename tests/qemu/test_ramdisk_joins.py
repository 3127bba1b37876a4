"""The whole way of a bare machine: a kernel, the image, a command line; init finds the network and bcd joins by discovery."""

import base64
import contextlib
import functools
import http.server
import re
import threading
import time

import pytest

from lab import Background, ControlPlane, own_port, wait_for
from promises import hold
from qemu.discovery import CONSOLES, FIRST, JOINED, OTHER, SECOND, parameters, with_facts
from qemu.machine import TOLERANT, days_ahead, silent_network, uefi, user_network
from site_agent import assertion, read_key

pytestmark = pytest.mark.timeout(500)


def test_a_machine_with_empty_disks_and_a_dead_clock_joins_and_shows_its_hardware(machine, dev, tmp_path):
    """Two NICs, of which the second has the network, a clock in 1980, 512 MiB, and a gateway that comes up late."""
    line = parameters(dev, SECOND, "--append", CONSOLES)
    # Quoted both ways, as some loaders do.
    line = re.sub(r"(bc\.gateway)=(\S+)", r'\1="\2"', re.sub(r"(bc\.pins=\S+)", r'"\1"', line))
    dev.kill()
    for name in ("a", "b"):
        with open(tmp_path / f"{name}.disk", "wb") as disk:
            disk.truncate(64 << 20)
    guest = machine(
        line, *silent_network("n0", FIRST), *user_network("n1", SECOND), "-rtc", "base=1980-01-01",
        "-drive", f"file={tmp_path}/a.disk,if=none,id=a,format=raw", "-device", "virtio-blk-pci,drive=a,serial=VIRT0001",
        "-drive", f"file={tmp_path}/b.disk,if=none,id=b,format=raw", "-device", "nvme,drive=b,serial=NVME0001",
        "-smbios", "type=1,manufacturer=Lab,product=Bare,serial=SN0042")
    guest.wait_for(r'"event":"join\.failed","reason":".*"wait_ms":\d+')
    dev.start()
    guest.wait_for(r'"event":"ramdisk\.joined","node":"node_')

    shown = with_facts(dev, SECOND, 300)
    node = shown["node"]
    assert (node["role"], node["state"], node["site"]) == ("ramdisk", "connected", "dev")
    assert node["details"]["claims"]["bootMac"] == SECOND
    found = shown["facts"]
    assert {disk["serial"] for disk in found["disks"]} >= {"VIRT0001", "NVME0001"}, found["disks"]
    links = {one["mac"]: (one["carrier"], one["addresses"]) for one in found["interfaces"]}
    assert links[SECOND][0] and "10.0.2.15/24" in links[SECOND][1], links
    assert found["firmware"]["boot_mode"] == "bios" and found["firmware"]["system_serial"] == "SN0042"
    assert found["has_tpm"] is False
    listed, = dev.json("machines", "list")["machines"]
    assert (listed["disks"], listed["serial"], listed["bootMode"]) == (2, "SN0042", "bios"), listed
    # What the command line keeps to itself stays there.
    token, assertion = (re.search(rf"bc\.{name}=(\S+)", line)[1] for name in ("token", "assertion"))
    assert "bc.token=*** bc.assertion=***" in found["kernel"]["command_line"]
    assert token.split(".")[1] not in guest.output() and assertion not in guest.output()

    # Small: PID 1, its children and bcd together.
    shell = guest.shell()
    used = shell.run("for at in /proc/[0-9]*; do busybox cat $at/cmdline | busybox tr '\\0' ' ' | "
                     "busybox grep -qE '^(/init|init|/usr/bin/bcd)' && busybox grep -h VmHWM $at/status; done")
    sizes = [int(line.split()[1]) for line in used.splitlines() if line.startswith("VmHWM")]
    assert len(sizes) >= 4, used
    hold("ramdisk.peak", sum(sizes), otherwise=used)
    # Killed, bcd comes back as who it was, without another join.
    joined = guest.output().count('"event":"ramdisk.joined"')
    shell.run("busybox killall -9 bcd")
    guest.wait_for(r"init: bcd ramdisk was ended by signal 9; it starts again in 1 s")
    wait_for("a new session", lambda: guest.output().count('"event":"session.welcome"') >= 2, 60)
    assert guest.output().count('"event":"ramdisk.joined"') == joined
    # The same line at the next boot: another key, so the token is of no use, and it says so, more and more slowly.
    before = len(guest.output())
    guest.qmp("system_reset")
    guest.wait_for(r"bcd ramdisk: cannot join .*the join token was already used, by an earlier boot or by another "
                   r"machine: boot it again through its site agent", after=before)
    guest.wait_for(r"init: bcd ramdisk failed with exit code 1; it starts again in 2 s", after=before)
    wait_for("the refusals", lambda: any(
        token["refusals"] >= 2 for token in dev.json("tokens", "list")["tokens"]), 60)
    machine_, = dev.json("machines", "list")["machines"]
    assert machine_["boots"] == 1


def test_a_line_that_was_cut_and_parameters_that_are_not_for_this_boot(machine, dev):
    """One guest: its own line is cut off at 2048, as loaders do; the others are given to bcd by hand."""
    whole = parameters(dev, FIRST)
    # The site's own parameters first, which is the mistake.
    line = f"{CONSOLES} {'site.own=' + 'x' * (2047 - len(whole))} {whole}"
    guest = machine(line[:2047 - len(TOLERANT) - 1], *user_network("n0", FIRST))
    guest.wait_for(r"bcd ramdisk: .*bc\.assertion .*the kernel command line looks cut off after 2047 bytes, in or after "
                   r"bc\.assertion")
    guest.wait_for(r"init: bcd ramdisk refused what it was given \(exit code 2\): see above; the bc\.\* parameters")
    guest.wait_for(r"init: eth0 has the address 10\.0\.2\.15/24")
    shell = guest.shell()

    def ramdisk(name, text):
        """What bcd says to this line; it has to travel by a serial line whose lines are short."""
        encoded = base64.b64encode(text.encode()).decode()
        shell.run(f": > /tmp/{name}.64")
        for at in range(0, len(encoded), 200):
            shell.run(f"echo {encoded[at:at + 200]} >> /tmp/{name}.64")
        return shell.run(f"busybox base64 -d /tmp/{name}.64 > /tmp/{name}; "
                         f"bcd ramdisk --cmdline /tmp/{name} --data-dir /run/{name}; echo code $?", 90)

    said = ramdisk("other", parameters(dev, OTHER))
    assert f"for the machine with the MAC {OTHER}, and this machine has no NIC with it" in said and "code 1" in said
    # The site agent's word of twenty minutes ago.
    fresh = parameters(dev, FIRST)
    token_id = re.search(r"bc\.token=bcjt_(\w+)\.", fresh)[1]
    stale = assertion(read_key(dev.dir / "site.key"), "dev", FIRST, token_id, time.time() - 1200)
    said = ramdisk("stale", re.sub(r"bc\.assertion=\S+", f"bc.assertion={stale}", fresh))
    assert "the assertion was signed 20m ago and is good for 15m: boot it again" in said and "code 1" in said
    assert not dev.nodes()


@contextlib.contextmanager
def web(directory):
    """The port of a web server on the host's loopback device, which guests see at 10.0.2.2."""
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=directory))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def test_a_plain_script_of_ipxes_boots_a_bios_machine_into_the_fleet(machine, dev, kernel, image, tmp_path):
    files = tmp_path / "files"
    files.mkdir()
    (files / "vmlinuz").symlink_to(kernel / "vmlinuz")
    (files / "initrd.img").symlink_to(image)
    with web(files) as port:
        (files / "boot.ipxe").write_text(
            f"#!ipxe\nkernel http://10.0.2.2:{port}/vmlinuz {parameters(dev, FIRST)} {TOLERANT} {CONSOLES}\n"
            f"initrd http://10.0.2.2:{port}/initrd.img\nboot\n")
        guest = machine(
            "", "-netdev", f"user,id=n0,tftp={files},bootfile=boot.ipxe",
            "-device", f"virtio-net-pci,netdev=n0,mac={FIRST},bootindex=1", direct=False)
        guest.wait_for(r'"event":"ramdisk\.joined","node":"node_')
    wait_for("the machine", lambda: any(n["state"] == "connected" for n in dev.nodes()), 60)


def test_a_machine_with_secure_boot_and_a_tpm_says_so(machine, dev, tmp_path):
    """Under lockdown, too: no module loads that is not signed."""
    state = tmp_path / "tpm"
    state.mkdir()
    tpm = Background(["swtpm", "socket", "--tpm2", "--tpmstate", f"dir={state}", "--ctrl", f"type=unixio,path={state}/ctrl"],
                     tmp_path / "tpm.log")
    try:
        wait_for("the TPM", (state / "ctrl").exists)
        guest = machine(
            f"{parameters(dev, FIRST)} {CONSOLES}", *user_network("n0", FIRST),
            "-global", "driver=cfi.pflash01,property=secure,value=on",
            *uefi(tmp_path / "vars.fd", keys=True),
            "-chardev", f"socket,id=tpm0,path={state}/ctrl", "-tpmdev", "emulator,id=tpm,chardev=tpm0",
            "-device", "tpm-crb,tpmdev=tpm")
        guest.wait_for(JOINED, 240)
        found = with_facts(dev, FIRST, 300)["facts"]
        assert (found["firmware"]["boot_mode"], found["firmware"]["secure_boot"]) == ("uefi", "enabled")
        assert found["has_tpm"] is True
        # The kernel believes the firmware.
        assert "[integrity]" in guest.shell().run("busybox mount -t securityfs s /sys/kernel/security; "
                                                  "busybox cat /sys/kernel/security/lockdown")
    finally:
        tpm.kill()


def test_a_network_that_has_ipv6_alone_is_enough(machine, better_compute, tmp_path):
    """Nobody answers DHCP; a router advertises a prefix. The clock is a day ahead, and nobody says so."""
    directory = tmp_path / "dev6"
    directory.mkdir()
    dev = ControlPlane(better_compute, directory)
    dev.ports["gateway"] = f"[::1]:{own_port()}"
    try:
        dev.start()
        guest = machine(f"{parameters(dev, FIRST, host='[fec0::2]')} {CONSOLES}",
                        *user_network("n0", FIRST, options=",ipv4=off"), "-rtc", f"base={days_ahead(1)}")
        guest.wait_for(r"init: eth0 has the address fec0::5054:ff:fe00:1/64 from a router")
        # At once, and not after the minute that bcd waits for a network in vain.
        guest.wait_for(r'"event":"ramdisk\.joined","node":"node_', 40)
    finally:
        dev.kill()
