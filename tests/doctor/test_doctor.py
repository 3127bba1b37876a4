"""`bcd doctor` on machines that are well, and on machines that are not, each in its own way."""

import json
import os
import pathlib
import resource
import shutil
import subprocess
import tempfile
import time
import tomllib

import pytest

from lab import ControlPlane, Node, clean_env, running, wait_for
from promises import hold

from . import paths

CHECKS = ["config", "mode", "data-dir", "space", "identity", "join-key", "journal", "leftovers", "helper",
          "release-pins", "unit", "daemon", "sandbox", "proxy", "dns", "gateway", "tls", "clock", "mtu"]


def doctor(node, *before, **options):
    """The exit code, and each check by its name."""
    done = subprocess.run(
        [*before, *node.command, "doctor", "--json", "--config", node.config],
        capture_output=True, text=True, env=clean_env(), timeout=90, check=False, **options)
    assert not done.stderr, done.stderr
    said = json.loads(done.stdout)
    checks = {check["name"]: check for check in said["checks"]}
    assert list(checks) == CHECKS, "no check hides another"
    for check in said["checks"]:
        assert check["evidence"], check
        assert check["level"] == "ok" or check["do"], f"no remedy: {check}"
    worst = max(said["checks"], key=lambda check: ["ok", "warn", "fail"].index(check["level"]))["level"]
    assert said["worst"] == worst and said["ok"] is (worst != "fail")
    assert done.returncode == (1 if worst == "fail" else 0)
    return done.returncode, checks


def levels(checks, level):
    return {name for name, check in checks.items() if check["level"] == level}


def connected(node):
    def asked():
        done = node.run("status", "--json")
        return json.loads(done.stdout)["connected"]
    wait_for("the node to be connected", asked)


@pytest.fixture
def well(join):
    node = join()
    node.start()
    connected(node)
    return node


def test_on_a_machine_that_is_well_nothing_fails(well, dev):
    code, checks = doctor(well)
    assert code == 0
    # Nobody has configured release keys here.
    assert levels(checks, "warn") <= {"release-pins", "space"}
    assert well.id in checks["identity"]["evidence"]
    assert dev.gateway in checks["gateway"]["evidence"]
    assert "sha256/" in checks["tls"]["evidence"]
    assert "connected since" in checks["daemon"]["evidence"]
    assert "as the control plane has it" in checks["clock"]["evidence"]
    assert "pass" in checks["mtu"]["evidence"]


def test_text_has_one_line_a_check_with_its_level_first(well):
    done = well.run("doctor")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert [line.split()[1] for line in lines] == CHECKS
    assert {line.split()[0] for line in lines} <= {"ok", "warn"}


def test_it_takes_little_processor_time_when_everything_is_well(well):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    doctor(well)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    # What it waits for is the network alone: processor time bounds all the rest. An unoptimised build needs more.
    hold("doctor.cpu", spent * 1e3, room=1 if "linux_amd64" in str(well.command[0]) else 10)


def test_it_changes_nothing(well):
    def state():
        return {p: (p.stat().st_size, p.stat().st_mtime_ns) for p in sorted(well.dir.rglob("*")) if p.name != "node.log"}

    def settled():
        # The node's own first events are written and acknowledged soon after it is connected.
        before = state()
        time.sleep(2)
        return state() == before

    wait_for("the node to have written what it has to", settled, 60)
    before = state()
    doctor(well)
    assert state() == before


def test_before_the_first_join_the_identity_only_warns(make_node):
    node = make_node()
    code, checks = doctor(node)
    assert code == 0
    assert checks["identity"]["level"] == "warn"
    assert "has not joined" in checks["identity"]["evidence"] and "bcd join" in checks["identity"]["do"]
    assert checks["gateway"]["level"] == checks["tls"]["level"] == "ok"
    # Without a session the gateway's own date is what the clock is held against.
    assert checks["clock"]["level"] == "ok" and "gateway" in checks["clock"]["evidence"]


def test_a_gateway_that_is_down_is_a_failure_with_the_port_named(dev, make_node):
    node = make_node()
    dev.kill()
    code, checks = doctor(node)
    assert code == 1
    assert checks["gateway"]["level"] == "fail"
    assert "refused" in checks["gateway"]["evidence"] and dev.gateway in checks["gateway"]["evidence"]
    assert checks["tls"]["level"] == "warn" and "not checked" in checks["tls"]["evidence"]


def test_without_a_configuration_the_rest_is_still_looked_at(make_node, tmp_path):
    node = make_node()
    node.config.unlink()
    code, checks = doctor(node)
    assert code == 1
    assert checks["config"]["level"] == "fail" and str(node.config) in checks["config"]["evidence"]
    for name in ("dns", "gateway", "tls", "mtu", "release-pins"):
        assert "not checked: it needs a configuration" in checks[name]["evidence"]
    assert checks["data-dir"]["evidence"].startswith("/var/lib/bcd")


