"""The install script where systemd is PID 1: it turns a host into a connected node, and upgrades it."""

import os
import re
import shutil

import pytest

from lab import ROOT, wait_for

from .host import TOOLS
from .test_script import PINS

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can boot a container")


def connected(fleet):
    return wait_for("the node to be connected", lambda: [node for node in fleet.nodes() if node["state"] == "connected"], 30)


def well(done):
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("shell, given, getter", [
    (("dash",), "token", "curl"), (("bash", "--posix"), "stdin", "wget"), (("busybox", "sh"), "stdin", "curl")])
def test_one_command_makes_a_host_a_node(host, fleet, made, shell, given, getter):
    host.tools([getter if tool == "curl" else tool for tool in TOOLS])
    token = fleet.token()
    how = {"token": token} if given == "token" else {"stdin": f"{token}\nnot a token\n"}
    done = host.install(made(), shell=shell, **how)
    well(done)
    assert token.split(".")[-1] not in done.stdout + done.stderr + host.run("journalctl", "--no-pager")
    connected(fleet)
    for path, mode in [("/usr/local/bin/bcd", "755"), ("/etc/bcd", "700"), ("/etc/bcd/config.toml", "600"), ("/etc/cdi", "755"),
                       ("/etc/bcd/join-encryption.jwk", "644"), ("/etc/systemd/system/bcd.service", "644"), ("/var/lib/bcd", "700"),
                       ("/var/lib/bcd/node.key", "600"), ("/run/bcd/bcd.sock", "600")]:
        assert host.mode(path) == f"{mode} root:root", path
    assert host.run("systemctl", "is-enabled", "bcd.service").strip() == "enabled"
    assert "bcdtmp" not in host.run("ls", "/tmp") and host.run("sh", "-c", "ls -d /tmp/tmp.* 2>/dev/null") == ""


def test_the_unit_runs_as_hard_as_it_says(host, fleet, made):
    well(host.install(made(), token=fleet.token()))
    connected(fleet)
    pid = host.run("systemctl", "show", "--value", "--property=MainPID", "bcd.service").strip()
    status = dict(line.split(":\t", 1) for line in host.text(f"/proc/{pid}/status").splitlines() if ":\t" in line)
    # SYS_BOOT, SYS_ADMIN, SYS_RAWIO, DAC_READ_SEARCH, NET_ADMIN, CHOWN, FOWNER, DAC_OVERRIDE
    wanted = sum(1 << n for n in (22, 21, 17, 2, 12, 0, 3, 1))
    # A container has not all of them to give.
    given = int(re.search(r"CapBnd:\t(\w+)", host.text("/proc/1/status"))[1], 16)
    assert int(status["CapBnd"], 16) == wanted & given
    assert (status["NoNewPrivs"], status["Seccomp"], status["Umask"]) == ("1", "2", "0077")
    mounts = {line.split()[4]: line.split()[5].split(",") for line in host.text(f"/proc/{pid}/mountinfo").splitlines()}
    assert "ro" in mounts["/"] and "ro" in mounts["/usr"]
    assert "rw" in mounts["/var/lib/bcd"] and "rw" in mounts["/etc/bcd"]
    own, inits = (host.run("readlink", f"/proc/{who}/ns/mnt") for who in (pid, 1))
    assert own != inits
    # What it then does works: the session's own requests.
    node = connected(fleet)[0]["id"]
    command = fleet.json("commands", "run", node, "node.facts")["id"]
    over = wait_for("the command to end", lambda: (c := fleet.json("commands", "show", command))["over"] and c, 30)
    assert over["state"] == "succeeded", over


def test_an_upgrade_keeps_sections_and_nothing_else(host, fleet, made, release):
    well(host.install(made(release_pins=PINS[0]), token=fleet.token()))
    node = connected(fleet)[0]
    config = host.text("/etc/bcd/config.toml")
    host.execute("tee", "/etc/bcd/config.toml", stdin=(
        'approver_set_sha256 = "' + "1e" * 32 + '"\nstray_key = "mine"\n' + config.replace("[update]", "# ours\n[update]")
        + '\n[log]\nlevel = "debug" # while we look\n'))
    before = host.run("systemctl", "show", "--value", "--property=MainPID", "bcd.service")
    done = host.install(made(release_pins=PINS[1], bmc_networks="10.0.0.0/8"))
    assert "has a [update] section, which stays as it is" in well(done)
    text = host.text("/etc/bcd/config.toml")
    assert "stray_key" not in text
    assert text.count("approver_set_sha256") == 1 and text.index("approver_set_sha256") < text.index("[")
    assert '# ours\n[update]\nrelease_pins = "' + PINS[0] in text and 'level = "debug" # while we look\n' in text
    assert '\n[site]\nbmc_networks = "10.0.0.0/8"\n' in text
    assert host.run("systemctl", "show", "--value", "--property=MainPID", "bcd.service") != before
    # Once more changes nothing, and the node is the one it was.
    well(host.install(made(release_pins=PINS[1], bmc_networks="10.0.0.0/8")))
    assert host.text("/etc/bcd/config.toml") == text
    assert [n["id"] for n in connected(fleet)] == [node["id"]]
    # Nor does a token on a host that has joined; but the binary is the script's.
    before = host.run("systemctl", "show", "--value", "--property=MainPID", "bcd.service")
    assert "already joined as " in well(host.install(made(), token=fleet.token()))
    assert host.run("systemctl", "show", "--value", "--property=MainPID", "bcd.service") != before


