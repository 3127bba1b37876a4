use bcd::crypto::certificate::Certificate;
use bcd::crypto::key::NodeKey;
use bcd::crypto::{envelope, hpke, jwk};
use bcd::proto::{HardwareClaims, SealedToken, TrustBundle};
use bcd::wire::grpc::Code;

use super::*;
use crate::ids;
use crate::pki::{Bundle, Lock, Private, Public};
use crate::store::tests::TempDir;
use crate::store::{NewToken, State};

pub(super) const NOW: i64 = 1_795_000_000_000;
pub(super) const HOUR: i64 = 3_600_000;

/// A JoinService with its own database, and what a node needs to ask it.
pub(super) struct Fleet {
    _dir: TempDir,
    path: std::path::PathBuf,
    pub(super) service: JoinService,
    pub(super) public: Public,
    private: Private,
}

/// A request before it is sealed and signed; the tests change one thing each.
pub(super) struct Draft {
    pub(super) key: NodeKey,
    token: Vec<u8>,
    info: &'static [u8],
    aad: Option<[u8; 32]>,
    pub(super) request: JoinRequest,
    key_pin: Option<String>,
}

impl JoinService {
    /// All steps, one after the other.
    pub(super) fn ask(
        &mut self,
        call: Call,
        request: &[u8],
        address: &str,
        now_ms: i64,
    ) -> Result<Answered, Refusal> {
        let question = self.keys().read(call, request, address, now_ms)?;
        self.decide(&[question]).remove(0)?.answer()
    }
}

impl Fleet {
    pub(super) fn new() -> Self {
        let dir = TempDir::new();
        let path = dir.0.join("state.db");
        let lock = Lock::Key(vec![1; 32].into());
        let bundle = Bundle::generate("example.org", true, &lock, NOW).unwrap();
        let private = bundle.open(&lock).unwrap();
        let public = bundle.public;
        let service = JoinService::new(
            Keys::new(&public, &private, NOW).unwrap(),
            Policy::default(),
            Store::open(&path).unwrap(),
        );
        Self {
            _dir: dir,
            path,
            service,
            public,
            private,
        }
    }

    /// As after a crash: everything in memory is gone.
    pub(super) fn restart(&mut self) {
        self.service = JoinService::new(
            Keys::new(&self.public, &self.private, NOW).unwrap(),
            Policy::default(),
            Store::open(&self.path).unwrap(),
        );
    }

    pub(super) fn store(&self) -> Store {
        Store::open(&self.path).unwrap()
    }

    pub(super) fn token(&self, allow_reclaim: bool) -> (String, Vec<u8>) {
        self.token_until(allow_reclaim, NOW + HOUR)
    }

    pub(super) fn token_until(&self, allow_reclaim: bool, ends_ms: i64) -> (String, Vec<u8>) {
        let minted = token::mint(NOW);
        self.store()
            .add_token(&NewToken {
                id: &minted.id,
                digest: minted.digest,
                role: Role::NODE.0,
                pool: "pool_a",
                site: "fsn1",
                mac: None,
                allow_reclaim,
                created_at_ms: NOW,
                expires_at_ms: ends_ms,
            })
            .unwrap();
        (minted.id, minted.token.as_bytes().to_vec())
    }

    pub(super) fn draft(&self, token: &[u8]) -> Draft {
        Draft {
            key: NodeKey::generate().unwrap(),
            token: token.to_vec(),
            info: HPKE_INFO,
            aad: None,
            key_pin: None,
            request: JoinRequest {
                attestor: "join-token".to_owned(),
                role: Role::NODE,
                site: "fsn1".to_owned(),
                daemon_version: "0.1.0".to_owned(),
                claims: Some(HardwareClaims {
                    hostname: "host".to_owned(),
                    ..HardwareClaims::default()
                }),
                ..JoinRequest::default()
            },
        }
    }

    pub(super) fn encode(&self, draft: &Draft) -> Vec<u8> {
        let mut request = draft.request.clone();
        if request.csr.is_empty() {
            request.csr = csr::build(&draft.key).unwrap();
        }
        let aad = draft.aad.unwrap_or_else(|| digest::sha256(&request.csr));
        let spki = &self.public.join_encryption_key;
        let point = spki[spki.len() - 65..].try_into().unwrap();
        let recipient = jwk::PublicKey::from_point(point);
        let sealed = hpke::seal(&recipient, draft.info, &aad, &draft.token).unwrap();
        request.credential = Some(JoinRequestCredential::SealedToken(SealedToken {
            key_pin: draft
                .key_pin
                .clone()
                .unwrap_or_else(|| recipient.pin().to_string()),
            enc: sealed.enc.to_vec(),
            ciphertext: sealed.ciphertext,
        }));
        request.encode_to_vec()
    }

