use bcd::config::mac::Mac;
use bcd::crypto::csr;
use bcd::crypto::key::NodeKey;
use bcd::proto::{HardwareClaims, JoinRequest, OsFiles, SignedReceipt};
use bcd::wire::grpc::Code;

use super::super::tests::{Fleet, HOUR, NOW};
use super::super::{Answered, Call};
use super::*;
use crate::store::NewCommand;

const ORDER: &str = "ord_01kb7w3x9qn5v8m2r6t4y0sdfh";
const OTHER: &str = "ord_01kb7w3x9qn5v8m2r6t4y0sdfj";
const MAC: Mac = Mac([0x3c, 0xec, 0xef, 0, 0, 1]);

/// A machine whose ramdisk deploys.
struct Machine {
    fleet: Fleet,
    ramdisk: NodeKey,
    node_id: String,
    /// What the ramdisk left on the disk.
    left: NodeKey,
}

impl Machine {
    fn new() -> Self {
        let mut fleet = Fleet::new();
        let (_, token) = fleet.token(false);
        let draft = fleet.draft(&token);
        let joined = fleet
            .service
            .ask(Call::Join, &fleet.encode(&draft), "a", NOW)
            .unwrap();
        let store = fleet.store();
        let mut node = store.node(&joined.node_id).unwrap().unwrap();
        node.role = Role::RAMDISK.0;
        node.pool = "discovered".to_owned();
        store.put_node(&node, &[]).unwrap();
        Self {
            fleet,
            ramdisk: draft.key,
            node_id: joined.node_id,
            left: NodeKey::generate().unwrap(),
        }
    }

    fn order(&self, order: &str, files: Option<OsFiles>) {
        let params = DeployImageParams {
            order_id: order.to_owned(),
            files,
            ..DeployImageParams::default()
        };
        let command = NewCommand {
            id: order.replace("ord", "cmd"),
            node_id: self.node_id.clone(),
            kind: "deploy.image".to_owned(),
            params: params.encode_to_vec(),
            deadline_ms: NOW + HOUR,
            created_ms: NOW,
        };
        self.fleet
            .store()
            .add_order(order, MAC, &command, &[])
            .unwrap();
    }

    fn receipt(&self, order: &str, change: impl FnOnce(&mut DeployReceipt)) {
        let mut receipt = DeployReceipt {
            head: Some(ReceiptHead {
                order_id: order.to_owned(),
                command_id: order.replace("ord", "cmd"),
                node_id: self.node_id.clone(),
                system_uuid: "4c4c4544-0042".to_owned(),
                finished_ms: NOW,
                ..ReceiptHead::default()
            }),
            outcome: DeployOutcome::DEPLOYED,
            join_key_sha256: self.left.pin().0.to_vec(),
            ..DeployReceipt::default()
        };
        change(&mut receipt);
        self.sworn(&receipt, "ramdisk", Purpose::DeployReceipt);
    }

    fn sworn(&self, receipt: &DeployReceipt, role: &str, purpose: Purpose) {
        let keys = self.fleet.service.keys();
        let name = keys.spiffe_id(role, &self.node_id);
        let issued = keys
            .issue(&self.ramdisk.spki_der(), &name, 3600, NOW)
            .unwrap();
        let signed = SignedReceipt {
            envelope: Some(
                envelope::sign(receipt.encode_to_vec(), purpose, &self.ramdisk).unwrap(),
            ),
            certificate_chain: [issued.chain, vec![self.fleet.public.node_ca.clone()]].concat(),
        };
        assert!(
            self.fleet
                .store()
                .note_receipt(&self.node_id, &signed, NOW)
                .unwrap()
        );
    }

    fn request(&self, key: &NodeKey, change: impl FnOnce(&mut JoinRequest)) -> Vec<u8> {
        let csr = csr::build(key).unwrap();
        let left = NodeKey::from_pkcs8_der(self.left.pkcs8_der()).unwrap();
        let left = bcd::attest::provisioned::Provisioned::new(ORDER, left);
        let mut request = JoinRequest {
            attestor: "provisioned".to_owned(),
            role: Role::NODE,
            provisioned_proof: Some(left.prove(&csr).unwrap()),
            csr,
            claims: Some(HardwareClaims {
                hostname: "os".to_owned(),
                system_uuid: "4C4C4544-0042".to_owned(),
                ..HardwareClaims::default()
            }),
            ..JoinRequest::default()
        };
        change(&mut request);
        request.encode_to_vec()
    }

