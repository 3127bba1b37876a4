"""A join where little is as it should be: disks of a few pages, few descriptors, little memory, no /proc, closed standard
streams, files that are something else. It may fail; then it says why on one line, costs no token and leaves nothing half done.
"""

import os
import re
import resource
import subprocess

import pytest

from join.conftest import token_file
from join.test_crash import whole_or_none
from lab import clean_env


def tidy_failure(done, where=""):
    """Exit code 1 or 2 and one line for a person; never a signal, a panic or a backtrace."""
    assert done.returncode in (1, 2), f"{where}: exit {done.returncode}: {done.stderr}"
    assert "panicked" not in done.stderr and "RUST_BACKTRACE" not in done.stderr, f"{where}: {done.stderr}"
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("bcd join: ") and last.isprintable() and len(last) < 2000, f"{where}: {last!r}"
    return last


def unshared(script, *arguments, **env):
    return subprocess.run(["unshare", "-rm", "sh", "-c", script, "sh", *map(str, arguments)], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, env=clean_env(**env), timeout=60)


@pytest.mark.parametrize("pages", range(1, 9))
def test_a_disk_of_any_few_pages_costs_no_token(fleet, machine, pages):
    """The disk is full, then larger by a page or two, then large: one token is enough for all of it."""
    node = machine()
    node.data_dir.mkdir(mode=0o700)
    file = token_file(node.dir, fleet.token())
    before = {n["id"] for n in fleet.nodes()}
    join = '"$@"; echo "exit $?"; ls "$d"; '
    script = (f'd="{node.data_dir}"; mount -t tmpfs -o size={pages}p,mode=700 none "$d" && ' + join
              + f'mount -o remount,size={pages + 1}p "$d"; ' + join + 'mount -o remount,size=1M "$d"; ' + join
              + f'cp -a "$d" "{node.dir}/kept"')
    script = re.sub(r"size=(\d+)p", lambda m: f"size={int(m[1]) * os.sysconf('SC_PAGE_SIZE')}", script)
    done = unshared(script, *node.command, "join", "--config", node.config, "--token-file", file)
    codes = re.findall(r"^exit (\d+)$", done.stdout, re.MULTILINE)
    assert len(codes) == 3 and codes[2] == "0" and set(codes) <= {"0", "1"}, done.stdout + done.stderr
    if pages == 1:
        assert codes[0] == "1", "this test has to see a full disk"
    assert "panicked" not in done.stderr
    for line in done.stderr.splitlines():
        assert "No space left" in line and "free some space" in line, line
    assert ".new" not in done.stdout, "a half-written file is left"
    identity = whole_or_none(node.dir / "kept")
    assert identity and {n["id"] for n in fleet.nodes()} - before == {identity["node_id"]}
    assert not file.exists()


def test_any_number_of_descriptors_is_enough_or_is_said(fleet, machine):
    for limit in range(3, 16):
        node = machine(f"nofile{limit}")
        token = fleet.token()
        done = subprocess.run([*node.command, "join", "--config", str(node.config), "--timeout", "1"], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, env=clean_env(BCD_JOIN_TOKEN=token), timeout=60,
                              preexec_fn=lambda limit=limit: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)))
        if done.returncode != 0:
            # The C libraries have different words for EMFILE.
            said = tidy_failure(done, f"{limit} descriptors")
            assert "open files" in said or "file descriptors" in said
        assert whole_or_none(node.data_dir) is None or done.returncode == 0
        assert node.run("join", token=token).returncode == 0, f"{limit} descriptors cost the token"