def test_the_drop_in_follows_the_configuration(host, fleet, made):
    dropin = "/etc/systemd/system/bcd.service.d/plugins.conf"
    well(host.install(made(plugins=True), token=fleet.token()))
    text = host.text(dropin)
    assert "CapabilityBoundingSet=CAP_SETUID CAP_SETGID CAP_KILL\nDelegate=yes" in text and "CAP_MKNOD" not in text
    assert host.mode(dropin) == host.mode("/etc/systemd/system/bcd.service") == "644 root:root"
    assert host.mode("/usr/local/lib/bcd/plugins") == "755 root:root"
    config = host.text("/etc/bcd/config.toml")
    host.execute("tee", "/etc/bcd/config.toml", stdin=config + 'privileged = "kata"\n')
    well(host.install(made()))
    assert "CAP_MKNOD" in host.text(dropin)
    host.execute("tee", "/etc/bcd/config.toml", stdin=config.split("\n[plugins]")[0])
    well(host.install(made()))
    assert host.execute("cat", dropin).returncode != 0
    connected(fleet)


def test_plugins_live_through_a_restart_of_bcd_and_nothing_else_of_its_group_does(host, fleet, made):
    group = "/sys/fs/cgroup/system.slice/bcd.service"
    start = 'mkdir -p "$0" && { sleep 600 > /dev/null 2>&1 & echo $! > "$0/cgroup.procs"; echo $!; }'

    def restarted(child):
        pid = host.run("sh", "-c", start, child).strip()
        assert host.text(f"/proc/{pid}/cgroup").strip().endswith(child.removeprefix("/sys/fs/cgroup"))
        before = host.run("systemctl", "show", "--value", "--property=MainPID", "bcd.service")
        host.run("systemctl", "restart", "bcd.service")
        assert host.run("systemctl", "show", "--value", "--property=MainPID", "bcd.service") != before
        connected(fleet)
        # One that was killed and not yet waited for is dead.
        return "\nState:\tS" in host.execute("cat", f"/proc/{pid}/status").stdout

    well(host.install(made(), token=fleet.token()))
    connected(fleet)
    assert not restarted(group)
    well(host.install(made(plugins=True)))
    assert restarted(f"{group}/plugins/bcx-sleep")


