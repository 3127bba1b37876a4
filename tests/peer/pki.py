"""Keys, pins, certificates and ids as docs/protocol.md 1 has them, on `cryptography` alone."""

import base64
import datetime
import hashlib
import ipaddress
import os
import time

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CROCKFORD = "0123456789abcdefghjkmnpqrstvwxyz"
UTC = datetime.timezone.utc
DAY = datetime.timedelta(days=1)


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def spki(key) -> bytes:
    public = key.public_key() if hasattr(key, "private_numbers") else key
    return public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def pin(key) -> str:
    return "sha256/" + base64.b64encode(hashlib.sha256(spki(key)).digest()).decode()


def key_pem(key) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def der(certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.DER)


def pem(certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def jwk(public: ec.EllipticCurvePublicKey) -> dict:
    numbers = public.public_numbers()

    def coordinate(value: int) -> str:
        return base64.urlsafe_b64encode(value.to_bytes(32, "big")).rstrip(b"=").decode()

    return {"kty": "EC", "crv": "P-256", "x": coordinate(numbers.x), "y": coordinate(numbers.y)}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def ulid(prefix: str, at_ms: int | None = None) -> str:
    value = ((now_ms() if at_ms is None else at_ms) << 80) | int.from_bytes(os.urandom(10), "big")
    return prefix + "_" + "".join(CROCKFORD[(value >> shift) & 31] for shift in range(125, -5, -5))


def is_id(text: str, prefix: str) -> bool:
    head, _, tail = text.partition("_")
    return head == prefix and len(tail) == 26 and tail[0] in CROCKFORD[:8] and all(c in CROCKFORD for c in tail)


class CA:
    """An X.509 CA over a P-256 key."""

    def __init__(self, name: str, key=None, days: int = 3650):
        self.key = key or new_key()
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.datetime.now(UTC)
        self.certificate = (
            x509.CertificateBuilder()
            .subject_name(self.name)
            .issuer_name(self.name)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + days * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(sign=False, certify=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), critical=False)
            .sign(self.key, hashes.SHA256())
        )

    @property
    def pin(self) -> str:
        return pin(self.key)

    def _leaf(self, public, sans, usage, not_before=None, not_after=None, days=1):
        now = datetime.datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(self.name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(not_before or now - datetime.timedelta(minutes=5))
            .not_valid_after(not_after or now + days * DAY)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(sign=True, certify=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False
            )
        )
        if sans:  # critical, since the subject is empty (RFC 5280, 4.2.1.6)
            builder = builder.add_extension(x509.SubjectAlternativeName(sans), critical=True)
        return builder.sign(self.key, hashes.SHA256())

    def serving_leaf(self, public, names, **validity):
        return self._leaf(public, [_name(n) for n in names], ExtendedKeyUsageOID.SERVER_AUTH, **validity)

    def node_leaf(self, public, uris, **validity):
        sans = [x509.UniformResourceIdentifier(uri) for uri in uris]
        return self._leaf(public, sans, ExtendedKeyUsageOID.CLIENT_AUTH, **validity)


def _name(text: str):
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _usage(sign: bool, certify: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=certify,
        crl_sign=certify,
        encipher_only=False,
        decipher_only=False,
    )


def self_signed(key, names):
    """A serving certificate that nobody stands behind."""
    now = datetime.datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "self-signed")])
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + DAY)
        .add_extension(x509.SubjectAlternativeName([_name(n) for n in names]), critical=False)
        .sign(key, hashes.SHA256())
    )


def uri_names(certificate) -> list[str]:
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return extension.value.get_values_for_type(x509.UniformResourceIdentifier)


def csr(key) -> bytes:
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)
