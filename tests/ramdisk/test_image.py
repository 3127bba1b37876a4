"""The image builder against cpio(1), zstd(1) and xz(1): what others read is what was put in, and always the same bytes."""

import os
import subprocess

import pytest

from promises import hold


@pytest.fixture
def modules(tmp_path):
    """A kernel's modules as depmod leaves them, one of them compressed with each tool."""
    directory = tmp_path / "root/lib/modules/6.1.0-lab"
    (directory / "kernel").mkdir(parents=True)
    for name in ("base", "middle", "top", "other"):
        (directory / f"kernel/{name}.ko").write_bytes(b"\x7fELF module " + name.encode() * 100)
    subprocess.run(["xz", directory / "kernel/middle.ko"], check=True)
    subprocess.run(["zstd", "-q", "--rm", directory / "kernel/top.ko"], check=True)
    (directory / "modules.dep").write_text(
        "kernel/base.ko:\nkernel/middle.ko.xz: kernel/base.ko\n"
        "kernel/top.ko.zst: kernel/middle.ko.xz kernel/base.ko\nkernel/other.ko:\n")
    (directory / "modules.alias").write_text("alias pci:v1* top\nalias pci:v2* other\n")
    (directory / "modules.softdep").write_text("softdep top pre: absent\n")
    (directory / "modules.builtin").write_text("kernel/fs/ext4.ko\n")
    return directory


@pytest.fixture
def build(ramdisk, bcd, tmp_path):
    """build(*flags) gives the image, or with fails=True what the builder said."""

    def run(*flags, init="/bin/true", fails=False, name="initrd.img", **settings):
        output = tmp_path / name
        done = subprocess.run(
            [ramdisk, "build", "--bcd", bcd, "--init", init, "--level", "1", "--output", output, *map(str, flags)],
            capture_output=True, text=True, timeout=60, **settings)
        if fails:
            assert done.returncode != 0
            assert not output.exists() and not list(tmp_path.glob("*.new"))
            return done.stderr
        assert done.returncode == 0, done.stderr
        return output

    return run


def unpack(image, directory, skip=0):
    """Unpacks with zstd(1) and cpio(1)."""
    directory.mkdir()
    content = image.read_bytes()[skip:]
    archive = subprocess.run(["zstd", "-dc"], input=content, capture_output=True, check=True).stdout
    done = subprocess.run(["cpio", "-idm", "--quiet"], input=archive, cwd=directory, capture_output=True)
    assert done.returncode == 0, done.stderr
    return archive


def test_cpio_unpacks_what_was_put_in(build, bcd, modules, tmp_path):
    (tmp_path / "list").write_text("# mine\ntop\n?missing\next4\n")
    image = build("--modules", modules, "--list", tmp_path / "list", "--tools", "/bin/sh,blockdev", "--links", "/bin/again=sh")
    out = tmp_path / "out"
    unpack(image, out)
    assert (out / "usr/bin/bcd").read_bytes() == bcd.read_bytes()
    assert os.access(out / "init", os.X_OK)
    assert os.readlink(out / "bin") == "usr/bin" and os.readlink(out / "usr/sbin/modprobe") == "/init"
    there = out / "lib/modules/6.1.0-lab"
    # With what it needs, unpacked, and depmod's files say so; what nobody asked for is not there.
    for name in ("base", "middle", "top"):
        assert (there / f"kernel/{name}.ko").read_bytes() == b"\x7fELF module " + name.encode() * 100
    assert not (there / "kernel/other.ko").exists()
    assert "kernel/top.ko: kernel/middle.ko kernel/base.ko\n" in (there / "modules.dep").read_text()
    assert (there / "modules.alias").read_text() == "alias pci:v1* top\n"
    # The tools run from the image alone.
    done = subprocess.run(["chroot", out, "/bin/again", "-c", "blockdev --version"], capture_output=True, text=True)
    assert done.returncode == 0 and "util-linux" in done.stdout, done.stderr


