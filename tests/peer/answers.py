"""Answers to a join that a node must refuse (docs/protocol.md 5.3), each wrong in one way only.

`REFUSED` maps a name to a function (service, node, csr, honest result) -> bytes of the answer.
`ACCEPTED` holds answers that look odd and must be taken.
"""

import datetime

from . import dsse, pki, protos

DAY = datetime.timedelta(days=1)
REFUSED = {}
ACCEPTED = {}


def _wrong(name):
    def register(function):
        REFUSED[name] = function
        return function

    return register


def _odd(name):
    def register(function):
        ACCEPTED[name] = function
        return function

    return register


def _signed(service, result) -> bytes:
    return _response(dsse.sign(result.SerializeToString(), "join-response", service.signing_key))


def _response(envelope) -> bytes:
    return protos.JoinResponse(signed=envelope).SerializeToString()


def _with_leaf(service, result, public, uris, **validity) -> bytes:
    result.certificate_chain[:] = [pki.der(service.node_ca.node_leaf(public, uris, **validity))]
    return _signed(service, result)


@_wrong("another CSR")
def _(service, node, csr, result):
    result.csr_sha256 = bytes(32)
    return _signed(service, result)


@_wrong("no CSR digest")
def _(service, node, csr, result):
    result.csr_sha256 = b""
    return _signed(service, result)


@_wrong("damaged signature")
def _(service, node, csr, result):
    envelope = dsse.sign(result.SerializeToString(), "join-response", service.signing_key)
    sig = bytearray(envelope.signatures[0].sig)
    sig[-1] ^= 1
    envelope.signatures[0].sig = bytes(sig)
    return _response(envelope)


@_wrong("payload changed after signing")
def _(service, node, csr, result):
    envelope = dsse.sign(result.SerializeToString(), "join-response", service.signing_key)
    result.pool = "another-pool"
    envelope.payload = result.SerializeToString()
    return _response(envelope)


@_wrong("another signer")
def _(service, node, csr, result):
    return _response(dsse.sign(result.SerializeToString(), "join-response", pki.new_key()))


@_wrong("another signer under the pinned keyid")
def _(service, node, csr, result):
    envelope = dsse.sign(result.SerializeToString(), "join-response", pki.new_key())
    envelope.signatures[0].keyid = pki.pin(service.signing_key)
    return _response(envelope)


@_wrong("another signer that shows the pinned key")
def _(service, node, csr, result):
    envelope = dsse.sign(result.SerializeToString(), "join-response", pki.new_key())
    envelope.signatures[0].keyid = pki.pin(service.signing_key)
    envelope.signatures[0].public_key = pki.spki(service.signing_key)
    return _response(envelope)


@_wrong("no signature")
def _(service, node, csr, result):
    envelope = dsse.sign(result.SerializeToString(), "join-response", service.signing_key)
    del envelope.signatures[:]
    return _response(envelope)


@_wrong("17 signatures")
def _(service, node, csr, result):
    envelope = dsse.sign(result.SerializeToString(), "join-response", service.signing_key)
    for _ in range(16):
        envelope.signatures.append(envelope.signatures[0])
    return _response(envelope)


@_wrong("signed for another purpose")
def _(service, node, csr, result):
    return _response(dsse.sign(result.SerializeToString(), "trust-bundle", service.signing_key))


@_wrong("purpose renamed after signing")
def _(service, node, csr, result):
    envelope = dsse.sign(result.SerializeToString(), "trust-bundle", service.signing_key)
    envelope.payload_type = dsse.payload_type("join-response")
    return _response(envelope)


@_wrong("signed without the pre-authentication encoding")
def _(service, node, csr, result):
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    envelope = dsse.sign(result.SerializeToString(), "join-response", service.signing_key)
    envelope.signatures[0].sig = service.signing_key.sign(envelope.payload, ec.ECDSA(hashes.SHA256()))
    return _response(envelope)


@_wrong("signed garbage")
def _(service, node, csr, result):
    return _response(dsse.sign(b"\xff" * 40, "join-response", service.signing_key))


