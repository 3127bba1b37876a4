//! LLDP: what a switch says of itself becomes short plain texts, whatever it says.
use init::lldp;

pub const HEAP: super::Heap = super::Heap {
    base: 4096,
    per_byte: 16,
};

pub fn run(data: &[u8]) {
    let Some(found) = lldp::neighbour(data) else {
        return;
    };
    for (text, most) in [
        (&found.system, 128),
        (&found.chassis, 128),
        (&found.port, 259),
    ] {
        assert!(text.len() <= most && !text.chars().any(char::is_control));
    }
}