    fn ask(&mut self, key: &NodeKey, now_ms: i64) -> Result<Answered, Refusal> {
        let request = self.request(key, |_| {});
        self.fleet
            .service
            .ask(Call::Join, &request, "10.0.0.1", now_ms)
    }

    fn refused(&mut self, request: &[u8], now_ms: i64) -> (Code, String) {
        let asked = self
            .fleet
            .service
            .ask(Call::Join, request, "10.0.0.1", now_ms);
        let refusal = asked.err().unwrap();
        assert!(!refusal.to_string().contains('\n'));
        (refusal.code(), refusal.to_string())
    }
}

fn joining(pool: &str) -> Option<OsFiles> {
    Some(OsFiles {
        join: true,
        pool: pool.to_owned(),
        ..OsFiles::default()
    })
}

fn key() -> NodeKey {
    NodeKey::generate().unwrap()
}

#[test]
fn an_os_joins_with_the_key_of_its_deploy_once_and_its_machine_stays_who_it_is() {
    let mut machine = Machine::new();
    machine.order(ORDER, joining("gpu"));
    machine.receipt(ORDER, |_| {});
    let first = key();
    let joined = machine.ask(&first, NOW).unwrap();
    assert_eq!(joined.outcome, "issued");
    let node = machine
        .fleet
        .store()
        .node(&joined.node_id)
        .unwrap()
        .unwrap();
    assert_eq!(
        (node.role, node.pool.as_str(), node.site.as_str()),
        (Role::NODE.0, "gpu", "fsn1")
    );
    assert_eq!(node.token_id, ORDER);
    assert_ne!(node.id, machine.node_id);
    // A lost answer is given again, also after a restart; to no other key.
    machine.fleet.restart();
    let again = machine.ask(&first, NOW + HOUR).unwrap();
    assert_eq!(
        (again.outcome, &again.node_id),
        ("reissued", &joined.node_id)
    );
    let stolen = machine.request(&key(), |_| {});
    let (code, said) = machine.refused(&stolen, NOW + HOUR);
    assert_eq!(code, Code::PermissionDenied);
    assert!(said.contains("another key"), "{said}");
    let attempts = machine.fleet.store().attempts(ORDER, 10).unwrap();
    let outcomes: Vec<_> = attempts.iter().map(|attempt| attempt.outcome).collect();
    assert_eq!(outcomes, ["refused", "reissued", "issued"]);

    // Deployed anew, with another key: the same node, which knows the new one alone.
    machine.left = key();
    machine.order(OTHER, joining(""));
    machine.receipt(OTHER, |_| {});
    let second = key();
    let csr = csr::build(&second).unwrap();
    let left = NodeKey::from_pkcs8_der(machine.left.pkcs8_der()).unwrap();
    let proof = bcd::attest::provisioned::Provisioned::new(OTHER, left)
        .prove(&csr)
        .unwrap();
    let request = machine.request(&second, |request| {
        request.csr = csr;
        request.provisioned_proof = Some(proof);
        request.node_id.clone_from(&joined.node_id);
    });
    let reclaimed = machine
        .fleet
        .service
        .ask(Call::Join, &request, "a", NOW + 1)
        .unwrap();
    assert_eq!(reclaimed.node_id, joined.node_id);
    let node = machine
        .fleet
        .store()
        .node(&joined.node_id)
        .unwrap()
        .unwrap();
    assert_eq!(
        (node.spki_sha256, node.pool.as_str()),
        (second.pin().0, "discovered")
    );
}

