"""`better-compute daemon install-script` and `release`: what they write, and what they refuse. No host is touched."""

import base64
import gzip
import hashlib
import io
import ipaddress
import itertools
import json
import random
import re
import resource
import shutil
import subprocess
import tarfile
import tomllib

import pytest

from lab import version
from promises import hold

HOSTILE = ["'", '"', "a'b", 'a"b', "a\nb", "a\\b", "$(id)", "`id`", "a b", "a;b", "a#b", "a$b", "a&b", "a|b", "a>b", "a*b",
           "é", "\x1b[0m", "'\nBCD_END\n", "BCD_END\nid", "]", "../a", "-a", "", " ", "a\tb", "a\rb", "%s", "x" * 5000]
PINS = ["sha256/" + base64.b64encode(bytes([n] * 32)).decode() for n in (1, 2)]


def config_of(script):
    """The configuration a host without one gets."""
    head = re.search(r"config_head\(\) \{\n  cat <<'BCD_END'\n(.*?)BCD_END\n", script, re.S)[1]
    sections = re.search(r"config_sections\(\) \{\n(.*?)\n\}\n", script, re.S)[1]
    for name, body in re.findall(r"add_section (\w+) [^\n]*\n(.*?)BCD_END\n", sections, re.S):
        head += f"\n[{name}]\n{body}"
    return head


