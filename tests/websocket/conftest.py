"""A gateway whose node reaches it through something that opens TLS: nginx, or a proxy in Python that may meddle."""

import contextlib
import datetime
import ipaddress
import json
import socket
import ssl
import threading

import pytest
import websockets.exceptions
import websockets.sync.client
import websockets.sync.server
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from lab import Background, wait_for

NGINX = """
daemon off;
master_process off;
pid {dir}/nginx.pid;
error_log {dir}/nginx-errors.log info;
events {{ }}
http {{
  access_log {dir}/nginx-access.log;
  client_body_temp_path {dir}/body;
  proxy_temp_path {dir}/proxy;
  fastcgi_temp_path {dir}/fastcgi;
  uwsgi_temp_path {dir}/uwsgi;
  scgi_temp_path {dir}/scgi;
  server {{
    listen 127.0.0.1:{port} ssl;
    ssl_certificate {dir}/proxy.pem;
    ssl_certificate_key {dir}/proxy.key;
    location / {{
      proxy_pass https://{api};
      proxy_ssl_verify off;
      proxy_http_version 1.1;
      proxy_set_header Upgrade $http_upgrade;
      proxy_set_header Connection "upgrade";
      proxy_set_header Host $http_host;
    }}
  }}
}}
"""


def _name(text):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _certificate(subject, key, issuer, issuer_key, *extensions):
    now = datetime.datetime.now(datetime.timezone.utc)
    builder = (x509.CertificateBuilder().subject_name(_name(subject)).issuer_name(_name(issuer))
               .public_key(key.public_key()).serial_number(x509.random_serial_number())
               .not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=30)))
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(issuer_key, hashes.SHA256())


def proxy_ca(directory):
    """A CA as proxies have that open TLS, and a certificate of it for 127.0.0.1."""
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca = _certificate("inspection", ca_key, "inspection", ca_key, (x509.BasicConstraints(True, None), True))
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    leaf = _certificate("leaf", key, "inspection", ca_key, (names, False))
    pem = serialization.Encoding.PEM
    (directory / "proxy-ca.pem").write_bytes(ca.public_bytes(pem))
    (directory / "proxy.pem").write_bytes(leaf.public_bytes(pem))
    (directory / "proxy.key").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class Nginx:
    """Ends TLS with a certificate of the proxy's CA, and starts it anew."""

    def __init__(self, api, directory):
        self.dir, self.port = directory, free_port()
        (directory / "nginx.conf").write_text(NGINX.format(dir=directory, port=self.port, api=api))
        self.process = Background(["nginx", "-p", directory, "-e", directory / "nginx-errors.log", "-c",
                                   directory / "nginx.conf"], directory / "nginx.out")

        def listens():
            assert self.process.running(), self.process.output()
            with contextlib.suppress(OSError):
                return socket.create_connection(("127.0.0.1", self.port), timeout=1)

        wait_for("nginx to listen", listens).close()

    def close(self):
        self.process.terminate()


class Meddler:
    """A proxy that opens TLS and WebSockets, with another library's frames; `change(direction, message)` gives what
    is passed on: bytes, or a list of fragments."""

    def __init__(self, api, directory, change):
        self.api, self.change = api, change
        self.taken = {"up": [], "down": []}
        near = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        near.load_cert_chain(directory / "proxy.pem", directory / "proxy.key")
        self.far = ssl.create_default_context()
        self.far.check_hostname, self.far.verify_mode = False, ssl.CERT_NONE
        self.server = websockets.sync.server.serve(
            self._relay, "127.0.0.1", 0, ssl=near, subprotocols=["bettercompute.v1"], compression=None)
        self.port = self.server.socket.getsockname()[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def _relay(self, near):
        url = f"wss://{self.api}{near.request.path}"
        with websockets.sync.client.connect(
                url, ssl=self.far, subprotocols=["bettercompute.v1"], compression=None) as far:
            back = threading.Thread(target=self._pump, args=("down", far, near), daemon=True)
            back.start()
            self._pump("up", near, far)
            back.join(10)

    def _pump(self, direction, source, sink):
        with contextlib.suppress(websockets.exceptions.ConnectionClosed):
            for message in source:
                assert isinstance(message, bytes)
                self.taken[direction].append(message)
                sink.send(self.change(direction, message))
        sink.close()
        source.close()

    def close(self):
        self.server.shutdown()


@pytest.fixture
def inspected(dev, make_node, token, tmp_path):
    """inspected(name, change=None, api=None, trusted=True, **websocket) gives a node whose only way leads through nginx, or
    through a Meddler that makes this change."""
    proxy_ca(tmp_path)
    opened = []

    def inspected(name="node", change=None, api=None, trusted=True, **websocket):
        api = api or dev.ports["http"]
        proxy = Meddler(api, tmp_path, change) if change else Nginx(api, tmp_path)
        opened.append(proxy)
        # Nothing listens where the gateway is said to be.
        node = make_node(name, gateway_url=f"https://127.0.0.1:{free_port()}")
        section = {"url": f"wss://127.0.0.1:{proxy.port}/v1/session"}
        if trusted:
            section["proxy_ca_file"] = str(tmp_path / "proxy-ca.pem")
        section.update(websocket)
        lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in section.items())
        node.config.write_text(node.config.read_text() + "[websocket]\n" + lines)
        node.proxy = proxy
        return node

    yield inspected
    for proxy in opened:
        proxy.close()


def events(node):
    lines = (node.dir / "node.log").read_text(errors="replace").splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def event(node, name, seconds=20):
    return wait_for(name, lambda: next((e for e in events(node) if e["event"] == name), None), seconds)
