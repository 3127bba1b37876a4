"""A node in Python, from docs/protocol.md alone: joins, and holds a session.

It proves the other direction: a control plane of this project takes a node it did not write.
"""

import hashlib
import os
import queue
import socket
import ssl
import threading
import time
import urllib.parse

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from . import dsse, hpke, pki, protos
from .joinservice import INFO


class Refused(Exception):
    """What the control plane presented does not hold."""


def jwk_key(jwk: dict) -> ec.EllipticCurvePublicKey:
    import base64

    def number(text: str) -> int:
        return int.from_bytes(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), "big")

    if (jwk["kty"], jwk["crv"]) != ("EC", "P-256"):
        raise Refused("not a P-256 key")
    return ec.EllipticCurvePublicNumbers(number(jwk["x"]), number(jwk["y"]), ec.SECP256R1()).public_key()


class Node:
    def __init__(self, config: dict, jwk: dict, key=None):
        self.config = config
        url = urllib.parse.urlsplit(config["gateway_url"])
        self.host, self.port = url.hostname, url.port or 443
        self.server_name = config.get("gateway_server_name") or self.host
        self.encryption_key = jwk_key(jwk)
        if pki.pin(self.encryption_key) != config["join_encryption_key_pin"]:
            raise Refused("the JWK is not the pinned encryption key")
        self.key = key or pki.new_key()
        self.result = None
        self.trust_version = 0

    # ---- TLS ------------------------------------------------------------------------------

    def serving_ca(self) -> x509.Certificate:
        """The pinned CA, from the chain the gateway presents."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.set_alpn_protocols(["h2"])
        with socket.create_connection((self.host, self.port), timeout=10) as raw:
            with context.wrap_socket(raw, server_hostname=self.server_name) as tls:
                if tls.selected_alpn_protocol() != "h2":
                    raise Refused("the gateway does not speak h2")
                chain = tls._sslobj.get_unverified_chain()
        for entry in chain:
            certificate = x509.load_pem_x509_certificate(entry.public_bytes(1).encode())
            if pki.pin(certificate.public_key()) == self.config["serving_ca_spki_pin"]:
                return certificate
        raise Refused("the chain does not hold the pinned serving CA")

    def channel(self, with_certificate: bool, extra=()) -> grpc.Channel:
        root = pki.pem(self.serving_ca())
        if with_certificate:
            chain = b"".join(pki.pem(x509.load_der_x509_certificate(c)) for c in self.result.certificate_chain)
            credentials = grpc.ssl_channel_credentials(root, pki.key_pem(self.key), chain)
        else:
            credentials = grpc.ssl_channel_credentials(root)
        options = [("grpc.use_local_subchannel_pool", 1), *extra]
        if self.server_name != self.host:
            options.append(("grpc.ssl_target_name_override", self.server_name))
        target = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        return grpc.secure_channel(target, credentials, options=options)

    # ---- joining --------------------------------------------------------------------------

    def request(self, token: str, **changes):
        csr = pki.csr(self.key)
        enc, ciphertext = hpke.seal(self.encryption_key, INFO, hashlib.sha256(csr).digest(), token.encode())
        fields = dict(
            attestor="join-token",
            role=protos.Role.Value("ROLE_NODE"),
            site=self.config.get("site", ""),
            csr=csr,
            sealed_token=protos.SealedToken(
                key_pin=self.config["join_encryption_key_pin"], enc=enc, ciphertext=ciphertext
            ),
            claims=protos.HardwareClaims(hostname="python-node", architecture="x86_64", cpus=2),
            daemon_version="peer-node",
        )
        return protos.JoinRequest(**(fields | changes))

    def provisioned(self, order_id: str, left, **changes):
        """A request with the key that a deploy left (docs/protocol.md 5.8)."""
        csr = pki.csr(self.key)
        proof = protos.join.ProvisionedProof(order_id=order_id, csr_sha256=hashlib.sha256(csr).digest())
        signed = dsse.sign(proof.SerializeToString(), "provisioned-proof", left)
        fields = dict(attestor="provisioned", csr=csr, sealed_token=None, provisioned_proof=signed)
        return self.request("", **(fields | changes))

    def call_join(self, request, timeout: float = 10, channel=None):
        with channel or self.channel(False) as channel:
            call = channel.unary_unary(
                protos.JOIN,
                request_serializer=lambda m: m if isinstance(m, bytes) else m.SerializeToString(),
                response_deserializer=protos.JoinResponse.FromString,
            )
            return call(request, timeout=timeout)

    def join(self, token: str):
        """One call; returns the verified JoinResult, or the JoinDeferral. grpc.RpcError, Refused."""
        request = self.request(token)
        response = self.call_join(request)
        if response.WhichOneof("outcome") == "deferral":
            return response.deferral
        if response.WhichOneof("outcome") is None:
            raise Refused("an answer that is neither a result nor a deferral")
        self.result = self.verify(response.signed, request)
        return self.result

    def verify(self, envelope, request):
        """Every check of docs/protocol.md 5.3."""
        pins = {self.config["join_signing_key_pin"]}
        result = protos.JoinResult.FromString(dsse.verify(envelope, "join-response", pins))
        bundle = protos.TrustBundle.FromString(dsse.verify(result.trust_bundle, "trust-bundle", pins))
        if result.csr_sha256 != hashlib.sha256(request.csr).digest():
            raise Refused("the answer is for another CSR")
        chain = [x509.load_der_x509_certificate(c) for c in result.certificate_chain]
        leaf = chain[0]
        if pki.spki(leaf.public_key()) != pki.spki(self.key):
            raise Refused("the leaf is for another key")
        role = protos.ROLES.get(result.role)
        tail = f"/{role}/{result.node_id}"
        if not pki.is_id(result.node_id, "node") or not result.spiffe_id.startswith("spiffe://"):
            raise Refused("the node id or the SPIFFE id is malformed")
        domain, *rest = result.spiffe_id[len("spiffe://") :].split("/")
        if not domain or "/" + "/".join(rest) != tail or pki.uri_names(leaf) != [result.spiffe_id]:
            raise Refused("the SPIFFE id is not the one of role, node and leaf")
        if result.role != request.role or (request.site and result.site != request.site):
            raise Refused("another role or site")
        cas = [x509.load_der_x509_certificate(c) for c in bundle.node_cas]
        for ca in cas:
            try:
                leaf.verify_directly_issued_by(ca)
                break
            except Exception:
                continue
        else:
            raise Refused("the leaf is from no CA of the bundle")
        self.trust_version = bundle.version
        return result

    # ---- the session ----------------------------------------------------------------------

    def session(self, **options) -> "NodeSession":
        return NodeSession(self, **options)


class Journal:
    """What a node must not lose: events that wait for their acknowledgement."""

    def __init__(self):
        self.id = os.urandom(16)
        self.position = 0
        self.acknowledged = 0
        self.events: dict = {}

    def append(self, **body):
        """Makes the next event; body is one of Event's kinds, or nothing."""
        self.position += 1
        event = protos.Event(sequence=self.position, time_ms=pki.now_ms(), **body)
        self.events[self.position] = event
        return event

    def acknowledge(self, position: int) -> None:
        if position > self.position:
            raise Refused(f"event {position} is acknowledged, the journal ends at {self.position}")
        self.acknowledged = max(self.acknowledged, position)
        for sequence in [s for s in self.events if s <= position]:
            del self.events[sequence]

    def after(self, position: int) -> list:
        return [event for sequence, event in sorted(self.events.items()) if sequence > position]