@pytest.mark.parametrize("shell", [["dash"], ["bash", "--posix"], ["busybox", "sh"]])
def test_every_shell_reads_it(release, shell):
    script = release.script(plugins=True, websocket_url="wss://gw.example/v1/session", bmc_networks="10.0.0.0/8")
    done = subprocess.run([*shell, "-n"], input=script, text=True, capture_output=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")


def test_shellcheck_has_nothing_to_say(release):
    for changes in ({}, {"attestor": "tpm"}, {"privileged_plugins": "kata", "release_pins": PINS[0], "bmc_networks": "fd00::/8"},
                    {"unprivileged": True, "instance_bridges": "br0"}):
        done = subprocess.run(["shellcheck", "--shell=sh", "-"], input=release.script(**changes), text=True,
                              capture_output=True, timeout=60)
        assert done.returncode == 0, done.stdout


def test_it_is_small_and_holds_no_secret(release):
    script = release.script(privileged_plugins="kata", release_pins=",".join(PINS), websocket_url="wss://gw.example/v1/session")
    hold("script.bytes", len(script))
    bundle = json.loads(release.pki().read_text())
    sealed = [value for value in json.dumps(bundle["sealed"]).split('"') if len(value) > 20]
    assert sealed and not any(value in script for value in sealed)


def test_it_is_made_in_an_instant(release):
    flags = release.flags()
    spent = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert release.run("daemon", "install-script", *flags).returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    hold("script.cpu", sorted(spent)[2] * 1e3)


def test_a_download_cut_short_runs_nothing(release):
    script = release.script(privileged_plugins="kata", websocket_url="wss://gw.example/v1/session")
    # Whatever of it runs says so; without programs, nothing else could happen.
    for cut in [*range(0, len(script) - len('main "$@"\n'), 97), len(script) - len('main "$@"\n') - 1]:
        done = subprocess.run(["/bin/dash"], input=script[:cut], text=True, capture_output=True, timeout=30,
                              env={"PATH": "/nowhere"})
        assert "bcd install:" not in done.stdout + done.stderr, cut
        assert done.stdout == "", cut


def test_what_it_writes_is_read_back_by_bcd_and_by_python(release, bcd, tmp_path):
    script = release.script(
        privileged_plugins="kata,gvisor", release_pins=",".join(PINS), release_threshold=2, release_sequence=7,
        websocket_url="wss://gw.example/v1/session", websocket_audience="gw.example", bmc_networks="10.1.2.3/8",
        approver_set_sha256="1e" * 32, command_root_sha256=f"{'2d' * 32},{'3c' * 32}")
    text = config_of(script)
    read = tomllib.loads(re.sub(r'(?m)^site = "dev"$', 'site_id = "dev"', text))
    assert read["update"] == {"release_pins": ",".join(PINS), "release_threshold": 2, "release_sequence": 7}
    assert read["websocket"] == {"url": "wss://gw.example/v1/session", "audience": "gw.example"}
    assert read["site"] == {"bmc_networks": "10.0.0.0/8"}
    assert read["plugins"] == {"dir": "/usr/local/lib/bcd/plugins", "privileged": "kata,gvisor",
                               "cgroup": "/sys/fs/cgroup/system.slice/bcd.service/plugins"}
    assert (read["approver_set_sha256"], read["command_root_sha256"]) == ("1e" * 32, f"{'2d' * 32},{'3c' * 32}")
    config = tmp_path / "config.toml"
    config.write_text(text)
    config.chmod(0o600)
    done = subprocess.run([str(bcd), "config", "check", "--config", str(config)], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr


def test_a_script_for_a_node_without_rights_says_so_in_the_configuration(release, bcd, tmp_path):
    script = release.script(unprivileged=True, instance_bridges="br0, br-priv")
    hold("script.bytes", len(script))
    assert tomllib.loads(config_of(script))["helper"] == {"socket": "/run/bcd-helper/helper.sock", "user": "bcd"}
    assert "  instance_bridges='br0,br-priv'\n" in script
    done = release.run("daemon", "install-script", *release.flags(unprivileged=True, plugins=True))
    assert done.stderr.endswith(
        "INVALID_INPUT: --unprivileged cannot host bcx plugins yet: bcd node would need root to start them\n")


TEXT_FLAGS = ["pool", "site", "gateway-url", "base-url", "bcd-version", "sha256", "release-pins", "release-threshold",
              "websocket-url", "bmc-networks", "privileged-plugins", "instance-bridges", "attestor", "approver-set-sha256", "command-root-sha256"]


@pytest.mark.parametrize("flag", TEXT_FLAGS)
def test_no_value_breaks_out(release, flag):
    pki = release.pki()
    extra = {"release-threshold": {"release-pins": PINS[0]}, "instance-bridges": {"unprivileged": True}}.get(flag, {})
    for value in HOSTILE:
        done = release.run("daemon", "install-script", *release.flags(pki=pki, **{**extra, flag: value}))
        if flag == "instance-bridges" and value == "-a":
            # Interfaces may be called so.
            assert "  instance_bridges='-a'\n" in done.stdout
            continue
        assert (done.returncode, done.stdout) == (2, ""), value
        # An empty one is no value at all.
        assert (f"INVALID_INPUT: --{flag} " if value else f"--{flag} needs a value") in done.stderr, (value, done.stderr)
        assert not value.strip() or len(value) < 4 or value not in done.stderr


@pytest.mark.parametrize("prefix", ["https://gw.example/", "https://gw.example"])
def test_what_follows_a_good_url_is_judged_too(release, prefix):
    pki = release.pki()
    for value in HOSTILE:
        url = prefix + value
        done = release.run("daemon", "install-script", *release.flags(pki=pki, gateway_url=url))
        if done.returncode == 0:
            assert f'gateway_url = "{url.rstrip("/")}"\n' in done.stdout
            assert re.fullmatch(r"[A-Za-z0-9._~/:-]*", url), url
        else:
            assert "INVALID_INPUT: --gateway-url " in done.stderr


def test_flags_that_need_or_exclude_each_other(release):
    pki = release.pki()
    for changes, flag in [
        ({"pool": None}, "pool"), ({"gateway_url": None}, "gateway-url"), ({"bcd_version": None}, "bcd-version"),
        ({"gateway_url": "https://gw.example.com/x"}, "gateway-url"),
        ({"sha256": None}, "sha256"), ({"release_manifest": "x", "release_pins": PINS[0]}, "sha256"),
        ({"release_sequence": 1}, "release-sequence"), ({"release_threshold": 1}, "release-threshold"),
        ({"release_threshold": 2, "release_pins": f"{PINS[0]},{PINS[0]}"}, "release-threshold"),
        ({"release_threshold": 17, "release_pins": PINS[0]}, "release-threshold"),
        ({"websocket_audience": "gw"}, "websocket-audience"), ({"proxy_ca_file": "x"}, "proxy-ca-file"),
        ({"instance_bridges": "br0"}, "instance-bridges"), ({"unprivileged": True, "plugins": True}, "unprivileged"),
        ({"unprivileged": True, "privileged_plugins": "kata"}, "unprivileged"),
        ({"attestor": "join-token"}, "attestor"), ({"sha256": None, "release_manifest": "x"}, "release-manifest"),
    ]:
        done = release.run("daemon", "install-script", *release.flags(pki=pki, **changes))
        assert (done.returncode, done.stdout) == (2, ""), changes
        assert f"INVALID_INPUT: --{flag} " in done.stderr, (changes, done.stderr)


def test_the_environment_stands_for_flags(release):
    done = release.run("daemon", "install-script", *release.flags(gateway_url=None, base_url=None, bcd_version=None),
                       BETTER_COMPUTE_GATEWAY_URL="https://gw.example/", BETTER_COMPUTE_BASE_URL="https://api.example",
                       BETTER_COMPUTE_BCD_VERSION="v1.2.3", BCD_RELEASE_PINS=PINS[0])
    assert done.returncode == 0, done.stderr
    for line in ['gateway_url = "https://gw.example"', "downloads='https://api.example/api/compute/downloads'",
                 "version='1.2.3'", f'release_pins = "{PINS[0]}"']:
        assert f"{line}\n" in done.stdout


def test_a_proxys_ca_is_certificates_and_nothing_else(release, tmp_path):
    key = tmp_path / "key.pem"
    cert = tmp_path / "ca.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=proxy",
                    "-keyout", key, "-out", cert], check=True, capture_output=True, timeout=30)
    flags = {"websocket_url": "wss://gw.example/v1/session", "proxy_ca_file": cert}
    script = release.script(**flags)
    assert cert.read_text() in script and 'proxy_ca_file = "/etc/bcd/websocket-proxy-ca.pem"\n' in script
    for text in [cert.read_text() + key.read_text(), key.read_text() + cert.read_text(), "# CA\n" + cert.read_text(), "",
                 cert.read_text()[:-30], cert.read_text() * 30]:
        cert.write_text(text)
        done = release.run("daemon", "install-script", *release.flags(**flags))
        assert (done.returncode, done.stdout) == (2, ""), text
        assert "PRIVATE" not in done.stderr


