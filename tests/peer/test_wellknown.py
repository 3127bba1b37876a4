"""bcd joins from the peer's well-known document, and believes of it only what its pins confirm."""

import json
import os
import ssl
import subprocess
import tomllib

import pytest

from . import pki
from .machine import REMEDY
from .wellknown import PATH, WellKnown


@pytest.fixture(scope="module")
def shared_web(shared_peer, tmp_path_factory):
    web = WellKnown(shared_peer, tmp_path_factory.mktemp("web"))
    yield web
    web.stop()


@pytest.fixture
def web(shared_web, peer):
    shared_web.reset()
    return shared_web


class Bare:
    """A machine without config.toml. /var/lib is its own directory, by a mount namespace, since
    nothing but config.toml could say data_dir."""

    def __init__(self, bcd, peer, web, directory):
        self.bcd, self.peer, self.web = bcd, peer, web
        self.etc, self.lib = directory / "etc", directory / "lib"
        self.etc.mkdir()
        self.lib.mkdir()

    def pins(self):
        service = self.peer.join_service
        return {
            "--serving-ca-pin": self.peer.serving_ca.pin,
            "--join-signing-pin": pki.pin(service.signing_key),
            "--join-encryption-pin": pki.pin(service.encryption_key),
        }

    def join(self, token, *, url=None, roots=None, flags=(), **changed):
        pins = self.pins() | {f"--{k.replace('_', '-')}": v for k, v in changed.items()}
        flags = [*flags, *(part for flag, value in pins.items() if value for part in (flag, value))]
        inner = f'mount --bind "{self.lib}" /var/lib && exec "$@"'
        env = {k: v for k, v in os.environ.items() if not k.startswith("BCD_")}
        env |= {"BCD_JOIN_TOKEN": token, "SSL_CERT_FILE": str(roots or self.web.roots)}
        command = ["unshare", "-rm", "sh", "-c", inner, "sh", self.bcd, "join", "--config", self.etc / "config.toml"]
        return subprocess.run(
            [*command, "--server", url or self.web.url, *flags],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def check_refused(self, done, cause, code=1):
        import re

        assert done.returncode == code, f"exit {done.returncode}, not {code}: {done.stderr}"
        last = done.stderr.strip().splitlines()[-1]
        assert last.startswith("bcd join:") and re.search(cause, last, re.IGNORECASE), last
        assert REMEDY.search(last), f"the error names no remedy: {last}"
        assert last.isprintable(), f"control characters reached the terminal: {last!r}"
        assert list(self.etc.iterdir()) == [], "a refused bootstrap writes no configuration"
        assert not list(self.lib.rglob("identity.json"))


@pytest.fixture
def bare(bcd, peer, web, tmp_path):
    return Bare(bcd, peer, web, tmp_path)


def test_a_bare_machine_joins_and_writes_its_configuration(peer, web, bare):
    done = bare.join(peer.join_service.create_token(site="fsn1"))
    assert done.returncode == 0, done.stderr
    assert web.requests == [PATH]
    config = bare.etc / "config.toml"
    assert config.stat().st_mode & 0o777 == 0o600
    keys = tomllib.loads(config.read_text())
    service = peer.join_service
    assert keys["gateway_url"].rstrip("/") == f"https://127.0.0.1:{peer.port}"
    assert keys["gateway_server_name"] == "localhost"
    assert keys["site"] == "fsn1", "the site is the one the join answered"
    assert keys["serving_ca_spki_pin"] == peer.serving_ca.pin
    assert keys["join_signing_key_pin"] == pki.pin(service.signing_key)
    assert keys["join_encryption_key_pin"] == pki.pin(service.encryption_key)
    jwk = bare.etc / "join-encryption.jwk"
    assert jwk.stat().st_mode & 0o777 == 0o644
    written = json.loads(jwk.read_text())
    assert {k: written[k] for k in ("kty", "crv", "x", "y")} == peer.jwk()
    assert peer.join_service.requests[0].site == ""
    assert (bare.lib / "bcd" / "identity.json").exists()
    peer.frontend.connections.clear()
    again = bare.join("")
    assert again.returncode == 0 and "already joined as" in again.stdout + again.stderr
    assert peer.frontend.connections == []


@pytest.mark.parametrize("flag", ["serving_ca_pin", "join_signing_pin", "join_encryption_pin"])
def test_a_missing_pin_is_refused(peer, bare, flag):
    done = bare.join(peer.join_service.create_token(), **{flag: None})
    bare.check_refused(done, "joining without config.toml needs --serving-ca-pin, --join-signing-pin and", 2)
    assert peer.join_service.requests == []


@pytest.mark.parametrize("flag", ["serving_ca_pin", "join_signing_pin", "join_encryption_pin"])
def test_a_document_with_another_pin_is_refused(peer, web, bare, flag):
    done = bare.join(peer.join_service.create_token(), **{flag: pki.pin(pki.new_key())})
    bare.check_refused(done, "refusing to join")
    assert peer.join_service.requests == []


def _without_url(document):
    del document["gateway"]["url"]
    return document


def _without_gateway(document):
    del document["gateway"]
    return document


def _other_jwk(document):
    document["join"]["encryptionJwk"] = pki.jwk(pki.new_key().public_key())
    return document


def _http_gateway(document):
    document["gateway"]["url"] = "http://127.0.0.1:1"
    return document


@pytest.mark.parametrize(
    "change, cause",
    [
        (_without_url, "install .*config.toml instead"),
        (_without_gateway, "install .*config.toml instead"),
        (_other_jwk, "encryption|JWK|pin"),
        (_http_gateway, "https|url"),
        (lambda d: b"{", "JSON|document|well-known"),
        (lambda d: b"", "JSON|document|well-known"),
        (lambda d: b"[" * 60_000, "JSON|document|well-known|deep|nest"),
        (lambda d: b"\xff\xfe" * 9, "JSON|document|well-known|UTF-8"),
        (lambda d: d | {"filler": "x" * 65_536}, "64 KiB|65536|large"),
        (lambda d: d | {"version": 2}, "version"),
        (lambda d: d | {"gateway": d["gateway"] | {"url": "https://a\x1b[2Jb"}}, "url"),
    ],
    ids=["no url", "no gateway", "another JWK", "http", "cut", "empty", "deep", "not UTF-8", "64 KiB", "version 2", "escape"],
)
def test_a_document_that_does_not_hold_is_refused(peer, web, bare, change, cause):
    web.change = change
    bare.check_refused(bare.join(peer.join_service.create_token()), cause)
    assert peer.join_service.requests == []


def test_members_not_known_are_skipped(peer, web, bare):
    web.change = lambda d: d | {"future": {"a": [1, 2.5e3, None, True, "\u00e9\n"]}}
    done = bare.join(peer.join_service.create_token())
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_refused(peer, web, bare, status):
    web.status, web.location = status, web.url + "/elsewhere"
    bare.check_refused(bare.join(peer.join_service.create_token()), "redirect")
    assert web.requests == [PATH]


@pytest.mark.parametrize("status", [404, 403])
def test_a_server_without_the_document_is_refused(peer, web, bare, status):
    web.status = status
    bare.check_refused(bare.join(peer.join_service.create_token()), str(status))


def test_a_gateway_named_by_the_document_that_speaks_only_tls_1_2_is_named_as_such(peer, web, bare, old_gateway):
    def elsewhere(document):
        document["gateway"]["url"] = old_gateway
        return document

    web.change = elsewhere
    done = bare.join(peer.join_service.create_token(), flags=["--timeout", "1"])
    bare.check_refused(done, "the server speaks only TLS 1.2 or older, and TLS 1.3 is needed")


def test_a_document_may_come_over_tls_1_2(peer, bare, tmp_path):
    """What counts in it is what the pins prove; load balancers of control planes may be old."""
    bare.web = WellKnown(peer, tmp_path, newest=ssl.TLSVersion.TLSv1_2)
    try:
        done = bare.join(peer.join_service.create_token())
        assert done.returncode == 0, done.stderr
        assert bare.web.requests == [PATH]
    finally:
        bare.web.stop()


def test_a_server_that_no_root_vouches_for_is_refused(peer, web, bare, tmp_path):
    roots = tmp_path / "other-roots.pem"
    roots.write_bytes(pki.pem(pki.CA("another root").certificate))
    bare.check_refused(bare.join(peer.join_service.create_token(), roots=roots), "certificate|issuer|root|CA")
    assert web.requests == []


def test_a_server_under_another_name_is_refused(peer, web, bare):
    url = web.url.replace("localhost", "127.0.0.2")
    done = bare.join(peer.join_service.create_token(), url=url)
    assert done.returncode == 1, done.stderr
    assert web.requests == []


def test_an_http_server_is_refused(peer, web, bare):
    done = bare.join(peer.join_service.create_token(), url=web.url.replace("https:", "http:"))
    bare.check_refused(done, "https", 2)


def test_a_configured_machine_without_its_jwk_takes_it_from_the_document(peer, web, make_machine):
    machine = make_machine()
    (machine.dir / "join-encryption.jwk").unlink()
    token = peer.join_service.create_token()
    machine.check_refused(machine.join(token), "join-encryption.jwk|--server")
    os.environ["SSL_CERT_FILE"] = str(web.roots)
    try:
        done = machine.join(token, "--server", web.url)
    finally:
        del os.environ["SSL_CERT_FILE"]
    assert done.returncode == 0, done.stderr
    machine.check_identity()