class NodeSession:
    """A session from the node's side. `frames` gathers what the gateway says."""

    def __init__(self, node: Node, hello=None, with_certificate: bool = True, journal=None, reads: bool = True, **fields):
        self.node = node
        self.journal = journal
        if journal:
            fields |= {"journal_id": journal.id, "journal_position": journal.position}
        self.channel = node.channel(with_certificate)
        self._out: queue.Queue = queue.Queue()
        call = self.channel.stream_stream(
            protos.SESSION,
            request_serializer=lambda m: m if isinstance(m, bytes) else m.SerializeToString(),
            response_deserializer=protos.GatewayFrame.FromString,
        )
        told = {"boot_id": "11111111-2222-3333-4444-555555555555", "protocol_versions": [1], "daemon_version": "peer-node", "trust_bundle_version": node.trust_version}
        hello = hello or protos.NodeFrame(
            hello=protos.Hello(
                node_id=node.result.node_id if node.result else "",
                **(told | fields),
            )
        )
        self.send(hello)
        self.call = call(iter(self._out.get, None))
        self.frames: queue.Queue = queue.Queue()
        self.details = ""
        if reads:
            threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            for frame in self.call:
                self.frames.put(frame)
            self.frames.put(grpc.StatusCode.OK)
        except grpc.RpcError as error:
            self.details = error.details()
            self.frames.put(error.code())

    def send(self, frame) -> None:
        self._out.put(frame)

    def heartbeat(self, sequence: int) -> None:
        self.send(protos.NodeFrame(heartbeat=protos.Heartbeat(sequence=sequence, time_ms=pki.now_ms())))

    def event(self, event) -> None:
        self.send(protos.NodeFrame(event=event))

    def welcome(self):
        """Waits for Welcome and sends again what is not stored."""
        welcome = self.receive().welcome
        if self.journal:
            self.journal.acknowledge(welcome.resume_position)
            for event in self.journal.after(welcome.resume_position):
                self.event(event)
        return welcome

    def wait(self, kind: str, timeout: float = 10):
        """The next frame of this kind; acknowledgements on the way are taken."""
        deadline = time.monotonic() + timeout
        while True:
            frame = self.receive(max(0.01, deadline - time.monotonic()))
            if isinstance(frame, grpc.StatusCode):
                raise Refused(f"the session ended with {frame.name} {self.details} before a {kind} came")
            if frame.WhichOneof("kind") == "ack" and self.journal:
                self.journal.acknowledge(frame.ack.position)
            if frame.WhichOneof("kind") == kind:
                return getattr(frame, kind)

    def acknowledged(self, position: int, timeout: float = 10) -> None:
        """Waits until the gateway says that all up to `position` is stored."""
        while self.wait("ack", timeout).position < position:
            pass

    def ended(self, timeout: float = 10):
        """The code the session ends with; frames on the way are taken."""
        while not isinstance(frame := self.receive(timeout), grpc.StatusCode):
            if frame.WhichOneof("kind") == "ack" and self.journal:
                self.journal.acknowledge(frame.ack.position)
        return frame

    def receive(self, timeout: float = 5):
        """The next GatewayFrame, or the grpc.StatusCode the session ended with."""
        return self.frames.get(timeout=timeout)

    def half_close(self) -> None:
        self._out.put(None)

    def close(self) -> None:
        self.call.cancel()
        self.channel.close()