@pytest.mark.parametrize("text", ["gateway_url = 3\nnonsense\n", "", "\x00" * 70000])
def test_a_broken_configuration_is_told_with_its_lines(make_node, text):
    node = make_node()
    node.config.write_text(text)
    code, checks = doctor(node)
    assert code == 1
    assert checks["config"]["level"] == "fail"


def test_things_that_are_not_what_they_should_be_hide_nothing(make_node, tmp_path):
    node = make_node(data_dir=str(tmp_path / "file"), socket_path=str(tmp_path / "fifo"))
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "fifo")
    code, checks = doctor(node)
    assert code == 1
    assert checks["data-dir"]["level"] == "fail" and "no directory" in checks["data-dir"]["evidence"]
    assert checks["gateway"]["level"] == checks["tls"]["level"] == "ok"
    # Nothing waits for a pipe that nobody writes to.
    node.config.unlink()
    os.mkfifo(node.config)
    _, checks = doctor(node)
    assert "regular file" in checks["config"]["evidence"]


def test_a_configuration_that_others_may_read_is_a_warning(make_node):
    node = make_node()
    node.config.chmod(0o644)
    code, checks = doctor(node)
    assert code == 0
    assert checks["mode"]["level"] == "warn" and "chmod 0600" in checks["mode"]["do"]


def test_a_user_without_rights_is_told_what_could_not_be_seen(well, tmp_path):
    # The way there is open, and what is there is not.
    bcd = tmp_path / "bcd"
    shutil.copy(well.command[0], bcd)
    bcd.chmod(0o755)
    top = pathlib.Path(tempfile.gettempdir())
    for path in [well.dir, tmp_path, *tmp_path.parents]:
        if path != top and path.is_relative_to(top):
            path.chmod(0o755)
    nobody = {"user": 65534, "group": 65534, "extra_groups": []}
    well.command = [str(bcd)]
    code, checks = doctor(well, **nobody)
    assert code == 1 and checks["config"]["level"] == "fail"
    assert "ermission denied" in checks["config"]["evidence"] and "root" in checks["config"]["do"]
    # Where it may read the configuration it goes on, and says what it lacks.
    well.config.chmod(0o644)
    code, checks = doctor(well, **nobody)
    for name in ("identity", "journal", "leftovers", "daemon", "data-dir"):
        assert checks[name]["level"] == "warn" and "ermission denied" in checks[name]["evidence"] \
            or "not checked" in checks[name]["evidence"], checks[name]
    assert checks["gateway"]["level"] == checks["tls"]["level"] == "ok"


def test_a_wrong_pin_is_told_with_both_pins(dev, make_node):
    wrong = "sha256/" + "A" * 43 + "="
    node = make_node(serving_ca_spki_pin=wrong)
    code, checks = doctor(node)
    assert code == 1
    assert checks["tls"]["level"] == "fail"
    presented = tomllib.loads((dev.dir / "node/config.toml").read_text())["serving_ca_spki_pin"]
    assert wrong in checks["tls"]["evidence"] and presented in checks["tls"]["evidence"]
    assert "serving_ca_spki_pin in" in checks["tls"]["do"]
    assert checks["mtu"]["level"] == "ok", "what is wrong with the pin is not wrong with the path"


def test_a_wrong_name_is_told(make_node):
    code, checks = doctor(make_node(gateway_server_name="other.example"))
    assert code == 1
    assert "not for other.example" in checks["tls"]["evidence"] and "gateway_server_name" in checks["tls"]["do"]


def test_a_name_that_nobody_knows_is_told_with_who_was_asked(make_node):
    node = make_node(gateway_url="https://nobody.invalid:443")
    code, checks = doctor(node)
    assert code == 1
    assert checks["dns"]["level"] == "fail"
    assert "nobody.invalid" in checks["dns"]["evidence"] and "resolv.conf" in checks["dns"]["do"]
    assert checks["gateway"]["level"] == "fail"


def test_an_expired_identity_is_a_failure_with_the_way_back(better_compute, bcd, tmp_path):
    with running(better_compute, tmp_path / "dev", "--certificate-lifetime", "10s") as dev:
        node = Node([bcd], dev, tmp_path / "node")
        node.join(dev.token())

        def expired():
            _, checks = doctor(node)
            return checks["identity"]["level"] == "fail" and checks["identity"]
        check = wait_for("the certificate's end", expired, 30)
        assert "expired on" in check["evidence"]
        assert "bcd join --reset --yes, then bcd join" in check["do"]


def test_a_damaged_identity_and_a_damaged_journal_are_failures_and_hide_nothing(well):
    well.process.terminate()
    (well.data_dir / "identity.json").write_text("{")
    journal = well.data_dir / "journal.db"
    journal.write_bytes(b"\xff" * journal.stat().st_size)
    code, checks = doctor(well)
    assert code == 1
    assert levels(checks, "fail") == {"identity", "journal"}
    assert "bcd join --reset" in checks["identity"]["do"]


