"""The fleet's keys rotated one after the other while its nodes stay connected."""

import json
import ssl
import tomllib
import urllib.request

import pytest

from lab import wait_for
from renewal.conftest import Watch, fleet, leaf, machine, unwanted  # noqa: F401 - fixtures

KEYS = ("serving-ca", "node-ca", "join-signing", "join-encryption")
PINS = {"serving-ca": "serving_ca_spki_pin", "join-signing": "join_signing_key_pin",
        "join-encryption": "join_encryption_key_pin"}


def rotation(plane, key):
    shown = plane.json("pki", "rotate", key)
    return next(r for r in shown["rotations"] if r["key"] == key)


def step(plane, key, *step, check=True):
    return plane.run("pki", "rotate", key, *step, check=check)


def connected(plane, *nodes):
    for node in nodes:
        wait_for(f"the session of {node.id}", lambda n=node: plane.state(n.id) == "connected", 40)


def followed(plane, key):
    wait_for(f"all nodes to follow the rotation of {key}", lambda: rotation(plane, key)["behind"] == 0, 40)


def restarted(plane, node):
    """A new connection from nothing but the disk."""
    if node.process:
        node.process.terminate()
        wait_for("the end", lambda: plane.state(node.id) == "disconnected")
    node.start()
    connected(plane, node)


def new_pins(plane, node):
    """What the walk-through tells an operator to do: the present pins into config.toml."""
    now = tomllib.loads((plane.dir / "node/config.toml").read_text())
    written = tomllib.loads(node.config.read_text())
    written.update({key: now[key] for key in PINS.values()})
    node.config.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in written.items()))
    (node.dir / "join-encryption.jwk").write_bytes((plane.dir / "node/join-encryption.jwk").read_bytes())


def told(node):
    """What `bcd status` says of the identity."""
    return json.loads(node.run("status", "--json").stdout)["identity"]


def checked(node, name):
    """What `bcd doctor` says in one of its checks."""
    checks = json.loads(node.run("doctor", "--json").stdout)["checks"]
    return next(check for check in checks if check["name"] == name)


