"""The kernel and the image that the guests boot; both are made once and shared by all workers."""

import fcntl
import json
import os
import pathlib
import re
import shutil
import subprocess
import tomllib

import pytest

from lab import ROOT, wait_for
from qemu.machine import Machine


def pytest_collection_modifyitems(items):
    """The one that waits for minutes begins first."""
    items.sort(key=lambda item: "gateway_away" not in item.nodeid)


@pytest.fixture(scope="session")
def kernel():
    """A directory with `vmlinuz` and `lib/modules/VERSION`: Debian's kernel for virtual machines."""
    done = subprocess.run([ROOT / "tools/kernel.sh", "amd64", "cloud"], capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        pytest.fail(f"no kernel to boot:\n{done.stderr}")
    return pathlib.Path(done.stdout.strip())


@pytest.fixture(scope="session")
def modules(kernel):
    return next((kernel / "lib/modules").iterdir())


def built(name, modules, parts, *options):
    """The image `name` with these modules, made once for all workers."""
    ramdisk, bcd, init = parts[:3]
    output = ROOT / "target/qemu" / name
    output.parent.mkdir(parents=True, exist_ok=True)
    with open(output.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not output.exists() or output.stat().st_mtime < max(part.stat().st_ctime for part in parts):
            done = subprocess.run(
                [ramdisk, "build", "--bcd", bcd, "--init", init, "--modules", modules, "--level", "1", *options, "--output", output],
                capture_output=True, text=True, timeout=200)
            if done.returncode != 0:
                pytest.fail(f"ramdisk build: {done.stderr}")
    return output


@pytest.fixture(scope="session")
def image(ramdisk, bcd, init, modules):
    """An image with a shell, and with what the guests of these labs run instead of init."""
    guest = ROOT / "tests/qemu/guest.sh"
    return built("initrd.img", modules, [ramdisk, bcd, init, guest], "--tools", "busybox", "--files", f"{guest}=/lab/guest",
                 "--links", "/bin/sh=busybox")


@pytest.fixture(scope="session")
def deploying(ramdisk, bcd, init, modules):
    """An image that can look into file systems."""
    return built("initrd-deploy.img", modules, [ramdisk, bcd, init], "--tools", "busybox,debugfs,mdir,mtype", "--links", "/bin/sh=busybox")


@pytest.fixture(scope="session")
def server_kernel():
    """A directory with Debian's kernel for servers, which drives SATA too."""
    done = subprocess.run([ROOT / "tools/kernel.sh", "amd64", "generic"], capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        pytest.fail(f"no kernel to boot:\n{done.stderr}")
    return pathlib.Path(done.stdout.strip())


@pytest.fixture(scope="session")
def server_image(ramdisk, bcd, init, server_kernel):
    modules = next((server_kernel / "lib/modules").iterdir())
    return built("initrd-generic.img", modules, [ramdisk, bcd, init], "--tools", "busybox", "--files", "/bin/busybox=/bin/sh")


@pytest.fixture
def machine(kernel, image, tmp_path):
    """machine(cmdline, *qemu's arguments) starts a guest, of the labs' own kernel and image or of the two that `boots`
    names; all are killed at the end."""
    made = []

    def make(cmdline, *more, name=None, boots=None, **settings):
        directory = tmp_path / (name or f"machine{len(made)}")
        guest = Machine(directory, *(boots or (kernel / "vmlinuz", image)), cmdline, *more, **settings)
        made.append(guest)
        return guest.start()

    yield make
    for guest in made:
        guest.kill()
    # Sockets and disks would be kept with pytest's last directories.
    for guest in made:
        for left in ("s1", "qmp"):
            (guest.dir / left).unlink(missing_ok=True)
    for disk in tmp_path.rglob("*.disk"):
        disk.unlink()


@pytest.fixture
def server(machine, server_kernel, server_image):
    """server(name, cmdline, *qemu's arguments) starts a guest of the kernel for servers."""

    def make(name, cmdline, *more):
        return machine(cmdline, *more, name=name, boots=(server_kernel / "vmlinuz", server_image), memory=768)

    return make


class NodeGuest:
    """A machine with a data disk that runs the static bcd against the control plane on the host.

    The disk holds the configuration, a token and `run.sh`, which does what `script` says before it joins; what the guest writes to
    it survives the guest.
    """

    def __init__(self, machine, dev, directory, script=""):
        self.machine, self.dev, self.dir = machine, dev, directory
        self.guest = None
        port = dev.gateway.rsplit(":", 1)[1]
        files = directory / "files"
        files.mkdir(parents=True)
        config = tomllib.loads((dev.dir / "node/config.toml").read_text())
        config = {key: value for key, value in config.items() if not isinstance(value, dict)}
        # QEMU's own network takes the guest to the host's loopback device.
        config.update(gateway_url=f"https://10.0.2.2:{port}", gateway_server_name="localhost",
                      data_dir="/data/bcd", socket_path="/run/bcd.sock")
        (files / "config.toml").write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in config.items()))
        shutil.copy(dev.dir / "node/join-encryption.jwk", files)
        (files / "token").write_text(dev.token() + "\n")
        (files / "run.sh").write_text(
            "$b chown -R 0:0 /data/config.toml /data/token\n$b chmod 600 /data/config.toml /data/token\n"
            "$b date -u '+guest: the clock says %Y-%m-%d'\n"
            f"{script}\n"
            "[ -e /data/bcd/identity.json ] || bcd join --config /data/config.toml --token-file /data/token\n"
            'echo "guest: joined with exit code $?"\n'
            "bcd node --config /data/config.toml\n")
        self.disk = directory / "data.disk"
        subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", files, self.disk, "64M"], check=True, capture_output=True,
                       env={**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"})

    def start(self, *more):
        """Switches the machine on; each time with a console of its own."""
        self.guest = self.machine(
            "quiet loglevel=3 console=ttyS0 rdinit=/lab/guest",
            "-netdev", "user,id=n0", "-device", "virtio-net-pci,netdev=n0,romfile=",
            "-drive", f"file={self.disk},if=virtio,format=raw,cache=writethrough", *more)
        return self.guest

    def boots(self):
        """The boot ids that the console has shown."""
        return re.findall(r"^guest: boot id (\S+)$", self.guest.output(), re.M)

    def connected(self, seconds=90):
        """Waits until the control plane has the node connected; returns its id."""
        def node():
            if self.guest.process.poll() is not None:
                pytest.fail(f"the guest ended:\n{self.guest.output()}")
            return next((n["id"] for n in self.dev.nodes() if n["state"] == "connected"), None)
        try:
            return wait_for("the guest's node to be connected", node, seconds)
        except BaseException:
            print(self.guest.output()[-5000:])
            raise


@pytest.fixture
def node_guest(machine, dev, tmp_path):
    """node_guest() makes a machine that joins and runs `bcd node`; start() switches it on."""
    made = []

    def make():
        made.append(NodeGuest(machine, dev, tmp_path / f"guest{len(made)}"))
        return made[-1]

    yield make
    for one in made:
        one.disk.unlink(missing_ok=True)