#[test]
fn what_nobody_ordered_or_no_ramdisk_swore_to_joins_nothing() {
    let deploy = |receipt: &dyn Fn(&mut DeployReceipt), files: Option<OsFiles>| {
        let mut machine = Machine::new();
        machine.order(ORDER, files);
        machine.receipt(ORDER, receipt);
        let request = machine.request(&key(), |_| {});
        machine.refused(&request, NOW)
    };
    let same = |_: &mut DeployReceipt| {};
    for (found, code, says) in [
        (deploy(&same, None), Code::PermissionDenied, "did not say"),
        (
            deploy(&same, Some(OsFiles::default())),
            Code::PermissionDenied,
            "did not say",
        ),
        (
            deploy(&|r| r.outcome = DeployOutcome::FAILED, joining("")),
            Code::Unauthenticated,
            "no deploy",
        ),
        (
            deploy(&|r| r.join_key_sha256.clear(), joining("")),
            Code::Unauthenticated,
            "no deploy",
        ),
        (
            deploy(&|r| r.join_key_sha256 = vec![7; 32], joining("")),
            Code::Unauthenticated,
            "no deploy",
        ),
        (
            deploy(
                &|r| r.head.as_mut().unwrap().system_uuid = "x".to_owned(),
                joining(""),
            ),
            Code::PermissionDenied,
            "another machine",
        ),
    ] {
        assert_eq!(found.0, code, "{}", found.1);
        assert!(found.1.contains(says), "{}", found.1);
    }
    // No receipt, no order, a receipt of a node that is no ramdisk.
    let mut machine = Machine::new();
    let request = machine.request(&key(), |_| {});
    assert_eq!(machine.refused(&request, NOW).0, Code::Unauthenticated);
    machine.order(ORDER, joining(""));
    assert!(machine.refused(&request, NOW).1.contains("never came"));
    let sworn = DeployReceipt {
        head: Some(ReceiptHead {
            order_id: ORDER.to_owned(),
            command_id: ORDER.replace("ord", "cmd"),
            node_id: machine.node_id.clone(),
            finished_ms: NOW,
            ..ReceiptHead::default()
        }),
        outcome: DeployOutcome::DEPLOYED,
        join_key_sha256: machine.left.pin().0.to_vec(),
        ..DeployReceipt::default()
    };
    machine.sworn(&sworn, "node", Purpose::DeployReceipt);
    assert_eq!(machine.refused(&request, NOW).0, Code::Unauthenticated);
}

#[test]
fn a_proof_is_for_one_request_and_for_a_time() {
    let mut machine = Machine::new();
    machine.order(ORDER, joining(""));
    machine.receipt(ORDER, |_| {});
    let other = csr::build(&key()).unwrap();
    for (request, code) in [
        // Seen on the way, and sent with a key of one's own.
        (
            machine.request(&key(), |r| r.csr = other.clone()),
            Code::Unauthenticated,
        ),
        (
            machine.request(&key(), |r| r.provisioned_proof = None),
            Code::InvalidArgument,
        ),
        (
            machine.request(&key(), |r| {
                r.provisioned_proof.as_mut().unwrap().payload.push(0)
            }),
            Code::Unauthenticated,
        ),
        (
            machine.request(&key(), |r| {
                r.provisioned_proof.as_mut().unwrap().signatures.clear()
            }),
            Code::InvalidArgument,
        ),
        (
            machine.request(&key(), |r| r.role = Role::RAMDISK),
            Code::PermissionDenied,
        ),
        (
            machine.request(&key(), |r| r.site = "hel1".to_owned()),
            Code::PermissionDenied,
        ),
        (
            machine.request(&key(), |r| r.node_id = "node_x".to_owned()),
            Code::PermissionDenied,
        ),
    ] {
        assert_eq!(machine.refused(&request, NOW).0, code);
    }
    let request = machine.request(&key(), |_| {});
    assert!(
        machine
            .refused(&request, NOW + FRESH_MS + 1)
            .1
            .contains("7 days")
    );
    // Deleting the ramdisk's node takes the word back.
    machine
        .fleet
        .store()
        .delete_node(&machine.node_id, NOW)
        .unwrap();
    assert!(machine.refused(&request, NOW).1.contains("deleted"));
}
