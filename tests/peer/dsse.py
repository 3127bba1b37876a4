"""Envelopes (docs/protocol.md 4): DSSE over ECDSA P-256 with SHA-256."""

import base64

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_der_public_key

from . import pki, protos

PURPOSES = {
    "join-response": "protobuf",
    "trust-bundle": "protobuf",
    "node-spec": "protobuf",
    "order": "protobuf",
    "renewal": "protobuf",
    "discovery-assertion": "protobuf",
    "provisioned-proof": "protobuf",
    "deploy-receipt": "protobuf",
    "release-manifest": "json",
    "server-time": "protobuf",
}


class Refused(Exception):
    """An envelope that does not hold."""


def payload_type(purpose: str) -> str:
    return f"application/vnd.better-compute.{purpose}.v1+{PURPOSES[purpose]}"


def pae(kind: str, payload: bytes) -> bytes:
    name = kind.encode()
    return b"DSSEv1 %d %s %d %s" % (len(name), name, len(payload), payload)


def sign(payload: bytes, purpose: str, key, *, kind: str | None = None) -> "protos.Envelope":
    """`kind` overrides the payload type that is named and signed."""
    kind = kind or payload_type(purpose)
    signature = key.sign(pae(kind, payload), ec.ECDSA(hashes.SHA256()))
    envelope = protos.Envelope(payload=payload, payload_type=kind)
    envelope.signatures.add(sig=signature, keyid=pki.pin(key.public_key()), public_key=pki.spki(key))
    return envelope


def verify(envelope, purpose: str, pins) -> bytes:
    """The payload, once a key with one of `pins` has signed it for `purpose`."""
    if envelope.payload_type != payload_type(purpose):
        raise Refused(f"payload_type is {envelope.payload_type!r}, not the one of {purpose}")
    if len(envelope.signatures) > 16:
        raise Refused("more than 16 signatures")
    signed = pae(envelope.payload_type, envelope.payload)
    for signature in envelope.signatures:
        try:
            key = load_der_public_key(signature.public_key)
            if pki.spki(key) != signature.public_key or pki.pin(key) not in pins:
                continue
            key.verify(signature.sig, signed, ec.ECDSA(hashes.SHA256()))
        except (InvalidSignature, ValueError):
            continue
        return envelope.payload
    raise Refused(f"no signature of a trusted key for {purpose}")


def from_json(document: dict) -> "protos.Envelope":
    """The envelope of its DSSE JSON, as bcd keeps it on disk."""
    envelope = protos.Envelope(
        payload=base64.b64decode(document["payload"], validate=True), payload_type=document["payloadType"]
    )
    for signature in document["signatures"]:
        envelope.signatures.add(
            sig=base64.b64decode(signature["sig"], validate=True),
            keyid=signature["keyid"],
            public_key=base64.b64decode(signature.get("publicKey", ""), validate=True),
        )
    return envelope
