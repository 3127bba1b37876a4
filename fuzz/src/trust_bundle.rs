//! What stands behind a JoinService's signature on a trust bundle: whoever holds that key says whom nodes
//! trust, but no bundle leaves a node with nobody, sets it back, or is read another way at the next start.
use std::sync::LazyLock;

use bcd::crypto::envelope::{self, Purpose};
use bcd::crypto::key::NodeKey;
use bcd::identity::trust::{Configured, Trust};
use bcd::proto::{Message, TrustBundle};

pub const HEAP: super::Heap = super::Heap {
    base: 64 << 10,
    per_byte: 256,
};

struct Fixed {
    signing: NodeKey,
    configured: Configured,
    held: Trust,
}

static FIXED: LazyLock<Fixed> = LazyLock::new(|| {
    let signing = NodeKey::generate().expect("a key");
    let configured = Configured {
        serving_ca: NodeKey::generate().expect("a key").pin(),
        join_signing: signing.pin(),
    };
    let bundle = TrustBundle {
        version: 1,
        ..TrustBundle::default()
    };
    let signed = envelope::sign(bundle.encode_to_vec(), Purpose::TrustBundle, &signing);
    let held = Trust::of(configured).take(&signed.expect("a signature"));
    Fixed {
        signing,
        configured,
        held: held.expect("it holds").expect("it is new"),
    }
});

pub fn run(data: &[u8]) {
    let Fixed {
        signing,
        configured,
        held,
    } = &*FIXED;
    let signed = envelope::sign(data.to_vec(), Purpose::TrustBundle, signing).expect("a signature");
    match held.take(&signed) {
        Ok(Some(taken)) => {
            assert!(taken.version() > held.version());
            assert!(!taken.serving_pins().is_empty() && !taken.signers().is_empty());
            assert!(taken.node_cas().len() <= taken.bundle().node_cas.len());
            let (read, error) = Trust::read(*configured, taken.chain().to_vec());
            assert_eq!((&read, error), (&taken, None));
        }
        Ok(None) => {}
        Err(error) => assert!(!error.to_string().chars().any(char::is_control)),
    }
}
