use bcd::crypto::key::NodeKey;
use bcd::proto::Role;
use bcd::wire::grpc::Code;

use super::super::tests::{Draft, Fleet, HOUR, NOW};
use super::super::token;
use super::*;
use crate::store::{NewSiteKey, NewToken};

const MAC: Mac = Mac([0x3c, 0xec, 0xef, 0, 0, 1]);
const OTHER: Mac = Mac([0x3c, 0xec, 0xef, 0, 0, 2]);

/// A site whose agent has just booted a machine.
struct Boot {
    fleet: Fleet,
    site_key: NodeKey,
    token_id: String,
    token: Vec<u8>,
}

fn register(fleet: &Fleet, key: &NodeKey, site: &str) {
    fleet
        .store()
        .add_site_key(&NewSiteKey {
            spki_sha256: key.pin().0,
            spki: &key.spki_der(),
            site,
            name: "",
            added_at_ms: NOW,
        })
        .unwrap();
}

fn discovery_token(fleet: &Fleet) -> (String, Vec<u8>) {
    let minted = token::mint(NOW);
    fleet
        .store()
        .add_token(&NewToken {
            id: &minted.id,
            digest: minted.digest,
            role: Role::RAMDISK.0,
            pool: "discovered",
            site: "fsn1",
            mac: Some(MAC),
            allow_reclaim: false,
            created_at_ms: NOW,
            expires_at_ms: NOW + HOUR,
        })
        .unwrap();
    (minted.id, minted.token.as_bytes().to_vec())
}

impl Boot {
    fn new() -> Self {
        let fleet = Fleet::new();
        let site_key = NodeKey::generate().unwrap();
        register(&fleet, &site_key, "fsn1");
        let (token_id, token) = discovery_token(&fleet);
        Self {
            fleet,
            site_key,
            token_id,
            token,
        }
    }

    fn assertion(&self) -> DiscoveryAssertion {
        DiscoveryAssertion {
            site: "fsn1".to_owned(),
            mac: MAC.0.to_vec(),
            token_id: self.token_id.clone(),
            signed_at_ms: NOW,
        }
    }

    /// What the machine sends, before a test changes it.
    fn draft(&self) -> Draft {
        let mut draft = self.fleet.draft(&self.token);
        draft.request.attestor = "discovery".to_owned();
        draft.request.role = Role::RAMDISK;
        draft.request.discovery_assertion = Some(sign(&self.assertion(), &self.site_key).unwrap());
        let claims = draft.request.claims.as_mut().unwrap();
        claims.macs = vec![OTHER.to_string(), MAC.to_string()];
        claims.boot_mac = MAC.to_string();
        draft
    }

    fn refusal(&mut self, draft: &Draft, now_ms: i64) -> Refusal {
        self.fleet.refusal(draft, now_ms)
    }

    /// The refusal of an assertion that differs in one thing.
    fn refusal_of(&mut self, change: impl FnOnce(&mut DiscoveryAssertion)) -> Refusal {
        let mut assertion = self.assertion();
        change(&mut assertion);
        let mut draft = self.draft();
        draft.request.discovery_assertion = Some(sign(&assertion, &self.site_key).unwrap());
        self.refusal(&draft, NOW)
    }
}

#[test]
fn a_machine_that_its_site_vouches_for_joins_as_a_ramdisk() {
    let mut boot = Boot::new();
    let draft = boot.draft();
    let result = boot.fleet.join(&draft, NOW + 60_000).unwrap();
    assert_eq!(result.role, Role::RAMDISK);
    assert!(result.spiffe_id.contains("/ramdisk/node_"));
    assert_eq!((&*result.pool, &*result.site), ("discovered", "fsn1"));
    let machines = boot.fleet.store().machines(Some(MAC)).unwrap();
    assert_eq!(machines.len(), 1);
    assert_eq!(
        (machines[0].boots, &machines[0].node_id),
        (1, &result.node_id)
    );
    assert!(boot.fleet.store().machines(Some(OTHER)).unwrap().is_empty());
}

#[test]
fn a_lost_reply_is_given_again_after_the_assertion_has_grown_stale() {
    let mut boot = Boot::new();
    let draft = boot.draft();
    let first = boot.fleet.join(&draft, NOW).unwrap();
    let again = boot.fleet.join(&draft, NOW + HOUR).unwrap();
    assert_eq!(again.certificate_chain, first.certificate_chain);
}