def document(plane):
    context = ssl.create_default_context(cafile=plane.info["caFile"])
    with urllib.request.urlopen(plane.info["serverUrl"] + "/.well-known/better-compute", context=context) as answer:
        return json.load(answer)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_all_keys_are_rotated_while_two_nodes_stay_connected(fleet, machine):
    plane = fleet()
    first, second = machine(plane, "first"), machine(plane, "second")
    for node in (first, second):
        node.start()
    connected(plane, first, second)
    pins = {key: rotation(plane, key)["pin"] for key in KEYS}
    keys = {node.id: leaf(node).serial_number for node in (first, second)}
    with Watch(plane, [first.id, second.id]) as seen:
        for key in KEYS:
            step(plane, key, "--begin")
            begun = rotation(plane, key)
            assert (begun["phase"], begun["pin"]) == ("begun", pins[key])
            early = step(plane, key, "--finish", check=False)
            assert early.returncode == 1 and "--switch comes before --finish" in early.stderr
            followed(plane, key)
            step(plane, key, "--switch", *(("--within", "1s") if key == "node-ca" else ()))
            switched = rotation(plane, key)
            assert (switched["phase"], switched["pin"], switched["otherPin"]) == (
                "switched", begun["otherPin"], pins[key])
            followed(plane, key)
            step(plane, key, "--finish")
            assert rotation(plane, key).get("phase") is None
        connected(plane, first, second)
        version = plane.json("pki", "rotate", "node-ca")["trustVersion"]
        assert version == 13
    seen.never_gone()
    for node in (first, second):
        log = node.process.output()
        assert not unwanted(log)
        assert log.count("trust.taken") == 12 and "trust.refused" not in log
        assert log.count("identity.renewed") == 1
        assert leaf(node).serial_number != keys[node.id]

    # Everything there is has followed.
    retired = set(plane.json("pki", "rotate", "node-ca")["retiredPins"])
    assert retired == set(pins.values())
    written = tomllib.loads((plane.dir / "node/config.toml").read_text())
    for key, name in PINS.items():
        assert written[name] == rotation(plane, key)["pin"] != pins[key]
    shown = document(plane)
    assert shown["gateway"]["servingCaPin"] == written["serving_ca_spki_pin"]
    assert shown["join"]["signingKeyPin"] == written["join_signing_key_pin"]
    assert shown["join"]["encryptionKeyPin"] == written["join_encryption_key_pin"]
    # The nodes' own config.toml still has the first pins: their disk leads from those to the present keys.
    restarted(plane, first)
    # A machine that is installed now joins; one installed with the old pins is refused.
    restarted(plane, machine(plane, "third"))

    # And the state survives a kill.
    plane.kill()
    plane.start()
    connected(plane, first, second)
    assert plane.json("pki", "rotate", "node-ca")["trustVersion"] == 13


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("key", KEYS)
def test_a_node_that_was_off_from_begin_to_switch_comes_back_and_one_off_past_the_end_has_a_way(fleet, machine, key):
    plane = fleet()
    overlap, late, deaf = machine(plane, "overlap"), machine(plane, "late"), machine(plane, "deaf")
    # They have been connected before, and hold the first trust bundle.
    for node in (overlap, late):
        node.start()
        connected(plane, node)
        node.process.terminate()
    step(plane, key, "--begin")
    step(plane, key, "--switch", *(("--within", "0s") if key == "node-ca" else ()))
    overlap.start()
    connected(plane, overlap)
    behind = rotation(plane, key)
    if key == "join-encryption":
        assert behind["behind"] == 0, "a node that has joined has no use for that key"
    else:
        wait_for("the node that came back to follow",
                 lambda: overlap.id not in [n["id"] for n in rotation(plane, key)["behindNodes"]])
        refused = step(plane, key, "--finish", check=False)
        assert refused.returncode == 1 and "NODES_BEHIND" in refused.stderr
        assert late.id in refused.stderr and deaf.id in refused.stderr and overlap.id not in refused.stderr
        assert rotation(plane, key)["phase"] == "switched"
    step(plane, key, "--finish", "--force")
    restarted(plane, overlap)

    late.start()
    if key in ("node-ca", "join-encryption"):
        # Nobody at its console: the renewal needs no certificate that the gateway takes.
        connected(plane, late)
        return
    said = "session.refused" if key == "serving-ca" else "trust.refused"
    wait_for("what it says", lambda: said in late.process.output())
    line = next(line for line in late.process.output().splitlines() if said in line)
    assert "config.toml" in line, line
    if key == "join-signing":
        # It is connected, and a person is told all the same.
        connected(plane, late)
        assert "pki pins" in wait_for("what status says", lambda: told(late)["do"])
        check = checked(late, "daemon")
        assert check["level"] == "warn" and "not signed by" in check["evidence"] and "pki pins" in check["do"]
    late.process.terminate()
    new_pins(plane, late)
    late.start()
    connected(plane, late)
    if key == "join-signing":
        wait_for("the trust bundle", lambda: "trust.taken" in late.process.output())
        assert told(late)["problem"] is None and checked(late, "daemon")["level"] == "ok"
    assert late.identity()["node_id"] == late.id


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_node_that_was_off_while_two_keys_were_rotated_is_told_of_the_pins_and_keeps_its_identity(fleet, machine):
    """The gateway takes its certificate no more, and it believes no answer to a renewal: new pins are the way back,
    and giving the identity up is not."""
    plane = fleet()
    late = machine(plane)
    late.start()
    connected(plane, late)
    late.process.terminate()
    for key in ("node-ca", "join-signing"):
        step(plane, key, "--begin")
        step(plane, key, "--switch")
        step(plane, key, "--finish", "--force")
    late.start()
    for event in ("session.refused", "identity.renewal_failed"):
        def said(event=event):
            lines = map(json.loads, late.process.output().splitlines())
            return next((line for line in lines if line["event"] == event), None)
        assert "--reset" not in wait_for(event, said)["do"]
    identity = told(late)
    assert "pki pins" in identity["do"] and "--reset" not in identity["do"], identity
    assert "pki pins" in late.run("status").stdout
    check = checked(late, "daemon")
    assert check["level"] == "fail" and "pki pins" in check["do"] and "--reset" not in check["do"], check
    late.process.terminate()
    new_pins(plane, late)
    late.start()
    connected(plane, late)
    assert told(late)["problem"] is None
    assert late.identity()["node_id"] == late.id