def test_what_stops_early_changes_nothing(host, fleet, made, release):
    before = host.files()

    def refused(script, code, why, **how):
        done = host.install(script, **how)
        assert done.returncode == code and why in done.stderr, done.stdout + done.stderr
        assert host.files() == before

    token = fleet.token()
    refused(made(), 2, "no join token")
    refused(made(), 2, "no join token", stdin="")
    for wrong in ("hello", "bcjt_", "bcjt_x", "bcjt_x.", "bcjt_x.y z", "bcjt_x.$(id)", "bcjt_x.y'"):
        refused(made(), 2, "what was given as the join token is none", token=wrong)
    refused(made(sha256="amd64=" + "0f" * 32), 1, "nothing was installed", token=token)
    refused(made(sha256="arm64=" + "0f" * 32), 1, "has no digest for amd64", token=token)
    refused(made(bcd_version="9.9.9"), 1, "nothing was installed", token=token)
    refused(made(base_url="https://127.0.0.9"), 1, "nothing was installed", token=token)
    refused(made(attestor="tpm"), 1, "/dev/tpmrm0 is not there", token=token)
    host.tools([tool for tool in TOOLS if tool != "curl"])
    refused(made(), 1, "neither curl nor wget", token=token)
    host.tools([tool for tool in TOOLS if tool != "sha256sum"])
    refused(made(), 1, "sha256sum is not on this host", token=token)
    host.tools(TOOLS)
    # A download that is cut in its middle has another digest.
    whole = release.binary.read_bytes()
    release.binary.write_bytes(whole[: len(whole) // 2])
    refused(made(), 1, "nothing was installed", token=token)
    release.binary.write_bytes(whole)
    # A configuration whose sections do not hold, before anything is replaced.
    host.execute("sh", "-c", "mkdir -p /etc/bcd && printf '[log]\\nlevle = 1\\n' >/etc/bcd/config.toml")
    before = host.files()
    refused(made(), 1, "would not hold", token=token)
    host.execute("rm", "-r", "/etc/bcd")
    # And none of that has spent the token.
    well(host.install(made(), token=token))
    connected(fleet)


def test_temporary_files_need_not_be_executable(host, fleet, made):
    host.execute("mount", "-t", "tmpfs", "-o", "noexec", "tmp", "/tmp")
    well(host.install(made(), token=fleet.token()))
    connected(fleet)


COUNTED = """#!/bin/sh
printf . >>/opt/count
[ $(/usr/bin/stat -c %s /opt/count) -lt $(/bin/cat /opt/limit) ] || kill -9 0
exec {real} "$@"
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("turn", range(4))
def test_interrupted_at_any_step_and_run_again(host, fleet, made, turn):
    """Killed as the first of its programs is started, the second, and so on; each time it is run once more, and the host is a node."""
    host.execute("/bin/sh", "-c", "umount /tmp 2>/dev/null; exit 0")
    script = made(plugins=True)

    def forget():
        host.run("systemctl", "stop", "bcd.service")
        host.run("sh", "-c", "rm -rf /etc/bcd /var/lib/bcd /usr/local/bin/bcd* /usr/local/lib/bcd /etc/systemd/system/bcd.service* /tmp/tmp.*; systemctl daemon-reload")

    def counted(limit):
        """Runs the script in a process group of its own, which ends with the program of that number; returns how many were started."""
        for tool in TOOLS:
            path = host.shared / "tools" / tool
            path.unlink()
            path.write_text(COUNTED.format(real=os.path.realpath(shutil.which(tool))))
            path.chmod(0o755)
        (host.shared / "limit").write_text(f"{limit}\n")
        (host.shared / "count").unlink(missing_ok=True)
        done = host.install(script, token=token, shell=("setsid", "--wait", "/bin/dash"))
        host.tools(TOOLS)
        return done.returncode, (host.shared / "count").stat().st_size

    token = fleet.token()
    code, programs = counted(1_000_000)
    assert code == 0 and programs > 30
    # Two ends of a pipe start in any order.
    for step in range(1 + turn, programs - 1, 4):
        forget()
        token = fleet.token()
        assert counted(step)[0] != 0, step
        # What is there is whole.
        left = host.run("sh", "-c", "ls /etc/bcd/config.toml /usr/local/bin/bcd 2>/dev/null").split()
        if "/usr/local/bin/bcd" in left:
            assert host.execute("/usr/local/bin/bcd", "version").returncode == 0, step
            assert "/etc/bcd/config.toml" not in left or host.execute("/usr/local/bin/bcd", "config", "check").returncode == 0, step
        well(host.install(script, token=token))
        assert host.run("systemctl", "is-active", "bcd.service").strip() == "active", step
        assert not re.search(r"\.new\b", host.run("sh", "-c", "find /etc/bcd /usr/local/bin /usr/local/lib/bcd /etc/systemd/system")), step
    connected(fleet)


def test_removed_as_documented_nothing_is_left(host, fleet, made):
    before = host.files()
    well(host.install(made(plugins=True), token=fleet.token()))
    node = connected(fleet)[0]["id"]
    told = (ROOT / "docs/operations.md").read_text().split("### Removing bcd\n\n")[1].split("\n\n")[0]
    commands = [command for command in re.findall(r"`([^`]+)`", told) if command.startswith(("systemctl ", "rm "))]
    assert len(commands) == 3 and commands[1].startswith("rm -rf ")
    # There is no helper here.
    commands[0] = commands[0].removesuffix(" bcd-helper.service")
    for command in commands:
        done = host.execute("sh", "-ec", command, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
        assert done.returncode == 0, (command, done.stderr)
    fleet.run("nodes", "delete", node, "--yes")
    # CDI's directory is no one's alone; the state directory of services that are gone is not either.
    assert [line for line in host.files().splitlines() if not line.startswith("/etc/cdi ")] == before.splitlines()
    assert host.run("sh", "-c", "ls -d /run/bcd 2>/dev/null") == ""


def test_doctor_warns_and_the_script_goes_on(host, fleet, made):
    (host.shared / "install.sh").write_text(made(gateway_url="https://127.0.0.8"))
    done = host.execute("/usr/bin/timeout", "20", "/bin/sh", "/opt/install.sh",
                        env={"PATH": "/opt/tools", "BCD_JOIN_TOKEN": fleet.token()})
    assert "warning: bcd doctor reports a problem" in done.stdout
    # The gateway that is away is waited for, and the token is not spent by that.
    assert done.returncode == 124
    assert [token["state"] for token in fleet.json("tokens", "list")["tokens"]] == ["unused"]


def test_a_reference_unit_is_what_it_writes(host, fleet, made):
    """systemd itself has nothing to say against it."""
    well(host.install(made(plugins=True, privileged_plugins="kata"), token=fleet.token()))
    said = host.run("systemd-analyze", "verify", "bcd.service").splitlines()
    # systemd before 254 does not know it, and says that it reads on.
    assert [line for line in said if "DelegateSubgroup" not in line] == []