    pub(super) fn join(&mut self, draft: &Draft, now_ms: i64) -> Result<JoinResult, Refusal> {
        let bytes = self.encode(draft);
        let answer = self.service.ask(Call::Join, &bytes, "192.0.2.1", now_ms)?;
        Ok(self.verified(&answer.response))
    }

    /// What a node makes of the answer, by the pinned signing key alone.
    pub(super) fn verified(&self, answer: &[u8]) -> JoinResult {
        verified(answer, self.public.pins().join_signing)
    }

    pub(super) fn refusal(&mut self, draft: &Draft, now_ms: i64) -> Refusal {
        self.join(draft, now_ms).err().unwrap()
    }
}

/// What a signed answer holds.
pub(super) fn verified(answer: &[u8], pin: bcd::crypto::pin::Pin) -> JoinResult {
    let response = JoinResponse::decode(answer).unwrap();
    let Some(JoinResponseOutcome::Signed(signed)) = response.outcome else {
        panic!("no signed outcome");
    };
    let payload = envelope::verify_pinned(&signed, Purpose::JoinResponse, &[pin]).unwrap();
    JoinResult::decode(payload).unwrap()
}

#[test]
fn a_join_is_answered_with_a_certificate_for_its_key_and_a_signed_trust_bundle() {
    let mut fleet = Fleet::new();
    let (id, token) = fleet.token(false);
    let draft = fleet.draft(&token);
    let result = fleet.join(&draft, NOW + 5).unwrap();
    assert!(ids::is_ulid_of("node", &result.node_id));
    assert_eq!(
        result.spiffe_id,
        format!("spiffe://example.org/node/{}", result.node_id)
    );
    assert_eq!((result.role, result.server_time_ms), (Role::NODE, NOW + 5));
    assert_eq!(
        (result.site.as_str(), result.pool.as_str()),
        ("fsn1", "pool_a")
    );
    let request = csr::build(&draft.key).unwrap();
    // ECDSA signatures differ each time: the digest is of the CSR that was sent.
    assert_eq!(result.csr_sha256.len(), digest::sha256(&request).len());

    let leaf = Certificate::parse(&result.certificate_chain[0]).unwrap();
    let ca = Certificate::parse(&fleet.public.node_ca).unwrap();
    assert_eq!(leaf.spki, draft.key.spki_der());
    assert_eq!(leaf.uri_names, [result.spiffe_id.as_str()]);
    assert!(leaf.dns_names.is_empty() && leaf.addresses.is_empty() && !leaf.is_ca);
    assert!(leaf.is_issued_by(&ca));
    assert!(leaf.is_valid_at(NOW / 1000 - 3500));
    assert!(!leaf.is_valid_at(NOW / 1000 - 3700));

    let bundle = result.trust_bundle.unwrap();
    let pins = [fleet.public.pins().join_signing];
    let bundle = envelope::verify_pinned(&bundle, Purpose::TrustBundle, &pins).unwrap();
    let bundle = TrustBundle::decode(bundle).unwrap();
    assert_eq!(bundle.node_cas, [fleet.public.node_ca.clone()]);
    assert_eq!(bundle.command_roots.len(), 1);

    let store = fleet.store();
    let node = store.node(&result.node_id).unwrap().unwrap();
    assert_eq!(
        (node.state, node.hostname.as_str()),
        (State::Joining, "host")
    );
    assert_eq!(store.attempts(&id, 9).unwrap()[0].outcome, "issued");
}

#[test]
fn a_lost_join_reply_can_be_had_again_with_the_same_key() {
    let mut fleet = Fleet::new();
    let (id, token) = fleet.token(false);
    let draft = fleet.draft(&token);
    let first = fleet.join(&draft, NOW).unwrap();
    // Another CSR over the same key, after a crash of the control plane, past the token's end.
    fleet.restart();
    let again = fleet.join(&draft, NOW + 2 * HOUR - 1).unwrap();
    assert_eq!(again.certificate_chain, first.certificate_chain);
    assert_eq!(again.node_id, first.node_id);
    assert_ne!(again.csr_sha256, first.csr_sha256);
    assert!(matches!(
        fleet.refusal(&draft, NOW + 2 * HOUR),
        Refusal::RetriedTooLate
    ));
    let outcomes: Vec<_> = fleet
        .store()
        .attempts(&id, 9)
        .unwrap()
        .iter()
        .map(|attempt| attempt.outcome)
        .collect();
    assert_eq!(outcomes, ["refused", "reissued", "issued"]);
    assert_eq!(fleet.store().nodes().unwrap().len(), 1);
}