def test_little_memory_ends_a_join_and_nothing_else(fleet, machine):
    """Below what the program needs the kernel or the allocator ends it; the token is good for the next try."""
    for mebibytes in (1, 2, 3, 4, 6, 8, 16):
        node = machine(f"as{mebibytes}")
        token = fleet.token()
        subprocess.run([*node.command, "join", "--config", str(node.config), "--timeout", "1"], stdin=subprocess.DEVNULL,
                       capture_output=True, env=clean_env(BCD_JOIN_TOKEN=token), timeout=60,
                       preexec_fn=lambda m=mebibytes: resource.setrlimit(resource.RLIMIT_AS, (m << 20, m << 20)))
        whole_or_none(node.data_dir)
        again = node.run("join", token=token)
        assert again.returncode == 0, f"{mebibytes} MiB cost the token: {again.stderr}"


def test_nothing_of_proc_sys_or_dev_is_needed(fleet, machine):
    node = machine()
    empty = "".join(f"mount -t tmpfs none {place}; " for place in ("/sys", "/dev", "/proc"))
    done = unshared(empty + 'exec "$@"', *node.command, "join", "--config", node.config, BCD_JOIN_TOKEN=fleet.token())
    assert done.returncode == 0, done.stderr
    assert whole_or_none(node.data_dir)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_never_end_up_as_a_file_of_the_node(fleet, machine, closed):
    """A program that opens its files as descriptor 1 or 2 writes its own messages into them."""
    node = machine()
    command = " ".join(f"'{part}'" for part in [*node.command, "join", "--config", str(node.config)])
    done = subprocess.run(["sh", "-c", f"{command} {closed}"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          env=clean_env(BCD_JOIN_TOKEN=fleet.token()), timeout=60)
    assert done.returncode == 0, done.stderr
    assert whole_or_none(node.data_dir)
    for path in node.data_dir.iterdir():
        assert "joined as" not in path.read_text() and "bcd join" not in path.read_text(), path.name


def test_standard_output_that_takes_nothing_is_said_and_the_join_stands(fleet, machine):
    node = machine()
    with open("/dev/full", "w") as full:
        done = subprocess.run([*node.command, "join", "--config", str(node.config)], stdin=subprocess.DEVNULL, stdout=full,
                              stderr=subprocess.PIPE, text=True, env=clean_env(BCD_JOIN_TOKEN=fleet.token()), timeout=60)
    assert "standard output" in tidy_failure(done)
    assert whole_or_none(node.data_dir)
    assert "already joined as" in node.run("join").stdout


def fifo(path):
    os.mkfifo(path)


def directory(path):
    path.mkdir()


def dangling(path):
    path.symlink_to(path.with_name("nowhere"))


def circle(path):
    path.symlink_to(path.name)


def device(path):
    path.symlink_to("/dev/zero")


def huge(path):
    with open(path, "wb") as file:
        file.truncate(1 << 40)


def binary(path):
    path.write_bytes(bytes(range(256)) * 16)


ODD = [fifo, directory, dangling, circle, device, huge, binary]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", ["config.toml", "join-encryption.jwk", "token", "data/node.key", "data/identity.json"])
def test_a_file_that_is_something_else_is_refused_or_moved_aside_at_once(fleet, machine, name, odd):
    node = machine()
    token = fleet.token()
    file = token_file(node.dir, token)
    node.data_dir.mkdir(mode=0o700)
    path = node.dir / name
    kept = path.read_bytes() if path.exists() else None
    path.unlink(missing_ok=True)
    odd(path)
    flags = ["--token-file", file] if name == "token" else []
    done = node.run("join", *flags, token=None if flags else token)
    if done.returncode != 0:
        last = tidy_failure(done, name)
        assert path.name in last, last
        path.rmdir() if odd is directory else path.unlink()
        if kept is not None:
            path.write_bytes(kept)
            path.chmod(0o600)
        again = node.run("join", token=token)
        assert again.returncode == 0, f"after {last}: {again.stderr}"
    else:
        # What stands in the place of key or identity is moved aside as it is, and the machine joins.
        assert name.startswith("data/"), done.stdout
        (aside,) = node.data_dir.glob(f"{path.name}.corrupt-*")
        assert aside.name in done.stderr
    assert whole_or_none(node.data_dir)
