"""`better-compute daemon install-script` and `release`: what they write, and what they refuse. No host is touched."""

import base64
import json
import re
import resource
import subprocess
import tomllib

import pytest

from lab import version

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
    for changes in ({}, {"attestor": "tpm"}, {"privileged_plugins": "kata", "release_pins": PINS[0], "bmc_networks": "fd00::/8"}):
        done = subprocess.run(["shellcheck", "--shell=sh", "-"], input=release.script(**changes), text=True,
                              capture_output=True, timeout=60)
        assert done.returncode == 0, done.stdout


def test_it_is_small_and_holds_no_secret(release):
    script = release.script(privileged_plugins="kata", release_pins=",".join(PINS), websocket_url="wss://gw.example/v1/session")
    assert len(script) < 24 * 1024
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
    assert sorted(spent)[2] < 0.02, spent


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


TEXT_FLAGS = ["pool", "site", "gateway-url", "base-url", "bcd-version", "sha256", "release-pins", "release-threshold",
              "websocket-url", "bmc-networks", "privileged-plugins", "attestor", "approver-set-sha256", "command-root-sha256"]


@pytest.mark.parametrize("flag", TEXT_FLAGS)
def test_no_value_breaks_out(release, flag):
    pki = release.pki()
    extra = {"release-pins": PINS[0]} if flag == "release-threshold" else {}
    for value in HOSTILE:
        done = release.run("daemon", "install-script", *release.flags(pki=pki, **{**extra, flag: value}))
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
        ({"sha256": None}, "sha256"), ({"release_manifest": "x", "release_pins": PINS[0]}, "sha256"),
        ({"release_sequence": 1}, "release-sequence"), ({"release_threshold": 1}, "release-threshold"),
        ({"release_threshold": 2, "release_pins": f"{PINS[0]},{PINS[0]}"}, "release-threshold"),
        ({"release_threshold": 17, "release_pins": PINS[0]}, "release-threshold"),
        ({"websocket_audience": "gw"}, "websocket-audience"), ({"proxy_ca_file": "x"}, "proxy-ca-file"),
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
