"""Bad input and bad surroundings of a join: each has its own clear error, and none burns the token."""

import json
import os
import re
import shutil
import socket
import subprocess

import pytest

from lab import clean_env
from join.conftest import token_file

REMEDY = re.compile(
    r"\b(ask|check|chmod|chown|choose|copy|correct|create|delete|free|give|install|move|remount|run|set|try)\b", re.IGNORECASE
)


def refused(done, cause, code=1):
    """One line that names the command, the cause, and (where one can do something) what to do."""
    assert done.returncode == code, f"exit {done.returncode}: {done.stdout}{done.stderr}"
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("bcd join: "), done.stderr
    assert re.search(cause, last, re.IGNORECASE), last
    assert "panicked" not in done.stderr
    return last


def remedied(done, cause, code=1):
    last = refused(done, cause, code)
    assert REMEDY.search(last), f"no remedy: {last}"


def joins_after_all(node, token):
    assert node.join(token)


# ---- the token --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660, 0o700, 0o200, 0o000, 0o4600])
def test_a_token_file_of_another_mode_is_refused_unread_and_kept(fleet, machine, mode):
    node, token = machine(), fleet.token()
    path = token_file(node.dir, token, mode)
    done = node.run("join", "--token-file", path)
    remedied(done, "mode|permission denied", 2)
    assert token not in done.stderr and path.exists()
    path.chmod(0o400)
    assert node.run("join", "--token-file", path).returncode == 0
    assert not path.exists()


def test_a_token_file_that_is_no_regular_small_file_is_refused(fleet, machine, tmp_path):
    node, token = machine(), fleet.token()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    real = token_file(elsewhere, token)
    (node.dir / "link").symlink_to(real)
    (node.dir / "dir").mkdir(mode=0o600)
    os.mkfifo(node.dir / "fifo", 0o600)
    large = node.dir / "large"
    large.write_text(token + " " * 4096)
    large.chmod(0o600)
    for name, cause in [
        ("link", "link|leads out|outside|escape"),
        ("dir", "regular|directory"),
        ("fifo", "regular|fifo|other"),
        ("large", "4 KiB|long|large"),
        ("missing", "no such file"),
    ]:
        refused(node.run("join", "--token-file", node.dir / name), cause, 2)
    assert real.exists()
    joins_after_all(node, token)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_token_file_of_somebody_else_is_refused(fleet, machine):
    node, token = machine(), fleet.token()
    path = token_file(node.dir, token)
    os.chown(path, 65534, 65534)
    remedied(node.run("join", "--token-file", path), "belongs to uid 65534", 2)
    joins_after_all(node, token)


def test_a_token_in_a_secret_volume_is_followed_and_a_warning_when_it_cannot_be_deleted(fleet, machine, tmp_path):
    """A Kubernetes Secret volume: token -> ..data/token, ..data -> ..2026, all read-only."""
    node, token = machine(), fleet.token()
    volume = tmp_path / "volume"
    (volume / "..2026").mkdir(parents=True)
    token_file(volume / "..2026", token, 0o400)
    (volume / "..data").symlink_to("..2026")
    (volume / "token").symlink_to("..data/token")
    inner = f'mount --bind "{volume}" "{volume}" && mount -o remount,ro,bind "{volume}" && exec "$@"'
    node.command = ["unshare", "-rm", "sh", "-c", inner, "sh", *node.command]
    done = node.run("join", "--token-file", volume / "token")
    assert done.returncode == 0, done.stderr
    assert "warning" in done.stderr and "delete" in done.stderr
    assert (volume / "token").exists()


@pytest.mark.parametrize(
    "spoil, cause",
    [
        (lambda t: t[:-1], "cut short"),
        (lambda t: t.split(".")[0], "cut short|id"),
        (lambda t: t + "AA", "too long"),
        (lambda t: t[len("bcjt_") :], "bcjt_jt_"),
        (lambda t: t.replace(".", " "), "more than one word"),
        (lambda t: t[:-1] + "+", "character"),
        (lambda t: t.upper(), "bcjt_jt_"),
    ],
)
def test_a_malformed_token_is_refused_before_anything_is_sent_and_never_shown(fleet, machine, spoil, cause):
    node, token = machine(), fleet.token()
    for where in ({"token": spoil(token)}, {"stdin": spoil(token) + "\n"}):
        done = node.run("join", **where)
        refused(done, cause, 2)
        secret = token.split(".")[1]
        assert secret[:20] not in done.stdout + done.stderr
    assert not node.data_dir.exists() or not list(node.data_dir.iterdir()), "no key before there is a token"
    joins_after_all(node, token)


def test_no_token_at_all_says_where_one_may_come_from(fleet, machine):
    refused(machine().run("join"), "BCD_JOIN_TOKEN.*standard input.*--token-file", 2)


