"""The JoinService (docs/protocol.md 5): tokens, certificates and signed answers.

It takes the bytes of a JoinRequest and gives the bytes of a JoinResponse, or raises `Refusal`.
What it keeps is honest whatever `Faults` says: a fault changes the answer alone, so the same
request made again without the fault is answered well.
"""

import base64
import dataclasses
import hashlib
import os
import threading

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_der_public_key
from google.protobuf.message import DecodeError

from . import dsse, hpke, pki, protos

INFO = b"better-compute join v1"
GRACE_MS = 3600 * 1000


class Refusal(Exception):
    def __init__(self, code: grpc.StatusCode, message: str):
        super().__init__(message)
        self.code, self.message = code, message


@dataclasses.dataclass
class Token:
    id: str
    pool: str
    site: str
    role: str
    expires_ms: int
    allow_reclaim: bool = False
    revoked: bool = False
    bound_spki: bytes | None = None
    node_id: str | None = None
    attempts_refused: int = 0
    # Of an OS that a deploy installed: the key that was left for it, in place of a secret.
    left: bytes | None = None


@dataclasses.dataclass
class Node:
    id: str
    spiffe_id: str
    role: str
    site: str
    pool: str
    certificate: x509.Certificate
    claims: object
    daemon_version: str
    deleted: bool = False


