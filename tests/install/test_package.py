"""What a release hands out: archives and packages, the same bytes each time; and the package on a host that systemd runs."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile

import pytest

from lab import ROOT, clean_env, version, wait_for

from .host import Host

UNITS = ROOT / "src/bin/better-compute/install"
EPOCH = "1764500000"


def dist(directory, better_compute, bcd, *architectures, **env):
    """Runs tools/dist.sh into a directory."""
    directory.mkdir(parents=True)
    env = {"DIST": str(directory), "BETTER_COMPUTE": str(better_compute), "BCD_HERE": str(bcd), "BCD_AMD64": str(bcd), "SOURCE_DATE_EPOCH": EPOCH,
           **env}
    done = subprocess.run(["bash", "tools/dist.sh", *(architectures or ["amd64"])], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          env={**clean_env(), "PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **env}, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


@pytest.fixture(scope="module")
def packed(better_compute, bcd, tmp_path_factory):
    return dist(tmp_path_factory.mktemp("dist") / "one", better_compute, bcd)


def test_the_same_commit_gives_the_same_bytes(packed, better_compute, bcd, tmp_path):
    (tmp_path / "tmp").mkdir()
    umask = os.umask(0o077)
    try:
        again = dist(tmp_path / "two", better_compute, bcd, TMPDIR=str(tmp_path / "tmp"), LANG="de_DE.UTF-8", TZ="Asia/Tokyo")
    finally:
        os.umask(umask)
    names = sorted(path.name for path in packed.iterdir())
    assert names == sorted(path.name for path in again.iterdir())
    assert [(packed / name).read_bytes() for name in names] == [(again / name).read_bytes() for name in names]
    base = f"bcd_{version()}"
    assert names == sorted(["SHA256SUMS", f"{base}_amd64.deb", f"{base}_linux_amd64.spdx.json", f"{base}_linux_amd64.tar.gz",
                            f"{base}_linux_amd64.tar.gz.sha256"])
    for sums in ("SHA256SUMS", f"{base}_linux_amd64.tar.gz.sha256"):
        assert subprocess.run(["sha256sum", "--check", "--strict", sums], cwd=packed, capture_output=True, timeout=60).returncode == 0


def test_an_archive_is_the_program_and_what_goes_with_it(packed, bcd):
    with tarfile.open(packed / f"bcd_{version()}_linux_amd64.tar.gz") as tar:
        members = {member.name.split("/", 1)[1]: member for member in tar.getmembers() if "/" in member.name}
        for member in tar.getmembers():
            assert (member.uid, member.gid, member.mtime) == (0, 0, int(EPOCH)) and (member.isfile() or member.isdir())
            assert member.mode == (0o755 if member.isdir() or member.name.endswith("/bcd") else 0o644), member.name
        read = {name: tar.extractfile(member).read() for name, member in members.items() if member.isfile()}
    assert read["bcd"] == bcd.read_bytes()
    assert read["LICENSE"] == (ROOT / "LICENSE").read_bytes()
    # The units are those of the install script.
    for unit in [*UNITS.glob("*.service")]:
        assert read[f"systemd/{unit.name}"] == unit.read_bytes()
    dropins = {dropin.name: dropin.read_bytes() for dropin in UNITS.glob("*.conf")}
    # One that can be copied alone.
    dropins["privileged-plugins.conf"] = dropins["plugins.conf"] + dropins["privileged-plugins.conf"]
    for name, text in dropins.items():
        assert text.startswith((b"[Service]\n", b"[Unit]\n")) and read[f"systemd/bcd.service.d/{name}"] == text
    assert {"man/man1/bcd.1", "man/man1/bcd-join.1", "completions/bcd.bash", "completions/_bcd", "completions/bcd.fish", "CHANGELOG.md"} <= set(read)
    assert not [name for name in read if "better-compute" in name]


def test_a_package_has_what_debian_expects_where_it_expects_it(packed, bcd, tmp_path):
    deb = packed / f"bcd_{version()}_amd64.deb"
    control = subprocess.run(["dpkg-deb", "--field", deb], capture_output=True, text=True, check=True, timeout=60).stdout
    fields = dict(re.findall(r"(?m)^([A-Z][\w-]*): (.*)$", control))
    assert (fields["Package"], fields["Version"], fields["Architecture"]) == ("bcd", version(), "amd64")
    # Static: it depends on nothing, and runs on every release of Debian.
    assert not {"Depends", "Pre-Depends", "Conflicts", "Essential"} & set(fields)
    root = tmp_path / "root"
    subprocess.run(["dpkg-deb", "--raw-extract", deb, root], check=True, timeout=60)
    assert (root / "usr/bin/bcd").read_bytes() == bcd.read_bytes()
    for unit in UNITS.glob("*.service"):
        ours = unit.read_text().replace("/usr/local/bin/bcd", "/usr/bin/bcd")
        assert (root / "usr/lib/systemd/system" / unit.name).read_text() == ours and "/usr/local" not in ours
    for path in root.rglob("*"):
        assert int(path.lstat().st_mtime) <= int(EPOCH) and not path.is_symlink(), path
    listed = subprocess.run(["dpkg-deb", "--contents", deb], capture_output=True, text=True, check=True, timeout=60).stdout
    assert all(line.split()[1] == "root/root" for line in listed.splitlines())
    # Nothing of the machine's own, and nothing that would be asked about on an upgrade.
    assert not re.search(r"\./(etc|var|usr/local|opt)/", listed)
    sums = dict(line.split("  ")[::-1] for line in (root / "DEBIAN/md5sums").read_text().splitlines())
    files = [path for path in (root / "usr").rglob("*") if path.is_file()]
    assert sums == {str(path.relative_to(root)): hashlib.md5(path.read_bytes()).hexdigest() for path in files}
    said = subprocess.run(["lintian", "--allow-root", "--fail-on", "error,warning", "--tag-display-limit", "0", deb], capture_output=True, text=True,
                          env={**clean_env(), "PATH": os.environ["PATH"], "HOME": str(tmp_path)}, timeout=120)
    # On a glibc program of the labs, it would rightly miss the dependency; and debug information is no Debian's.
    if b"GLIBC" not in bcd.read_bytes():
        assert said.returncode == 0, said.stdout + said.stderr


def test_the_bill_of_materials_names_what_is_linked(packed, bcd):
    spdx = json.loads((packed / f"bcd_{version()}_linux_amd64.spdx.json").read_text())
    assert (spdx["spdxVersion"], spdx["dataLicense"], spdx["SPDXID"]) == ("SPDX-2.3", "CC0-1.0", "SPDXRef-DOCUMENT")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", spdx["creationInfo"]["created"])
    packages = {package["name"]: package for package in spdx["packages"]}
    assert len(packages) == len(spdx["packages"]) == len({package["SPDXID"] for package in spdx["packages"]})
    assert {"bcd", "ring", "rustls", "h2", "libc", "musl", "rust-std"} <= set(packages)
    # Neither the operator's side, nor what only builds it.
    assert not {"rusqlite", "rcgen", "rusty-s3", "syn", "cc", "proto-gen-interop"} & set(packages)
    assert packages["bcd"]["checksums"] == [{"algorithm": "SHA256", "checksumValue": hashlib.sha256(bcd.read_bytes()).hexdigest()}]
    for package in spdx["packages"]:
        assert package["licenseDeclared"] not in ("", "NOASSERTION") and re.fullmatch(r"SPDXRef-[A-Za-z0-9.-]+", package["SPDXID"]), package
        assert package["name"] in ("musl", "rust-std", "libgcc", "bcd", "proto-gen") or package["checksums"], package
    known = {package["SPDXID"] for package in spdx["packages"]} | {"SPDXRef-DOCUMENT"}
    for relation in spdx["relationships"]:
        assert {relation["spdxElementId"], relation["relatedSpdxElement"]} <= known
    linked = {r["relatedSpdxElement"] for r in spdx["relationships"] if r["relationshipType"] == "STATIC_LINK"}
    assert linked == known - {"SPDXRef-DOCUMENT", packages["bcd"]["SPDXID"]}


def test_arm64_is_packed_from_here_too(better_compute, bcd, bcd_arm64, tmp_path):
    packed = dist(tmp_path / "both", better_compute, bcd, "amd64", "arm64", BCD_ARM64=str(bcd_arm64))
    field = subprocess.run(["dpkg-deb", "--field", packed / f"bcd_{version()}_arm64.deb", "Architecture"], capture_output=True, text=True, timeout=60)
    assert field.stdout.strip() == "arm64"
    assert len((packed / "SHA256SUMS").read_text().splitlines()) == 6


# ---- the package on a host ------------------------------------------------------------------------


class Debian(Host):
    """A host whose /usr can be written, with an empty database of packages."""

    def __init__(self, directory, fleet):
        super().__init__(directory, fleet)
        dpkg = directory / "dpkg"
        for made in ("info", "updates", "triggers"):
            (dpkg / made).mkdir(parents=True)
        for made in ("status", "available"):
            (dpkg / made).touch()
        self.binds = ["--overlay=/usr::/usr", f"--bind={dpkg}:/var/lib/dpkg", *self.binds]

    def dpkg(self, *arguments):
        done = self.execute("dpkg", *arguments, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive"})
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def state(self, question):
        return self.run("systemctl", question, "bcd.service").strip()


@pytest.fixture
def debian(fleet, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root can boot a container")
    directory = tmp_path / "host"
    directory.mkdir()
    host = Debian(directory, fleet)
    host.start()
    yield host
    host.stop()


def newer(deb, out, work):
    """The same package as a later version."""
    subprocess.run(["dpkg-deb", "--raw-extract", deb, work], check=True, timeout=60)
    control = work / "DEBIAN/control"
    control.write_text(control.read_text().replace(f"Version: {version()}\n", f"Version: {version()}+1\n"))
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", work, out], check=True, capture_output=True, timeout=120)


def connected(fleet, count=1):
    return wait_for("the node to be connected", lambda: [n for n in fleet.nodes() if n["state"] == "connected"][count - 1:], 30)


def test_the_package_installs_upgrades_removes_and_purges(debian, fleet, packed, tmp_path):
    deb = packed / f"bcd_{version()}_amd64.deb"
    shutil.copy(deb, debian.shared / "bcd.deb")
    newer(deb, debian.shared / "newer.deb", tmp_path / "newer")
    debian.dpkg("-i", "/opt/bcd.deb")
    # Nothing runs, nothing is enabled, nothing is configured.
    assert (debian.state("is-active"), debian.state("is-enabled")) == ("inactive", "disabled")
    assert debian.run("sh", "-c", "ls -d /etc/bcd /var/lib/bcd 2>/dev/null") == ""
    # An upgrade of a machine that is no node yet starts nothing either.
    debian.dpkg("-i", "/opt/newer.deb")
    assert (debian.state("is-active"), debian.state("is-enabled")) == ("inactive", "disabled")
    debian.dpkg("-i", "--force-downgrade", "/opt/bcd.deb")

    config = (fleet.dir / "node/config.toml").read_text()
    debian.execute("sh", "-c", "mkdir -m 0700 /etc/bcd; umask 077; cat >/etc/bcd/config.toml",
                   stdin=re.sub(r"(?m)^(data_dir|socket_path|dev_\w+) = .*\n", "", config))
    debian.execute("tee", "/etc/bcd/join-encryption.jwk", stdin=(fleet.dir / "node/join-encryption.jwk").read_text())
    joined = debian.execute("/usr/bin/bcd", "join", env={"BCD_JOIN_TOKEN": fleet.token()})
    assert joined.returncode == 0, joined.stderr
    debian.run("systemctl", "enable", "--now", "bcd.service")
    node = connected(fleet)[0]["id"]
    pid = debian.run("systemctl", "show", "--value", "--property=MainPID", "bcd.service").strip()
    assert debian.run("readlink", f"/proc/{pid}/exe").strip() == "/usr/bin/bcd"

    # An upgrade goes on with the new binary, as the same node.
    debian.dpkg("-i", "/opt/newer.deb")
    assert debian.run("systemctl", "show", "--value", "--property=MainPID", "bcd.service").strip() != pid
    assert [n["id"] for n in connected(fleet)] == [node]

    # Removed, it runs no more and remembers who it is.
    debian.dpkg("-r", "bcd")
    assert debian.state("is-active") == "inactive"
    assert debian.run("sh", "-c", "ls /usr/bin/bcd /usr/lib/systemd/system/bcd.service 2>/dev/null") == ""
    identity = debian.run("sha256sum", "/var/lib/bcd/node.key", "/var/lib/bcd/identity.json", "/etc/bcd/config.toml")
    assert "No such" not in identity
    debian.dpkg("-i", "/opt/newer.deb")
    assert (debian.state("is-active"), debian.state("is-enabled")) == ("inactive", "disabled")
    assert debian.run("sha256sum", "/var/lib/bcd/node.key", "/var/lib/bcd/identity.json", "/etc/bcd/config.toml") == identity
    debian.run("systemctl", "enable", "--now", "bcd.service")
    assert [n["id"] for n in connected(fleet)] == [node]

    # Purged, nothing of it is left but the disks of instances.
    debian.execute("sh", "-c", "mkdir /var/lib/bcd/volumes; echo disk >/var/lib/bcd/volumes/1.raw")
    assert "volumes holds instances' disks and stays" in debian.dpkg("-P", "bcd")
    assert debian.run("sh", "-c", "find /etc/bcd /var/lib/bcd /run/bcd 2>/dev/null").split() == [
        "/var/lib/bcd", "/var/lib/bcd/volumes", "/var/lib/bcd/volumes/1.raw"]
    assert debian.state("is-active") != "active"


def test_a_purge_leaves_alone_what_an_install_script_has_put_there(debian, packed):
    shutil.copy(packed / f"bcd_{version()}_amd64.deb", debian.shared / "bcd.deb")
    debian.dpkg("-i", "/opt/bcd.deb")
    debian.execute("sh", "-c", "mkdir -p /etc/bcd /var/lib/bcd; touch /usr/local/bin/bcd /etc/bcd/config.toml /var/lib/bcd/node.key")
    assert "an install script has put bcd" in debian.dpkg("-P", "bcd")
    assert debian.run("ls", "/etc/bcd/config.toml", "/var/lib/bcd/node.key").split() == ["/etc/bcd/config.toml", "/var/lib/bcd/node.key"]