def test_pins_are_read_where_the_control_plane_keeps_them(fleet):
    plane = fleet()
    written = tomllib.loads((plane.dir / "node/config.toml").read_text())
    pins = tomllib.loads(plane.run("pki", "pins").stdout)
    assert pins == {name: written[name] for name in PINS.values()}
    assert "trust version" in plane.run("pki", "show").stdout
    both = plane.run("pki", "pins", "--pki", plane.dir / "pki.json", check=False)
    assert both.returncode == 2 and "one of --pki and --dir" in both.stderr


def test_a_node_ca_that_is_dropped_at_once_ends_its_sessions_and_the_nodes_come_back(fleet, machine):
    """As after a leak: nobody waits for the nodes, and no certificate of the old CA stays in use."""
    plane = fleet()
    node = machine(plane)
    node.start()
    connected(plane, node)
    old = leaf(node)
    step(plane, "node-ca", "--begin")
    step(plane, "node-ca", "--switch", "--within", "7d")
    assert rotation(plane, "node-ca")["behind"] == 1
    step(plane, "node-ca", "--finish", "--force")
    wait_for("the end of its session", lambda: "was retired" in node.process.output())
    wait_for("the renewal", lambda: "identity.renewed" in node.process.output(), 40)
    connected(plane, node)
    assert leaf(node).issuer != old.issuer
    assert "forced_past=1" in plane.process.output()


def test_a_join_with_old_pins_works_in_the_overlap_and_is_refused_after_it(fleet, machine, tmp_path, bcd):
    from lab import Node
    plane = fleet()
    before = [Node([bcd], plane, tmp_path / f"installed{n}") for n in range(2)]
    for key in KEYS:
        step(plane, key, "--begin")
        step(plane, key, "--switch")
    before[0].join(plane.token())
    for key in KEYS:
        step(plane, key, "--finish", "--force")
    token = plane.token()
    refused = before[1].run("join", token=token)
    assert refused.returncode == 1 and "pki pins" in refused.stderr
    new_pins(plane, before[1])
    before[1].join(token)


def test_a_rotation_of_a_bundle_file_is_shown_and_goes_on_in_a_control_plane(fleet, machine):
    plane = fleet()
    node = machine(plane)
    node.start()
    connected(plane, node)
    plane.kill()
    bundle, key = plane.dir / "pki.json", plane.dir / "pki.key"

    def offline(*arguments, check=True):
        import subprocess

        from lab import clean_env
        done = subprocess.run([str(plane.program), "pki", *map(str, arguments)], capture_output=True, text=True,
                              env=clean_env(), timeout=60)
        assert not check or done.returncode == 0, done.stderr
        return done

    offline("rotate", "serving-ca", "--begin", "--pki", bundle, "--key-file", key)
    again = offline("rotate", "serving-ca", "--begin", "--pki", bundle, "--key-file", key, check=False)
    assert again.returncode == 2 and "its next step is --switch" in again.stderr
    blind = offline("rotate", "serving-ca", "--finish", "--pki", bundle, "--key-file", key, check=False)
    assert blind.returncode == 2 and "--force" in blind.stderr
    shown = json.loads(offline("show", "--pki", bundle, "--json").stdout)
    assert [(r["key"], r["phase"]) for r in shown["rotations"]] == [("serving-ca", "begun")]
    assert "begun" in offline("show", "--pki", bundle).stdout
    offline("rotate", "serving-ca", "--switch", "--pki", bundle, "--key-file", key)
    plane.start()
    connected(plane, node)
    followed(plane, "serving-ca")
    step(plane, "serving-ca", "--finish")
    restarted(plane, node)


@pytest.mark.parametrize("arguments, says", [
    ((), "KEY"),
    (("serving",), "KEY is serving-ca"),
    (("serving-ca", "--begin", "--switch"), "give one of"),
    (("serving-ca", "--begin", "--force"), "--force goes with --finish"),
    (("serving-ca", "--switch", "--within", "1s"), "--within goes with node-ca --switch"),
    (("node-ca", "--switch", "--within", "soon"), "--within is a number"),
])
def test_what_makes_no_sense_is_refused_before_anything_is_asked(fleet, arguments, says):
    plane = fleet()
    done = plane.run("pki", "rotate", *arguments, check=False)
    assert done.returncode == 2 and says in done.stderr, done.stderr
    assert plane.json("pki", "rotate", "node-ca")["trustVersion"] == 1
