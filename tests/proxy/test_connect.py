"""Joins, sessions, renewals and `--server` through tinyproxy, where there is no other way."""

import pathlib
import subprocess

import pytest

from lab import Listener, clean_env, wait_for
from networks import sees

from .conftest import PASSWORD, USER, events


def run(lab, node, *arguments, token=None):
    return node.run(*arguments, token=token or lab.dev.token())


def test_without_the_proxy_the_gateway_is_not_reached(lab):
    done = run(lab, lab.node(), "join", "--timeout", "1")
    assert done.returncode == 1 and "connect" in done.stderr, done.stderr


@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "https_proxy"])
def test_a_join_a_session_and_a_renewal_go_through_the_proxy(lab, variable):
    node = lab.node(**{variable: lab.proxy()})
    node.id = node.join(lab.dev.token())
    node.start()
    wait_for("the node to be connected", lambda: lab.dev.state(node.id) == "connected")
    assert "CONNECT 10.201.2.2:7443" in lab.log("open")
    if variable == "HTTPS_PROXY":
        before = node.identity()["certificate_chain"]
        lab.dev.run("pki", "rotate", "node-ca", "--begin")
        lab.dev.run("pki", "rotate", "node-ca", "--switch", "--within", "1s")
        wait_for("the certificate to be renewed", lambda: node.identity()["certificate_chain"] != before)
        wait_for("the session with it", lambda: [e["event"] for e in events(node)].count("session.welcome") == 2)