def test_expired_revoked_used_and_unknown_tokens_are_told_apart(fleet, machine):
    used = fleet.token()
    machine("first").join(used)
    remedied(machine("second").run("join", token=used), "used by another key")

    listed = fleet.json("tokens", "create", "--pool", "gpu", "--site", "fsn1")
    revoked = listed["token"]
    fleet.run("tokens", "revoke", revoked.split(".")[0].removeprefix("bcjt_"))
    node = machine("third")
    remedied(node.run("join", token=revoked), "revoked")

    good = fleet.token()
    unknown = good[:-4] + ("aaaa" if good[-4:] != "aaaa" else "bbbb")
    remedied(node.run("join", token=unknown), "not known|unknown")
    joins_after_all(node, good)


# ---- the flags --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, cause",
    [
        (["--role", "king"], "--role must be"),
        (["--node-id", "node_1"], "--node-id must be"),
        (["--attestor", "tpm"], "not in this build yet"),
        (["--attestor", "discovery"], "a machine joins by discovery as it boots"),
        (["--attestor", "magic"], "--attestor must be"),
        (["--timeout", "0"], "--timeout must be"),
        (["--yes"], "--yes confirms --reset"),
        (["--server", "http://cp.example.com"], "not https://"),
        (["--server", "https://user:pw@cp.example.com"], "user name|password|credentials"),
        (["--serving-ca-pin", "sha1/abc"], "serving-ca-pin"),
        (["--join-signing-pin", "sha256/" + "A" * 43 + "="], "join_signing_key_pin"),
    ],
)
def test_each_wrong_flag_is_refused(fleet, machine, arguments, cause):
    node, token = machine(), fleet.token()
    refused(node.run("join", *arguments, token=token), cause, 2)
    assert not (node.data_dir / "node.key").exists()


def test_a_positional_argument_is_refused_in_the_references_words(fleet, machine):
    done = machine().run("join", "bcjt_jt_01")
    assert done.returncode == 2
    assert done.stderr == (
        "bcd join: takes no positional arguments\n"
        "bcd join reads the join token from BCD_JOIN_TOKEN or stdin, never from arguments\n"
    )


# ---- the key beside the configuration -----------------------------------------------------------


@pytest.mark.parametrize(
    "content, cause",
    [
        (None, "--server"),
        ("{", "JSON|JWK"),
        ('{"kty":"RSA","crv":"P-256","x":"","y":""}', "P-256"),
        ("x" * 5000, "JWK|large|longer|bytes"),
    ],
)
def test_a_join_encryption_key_that_cannot_be_used_fails_the_join(fleet, machine, content, cause):
    node, token = machine(), fleet.token()
    jwk = node.dir / "join-encryption.jwk"
    good = jwk.read_text()
    jwk.unlink() if content is None else jwk.write_text(content)
    remedied(node.run("join", token=token), cause)
    jwk.write_text(good)
    joins_after_all(node, token)


# ---- the surroundings ---------------------------------------------------------------------------


def test_a_gateway_that_is_down_is_given_up_when_the_time_is_up(fleet, machine):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    node = machine(gateway_url=f"https://127.0.0.1:{port}")
    remedied(node.run("join", "--timeout", "1", token=fleet.token()), "refused")


def test_a_name_that_cannot_be_looked_up_is_said(fleet, machine):
    node = machine(gateway_url="https://gateway.invalid")
    remedied(node.run("join", "--timeout", "1", token=fleet.token()), "gateway.invalid.*look|look.*gateway.invalid")


def in_small_filesystem(node, script, token):
    """Runs `script` where data_dir is a tmpfs of two pages, with "$@" the join."""
    node.data_dir.mkdir(mode=0o700)
    inner = f'd="{node.data_dir}"; mount -t tmpfs -o size=8k,mode=700 none "$d" && {script}'
    command = [*node.command, "join", "--config", str(node.config)]
    return subprocess.run(
        ["unshare", "-rm", "sh", "-c", inner, "sh", *command],
        env=clean_env(BCD_JOIN_TOKEN=token), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)


def test_a_full_disk_before_the_key_is_said_and_nothing_is_asked(fleet, machine):
    node, token = machine(), fleet.token()
    before = {n["id"] for n in fleet.nodes()}
    done = in_small_filesystem(node, 'head -c 8192 /dev/zero > "$d/filler"; exec "$@"', token)
    remedied(done, "no space")
    assert {n["id"] for n in fleet.nodes()} == before


