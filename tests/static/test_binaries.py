"""The binaries that ship: static, small, and nothing in them that should have stayed at home."""

import os
import re
import subprocess

import pytest

from lab import ROOT, version
from promises import hold


@pytest.fixture(params=["amd64", "arm64"])
def binary(request, bcd, bcd_arm64):
    return {"amd64": bcd, "arm64": bcd_arm64}[request.param]


def readelf(binary, *flags):
    return subprocess.run(["readelf", *flags, str(binary)], check=True, capture_output=True, text=True,
                          env=dict(os.environ, LC_ALL="C")).stdout


def test_it_is_static_with_no_interpreter_and_no_library(binary):
    assert "INTERP" not in readelf(binary, "-lW")
    assert "(NEEDED)" not in readelf(binary, "-dW")


def test_the_amd64_one_is_position_independent(bcd):
    assert re.search(r"Type:\s+DYN", readelf(bcd, "-hW"))


def test_the_amd64_ones_relocations_are_packed(bcd):
    assert "(RELR)" in readelf(bcd, "-dW")
    assert re.search(r"\(RELASZ\)\s+0 ", readelf(bcd, "-dW"))


def test_it_is_for_the_machine_its_name_says(bcd, bcd_arm64):
    assert "X86-64" in readelf(bcd, "-hW")
    assert "AArch64" in readelf(bcd_arm64, "-hW")


def test_it_is_small(binary):
    hold("bcd.bytes.arm64" if "arm64" in binary.name else "bcd.bytes.amd64", binary.stat().st_size,
         otherwise="docs/decisions.md tells what made it small, and how to see what takes the room.")


def test_it_carries_no_symbols_and_no_debug_information(binary):
    sections = readelf(binary, "-SW")
    assert ".symtab" not in sections
    assert ".debug_info" not in sections


def test_its_stack_is_not_executable(binary):
    line = next(line for line in readelf(binary, "-lW").splitlines() if "GNU_STACK" in line)
    assert "RWE" not in line


def test_it_names_no_path_of_the_machine_that_built_it(binary):
    content = binary.read_bytes()
    for path in {str(ROOT), os.path.expanduser("~"), os.environ.get("CARGO_HOME", str(ROOT)),
                 "/usr/src/rustc", "/home/"}:
        # A home directory such as / or /root is only told from other text by what follows it.
        needle = (path.rstrip("/") + "/").encode() if path != "/usr/src/rustc" else path.encode()
        if needle == b"/":
            continue
        at = content.find(needle)
        assert at < 0, f"{binary.name} holds {content[at:at + 80]!r}"


def test_no_development_code_is_in_it(binary):
    content = binary.read_bytes().lower()
    # "fakehw" itself may stand in the message that refuses dev_insecure_h2c, and in what `bcd version` prints.
    for needle in (b"fake_gpu", b"fake gpu", b"fakegpu", b"fake_disk", b"fake disk", b"fake reboot", b"fake_reboot",
                   b"fakehw-", b"bcd_fakehw", b"sqlite", b"rcgen"):
        assert needle not in content, f"{binary.name} holds {needle!r}"


def test_version_says_version_commit_target_and_features(bcd):
    done = subprocess.run([str(bcd), "version"], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0
    assert version() in done.stdout
    assert "x86_64-unknown-linux-musl" in done.stdout
    assert re.search(r"\b[0-9a-f]{7,40}\b", done.stdout), done.stdout
    assert "features" in done.stdout


def test_the_arm64_version_names_its_target(bcd_arm64):
    done = subprocess.run(["qemu-aarch64-static", str(bcd_arm64), "version"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0
    assert "aarch64-unknown-linux-musl" in done.stdout
