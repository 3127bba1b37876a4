"""The attestor provisioned (docs/protocol.md 5.8), both ways: bcd's OS at the peer, and a ramdisk and an OS in Python at ours."""

import base64
import hashlib
import json

import grpc
import pytest

from . import dsse, pki, protos
from .node import Journal
from .test_python_node import node_of

MAC = "52:54:00:00:00:01"
SERIAL, UUID = "SN-1", "4c4c4544-0042-3510-8052-c4c04f4e3132"


def left(machine):
    return machine.config.with_name("provisioned.key")


def test_an_os_joins_with_what_its_deploy_left_and_keeps_nothing_of_it(peer, machine):
    left(machine).write_text(peer.join_service.provision(pool="gpu"))
    left(machine).chmod(0o600)
    done = machine.join(None, "--attestor", "provisioned")
    assert done.returncode == 0, done.stderr
    identity = machine.check_identity()
    assert (identity["pool"], identity["role"]) == ("gpu", "node")
    (request,) = peer.join_service.requests
    assert request.attestor == "provisioned" and not request.HasField("sealed_token")
    assert not left(machine).exists()
    # It runs at every boot.
    done = machine.join(None, "--attestor", "provisioned")
    assert done.returncode == 0 and "already joined" in done.stdout, done.stderr


def test_what_was_left_stays_until_the_join_is_done_and_is_good_for_one_key(peer, make_machine):
    machine, thief = make_machine(), make_machine()
    for one in (machine, thief):
        left(one).touch(0o600)
    left(machine).write_text(peer.join_service.provision())
    left(thief).write_text(left(machine).read_text())
    peer.faults.statuses = [grpc.StatusCode.INTERNAL]
    assert machine.join(None, "--attestor", "provisioned").returncode == 1
    assert machine.join(None, "--attestor", "provisioned").returncode == 0
    refused = thief.join(None, "--attestor", "provisioned")
    assert refused.returncode == 1 and "another key" in refused.stderr, refused.stderr
    assert left(thief).exists() and not (thief.data / "identity.json").exists()


@pytest.mark.parametrize("text", [None, "", "ord_1\n", "x" * 2000])
def test_without_a_key_it_says_what_to_do_and_asks_nobody(peer, machine, text):
    if text is not None:
        left(machine).write_text(text)
    peer.frontend.connections.clear()
    done = machine.join(None, "--attestor", "provisioned")
    assert done.returncode == 2 and "machines deploy --join" in done.stderr, done.stderr
    assert peer.frontend.connections == []


class Ramdisk:
    """A machine in its ramdisk, that joined by discovery and takes an order."""

    def __init__(self, dev, *flags):
        self.dev, self.journal = dev, Journal()
        line = dict(part.split("=", 1) for part in dev.run("machines", "boot-params", "--mac", MAC).stdout.split() if "=" in part)
        self.node = node_of(dev)
        packed = line["bc.assertion"]
        assertion = protos.Envelope.FromString(base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)))
        claims = protos.HardwareClaims(hostname="ramdisk", boot_mac=MAC, macs=[MAC], system_serial=SERIAL, system_uuid=UUID)
        request = self.node.request(
            line["bc.token"], attestor="discovery", role=protos.Role.Value("ROLE_RAMDISK"), site=line["bc.site"], claims=claims,
            discovery_assertion=assertion)
        self.site = line["bc.site"]
        self.node.result = self.node.verify(self.node.call_join(request).signed, request)
        self.session = self.node.session(journal=self.journal, capabilities=["command.deploy.image"])
        self.session.welcome()
        self.session.heartbeat(1)
        disk = protos.facts.Disk(stable_name="virtio-a", kernel_name="vda", serial="A", size_bytes=1 << 30)
        self.event(facts=protos.facts.Facts(hostname="ramdisk", disks=[disk]))

    def event(self, **body):
        self.session.event(self.journal.append(**body))
        self.session.acknowledged(self.journal.position)

    def deploy(self, *flags, outcome=1):
        """Does what it is ordered to, and leaves a key: the order's id and the key."""
        ordered = json.loads(self.dev.run(
            "machines", "deploy", MAC, "--disk", "virtio-a", "--image", "https://h/x", *flags, "--yes", "--json").stdout)
        command = self.session.wait("command")
        assert command.id == ordered["command"]["id"]
        params = protos.deploy.DeployImageParams.FromString(command.params)
        update = {"id": command.id, "state": protos.CommandState.Value("COMMAND_STATE_RUNNING")}
        self.event(command_update=protos.CommandUpdate(**update))
        claim = protos.deploy.OrderClaim(order_id=params.order_id, command_id=command.id, nonce=b"n" * 16)
        self.session.send(protos.NodeFrame(order_claim=claim))
        assert self.session.wait("order_answer").granted
        key = pki.new_key()
        head = protos.deploy.ReceiptHead(
            order_id=params.order_id, command_id=command.id, node_id=self.node.result.node_id, system_serial=SERIAL,
            system_uuid=UUID, finished_ms=pki.now_ms())
        receipt = protos.deploy.DeployReceipt(
            head=head, outcome=outcome, join_key_sha256=hashlib.sha256(pki.spki(key)).digest())
        signed = dsse.sign(receipt.SerializeToString(), "deploy-receipt", self.node.key)
        bundle = protos.TrustBundle.FromString(self.node.result.trust_bundle.payload)
        chain = [*self.node.result.certificate_chain, *bundle.node_cas]
        self.event(receipt=protos.deploy.SignedReceipt(envelope=signed, certificate_chain=chain))
        update["state"] = protos.CommandState.Value("COMMAND_STATE_SUCCEEDED")
        self.event(command_update=protos.CommandUpdate(**update))
        return params.order_id, key


