"""Machines that reach nothing but the gateway: the release carried there by hand, and bcd where there is nothing else at all."""

import os
import shutil
import subprocess

import pytest

from lab import ROOT, Background, clean_env, version

from .host import TOOLS
from .test_host import connected, well
from .test_script import archive

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can boot a container or change its root")


def test_a_release_that_was_carried_here_is_installed_without_a_download(host, fleet, release):
    """As docs/operations.md has it; the control plane that serves downloads is nowhere."""
    archive(release.files / f"bcx-ipmi_{version()}_linux_amd64.tar.gz", ("bcx-ipmi", b"#!/bin/sh\n"))
    key, manifest = release.dir / "key", release.dir / "manifest.json"
    pin = release.run("release", "keygen", key).stdout.strip()
    assert release.run("release", "sign", "--key", key, "--bcd-version", version(), "--sequence", 1, "--out", manifest, release.files).returncode == 0
    script = release.script(pki=fleet.dir / "pki.json", base_url="https://127.0.0.99", sha256=None, release_manifest=manifest, release_pins=pin,
                            install_plugins="bcx-ipmi")
    carried = host.shared / "release"
    shutil.copytree(release.files, carried)
    # Neither curl nor wget is asked for.
    host.tools([*(tool for tool in TOOLS if tool != "curl"), "tar", "gzip"])
    env = {"PATH": "/opt/tools", "BCD_RELEASE_DIR": "/opt/release"}
    (host.shared / "install.sh").write_text(script)

    def install(stdin):
        return host.execute("/bin/sh", "/opt/install.sh", stdin=stdin, env=env)

    # What was carried is checked like what was downloaded.
    binary, token = carried / release.binary.name, fleet.token()
    whole, before = binary.read_bytes(), host.files()
    for content, why in [(whole[:-1], "has the SHA-256"), (None, "cannot be read")]:
        binary.unlink() if content is None else binary.write_bytes(content)
        done = install(f"{token}\n")
        assert done.returncode == 1 and why in done.stderr and "nothing was installed" in done.stderr, done.stderr
        assert host.files() == before
    binary.write_bytes(whole)
    said = well(install(f"{token}\n"))
    assert f"taking /opt/release/{release.binary.name}" in said and "downloading" not in said
    connected(fleet)
    plugins = "/usr/local/lib/bcd/plugins"
    assert host.mode(f"{plugins}/bcx-ipmi") == "755 root:root" and host.mode(f"{plugins}/pins") == "644 root:root"
    assert host.run("sh", "-c", f"cd {plugins} && sha256sum --check --strict pins").strip() == "bcx-ipmi: OK"


@pytest.fixture
def bare(tmp_path, bcd):
    """A root directory with busybox and bcd in it, and a way to run things there."""
    root = tmp_path / "bare"
    for made in ("bin", "proc", "dev", "tmp", "etc/bcd", "var/lib", "run"):
        (root / made).mkdir(parents=True)
    shutil.copy("/bin/busybox", root / "bin/busybox")
    shutil.copy(bcd, root / "bin/bcd")
    for tool in ("sh", "cat", "ls", "mkdir", "rm"):
        (root / "bin" / tool).symlink_to("busybox")
    (root / "dev/null").touch()
    return root


def within(root, space, *command):
    """The command as the only one of a machine of its own, but for its network."""
    setup = (f"mount -t proc proc {root}/proc && mount --bind /dev/null {root}/dev/null && mount -t tmpfs run {root}/run && "
             f'exec chroot {root} /bin/busybox env -i PATH=/bin "$@"')
    return ["nsenter", f"--net={space}", "unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private", "sh", "-c", setup, "sh", *command]


# As docs/operations.md has it.
PARTS = """sed '$d' install-bcd.sh > parts.sh
sh -uc '. ./parts.sh; config=/nonexistent work=.; settings; make_config; jwk > join-encryption.jwk'
"""


def test_one_static_file_is_all_a_machine_needs(bare, fleet, release, tmp_path):
    assert all(line in (ROOT / "docs/operations.md").read_text() for line in PARTS.splitlines())
    (tmp_path / "install-bcd.sh").write_text(release.script(pki=fleet.dir / "pki.json"))
    subprocess.run(["sh", "-ec", PARTS], cwd=tmp_path, check=True, env=clean_env(PATH=os.environ["PATH"]), timeout=60)
    for name in ("config.toml", "join-encryption.jwk"):
        shutil.copy(tmp_path / name, bare / "etc/bcd" / name)
        (bare / "etc/bcd" / name).chmod(0o600)
    (bare / "etc/bcd/token").write_text(fleet.token() + "\n")
    (bare / "etc/bcd/token").chmod(0o600)
    # No C library, no certificates, no resolver, no accounts, no shell but busybox's.
    there = sorted(str(path.relative_to(bare)) for path in bare.rglob("*") if not path.is_dir())
    assert there == ["bin/bcd", "bin/busybox", "bin/cat", "bin/ls", "bin/mkdir", "bin/rm", "bin/sh", "dev/null", "etc/bcd/config.toml",
                     "etc/bcd/join-encryption.jwk", "etc/bcd/token"]

    def run(*command):
        return subprocess.run(within(bare, fleet.space, *command), stdin=subprocess.DEVNULL, capture_output=True, text=True, env=clean_env(), timeout=60)

    checked = run("bcd", "config", "check")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    joined = run("bcd", "join", "--token-file", "/etc/bcd/token")
    assert joined.returncode == 0, joined.stdout + joined.stderr
    again = run("bcd", "join", "--token-file", "/etc/bcd/token")
    assert again.returncode == 0 and "already joined as " in again.stdout + again.stderr
    node = Background(within(bare, fleet.space, "bcd", "node"), bare.parent / "node.log")
    try:
        connected(fleet)
    finally:
        node.kill()
    assert (bare / "var/lib/bcd/node.key").stat().st_mode & 0o777 == 0o600