def test_a_script_never_overwrites(release, tmp_path):
    out = tmp_path / "install.sh"
    assert release.run("daemon", "install-script", *release.flags(out=out)).returncode == 0
    assert out.stat().st_mode & 0o777 == 0o755
    before = out.read_bytes()
    done = release.run("daemon", "install-script", *release.flags(out=out, pool="other"))
    assert done.returncode == 2 and "FILE_EXISTS" in done.stderr
    assert out.read_bytes() == before


@pytest.fixture
def signed(release):
    """A signed manifest of the release, its path; `signed.pins` are of two keys, the first of which signed."""
    class Signed:
        manifest = release.dir / "manifest.json"
        pins = []

    for name in ("one", "two"):
        done = release.run("release", "keygen", release.dir / name)
        assert done.returncode == 0, done.stderr
        Signed.pins.append(done.stdout.strip())
        assert (release.dir / name).stat().st_mode & 0o777 == 0o600
    done = release.run("release", "sign", "--key", release.dir / "one", "--bcd-version", version(), "--sequence", 3,
                       "--out", Signed.manifest, release.files)
    assert done.returncode == 0, done.stderr
    return Signed


def test_a_manifests_digests_are_pinned(release, signed):
    script = release.script(sha256=None, release_manifest=signed.manifest, release_pins=signed.pins[0])
    assert f"sha256_amd64='{release.sha256}'\n" in script and "sha256_arm64=''\n" in script
    assert f'release_pins = "{signed.pins[0]}"\n' in script


def test_two_have_to_sign_where_the_threshold_says_so(release, signed):
    both = {"sha256": None, "release_manifest": signed.manifest, "release_pins": ",".join(signed.pins), "release_threshold": 2}
    for _ in range(2):
        done = release.run("daemon", "install-script", *release.flags(**both))
        assert done.returncode == 2 and "signed by 1 of the trusted keys, and 2 have to sign" in done.stderr
        # The same key once more is no second signature.
        release.run("release", "sign", "--key", release.dir / "one", "--add-to", signed.manifest)
    done = release.run("release", "sign", "--key", release.dir / "two", "--add-to", signed.manifest)
    assert done.returncode == 0, done.stderr
    assert "release_threshold = 2\n" in release.script(**both)


def test_manifests_that_do_not_fit_are_refused(release, signed):
    def made(**changes):
        flags = {"sha256": None, "release_manifest": signed.manifest, "release_pins": signed.pins[0], **changes}
        done = release.run("daemon", "install-script", *release.flags(**flags))
        assert (done.returncode, done.stdout) == (2, "")
        return done.stderr

    assert "RELEASE_MISMATCH" in made(bcd_version="9.9.9")
    assert "not signed by the pinned release keys" in made(release_pins=signed.pins[1])
    text = json.loads(signed.manifest.read_text())
    signed.manifest.write_text(json.dumps({**text, "payload": "e30="}))
    assert "does not hold" in made()
    signed.manifest.write_text("{}")
    assert "not an envelope" in made()


