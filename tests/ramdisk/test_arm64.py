"""The arm64 image, as `make ramdisk ARCH=arm64` builds it on any machine, and a machine that boots it."""

import os
import subprocess

import pytest

from lab import ROOT, running
from qemu.discovery import FIRST, JOINED, parameters, with_facts
from qemu.machine import Machine, user_network


def test_the_arm64_init_runs(init_arm64):
    done = subprocess.run(["qemu-aarch64-static", init_arm64], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2 and "init is the first program of a ramdisk" in done.stderr


@pytest.mark.timeout(400)
def test_an_arm64_machine_boots_the_image_and_joins(bcd_arm64, init_arm64, ramdisk, better_compute, tmp_path):
    env = os.environ | {"BCD": str(bcd_arm64), "INIT": str(init_arm64), "RAMDISK": str(ramdisk), "KERNEL": "cloud",
                        "LEVEL": "3", "OUTPUT": str(tmp_path)}
    done = subprocess.run([ROOT / "tools/ramdisk.sh", "arm64"], capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 0, done.stderr
    image = tmp_path / "initrd-arm64.img"
    listed = subprocess.run([ramdisk, "list", image], capture_output=True, text=True, check=True).stdout
    assert "usr/sbin/nvme" in listed and "aarch64-linux-gnu/libc.so.6" in listed and "x86_64" not in listed
    with running(better_compute, tmp_path / "dev") as dev:
        guest = Machine(tmp_path / "machine", tmp_path / "vmlinuz-arm64", image,
                        parameters(dev, FIRST, "--append", "console=ttyAMA0 quiet loglevel=3"),
                        *user_network("n0", FIRST), arch="arm64").start()
        try:
            guest.wait_for(JOINED, 200)
            found = with_facts(dev, FIRST, 60)["facts"]
        finally:
            guest.kill()
    assert found["kernel"]["architecture"] == "aarch64" and found["cpu"]["model"] == "Cortex-A57"
    # One of the programs, on this machine's behalf.
    assert "nvme version" in subprocess.run(
        ["qemu-aarch64-static", "-L", ROOT / "target/root/arm64", ROOT / "target/root/arm64/usr/sbin/nvme", "version"],
        capture_output=True, text=True, timeout=60).stdout