@_wrong("neither result nor deferral")
def _(service, node, csr, result):
    return b""


@_wrong("role that contradicts the SPIFFE id")
def _(service, node, csr, result):
    result.role = protos.Role.Value("ROLE_SITE")
    return _signed(service, result)


@_wrong("role that was not asked for")
def _(service, node, csr, result):
    result.role = protos.Role.Value("ROLE_SITE")
    result.spiffe_id = f"spiffe://{service.trust_domain}/site/{node.id}"
    return _with_leaf(service, result, csr.public_key(), [result.spiffe_id])


@_wrong("SPIFFE id of another node")
def _(service, node, csr, result):
    result.spiffe_id = f"spiffe://{service.trust_domain}/node/{pki.ulid('node')}"
    return _with_leaf(service, result, csr.public_key(), [result.spiffe_id])


@_wrong("SPIFFE id that the leaf does not carry")
def _(service, node, csr, result):
    return _with_leaf(
        service, result, csr.public_key(), [f"spiffe://{service.trust_domain}/node/{pki.ulid('node')}"]
    )


@_wrong("SPIFFE id that is no SPIFFE id")
def _(service, node, csr, result):
    result.spiffe_id = f"https://{service.trust_domain}/node/{node.id}"
    return _with_leaf(service, result, csr.public_key(), [result.spiffe_id])


@_wrong("SPIFFE id with more path")
def _(service, node, csr, result):
    result.spiffe_id = f"spiffe://{service.trust_domain}/x/node/{node.id}"
    return _with_leaf(service, result, csr.public_key(), [result.spiffe_id])


@_wrong("node id that is a path")
def _(service, node, csr, result):
    result.node_id = "node_../../../../etc/passwd"
    result.spiffe_id = f"spiffe://{service.trust_domain}/node/{result.node_id}"
    return _with_leaf(service, result, csr.public_key(), [result.spiffe_id])


@_wrong("node id in capitals")
def _(service, node, csr, result):
    result.node_id = "node_" + node.id[5:].upper()
    result.spiffe_id = f"spiffe://{service.trust_domain}/node/{result.node_id}"
    return _with_leaf(service, result, csr.public_key(), [result.spiffe_id])


@_wrong("two URI names in the leaf")
def _(service, node, csr, result):
    return _with_leaf(
        service, result, csr.public_key(), [node.spiffe_id, f"spiffe://{service.trust_domain}/site/{node.id}"]
    )


@_wrong("no name in the leaf")
def _(service, node, csr, result):
    return _with_leaf(service, result, csr.public_key(), [])


@_wrong("leaf for another key")
def _(service, node, csr, result):
    return _with_leaf(service, result, pki.new_key().public_key(), [node.spiffe_id])


@_wrong("expired leaf")
def _(service, node, csr, result):
    now = datetime.datetime.now(pki.UTC)
    return _with_leaf(
        service, result, csr.public_key(), [node.spiffe_id], not_before=now - 3 * DAY, not_after=now - DAY
    )


@_wrong("leaf expired at the server's time")
def _(service, node, csr, result):
    result.server_time_ms = pki.now_ms() + 400 * 86400 * 1000
    return _signed(service, result)


@_wrong("leaf not valid yet")
def _(service, node, csr, result):
    now = datetime.datetime.now(pki.UTC)
    return _with_leaf(
        service, result, csr.public_key(), [node.spiffe_id], not_before=now + 2 * DAY, not_after=now + 9 * DAY
    )


@_wrong("leaf from another CA")
def _(service, node, csr, result):
    leaf = pki.CA("another node CA").node_leaf(csr.public_key(), [node.spiffe_id])
    result.certificate_chain[:] = [pki.der(leaf)]
    return _signed(service, result)


@_wrong("leaf from another CA of the same name")
def _(service, node, csr, result):
    leaf = pki.CA("peer node identity CA").node_leaf(csr.public_key(), [node.spiffe_id])
    result.certificate_chain[:] = [pki.der(leaf)]
    return _signed(service, result)