def test_the_same_parts_are_the_same_bytes_wherever_and_whenever_they_are_built(build, modules, tmp_path):
    (tmp_path / "list").write_text("top\n")
    first = build("--modules", modules, "--list", tmp_path / "list", "--tools", "/bin/sh")
    for file in modules.rglob("*"):
        os.utime(file, (1, 1))
    os.chmod(modules / "kernel/base.ko", 0o600)
    second = build("--modules", modules, "--list", tmp_path / "list", "--tools", "/bin/sh", name="again.img", umask=0o077)
    assert first.read_bytes() == second.read_bytes()


def test_microcode_stays_plain_in_front(build, ramdisk, tmp_path):
    early = tmp_path / "early"
    (early / "kernel/x86/microcode").mkdir(parents=True)
    (early / "kernel/x86/microcode/GenuineIntel.bin").write_bytes(b"microcode" * 99)
    archive = subprocess.run("find . | cpio -o -H newc --quiet", shell=True, cwd=early, capture_output=True, check=True).stdout
    (tmp_path / "early.cpio").write_bytes(archive)
    image = build("--microcode", tmp_path / "early.cpio")
    content = image.read_bytes()
    assert content.startswith(b"070701") and b"microcode" * 99 in content
    start = content.index(b"\x28\xb5\x2f\xfd")
    assert start % 512 == 0
    unpack(image, tmp_path / "out", start)
    listed = subprocess.run([ramdisk, "list", image], capture_output=True, text=True, check=True).stdout
    assert "kernel/x86/microcode/GenuineIntel.bin" in listed and "usr/bin/bcd" in listed
    # What is no archive, or half of one, is not put in front of anything.
    (tmp_path / "early.cpio").write_bytes(archive[:300])
    assert "cut off" in build("--microcode", tmp_path / "early.cpio", fails=True, name="none.img")


@pytest.mark.parametrize("change, said", [
    (lambda m: (m / "modules.dep").unlink(), "depmod"),
    (lambda m: (m / "modules.dep").write_text("kernel/top.ko: ../../../etc/shadow\n"), "line 1"),
    (lambda m: (m / "modules.dep").write_text("kernel/top.ko: kernel/gone.ko\n"), "kernel/gone.ko"),
    (lambda m: (m / "kernel/middle.ko.xz").write_bytes(b"not xz"), "does not unpack"),
    (lambda m: (m / "kernel/base.ko").unlink(), "kernel/base.ko"),
    (lambda m: (m / "modules.alias").write_text("nonsense\n"), "modules.alias, line 1"),
])
def test_damaged_modules_leave_no_image_and_are_named(build, modules, tmp_path, change, said):
    (tmp_path / "list").write_text("top\n")
    change(modules)
    assert said in build("--modules", modules, "--list", tmp_path / "list", fails=True)


@pytest.mark.parametrize("flags, said", [
    (["--tools", "no-such-program"], "no-such-program"),
    (["--tools", "/etc/passwd"], "/etc/passwd"),
    (["--files", "/etc/hostname=../up"], "climbs"),
    (["--files", "/etc/hostname=/init"], "two different things"),
    (["--links", "/bin/sh"], "PATH=TARGET"),
    (["--links", "/init=bcd"], "two different things"),
    (["--level", "20"], "1 to 19"),
])
def test_what_cannot_be_put_in_is_refused_by_name(ramdisk, bcd, tmp_path, flags, said):
    done = subprocess.run(
        [ramdisk, "build", "--bcd", bcd, "--init", "/bin/true", "--output", tmp_path / "x.img", *flags],
        capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and said in done.stderr, done.stderr
    assert not (tmp_path / "x.img").exists()


def test_bcd_and_init_take_little_of_the_image(build, ramdisk, bcd, init, tmp_path):
    image = tmp_path / "small.img"
    subprocess.run([ramdisk, "build", "--bcd", bcd, "--init", init, "--output", image],
                   check=True, capture_output=True, timeout=120)
    hold("image.bytes", image.stat().st_size)
