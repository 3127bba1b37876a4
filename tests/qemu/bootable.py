"""Disk images that a machine starts, by BIOS and by UEFI: a GPT with GRUB and a Debian in it."""

import os
import struct
import subprocess

MIB = 1 << 20
SECTOR = 512
# Where its partitions begin: GRUB's own, and the root.
GRUB, ROOT = 2048, 4096
ENV = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}


def run(*command, **more):
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True, timeout=300, env=ENV, **more).stdout


def make(parts, files, raw):
    """Makes the image `raw` of what tools/bootable.sh made, with `files` (source, path, mode) in its root."""
    root, esp = raw.with_suffix(".root"), parts / "esp.img"
    run("cp", "--sparse=always", parts / "root.img", root)
    requests = "".join(f"write {source} {path}\nset_inode_field {path} mode 0100{mode}\n" for source, path, mode in files)
    said = run("debugfs", "-w", "-f", "-", root, input=requests)
    assert "File not found" not in said and "No space" not in said, said
    size = root.stat().st_size
    with open(raw, "wb") as disk:
        disk.truncate(ROOT * SECTOR + size + esp.stat().st_size + MIB)
    system = ROOT + size // SECTOR
    run("sgdisk", f"-n1:{GRUB}:{ROOT - 1}", "-t1:ef02", f"-n2:{ROOT}:{system - 1}", "-t2:8304",
        f"-n3:{system}:{system + esp.stat().st_size // SECTOR - 1}", "-t3:ef00", raw)
    for source, sector in [(root, ROOT), (esp, system)]:
        run("dd", f"if={source}", f"of={raw}", "bs=1M", f"seek={sector * SECTOR // MIB}", "conv=sparse,notrunc")
    root.unlink()
    boot, core = (parts / "boot.img").read_bytes(), bytearray((parts / "core.img").read_bytes())
    # As grub-bios-setup does: the first sector loads the core's first, and that the rest, by the list at its end.
    core[0x1f4:0x200] = struct.pack("<QHH", GRUB + 1, (len(core) + SECTOR - 1) // SECTOR - 1, 0x820)
    with open(raw, "r+b") as disk:
        disk.seek(GRUB * SECTOR)
        disk.write(core)
        disk.seek(0)
        # The table of the protective MBR stays.
        disk.write(boot[:0x5c] + struct.pack("<Q", GRUB) + b"\xff" + boot[0x65:0x1b8])
    return raw
