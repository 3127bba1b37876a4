"""The control plane as its operator sees it: commands, API, downloads, and what a kill leaves."""

import contextlib
import json
import os
import pathlib
import random
import re
import signal
import socket
import ssl
import stat
import subprocess
import threading
import time
import tomllib
import urllib.request

import grpc
import pytest
from lab import POOL, SITE, ControlPlane, clean_env, own_port, wait_for
from peer.node import Node


@pytest.fixture
def operator(better_compute, tmp_path):
    """operator(*arguments) runs better-compute in a directory of its own."""

    def run(*arguments, **env):
        return subprocess.run(
            [str(better_compute), *map(str, arguments)], cwd=tmp_path, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, env=clean_env(**env), timeout=60)

    return run


def private(path, content=b"correct horse battery staple\n"):
    path.write_bytes(content)
    path.chmod(0o600)
    return path


# ---- pki ----------------------------------------------------------------------------------------


def test_a_new_bundle_is_private_sealed_and_never_overwritten(operator, tmp_path):
    passphrase = private(tmp_path / "passphrase")
    made = operator("pki", "init", "--out", "fleet.json", "--passphrase-file", passphrase, "--command-signing")
    assert made.returncode == 0, made.stderr
    bundle = tmp_path / "fleet.json"
    assert stat.S_IMODE(bundle.stat().st_mode) == 0o600
    assert "PRIVATE" not in bundle.read_text()
    before = bundle.read_bytes()
    again = operator("pki", "init", "--out", "fleet.json", "--passphrase-file", passphrase)
    assert again.returncode == 2 and "FILE_EXISTS" in again.stderr
    assert bundle.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["fleet.json", "passphrase"]


def test_a_bundle_that_is_missing_says_how_to_get_one(operator):
    done = operator("pki", "show")
    assert done.returncode == 1
    assert "No such file" in done.stderr and "better-compute pki init" in done.stderr and "--pki" in done.stderr


@pytest.mark.parametrize("content", [b"", b"\n", b"two\nlines\n", b"a b", b"\xff\xfe", b"x" * 100_000], ids=repr)
def test_an_admin_token_that_is_none_is_told_from_a_control_plane_that_is_down(dev, content):
    file = pathlib.Path(dev.info["adminTokenFile"])
    kept = file.read_bytes()
    file.write_bytes(content)
    done = dev.run("nodes", "list", check=False)
    file.write_bytes(kept)
    assert done.returncode == 2 and "admin.token" in done.stderr, done.stderr
    assert "is better-compute dev running" not in done.stderr


def test_pins_and_trust_version_need_no_secret(operator, tmp_path):
    passphrase = private(tmp_path / "passphrase")
    operator("pki", "init", "--out", "with.json", "--passphrase-file", passphrase, "--command-signing")
    operator("pki", "init", "--out", "without.json", "--key-file", "key")
    passphrase.unlink()
    lines = operator("pki", "pins", "--pki", "with.json").stdout.splitlines()
    pin = r' = "sha256/[A-Za-z0-9+/]{43}="'
    for line, key in zip(lines, ["serving_ca_spki_pin", "join_signing_key_pin", "join_encryption_key_pin"], strict=True):
        assert re.fullmatch(key + pin, line)
    pins = json.loads(operator("pki", "pins", "--pki", "with.json", "--json").stdout)
    assert [f'"{p}"' for p in pins.values()] == [line.split(" = ")[1] for line in lines]
    trust = json.loads(operator("pki", "trust-version", "--pki", "with.json").stdout)
    assert re.fullmatch("[0-9a-f]{64}", trust["commandRootSha256"]) and "approverSetSha256" not in trust
    assert "commandRootSha256" not in json.loads(operator("pki", "trust-version", "--pki", "without.json").stdout)
    assert "serving CA" in operator("pki", "show", "--pki", "with.json").stdout
    assert len((tmp_path / "key").read_bytes()) == 32
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "arguments, says",
    [
        ([], "--passphrase-file and --key-file"),
        (["--passphrase-file", "open"], "chmod 600"),
        (["--passphrase-file", "empty"], "no passphrase"),
        (["--passphrase-file", "missing"], "missing"),
        (["--key-file", "short"], "32 random bytes"),
        (["--key-file", "good", "--passphrase-file", "good"], "--passphrase-file and --key-file"),
        (["--key-file", "good", "--trust-domain", "No Domain"], "trust domain"),
    ],
)
def test_a_bundle_is_not_made_from_bad_input(operator, tmp_path, arguments, says):
    private(tmp_path / "open").chmod(0o644)
    private(tmp_path / "empty", b"\n")
    private(tmp_path / "short", b"x" * 31)
    private(tmp_path / "good", b"x" * 32)
    done = operator("pki", "init", "--out", "fleet.json", *arguments)
    assert done.returncode == 2 and says in done.stderr, done.stderr
    assert not (tmp_path / "fleet.json").exists()


