use bcd::crypto::certificate::Certificate;
use bcd::crypto::key::NodeKey;
use bcd::proto::{Envelope, JoinResult};
use bcd::wire::grpc::Code;

use super::super::Call;
use super::super::tests::{Fleet, HOUR, NOW};
use super::*;

const DAY: i64 = 24 * HOUR;

/// A request of `node_id` for the key `next`, signed with `present`.
fn request(node_id: &str, present: &NodeKey, next: &NodeKey, purpose: Purpose) -> Vec<u8> {
    let asking = Asking {
        node_id: node_id.to_owned(),
        csr: csr::build(next).unwrap(),
        time_ms: 1,
        daemon_version: "0.1.0".to_owned(),
    };
    signed(envelope::sign(asking.encode_to_vec(), purpose, present).unwrap())
}

fn signed(envelope: Envelope) -> Vec<u8> {
    RenewRequest {
        signed: Some(envelope),
    }
    .encode_to_vec()
}

impl Fleet {
    /// A node that has joined: its id and key.
    fn joined(&mut self) -> (String, NodeKey) {
        let (_, token) = self.token(false);
        let draft = self.draft(&token);
        let result = self.join(&draft, NOW).unwrap();
        (result.node_id, draft.key)
    }

    fn renew(
        &mut self,
        node_id: &str,
        present: &NodeKey,
        next: &NodeKey,
        now_ms: i64,
    ) -> Result<JoinResult, Refusal> {
        let bytes = request(node_id, present, next, Purpose::Renewal);
        let answered = self.service.ask(Call::Renew, &bytes, "192.0.2.1", now_ms)?;
        Ok(self.verified(&answered.response))
    }

    fn outcomes(&self, node_id: &str) -> Vec<&'static str> {
        let renewals = self.store().renewals(node_id, 9).unwrap();
        renewals.iter().map(|renewal| renewal.outcome).collect()
    }
}

fn key() -> NodeKey {
    NodeKey::generate().unwrap()
}

#[test]
fn a_renewal_gives_the_same_node_a_certificate_for_its_new_key() {
    let mut fleet = Fleet::new();
    let (node_id, old) = fleet.joined();
    let new = key();
    let result = fleet.renew(&node_id, &old, &new, NOW + 20 * DAY).unwrap();
    assert_eq!(result.node_id, node_id);
    assert_eq!(
        (result.site.as_str(), result.pool.as_str()),
        ("fsn1", "pool_a")
    );
    let leaf = Certificate::parse(&result.certificate_chain[0]).unwrap();
    assert_eq!(leaf.spki, new.spki_der());
    assert_eq!(leaf.uri_names, [result.spiffe_id.as_str()]);
    assert_eq!(leaf.not_after, (NOW + 50 * DAY) / 1000);
    assert!(result.trust_bundle.is_some());
    assert_eq!(result.server_time_ms, NOW + 20 * DAY);
    assert_eq!(fleet.outcomes(&node_id), ["issued"]);
}

#[test]
fn a_lost_reply_to_a_renewal_is_given_again_after_a_crash_too() {
    let mut fleet = Fleet::new();
    let (node_id, old) = fleet.joined();
    let new = key();
    let first = fleet.renew(&node_id, &old, &new, NOW + DAY).unwrap();
    fleet.restart();
    let again = fleet.renew(&node_id, &old, &new, NOW + 2 * DAY).unwrap();
    assert_eq!(first.certificate_chain, again.certificate_chain);
    assert_ne!(first.csr_sha256, again.csr_sha256);
    assert_eq!(fleet.outcomes(&node_id), ["reissued", "issued"]);
    // What is left of it would be too little: a new one, for the same key.
    let late = fleet.renew(&node_id, &old, &new, NOW + 17 * DAY).unwrap();
    assert_ne!(first.certificate_chain, late.certificate_chain);
}

#[test]
fn both_keys_speak_for_the_node_until_the_new_one_has() {
    let mut fleet = Fleet::new();
    let (node_id, first) = fleet.joined();
    let (second, third) = (key(), key());
    fleet.renew(&node_id, &first, &second, NOW).unwrap();
    // The second key signs: the node has it, and the first is over.
    fleet.renew(&node_id, &second, &third, NOW).unwrap();
    let refused = fleet.renew(&node_id, &first, &key(), NOW).unwrap_err();
    assert!(matches!(refused, Refusal::Replaced), "{refused}");
    let keys = fleet.store().node_keys(&node_id).unwrap().unwrap();
    assert_eq!(keys.spki_sha256, second.pin().0);
    assert_eq!(keys.next.unwrap().spki_sha256, third.pin().0);
    // A session with the third ends the second.
    assert!(
        fleet
            .store()
            .promote_next(&node_id, &third.pin().0)
            .unwrap()
    );
    let refused = fleet.renew(&node_id, &second, &key(), NOW).unwrap_err();
    assert!(matches!(refused, Refusal::Replaced), "{refused}");
    fleet.renew(&node_id, &third, &key(), NOW).unwrap();
}