def os_joins(dev, order, key, **changes):
    node = node_of(dev)
    claims = protos.HardwareClaims(hostname="os", system_serial=SERIAL, system_uuid=UUID)
    request = node.provisioned(order, key, **({"claims": claims} | changes))
    node.result = node.verify(node.call_join(request).signed, request)
    return node, request


def test_an_os_in_python_joins_by_the_receipt_of_its_ramdisk_and_is_the_same_node_when_deployed_again(dev):
    ramdisk = Ramdisk(dev)
    order, key = ramdisk.deploy("--join", "--pool", "gpu")
    node, request = os_joins(dev, order, key)
    assert (node.result.pool, node.result.site, node.result.role) == ("gpu", ramdisk.site, protos.Role.Value("ROLE_NODE"))
    again = node.verify(node.call_join(request).signed, request)
    assert again.certificate_chain == node.result.certificate_chain
    session = node.session()
    assert session.receive().welcome.protocol_version == 1
    # Somebody read the disk later.
    for changes in ({}, {"csr": request.csr}):
        with pytest.raises(grpc.RpcError) as refused:
            os_joins(dev, order, key, **changes)
        assert refused.value.code() in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)
    # Installed anew, the machine is who it was, and its old key is none any more.
    second, _ = os_joins(dev, *ramdisk.deploy("--join"))
    assert second.result.node_id == node.result.node_id
    assert node.session().ended() == grpc.StatusCode.PERMISSION_DENIED
    assert second.session().receive().welcome.protocol_version == 1


def test_a_ramdisk_makes_no_node_that_nobody_ordered(dev):
    ramdisk = Ramdisk(dev)
    elsewhere = {"claims": protos.HardwareClaims(system_serial="SN-2", system_uuid=UUID)}
    for flags, outcome, changes, code, says in [
            ([], 1, {}, "PERMISSION_DENIED", "did not say"),
            (["--hostname", "n"], 1, {}, "PERMISSION_DENIED", "did not say"),
            (["--join"], 2, {}, "UNAUTHENTICATED", "no deploy"),
            (["--join"], 1, elsewhere, "PERMISSION_DENIED", "another machine"),
            (["--join"], 1, {"role": protos.Role.Value("ROLE_SITE")}, "PERMISSION_DENIED", "as a node")]:
        with pytest.raises(grpc.RpcError) as refused:
            os_joins(dev, *ramdisk.deploy(*flags, outcome=outcome), **changes)
        assert refused.value.code().name == code and says in refused.value.details(), refused.value.details()
    order, _ = ramdisk.deploy("--join")
    with pytest.raises(grpc.RpcError) as refused:
        os_joins(dev, order, pki.new_key())
    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