# ---- commands -----------------------------------------------------------------------------------


def test_a_token_is_shown_once_and_kept_as_a_digest(dev):
    made = dev.run("tokens", "create", "--pool", POOL, "--site", SITE, "--ttl", "10m")
    token = made.stdout.strip()
    assert re.fullmatch(r"bcjt_jt_[0-9a-hjkmnp-tv-z]{26}\.[A-Za-z0-9_-]{43}", token)
    secret = token.split(".")[1]
    assert secret not in made.stderr
    assert secret not in dev.run("tokens", "list", "--json").stdout
    assert secret not in dev.process.output()
    for file in dev.dir.rglob("*"):
        if file.is_file():
            assert secret.encode() not in file.read_bytes(), file
    token_id = token.split(".")[0].removeprefix("bcjt_")
    row = next(line for line in dev.run("tokens", "list").stdout.splitlines() if token_id in line)
    assert row.split()[1:5] == ["unused", "node", POOL, SITE]
    dev.run("tokens", "revoke", token_id)
    assert dev.json("tokens", "show", token_id)["state"] == "revoked"


@pytest.mark.parametrize(
    "arguments, code, says",
    [
        (["tokens", "create", "--site", "s"], 2, "--pool"),
        (["tokens", "create", "--pool", "p", "--site", "a b"], 2, "site"),
        (["tokens", "create", "--pool", "p", "--site", "s", "--ttl", "1w"], 2, "--ttl"),
        (["tokens", "create", "--pool", "p", "--site", "s", "--ttl", "31d"], 2, "ttl"),
        (["tokens", "create", "--pool", "p", "--site", "s", "--role", "king"], 2, "role"),
        (["tokens", "revoke", "jt_1"], 2, "token id"),
        (["tokens", "revoke", "jt_" + "0" * 26], 1, "no such token"),
        (["nodes", "show", "node_" + "0" * 26], 1, "no such node"),
        (["nodes", "cordon", "../tokens"], 2, "node id"),
        (["nodes", "delete", "node_" + "0" * 26], 2, "--yes"),
        (["nodes", "delete", "node_" + "0" * 26, "--yes"], 1, "no such node"),
    ],
)
def test_what_cannot_be_done_is_refused_in_words(dev, arguments, code, says):
    done = dev.run(*arguments, check=False)
    assert (done.returncode, done.stdout) == (code, "") and says in done.stderr, done.stderr


def test_a_token_pasted_as_an_id_is_not_echoed(dev, token):
    secret = token()
    for command in (["tokens", "revoke", secret], ["nodes", "show", secret]):
        done = dev.run(*command, check=False)
        assert done.returncode == 2 and secret not in done.stderr


def test_the_environment_names_a_control_plane_too(dev, operator):
    listed = operator("nodes", "list", BETTER_COMPUTE_DIR=str(dev.dir))
    assert listed.returncode == 0 and listed.stdout.startswith("NODE")
    listed = operator(
        "nodes", "list", "--json", BETTER_COMPUTE_URL=dev.info["apiUrl"],
        BETTER_COMPUTE_TOKEN_FILE=dev.info["adminTokenFile"], BETTER_COMPUTE_CA_FILE=dev.info["caFile"])
    assert json.loads(listed.stdout)["nodes"] == []
    assert operator("nodes", "list").returncode == 2
    wrong = private(pathlib.Path(dev.dir) / "wrong", b"bcadm_wrong")
    refused = operator(
        "nodes", "list", BETTER_COMPUTE_URL=dev.info["apiUrl"], BETTER_COMPUTE_TOKEN_FILE=str(wrong),
        BETTER_COMPUTE_CA_FILE=dev.info["caFile"])
    assert refused.returncode == 1 and "UNAUTHENTICATED" in refused.stderr
    dev.kill()
    gone = operator("nodes", "list", BETTER_COMPUTE_DIR=str(dev.dir))
    assert gone.returncode == 1 and "is better-compute dev running?" in gone.stderr


