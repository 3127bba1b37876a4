"""The one port: TLS 1.3, ALPN h2, a client certificate asked for and not required.

grpcio's server can require a client certificate or not ask at all, and the protocol is neither
(docs/protocol.md 2). So TLS ends here, and the bytes go on to a cleartext grpcio server on
loopback; the node's certificate is kept under the source port of that inner connection, where
`Frontend.certificate_of(context.peer())` finds it. The bytes of HTTP/2 pass untouched, unless a
reply fault cuts into the frames.
"""

import asyncio
import pathlib
import socket
import ssl
import struct
import threading
import time

from . import pki

DATA, HEADERS, RST_STREAM, SETTINGS, GOAWAY = 0, 1, 3, 4, 7
END_STREAM = 0x1
WIRE_FAULTS = {"lost", "cut", "rst", "goaway", "compressed", "length", "no-trailers", "silent"}


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def serving_chain(name: str, ca: pki.CA, names: list[str]):
    """(key, [certificates]) of a way to serve; those in SERVING_REFUSED must fail."""
    import datetime

    now = datetime.datetime.now(pki.UTC)
    day = datetime.timedelta(days=1)
    key = pki.new_key()
    public = key.public_key()
    good = ca.serving_leaf(public, names)
    if name in ("good", "tls12", "no-alpn"):
        return key, [good, ca.certificate]
    if name == "other-name":
        return key, [ca.serving_leaf(public, ["other.example.net"]), ca.certificate]
    if name == "no-name":
        return key, [ca.serving_leaf(public, []), ca.certificate]
    if name == "expired":
        leaf = ca.serving_leaf(public, names, not_before=now - 9 * day, not_after=now - day)
        return key, [leaf, ca.certificate]
    if name == "not-yet":
        leaf = ca.serving_leaf(public, names, not_before=now + day, not_after=now + 9 * day)
        return key, [leaf, ca.certificate]
    if name == "other-ca":
        other = pki.CA("another serving CA")
        return key, [other.serving_leaf(public, names), other.certificate]
    if name == "other-ca-same-name":
        other = pki.CA("peer serving CA")
        return key, [other.serving_leaf(public, names), other.certificate]
    if name == "pinned-ca-as-decoration":  # the pinned CA is shown, and did not sign the leaf
        other = pki.CA("another serving CA")
        return key, [other.serving_leaf(public, names), other.certificate, ca.certificate]
    if name == "pinned-ca-as-decoration-same-name":
        other = pki.CA("peer serving CA")
        return key, [other.serving_leaf(public, names), ca.certificate]
    if name == "ca-missing":
        return key, [good]
    if name == "self-signed":
        return key, [pki.self_signed(key, names)]
    if name == "node-leaf":  # a certificate made for clients
        return key, [ca.node_leaf(public, ["spiffe://better-compute/node/x"]), ca.certificate]
    if name == "ca-first":  # positive: order after the leaf is free, extra certificates are ignored
        return key, [good, pki.CA("beside").certificate, ca.certificate]
    raise ValueError(name)


SERVING_REFUSED = [
    "other-name",
    "no-name",
    "expired",
    "other-ca",
    "other-ca-same-name",
    "pinned-ca-as-decoration",
    "pinned-ca-as-decoration-same-name",
    "ca-missing",
    "self-signed",
    "node-leaf",
]


