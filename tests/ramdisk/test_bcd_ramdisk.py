"""`bcd ramdisk` as a process, against a control plane: what its line may be, and what it says when it may not.

The assertions are made by `site_agent.py` too, from docs/protocol.md alone.
"""

import json
import re
import subprocess
import time

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from lab import clean_env, wait_for
from ramdisk.boots import OTHER, Boot, secrets
from site_agent import assertion, read_key


def test_a_machine_joins_is_connected_as_a_ramdisk_and_shows_its_hardware(boot, dev, mac):
    one = boot(mac, "--append", "console=ttyS0 quiet")
    one.start()
    node = one.connected()
    assert (node["role"], node["site"], node["pool"]) == ("ramdisk", "dev", "discovered")
    shown = wait_for("the machine's facts", lambda: (m := dev.json("machines", "show", mac)).get("facts") and m)
    assert shown["node"]["id"] == node["id"] and shown["boots"] == 1
    assert shown["node"]["details"]["claims"]["bootMac"] == mac
    assert mac in [interface["mac"] for interface in shown["facts"]["interfaces"]]
    listed, = dev.json("machines", "list")["machines"]
    assert listed["mac"] == mac and listed["memoryBytes"] == shown["facts"]["memory_bytes"]
    text = dev.run("machines", "show", mac).stdout
    assert "role:         ramdisk" in text and "memory:" in text
    # All JSON, and no secret; nothing of it readable by others.
    log = one.process.output()
    for line in log.splitlines():
        json.loads(line)
    assert '"event":"ramdisk.joined"' in log
    files = [path for path in one.data_dir.iterdir() if path.is_file()]
    everything = log + "".join(path.read_text(errors="replace") for path in files)
    assert not any(secret in everything for secret in secrets(one))
    assert one.data_dir.stat().st_mode & 0o777 == 0o700 and (one.data_dir / "bcd.sock").is_socket()
    # A command reaches it as it reaches every node.
    dev.run("commands", "run", node["id"], "node.facts", "--wait")
    # Killed, and started again by init within the boot: the same node, without a second join.
    one.process.kill()
    one.start()
    assert one.connected()["id"] == node["id"]
    assert "ramdisk.joined" not in one.process.output()[len(log):]
    assert one.process.terminate() == 0


def test_each_boot_needs_parameters_of_its_own(boot, dev, bcd, mac, tmp_path):
    first = boot()
    first.start()
    node = first.connected()
    first.process.kill()
    again = Boot(bcd, dev, tmp_path / "again", first.line)
    code, said = again.run()
    assert code == 1 and said.count("\n") == 1, said
    assert "the join token was already used, by an earlier boot or by another machine: boot it again" in said
    second = boot()
    second.start()
    other = wait_for("the second node", lambda: next(
        (n for n in dev.nodes() if n["state"] == "connected" and n["id"] != node["id"]), None))
    machine, = dev.json("machines", "list")["machines"]
    assert machine["boots"] == 2 and machine["node"]["id"] == other["id"]
    # Two boots of one machine are not two machines with the same hardware.
    assert dev.json("nodes", "show", other["id"])["details"]["duplicates"] == []


def test_parameters_of_another_machine_are_refused_on_one_line(boot):
    code, said = boot(OTHER).run()
    assert code == 1
    assert f"the join token is for the machine with the MAC {OTHER}, and this machine has no NIC with it" in said