#[test]
fn the_next_boot_needs_another_token() {
    let mut boot = Boot::new();
    let draft = boot.draft();
    boot.fleet.join(&draft, NOW).unwrap();
    // Another key: the ramdisk's tmpfs is gone.
    let again = boot.draft();
    let refusal = boot.refusal(&again, NOW + 1);
    assert!(matches!(refusal, Refusal::UsedByOtherBoot), "{refusal}");
    assert_eq!(refusal.code(), Code::PermissionDenied);
    let (id, token) = discovery_token(&boot.fleet);
    (boot.token_id, boot.token) = (id, token);
    let next = boot.draft();
    let second = boot.fleet.join(&next, NOW + 2).unwrap();
    let machine = boot.fleet.store().machines(None).unwrap().remove(0);
    assert_eq!(
        (machine.boots, machine.node_id),
        (2, second.node_id.clone())
    );
    // Boots of one machine are no doubled hardware.
    let store = boot.fleet.store();
    assert!(store.duplicates(&second.node_id).unwrap().is_empty());
}

#[test]
fn a_token_alone_lets_no_machine_join() {
    let mut boot = Boot::new();
    let mut draft = boot.draft();
    draft.request.discovery_assertion = None;
    let refusal = boot.refusal(&draft, NOW);
    assert!(matches!(refusal, Refusal::NoAssertion), "{refusal}");
    assert_eq!(refusal.code(), Code::InvalidArgument);
    // Nor as if it were a token of another kind.
    draft.request.attestor = "join-token".to_owned();
    let refusal = boot.refusal(&draft, NOW);
    assert!(
        matches!(
            refusal,
            Refusal::OtherAttestor {
                token: "discovery",
                ..
            }
        ),
        "{refusal}"
    );
    // The operator sees both.
    let token = boot.fleet.store().token(&boot.token_id).unwrap().unwrap();
    assert_eq!(token.refusals, 2);
}

#[test]
fn an_assertion_makes_nothing_of_a_token_of_another_kind() {
    let mut boot = Boot::new();
    let (_, plain) = boot.fleet.token(false);
    boot.token = plain;
    let draft = boot.draft();
    let refusal = boot.refusal(&draft, NOW);
    assert!(
        matches!(
            refusal,
            Refusal::OtherAttestor {
                token: "join-token",
                ..
            }
        ),
        "{refusal}"
    );
}

#[test]
fn unknown_revoked_and_expired_tokens_are_refused_as_ever() {
    let mut boot = Boot::new();
    let draft = boot.draft();
    let refusal = boot.refusal(&draft, NOW + HOUR);
    assert!(matches!(refusal, Refusal::Expired { .. }), "{refusal}");
    let store = boot.fleet.store();
    store.revoke_token(&boot.token_id, NOW).unwrap();
    let refusal = boot.refusal(&draft, NOW);
    assert!(matches!(refusal, Refusal::Revoked), "{refusal}");
    boot.token = token::mint(NOW).token.as_bytes().to_vec();
    let draft = boot.draft();
    let refusal = boot.refusal(&draft, NOW);
    assert!(matches!(refusal, Refusal::UnknownToken), "{refusal}");
}

#[test]
fn an_assertion_is_good_for_its_site_its_token_and_its_machine_alone() {
    let mut boot = Boot::new();
    let refusal = boot.refusal_of(|assertion| "hel1".clone_into(&mut assertion.site));
    assert!(
        matches!(&refusal, Refusal::AssertionOtherSite { assertion, .. } if assertion == "hel1"),
        "{refusal}"
    );
    let refusal = boot.refusal_of(|assertion| assertion.token_id = token::mint(NOW).id);
    assert!(matches!(refusal, Refusal::AssertionOtherToken), "{refusal}");
    for mac in [OTHER.0.to_vec(), Vec::new(), [&MAC.0[..], &[0]].concat()] {
        let refusal = boot.refusal_of(|assertion| assertion.mac = mac);
        assert!(
            matches!(refusal, Refusal::AssertionOtherMac(MAC)),
            "{refusal}"
        );
    }
    // Each of these is recorded, and spends nothing.
    let draft = boot.draft();
    boot.fleet.join(&draft, NOW).unwrap();
}

#[test]
fn a_machine_without_the_tokens_mac_is_refused() {
    let mut boot = Boot::new();
    let mut draft = boot.draft();
    let claims = draft.request.claims.as_mut().unwrap();
    claims.macs = vec![OTHER.to_string()];
    claims.boot_mac = String::new();
    let refusal = boot.refusal(&draft, NOW);
    assert!(matches!(refusal, Refusal::OtherMachine(MAC)), "{refusal}");
    assert!(refusal.to_string().contains("3c:ec:ef:00:00:01"));
    // With more cards than fit the claims, the one it booted from stands apart.
    draft.request.claims.as_mut().unwrap().boot_mac = MAC.to_string();
    boot.fleet.join(&draft, NOW).unwrap();
}

