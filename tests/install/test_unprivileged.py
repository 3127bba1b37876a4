"""`--unprivileged` where systemd is PID 1: bcd node runs as the account bcd, beside bcd helper."""

import json
import re

import pytest

from lab import wait_for

from .host import TOOLS, Host
from .test_host import connected, pytestmark, well  # noqa: F401  (pytestmark is pytest's)

ACCOUNT_TOOLS = [*TOOLS, "chown", "groupadd", "useradd", "usermod"]
CONFIG, DROPINS = "/etc/bcd/config.toml", "/etc/systemd/system/bcd.service.d"


@pytest.fixture
def host(fleet, tmp_path):
    """One whose /etc and state outlive a reboot."""
    directory = tmp_path / "host"
    directory.mkdir()
    host = Host(directory, fleet)
    for kept in ("etc", "state"):
        (directory / kept).mkdir(mode=0o755)
    host.binds[:0] = [f"--bind={directory}/etc:/etc", f"--bind={directory}/state:/var/lib"]
    host.start()
    yield host
    host.stop()


@pytest.fixture
def unprivileged(host, fleet, made):
    """A host that such a script has installed."""
    host.tools(ACCOUNT_TOOLS)
    well(host.install(made(unprivileged=True), token=fleet.token()))
    host.id = connected(fleet)[0]["id"]
    return host


def pid(host, unit="bcd.service"):
    """Its process, 0 while there is none; what systemd is still setting up is none."""
    found = host.run("systemctl", "show", "--value", "--property=MainPID", unit).strip()
    return found if found == "0" or host.text(f"/proc/{found}/comm").strip() == "bcd" else "0"


def status(host, unit):
    wait_for(f"{unit} to run", lambda: pid(host, unit) != "0")
    text = host.text(f"/proc/{pid(host, unit)}/status")
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)


def checks(host, *before):
    said = json.loads(host.run(*before, "/usr/local/bin/bcd", "doctor", "--json"))
    return {check["name"]: check for check in said["checks"]}


def over(fleet, id):
    return wait_for(f"the end of {id}", lambda: (c := fleet.json("commands", "show", id))["over"] and c, 60)


def command(fleet, node, *arguments):
    return over(fleet, fleet.json("commands", "run", node, *arguments)["id"])


def mounts(host, unit):
    lines = host.text(f"/proc/{pid(host, unit)}/mountinfo").splitlines()
    return {line.split()[4]: line.split()[5].split(",") for line in lines}


