"""A machine that runs bcd against the peer, and what a test may say about it."""

import base64
import json
import os
import pathlib
import re
import signal
import subprocess
import time

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from . import dsse, pki

REMEDY = re.compile(
    r"\b(ask|check|compare|copy|correct|create|fix|give|install|look|make|move|put|remove|report|restart|retry|run|set|try|"
    r"update|upgrade|use|verify|wait)\b",
    re.IGNORECASE,
)

DEBUG = re.compile(r"\w\(\w+[({]|\b[A-Z]\w+ \{ |Some\(")


class Machine:
    def __init__(self, bcd: pathlib.Path, peer, directory: pathlib.Path, **config):
        self.bcd, self.peer, self.dir = bcd, peer, directory
        self.config = peer.write_node_config(directory, **config)
        self.data = directory / "data"
        self.log = directory / "node.log"
        self.process = None

    # ---- running bcd ----------------------------------------------------------------------

    def _env(self, token=None):
        kept = {k: v for k, v in os.environ.items() if not k.startswith("BCD_")}
        return kept | ({"BCD_JOIN_TOKEN": token} if token else {})

    def join(self, token, *arguments, timeout=60):
        """`bcd join`, run to its end."""
        done = subprocess.run(
            [self.bcd, "join", "--config", self.config, *arguments],
            env=self._env(token),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if token:
            secret = token.split(".")[1]
            assert secret not in done.stdout + done.stderr, "bcd printed the token's secret"
        return done

    def start_join(self, token):
        """`bcd join` in the background."""
        self.process = subprocess.Popen(
            [self.bcd, "join", "--config", self.config],
            env=self._env(token),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return self.process

    def join_well(self, token=None):
        """A join that must succeed; checks what it stored and returns identity.json."""
        done = self.join(token or self.peer.join_service.create_token())
        assert done.returncode == 0, f"exit {done.returncode}: {done.stderr}"
        return self.check_identity()

    def start(self):
        """`bcd node` in the background, its output in `log`."""
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [self.bcd, "node", "--config", self.config],
                env=self._env(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self.process

    def terminate(self, timeout=10) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)

    def kill(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def wait_log(self, pattern: str, timeout: float = 10) -> str:
        deadline = time.monotonic() + timeout
        while True:
            text = self.log.read_text()
            if re.search(pattern, text, re.IGNORECASE):
                return text
            assert time.monotonic() < deadline, f"{pattern!r} is not in the log of bcd node:\n{text}"
            assert self.process.poll() is None, f"bcd node ended with {self.process.poll()}:\n{text}"
            time.sleep(0.05)

    # ---- what it left ---------------------------------------------------------------------

    def key(self):
        return load_pem_private_key((self.data / "node.key").read_bytes(), None)

    def identity(self) -> dict:
        return json.loads((self.data / "identity.json").read_text())

    def check_identity(self) -> dict:
        """identity.json and node.key are whole, private, and fit each other and the peer's memory."""
        for name in ("identity.json", "node.key"):
            assert (self.data / name).stat().st_mode & 0o777 == 0o600, f"{name} is not 0600"
        identity = self.identity()
        chain = [x509.load_pem_x509_certificate(text.encode()) for text in identity["certificate_chain"]]
        assert pki.spki(chain[0].public_key()) == pki.spki(self.key())
        assert pki.uri_names(chain[0]) == [identity["spiffe_id"]]
        known = self.peer.join_service.nodes[identity["node_id"]]
        assert (known.spiffe_id, known.certificate) == (identity["spiffe_id"], chain[0])
        bundle = identity["trust_bundle"]
        bundle = json.loads(bundle) if isinstance(bundle, str) else bundle
        dsse.verify(dsse.from_json(bundle), "trust-bundle", [pki.pin(self.peer.join_service.signing_key)])
        assert not list(self.data.glob("*.new")), "a half-written file was left behind"
        return identity

    def check_refused(self, done, cause: str, code: int = 1) -> None:
        """A failure that says why and what to do, on one line, and stored no identity."""
        text = done.stderr
        assert done.returncode == code, f"exit {done.returncode}, not {code}: {text}"
        assert "panicked" not in text, text
        last = text.strip().splitlines()[-1]
        assert last.startswith("bcd join:"), f"not an error of bcd join: {text}"
        assert re.search(cause, last, re.IGNORECASE), f"the error does not say {cause!r}: {last}"
        assert REMEDY.search(last), f"the error names no remedy: {last}"
        assert not DEBUG.search(last), f"the error shows Rust's own form of a value: {last}"
        assert last.isprintable(), f"control characters reached the terminal: {last!r}"
        left = sorted(p.name for p in self.data.iterdir()) if self.data.exists() else []
        assert set(left) <= {"node.key"}, f"left in data_dir: {left}"
