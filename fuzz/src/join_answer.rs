//! What stands behind a JoinService's signature: a holder of the signing key can have a join refused,
//! and nothing else; no payload that was not made for this request is accepted.
use std::sync::LazyLock;

use bcd::attest::join::verdict::{Expected, judge};
use bcd::crypto::envelope::{self, Purpose};
use bcd::crypto::{csr, key::NodeKey};
use bcd::identity::trust::{Configured, Trust};
use bcd::proto::{JoinResult, Message, Role};

pub const HEAP: super::Heap = super::Heap {
    base: 64 << 10,
    per_byte: 256,
};

struct Fixed {
    signing: NodeKey,
    node: NodeKey,
    csr: Vec<u8>,
}

static FIXED: LazyLock<Fixed> = LazyLock::new(|| {
    let node = NodeKey::generate().expect("a key");
    Fixed {
        signing: NodeKey::generate().expect("a key"),
        csr: csr::build(&node).expect("a request"),
        node,
    }
});

pub fn run(data: &[u8]) {
    let Fixed { signing, node, csr } = &*FIXED;
    // With the digest of our request, so that the checks behind it are reached.
    let mut payloads = vec![data.to_vec()];
    if let Ok(mut result) = JoinResult::decode(data) {
        result.csr_sha256 = bcd::crypto::digest::sha256(csr).to_vec();
        if let Some(bundle) = &mut result.trust_bundle {
            let signed = envelope::sign(bundle.payload.clone(), Purpose::TrustBundle, signing);
            *bundle = signed.expect("a signature");
        }
        payloads.push(result.encode_to_vec());
    }
    for payload in payloads {
        let answer = envelope::sign(payload, Purpose::JoinResponse, signing).expect("a signature");
        let spki = node.spki_der();
        let trust = Trust::of(Configured {
            serving_ca: signing.pin(),
            join_signing: signing.pin(),
        });
        let expected = Expected {
            csr,
            node_key: &spki,
            role: Role::NODE,
            site: "",
            spiffe_id: None,
            trust: &trust,
            build_time_ms: 0,
        };
        let refused = judge(&answer, &expected).expect_err("no certificate is for this new key");
        let said = refused.to_string();
        assert!(!said.chars().any(char::is_control), "{said:?}");
    }
}
