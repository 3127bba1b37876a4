//! A spec as a gateway sends it, signed or not: only one of this node, not older than the one held and within
//! its limits is taken, and it is taken as it came.
use std::collections::BTreeSet;
use std::sync::LazyLock;

use bcd::crypto::envelope::{self, Purpose};
use bcd::crypto::key::NodeKey;
use bcd::proto::{Envelope, Message};
use bcd::session::spec;

pub const HEAP: super::Heap = super::Heap {
    base: 64 << 10,
    per_byte: 256,
};

const HELD: u64 = 5;

static SIGNING: LazyLock<NodeKey> = LazyLock::new(|| NodeKey::generate().expect("a key"));

pub fn run(data: &[u8]) {
    let signed = envelope::sign(data.to_vec(), Purpose::NodeSpec, &SIGNING).expect("a signature");
    judge(signed);
    if let Ok(unsigned) = Envelope::decode(data) {
        assert!(spec::verify(unsigned, &[SIGNING.pin()], "node_1", HELD).is_err());
    }
}

fn judge(signed: Envelope) {
    match spec::verify(signed.clone(), &[SIGNING.pin()], "node_1", HELD) {
        Ok(taken) => {
            assert_eq!(taken.envelope, signed);
            let spec = taken.spec;
            assert!(spec.node_id == "node_1" && spec.generation >= HELD);
            let names: BTreeSet<&str> = spec.sections.iter().map(|s| s.name.as_str()).collect();
            assert!(names.len() == spec.sections.len() && names.len() <= 256);
            assert!(names.iter().all(|name| (1..=64).contains(&name.len())));
        }
        Err(error) => assert!(!error.to_string().chars().any(char::is_control)),
    }
}