def test_files_that_were_set_aside_are_named(well):
    for name in ("journal.db.corrupt-20260101T000000Z", "identity.json.new", "node.key.reset-20260101T000000Z"):
        (well.data_dir / name).write_text("x")
    _, checks = doctor(well)
    assert checks["leftovers"]["level"] == "warn"
    assert "identity.json.new, journal.db.corrupt-20260101T000000Z" in checks["leftovers"]["evidence"]


def test_a_daemon_that_does_not_run_is_a_failure_once_joined(join):
    _, checks = doctor(join())
    assert checks["daemon"]["level"] == "fail" and "systemctl start" in checks["daemon"]["do"]


def test_a_daemon_that_was_refused_says_why(well, dev):
    dev.run("nodes", "delete", well.id, "--yes")

    def refused():
        _, checks = doctor(well)
        return checks["daemon"]["level"] == "fail" and checks["daemon"]
    check = wait_for("the refusal", refused, 30)
    assert check["evidence"].startswith("refused since")
    assert "bcd join --reset" in check["do"]


def test_a_full_disk_is_told(make_node, token, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m,mode=0700", "tmpfs", str(small)], check=True)
    try:
        node = make_node("node", data_dir=str(small))
        node.data_dir = small
        node.join(token())
        with open(small / "filler", "wb") as filler:
            with pytest.raises(OSError):
                while True:
                    filler.write(b"x" * 65536)
                    filler.flush()
        _, checks = doctor(node)
        assert checks["data-dir"]["level"] == "fail" and "free some space" in checks["data-dir"]["do"]
        assert checks["space"]["level"] == "fail"
        assert checks["identity"]["level"] == "ok"
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


def test_a_read_only_state_directory_is_told(join, tmp_path):
    node = join()
    subprocess.run(["mount", "--bind", str(node.data_dir), str(node.data_dir)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(node.data_dir)], check=True)
        _, checks = doctor(node)
        assert checks["data-dir"]["level"] == "fail" and "read-only" in checks["data-dir"]["do"]
    finally:
        subprocess.run(["umount", str(node.data_dir)], check=True)


@pytest.fixture
def apart(better_compute, bcd, tmp_path):
    """A node that has joined a gateway behind a router: (path, control plane, node)."""
    with paths.between() as path:
        program = tmp_path / "far"
        program.write_text(f"#!/bin/sh\nexec ip netns exec {path.far} {better_compute} \"$@\"\n")
        program.chmod(0o755)
        (tmp_path / "dev").mkdir()
        dev = ControlPlane(program, tmp_path / "dev")
        dev.ports = {"gateway": f"{path.GATEWAY}:7443", "http": "127.0.0.1:7444"}
        try:
            dev.start()
            node = Node([*path.enter(path.node), bcd], dev, tmp_path / "node")
            node.join(dev.token())
            yield path, dev, node
        finally:
            if dev.process:
                dev.kill()


def test_a_path_that_is_well_is_said_to_be(apart):
    _, _, node = apart
    _, checks = doctor(node)
    assert checks["gateway"]["level"] == checks["tls"]["level"] == checks["mtu"]["level"] == "ok"
    assert "packets of 1500 bytes pass" in checks["mtu"]["evidence"]


def test_a_firewall_that_drops_silently_is_told_from_one_that_refuses(apart):
    path, _, node = apart
    path.drop_silently()
    started = time.monotonic()
    code, checks = doctor(node)
    assert code == 1 and time.monotonic() - started < 30
    assert checks["gateway"]["level"] == "fail" and "no answer" in checks["gateway"]["evidence"]
    assert "firewall" in checks["gateway"]["do"]
    path.inside(path.router, "nft", "flush", "ruleset")
    path.reject()
    _, checks = doctor(node)
    assert "refused" in checks["gateway"]["evidence"]


def test_a_path_with_a_smaller_mtu_that_says_so_to_nobody_is_named_with_the_size_that_passes(apart):
    path, _, node = apart
    path.narrow(1280)
    code, checks = doctor(node)
    assert code == 1
    assert checks["gateway"]["level"] == "ok"
    assert checks["mtu"]["level"] == "fail", checks["mtu"]
    assert "packets of 1500 bytes" in checks["mtu"]["evidence"] and "1280 bytes pass" in checks["mtu"]["evidence"]
    assert "mtu 1280" in checks["mtu"]["do"]


def test_no_route_at_all_is_told(apart):
    path, _, node = apart
    path.inside(path.node, "ip", "route", "del", "default")
    _, checks = doctor(node)
    assert checks["gateway"]["level"] == "fail" and "unreachable" in checks["gateway"]["evidence"]
    assert "ip route" in checks["gateway"]["do"]