class JoinService:
    def __init__(self, serving_ca: pki.CA, faults, trust_domain: str = "better-compute"):
        self.trust_domain = trust_domain
        self.serving_ca = serving_ca
        self.node_ca = pki.CA("peer node identity CA")
        self.signing_key = pki.new_key()
        self.encryption_key = pki.new_key()
        self.faults = faults
        self.tokens: dict[bytes, Token] = {}  # by the digest of the whole token
        self.deploys: dict[str, Token] = {}  # by the order's id
        self.nodes: dict[str, Node] = {}
        self.requests: list = []  # every JoinRequest that parsed
        self.outcomes: list[str] = []  # "joined", "again", "deferred", or the refusal's code
        self._lock = threading.Lock()

    # ---- tokens ---------------------------------------------------------------------------

    def create_token(self, pool="pool1", site="site1", role="node", ttl_s=600.0, allow_reclaim=False) -> str:
        token_id = pki.ulid("jt")
        secret = base64.urlsafe_b64encode(os.urandom(32)).rstrip(b"=").decode()
        text = f"bcjt_{token_id}.{secret}"
        expires = pki.now_ms() + int(ttl_s * 1000)
        self.tokens[hashlib.sha256(text.encode()).digest()] = Token(token_id, pool, site, role, expires, allow_reclaim)
        return text

    def provision(self, pool="pool1", site="site1") -> str:
        """As after a deploy: what the ramdisk leaves on the disk as provisioned.key."""
        order, key = pki.ulid("ord"), pki.new_key()
        expires = pki.now_ms() + 7 * 86_400_000
        self.deploys[order] = Token(order, pool, site, "node", expires, left=pki.spki(key))
        return f"{order}\n{pki.key_pem(key).decode()}"

    def token(self, text: str) -> Token:
        return self.tokens[hashlib.sha256(text.encode()).digest()]

    # ---- the call -------------------------------------------------------------------------

    def join(self, request_bytes: bytes) -> bytes:
        with self._lock:
            try:
                return self._join(request_bytes)
            except Refusal as refusal:
                self.outcomes.append(refusal.code.name)
                raise

    def _join(self, request_bytes: bytes) -> bytes:
        if len(request_bytes) > 64 * 1024:
            raise Refusal(grpc.StatusCode.INVALID_ARGUMENT, "the JoinRequest is over 64 KiB")
        try:
            request = protos.JoinRequest.FromString(request_bytes)
        except DecodeError:
            raise Refusal(grpc.StatusCode.INVALID_ARGUMENT, "the JoinRequest does not parse") from None
        self.requests.append(request)
        if self.faults.statuses:
            raise Refusal(self.faults.statuses.pop(0), self.faults.status_message)
        csr, role = self._check(request)
        token = self._deploy_of(request) if request.attestor == "provisioned" else self._token_of(request)
        public = pki.spki(csr.public_key())
        self._check_token(token, request, role, public)
        if self.faults.deferrals > 0:
            self.faults.deferrals -= 1
            self.outcomes.append("deferred")
            deferral = protos.JoinDeferral(retry_after_ms=self.faults.retry_after_ms, reason="waiting for approval")
            return protos.JoinResponse(deferral=deferral).SerializeToString()
        if token.node_id is None:
            token.bound_spki = public
            node = self._issue(csr, role, token, request)
            token.node_id = node.id
            self.outcomes.append("joined")
        else:
            node = self.nodes[token.node_id]
            self.outcomes.append("again")
        return self._answer(node, request, csr)

    def _check(self, request):
        invalid = grpc.StatusCode.INVALID_ARGUMENT
        fields = {"join-token": "sealed_token", "provisioned": "provisioned_proof"}
        carries = [field for field in fields.values() if request.HasField(field)]
        if carries != [fields.get(request.attestor)]:
            raise Refusal(invalid, f"attestor {request.attestor!r} with no join token is not taken here")
        role = protos.ROLES.get(request.role)
        if role is None:
            raise Refusal(invalid, f"role {request.role} is not known here")
        if len(request.csr) > 4096 or len(request.sealed_token.ciphertext) > 4096:
            raise Refusal(invalid, "csr or ciphertext is over 4 KiB")
        claims = request.claims
        texts = [v for f, v in claims.ListFields() if f.name != "macs" and isinstance(v, str)]
        if len(claims.macs) > 64 or any(len(t.encode()) > 256 for t in [*texts, *claims.macs]):
            raise Refusal(invalid, "a hardware claim is too long")
        try:
            csr = x509.load_der_x509_csr(request.csr)
            good = csr.is_signature_valid and isinstance(csr.public_key(), ec.EllipticCurvePublicKey)
            good = good and csr.public_key().curve.name == "secp256r1"
        except Exception:
            good = False
        if not good:
            raise Refusal(invalid, "csr is not a self-signed PKCS#10 request over a P-256 key")
        return csr, role

    def _deploy_of(self, request) -> Token:
        unknown = grpc.StatusCode.UNAUTHENTICATED
        signed = request.provisioned_proof
        try:
            claimed = protos.join.ProvisionedProof.FromString(signed.payload)
            deploy = self.deploys[claimed.order_id]
            if [s.public_key for s in signed.signatures] != [deploy.left]:
                raise Refusal(unknown, "the proof is by another key than the one that was left")
            dsse.verify(signed, "provisioned-proof", [pki.pin(load_der_public_key(deploy.left))])
        except (KeyError, DecodeError, dsse.Refused) as error:
            raise Refusal(unknown, f"no deploy left this key: {error}") from None
        if claimed.csr_sha256 != hashlib.sha256(request.csr).digest():
            raise Refusal(unknown, "the proof is for another request")
        return deploy

    def _token_of(self, request) -> Token:
        sealed = request.sealed_token
        if sealed.key_pin != pki.pin(self.encryption_key):
            raise Refusal(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"the token is sealed to {sealed.key_pin}, a key this JoinService does not hold",
            )
        aad = hashlib.sha256(request.csr).digest()
        try:
            text = hpke.open_sealed(self.encryption_key, sealed.enc, INFO, aad, sealed.ciphertext)
        except hpke.Refused as error:
            raise Refusal(grpc.StatusCode.UNAUTHENTICATED, f"the token cannot be opened: {error}") from None
        token = self.tokens.get(hashlib.sha256(text).digest())
        if token is None:
            raise Refusal(grpc.StatusCode.UNAUTHENTICATED, "the token is not known here")
        return token

    def _check_token(self, token: Token, request, role: str, public: bytes) -> None:
        denied = grpc.StatusCode.PERMISSION_DENIED
        if token.revoked:
            raise Refusal(denied, f"token {token.id} is revoked")
        if token.bound_spki not in (None, public):
            token.attempts_refused += 1
            raise Refusal(denied, f"token {token.id} was used by another key")
        if pki.now_ms() > token.expires_ms + (GRACE_MS if token.bound_spki else 0):
            raise Refusal(denied, f"token {token.id} has expired")
        if role != token.role:
            raise Refusal(denied, f"token {token.id} is for role {token.role}, not {role}")
        if request.site not in ("", token.site):
            raise Refusal(denied, f"token {token.id} is for site {token.site}, not {request.site}")

    def _issue(self, csr, role: str, token: Token, request) -> Node:
        node_id = pki.ulid("node")
        spiffe_id = f"spiffe://{self.trust_domain}/{role}/{node_id}"
        certificate = self.node_ca.node_leaf(csr.public_key(), [spiffe_id], days=30)
        node = Node(
            node_id, spiffe_id, role, token.site, token.pool, certificate, request.claims, request.daemon_version
        )
        self.nodes[node_id] = node
        return node

    # ---- the answer -----------------------------------------------------------------------

    def trust_bundle(self, node_cas=None):
        return protos.TrustBundle(
            version=1,
            issued_at_ms=pki.now_ms(),
            serving_cas=[pki.der(self.serving_ca.certificate)],
            node_cas=[pki.der(c) for c in (node_cas if node_cas is not None else [self.node_ca.certificate])],
            join_signing_keys=[pki.spki(self.signing_key)],
            join_encryption_keys=[pki.spki(self.encryption_key)],
        )

    def _answer(self, node: Node, request, csr) -> bytes:
        result = protos.JoinResult(
            csr_sha256=hashlib.sha256(request.csr).digest(),
            node_id=node.id,
            spiffe_id=node.spiffe_id,
            role=protos.Role.Value(f"ROLE_{node.role.upper()}"),
            site=node.site,
            pool=node.pool,
            certificate_chain=[pki.der(node.certificate)],
            server_time_ms=pki.now_ms(),
        )
        bundle = dsse.sign(self.trust_bundle().SerializeToString(), "trust-bundle", self.signing_key)
        result.trust_bundle.CopyFrom(bundle)
        if self.faults.answer is None:
            signed = dsse.sign(result.SerializeToString(), "join-response", self.signing_key)
            return protos.JoinResponse(signed=signed).SerializeToString()
        return self.faults.answer(self, node, csr, result)
