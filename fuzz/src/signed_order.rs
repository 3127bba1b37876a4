//! An order as a gateway passes it on, signed or not: only one for this command and node, within its time, is followed.
use std::sync::LazyLock;

use bcd::command::signed;
use bcd::crypto::digest::sha256;
use bcd::crypto::envelope::{self, Purpose};
use bcd::crypto::key::NodeKey;
use bcd::proto::{Command, Envelope, Message, Order};

pub const HEAP: super::Heap = super::Heap {
    base: 64 << 10,
    per_byte: 64,
};

const NOW: i64 = 1_790_000_000_000;

static SIGNING: LazyLock<NodeKey> = LazyLock::new(|| NodeKey::generate().expect("a key"));

pub fn run(data: &[u8]) {
    let mut command = Command {
        id: "cmd_01kb7w3x9qn5v8m2r6t4y0sdfh".to_owned(),
        kind: "disks.wipe".to_owned(),
        params: b"params".to_vec(),
        deadline_ms: NOW,
        order: Envelope::decode(data).ok(),
    };
    let judge = |command: &Command| {
        let found = signed::verify(command, &[SIGNING.pin()], "node_1", NOW);
        if let Err(refused) = &found {
            assert!(!refused.failure().message.chars().any(char::is_control));
        }
        found.ok()
    };
    assert_eq!(judge(&command), None, "nobody signed it");
    let signed = envelope::sign(data.to_vec(), Purpose::Order, &SIGNING).expect("a signature");
    command.order = Some(signed);
    if let Some(id) = judge(&command) {
        let order = Order::decode(data).expect("it was read before");
        assert_eq!(order.order_id, id);
        assert_eq!(order.params_sha256, sha256(&command.params));
        assert!(order.node_id == "node_1" && order.command_id == command.id);
        assert!(order.kind == command.kind && order.expires_ms > NOW);
        assert!(order.expires_ms - order.made_ms <= 86_400_000);
    }
}