def test_the_node_is_an_account_without_rights_and_reads_nothing_else(unprivileged, fleet):
    host = unprivileged
    uid, gid = host.run("id", "-u", "bcd").strip(), host.run("id", "-g", "bcd").strip()
    passwd = next(line for line in host.text("/etc/passwd").splitlines() if line.startswith("bcd:")).split(":")
    assert passwd[5:] == ["/var/lib/bcd", "/usr/sbin/nologin"] and 0 < int(uid) < 1000
    assert '\n[helper]\nsocket = "/run/bcd-helper/helper.sock"\nuser = "bcd"\n' in host.text(CONFIG)
    for path, wanted in {
            "/etc/bcd": "750 root:bcd", CONFIG: "640 root:bcd", "/etc/bcd/join-encryption.jwk": "644 root:root",
            "/var/lib/bcd": "700 bcd:bcd", "/var/lib/bcd/node.key": "600 bcd:bcd", "/var/lib/bcd/identity.json": "600 bcd:bcd",
            "/var/lib/bcd/journal.db": "600 bcd:bcd", "/run/bcd": "700 bcd:bcd", "/run/bcd/bcd.sock": "600 bcd:bcd",
            "/run/bcd-helper": "755 root:root", "/run/bcd-helper/helper.sock": "660 root:bcd", "/usr/local/bin/bcd": "755 root:root",
            "/usr/local/lib/bcd": "755 root:root", f"{DROPINS}/unprivileged.conf": "644 root:root",
            "/etc/systemd/system/bcd-helper.service": "644 root:root"}.items():
        assert host.mode(path) == wanted, path
    assert host.run("systemctl", "is-enabled", "bcd.service", "bcd-helper.service").split() == ["enabled", "enabled"]

    node = status(host, "bcd.service")
    assert set(node["Uid"].split()) == {uid} and set(node["Gid"].split()) == {gid}
    groups = {host.run("getent", "group", name).split(":")[2] for name in ("systemd-journal", "adm")}
    assert set(node["Groups"].split()) - {gid} == groups
    assert {node[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (node["NoNewPrivs"], node["Seccomp"], node["Umask"]) == ("1", "2", "0077")
    mounted = mounts(host, "bcd.service")
    assert "ro" in mounted["/"] and "rw" in mounted["/var/lib/bcd"] and "ro" in mounted["/proc/sys"]

    # As the node, in its own mounts, nothing is readable but what is its.
    inside = ["nsenter", "-t", pid(host), "-m", "setpriv", f"--reuid={uid}", f"--regid={gid}", "--init-groups", "--no-new-privs"]

    def reads(path):
        return host.execute(*inside, "head", "-c", "1", path).returncode == 0

    host.execute("sh", "-c", "echo secret >/etc/bcd/other; chmod 0600 /etc/bcd/other; mkdir -p /root; echo x >/root/x")
    for path in (CONFIG, "/var/lib/bcd/node.key", "/etc/bcd/join-encryption.jwk"):
        assert reads(path), path
    for path in ("/etc/shadow", "/etc/gshadow", "/etc/bcd/other", "/root/x", f"/proc/{pid(host, 'bcd-helper.service')}/environ",
                 "/proc/1/status", "/proc/kcore", "/dev/mem", "/sys/class/dmi/id/product_serial"):
        assert not reads(path), path
    for path in (CONFIG, "/etc/bcd/x", "/usr/local/bin/bcd", "/usr/local/lib/bcd/x", "/run/bcd-helper/x", "/etc/systemd/system/x", "/run/x"):
        assert host.execute(*inside, "sh", "-c", f": >>{path}").returncode != 0, path

    helper = status(host, "bcd-helper.service")
    # CHOWN, SYS_PTRACE, SYS_BOOT; a container has not all of them to give.
    given = int(re.search(r"CapBnd:\t(\w+)", host.text("/proc/1/status"))[1], 16)
    assert int(helper["CapEff"], 16) == int(helper["CapBnd"], 16) == (1 << 0 | 1 << 19 | 1 << 22) & given
    assert (helper["NoNewPrivs"], helper["Seccomp"]) == ("1", "2")
    mounted = mounts(host, "bcd-helper.service")
    assert "ro" in mounted["/"] and "rw" in mounted["/run/bcd-helper"]


def test_what_needs_no_rights_works_and_what_does_says_so(unprivileged, fleet):
    host = unprivileged
    assert command(fleet, host.id, "node.facts")["state"] == "succeeded"
    logs = command(fleet, host.id, "logs.collect", "--param", "unit=bcd.service")
    assert logs["state"] == "succeeded", logs
    disks = command(fleet, host.id, "diag.disks")
    assert disks["state"] == "succeeded", disks
    told = checks(host)
    assert {check["level"] for name, check in told.items() if name not in ("release-pins", "clock", "mtu")} == {"ok"}, told
    assert "bcd helper" in told["helper"]["evidence"] and "answers" in told["helper"]["evidence"]
    assert "without capabilities" in told["sandbox"]["evidence"]
    # As the account itself, and as somebody else.
    told = checks(host, "setpriv", "--reuid=bcd", "--regid=bcd", "--init-groups")
    assert told["helper"]["level"] == "ok" and told["sandbox"]["level"] == "ok", told
    told = checks(host, "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    assert told["config"]["level"] == "fail" and told["helper"]["level"] == "warn", told


def test_a_reboot_goes_through_the_helper_once(unprivileged, fleet):
    host = unprivileged
    # A container has a boot id of its own, which is not seen in a /proc that the unit remade.
    host.execute("tee", f"{DROPINS}/zz-lab.conf", stdin="[Service]\nProtectProc=default\nProtectKernelTunables=no\nProtectControlGroups=no\n")
    host.run("systemctl", "daemon-reload")
    host.run("systemctl", "restart", "bcd.service")
    connected(fleet)

    # Something blocks it: the helper says who, and nothing happens.
    host.run("systemd-run", "--unit=flash", "systemd-inhibit", "--what=shutdown", "--who=fwupd", "--why=writing firmware", "--mode=block",
             "sleep", "1000")
    wait_for("the inhibitor", lambda: "fwupd" in host.run("systemd-inhibit", "--list", "--no-pager"))
    refused = command(fleet, host.id, "node.reboot")
    assert (refused["state"], refused["reason"]) == ("failed", "RebootRefused"), refused
    assert "bcd helper refuses (RebootRefused)" in refused["message"] and '"fwupd" blocks it' in refused["message"]
    host.run("systemctl", "stop", "flash.service")

    id = fleet.json("commands", "run", host.id, "node.reboot", "--param", "reason=a new kernel")["id"]
    host.ended()
    assert "Rebooting." in host.console(), "an orderly reboot, by systemd"
    host.start()
    done = over(fleet, id)
    assert done["state"] == "succeeded", done
    assert done["result"]["boot_id_before"] != done["result"]["boot_id_after"]
    log = host.run("journalctl", "--no-pager", "-o", "cat", "-u", "bcd-helper.service")
    assert host.id in [node["id"] for node in connected(fleet)]
    assert log.count('"event":"helper.operation"') in (0, 2), log


def test_a_reboot_without_a_helper_is_refused_and_nothing_was_asked(unprivileged, fleet):
    host = unprivileged
    # It may be starting still, and would take the order.
    wait_for("the helper's socket, and it to go",
             lambda: host.execute("mv", "/run/bcd-helper/helper.sock", "/run/bcd-helper/gone.sock").returncode == 0)
    refused = command(fleet, host.id, "node.reboot")
    assert (refused["state"], refused["reason"]) == ("failed", "RebootRefused"), refused
    assert "bcd helper does not answer at /run/bcd-helper/helper.sock" in refused["message"]
    assert "systemctl enable --now bcd-helper.service" in refused["message"]
    told = checks(host)
    assert told["helper"]["level"] == "fail" and "bcd-helper.service" in told["helper"]["do"], told["helper"]
    host.execute("mv", "/run/bcd-helper/gone.sock", "/run/bcd-helper/helper.sock")
    assert checks(host)["helper"]["level"] == "ok"


def test_a_helper_that_is_killed_comes_back_and_the_node_with_it(unprivileged, fleet):
    host = unprivileged
    for _ in range(2):
        before = pid(host, "bcd-helper.service")
        host.execute("kill", "-9", before)
        wait_for("the helper to be back", lambda: pid(host, "bcd-helper.service") not in ("0", before), 30)
        wait_for("the check to be well", lambda: checks(host)["helper"]["level"] == "ok", 30)
    connected(fleet)
    assert host.mode("/run/bcd-helper/helper.sock") == "660 root:bcd"
    # The node alone: the helper does not care.
    before = pid(host, "bcd-helper.service")
    host.execute("kill", "-9", pid(host))
    wait_for("the node to be back", lambda: pid(host) != "0", 30)
    connected(fleet)
    assert pid(host, "bcd-helper.service") == before


def test_an_upgrade_keeps_the_mode_and_deleting_the_section_ends_it(unprivileged, fleet, made):
    host = unprivileged
    before = {unit: pid(host, unit) for unit in ("bcd.service", "bcd-helper.service")}
    # A script that was made without the flag, and adds bridges with it.
    well(host.install(made()))
    config = host.text(CONFIG)
    assert host.mode(CONFIG) == "640 root:bcd" and config.count("[helper]") == 1
    assert all(pid(host, unit) != was for unit, was in before.items())
    told = well(host.install(made(unprivileged=True, instance_bridges="br0, br-priv")))
    assert "has a [helper] section, which stays as it is" in told
    assert '[helper]\ninstance_bridges = "br0,br-priv"\nsocket = ' in host.text(CONFIG)
    well(host.install(made(unprivileged=True, instance_bridges="br9")))
    assert 'instance_bridges = "br0,br-priv"' in host.text(CONFIG) and "br9" not in host.text(CONFIG)
    assert status(host, "bcd.service")["CapBnd"] == "0" * 16
    # Its account may have been let at the TPM by an earlier script.
    host.run("groupadd", "--system", "tss")
    host.run("usermod", "-a", "-G", "tss", "bcd")
    host.execute("sh", "-c", "mkdir -p /etc/udev/rules.d && : >/etc/udev/rules.d/60-bcd-tpm.rules")
    host.tools([*ACCOUNT_TOOLS, "gpasswd"])
    assert "no longer in the group tss" in well(host.install(made()))
    assert "tss" not in host.run("id", "-nG", "bcd") and host.execute("ls", "/etc/udev/rules.d/60-bcd-tpm.rules").returncode != 0

    config = host.text(CONFIG)
    host.execute("tee", CONFIG, stdin=config.split("\n[helper]")[0] + "\n")
    said = well(host.install(made()))
    assert "bcd node runs as root again; systemctl disable --now bcd-helper.service" in said
    connected(fleet)
    assert status(host, "bcd.service")["Uid"].split() == ["0"] * 4
    for path, wanted in {CONFIG: "600 root:root", "/etc/bcd": "700 root:root", "/var/lib/bcd": "700 root:root",
                         "/var/lib/bcd/node.key": "600 root:root", "/var/lib/bcd/journal.db": "600 root:root"}.items():
        assert host.mode(path) == wanted, path
    assert host.execute("ls", f"{DROPINS}/unprivileged.conf").returncode != 0
    assert host.execute("/usr/local/bin/bcd", "helper").returncode == 2
    assert host.run("id", "-un", "bcd").strip() == "bcd"
    host.run("systemctl", "disable", "--now", "bcd-helper.service")
    assert checks(host)["helper"]["evidence"].startswith("not used")
    # And again without rights.
    well(host.install(made(unprivileged=True)))
    connected(fleet)
    assert status(host, "bcd.service")["CapBnd"] == "0" * 16
    assert host.mode("/var/lib/bcd/journal.db") == "600 bcd:bcd"
    assert len(fleet.nodes()) == 1


def test_what_the_mode_cannot_be_is_said_before_anything_changes(host, fleet, made, release):
    token = fleet.token()

    def refused(why, tools, script, **how):
        host.tools(tools)
        before = host.files() + host.text("/etc/passwd")
        done = host.install(script, **how)
        assert done.returncode == 1 and why in done.stderr, done.stdout + done.stderr
        assert host.files() + host.text("/etc/passwd") == before

    refused("neither useradd nor adduser", [*TOOLS, "chown"], made(unprivileged=True), token=token)
    refused("chown is not on this host", [tool for tool in ACCOUNT_TOOLS if tool != "chown"], made(unprivileged=True), token=token)
    host.execute("sh", "-c", "mkdir -p /etc/bcd && printf '[plugins]\\ndir = \"/x\"\\n' >/etc/bcd/config.toml")
    refused("would have [helper] and [plugins]", ACCOUNT_TOOLS, made(unprivileged=True), token=token)
    host.execute("sh", "-c", "printf '[helper]\\nsocket = \"/run/bcd-helper/helper.sock\"\\nuser = \"nobody\"\\n' >/etc/bcd/config.toml")
    refused("is not bcd", ACCOUNT_TOOLS, made(), token=token)


def test_without_useradd_busyboxs_adduser_makes_the_account(host, fleet, made):
    host.tools([*TOOLS, "chown"])
    # Debian's busybox has neither: these take what busybox's take, and nothing else.
    for name, script in (("addgroup", '[ "$1 $2" = "-S bcd" ] && exec /usr/sbin/groupadd -r "$2"'),
                         ("adduser", '[ "$1 $2 $3 $4 $6 $8" = "-S -D -H -h -s -G" ] && exec /usr/sbin/useradd -r -M -d "$5" -s "$7" -g "$9" bcd')):
        tool = host.shared / "tools" / name
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
    well(host.install(made(unprivileged=True), token=fleet.token()))
    connected(fleet)
    passwd = next(line for line in host.text("/etc/passwd").splitlines() if line.startswith("bcd:")).split(":")
    assert passwd[5:] == ["/var/lib/bcd", "/usr/sbin/nologin"]
    assert host.run("id", "-gn", "bcd").strip() == "bcd"
    node = status(host, "bcd.service")
    assert set(node["Uid"].split()) == {passwd[2]} and set(node["Gid"].split()) == {passwd[3]}
    well(host.install(made()))


def test_a_directive_that_breaks_something_in_use_is_named(unprivileged, fleet):
    host = unprivileged
    config = host.text(CONFIG)
    host.execute("sh", "-c", "mkdir -p /srv && chown bcd /srv")
    host.execute("tee", CONFIG, stdin=config + '[metrics]\ntextfile = "/srv/bcd.prom"\n')
    for dropin, level, words, remedy in [
            ("", "fail", "/srv (metrics.textfile) is read-only", "ReadWritePaths="),
            ("[Service]\nUser=root\nGroup=root\n", "fail", "runs as user 0 and not as bcd", "run the install script again"),
            ("[Service]\nProcSubset=pid\n", "warn", "node.facts lacks processors", "ProcSubset="),
            ("[Service]\nPrivateDevices=yes\n", "warn", "its /dev has no devices", "PrivateDevices="),
            ("[Service]\nSupplementaryGroups=\n", "warn", "logs.collect reads no journal", "SupplementaryGroups=systemd-journal")]:
        host.execute("tee", f"{DROPINS}/zz-lab.conf", stdin=dropin)
        host.run("systemctl", "daemon-reload")
        host.run("systemctl", "restart", "bcd.service")

        def told():
            found = checks(host)["sandbox"]
            return words in found["evidence"] and found

        found = wait_for(f"the doctor to say {words}", told, 30)
        assert found["level"] == level and remedy in found["do"], found
        host.execute("tee", CONFIG, stdin=config)
    host.execute("rm", f"{DROPINS}/zz-lab.conf")
    host.run("systemctl", "daemon-reload")
    host.run("chown", "-R", "-h", "bcd:bcd", "/var/lib/bcd")
    host.run("systemctl", "restart", "bcd.service")
    wait_for("all to be well", lambda: checks(host)["sandbox"]["level"] == "ok", 30)


def test_what_somebody_else_could_change_keeps_the_helper_down_and_the_doctor_names_it(unprivileged):
    host = unprivileged
    for path, undo in (("/etc/bcd/config.toml", "root"), ("/usr/local/lib/bcd", "root")):
        host.execute("chown", "bcd", path)
        host.execute("systemctl", "restart", "bcd-helper.service")
        wait_for("the helper's end", lambda: pid(host, "bcd-helper.service") == "0", 20)
        told = checks(host)["helper"]
        assert told["level"] == "fail" and f"{path} is of user" in told["evidence"] and told["do"] == f"run chown root {path}", told
        # However often it was started meanwhile: systemd gives up after five starts, unless it is told not to.
        for _ in range(6):
            host.execute("systemctl", "restart", "bcd-helper.service")
        host.execute("chown", undo, path)
        wait_for("the helper to be back", lambda: checks(host)["helper"]["level"] == "ok", 30)
