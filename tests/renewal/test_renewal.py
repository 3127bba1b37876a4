"""Certificates that end: renewed under a live session, after a time without power, or refused and said plainly."""

import shutil
import time

import pytest

from lab import wait_for
from renewal.conftest import Watch, key_of, leaf, spki, unwanted

WAY_BACK = "bcd join --reset --yes"


def log(node):
    return node.process.output()


def failed(node):
    """The renewals that failed since the node's last start, as its log has them."""
    latest = log(node).split('"event":"node.start"')[-1]
    return [line for line in latest.splitlines() if '"event":"identity.renewal_failed"' in line]


def expired(node):
    """Waits until the node's certificate has ended."""
    left = leaf(node).not_valid_after_utc.timestamp() - time.time()
    time.sleep(max(0, left) + 1.1)


def test_a_certificate_is_renewed_under_a_live_session_without_a_gap(fleet, machine):
    plane = fleet("--certificate-lifetime", "12s")
    node = machine(plane)
    first, key = leaf(node), key_of(node)
    node.start()
    wait_for("the session", lambda: plane.state(node.id) == "connected")
    before = node.dir / "before"
    shutil.copytree(node.data_dir, before)
    with Watch(plane, [node.id]) as seen:
        wait_for("two renewals", lambda: log(node).count("identity.renewed") >= 2, 40)
        wait_for("the session", lambda: plane.state(node.id) == "connected")
        now = leaf(node)
    seen.never_gone()
    assert now.not_valid_after_utc > first.not_valid_after_utc
    assert now.serial_number != first.serial_number
    wait_for("the key's promotion", lambda: spki(leaf(node).public_key()) == key_of(node))
    assert key_of(node) != key, "a renewal makes a new key"
    assert node.identity()["spiffe_id"].endswith(node.id)
    assert not unwanted(log(node))

    # A copy of the disk from before the renewals has keys that speak for the node no more.
    node.stop()
    shutil.rmtree(node.data_dir)
    shutil.copytree(before, node.data_dir)
    node.start()
    wait_for("the refusal", lambda: failed(node))
    assert "another key has taken the place of this one" in failed(node)[0]
    assert WAY_BACK in log(node)
    assert node.process.running()


def test_a_node_that_was_off_past_its_certificates_end_comes_back_by_itself(fleet, machine):
    plane = fleet("--certificate-lifetime", "10s")
    node = machine(plane)
    old = leaf(node)
    expired(node)
    again = node.run("join", token=plane.token())
    assert again.returncode == 0 and "already joined as spiffe://" in again.stdout
    node.start()
    wait_for("the session", lambda: plane.state(node.id) == "connected")
    assert "identity.expired" in log(node)
    assert leaf(node).serial_number != old.serial_number
    assert leaf(node).not_valid_after_utc > old.not_valid_after_utc


@pytest.mark.parametrize("grace", ["0s", "2s"])
def test_past_the_grace_a_node_is_refused_stays_and_says_the_way_back(fleet, machine, grace):
    plane = fleet("--certificate-lifetime", "10s", "--renewal-grace", grace)
    node = machine(plane)
    expired(node)
    time.sleep(float(grace[:-1]))
    node.start()
    wait_for("the refusal", lambda: failed(node))
    assert "PERMISSION_DENIED" in failed(node)[0] and "the certificate expired" in failed(node)[0]
    assert WAY_BACK in failed(node)[0]
    time.sleep(1)
    assert node.process.running(), "bcd node stays"
    assert plane.state(node.id) != "connected", "never taken for healthy"
    assert len(failed(node)) == 1, "it asks again slowly"
    shown = node.run("status").stdout
    assert "the certificate expired" in shown and WAY_BACK in shown

    # The way it names, and what a daemon that runs through it needs besides.
    before = node.id
    reset = node.run("join", "--reset", "--yes", token=plane.token())
    assert reset.returncode == 0 and "restart it" in reset.stderr, reset.stderr
    node.id = node.identity()["node_id"]
    doctor = node.run("doctor").stdout
    assert f"still runs as {before}, and this machine has joined as {node.id}" in doctor, doctor
    node.process.terminate()
    node.start()
    wait_for("the session", lambda: plane.state(node.id) == "connected")


