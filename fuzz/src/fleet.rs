//! A control plane for the targets that need a whole one: real keys, a real database in memory's file system,
//! one node that has joined. Made once a thread, and anew when inputs have filled it.
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bcd::config::mac::Mac;
use bcd::crypto::envelope::{self, Purpose};
use bcd::crypto::key::NodeKey;
use bcd::crypto::{csr, digest, hpke, jwk};
use bcd::proto::{
    Envelope, JoinDeferral, JoinRequest, JoinRequestCredential, JoinResponse, JoinResponseOutcome,
    JoinResult, Message, Role, SealedToken,
};
use better_compute::api::Api;
use better_compute::api::rotations::{NotRotated, Rotations};
use better_compute::api::websocket::Bridge;
use better_compute::gateway::{Gateway, Settings};
use better_compute::ids;
use better_compute::joinservice::{
    Answered, Call, JoinService, Keys, Policy, Refusal, threads, token,
};
use better_compute::pki::{Bundle, Kind, Lock, NodeIssuer, Private, Public, Step};
use better_compute::registry::{self, Answer, now_ms};
use better_compute::store::{Laggards, NewSiteKey, NewToken, Store};

/// After so many inputs a fleet is made anew.
const INPUTS: usize = 4096;
/// The machine that has a token.
pub const MAC: Mac = Mac([0x3c, 0xec, 0xef, 0, 0, 1]);
const HOUR_MS: i64 = 3_600_000;
/// The token of every API here.
pub const ADMIN: &str = "bcadm_fuzz";

/// A directory that is removed with its owner.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Self {
        let memory = PathBuf::from("/dev/shm");
        let root = match memory.is_dir() {
            true => memory,
            false => std::env::temp_dir(),
        };
        let path = root.join(ids::new("better-compute-fuzz", now_ms()));
        std::fs::create_dir(&path).expect("a directory");
        Self(path)
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub struct Fleet {
    scratch: Scratch,
    pub public: Public,
    private: Private,
    pub node_id: String,
    pub node_key: NodeKey,
    pub node_chain: Vec<Vec<u8>>,
    /// What the JoinService said when the node joined.
    pub joined: JoinResult,
    /// A request that `node_key` signed.
    pub csr: Vec<u8>,
    /// A token that nobody used, and the one the node came with.
    pub token_id: String,
    pub token: Vec<u8>,
    pub used_token: Vec<u8>,
    /// A token of the machine with [`MAC`], and the key of its site.
    pub machine_token_id: String,
    pub machine_token: Vec<u8>,
    pub site_key: NodeKey,
    inputs: Cell<usize>,
}

/// All that a JoinService does for a request, from `192.0.2.1`.
pub fn ask(service: &mut JoinService, call: Call, request: &[u8]) -> Result<Answered, Refusal> {
    let question = service.keys().read(call, request, "192.0.2.1", now_ms())?;
    let mut decided = service.decide(&[question]);
    decided
        .pop()
        .expect("one decision for one question")?
        .answer()
}

impl Fleet {
    pub fn new() -> Self {
        let lock = Lock::Key(vec![1; 32].into());
        let bundle = Bundle::generate("example.org", true, &lock, now_ms()).expect("a bundle");
        let private = bundle.open(&lock).expect("its private half");
        let node_key = NodeKey::generate().expect("a key");
        let mut fleet = Self {
            scratch: Scratch::new(),
            public: bundle.public,
            private,
            node_id: String::new(),
            csr: csr::build(&node_key).expect("a request"),
            node_key,
            node_chain: Vec::new(),
            joined: JoinResult::default(),
            token_id: String::new(),
            token: Vec::new(),
            used_token: Vec::new(),
            machine_token_id: String::new(),
            machine_token: Vec::new(),
            site_key: NodeKey::generate().expect("a key"),
            inputs: Cell::new(0),
        };
        (_, fleet.used_token) = fleet.mint(None);
        (fleet.token_id, fleet.token) = fleet.mint(None);
        (fleet.machine_token_id, fleet.machine_token) = fleet.mint(Some(MAC));
        let key = NewSiteKey {
            spki_sha256: fleet.site_key.pin().0,
            spki: &fleet.site_key.spki_der(),
            site: "fsn1",
            name: "",
            added_at_ms: now_ms(),
        };
        fleet.store().add_site_key(&key).expect("a key is kept");
        let request = JoinRequest {
            attestor: "join-token".to_owned(),
            role: Role::NODE,
            credential: Some(fleet.seal(&fleet.csr, &fleet.used_token)),
            csr: fleet.csr.clone(),
            ..JoinRequest::default()
        };
        let mut service = fleet.service(fleet.store());
        let joined = ask(&mut service, Call::Join, &request.encode_to_vec())
            .unwrap_or_else(|refusal| panic!("{refusal}"));
        let result = fleet.verified(&joined.response);
        fleet.node_id.clone_from(&result.node_id);
        fleet.node_chain.clone_from(&result.certificate_chain);
        fleet.joined = result;
        fleet
    }

