"""The probe (examples/grpc_probe.rs), and certificates for both sides."""

import datetime
import ipaddress
import json
import os
import pathlib
import subprocess
import sys

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def probe_path():
    """The probe, built as `cargo test` builds it."""
    if path := os.environ.get("GRPC_PROBE"):
        return pathlib.Path(path)
    subprocess.run(["cargo", "build", "-q", "--example", "grpc_probe"], cwd=ROOT, check=True)
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
    return target / "debug/examples/grpc_probe"


@pytest.fixture(scope="session")
def pb(tmp_path_factory):
    """The probe's messages, in Python."""
    out = tmp_path_factory.mktemp("pb")
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-I", ROOT / "examples/proto", f"--python_out={out}",
         ROOT / "examples/proto/probe.proto"], check=True)
    sys.path.insert(0, str(out))
    import probe_pb2
    return probe_pb2


@pytest.fixture
def ask(probe_path):
    """Runs the probe as a client; returns what it printed."""
    def run(*arguments):
        done = subprocess.run([str(probe_path), *map(str, arguments)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)
    return run


class Served:
    """The probe as a server."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.port = self.line()["port"]

    def line(self):
        return json.loads(self.process.stdout.readline())

    def stop(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def served(probe_path, request, tls):
    """Our server, in the clear or (`parametrize(..., indirect)`) with TLS."""
    files = [tls["chain"], tls["key"]] if getattr(request, "param", False) else []
    server = Served([str(probe_path), "serve", *map(str, files)])
    yield server
    server.stop()


@pytest.fixture(scope="session")
def tls(tmp_path_factory):
    """A CA, and a certificate from it for localhost and 127.0.0.1."""
    directory = tmp_path_factory.mktemp("tls")
    now = datetime.datetime.now(datetime.timezone.utc)

    def name(text):
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def certificate(subject, key, issuer, issuer_key, ca):
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        builder = (
            x509.CertificateBuilder().subject_name(name(subject)).issuer_name(name(issuer))
            .public_key(key.public_key()).serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True))
        if not ca:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    files = {
        "ca": certificate("ca", ca_key, "ca", ca_key, True),
        "chain": certificate("server", key, "ca", ca_key, False),
        "key": key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    }
    for kind, content in files.items():
        (directory / f"{kind}.pem").write_bytes(content)
    return {kind: directory / f"{kind}.pem" for kind in files}