@_wrong("leaf from the serving CA")
def _(service, node, csr, result):
    leaf = service.serving_ca.node_leaf(csr.public_key(), [node.spiffe_id])
    result.certificate_chain[:] = [pki.der(leaf)]
    return _signed(service, result)


@_wrong("no chain")
def _(service, node, csr, result):
    del result.certificate_chain[:]
    return _signed(service, result)


@_wrong("chain of garbage")
def _(service, node, csr, result):
    result.certificate_chain[:] = [b"\x30\x82\xff\xff" + b"\x00" * 64]
    return _signed(service, result)


@_wrong("truncated leaf")
def _(service, node, csr, result):
    result.certificate_chain[:] = [pki.der(node.certificate)[:-7]]
    return _signed(service, result)


@_wrong("leaf with bytes after it")
def _(service, node, csr, result):
    result.certificate_chain[:] = [pki.der(node.certificate) + b"\x00"]
    return _signed(service, result)


@_wrong("chain of nine certificates")
def _(service, node, csr, result):
    result.certificate_chain.extend([pki.der(service.node_ca.certificate)] * 8)
    return _signed(service, result)


@_wrong("certificate over 16 KiB in the chain")
def _(service, node, csr, result):
    result.certificate_chain.append(b"\x30\x82\x60\x00" + bytes(0x6000))
    return _signed(service, result)


@_wrong("another site")
def _(service, node, csr, result):
    result.site = "another-site"
    return _signed(service, result)


@_wrong("no trust bundle")
def _(service, node, csr, result):
    result.ClearField("trust_bundle")
    return _signed(service, result)


@_wrong("trust bundle with a damaged signature")
def _(service, node, csr, result):
    signature = result.trust_bundle.signatures[0]
    signature.sig = signature.sig[:-1] + bytes([signature.sig[-1] ^ 1])
    return _signed(service, result)


@_wrong("trust bundle by another signer")
def _(service, node, csr, result):
    payload = service.trust_bundle().SerializeToString()
    result.trust_bundle.CopyFrom(dsse.sign(payload, "trust-bundle", pki.new_key()))
    return _signed(service, result)


@_wrong("trust bundle signed for another purpose")
def _(service, node, csr, result):
    payload = service.trust_bundle().SerializeToString()
    result.trust_bundle.CopyFrom(dsse.sign(payload, "node-spec", service.signing_key))
    return _signed(service, result)


@_wrong("trust bundle of garbage")
def _(service, node, csr, result):
    result.trust_bundle.CopyFrom(dsse.sign(b"\xff" * 9, "trust-bundle", service.signing_key))
    return _signed(service, result)


@_wrong("trust bundle without node CAs")
def _(service, node, csr, result):
    payload = service.trust_bundle(node_cas=[]).SerializeToString()
    result.trust_bundle.CopyFrom(dsse.sign(payload, "trust-bundle", service.signing_key))
    return _signed(service, result)


@_odd("fields younger than the reader")
def _(service, node, csr, result):
    # Field 1000, varint 7; field 1001, four bytes.
    unknown = b"\xc0\x3e\x07" + b"\xca\x3e\x04\x01\x02\x03\x04"
    envelope = dsse.sign(result.SerializeToString() + unknown, "join-response", service.signing_key)
    return _response(envelope) + unknown


@_odd("an old and a new node CA side by side")
def _(service, node, csr, result):
    cas = [pki.CA("next node CA").certificate, service.node_ca.certificate]
    payload = service.trust_bundle(node_cas=cas).SerializeToString()
    result.trust_bundle.CopyFrom(dsse.sign(payload, "trust-bundle", service.signing_key))
    return _signed(service, result)


@_odd("a second signature of a key not known")
def _(service, node, csr, result):
    envelope = dsse.sign(result.SerializeToString(), "join-response", pki.new_key())
    own = dsse.sign(result.SerializeToString(), "join-response", service.signing_key)
    envelope.signatures.extend(own.signatures)
    return _response(envelope)


@_odd("the node CA at the end of the chain")
def _(service, node, csr, result):
    result.certificate_chain.append(pki.der(service.node_ca.certificate))
    return _signed(service, result)