def test_files_are_checked_against_their_manifest(release, signed):
    def verify(*more):
        return release.run("release", "verify", "--manifest", signed.manifest, "--release-pins", signed.pins[0], *more)

    done = verify("--json", release.files)
    assert done.returncode == 0, done.stderr
    listed = json.loads(done.stdout)
    assert listed["files"] == [{"name": release.binary.name, "size": release.binary.stat().st_size, "sha256": release.sha256}]
    with open(release.binary, "ab") as file:
        file.write(b"x")
    done = verify(release.files)
    assert done.returncode == 1 and "RELEASE_MISMATCH" in done.stderr
    assert verify().returncode == 0


# ---- plugins from the release ---------------------------------------------------------------------


def archive(path, *members):
    """A .tar.gz of (name, content or link, type)."""
    with tarfile.open(path, "w:gz", format=tarfile.GNU_FORMAT) as tar:
        for name, content, *kind in members:
            member = tarfile.TarInfo(name)
            member.type = kind[0] if kind else tarfile.REGTYPE
            member.mode = 0o755
            if member.type in (tarfile.SYMTYPE, tarfile.LNKTYPE):
                member.linkname = content
                tar.addfile(member)
            else:
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture
def shipped(release):
    """The release with a plugin; `shipped()` signs what its directory holds, and gives the flags of a script from it."""
    release.plugin = release.files / f"bcx-ipmi_{version()}_linux_amd64.tar.gz"
    archive(release.plugin, ("README.md", b"read me"), ("bcx-ipmi", b"#!/bin/sh\necho a plugin\n"), ("LICENSE", b"free"))
    key = release.dir / "key"
    pin = release.run("release", "keygen", key).stdout.strip()
    count = itertools.count(1)

    def sign():
        manifest = release.dir / f"manifest{next(count)}.json"
        done = release.run("release", "sign", "--key", key, "--bcd-version", version(), "--sequence", 1, "--out", manifest, release.files)
        assert done.returncode == 0, done.stderr
        return {"sha256": None, "release_manifest": manifest, "release_pins": pin, "install_plugins": "bcx-ipmi"}

    return sign


def test_plugins_come_from_a_signed_manifest_alone(release, shipped):
    flags = shipped()
    script = release.script(**flags)
    assert "install_plugins='bcx-ipmi'\n" in script and "  plugins='yes'\n" in script and "\n[plugins]\n" not in script
    assert f"    bcx-ipmi-amd64) echo {hashlib.sha256(release.plugin.read_bytes()).hexdigest()} ;;\n" in script
    assert "add_section plugins " in script and "bcx-ipmi-arm64" not in script and len(script) < 24 * 1024
    assert subprocess.run(["shellcheck", "--shell=sh", "-"], input=script, text=True, capture_output=True, timeout=60).stdout == ""
    for names in ["kata", "bcx-ipmi,kata", "bcx-ipmi,bcx-ipmi", "bcx-ipmi ../x", "BCX-IPMI", ",", *[value for value in HOSTILE if value]]:
        done = release.run("daemon", "install-script", *release.flags(**{**flags, "install_plugins": names}))
        assert (done.returncode, done.stdout) == (2, "") and "INVALID_INPUT: --install-plugins " in done.stderr, names
    done = release.run("daemon", "install-script", *release.flags(install_plugins="bcx-ipmi"))
    assert done.returncode == 2 and "INVALID_INPUT: --install-plugins needs --release-manifest" in done.stderr
    release.plugin.unlink()
    done = release.run("daemon", "install-script", *release.flags(**shipped()))
    assert (done.returncode, done.stdout) == (2, "") and "RELEASE_INCOMPLETE" in done.stderr and "bcx-ipmi" in done.stderr
    assert "fetch_plugins() {" not in release.script()


def opened(script, directory, shell, tar, rewrite=""):
    """Runs the script's own functions over DIRECTORY/archive, with this tar."""
    tools = directory / "tools"
    if not tools.exists():
        tools.mkdir()
        for name in ("grep", "cat", "rm", "gzip"):
            (tools / name).symlink_to(shutil.which(name))
        (tools / "tar").write_text(f'#!/bin/sh\nexec {tar} "$@"\n')
        (tools / "tar").chmod(0o755)
    body = script.replace('\nmain "$@"\n', f"\n{rewrite}\nwork={directory} plugin=bcx-ipmi archive={directory}/archive\nopen_archive\n")
    shutil.copy(directory / "archive", directory / "kept")
    done = subprocess.run([shutil.which(shell[0]), *shell[1:]], input=body, capture_output=True, text=True, cwd=directory, timeout=60,
                          env={"PATH": str(tools)})
    shutil.copy(directory / "kept", directory / "archive")
    return done


