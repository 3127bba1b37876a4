"""HPKE (RFC 9180), base mode, DHKEM(P-256, HKDF-SHA256) with HKDF-SHA256, from primitives.

Only what docs/protocol.md 5.2 needs: one message, sequence number 0.
"""

import hashlib
import hmac

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

KEM, KDF = 0x0010, 0x0001
AES_128_GCM, AES_256_GCM = 0x0001, 0x0002
KEY_BYTES = {AES_128_GCM: 16, AES_256_GCM: 32}


class Refused(Exception):
    """The ciphertext does not open: another key, another context, or damage."""


def point(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


def _extract(salt: bytes, ikm: bytes) -> bytes:
    return hmac.new(salt or bytes(32), ikm, hashlib.sha256).digest()


def _expand(prk: bytes, info: bytes, length: int) -> bytes:
    block, out, counter = b"", b"", 1
    while len(out) < length:
        block = hmac.new(prk, block + info + bytes([counter]), hashlib.sha256).digest()
        out += block
        counter += 1
    return out[:length]


def _labeled_extract(suite: bytes, salt: bytes, label: bytes, ikm: bytes) -> bytes:
    return _extract(salt, b"HPKE-v1" + suite + label + ikm)


def _labeled_expand(suite: bytes, prk: bytes, label: bytes, info: bytes, length: int) -> bytes:
    return _expand(prk, length.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info, length)


def _shared_secret(dh: bytes, enc: bytes, recipient: bytes) -> bytes:
    suite = b"KEM" + KEM.to_bytes(2, "big")
    prk = _labeled_extract(suite, b"", b"eae_prk", dh)
    return _labeled_expand(suite, prk, b"shared_secret", enc + recipient, 32)


def _key_and_nonce(shared: bytes, info: bytes, aead: int) -> tuple[bytes, bytes]:
    suite = b"HPKE" + b"".join(n.to_bytes(2, "big") for n in (KEM, KDF, aead))
    context = (
        b"\x00"
        + _labeled_extract(suite, b"", b"psk_id_hash", b"")
        + _labeled_extract(suite, b"", b"info_hash", info)
    )
    secret = _labeled_extract(suite, shared, b"secret", b"")
    key = _labeled_expand(suite, secret, b"key", context, KEY_BYTES[aead])
    return key, _labeled_expand(suite, secret, b"base_nonce", context, 12)


def seal(recipient, info: bytes, aad: bytes, plaintext: bytes, aead: int = AES_256_GCM, ephemeral=None) -> tuple[bytes, bytes]:
    """Returns (enc, ciphertext with its tag)."""
    ephemeral = ephemeral or ec.generate_private_key(ec.SECP256R1())
    enc = point(ephemeral.public_key())
    shared = _shared_secret(ephemeral.exchange(ec.ECDH(), recipient), enc, point(recipient))
    key, nonce = _key_and_nonce(shared, info, aead)
    return enc, AESGCM(key).encrypt(nonce, plaintext, aad)


def open_sealed(private, enc: bytes, info: bytes, aad: bytes, ciphertext: bytes, aead: int = AES_256_GCM) -> bytes:
    if len(enc) != 65 or enc[0] != 4:
        raise Refused("enc is not an uncompressed P-256 point")
    try:
        ephemeral = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), enc)
    except ValueError:
        raise Refused("enc is not a point of P-256") from None
    shared = _shared_secret(private.exchange(ec.ECDH(), ephemeral), enc, point(private.public_key()))
    key, nonce = _key_and_nonce(shared, info, aead)
    try:
        return AESGCM(key).decrypt(nonce, ciphertext, aad)
    except InvalidTag:
        raise Refused("the ciphertext does not open with this key and context") from None