def test_a_node_is_cordoned_and_uncordoned(dev, join):
    node = join()
    dev.run("nodes", "cordon", node.id)
    assert "joining,cordoned" in dev.run("nodes", "list").stdout
    dev.kill()
    dev.start()
    assert dev.node(node.id)["cordoned"] is True
    dev.run("nodes", "uncordon", node.id)
    assert dev.node(node.id)["cordoned"] is False


def test_a_deleted_node_loses_its_session_at_once(dev, join):
    node = join()
    node.start()
    wait_for("the node to be connected", lambda: dev.state(node.id) == "connected")
    dev.run("nodes", "delete", node.id, "--yes")
    assert dev.node(node.id) is None
    wait_for("the gateway to end the session", lambda: "this node was deleted" in dev.process.output())


def test_one_process_has_the_directory(dev, operator):
    second = operator("dev", "--dir", dev.dir, "--gateway", "127.0.0.1:0", "--http", "127.0.0.1:0")
    assert second.returncode == 2 and "another better-compute dev runs in" in second.stderr
    assert dev.nodes() == []


def test_a_signal_ends_it_cleanly(dev):
    for number in (signal.SIGTERM, signal.SIGINT):
        dev.process.process.send_signal(number)
        assert dev.process.process.wait(10) == 0
        dev.start()


def test_state_files_are_their_owners_alone(dev):
    for name in ("pki.json", "pki.key", "state.db", "admin.token", "dev.json", "node/config.toml"):
        assert stat.S_IMODE((dev.dir / name).stat().st_mode) == 0o600, name
    assert stat.S_IMODE((dev.dir / "node/join-encryption.jwk").stat().st_mode) == 0o644


@pytest.mark.parametrize("name, mode", [("admin.token", 0o640), ("state.db", 0o644), ("state.db", 0o620), ("pki.json", 0o666),
                                        ("pki.key", 0o604), (".", 0o777), (".", 0o770)])
def test_what_others_can_read_or_change_is_not_served_from(dev, better_compute, name, mode):
    dev.process.terminate()
    (dev.dir / name).chmod(mode)
    started = subprocess.run([str(better_compute), "dev", "--dir", str(dev.dir), "--gateway", "127.0.0.1:0", "--http", "127.0.0.1:0"],
                             stdin=subprocess.DEVNULL, capture_output=True, text=True, env=clean_env(), timeout=10)
    last = started.stderr.strip().splitlines()[-1]
    assert started.returncode in (1, 2) and f"has mode {mode:04o}: others may " in last and "chmod" in last, started.stderr
    (dev.dir / name).chmod(0o700 if name == "." else 0o600)
    dev.start()


def test_clients_that_say_nothing_keep_nobody_else_out(dev):
    host, port = dev.ports["http"].rsplit(":", 1)
    idle = [socket.create_connection((host, int(port)), source_address=("127.0.0.2", 0)) for _ in range(600)]
    try:
        assert dev.nodes() == []
    finally:
        for connection in idle:
            connection.close()


# ---- the API ------------------------------------------------------------------------------------


def raw(dev, head, body=b""):
    """One request exactly as given; returns status, headers and body."""
    context = ssl.create_default_context(cafile=dev.info["caFile"])
    host, port = dev.ports["http"].rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=10) as plain:
        with context.wrap_socket(plain, server_hostname=host) as tls:
            tls.sendall(head + b"Host: x\r\nConnection: close\r\n\r\n" + body)
            answer = b""
            while piece := tls.recv(65536):
                answer += piece
    top, _, content = answer.partition(b"\r\n\r\n")
    lines = top.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:])
    return int(lines[0].split()[1]), headers, content


def test_operators_paths_need_the_admin_token(dev):
    for method, path in [("GET", "tokens"), ("POST", "tokens"), ("GET", "nodes"), ("GET", "anything")]:
        for header in (b"", b"Authorization: Bearer x\r\n", b"Authorization: Basic eDp5\r\n"):
            status, headers, _ = raw(dev, f"{method} /api/compute/v1/{path} HTTP/1.1\r\n".encode() + header)
            assert (status, headers["www-authenticate"]) == (401, "bearer"), (method, path)


def test_the_well_known_document_is_small_public_json(dev):
    status, headers, body = raw(dev, b"GET /.well-known/better-compute HTTP/1.1\r\n")
    document = json.loads(body)
    assert (status, headers["content-type"]) == (200, "application/json")
    assert document["gateway"]["url"] == dev.info["gatewayUrl"]
    assert set(document) == {"version", "gateway", "join"}
    assert set(document["join"]) == {"signingKeyPin", "encryptionKeyPin", "encryptionJwk"}
    assert raw(dev, b"POST /.well-known/better-compute HTTP/1.1\r\nContent-Length: 0\r\n")[0] == 405


