"""Images with something wrong in them, and machines with too little memory: PID 1 goes on, and says what it misses."""

import json
import re
import subprocess

import pytest

from lab import wait_for
from qemu.discovery import CONSOLES, FIRST, JOINED, parameters
from qemu.machine import user_network

pytestmark = pytest.mark.timeout(400)
LINE = "quiet loglevel=3 console=ttyS0 console=ttyS1 bc.debug"


@pytest.fixture
def damaged(image, tmp_path):
    """damaged({path: content}) gives the image with other content at those paths, `None` for a directory: the kernel
    unpacks one archive after another."""

    def make(files):
        root = tmp_path / "damage"
        for path, content in files.items():
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                file.mkdir()
            else:
                file.write_bytes(content)
                file.chmod(0o755)
        archive = subprocess.run("find . -mindepth 1 | cpio -o -H newc --quiet", shell=True, cwd=root, capture_output=True,
                                 check=True).stdout
        whole, output = image.read_bytes(), tmp_path / "damaged.disk"
        output.write_bytes(whole + bytes(-len(whole) % 512) + archive)
        return output

    return make


def test_damaged_lists_no_shell_and_no_bcd_leave_a_machine_that_says_so(machine, damaged, kernel, modules):
    at = f"usr/lib/modules/{modules.name}"
    alias, dep = ((modules / f"modules.{name}").read_bytes() for name in ("alias", "dep"))
    guest = machine(LINE, *user_network("n0", FIRST), boots=(kernel / "vmlinuz", damaged({
        f"{at}/modules.alias": b"alias\n" + alias + b"\xff\xfe\n", f"{at}/modules.dep": b"../../etc/shadow:\n" + dep,
        "usr/bin/sh": None, "usr/bin/bcd": None})))
    for said in (r"init: modules\.alias, line \d+: not .*; damaged lines left out: 2",
                 r"init: modules\.dep, line 1: not a path below lib/modules; damaged lines left out: 1",
                 r"init: cannot start the shell on /dev/ttyS0: Permission denied",
                 r"init: eth0 has the address 10\.0\.2\.15/24", r"init: cannot start bcd ramdisk: Permission denied"):
        for log in (guest.log, guest.debug):
            guest.wait_for(said, log=log)


def test_modules_that_are_damaged_or_anothers_are_named_with_what_to_do(machine, damaged, kernel, modules, tmp_path):
    files = {}
    for name, change in [("virtio_net", lambda module: module[:5000]), ("virtio_blk", lambda module: module + b"changed")]:
        file = next(modules.rglob(f"{name}.ko"))
        files[f"usr/lib/modules/{modules.name}/{file.relative_to(modules)}"] = change(file.read_bytes())
    with open(tmp_path / "a.disk", "wb") as disk:
        disk.truncate(1 << 20)
    # Enforced, as under Secure Boot.
    guest = machine(f"{LINE} module.sig_enforce=1", *user_network("n0", FIRST), "-drive",
                    f"file={tmp_path}/a.disk,if=virtio,format=raw", boots=(kernel / "vmlinuz", damaged(files)))
    guest.wait_for(r"init: the module \S+/virtio_net\.ko does not load: it is (damaged, or of another kernel|not signed)")
    guest.wait_for(r"init: the module \S+/virtio_blk\.ko does not load: it is not signed by a key that this kernel trusts")
    guest.wait_for(r"init: no network yet: no NIC is seen, its driver may be missing from the image")
    assert "still here" in guest.shell().run("echo still here")


def test_a_list_that_is_no_list_is_said_once_each_time_and_less_and_less_often(machine, damaged, kernel, modules):
    guest = machine(LINE, *user_network("n0", FIRST), boots=(kernel / "vmlinuz", damaged({
        f"usr/lib/modules/{modules.name}/modules.dep": b"\xff\x00nonsense\n" * 99})))
    guest.wait_for(r"init: init modules failed with exit code 1; it starts again in 4 s")
    assert len(re.findall(r"init: modules\.dep, line \d+: not UTF-8", guest.output())) == 3, guest.output()


def test_a_machine_of_256_mib_joins_and_what_takes_all_its_memory_is_ended_in_bcds_place(machine, dev):
    guest = machine(parameters(dev, FIRST, "--append", CONSOLES), *user_network("n0", FIRST), memory=256)
    guest.wait_for(JOINED)
    node = wait_for("the node", lambda: next((n for n in dev.nodes() if n["state"] == "connected"), None), 60)
    shell = guest.shell()
    # A diagnosis takes what is free and no more; then somebody takes everything, three times.
    tested = json.loads(dev.run("commands", "run", node["id"], "diag.memory", "--param", "seconds=20", "--wait", "--json",
                                seconds=150).stdout)
    assert tested["state"] == "succeeded" and tested["result"]["fail"] == 0, tested
    for _ in range(3):
        assert "Killed" in shell.run("busybox tail /dev/zero", 60)
    assert "Out of memory" in shell.run("busybox dmesg | busybox grep 'Out of memory'")
    said = guest.output()
    assert "bcd ramdisk was ended" not in said and "init network was ended" not in said, said
    assert dev.run("commands", "run", node["id"], "node.facts", "--wait").returncode == 0
    # Where the kernel does choose bcd, init starts it again as who it was.
    shell.run("for at in /proc/[0-9]*; do case \"$(busybox tr '\\0' ' ' < $at/cmdline)\" in \"/usr/bin/bcd ramdisk \") "
              "echo 1000 > $at/oom_score_adj;; esac; done; busybox tail /dev/zero", 60)
    guest.wait_for(r"init: bcd ramdisk was ended by signal 9; it starts again in 1 s")
    sessions = 2
    wait_for("the session", lambda: guest.output().count('"event":"session.welcome"') >= sessions, 60)
    # And again, and again: more and more slowly, and still the same node.
    for pause in (2, 4):
        shell.run("busybox killall -9 bcd")
        guest.wait_for(rf"init: bcd ramdisk was ended by signal 9; it starts again in {pause} s")
        sessions += 1
        wait_for("the session", lambda: guest.output().count('"event":"session.welcome"') >= sessions, 60)
    assert len(dev.nodes()) == 1 and guest.output().count('"event":"ramdisk.joined"') == 1
