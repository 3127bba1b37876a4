//! Joins and renewals as a JoinService gets them: any request is refused in one line or answered with a
//! certificate for its own key; a token goes to one key only; nothing ends in a fault.
use std::cell::RefCell;
use std::rc::Rc;

use bcd::crypto::certificate::Certificate;
use bcd::crypto::envelope::{self, Purpose};
use bcd::crypto::{csr, digest};
use bcd::proto::{
    DiscoveryAssertion, HardwareClaims, JoinRequest, JoinRequestCredential, Message, RenewRequest,
    Renewal, Role,
};
use better_compute::joinservice::{Call, JoinService, Refusal};
use better_compute::registry::now_ms;

use super::fleet::{self, Fleet};

pub const HEAP: super::Heap = super::Heap {
    base: 1 << 20,
    per_byte: 256,
};

struct Place {
    fleet: Fleet,
    service: RefCell<JoinService>,
}

thread_local! {
    static PLACE: RefCell<Option<Rc<Place>>> = const { RefCell::new(None) };
}

/// The first byte says what the rest is: a join or a renewal as it comes, one whose signatures and
/// seals hold around what the rest says, or a site's assertion.
pub fn run(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else {
        return;
    };
    let place = fleet::with(
        &PLACE,
        |place| &place.fleet,
        || {
            let fleet = Fleet::new();
            let service = RefCell::new(fleet.service(fleet.store()));
            Place { fleet, service }
        },
    );
    match first % 5 {
        0 => judge(&place, rest, false),
        1 => judge(&place, rest, true),
        2 => sealed(&place, rest),
        3 => signed(&place, rest),
        _ => asserted(&place, rest),
    }
}

/// A join whose token opens: the ciphertext of the input is the token's text; none is a token that is good.
fn sealed(place: &Place, rest: &[u8]) {
    let Ok(mut request) = JoinRequest::decode(rest) else {
        return;
    };
    let fleet = &place.fleet;
    let token = match request.credential {
        Some(JoinRequestCredential::SealedToken(sealed)) if !sealed.ciphertext.is_empty() => {
            sealed.ciphertext
        }
        _ => fleet.used_token.clone(),
    };
    request.csr = fleet.csr.clone();
    request.credential = Some(fleet.seal(&fleet.csr, &token));
    judge(place, &request.encode_to_vec(), false);
}

/// A renewal that the node's own key signed.
fn signed(place: &Place, rest: &[u8]) {
    let fleet = &place.fleet;
    let mut payload = rest.to_vec();
    if let Ok(mut asking) = Renewal::decode(rest) {
        if asking.node_id.is_empty() {
            asking.node_id = fleet.node_id.clone();
        }
        if asking.csr.is_empty() {
            asking.csr = fleet.csr.clone();
        }
        payload = asking.encode_to_vec();
    }
    let signed = envelope::sign(payload, Purpose::Renewal, &fleet.node_key).expect("a signature");
    let request = RenewRequest {
        signed: Some(signed),
    };
    judge(place, &request.encode_to_vec(), true);
}

/// A join by discovery whose assertion the site's own key signed; what is left empty is filled in as it is good.
fn asserted(place: &Place, rest: &[u8]) {
    let fleet = &place.fleet;
    let mut payload = rest.to_vec();
    if let Ok(mut said) = DiscoveryAssertion::decode(rest) {
        if said.site.is_empty() {
            said.site = "fsn1".to_owned();
        }
        if said.mac.is_empty() {
            said.mac = fleet::MAC.0.to_vec();
        }
        if said.token_id.is_empty() {
            said.token_id = fleet.machine_token_id.clone();
        }
        if said.signed_at_ms == 0 {
            said.signed_at_ms = now_ms();
        }
        payload = said.encode_to_vec();
    }
    let purpose = Purpose::DiscoveryAssertion;
    let signed = envelope::sign(payload, purpose, &fleet.site_key).expect("a signature");
    let request = JoinRequest {
        attestor: "discovery".to_owned(),
        role: Role::RAMDISK,
        credential: Some(fleet.seal(&fleet.csr, &fleet.machine_token)),
        csr: fleet.csr.clone(),
        discovery_assertion: Some(signed),
        claims: Some(HardwareClaims {
            boot_mac: fleet::MAC.to_string(),
            ..HardwareClaims::default()
        }),
        ..JoinRequest::default()
    };
    judge(place, &request.encode_to_vec(), false);
}

fn judge(place: &Place, request: &[u8], renewal: bool) {
    let mut service = place.service.borrow_mut();
    let call = match renewal {
        true => Call::Renew,
        false => Call::Join,
    };
    let answered = fleet::ask(&mut service, call, request);
    match answered {
        Err(refusal) => {
            assert!(
                !matches!(refusal, Refusal::Store(_) | Refusal::Fault(_)),
                "{refusal}"
            );
            let status = refusal.status();
            super::one_line(&status.message);
            assert!(status.message.len() < 1024, "{}", status.message);
            let token = &place.fleet.token;
            let secret = &token[token.len() - 20..];
            assert!(
                !status
                    .message
                    .as_bytes()
                    .windows(20)
                    .any(|part| part == secret)
            );
        }
        Ok(answered) => {
            let result = place.fleet.verified(&answered.response);
            let leaf = result.certificate_chain.first().expect("a leaf");
            let leaf = Certificate::parse(leaf).expect("a certificate");
            assert_eq!(leaf.uri_names, [result.spiffe_id.as_str()]);
            let asked = match renewal {
                true => RenewRequest::decode(request)
                    .ok()
                    .and_then(|request| Renewal::decode(&request.signed?.payload).ok())
                    .map(|asking| asking.csr),
                false => JoinRequest::decode(request).ok().map(|request| request.csr),
            };
            let asked = asked.expect("what was answered decodes");
            assert_eq!(result.csr_sha256, digest::sha256(&asked));
            assert_eq!(leaf.spki, csr::verify(&asked).expect("it was verified"));
        }
    }
}