@pytest.fixture
def downloads(better_compute, tmp_path):
    """A control plane that serves a directory of releases, beside which lies a secret."""
    directory = tmp_path / "releases"
    directory.mkdir()
    (tmp_path / "secret").write_text("secret")
    (directory / "bcd_1.2.3_linux_amd64").write_bytes(os.urandom(300_000))
    (directory / "bcx-ipmi_1.2.3_linux_arm64.tar.gz").write_bytes(b"archive")
    (directory / "bcd_1.2.4_linux_amd64").symlink_to("../secret")
    (directory / "bcd_1.2.5_linux_amd64").symlink_to("bcd_1.2.3_linux_amd64")
    (directory / "bcd_1.2.6_linux_amd64").mkdir()
    (directory / "other").write_text("secret")
    state = tmp_path / "dev"
    state.mkdir()

    class Serving(ControlPlane):
        flags = ["--downloads", directory]

    control_plane = Serving(better_compute, state)
    control_plane.releases = directory
    try:
        yield control_plane.start()
    finally:
        control_plane.kill()


def test_releases_are_served_with_their_headers(downloads):
    prefix = b"/api/compute/downloads/"
    whole = (downloads.releases / "bcd_1.2.3_linux_amd64").read_bytes()
    for path in (b"bcd/1.2.3/linux-amd64", b"bcd/v1.2.3/linux-amd64"):
        status, headers, body = raw(downloads, b"GET " + prefix + path + b" HTTP/1.1\r\n")
        assert (status, body) == (200, whole)
        assert headers["content-type"] == "application/octet-stream"
        assert headers["cache-control"] == "public, max-age=31536000, immutable"
    status, headers, body = raw(downloads, b"HEAD " + prefix + b"bcd/1.2.3/linux-amd64 HTTP/1.1\r\n")
    assert (status, headers["content-length"], body) == (200, str(len(whole)), b"")
    assert raw(downloads, b"GET " + prefix + b"bcx-ipmi/1.2.3/linux-arm64 HTTP/1.1\r\n")[2] == b"archive"


@pytest.mark.parametrize(
    "path",
    [
        "bcd/1.2.4/linux-amd64",  # a symlink out
        "bcd/1.2.5/linux-amd64",  # a symlink within
        "bcd/1.2.6/linux-amd64",  # a directory
        "bcd/9.9.9/linux-amd64",
        "bcd/1.2.3/linux-arm64",
        "bcd/1.2.3/windows-amd64",
        "bcd/1.2.3/linux-amd64/",
        "bcd/1.2.3/linux-amd64%00",
        "bcd/1.2.3/linux-amd64%2f..%2fother",
        "bcd%2f1.2.3%2flinux-amd64",
        "bcd/..%2f..%2fsecret/linux-amd64",
        "bcd/../other",
        "../downloads/bcd/1.2.3/linux-amd64",
        "..%2f..%2fsecret",
        "other",
        "",
        "bcd",
        "bcx-ipmi/1.2.3/linux-amd64",
        "better-compute/1.2.3/linux-amd64",
        "//bcd/1.2.3/linux-amd64",
    ],
)
def test_nothing_else_on_the_disk_can_be_reached(downloads, path):
    status, _, body = raw(downloads, f"GET /api/compute/downloads/{path} HTTP/1.1\r\n".encode())
    assert status == 404 and b"secret" not in body


def test_without_a_directory_there_are_no_downloads(dev):
    assert raw(dev, b"GET /api/compute/downloads/bcd/1.2.3/linux-amd64 HTTP/1.1\r\n")[0] == 404


def test_a_downloads_directory_that_is_none_is_a_bad_configuration(operator, tmp_path):
    done = operator("dev", "--dir", tmp_path / "dev", "--downloads", tmp_path / "missing")
    assert done.returncode == 2 and "INVALID_CONFIG" in done.stderr


# ---- the gateway's end --------------------------------------------------------------------------


def python_node(dev):
    """A node that is not bcd, from the files written for a node on this host."""
    config = tomllib.loads((dev.dir / "node/config.toml").read_text())
    return Node(config, json.loads((dev.dir / "node/join-encryption.jwk").read_text()))