def test_a_full_disk_before_the_identity_costs_nothing_once_there_is_space(fleet, machine):
    node, token = machine(), fleet.token()
    before = {n["id"] for n in fleet.nodes()}
    script = (
        'head -c 4096 /dev/zero > "$d/filler"; "$@"; code=$?; ls "$d" >&2; '
        '[ $code = 1 ] && rm "$d/filler" && "$@" && cat "$d/identity.json"'
    )
    done = in_small_filesystem(node, script, token)
    assert done.returncode == 0, done.stderr
    assert re.search("no space.*same token", done.stderr, re.IGNORECASE), done.stderr
    assert "identity.json" not in done.stderr.splitlines()
    identity = json.loads(done.stdout[done.stdout.index("{") :])
    assert {n["id"] for n in fleet.nodes()} - before == {identity["node_id"]}, "one node, not two"


def test_a_read_only_data_dir_is_said_before_anything_is_asked(fleet, machine):
    node, token = machine(), fleet.token()
    before = {n["id"] for n in fleet.nodes()}
    done = in_small_filesystem(node, 'mount -o remount,ro "$d" && exec "$@"', token)
    remedied(done, "read-only")
    assert {n["id"] for n in fleet.nodes()} == before


# ---- what is there already ----------------------------------------------------------------------


def test_a_journal_of_an_earlier_identity_is_moved_aside(fleet, machine):
    node = machine()
    node.data_dir.mkdir(mode=0o700)
    (node.data_dir / "journal.db").write_text("an old one")
    node.join(fleet.token())
    assert not (node.data_dir / "journal.db").exists()
    (kept,) = node.data_dir.glob("journal.db.*")
    assert kept.read_text() == "an old one"


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"version": 1}'])
def test_a_damaged_identity_is_set_aside_and_the_key_is_kept(fleet, machine, damage):
    node, token = machine(), fleet.token()
    first = node.join(token)
    (node.data_dir / "identity.json").write_text(damage)
    assert node.run("node").returncode == 1, "bcd node does not start with half an identity"
    assert node.join(token) == first, "the same key and token are the same node"
    (kept,) = node.data_dir.glob("identity.json.corrupt-*")
    assert kept.read_text() == damage


def test_an_identity_of_a_newer_version_is_left_alone(fleet, machine):
    node = machine()
    node.join(fleet.token())
    path = node.data_dir / "identity.json"
    newer = path.read_text().replace('"version": 1', '"version": 2')
    path.write_text(newer)
    refused(node.run("join", token=fleet.token()), "version 2")
    assert path.read_text() == newer


# ---- --reset ------------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="--reset is for root")
def test_reset_shows_what_it_would_move_and_moves_nothing(fleet, machine):
    node = machine()
    node.join(fleet.token())
    before = {p.name: p.read_bytes() for p in node.data_dir.iterdir()}
    done = node.run("join", "--reset", token=fleet.token())
    assert done.returncode == 2
    assert "identity.json" in done.stdout and "node.key" in done.stdout and "--yes" in done.stdout
    assert {p.name: p.read_bytes() for p in node.data_dir.iterdir()} == before


@pytest.mark.skipif(os.geteuid() != 0, reason="--reset is for root")
def test_reset_moves_the_identity_aside_and_joins_as_another_node(fleet, machine):
    node = machine()
    first = node.join(fleet.token())
    old = {name: (node.data_dir / name).read_bytes() for name in ("identity.json", "node.key")}
    (node.data_dir / "journal.db").write_text("of the first")
    second = node.join(fleet.token(), "--reset", "--yes")
    assert second != first
    for name, content in old.items():
        (kept,) = node.data_dir.glob(f"{name}.reset-*")
        assert kept.read_bytes() == content
        assert re.fullmatch(rf"{name}\.reset-\d{{8}}T\d{{6}}Z", kept.name)
    assert len(list(node.data_dir.glob("journal.db.reset-*"))) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="--reset is for root")
def test_a_reset_whose_join_fails_leaves_the_way_open_for_a_plain_join(fleet, machine):
    node = machine()
    node.join(fleet.token())
    done = node.run("join", "--reset", "--yes")
    refused(done, "no join token", 2)
    assert "without --reset, joins" in done.stderr
    assert not (node.data_dir / "identity.json").exists()
    node.join(fleet.token())
    assert node.run("join", "--reset", "--yes", token=fleet.token()).returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_reset_is_for_root(fleet, machine, tmp_path, bcd):
    node = machine()
    node.join(fleet.token())
    for path in [*tmp_path.parents][:3] + [tmp_path, node.dir, node.data_dir]:
        path.chmod(0o755)
    node.config.chmod(0o644)
    copy = tmp_path / "bcd"
    shutil.copy(bcd, copy)
    node.command = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", str(copy)]
    remedied(node.run("join", "--reset", "--yes", token=fleet.token()), "run it as root")
    assert (node.data_dir / "identity.json").exists()
