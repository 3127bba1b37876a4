"""Diagnoses against real devices: one bare machine with a disk of each kind, which joins by discovery."""

import json

import pytest

from lab import wait_for
from qemu.discovery import CONSOLES, FIRST, JOINED, SECOND, parameters
from qemu.machine import silent_network, user_network

pytestmark = pytest.mark.timeout(500)


def disks(directory):
    """A disk on each of four buses."""
    arguments = ["-device", "virtio-scsi-pci,id=scsi"]
    for name, device in [("nv", "nvme,id=nv,serial=NVME0001"), ("sata", "ide-hd,bus=ide.0,serial=SATA0001"),
                         ("sas", "scsi-hd,bus=scsi.0,serial=SCSI0001"), ("virt", "virtio-blk-pci,serial=VIRT0001")]:
        path = directory / f"{name}.disk"
        with open(path, "wb") as disk:
            disk.truncate(16 << 20)
        arguments += ["-drive", f"file={path},if=none,id={name}0,format=raw", "-device", f"{device},drive={name}0"]
    return arguments


def run(dev, node, kind, *arguments):
    """A diagnosis that was done, and what it found by subject."""
    parameters = [part for argument in arguments for part in ("--param", argument)]
    command = json.loads(dev.run("commands", "run", node, kind, *parameters, "--wait", "--json").stdout)
    assert command["state"] == "succeeded", command
    return command, {found["subject"]: found for found in command["findings"]}


def details(dev, node):
    return dev.json("nodes", "show", node)["details"]


def connected(dev, guest, beside=()):
    guest.wait_for(JOINED)
    return wait_for("the machine", lambda: next(
        (n["id"] for n in dev.nodes() if n["state"] == "connected" and n["id"] not in beside), None), 60)


def test_a_bare_machine_is_diagnosed_and_its_restart_is_known_from_its_next_boot(server, dev, tmp_path):
    guest = server("first", f"{parameters(dev, FIRST)} {CONSOLES}",
                   *user_network("n0", FIRST), *silent_network("n1", SECOND), *disks(tmp_path))
    node = connected(dev, guest)
    kinds = {f"command.diag.{kind}" for kind in ("memory", "disks", "network")}
    said = set(details(dev, node)["capabilities"])
    # There is no GPU here, and so no dcgmi.
    assert kinds <= said and "command.diag.dcgm" not in said

    command, found = run(dev, node, "diag.disks")
    by_serial = {one["readings"].get("serial"): one for one in found.values()}
    nvme, sata, sas, virt = (by_serial[serial] for serial in ("NVME0001", "SATA0001", "SCSI0001", "VIRT0001"))
    assert nvme["verdict"] == "ok" and nvme["subject"].startswith("nvme-QEMU_NVMe_Ctrl_NVME0001"), nvme
    assert 0 < nvme["readings"]["temperature_c"] < 100 and nvme["readings"]["media_errors"] == 0, nvme
    assert sata["verdict"] == "ok" and sata["readings"]["smart_status"] == "passed", sata
    assert {"airflow_temperature_c", "power_on_hours", "reallocated_sectors"} <= set(sata["readings"]), sata
    # QEMU's SCSI disks keep no log, and say so when they are asked.
    assert sas["verdict"] == "unknown" and "illegal request" in sas["problems"][0], sas
    assert virt["verdict"] == "unknown" and "no health log" in virt["problems"][0], virt
    assert command["result"]["verdict"] == "unknown" and command["result"]["ok"] == 2, command["result"]
    shown = dev.run("commands", "show", command["id"]).stdout
    assert "verdict:      unknown (2 ok, 2 unknown, 0 warn, 0 fail)" in shown and "smart_status=passed" in shown, shown
    told = dev.run("events", node, "--kind", "diag_report").stdout
    assert f"{command['id']} diag.disks findings=4" in told and f"{sas['subject']}=unknown" in told, told

    # A controller that says it is not reliable any more, and is hot.
    guest.qmp("qom-set", path="/machine/peripheral/nv", property="smart_critical_warning", value=6)
    command, found = run(dev, node, "diag.disks", f"disk={nvme['subject']}")
    assert list(found) == [nvme["subject"]] and command["result"]["verdict"] == "fail", command
    assert "not reliable any more" in " ".join(command["result"]["problems"]), command
    missing = dev.run("commands", "run", node, "diag.disks", "--param", "disk=none", "--wait", "--json", check=False)
    assert missing.returncode == 1 and json.loads(missing.stdout)["reason"] == "NotFound"

    command, found = run(dev, node, "diag.memory", "max_bytes=8388608", "seconds=60")
    test = found["test"]
    assert test["verdict"] == "ok" and test["readings"]["tested_bytes"] == 8 << 20, test
    assert (test["readings"]["locked"], test["readings"]["bad_words"], test["readings"]["passes_done"]) == ("yes", 0, 1), test
    assert found["kernel"]["readings"]["hardware_corrupted_bytes"] == 0, found

    _, found = run(dev, node, "diag.network", "seconds=1")
    cards = {one["readings"]["mac"]: one for one in found.values()}
    assert cards[FIRST]["verdict"] == "ok" and cards[FIRST]["readings"]["driver"] == "virtio_net", cards
    assert cards[FIRST]["readings"]["rx_packets"] > 0
    guest.qmp("set_link", name="n1", up=False)
    wait_for("the link to be seen down", lambda: run(
        dev, node, "diag.network", "seconds=1")[1][cards[SECOND]["subject"]]["readings"]["carrier"] == 0, 60)

    # The journal is on tmpfs, so nobody of this boot is left to tell that the machine restarted.
    before = len(guest.output())
    id = dev.json("commands", "run", node, "node.reboot")["id"]
    guest.wait_for(r"the join token was already used, by an earlier boot", after=before)
    assert dev.json("commands", "show", id)["state"] == "running"
    guest.kill()
    again = server("second", f"{parameters(dev, FIRST)} {CONSOLES}", *user_network("n0", FIRST))
    second = connected(dev, again, beside=[node])
    command = dev.json("commands", "show", id)
    assert command["state"] == "succeeded" and second != node, command
    boots = (command["result"]["boot_id_before"], command["result"]["boot_id_after"])
    assert boots == (details(dev, node)["bootId"], details(dev, second)["bootId"]), command