    /// Whether it has served long enough.
    pub fn is_full(&self) -> bool {
        self.inputs.set(self.inputs.get() + 1);
        self.inputs.get() > INPUTS
    }

    /// The database's file.
    pub fn path(&self) -> PathBuf {
        self.scratch.join("state.db")
    }

    pub fn store(&self) -> Store {
        Store::open(&self.path()).expect("a database")
    }

    pub fn keys(&self) -> Keys {
        Keys::new(&self.public, &self.private, now_ms()).unwrap_or_else(|error| panic!("{error}"))
    }

    pub fn service(&self, store: Store) -> JoinService {
        JoinService::new(self.keys(), Policy::default(), store)
    }

    /// A gateway over the databases that `store` opens, with what stands behind it.
    pub fn gateway(
        &self,
        store: impl Fn() -> Store,
    ) -> (Arc<Gateway>, registry::Registry, Rc<threads::LocalRelay>) {
        let registry = registry::start(store()).unwrap_or_else(|error| panic!("{error}"));
        let relay = threads::start(self.service(store()), 1).expect("threads");
        let settings = Settings {
            trust_domain: self.public.trust_domain.clone(),
            heartbeat: Duration::from_secs(1),
            expected: 0,
        };
        let gateway = Gateway::new(
            settings,
            Arc::new(registry.clone()),
            Arc::new(relay.clone()),
        );
        (gateway, registry, Rc::new(relay))
    }

    pub fn api(&self, store: impl Fn() -> Store) -> Api {
        let (gateway, registry, signer) = self.gateway(store);
        Api {
            base_path: "/api".to_owned(),
            document: Rc::new(RefCell::new("{}".to_owned())),
            downloads: None,
            admin: digest::sha256(ADMIN.as_bytes()),
            registry,
            gateway,
            signer,
            waiting: Cell::new(0),
            rotations: Rc::new(NoRotations(self.public.clone())),
            // No input gets as far as the port behind it.
            bridge: Rc::new(Bridge::new(([127, 0, 0, 1], 9).into())),
        }
    }

    fn mint(&self, mac: Option<Mac>) -> (String, Vec<u8>) {
        let minted = token::mint(now_ms());
        let token = NewToken {
            id: &minted.id,
            digest: minted.digest,
            role: match mac {
                None => Role::NODE.0,
                Some(_) => Role::RAMDISK.0,
            },
            pool: "pool_a",
            site: "fsn1",
            mac,
            allow_reclaim: mac.is_none(),
            created_at_ms: now_ms(),
            expires_at_ms: now_ms() + 24 * HOUR_MS,
        };
        self.store().add_token(&token).expect("a token is kept");
        (minted.id, minted.token.as_bytes().to_vec())
    }

    /// `token`, sealed to this fleet for `csr`.
    pub fn seal(&self, csr: &[u8], token: &[u8]) -> JoinRequestCredential {
        let spki = &self.public.join_encryption_key;
        let point = spki[spki.len() - 65..].try_into().expect("a point");
        let recipient = jwk::PublicKey::from_point(point);
        let sealed = hpke::seal(
            &recipient,
            b"better-compute join v1",
            &digest::sha256(csr),
            token,
        );
        let sealed = sealed.expect("it seals");
        JoinRequestCredential::SealedToken(SealedToken {
            key_pin: recipient.pin().to_string(),
            enc: sealed.enc.to_vec(),
            ciphertext: sealed.ciphertext,
        })
    }

