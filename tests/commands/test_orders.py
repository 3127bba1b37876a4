"""Orders from a gateway in strange hands: without the JoinService's word for this very command nothing is asked, nothing
is written, and it is said why."""

import hashlib

import pytest

from peer import dsse, pki, protos

# No machine has it: what goes wrong here must find no disk.
DISK = protos.deploy.DiskTarget(stable_name="no-disk-has-this-name", serial="NONE", size_bytes=1)


def wipe(order_id):
    return protos.deploy.DisksWipeParams(order_id=order_id, disks=[DISK])


def deploy(order_id):
    return protos.deploy.DeployImageParams(order_id=order_id, disk=DISK, url="https://localhost:1/image")


def boot(order_id):
    return protos.deploy.MachineBootParams(order_id=order_id, mode=protos.deploy.BootMode.Value("BOOT_MODE_KEXEC"), disk=DISK)


KINDS = {"disks.wipe": wipe, "deploy.image": deploy, "machine.boot": boot}


@pytest.fixture
def bare(make_lab, bcd):
    """A node of role ramdisk that runs; the kinds that are done on orders are among what it can do."""
    lab = make_lab(bcd, role="ramdisk")
    lab.run()
    session = lab.until("a session", lab.session)
    assert {f"command.{kind}" for kind in KINDS} <= set(session.hello.capabilities)
    return lab


def signed(lab, of="disks.wipe", *, key=None, purpose="order", **changes):
    """A command, and an order for it that the JoinService signed, but for `changes` to what is in it."""
    id, order_id = pki.ulid("cmd"), pki.ulid("ord")
    params = KINDS[of](order_id).SerializeToString()
    now = pki.now_ms()
    order = protos.deploy.Order(**{
        "order_id": order_id, "command_id": id, "kind": of, "params_sha256": hashlib.sha256(params).digest(),
        "node_id": lab.node_id, "made_ms": now, "expires_ms": now + 60_000} | changes)
    envelope = dsse.sign(order.SerializeToString(), purpose, key or lab.peer.join_service.signing_key)
    return {"kind": of, "params": params, "id": id, "order": envelope}


def end(lab, command):
    """How the command ends: its reason, and what is said."""
    id = lab.command(**command)
    lab.give(lab.session())
    final = lab.done(id)
    assert final.message.isprintable() and [state for state, _ in lab.states(id)] == ["RUNNING", "FAILED"]
    return final.reason, final.message


def claims(lab):
    return lab.session().of_kind("order_claim")


def receipts(lab):
    return lab.session().told("receipt")


def test_a_signed_order_is_claimed_and_the_work_done_when_it_is_granted(bare):
    command = signed(bare)
    id = bare.command(**command)
    bare.give(bare.session(), repeat=3)
    claim = bare.until("the claim", lambda: claims(bare))[0]
    order_id = protos.deploy.DisksWipeParams.FromString(command["params"]).order_id
    assert (claim.order_id, claim.command_id, len(claim.nonce)) == (order_id, id, 16)
    answer = protos.deploy.OrderAnswer(order_id=order_id, nonce=claim.nonce, granted=True)
    bare.session().send(protos.GatewayFrame(order_answer=answer))
    assert bare.done(id).reason == "NotWiped"
    told = receipts(bare)
    disk = protos.deploy.WipeReceipt.FromString(told[0].envelope.payload).disks[0]
    assert (len(told), disk.reason, len(disk.attempts)) == (1, "DiskNotFound", 0)
    # Granted or not, the same command is not run again, and the order is good for no other.
    bare.give(bare.session(), repeat=3)
    reason, message = end(bare, command | {"id": pki.ulid("cmd")})
    assert reason == "OrderMismatch" and "another command" in message, message
    assert {claim.nonce for claim in claims(bare)} == {claim.nonce} and len(receipts(bare)) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_join_service_did_not_sign_for_this_very_command_is_refused_and_nothing_asked(kind, bare, make_lab, bcd):
    other = make_lab(bcd, role="ramdisk")
    stranger, hour, day = pki.new_key(), 3_600_000, 86_400_000
    now = pki.now_ms()

    def with_order(command, change):
        change(command["order"])
        return command

    def flipped(envelope):
        envelope.payload = envelope.payload[:-1] + bytes([envelope.payload[-1] ^ 1])

    def borrowed(envelope):
        true = dsse.sign(b"", "order", bare.peer.join_service.signing_key).signatures[0]
        envelope.signatures[0].keyid, envelope.signatures[0].public_key = true.keyid, true.public_key

    good = signed(bare, kind)
    params = KINDS[kind](pki.ulid("ord")).SerializeToString()
    tried = [
        (good | {"order": None}, "OrderUnsigned", "without a signed order"),
        (good | {"id": pki.ulid("cmd"), "order": protos.Envelope()}, "OrderUnsigned", "not signed by"),
        (signed(bare, kind, key=stranger), "OrderUnsigned", "not signed by"),
        (with_order(signed(bare, kind, key=stranger), borrowed), "OrderUnsigned", "does not hold"),
        (with_order(signed(bare, kind), flipped), "OrderUnsigned", "does not hold"),
        # A node's own certificate opens its session, and signs no order.
        (signed(bare, kind, key=bare.key()), "OrderUnsigned", "not signed by"),
        (signed(bare, kind, purpose="node-spec"), "OrderUnsigned", "node-spec"),
        (signed(other, kind), "OrderMismatch", "another node"),
        (signed(bare, kind) | {"id": pki.ulid("cmd")}, "OrderMismatch", "another command"),
        (signed(bare, kind) | {"params": params}, "OrderMismatch", "other params"),
        (signed(bare, kind, kind="node.reboot"), "OrderMismatch", "another kind"),
        (signed(bare, kind, expires_ms=now - 1), "OrderExpired", "trusted time"),
        (signed(bare, kind, made_ms=now - 2 * hour, expires_ms=now - hour), "OrderExpired", "s ago"),
        (signed(bare, kind, expires_ms=now + 2 * day), "OrderMismatch", "more than a day"),
    ]
    for command, wanted, says in tried:
        reason, message = end(bare, command)
        assert reason == wanted and says in message, (reason, message)
        assert "nothing was written" in message and "make another order" in message, message
    if kind == "disks.wipe":
        reason, message = end(bare, signed(bare, order_id=pki.ulid("ord")))
        assert reason == "OrderMismatch" and "another order" in message, (reason, message)
    assert claims(bare) == [] and receipts(bare) == []