def test_a_gateway_that_stops_asks_its_sessions_to_move_first(dev):
    node = python_node(dev)
    node.join(dev.token())
    session = node.session()
    session.receive()
    session.heartbeat(1)
    session.receive()
    dev.process.process.send_signal(signal.SIGTERM)
    drain = session.receive()
    assert drain.WhichOneof("kind") == "drain" and drain.drain.reconnect_after_ms > 0
    session.half_close()
    assert session.receive() == grpc.StatusCode.OK
    assert dev.process.process.wait(10) == 0
    dev.start()
    shown = dev.node(node.result.node_id)
    assert shown["state"] == "disconnected" and shown["lastSeenMs"] > 0


def test_a_session_that_does_not_move_does_not_hold_the_gateway(dev):
    node = python_node(dev)
    node.join(dev.token())
    session = node.session()
    session.receive()
    started = time.monotonic()
    assert dev.process.terminate(10) == 0
    assert time.monotonic() - started < 8
    session.close()


def test_a_node_that_falls_silent_is_disconnected_after_two_intervals(better_compute, tmp_path):
    (tmp_path / "dev").mkdir()

    class Brisk(ControlPlane):
        flags = ["--heartbeat", "1s"]

    dev = Brisk(better_compute, tmp_path / "dev").start()
    try:
        node = python_node(dev)
        node.join(dev.token())
        session = node.session()
        assert session.receive().welcome.heartbeat_interval_ms == 1000
        session.heartbeat(1)
        session.receive()
        assert dev.state(node.result.node_id) == "connected"
        assert session.receive(timeout=4) == grpc.StatusCode.DEADLINE_EXCEEDED
        wait_for("the silent node to be disconnected", lambda: dev.state(node.result.node_id) == "disconnected")
        session.close()
    finally:
        dev.kill()


def test_silent_and_garbled_connections_do_not_keep_a_node_out(dev, make_node, token):
    host, port = dev.gateway.rsplit(":", 1)
    silent = [socket.create_connection((host, int(port)), timeout=5) for _ in range(200)]
    for index, connection in enumerate(silent):
        if index % 2:
            with contextlib.suppress(OSError):
                connection.sendall(random.Random(index).randbytes(500))
    started = time.monotonic()
    make_node().join(token())
    # The handshakes that nobody finishes are dropped after 10 s; a join is tried again until then.
    assert time.monotonic() - started < 30
    for connection in silent:
        connection.close()