#[test]
fn another_key_never_gets_a_used_token_and_the_attempt_is_recorded() {
    let mut fleet = Fleet::new();
    let (id, token) = fleet.token(false);
    let draft = fleet.draft(&token);
    fleet.join(&draft, NOW).unwrap();
    let other = fleet.draft(&token);
    let refusal = fleet.refusal(&other, NOW + 1);
    assert!(matches!(refusal, Refusal::UsedByOtherKey), "{refusal}");
    let attempt = &fleet.store().attempts(&id, 1).unwrap()[0];
    assert_eq!((attempt.outcome, attempt.at_ms), ("refused", NOW + 1));
    assert_eq!(attempt.spki_sha256, digest::sha256(&other.key.spki_der()));
    assert_eq!(fleet.store().token(&id).unwrap().unwrap().refusals, 1);
}

#[test]
fn every_refusal_has_its_code() {
    let mut fleet = Fleet::new();
    let (_, token) = fleet.token(false);
    let (revoked_id, revoked) = fleet.token(false);
    fleet.store().revoke_token(&revoked_id, NOW).unwrap();
    let mut forged = token.clone();
    let last = forged.len() - 1;
    forged[last] = if forged[last] == b'A' { b'B' } else { b'A' };
    let unknown = token::mint(NOW).token.as_bytes().to_vec();

    type Change<'a> = &'a dyn Fn(&mut Draft);
    let cases: [(&str, Code, Change<'_>); 23] = [
        ("attestor", Code::InvalidArgument, &|d| {
            d.request.attestor = "tpm".to_owned()
        }),
        ("no attestor", Code::InvalidArgument, &|d| {
            d.request.attestor.clear()
        }),
        ("no role", Code::InvalidArgument, &|d| {
            d.request.role = Role::default()
        }),
        ("unknown role", Code::InvalidArgument, &|d| {
            d.request.role = Role(99)
        }),
        ("no CSR", Code::InvalidArgument, &|d| {
            d.request.csr = vec![0x30]
        }),
        ("long CSR", Code::InvalidArgument, &|d| {
            d.request.csr = vec![0; 4097]
        }),
        ("damaged CSR", Code::InvalidArgument, &|d| {
            d.request.csr = csr::build(&d.key).unwrap();
            *d.request.csr.last_mut().unwrap() ^= 1;
        }),
        ("long site", Code::InvalidArgument, &|d| {
            d.request.site = "x".repeat(257)
        }),
        ("long version", Code::InvalidArgument, &|d| {
            d.request.daemon_version = "x".repeat(257);
        }),
        ("long claim", Code::InvalidArgument, &|d| {
            d.request.claims.as_mut().unwrap().kernel = "x".repeat(257);
        }),
        ("long token", Code::InvalidArgument, &|d| {
            d.token = vec![b'x'; 4097]
        }),
        ("other key's pin", Code::FailedPrecondition, &|d| {
            d.key_pin = Some(d.key.pin().to_string());
        }),
        ("other info", Code::Unauthenticated, &|d| {
            d.info = b"another purpose"
        }),
        ("other CSR", Code::Unauthenticated, &|d| {
            d.aad = Some([0; 32])
        }),
        ("empty token", Code::Unauthenticated, &|d| d.token.clear()),
        ("truncated token", Code::Unauthenticated, &|d| {
            d.token.pop();
        }),
        ("forged secret", Code::Unauthenticated, &|d| {
            d.token = forged.clone()
        }),
        ("unknown token", Code::Unauthenticated, &|d| {
            d.token = unknown.clone()
        }),
        ("revoked", Code::PermissionDenied, &|d| {
            d.token = revoked.clone()
        }),
        ("other site", Code::PermissionDenied, &|d| {
            d.request.site = "hel1".to_owned()
        }),
        ("other role", Code::PermissionDenied, &|d| {
            d.request.role = Role::SITE
        }),
        ("node id without leave", Code::PermissionDenied, &|d| {
            d.request.node_id = ids::new("node", NOW);
        }),
        ("many macs", Code::InvalidArgument, &|d| {
            d.request.claims.as_mut().unwrap().macs = vec!["m".to_owned(); 65];
        }),
    ];
    for (name, code, change) in cases {
        let mut draft = fleet.draft(&token);
        change(&mut draft);
        let refusal = fleet.refusal(&draft, NOW);
        assert_eq!(refusal.code(), code, "{name}: {refusal}");
        let text = refusal.status().to_string();
        let secret = std::str::from_utf8(&token)
            .unwrap()
            .split_once('.')
            .unwrap()
            .1;
        assert!(
            !text.contains(secret) && !text.contains('\n'),
            "{name}: {text}"
        );
    }
    let draft = fleet.draft(&token);
    let refusal = fleet.refusal(&draft, NOW + HOUR);
    assert!(
        matches!(refusal, Refusal::Expired { ago_ms: 0 }),
        "{refusal}"
    );
    assert_eq!(refusal.code(), Code::PermissionDenied);
    // After all that the token is as good as before.
    fleet.join(&draft, NOW + HOUR - 1).unwrap();
}

#[test]
fn bytes_that_are_no_request_are_refused() {
    let mut fleet = Fleet::new();
    let code = |fleet: &mut Fleet, bytes: &[u8]| {
        fleet
            .service
            .ask(Call::Join, bytes, "", NOW)
            .err()
            .unwrap()
            .code()
    };
    assert_eq!(code(&mut fleet, b""), Code::InvalidArgument);
    assert_eq!(code(&mut fleet, &[0xff; 40]), Code::InvalidArgument);
    assert_eq!(
        code(&mut fleet, &vec![0; REQUEST_MAX + 1]),
        Code::InvalidArgument
    );
    let (_, token) = fleet.token(false);
    let whole = fleet.encode(&fleet.draft(&token));
    for length in 0..whole.len() {
        // A cut between two fields is a request of fewer fields; any other is refused. None panics.
        let answer = fleet.service.ask(Call::Join, &whole[..length], "", NOW);
        assert!(answer.is_err() || JoinRequest::decode(&whole[..length]).is_ok());
    }
    let mut request = JoinRequest::decode(&whole).unwrap();
    request.credential = None;
    assert_eq!(
        code(&mut fleet, &request.encode_to_vec()),
        Code::InvalidArgument
    );
}

#[test]
fn a_site_that_the_node_does_not_know_comes_from_the_token() {
    let mut fleet = Fleet::new();
    let (_, token) = fleet.token(false);
    let mut draft = fleet.draft(&token);
    draft.request.site.clear();
    assert_eq!(fleet.join(&draft, NOW).unwrap().site, "fsn1");
}

#[test]
fn revoking_and_deleting_end_the_second_answer_too() {
    let mut fleet = Fleet::new();
    let (id, token) = fleet.token(false);
    let draft = fleet.draft(&token);
    let result = fleet.join(&draft, NOW).unwrap();
    fleet.store().delete_node(&result.node_id, NOW).unwrap();
    assert!(matches!(fleet.refusal(&draft, NOW), Refusal::NodeDeleted));
    fleet.store().revoke_token(&id, NOW).unwrap();
    assert!(matches!(fleet.refusal(&draft, NOW), Refusal::Revoked));
}

#[test]
fn the_same_key_with_a_new_token_stays_the_same_node() {
    let mut fleet = Fleet::new();
    let (_, first_token) = fleet.token(false);
    let mut draft = fleet.draft(&first_token);
    let first = fleet.join(&draft, NOW).unwrap();
    draft.token = fleet.token(false).1;
    let second = fleet.join(&draft, NOW + 1).unwrap();
    assert_eq!(second.node_id, first.node_id);
    assert_ne!(second.certificate_chain, first.certificate_chain);
    assert_eq!(fleet.store().nodes().unwrap().len(), 1);
}

fn with_hardware(draft: &mut Draft, serial: &str) {
    draft.request.claims = Some(HardwareClaims {
        system_serial: serial.to_owned(),
        system_uuid: "4c4c4544-0042-3510-8052-b7c04f313233".to_owned(),
        macs: vec!["3c:ec:ef:00:00:01".to_owned()],
        ..HardwareClaims::default()
    });
}

#[test]
fn the_same_hardware_is_reported_and_grants_nothing_by_itself() {
    let mut fleet = Fleet::new();
    let mut nodes = Vec::new();
    for _ in 0..2 {
        let (_, token) = fleet.token(false);
        let mut draft = fleet.draft(&token);
        with_hardware(&mut draft, "S1");
        nodes.push(fleet.join(&draft, NOW).unwrap().node_id);
    }
    assert_ne!(nodes[0], nodes[1]);
    let duplicates = fleet.store().duplicates(&nodes[0]).unwrap();
    let kinds: Vec<_> = duplicates.iter().map(|d| d.kind.as_str()).collect();
    assert_eq!(kinds, ["mac", "serial", "uuid"]);
}

#[test]
fn allow_reclaim_gives_a_machine_its_earlier_node_back() {
    let mut fleet = Fleet::new();
    let (_, token) = fleet.token(false);
    let mut draft = fleet.draft(&token);
    with_hardware(&mut draft, "S1");
    let first = fleet.join(&draft, NOW).unwrap();
    fleet.store().set_cordoned(&first.node_id, true).unwrap();

    // By its hardware, all of it.
    let (_, token) = fleet.token(true);
    let mut draft = fleet.draft(&token);
    with_hardware(&mut draft, "S1");
    let reclaimed = fleet.join(&draft, NOW).unwrap();
    assert_eq!(reclaimed.node_id, first.node_id);
    let node = fleet.store().node(&first.node_id).unwrap().unwrap();
    assert_eq!(node.spki_sha256, digest::sha256(&draft.key.spki_der()));
    assert!(node.cordoned, "a cordon outlives a reclaim");

    // Another serial is another machine.
    let (_, token) = fleet.token(true);
    let mut draft = fleet.draft(&token);
    with_hardware(&mut draft, "S2");
    assert_ne!(fleet.join(&draft, NOW).unwrap().node_id, first.node_id);

    // By its id.
    let (_, token) = fleet.token(true);
    let mut draft = fleet.draft(&token);
    draft.request.node_id = first.node_id.clone();
    assert_eq!(fleet.join(&draft, NOW).unwrap().node_id, first.node_id);

    // Never a node that is not there.
    let (_, token) = fleet.token(true);
    let mut draft = fleet.draft(&token);
    draft.request.node_id = ids::new("node", NOW);
    let refusal = fleet.refusal(&draft, NOW);
    assert!(matches!(refusal, Refusal::NotReclaimable(_)), "{refusal}");
}

#[test]
fn many_joins_are_decided_together_and_a_token_twice_among_them_still_joins_once() {
    let mut fleet = Fleet::new();
    let (_, contested) = fleet.token(false);
    let drafts: Vec<Draft> = (0..40)
        .map(|number| match number % 20 {
            0 => fleet.draft(&contested),
            _ => fleet.draft(&fleet.token(false).1),
        })
        .collect();
    let keys = fleet.service.keys();
    let read = |draft: &Draft| keys.read(Call::Join, &fleet.encode(draft), "192.0.2.1", NOW);
    let questions: Vec<_> = drafts.iter().map(|draft| read(draft).unwrap()).collect();
    let decided = fleet.service.decide(&questions);
    assert_eq!(decided.len(), 40);
    for (number, decision) in decided.into_iter().enumerate() {
        match (number, decision) {
            (20, decision) => {
                let refusal = decision.err().unwrap();
                assert!(matches!(refusal, Refusal::UsedByOtherKey), "{refusal}");
            }
            (_, decision) => {
                let result = fleet.verified(&decision.unwrap().answer().unwrap().response);
                let leaf = Certificate::parse(&result.certificate_chain[0]).unwrap();
                assert_eq!(leaf.spki, drafts[number].key.spki_der(), "its own answer");
            }
        }
    }
    assert_eq!(fleet.store().nodes().unwrap().len(), 39);
}

#[test]
fn a_join_that_the_records_cannot_decide_does_not_hold_up_those_beside_it() {
    let mut fleet = Fleet::new();
    let (bad_id, bad) = fleet.token(false);
    let bad = fleet.draft(&bad);
    fleet.join(&bad, NOW).unwrap();
    fleet.store().damage_redemption(&bad_id);
    let good = [
        fleet.draft(&fleet.token(false).1),
        fleet.draft(&fleet.token(false).1),
    ];
    let keys = fleet.service.keys();
    let read = |draft: &Draft| {
        keys.read(Call::Join, &fleet.encode(draft), "", NOW)
            .unwrap()
    };
    let questions = [read(&good[0]), read(&bad), read(&good[1])];
    let decided = fleet.service.decide(&questions);
    let outcomes: Vec<_> = decided.iter().map(Result::is_ok).collect();
    assert_eq!(outcomes, [true, false, true]);
    let refusal = decided.into_iter().nth(1).unwrap().err().unwrap();
    assert!(
        matches!(refusal, Refusal::Store(StoreError::Damaged(_))),
        "{refusal}"
    );
    assert_eq!(fleet.store().nodes().unwrap().len(), 3);
}