class Frontend:
    def __init__(self, directory: pathlib.Path, serving_ca, node_ca, names, inner_port: int, faults, listen=("127.0.0.1", 0)):
        self.directory, self.serving_ca, self.names = directory, serving_ca, names
        self.inner_port, self.faults = inner_port, faults
        self.connections: list[dict] = []  # one a connection: fault, sni, alpn, certificate, error
        self._contexts: dict[str, ssl.SSLContext] = {}
        self._certificates: dict[int, bytes | None] = {}
        self._node_ca_pem = pki.pem(node_ca.certificate).decode()
        self._open: set = set()
        self._names_seen: list = []
        self._wire_fault: list = []  # one entry spoils one answer
        self._listen = socket.create_server(listen, family=socket.AF_INET6 if ":" in listen[0] else socket.AF_INET)
        self.port = self._listen.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="frontend", daemon=True)
        self._ready = threading.Event()
        self._thread.start()
        self._ready.wait(10)

    # ---- from other threads ---------------------------------------------------------------

    def certificate_of(self, peer: str) -> bytes | None:
        """The DER certificate behind a `ServicerContext.peer()`, or None."""
        return self._certificates.get(int(peer.rsplit(":", 1)[1]))

    def spoil_next_answer(self, fault: str) -> None:
        self._wire_fault.append(fault)

    def inject(self, data: bytes) -> None:
        """Sends bytes to every node, between two frames of the real gateway."""
        self._loop.call_soon_threadsafe(lambda: [writer.write(data) for writer in list(self._open)])

    def drop_connections(self) -> None:
        """Resets every open connection, as a crashed gateway would."""
        self._call(self._drop())

    def stop(self) -> None:
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _call(self, coroutine) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    # ---- on the loop ----------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.set_exception_handler(lambda loop, context: None)
        self._server = self._loop.run_until_complete(asyncio.start_server(self._accept, sock=self._listen))
        self._ready.set()
        self._loop.run_forever()

    async def _drop(self) -> None:
        for writer in list(self._open):
            _reset(writer)

    async def _stop(self) -> None:
        self._server.close()
        await self._drop()

    def _context(self, name: str) -> ssl.SSLContext:
        if name not in self._contexts:
            key, chain = serving_chain(name, self.serving_ca, self.names)
            path = self.directory / f"serving-{name}.pem"
            path.write_bytes(pki.key_pem(key) + b"".join(map(pki.pem, chain)))
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            if name == "tls12":
                context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
            if name != "no-alpn":
                context.set_alpn_protocols(["h2"])
            context.load_cert_chain(path)
            context.load_verify_locations(cadata=self._node_ca_pem)
            context.verify_mode = ssl.CERT_OPTIONAL
            context.sni_callback = lambda tls, sni, _: self._names_seen.append(sni)
            self._contexts[name] = context
        return self._contexts[name]

    async def _accept(self, reader, writer) -> None:
        fault = self.faults.take("connections")
        seen = {"fault": fault, "sni": None, "alpn": None, "version": None, "certificate": None, "error": None}
        seen["at"] = time.monotonic()
        self.connections.append(seen)
        self._open.add(writer)
        try:
            await self._serve(reader, writer, fault, seen)
        except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError) as error:
            seen["error"] = f"{type(error).__name__}: {error}"
        finally:
            self._open.discard(writer)
            writer.close()

    async def _serve(self, reader, writer, fault, seen) -> None:
        if fault == "close":
            return
        if fault == "reset":
            return _reset(writer)
        if fault == "hang":
            await reader.read(-1)
            return
        if fault == "plain":
            await reader.read(1)
            writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
            await writer.drain()
            return
        self._names_seen.clear()
        await writer.start_tls(self._context(self.faults.serving), ssl_handshake_timeout=10)
        tls = writer.get_extra_info("ssl_object")
        certificate = tls.getpeercert(True)
        seen.update(alpn=tls.selected_alpn_protocol(), version=tls.version(), certificate=certificate)
        seen["sni"] = self._names_seen[-1] if self._names_seen else None
        if fault == "tls-close":
            return
        if fault == "tls-hang":
            await reader.read(-1)
            return
        if fault == "tls-garbage":
            writer.write(b"\x00\xff" * 600)
            await writer.drain()
            await reader.read(-1)
            return
        inner = socket.socket()
        inner.bind(("127.0.0.1", 0))
        inner.setblocking(False)
        port = inner.getsockname()[1]
        self._certificates[port] = certificate
        try:
            await self._loop.sock_connect(inner, ("127.0.0.1", self.inner_port))
            from_inner, to_inner = await asyncio.open_connection(sock=inner)
            up = asyncio.ensure_future(_pump(reader, to_inner))
            down = asyncio.ensure_future(self._down(from_inner, writer))
            await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
            for task in (up, down):
                task.cancel()
            to_inner.close()
        finally:
            del self._certificates[port]

    async def _down(self, reader, writer) -> None:
        """The server's frames to the node; a reply fault cuts in at the answer's first HEADERS."""
        while True:
            head = await reader.readexactly(9)
            length, kind = int.from_bytes(head[:3], "big"), head[3]
            stream = int.from_bytes(head[5:9], "big") & 0x7FFFFFFF
            body = await reader.readexactly(length)
            if kind == HEADERS:
                fault = self._wire_fault.pop(0) if self._wire_fault else None
                if fault and await self._spoil(fault, stream, head + body, reader, writer):
                    return
                if fault:
                    continue
            writer.write(head + body)
            await writer.drain()

    async def _spoil(self, fault, stream, headers, reader, writer) -> bool:
        """Spoils one answer; True when the connection is over."""
        if fault == "lost":
            _reset(writer)
            return True
        if fault == "silent":
            await reader.read(-1)
            return True
        if fault == "rst":
            writer.write(frame(RST_STREAM, 0, stream, struct.pack(">I", 2)))
            await writer.drain()
            await reader.read(-1)
            return True
        if fault == "goaway":
            writer.write(frame(GOAWAY, 0, 0, struct.pack(">II", 0, 0)))
            await writer.drain()
            return True
        writer.write(headers)
        while True:
            head = await reader.readexactly(9)
            body = await reader.readexactly(int.from_bytes(head[:3], "big"))
            if head[3] == DATA:
                break
            writer.write(head + body)
        if fault == "cut":
            data = head + body
            writer.write(data[: len(data) // 2])
            await writer.drain()
            await asyncio.sleep(0.05)
            _reset(writer)
            return True
        if fault == "compressed":
            writer.write(head + b"\x01" + body[1:])
        elif fault == "length":
            writer.write(head + b"\x00\x7f\xff\xff\xff" + body[5:])
        elif fault == "no-trailers":
            writer.write(frame(DATA, END_STREAM, stream, body))
            await writer.drain()
            await reader.read(-1)
            return True
        await writer.drain()
        return False


async def _pump(reader, writer) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


def _reset(writer) -> None:
    """Ends a connection by RST, without TLS's close_notify."""
    sock = writer.get_extra_info("socket")
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except (OSError, AttributeError):
        pass
    writer.transport.abort()