@pytest.mark.parametrize("tar", ["/bin/tar", "/bin/busybox tar"])
@pytest.mark.parametrize("shell", [["dash"], ["bash", "--posix"], ["busybox", "sh"]])
def test_only_the_plugins_own_file_is_taken_out_of_an_archive(release, shipped, tmp_path, shell, tar):
    script = release.script(**shipped())
    directory = tmp_path / "work"
    directory.mkdir()
    good = ("bcx-ipmi", b"a plugin\n")
    archive(directory / "archive", ("README.md", b"x"), good, ("dir/bcx-ipmi", b"another"), ("..x/y..", b"x"))
    assert opened(script, directory, shell, tar).returncode == 0
    assert (directory / "bcx-ipmi").read_bytes() == b"a plugin\n"
    left = {"archive", "kept", "tools", "bcx-ipmi", "names", "said"}
    assert {path.name for path in directory.iterdir()} == left
    link, hard, fifo, folder = tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE
    for members, why in [
        ([good, ("../escape", b"x")], "names a path outside it"), ([good, ("a/../../escape", b"x")], "names a path outside it"),
        ([good, ("..", b"", folder)], "names a path outside it"), ([good, (f"{directory}/absolute", b"x")], "names a path outside it"),
        ([("/bcx-ipmi", b"x")], "names a path outside it"), ([("README.md", b"x")], "has no file bcx-ipmi"), ([], "has no file bcx-ipmi"),
        ([good, good], "or more than one"), ([("dir/bcx-ipmi", b"x")], "has no file bcx-ipmi"), ([("bcx-ipmi/x", b"x")], "has no file bcx-ipmi"),
        ([("bcx-ipmi", "/bin/sh", link)], "in the place of"), ([("README.md", b"x"), ("bcx-ipmi", "README.md", hard)], "in the place of"),
        # What one tar calls a path outside or lists with a mark behind, another shows in the place of the file.
        ([("bcx-ipmi", "/etc/passwd", hard)], ""), ([("bcx-ipmi", b"", fifo)], ""), ([("bcx-ipmi", b"", tarfile.CHRTYPE)], ""),
        ([("bcx-ipmi", b"", folder)], "has no"),
    ]:
        archive(directory / "archive", *members)
        done = opened(script, directory, shell, tar)
        assert done.returncode == 1 and why in done.stderr and "nothing was installed" in done.stderr, (members, done.stdout + done.stderr)
    for content in (b"", b"not an archive", (directory / "archive").read_bytes()[:40], gzip.compress(b"not a tar" * 200)):
        (directory / "archive").write_bytes(content)
        assert opened(script, directory, shell, tar).returncode == 1, content
    # Nothing but what it is called was ever written.
    assert {path.name for path in directory.iterdir()} <= left and not (tmp_path / "escape").exists()


@pytest.mark.parametrize("shell", [["dash"], ["bash", "--posix"], ["busybox", "sh"]])
def test_an_archive_that_would_fill_the_disk_is_stopped(release, shipped, tmp_path, shell):
    script = release.script(**shipped())
    assert "ulimit -f 524288 " in script
    directory = tmp_path / "work"
    directory.mkdir()
    archive(directory / "archive", ("bcx-ipmi", bytes(3 << 20)))
    # As with more than 256 MiB, below a smaller limit.
    small = script.replace("ulimit -f 524288 ", "ulimit -f 1024 ")
    done = opened(small, directory, shell, "/bin/tar")
    assert done.returncode == 1 and "too big" in done.stderr, done.stderr
    assert (directory / "bcx-ipmi").stat().st_size <= 1 << 20
    assert opened(script, directory, shell, "/bin/tar").returncode == 0


# ---- values made at random ------------------------------------------------------------------------