def test_assertions_of_a_second_implementation_are_held_to_every_rule(boot, dev, bcd, mac, tmp_path):
    """One token, offered with every assertion that is not good, then with one that is: nothing was spent."""
    key = read_key(dev.dir / "site.key")
    one = boot()
    token_id = one.parameter("bc.token").split("_", 1)[1].split(".")[0]
    own, revoked = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    elsewhere = ec.generate_private_key(ec.SECP256R1())
    for name, made, site in [("revoked", revoked, "dev"), ("elsewhere", elsewhere, "hel1")]:
        (tmp_path / f"{name}.pub").write_bytes(made.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo))
        dev.run("sites", "add-key", site, tmp_path / f"{name}.pub", "--name", name)
    pin = next(k["pin"] for k in dev.json("sites", "list-keys")["keys"] if k["name"] == "revoked")
    dev.run("sites", "revoke-key", pin)
    # Revoked is for good, and a key is one site's.
    assert "stays so" in dev.run("sites", "add-key", "dev", tmp_path / "revoked.pub", check=False).stderr
    assert "registered for site hel1" in dev.run("sites", "add-key", "dev", tmp_path / "elsewhere.pub", check=False).stderr
    now = time.time()
    good = {"key": key, "site": "dev", "mac": mac, "token_id": token_id, "signed_at": now}
    for change, expected in [
        ({"key": own}, "signed by no site key that is registered"),
        ({"key": revoked}, f"signed by the site key {pin}, which is revoked"),
        ({"key": elsewhere}, "the assertion is of site hel1, and the join token is for site dev"),
        ({"site": "hel1"}, "the assertion is of site hel1, and the join token is for site dev"),
        ({"mac": OTHER}, f"is for the machine with the MAC {mac}, and the assertion for another"),
        ({"token_id": token_id[:-1] + ("0" if token_id[-1] != "0" else "1")}, "goes with another join token"),
        ({"signed_at": now - 16 * 60}, "the assertion was signed 16m ago and is good for 15m"),
        ({"signed_at": now + 7 * 60}, "in the future: set the site agent's clock"),
    ]:
        one.with_parameter("bc.assertion", assertion(**good | change))
        code, said = one.run()
        assert code == 1 and expected in said, f"{change}: {said}"
        assert one.parameter("bc.token").split(".")[1] not in said
    token = dev.json("tokens", "show", token_id)
    assert token["state"] == "unused" and token["mac"] == mac and token["refusals"] == 8
    one.with_parameter("bc.assertion", assertion(**good))
    one.start()
    one.connected()
    # What the machine said of the same token as of a plain one is refused too.
    assert "mac is for discovery" in dev.run(
        "tokens", "create", "--pool", "p", "--site", "dev", "--mac", mac, "--role", "node", check=False).stderr


def test_everything_wrong_with_the_line_is_said_at_once_with_exit_code_two(boot, bcd, tmp_path):
    one = boot()
    whole = one.line
    one.line = "quiet console=ttyS0"
    code, said = one.run()
    assert code == 2
    assert said == ("bcd ramdisk: the kernel command line lacks bc.gateway, bc.site, bc.pins, bc.jwk, bc.token, "
                    "bc.assertion\n")
    # Doubled, misspelt, quoted.
    one.line = whole + " bc.site=hel1 bc.server_name=a/b xbc.token=1"
    code, said = one.run()
    assert code == 2 and 'bc.site stands twice on the kernel command line, as "dev" and as "hel1"' in said
    assert "bc.server_name is not a DNS name" in said and "lacks" not in said
    assert not any(secret in said for secret in secrets(one))
    # Cut by the kernel, and by firmware somewhere.
    padded = whole.replace(" bc.token", f" {'x' * (2047 - len(whole) + 60)} bc.token")
    one.line = padded[:2047]
    code, said = one.run()
    assert code == 2 and "looks cut off after 2047 bytes, in or after bc.assertion" in said and "signature" not in said
    one.line = whole[:whole.index("bc.assertion") + 100]
    code, said = one.run()
    assert code == 2 and "the line ends in bc.assertion: " in said
    # No line at all.
    done = subprocess.run([bcd, "ramdisk", "--cmdline", tmp_path / "none"], capture_output=True, text=True,
                          timeout=60, env=clean_env())
    assert done.returncode == 1 and "cannot open" in done.stderr
    # And quoted both ways it is as good as plain.
    one.line = re.sub(r"(bc\.gateway)=(\S+)", r'\1="\2"', re.sub(r"(bc\.pins=\S+)", r'"\1"', whole))
    one.start()
    one.connected()


def test_a_gateway_that_is_away_is_waited_for(boot, dev):
    one = boot()
    dev.kill()
    one.start()
    wait_for("a try", lambda: '"event":"join.failed"' in one.process.output())
    # The same again is counted and not said, for a minute.
    time.sleep(3)
    for line in one.process.output().splitlines():
        event = json.loads(line)
        assert event["event"] == "join.failed" and event["reason"] and event["do"] and event["wait_ms"] <= 30000
    assert one.process.running()
    dev.start()
    one.connected()


def test_a_line_that_no_kernel_takes_is_not_printed(dev, mac):
    done = dev.run("machines", "boot-params", "--mac", mac, "--append", "x" * 1300, check=False)
    assert done.returncode == 2 and done.stdout == ""
    assert "and kernels take 2047: make --append shorter by" in done.stderr
    # Nor one that the machine would refuse, or read otherwise than it was meant; and no token is made for it.
    before = len(dev.json("tokens", "list")["tokens"])
    for own, said in [("quiet bc.site=hel1", "holds bc.site, which stands on the line already"),
                      ('x="a BOOTIF=1', "ends inside quotes"), ("a\nb", "holds the end of a line")]:
        done = dev.run("machines", "boot-params", "--mac", mac, "--append", own, check=False)
        assert done.returncode == 2 and done.stdout == "" and said in done.stderr, done.stderr
    assert len(dev.json("tokens", "list")["tokens"]) == before
