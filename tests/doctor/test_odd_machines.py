"""`bcd doctor` where the machine itself is odd: each check says what it saw, none waits without end, and none hides another."""

import json
import os
import pathlib
import shutil
import socket
import subprocess
import threading
import time

import pytest

from lab import Listener, clean_env
from networks import sees

from .test_doctor import CHECKS, doctor, levels, well  # noqa: F401  (a fixture)


def pin(letter):
    return "sha256/" + letter * 43 + "="


def add(node, section):
    node.config.write_text(node.config.read_text() + section)


def text(node, *before, **options):
    return subprocess.run([*before, *node.command, "doctor", "--config", node.config], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=90, check=False, **{"env": clean_env(), **options})


def test_the_join_key_is_held_against_its_pin_before_the_join_and_not_missed_after_it(make_node, token):
    node, other = make_node(), make_node("other")
    key = node.dir / "join-encryption.jwk"
    _, checks = doctor(node)
    assert checks["join-key"]["level"] == "ok" and "holds the pinned sha256/" in checks["join-key"]["evidence"]
    whole = key.read_text()
    for spoiled, word in (("{", "join-encryption.jwk"), (whole.replace('"P-256"', '"P-384"'), "join-encryption.jwk")):
        key.write_text(spoiled)
        code, checks = doctor(node)
        assert code == 1 and checks["join-key"]["level"] == "fail" and word in checks["join-key"]["evidence"]
    key.write_text(whole)
    other.config.write_text("".join(
        f'join_encryption_key_pin = "{pin("A")}"\n' if line.startswith("join_encryption_key_pin") else line + "\n"
        for line in other.config.read_text().splitlines()))
    code, checks = doctor(other)
    assert code == 1 and checks["join-key"]["level"] == "fail"
    assert pin("A") in checks["join-key"]["evidence"] and "is pinned" in checks["join-key"]["evidence"]
    key.unlink()
    _, checks = doctor(node)
    assert checks["join-key"]["level"] == "warn" and "bcd join --server" in checks["join-key"]["do"]
    key.write_text(whole)
    node.join(token())
    key.unlink()
    _, checks = doctor(node)
    assert checks["join-key"]["level"] == "ok" and "not needed any more" in checks["join-key"]["evidence"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_under_helper_the_account_and_whose_the_state_is_are_told(join):
    node = join()
    section = f'\n[helper]\nsocket = "{node.dir}/helper.sock"\nuser = "nobody"\n'
    add(node, section)
    code, checks = doctor(node)
    assert code == 1 and checks["helper"]["level"] == "fail"
    assert f"{node.data_dir} is of user 0, not of nobody" in checks["helper"]["evidence"]
    assert f"chown -R nobody: {node.data_dir}" in checks["helper"]["do"]
    subprocess.run(["chown", "-R", "nobody:", node.data_dir], check=True)
    _, checks = doctor(node)
    # What is left: everybody may write where the tests' own directory stands.
    assert str(node.data_dir) not in checks["helper"]["evidence"], checks["helper"]
    assert "can be written by" in checks["helper"]["evidence"], checks["helper"]
    node.config.write_text(node.config.read_text().replace('"nobody"', '"no-such-account"'))
    _, checks = doctor(node)
    assert checks["helper"]["level"] == "fail" and "no-such-account" in checks["helper"]["evidence"]
    assert "make the account" in checks["helper"]["do"]


def test_release_pins_that_are_there_are_counted(make_node):
    node = make_node()
    add(node, f'\n[update]\nrelease_pins = "{pin("A")},{pin("E")}"\nrelease_threshold = 2\n')
    _, checks = doctor(node)
    assert checks["release-pins"] == {"name": "release-pins", "level": "ok", "do": None,
                                      "evidence": "2 release keys pinned, 2 must have signed"}


def test_what_the_environment_names_as_a_proxy_is_told_and_its_password_is_not(make_node):
    node = make_node(gateway_url="https://192.0.2.9")
    for value, level, words in (("https://u:hush@proxy:3128", "fail", "HTTPS_PROXY names no proxy"),
                                ("http://u:hush@127.0.0.1:9", "ok", "the proxy 127.0.0.1:9")):
        done = text(node, env=clean_env(HTTPS_PROXY=value))
        assert "hush" not in done.stdout + done.stderr
        line = next(line for line in done.stdout.splitlines() if line.split()[1] == "proxy")
        assert line.startswith(level) and words in line, line
    # Names, addresses and packets are the proxy's business; whether it lets us through is told by tls.
    checks = {line.split()[1]: line for line in done.stdout.splitlines()}
    assert checks["gateway"].startswith("ok") and "behind the proxy" in checks["gateway"]
    assert checks["tls"].startswith("fail") and "the proxy 127.0.0.1:9 is not reached" in checks["tls"]
    assert "HTTPS_PROXY" in checks["tls"] and done.returncode == 1


def test_a_name_with_addresses_of_both_families_is_told_with_the_one_that_does_not_answer(dev, make_node, tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 both.test\n::1 both.test\n")
    port = dev.gateway.rsplit(":", 1)[1]
    node = make_node(gateway_url=f"https://both.test:{port}", gateway_server_name="localhost")
    node.command = [*sees(hosts=hosts), *node.command]
    code, checks = doctor(node)
    assert "both.test is IPv4 127.0.0.1, IPv6 ::1" in checks["dns"]["evidence"], checks["dns"]
    assert checks["gateway"]["level"] == "warn" and f"[::1]:{port}: " in checks["gateway"]["evidence"], checks["gateway"]
    assert checks["tls"]["level"] == "ok" and code == 0


@pytest.mark.parametrize("hello, words", [
    (b"HTTP/1.1 400 Bad Request\r\n\r\n", "TLS handshake"),
    (b"SSH-2.0-OpenSSH_9.2\r\n", "TLS handshake"),
    (b"", "took longer than 5 s"),
])
def test_a_port_where_something_else_listens_is_told_from_a_gateway(make_node, hello, words):
    def meet(connection):
        connection.sendall(hello)
        if hello:
            connection.close()

    other = Listener(meet)
    node = make_node(gateway_url=f"https://127.0.0.1:{other.port}")
    began = time.monotonic()
    code, checks = doctor(node)
    other.close()
    assert code == 1 and checks["gateway"]["level"] == "ok"
    assert checks["tls"]["level"] == "fail" and words in checks["tls"]["evidence"], checks["tls"]
    assert checks["mtu"]["level"] in ("ok", "warn"), checks["mtu"]
    assert time.monotonic() - began < 30


def test_a_journal_of_another_node_is_told(join, well):  # noqa: F811
    other = join("other")
    well.process.terminate()
    shutil.copy(well.data_dir / "journal.db", other.data_dir / "journal.db")
    code, checks = doctor(other)
    assert code == 1 and checks["journal"]["level"] == "fail"
    assert well.id in checks["journal"]["evidence"] and other.id in checks["journal"]["evidence"]


def test_files_of_others_that_are_pipes_hold_nothing_up(make_node, tmp_path):
    """Nobody writes to them: whoever opens one to read would wait for ever."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # The resolver's own file. The C library waits for it too, in a thread of its own.
    node = make_node(gateway_url="https://nobody.invalid:443")
    node.command = [*sees(resolv_conf=pipe), *node.command]
    began = time.monotonic()
    _, checks = doctor(node)
    assert checks["dns"]["level"] == "fail" and time.monotonic() - began < 40
    # The CA of a proxy.
    node = make_node("inspected")
    add(node, f'\n[websocket]\nurl = "wss://127.0.0.1:9/v1/session"\nproxy_ca_file = "{pipe}"\n')
    code, checks = doctor(node)
    assert code == 1 and "not a regular file" in checks["tls"]["evidence"], checks["tls"]
    done = node.run("join", token="bcjt_jt_01k5wqb3zt9v7e8r2m4n6p0s1d." + "A" * 43)
    assert done.returncode == 2 and "not a regular file" in done.stderr and "proxy_ca_file" in done.stderr, done.stderr


@pytest.mark.parametrize("before", [
    ["env", "-i"],
    ["env", "LC_ALL=xx_XX.UTF-9", "TZ=/nowhere", "HOME=", "PATH=", "TERM="],
    ["unshare", "--mount", "--propagation", "private", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"],
    ["unshare", "--mount", "--propagation", "private", "sh", "-c", 'mount -t tmpfs none /sys && exec "$@"', "sh"],
    ["sh", "-c", 'd=$(mktemp -d) && cd "$d" && rmdir "$d" && exec "$@"', "sh"],
    ["sh", "-c", 'ulimit -v 200000 && exec "$@"', "sh"],
    ["sh", "-c", 'exec "$@" <&-', "sh"],
    ["setsid"],
], ids=["no environment", "a useless environment", "no proc", "no sys", "no directory", "little memory", "no standard input", "no terminal"])
def test_odd_surroundings_change_nothing_about_what_is_well(well, before):  # noqa: F811
    code, checks = doctor(well, *before)
    assert code == 0 and not levels(checks, "fail")
    assert checks["tls"]["level"] == checks["daemon"]["level"] == checks["identity"]["level"] == "ok"


def test_too_few_open_files_are_told_by_each_check_that_needs_one(well):  # noqa: F811
    done = text(well, "sh", "-c", 'ulimit -n 4 && exec "$@"', "sh")
    assert "panicked" not in done.stderr, done.stderr
    assert [line.split()[1] for line in done.stdout.splitlines()] == CHECKS, done.stdout + done.stderr
    assert done.returncode == 1


def test_output_that_nobody_takes_ends_it_and_a_full_disk_is_said(well):  # noqa: F811
    with open("/dev/full", "w") as full:
        done = subprocess.run([*well.command, "doctor", "--config", well.config], stdout=full, stderr=subprocess.PIPE,
                              text=True, env=clean_env(), timeout=60)
    assert done.returncode == 1 and "standard output" in done.stderr, done.stderr
    done = subprocess.run(["sh", "-c", '"$@" | head -n 1; :', "sh", *well.command, "doctor", "--config", well.config],
                          capture_output=True, text=True, env=clean_env(), timeout=60)
    assert done.stdout.startswith("ok") and not done.stderr, done.stderr


class Impostor:
    """A Unix socket that is no bcd node's: it sends `pieces`, one a second, and then hangs or closes."""

    def __init__(self, directory, pieces, close=True):
        self.pieces, self.close = pieces, close
        self.listener = socket.socket(socket.AF_UNIX)
        here = os.open(directory, os.O_PATH | os.O_DIRECTORY)
        self.listener.bind(f"/proc/self/fd/{here}/bcd.sock")
        os.close(here)
        self.listener.listen()
        self.kept = []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        peer, _ = self.listener.accept()
        self.kept.append(peer)
        try:
            for number, piece in enumerate(self.pieces):
                if number:
                    time.sleep(1)
                peer.sendall(piece)
        except OSError:
            pass
        if self.close:
            peer.close()


DRIVES = json.dumps({"connected": True, "text": "state    \x1b[2J\x1b]0;owned\x07\u009b31mfine\n"}).encode() + b"\n"


@pytest.mark.parametrize("pieces, close, code, words", [
    ([b"SSH-2.0-OpenSSH_9.2\r\n"], True, 1, "cannot be read"),
    ([b"\xff\xfe\n"], True, 1, "is no bcd node"),
    ([b"x" * (5 << 20)], True, 1, "is no bcd node"),
    ([b"{}"], True, 1, "was cut off"),
    ([b""], False, 1, "it is stuck"),
    ([b"{"] * 60, False, 1, "it is stuck"),
    ([b"[" * 5000 + b"\n"], True, 1, "cannot be read"),
    ([DRIVES], True, 0, "state"),
], ids=["another protocol", "no text", "no end", "cut", "silent", "a byte a second", "deep", "escapes"])
def test_a_socket_that_is_not_bcd_nodes_is_told_in_time_and_drives_no_terminal(join, pieces, close, code, words):
    node = join()
    impostor = Impostor(node.dir, pieces, close)
    began = time.monotonic()
    done = node.run("status")
    assert time.monotonic() - began < 15
    assert done.returncode == code and words in done.stdout + done.stderr, done.stdout + done.stderr
    assert not any(ord(c) < 32 and c != "\n" or 0x7f <= ord(c) < 0xa0 for c in done.stdout + done.stderr)
    impostor.listener.close()


def test_doctor_waits_for_no_socket_longer_than_for_a_daemon(join):
    node = join()
    impostor = Impostor(node.dir, [b"{"] * 60, False)
    began = time.monotonic()
    _, checks = doctor(node)
    assert time.monotonic() - began < 20
    assert checks["daemon"]["level"] == "fail" and "stuck" in checks["daemon"]["evidence"]
    impostor.listener.close()


def test_a_socket_of_another_kind_is_no_daemon(join):
    node = join()
    for kind in ("file", "directory", "datagram"):
        path = pathlib.Path(node.dir / "bcd.sock")
        if kind == "file":
            path.write_text("")
        elif kind == "directory":
            path.mkdir()
        else:
            other = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            here = os.open(node.dir, os.O_PATH | os.O_DIRECTORY)
            other.bind(f"/proc/self/fd/{here}/bcd.sock")
            os.close(here)
        _, checks = doctor(node)
        assert checks["daemon"]["level"] == "fail" and checks["daemon"]["do"], (kind, checks["daemon"])
        path.rmdir() if kind == "directory" else path.unlink()