DIGEST = "1e" * 32
# Of each flag, values that are good; what goes with them; and where the value stands afterwards: a key of the configuration, or of the script itself.
GOOD = {
    "pool": (["pool_h100", "a.b-c"], {}, "# Installs bcd {version} as a node of pool {value}, site dev. "),
    "site": (["fsn1", "0_x.y"], {}, "site"),
    "gateway-url": (["https://gw.eu.example.com", "https://10.0.0.1/"], {}, "gateway_url"),
    "base-url": (["https://compute.example.com", "https://c.example/x"], {"base-path": "/"}, "  downloads='{value}/downloads'"),
    "base-path": (["/api/compute", "/x_y/z.~"], {"base-url": "https://c.example"}, "  downloads='https://c.example{value}/downloads'"),
    "bcd-version": (["1.2.3", "0.2.0-rc.1+b5"], {}, "  version='{value}'"),
    "sha256": ([f"amd64={DIGEST}", f"arm64={DIGEST},amd64={DIGEST}"], {}, None),
    "release-pins": ([PINS[0], ",".join(PINS)], {}, "update.release_pins"),
    "release-threshold": (["1", "2"], {"release-pins": ",".join(PINS)}, "update.release_threshold"),
    "release-sequence": (["0", "17"], {"release-pins": PINS[0]}, "update.release_sequence"),
    "websocket-url": (["wss://gw.example/v1/session"], {}, "websocket.url"),
    "websocket-audience": (["gw.example", "10.0.0.1"], {"websocket-url": "wss://gw.example/v1/session"}, "websocket.audience"),
    "bmc-networks": (["10.0.0.0/8", "fd00::/16,10.1.0.0/16"], {}, "site.bmc_networks"),
    "privileged-plugins": (["kata", "kata,gvisor.x"], {}, "plugins.privileged"),
    "attestor": (["tpm"], {}, "  attestor='{value}'"),
    "approver-set-sha256": ([DIGEST], {}, "approver_set_sha256"),
    "command-root-sha256": ([DIGEST, f"{DIGEST},{DIGEST}"], {}, "command_root_sha256"),
}


@pytest.mark.parametrize("flag", GOOD)
def test_what_is_accepted_stands_there_as_it_was_given(release, flag):
    """Good values with something put in, taken out or doubled: refused, naming the flag, or found literally where it belongs."""
    pki, dice = release.pki(), random.Random(flag)
    good, others, place = GOOD[flag]
    accepted = 0
    for n in range(60):
        value = good[n % len(good)]
        for _ in range(0 if n < len(good) else dice.choice([1, 1, 2])):
            at = dice.randrange(len(value) + 1)
            value = dice.choice([
                value[:at] + dice.choice(HOSTILE[:28]) + value[at:], value[:at] + dice.choice("\"'`$\\\n\r\t ;&|<>(){}[]#*?!=%@:,+~^/.-_aZ0é") + value[at:],
                value[:at] + value[at + 1:] or "x", value[:at] + value])
        done = release.run("daemon", "install-script", *release.flags(pki=pki, **{**others, flag: value}))
        if done.returncode != 0:
            assert (done.returncode, done.stdout) == (2, ""), value
            assert f"INVALID_INPUT: --{flag} " in done.stderr or f"--{flag} needs a value" in done.stderr, (value, done.stderr)
            continue
        accepted += 1
        assert set(value) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._~/:-=+, "), value
        text = re.sub(r'(?m)^site = "', 'site_id = "', config_of(done.stdout), count=1)
        config = tomllib.loads(text)
        assert set(config) <= {"gateway_url", "site_id", "serving_ca_spki_pin", "join_signing_key_pin", "join_encryption_key_pin", "approver_set_sha256",
                               "command_root_sha256", "update", "websocket", "site", "plugins"}, value
        # Slashes at the end and blanks around entries are dropped, a version's v too, and so are a network's host bits.
        shown = ",".join(entry.strip() for entry in value.split(","))
        shown = shown.rstrip("/") if "url" in flag or "path" in flag else shown
        shown = shown.removeprefix("v") if flag == "bcd-version" else shown
        if flag == "bmc-networks":
            shown = ",".join(str(ipaddress.ip_network(entry, strict=False)) for entry in shown.split(","))
        if place and "{value}" in place:
            assert place.format(value=shown, version=version()) in done.stdout, value
        elif place:
            found = config
            for key in place.replace("site", "site_id", 1).split(".") if place == "site" else place.split("."):
                found = found[key]
            assert str(found) == shown, value
        # The shell sees what was meant, and runs nothing.
        told = subprocess.run(["/bin/dash", "-eu"], input=done.stdout.rsplit("\nmain", 1)[0] + '\nsettings\nprintf "%s\\n" "$version" "$downloads"\n', text=True,
                              capture_output=True, env={"PATH": "/nowhere"}, timeout=30)
        assert (told.returncode, told.stderr, len(told.stdout.splitlines())) == (0, "", 2), value
    assert accepted >= len(good)