    /// What the JoinService signs.
    pub fn sign(&self, payload: Vec<u8>, purpose: Purpose) -> Envelope {
        let key = NodeKey::from_pkcs8_der(&self.private.join_signing).expect("a key");
        envelope::sign(payload, purpose, &key).expect("a signature")
    }

    /// The answer to a renewal with `csr` of the node that has joined. Bits of `spoilt` say what is wrong with it.
    pub fn renewed(&self, csr: &[u8], spoilt: u8) -> Vec<u8> {
        let mut result = JoinResult {
            csr_sha256: digest::sha256(csr).to_vec(),
            server_time_ms: now_ms(),
            ..self.joined.clone()
        };
        if let Ok(spki) = csr::verify(csr) {
            let issuer = NodeIssuer::new(&self.public.node_ca, &self.private.node_ca);
            let leaf = issuer.and_then(|issuer| {
                issuer.leaf(&spki, &result.spiffe_id, now_ms(), HOUR_MS / 1000 * 24)
            });
            result.certificate_chain[0] = leaf.expect("a certificate");
        }
        if spoilt & 1 != 0 {
            result.csr_sha256.clear();
        }
        if spoilt & 2 != 0 {
            result.certificate_chain.truncate(1);
            result.certificate_chain.extend(vec![vec![spoilt]; 2]);
        }
        if spoilt & 4 != 0 {
            result.role = Role::SITE;
        }
        if spoilt & 8 != 0 {
            result.trust_bundle = None;
        }
        if spoilt & 16 != 0 {
            result.server_time_ms += HOUR_MS * 10_000;
        }
        let purpose = match spoilt & 32 {
            0 => Purpose::JoinResponse,
            _ => Purpose::Renewal,
        };
        let outcome = match spoilt & 64 {
            0 => JoinResponseOutcome::Signed(self.sign(result.encode_to_vec(), purpose)),
            _ => JoinResponseOutcome::Deferral(JoinDeferral::default()),
        };
        JoinResponse {
            outcome: (spoilt & 128 == 0).then_some(outcome),
        }
        .encode_to_vec()
    }

    /// What a node makes of an answer, by the pinned signing key alone.
    pub fn verified(&self, answer: &[u8]) -> JoinResult {
        let response = JoinResponse::decode(answer).expect("an answer decodes");
        let Some(JoinResponseOutcome::Signed(signed)) = response.outcome else {
            panic!("an answer is signed");
        };
        let pins = [self.public.pins().join_signing];
        let payload = envelope::verify_pinned(&signed, Purpose::JoinResponse, &pins);
        JoinResult::decode(payload.expect("it verifies")).expect("it decodes")
    }
}

/// What this thread keeps in `place`, made anew when its fleet is full.
pub fn with<T>(
    place: &'static std::thread::LocalKey<std::cell::RefCell<Option<Rc<T>>>>,
    fleet: impl Fn(&T) -> &Fleet,
    new: impl Fn() -> T,
) -> Rc<T> {
    let kept = place.with_borrow(Clone::clone);
    match kept {
        Some(kept) if !fleet(&kept).is_full() => kept,
        _ => {
            let made = Rc::new(new());
            place.set(Some(made.clone()));
            made
        }
    }
}

/// Rotations are done elsewhere; here they are only asked for.
struct NoRotations(Public);

impl Rotations for NoRotations {
    fn public(&self) -> Public {
        self.0.clone()
    }

    fn behind(self: Rc<Self>) -> Answer<Result<BTreeMap<&'static str, Laggards>, NotRotated>> {
        Box::pin(async { Ok(BTreeMap::new()) })
    }

    fn rotate(
        self: Rc<Self>,
        _: Kind,
        _: Step,
        _: bool,
        _: Duration,
    ) -> Answer<Result<(), NotRotated>> {
        Box::pin(async { Err(NotRotated::Busy) })
    }
}