def test_a_deleted_node_is_told_so_by_session_and_renewal(fleet, machine):
    plane = fleet("--certificate-lifetime", "12s")
    node = machine(plane)
    node.start()
    wait_for("the session", lambda: plane.state(node.id) == "connected")
    plane.run("nodes", "delete", node.id, "--yes")
    wait_for("the refusal", lambda: "this node was deleted" in log(node))
    wait_for("the refused renewal", lambda: failed(node), 30)
    refused = failed(node)[-1]
    assert "this node was deleted" in refused and WAY_BACK in refused
    assert node.process.running()
    assert plane.node(node.id) is None


def test_a_control_plane_that_is_away_when_it_is_due_is_asked_again(fleet, machine):
    plane = fleet("--certificate-lifetime", "12s")
    node = machine(plane)
    old = leaf(node)
    node.start()
    wait_for("the session", lambda: plane.state(node.id) == "connected")
    plane.kill()
    wait_for("a failed renewal", lambda: failed(node), 30)
    pending = key_of(node, "node.key.next")
    assert pending, "the key is on the disk before it is asked for"
    plane.start()
    wait_for("the renewal", lambda: "identity.renewed" in log(node), 40)
    assert key_of(node) == pending, "what failed is asked for again with the same key"
    assert leaf(node).serial_number != old.serial_number
    wait_for("the session", lambda: plane.state(node.id) == "connected", 40)


def test_a_full_or_read_only_disk_costs_a_try_and_not_the_identity(fleet, machine):
    plane = fleet("--certificate-lifetime", "12s")
    node = machine(plane)
    (node.data_dir / "node.key.next").mkdir()
    (node.data_dir / "identity.json.new").mkdir()
    node.start()
    wait_for("a failed renewal", lambda: failed(node), 30)
    assert plane.state(node.id) == "connected"
    assert spki(leaf(node).public_key()) == key_of(node)
    # What stood in the key's place is set aside, what stands in the way of the identity by a person.
    assert list(node.data_dir.glob("node.key.next.corrupt-*"))
    (node.data_dir / "identity.json.new").rmdir()
    wait_for("the renewal", lambda: "identity.renewed" in log(node), 30)


@pytest.mark.slow
def test_a_session_does_not_outlive_its_certificate(fleet, machine):
    plane = fleet("--certificate-lifetime", "10s")
    node = machine(plane)
    (node.data_dir / "identity.json.new").mkdir()
    node.start()
    wait_for("the session", lambda: plane.state(node.id) == "connected")
    wait_for("its end", lambda: "this node's certificate has expired: renew it" in log(node), 30)
    # One reason is one line a minute; its likes are counted.
    assert failed(node)
    wait_for("what the records say", lambda: plane.state(node.id) == "disconnected")
    (node.data_dir / "identity.json.new").rmdir()
    wait_for("the session", lambda: plane.state(node.id) == "connected", 90)


def test_gateway_certificates_are_renewed_while_it_runs(fleet, machine):
    plane = fleet("--serving-lifetime", "9s")
    node = machine(plane)
    node.start()
    wait_for("the session", lambda: plane.state(node.id) == "connected")
    begun = time.monotonic()
    wait_for("renewals", lambda: plane.process.output().count("serving.renewed") >= 8, 40)
    assert time.monotonic() - begun > 9, "the first certificate has ended by now"
    # New connections are judged by certificates of now: a session, a join, and the API.
    node.process.terminate()
    node.start()
    wait_for("the session", lambda: plane.state(node.id) == "connected")
    machine(plane, "second")
    assert "session.refused" not in log(node)


def test_a_node_of_another_control_plane_is_told_so(fleet, machine, better_compute, tmp_path):
    """A control plane that was made anew knows none of the nodes there were."""
    plane = fleet("--certificate-lifetime", "10s")
    node = machine(plane)
    plane.kill()
    (plane.dir / "state.db").unlink()
    for rest in plane.dir.glob("state.db-*"):
        rest.unlink()
    plane.start()
    expired(node)
    node.start()
    wait_for("the refusal", lambda: failed(node))
    assert "no node of this control plane has this id and key" in failed(node)[0]
    assert WAY_BACK in failed(node)[0]
