"""What a site agent signs, made from docs/protocol.md 4 and 5.7 alone: a second implementation of assertions."""

import base64

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

PURPOSE = "application/vnd.better-compute.discovery-assertion.v1+protobuf"


def field(number, value):
    """A length-delimited field of protobuf's."""
    size, length = len(value), b""
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + value


def varint(number, value):
    out = bytes([number << 3])
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def url64(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def spki(key):
    return key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def assertion(key, site, mac, token_id, signed_at):
    """A SignedDiscoveryAssertion, as a site agent in another language makes it."""
    payload = (field(1, site.encode()) + field(2, bytes.fromhex(mac.replace(":", "")))
               + field(3, token_id.encode()) + varint(4, int(signed_at * 1000)))
    signed = f"DSSEv1 {len(PURPOSE)} {PURPOSE} {len(payload)} ".encode() + payload
    digest = hashes.Hash(hashes.SHA256())
    digest.update(spki(key))
    pin = "sha256/" + base64.b64encode(digest.finalize()).decode()
    signature = field(1, key.sign(signed, ec.ECDSA(hashes.SHA256()))) + field(2, pin.encode())
    return url64(field(1, payload) + field(2, PURPOSE.encode()) + field(3, signature))


def read_key(path):
    """A site's private key from its file."""
    return serialization.load_pem_private_key(path.read_bytes(), None)