#[test]
fn another_new_key_takes_the_place_of_a_pending_one_and_a_replay_does_not_give_it_back() {
    let mut fleet = Fleet::new();
    let (node_id, old) = fleet.joined();
    let (lost, new) = (key(), key());
    let replayed = request(&node_id, &old, &lost, Purpose::Renewal);
    fleet
        .service
        .ask(Call::Renew, &replayed, "192.0.2.1", NOW)
        .unwrap();
    fleet.renew(&node_id, &old, &new, NOW).unwrap();
    let refused = fleet.service.ask(Call::Renew, &replayed, "192.0.2.66", NOW);
    let refused = refused.err().unwrap();
    assert!(matches!(refused, Refusal::Superseded), "{refused}");
    let store = fleet.store();
    assert!(!store.promote_next(&node_id, &lost.pin().0).unwrap());
    assert!(store.promote_next(&node_id, &new.pin().0).unwrap());
    assert_eq!(
        store.renewals(&node_id, 1).unwrap()[0].address,
        "192.0.2.66"
    );
}

#[test]
fn how_long_after_its_end_a_certificate_is_renewed_is_policy() {
    for (grace_ms, late, taken) in [
        (30 * DAY, -1, true),
        (30 * DAY, 0, true),
        (30 * DAY, 30 * DAY - 1, true),
        (30 * DAY, 30 * DAY, false),
        (0, -1, true),
        (0, 0, false),
    ] {
        let mut fleet = Fleet::new();
        fleet.service.policy.renewal_grace_ms = grace_ms;
        let (node_id, old) = fleet.joined();
        let answer = fleet.renew(&node_id, &old, &key(), NOW + 30 * DAY + late);
        assert_eq!(answer.is_ok(), taken, "{grace_ms} {late}");
        if let Err(refusal) = answer {
            assert_eq!(refusal.code(), Code::PermissionDenied);
            let text = refusal.to_string();
            assert!(text.contains("bcd join --reset --yes"), "{text}");
            assert_eq!(fleet.outcomes(&node_id), ["refused"]);
        }
    }
}

#[test]
fn a_deleted_node_is_not_renewed_and_told_so() {
    let mut fleet = Fleet::new();
    let (node_id, old) = fleet.joined();
    fleet.store().delete_node(&node_id, NOW).unwrap();
    let refused = fleet.renew(&node_id, &old, &key(), NOW).unwrap_err();
    assert!(matches!(refused, Refusal::Deleted), "{refused}");
    // A stranger learns nothing of it.
    let refused = fleet.renew(&node_id, &key(), &key(), NOW).unwrap_err();
    assert!(matches!(refused, Refusal::UnknownNode), "{refused}");
}

#[test]
fn what_no_key_of_the_node_signed_is_refused_and_not_kept() {
    let mut fleet = Fleet::new();
    let (node_id, old) = fleet.joined();
    let (other_id, _) = fleet.joined();
    let stranger = key();
    let mut broken = envelope::sign(
        Asking {
            node_id: node_id.clone(),
            csr: csr::build(&stranger).unwrap(),
            ..Asking::default()
        }
        .encode_to_vec(),
        Purpose::Renewal,
        &old,
    )
    .unwrap();
    let last = broken.payload.len() - 1;
    broken.payload[last] ^= 1;
    for (bytes, code) in [
        (
            request(&node_id, &stranger, &stranger, Purpose::Renewal),
            Code::PermissionDenied,
        ),
        (
            request(&other_id, &old, &stranger, Purpose::Renewal),
            Code::PermissionDenied,
        ),
        (
            request("node_unknown", &old, &stranger, Purpose::Renewal),
            Code::PermissionDenied,
        ),
        (
            request(&node_id, &old, &stranger, Purpose::JoinResponse),
            Code::Unauthenticated,
        ),
        (signed(broken), Code::Unauthenticated),
        (signed(Envelope::default()), Code::Unauthenticated),
        (Vec::new(), Code::Unauthenticated),
        (vec![0xff], Code::InvalidArgument),
        (vec![0; REQUEST_MAX + 1], Code::InvalidArgument),
    ] {
        let refusal = fleet.service.ask(Call::Renew, &bytes, "192.0.2.1", NOW);
        assert_eq!(refusal.err().unwrap().code(), code);
    }
    assert!(fleet.outcomes(&node_id).is_empty());
    assert!(fleet.outcomes(&other_id).is_empty());
    let same = fleet.renew(&node_id, &old, &old, NOW).unwrap_err();
    assert!(matches!(same, Refusal::SameKey), "{same}");
}

#[test]
fn a_csr_that_does_not_hold_or_is_too_long_is_refused() {
    let mut fleet = Fleet::new();
    let (node_id, old) = fleet.joined();
    for csr in [Vec::new(), vec![0x30; 100], vec![0; CSR_MAX + 1]] {
        let asking = Asking {
            node_id: node_id.clone(),
            csr,
            ..Asking::default()
        };
        let signed =
            signed(envelope::sign(asking.encode_to_vec(), Purpose::Renewal, &old).unwrap());
        let refusal = fleet.service.ask(Call::Renew, &signed, "192.0.2.1", NOW);
        assert_eq!(refusal.err().unwrap().code(), Code::InvalidArgument);
    }
}

#[test]
fn the_signed_time_holds_for_its_purpose_under_the_signing_key() {
    let fleet = Fleet::new();
    let signed = fleet.service.server_time(NOW).unwrap();
    let pins = [fleet.public.pins().join_signing];
    let payload = envelope::verify_pinned(&signed, Purpose::ServerTime, &pins).unwrap();
    let time = bcd::proto::ServerTime::decode(payload).unwrap();
    assert_eq!(time.time_ms, NOW);
    assert!(envelope::verify_pinned(&signed, Purpose::TrustBundle, &pins).is_err());
}
