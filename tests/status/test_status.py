"""The status socket and `bcd status`: what a person sees of a node, also when it is not well."""

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import pytest

from lab import Background, clean_env, wait_for
from promises import hold

CLIENTS = 8


def status(node, *flags):
    return node.run("status", *flags)


def seen(node):
    """The status as JSON, whatever the exit code."""
    return json.loads(status(node, "--json").stdout)


def connected(node):
    return wait_for("the node to be connected", lambda: (s := seen(node))["connected"] and s)


def dial(node):
    """A client of the socket by hand. The path is longer than an address holds, so from its directory."""
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(10)
    here = os.open(node.dir, os.O_PATH | os.O_DIRECTORY)
    try:
        client.connect(f"/proc/self/fd/{here}/bcd.sock")
    finally:
        os.close(here)
    return client


def ask(node, request, end=True):
    with dial(node) as client:
        client.sendall(request)
        if end:
            client.shutdown(socket.SHUT_WR)
        said = b""
        while part := client.recv(65536):
            said += part
    return said


def cpu_ticks(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def test_a_connected_node_says_so_in_every_form_and_exits_0(dev, join):
    node = join()
    node.start()
    status_now = connected(node)
    assert status_now["identity"]["node_id"] == node.id
    assert status_now["identity"]["expired"] is False
    assert status_now["session"]["state"] == "connected"
    assert status_now["session"]["address"] == dev.gateway
    assert status_now["pid"] == node.process.pid
    assert status_now["journal"]["problem"] is None
    assert abs(status_now["clock"]["offset_ms"]) < 60_000
    text = status(node)
    assert text.returncode == 0, text.stdout + text.stderr
    for part in (node.id, "connected since", "valid until", dev.gateway, "agrees with the control plane"):
        assert part in text.stdout
    assert status(node, "--metrics").stdout.endswith("# EOF\n")
    # One JSON object, also by hand, with an empty request or none at all.
    for request in (b"", b"\n", b"{}\n", b'{"want":"status"}'):
        assert json.loads(ask(node, request))["connected"] is True


def test_the_socket_is_private_and_goes_away_with_the_node(join):
    node = join()
    node.start()
    connected(node)
    path = node.dir / "bcd.sock"
    assert path.stat().st_mode & 0o7777 == 0o600
    assert node.process.terminate() == 0
    assert not path.exists()


def test_a_socket_path_beyond_what_an_address_holds_works(join, tmp_path):
    deep = tmp_path / ("d" * 120) / "run"
    node = join(socket_path=str(deep / "bcd.sock"))
    node.start()
    connected(node)
    assert deep.stat().st_mode & 0o7777 == 0o700


def test_without_a_daemon_the_disk_is_shown_and_the_exit_is_1(join, make_node):
    fresh = make_node("fresh")
    done = status(fresh)
    assert done.returncode == 1
    assert "not running" in done.stdout and "run bcd join" in done.stdout
    assert "systemctl start" in done.stderr
    node = join()
    node.start()
    connected(node)
    # Also after a kill, which leaves the socket there.
    node.process.kill()
    done = status(node, "--json")
    assert done.returncode == 1
    answer = json.loads(done.stdout)
    assert answer["running"] is False and answer["connected"] is False
    assert answer["identity"]["node_id"] == node.id
    assert answer["journal"]["id"]
    # And the next one takes its place.
    node.start()
    connected(node)


def test_a_node_that_is_not_connected_says_why_and_what_to_do_and_when_it_tries_again(dev, join):
    node = join()
    node.start()
    connected(node)
    dev.kill()
    lost = wait_for("the loss", lambda: (s := seen(node))["session"]["last_error"] and not s["connected"] and s)
    assert lost["session"]["last_error"]["error"] and lost["session"]["last_error"]["do"]
    assert status(node).returncode == 1
    wait_for("a next try", lambda: "next try in" in status(node).stdout)
    dev.start()
    back = connected(node)
    assert back["session"]["opened"] == 2 and back["session"]["failures_in_a_row"] == 0
    assert "it has passed" in status(node).stdout


def test_a_refused_node_is_shown_as_refused(dev, join):
    node = join()
    node.start()
    connected(node)
    dev.run("nodes", "delete", node.id, "--yes")
    refused = wait_for("the refusal", lambda: (s := seen(node))["session"]["state"] == "refused" and s)
    assert "bcd join --reset" in refused["session"]["last_error"]["do"]
    assert status(node).returncode == 1


def test_watch_tells_each_change_and_ends_with_the_daemon(dev, join):
    node = join()
    node.start()
    connected(node)
    log = node.dir / "watch.log"
    watch = Background([*node.command, "status", "--json", "--watch", "--config", node.config], log)

    def told():
        return [json.loads(line) for line in watch.output().splitlines()]

    wait_for("the first line", told)
    dev.kill()
    wait_for("the loss", lambda: not told()[-1]["connected"])
    dev.start()
    wait_for("the return", lambda: told()[-1]["connected"])
    node.process.kill()
    assert watch.process.wait(10) == 1
    assert "has ended" in watch.output()


def test_watch_as_text_goes_on_with_what_has_changed(dev, join):
    node = join()
    node.start()
    connected(node)
    watch = Background([*node.command, "status", "--watch", "--config", node.config], node.dir / "watch.log")
    wait_for("the first page", lambda: "clock" in watch.output())
    first = watch.output()
    dev.kill()
    wait_for("the change", lambda: "waiting since" in watch.output())
    later = watch.output()[len(first):]
    labels = {line[25:].split("  ")[0].strip() for line in later.splitlines()}
    assert "session" in labels and not labels & {"gateway", "node", "clock"}
    watch.kill()


def test_sections_and_commands_are_shown(dev, join, tmp_path):
    node = join()
    node.start()
    connected(node)
    spec = tmp_path / "log.json"
    spec.write_text('{"level": "debug"}')
    dev.run("spec", "set", node.id, "--section", f"log={spec}")
    applied = wait_for("the section", lambda: (s := seen(node))["spec"]["sections"] and s)
    assert applied["spec"]["generation"] == 1
    assert applied["spec"]["sections"][0] | {"message": None} == {
        "name": "log", "state": "applied", "generation": 1, "reason": None, "message": None}
    dev.run("commands", "run", node.id, "node.facts", "--wait")
    wait_for("the command", lambda: seen(node)["commands"]["remembered"] == 1)


@pytest.mark.parametrize("garbage", [
    b"GET / HTTP/1.1\r\n\r\n", b"\x00\xff" * 400 + b"\n", b"[" * 1000 + b"\n", b"{" + b" " * 5000,
    b'{"want":"secrets"}\n', b'{"want":"status","want":"text"}\n',
])
def test_garbage_is_answered_with_a_reason_and_harms_nobody(join, garbage):
    node = join()
    node.start()
    connected(node)
    try:
        said = ask(node, garbage, end=False)
    except ConnectionResetError:
        # It was cut off with its rest unread.
        said = b'{"error":"cut"}'
    assert json.loads(said)["error"]
    assert seen(node)["connected"] is True


def test_clients_that_say_nothing_or_never_read_are_cut_off_and_cost_nothing(dev, join):
    node = join()
    node.start()
    connected(node)
    before = int(pathlib.Path(f"/proc/{node.process.pid}/status").read_text().split("VmRSS:")[1].split()[0])
    silent = [dial(node) for _ in range(CLIENTS)]
    # The places are taken, and the next one is told so.
    assert "too many" in json.loads(ask(node, b"{}\n"))["error"]
    done = status(node)
    assert done.returncode == 1 and "too many" in done.stderr
    for client in silent:
        assert b"no request" in client.recv(4096)
        client.close()
    connected(node)
    # Watchers that never read: changes fill what the kernel keeps, and then they are gone.
    deaf = [dial(node) for _ in range(CLIENTS)]
    for client in deaf:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(b'{"want":"status","watch":true}\n')
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        dev.run("commands", "run", node.id, "node.facts", "--wait")
        if status(node).returncode == 0:
            break
    else:
        pytest.fail("watchers that never read still hold all places")
    after = int(pathlib.Path(f"/proc/{node.process.pid}/status").read_text().split("VmRSS:")[1].split()[0])
    hold("status.memory", after - before)
    assert dev.state(node.id) == "connected"
    for client in deaf:
        client.close()


def test_watchers_that_hear_nothing_new_wake_nobody(join):
    node = join()
    node.start()
    connected(node)
    with dial(node) as client:
        client.sendall(b'{"watch":true}\n')
        client.recv(65536)
        time.sleep(2)

        def woken():
            tasks = pathlib.Path(f"/proc/{node.process.pid}/task").iterdir()
            lines = [line for task in tasks for line in (task / "status").read_text().splitlines()]
            return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches:"))

        before = woken()
        time.sleep(10)
        hold("status.wakeups", woken() - before)


def test_a_daemon_that_is_stuck_is_said_to_be(join):
    node = join()
    node.start()
    connected(node)
    os.kill(node.process.pid, signal.SIGSTOP)
    try:
        done = status(node)
        assert done.returncode == 1
        assert "stuck" in done.stderr
    finally:
        os.kill(node.process.pid, signal.SIGCONT)
    connected(node)


def test_a_second_node_does_not_take_the_socket_of_the_first(join, tmp_path):
    path = str(tmp_path / "shared.sock")
    first, second = join("first", socket_path=path), join("second", socket_path=path)
    first.start()
    connected(first)
    second.start()
    wait_for("the warning", lambda: "status.not_served" in second.process.output())
    assert seen(first)["identity"]["node_id"] == first.id
    assert '"do":' in next(line for line in second.process.output().splitlines() if "status.not_served" in line)


def test_without_rights_it_says_what_it_could_not_see(join, tmp_path):
    node = join()
    node.start()
    connected(node)
    top = pathlib.Path(tempfile.gettempdir())
    bcd = tmp_path / "bcd"
    shutil.copy(node.command[0], bcd)
    bcd.chmod(0o755)
    for path in [node.dir, tmp_path, *tmp_path.parents]:
        if path != top and path.is_relative_to(top):
            path.chmod(0o755)
    node.config.chmod(0o644)
    done = subprocess.run(
        [bcd, "status", "--config", node.config], capture_output=True, text=True,
        env=clean_env(), user=65534, group=65534, extra_groups=[], timeout=30)
    assert done.returncode == 1
    assert "ermission denied" in done.stderr and "root" in done.stderr


def test_usage_and_configuration_exit_2(make_node, tmp_path):
    node = make_node()
    assert node.run("status", "--json", "--metrics").returncode == 2
    node.config.write_text("gateway_url = 3\n")
    assert status(node).returncode == 2