@pytest.mark.parametrize("host", ["[::1]", "localhost", "0.0.0.0"])
def test_a_node_joins_at_every_form_of_address(better_compute, bcd, tmp_path, host):
    (tmp_path / "dev").mkdir()

    class Elsewhere(ControlPlane):
        flags = ["--base-path", "/"]

    dev = Elsewhere(better_compute, tmp_path / "dev")
    dev.ports = {name: f"{host}:{own_port()}" for name in dev.ports}
    try:
        dev.start()
        config = dev.dir / "node/config.toml"
        if host == "0.0.0.0":
            # This host's own name need not resolve; the certificate holds for localhost too.
            text = re.sub(r'https://[^":]+:', "https://localhost:", config.read_text())
            config.write_text(text)
            found = json.loads((dev.dir / "dev.json").read_text())
            found["apiUrl"] = re.sub(r"https://[^/:]+:", "https://localhost:", found["apiUrl"])
            (dev.dir / "dev.json").write_text(json.dumps(found))
        done = subprocess.run(
            [str(bcd), "join", "--config", str(config)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            env=clean_env(BCD_JOIN_TOKEN=dev.token()), timeout=60)
        assert done.returncode == 0, done.stderr
        assert [node["state"] for node in dev.nodes()] == ["joining"]
    finally:
        dev.kill()


# ---- kill -9 ------------------------------------------------------------------------------------


def test_kills_in_a_row_lose_nothing_that_was_acknowledged(dev, tmp_path):
    """Tokens are made and redeemed while the process is killed at random moments. What an answer said
    holds afterwards: every token, every node, and the same certificate for the same key."""
    chance = random.Random(0x6b696c6c)
    made, joined = {}, {}

    def work(stop):
        while not stop.is_set():
            try:
                answer = api(dev, "POST", "tokens", {"pool": POOL, "site": SITE})
                made[answer["id"]] = answer["token"]
                node = python_node(dev)
                result = node.join(answer["token"])
                joined[answer["id"]] = (node, list(result.certificate_chain))
            except Exception:  # the control plane was killed in between: nothing was acknowledged
                time.sleep(0.02)

    for _ in range(8):
        stop = threading.Event()
        workers = [threading.Thread(target=work, args=(stop,)) for _ in range(2)]
        for worker in workers:
            worker.start()
        time.sleep(chance.uniform(0.1, 0.8))
        dev.kill()
        stop.set()
        for worker in workers:
            worker.join()
        dev.start()

    assert len(joined) >= 8, "hardly anything was done between the kills"
    tokens = {t["id"]: t for t in dev.json("tokens", "list")["tokens"]}
    nodes = {n["id"] for n in dev.nodes()}
    assert made.keys() <= tokens.keys()
    for token_id, (node, chain) in joined.items():
        assert tokens[token_id]["state"] == "redeemed"
        assert node.result.node_id in nodes
        assert list(node.join(made[token_id]).certificate_chain) == chain
    for token_id in made.keys() - joined.keys():
        # Redeemed without an answer, or not at all: either way its own key may still have it, and a
        # redeemed one belongs to exactly one node.
        assert tokens[token_id]["state"] in ("unused", "redeemed")
    redeemed = [t["nodeId"] for t in tokens.values() if t["state"] == "redeemed"]
    assert len(redeemed) == len(set(redeemed)) and set(redeemed) == nodes


def test_kills_during_the_first_start_leave_nothing_half_made(better_compute, tmp_path):
    chance = random.Random(0x66697273)
    directory = tmp_path / "dev"
    seen = {}
    for _ in range(25):
        process = subprocess.Popen(
            [str(better_compute), "dev", "--dir", str(directory), "--gateway", "127.0.0.1:0", "--http", "127.0.0.1:0"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=clean_env())
        time.sleep(chance.uniform(0, 0.06))
        process.kill()
        process.wait()
        # Keys, once made, stay; each file is whole or not there.
        for name in ("pki.key", "pki.json", "admin.token"):
            if (directory / name).exists():
                content = (directory / name).read_bytes()
                assert content and seen.setdefault(name, content) == content, name
    dev = ControlPlane(better_compute, directory)
    try:
        dev.start()
        assert dev.nodes() == []
        python_node(dev).join(dev.token())
        for name, content in seen.items():
            assert (directory / name).read_bytes() == content
    finally:
        dev.kill()


def api(dev, method, path, body=None):
    request = urllib.request.Request(
        f"{dev.info['apiUrl']}/v1/{path}", method=method, data=json.dumps(body).encode() if body else None,
        headers={"Authorization": "Bearer " + pathlib.Path(dev.info["adminTokenFile"]).read_text().strip()})
    context = ssl.create_default_context(cafile=dev.info["caFile"])
    with urllib.request.urlopen(request, timeout=5, context=context) as answer:
        return json.load(answer)


# ---- what is wrong with its directory ------------------------------------------------------------


def _fifo(path):
    path.unlink()
    os.mkfifo(path)


def _directory(path):
    path.unlink()
    path.mkdir()


ODD = {
    "gone": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "noise": lambda path: path.write_bytes(random.Random(1).randbytes(5000)),
    "fifo": _fifo,
    "directory": _directory,
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", ["pki.json", "pki.key", "state.db"])
def test_a_state_file_that_is_none_is_named_and_left_as_it_is(dev, better_compute, name, odd):
    """What a control plane is made of is never replaced by something new: that would be another fleet's."""
    dev.token()
    dev.process.terminate()
    path = dev.dir / name
    for beside in dev.dir.glob("state.db-*") if name == "state.db" else ():
        # Else SQLite finds all it needs in the log beside it.
        beside.unlink()
    ODD[odd](path)
    before = path.read_bytes() if path.is_file() else None
    started = subprocess.run([str(better_compute), "dev", "--dir", str(dev.dir), "--gateway", "127.0.0.1:0", "--http", "127.0.0.1:0"],
                             stdin=subprocess.DEVNULL, capture_output=True, text=True, env=clean_env(), timeout=10)
    last = started.stderr.strip().splitlines()[-1]
    assert started.returncode in (1, 2) and "panicked" not in started.stderr, started.stderr
    assert last.startswith("better-compute dev: ") and last.isprintable(), last
    if name != "pki.key" or odd == "gone":
        assert name in last, last
    if odd == "gone":
        assert not path.exists(), f"a new {name} was made"
    if before is not None:
        assert path.read_bytes() == before, f"{name} was written over"