def test_the_proxy_resolves_the_gateways_name_and_ours_the_proxys(lab, tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("10.201.1.1 proxy.test\n")
    node = lab.node("node", *sees(hosts=hosts), HTTPS_PROXY="http://proxy.test:8888")
    assert run(lab, node, "join").returncode == 0
    gone = lab.node("gone", *sees(hosts=hosts), HTTPS_PROXY="http://no-such.test:8888")
    done = run(lab, gone, "join", "--timeout", "1")
    assert done.returncode == 1
    assert "proxy failed: the proxy no-such.test:8888 is not reached: the name no-such.test cannot be looked up" in done.stderr
    assert "check that HTTPS_PROXY names an HTTP proxy" in done.stderr


def test_a_user_name_and_password_are_sent_and_kept_secret(lab):
    secret = lab.proxy("closed", f"{USER}:{PASSWORD.replace('u', '%75')}@")
    node = lab.node(HTTPS_PROXY=secret)
    node.id = node.join(lab.dev.token())
    node.start()
    wait_for("the node to be connected", lambda: lab.dev.state(node.id) == "connected")
    environment = pathlib.Path(f"/proc/{node.process.pid}/environ").read_bytes()
    assert b"hush" not in environment, "the password stands in /proc"
    assert "hush" not in (node.dir / "node.log").read_text()
    started = next(e for e in events(node) if e["event"] == "node.start")
    assert started["proxy"] == "10.201.1.1:8889"


@pytest.mark.parametrize("credentials, words, remedy", [
    ("", "wants a user name and password (407)", "put them into HTTPS_PROXY"),
    ("node:wrong@", "does not accept the user name and password (401)", "correct them in HTTPS_PROXY"),
])
def test_a_proxy_that_wants_a_password_is_told_apart_from_one_that_wants_another(lab, credentials, words, remedy):
    node = lab.node(HTTPS_PROXY=lab.proxy("closed", credentials))
    done = run(lab, node, "join")
    assert done.returncode == 1, "asking again does not help"
    assert words in done.stderr and remedy in done.stderr, done.stderr
    assert "wrong" not in done.stderr.replace("went wrong", "")
    assert len(done.stderr.splitlines()) == 1


def test_a_session_says_what_the_proxy_said_and_comes_back_when_it_lets_it(lab):
    node = lab.node(HTTPS_PROXY=lab.proxy())
    node.join(lab.dev.token())
    refused = lab.node("refused", HTTPS_PROXY=lab.proxy("closed"))
    refused.config.write_text(node.config.read_text())
    refused.start()
    event = wait_for("the refusal", lambda: next((e for e in events(refused) if e["event"] == "session.refused"), None))
    assert "the proxy 10.201.1.1:8889 wants a user name and password (407)" in event["error"]
    assert event["do"].startswith("put them into HTTPS_PROXY") and event["again_ms"] >= 300_000


def test_a_forbidden_port_is_named(lab):
    node = lab.node(HTTPS_PROXY=lab.proxy())
    text = node.config.read_text().replace(":7443", ":7445")
    node.config.write_text(text)
    done = run(lab, node, "join")
    assert done.returncode == 1
    assert "the proxy 10.201.1.1:8888 lets nothing through to 10.201.2.2:7445 (403)" in done.stderr
    assert "have the proxy allow CONNECT" in done.stderr


@pytest.mark.parametrize("exception", ["*", "10.201.2.2", "10.201.0.0/16", "10.201.2.2:7443", "other.test,10.201.2.2"])
def test_what_no_proxy_names_is_gone_to_directly(lab, exception):
    """Which fails here: the name in the error is the gateway's."""
    node = lab.node(HTTPS_PROXY=lab.proxy(), NO_PROXY=exception)
    done = run(lab, node, "join", "--timeout", "1")
    assert done.returncode == 1 and "proxy" not in done.stderr and "10.201.2.2" in done.stderr, done.stderr


def test_the_document_of_a_join_without_a_configuration_goes_through_too(lab):
    node = lab.node(HTTPS_PROXY=lab.proxy(), SSL_CERT_FILE=lab.dev.dir / "serving-ca.pem")
    (node.dir / "join-encryption.jwk").unlink()
    done = run(lab, node, "join", "--server", lab.dev.info["serverUrl"])
    assert done.returncode == 0, done.stderr
    assert "CONNECT 10.201.2.2:7444" in lab.log("open")


def test_a_websocket_goes_through_the_proxy_too(lab):
    node = lab.node(HTTPS_PROXY=lab.proxy("closed", f"{USER}:{PASSWORD}@"))
    text = node.config.read_text().replace("10.201.2.2:7443", "10.201.2.2:7449")
    node.config.write_text(text + '[websocket]\nurl = "wss://10.201.2.2:7444/v1/session"\naudience = "10.201.2.2"\n'
                           f'proxy_ca_file = "{lab.dev.dir}/serving-ca.pem"\n')
    node.id = node.join(lab.dev.token())
    node.start()
    wait_for("the node to be connected", lambda: lab.dev.state(node.id) == "connected")
    assert "CONNECT 10.201.2.2:7444" in lab.log("closed")
    doctor = node.run("doctor")
    assert "the WebSocket at https://10.201.2.2:7444/v1/session behind the proxy 10.201.1.1:8889" in doctor.stdout, doctor.stdout
    tls = next(line for line in doctor.stdout.splitlines() if line.split()[1] == "tls")
    assert tls.startswith("ok") and "proved itself" in tls, tls


@pytest.mark.parametrize("value, why", [
    ("https://u:hush@proxy:443", "TLS to the proxy itself"),
    ("socks5://u:hush@proxy:1080", "its scheme is not http"),
    ("http://u:hush@proxy", "names no port"),
])
def test_what_is_no_proxy_is_refused_at_once_and_not_quoted(lab, value, why):
    for command in ("join", "node"):
        done = run(lab, lab.node(command, HTTPS_PROXY=value), command)
        assert done.returncode == 2 and why in done.stderr and "hush" not in done.stderr, done.stderr
        assert "http://USER:PASSWORD@HOST:PORT" in done.stderr
    # What asks nobody needs no proxy.
    assert lab.node("check", HTTPS_PROXY=value).run("config", "check").returncode == 0


@pytest.mark.parametrize("answer, hang, words", [
    (b"<html><body>blocked by policy</body></html>\n\n", False, "answers no HTTP/1.1"),
    (b"HTTP/1.1 200 OK\r\nContent-Le", False, "closed the connection in the middle of its answer"),
    (b"", False, "closed the connection in the middle of its answer"),
    (b"HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/html\r\n\r\n<html>", False, "lets nothing through to 192.0.2.9:443 (502)"),
    # The wait for the proxy: it looks the name up and connects, 10 s each.
    (b"HTTP/1.1 200 OK\r\nX", True, "did not answer within 20 s"),
])
def test_a_proxy_that_talks_nonsense_is_told_by_what_it_did(bcd, better_compute, tmp_path, make_node, token, answer, hang, words):
    def meet(connection):
        connection.recv(65536)
        connection.sendall(answer)
        if not hang:
            connection.close()

    fake = Listener(meet)
    node = make_node(gateway_url="https://192.0.2.9")
    done = subprocess.run(
        [str(bcd), "join", "--config", str(node.config), "--timeout", "1"], stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=60, env=clean_env(BCD_JOIN_TOKEN=token(), HTTPS_PROXY=f"http://127.0.0.1:{fake.port}"))
    fake.close()
    assert done.returncode == 1
    assert f"proxy failed: the proxy 127.0.0.1:{fake.port} {words}" in done.stderr, done.stderr
    assert "panicked" not in done.stderr and all(line.startswith("bcd join: ") for line in done.stderr.splitlines())
