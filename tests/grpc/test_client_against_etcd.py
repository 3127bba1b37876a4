"""Our client against etcd's server (Debian's etcd-server), whose gRPC is Go's."""

import json
import shutil
import subprocess
import time
import urllib.request

import pytest

from lab import own_port


@pytest.fixture(scope="module")
def etcd(tmp_path_factory):
    program = shutil.which("etcd") or pytest.fail("etcd is not installed (Debian: apt-get install etcd-server)")
    client, peer = own_port(), own_port()
    directory = tmp_path_factory.mktemp("etcd")
    with open(directory / "log", "wb") as log:
        process = subprocess.Popen(
            [program, "--data-dir", directory / "data", "--listen-client-urls", f"http://127.0.0.1:{client}",
             "--advertise-client-urls", f"http://127.0.0.1:{client}", "--listen-peer-urls",
             f"http://127.0.0.1:{peer}", "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}",
             "--initial-cluster", f"default=http://127.0.0.1:{peer}"], stdout=log, stderr=log)
    deadline = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{client}/health", timeout=2) as answer:
                if json.load(answer)["health"] == "true":
                    break
        except (OSError, ValueError, KeyError):
            pass
        if process.poll() is not None or time.monotonic() > deadline:
            pytest.fail(f"etcd does not serve:\n{(directory / 'log').read_text(errors='replace')}")
        time.sleep(0.1)
    yield client
    process.terminate()
    process.wait(20)


def test_put_and_range(etcd, ask):
    assert ask("etcd", "127.0.0.1", etcd, "put", "k", "v") == {"ok": "true"}
    assert ask("etcd", "127.0.0.1", etcd, "range", "k") == {"ok": "v"}
    assert ask("etcd", "127.0.0.1", etcd, "range", "other") == {"ok": ""}


def test_a_large_value(etcd, ask):
    value = "x" * 100_000
    assert ask("etcd", "127.0.0.1", etcd, "put", "large", value) == {"ok": "true"}
    assert ask("etcd", "127.0.0.1", etcd, "range", "large") == {"ok": value}


def test_etcds_own_refusal(etcd, ask):
    got = ask("etcd", "127.0.0.1", etcd, "put", "", "v")
    assert (got["code"], got["message"]) == ("INVALID_ARGUMENT", "etcdserver: key is not provided")


def test_a_watch_streams_while_calls_go_on(etcd, ask):
    assert ask("etcd", "127.0.0.1", etcd, "watch", "watched") == {"ok": "true one,two"}
