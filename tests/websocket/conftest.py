"""A gateway whose node reaches it through something that opens TLS: nginx, or a proxy in Python that may meddle."""

import asyncio
import contextlib
import datetime
import ipaddress
import json
import socket
import ssl
import threading

import pytest
import websockets.exceptions
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve

from lab import Background, own_port, wait_for

# What node and gateway speak; no message is bounded here.
SPOKEN = {"subprotocols": ["bettercompute.v1"], "compression": None, "max_size": None}

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


class Nginx:
    """Ends TLS with a certificate of the proxy's CA, and starts it anew."""

    def __init__(self, api, directory):
        self.dir, self.port = directory, own_port()
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
        # One thread for all: Python's TLS is not safe where one reads while another writes.
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.server = self._do(self._serve(near))
        self.port = self.server.sockets[0].getsockname()[1]

    def _do(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(20)

    async def _serve(self, near):
        return await serve(self._relay, "127.0.0.1", 0, ssl=near, **SPOKEN)

    async def _relay(self, near):
        async with connect(f"wss://{self.api}{near.request.path}", ssl=self.far, **SPOKEN) as far:
            await asyncio.gather(self._pump("up", near, far), self._pump("down", far, near))

    async def _pump(self, direction, source, sink):
        with contextlib.suppress(websockets.exceptions.ConnectionClosed):
            async for message in source:
                assert isinstance(message, bytes)
                self.taken[direction].append(message)
                await sink.send(self.change(direction, message))
        await sink.close()
        await source.close()

    def close(self):
        async def close():
            self.server.close()
            await self.server.wait_closed()

        self._do(close())
        self.loop.call_soon_threadsafe(self.loop.stop)


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
        node = make_node(name, gateway_url=f"https://127.0.0.1:{own_port()}")
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