#[test]
fn an_assertion_is_fresh_for_a_quarter_of_an_hour() {
    let mut boot = Boot::new();
    let draft = boot.draft();
    let refusal = boot.refusal(&draft, NOW + FRESH_MS + 1);
    assert!(
        matches!(refusal, Refusal::AssertionStale { .. }),
        "{refusal}"
    );
    let refusal = boot.refusal(&draft, NOW - AHEAD_MS - 1);
    assert!(
        matches!(refusal, Refusal::AssertionAhead { .. }),
        "{refusal}"
    );
    // No number a site signs overflows.
    for at in [i64::MIN, i64::MAX, 0, -1] {
        let refusal = boot.refusal_of(|assertion| assertion.signed_at_ms = at);
        assert_eq!(refusal.code(), Code::PermissionDenied, "{refusal}");
    }
    boot.fleet.join(&draft, NOW + FRESH_MS).unwrap();
}

#[test]
fn only_a_registered_key_of_the_site_counts() {
    let mut boot = Boot::new();
    let unknown = NodeKey::generate().unwrap();
    let mut draft = boot.draft();
    let asserted = boot.assertion();
    let mut signed = |key: &NodeKey, boot: &mut Boot| {
        draft.request.discovery_assertion = Some(sign(&asserted, key).unwrap());
        boot.refusal(&draft, NOW)
    };
    let refusal = signed(&unknown, &mut boot);
    assert!(matches!(refusal, Refusal::UnknownSiteKey), "{refusal}");
    assert_eq!(refusal.code(), Code::Unauthenticated);

    let elsewhere = NodeKey::generate().unwrap();
    register(&boot.fleet, &elsewhere, "hel1");
    let refusal = signed(&elsewhere, &mut boot);
    assert!(
        matches!(&refusal, Refusal::AssertionOtherSite { assertion, .. } if assertion == "hel1"),
        "{refusal}"
    );

    let revoked = NodeKey::generate().unwrap();
    register(&boot.fleet, &revoked, "fsn1");
    let store = boot.fleet.store();
    store.revoke_site_key(&revoked.pin().0, NOW).unwrap();
    let refusal = signed(&revoked, &mut boot);
    assert!(matches!(refusal, Refusal::RevokedSiteKey(_)), "{refusal}");
}

#[test]
fn what_a_site_key_signed_must_hold_and_be_an_assertion() {
    let mut boot = Boot::new();
    let mut draft = boot.draft();
    let whole = draft.request.discovery_assertion.clone().unwrap();
    let mut changed = whole.clone();
    changed.payload[2] ^= 1;
    draft.request.discovery_assertion = Some(changed);
    let refusal = boot.refusal(&draft, NOW);
    assert!(
        matches!(refusal, Refusal::AssertionUnsigned(_)),
        "{refusal}"
    );
    // The key named is the site's, and the signature another's.
    let mut forged = sign(&boot.assertion(), &NodeKey::generate().unwrap()).unwrap();
    forged.signatures[0].keyid = boot.site_key.pin().to_string();
    draft.request.discovery_assertion = Some(forged);
    let refusal = boot.refusal(&draft, NOW);
    assert!(
        matches!(refusal, Refusal::AssertionUnsigned(_)),
        "{refusal}"
    );
    // Signed for another purpose.
    let payload = boot.assertion().encode_to_vec();
    let other = envelope::sign(payload, Purpose::Renewal, &boot.site_key).unwrap();
    draft.request.discovery_assertion = Some(other);
    let refusal = boot.refusal(&draft, NOW);
    assert!(
        matches!(refusal, Refusal::AssertionUnsigned(_)),
        "{refusal}"
    );
    let signed = envelope::sign(vec![0xff], Purpose::DiscoveryAssertion, &boot.site_key).unwrap();
    draft.request.discovery_assertion = Some(signed);
    let refusal = boot.refusal(&draft, NOW);
    assert!(
        matches!(refusal, Refusal::AssertionMalformed(_)),
        "{refusal}"
    );
    for none in [
        Envelope::default(),
        Envelope {
            signatures: Vec::new(),
            ..whole
        },
    ] {
        draft.request.discovery_assertion = Some(none);
        let refusal = boot.refusal(&draft, NOW);
        assert!(matches!(refusal, Refusal::UnknownSiteKey), "{refusal}");
    }
}

#[test]
fn no_refusal_shows_the_token_and_each_is_one_line() {
    let mut boot = Boot::new();
    let secret = String::from_utf8(boot.token.clone()).unwrap();
    let secret = secret.split_once('.').unwrap().1.to_owned();
    let refusal = boot.refusal_of(|assertion| assertion.site = "a\nb".repeat(200));
    let text = refusal.to_string();
    assert!(text.len() < 400 && !text.contains(&secret), "{text}");
    assert!(!text.contains('\n') && text.contains("a?b"), "{text}");
}
