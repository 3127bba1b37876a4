//! What a gateway's session does with a node's events and outputs, in any order: only what was brought and
//! stored is acknowledged, never less than before; what waits is bounded; an output is fetched in place.
use bcd::proto::{Message, OutputChunk};
use better_compute::gateway::session::fetch::{Fetching, Next, Step};
use better_compute::gateway::session::intake::Intake;
use better_compute::store::{Fetch, Kept};

pub const HEAP: super::Heap = super::Heap {
    base: 64 << 10,
    per_byte: 256,
};

/// The first byte says whether there is a journal, and where it stands; then come steps: a byte that says
/// which, a length, and so many bytes.
pub fn run(data: &[u8]) {
    let Some((first, mut rest)) = data.split_first() else {
        return;
    };
    let resume = u64::from(first >> 1);
    let mut intake = Intake::new(first & 1 == 1, resume);
    let mut fetching = Fetching::default();
    let (mut brought, mut stored, mut acknowledged) = (0, resume, None);
    while let [step, length, more @ ..] = rest {
        let (bytes, after) = more.split_at(usize::from(*length).min(more.len()));
        rest = after;
        match step % 4 {
            0 => {
                if intake.has_room() && intake.take(bytes.to_vec()).is_err() {
                    return;
                }
            }
            1 => {
                for event in intake.next_batch().unwrap_or_default() {
                    assert!(event.sequence > brought, "events are stored in order");
                    assert!(
                        event.sequence > resume,
                        "what is stored is not stored again"
                    );
                    brought = event.sequence;
                    stored = stored.max(brought);
                }
                intake.stored(stored);
            }
            2 => {
                let size = bytes.first().map_or(0, |size| u64::from(*size) * 1024);
                let output = Fetch {
                    command: 7,
                    id: "cmd_a".to_owned(),
                    size,
                    received: bytes.get(1).map_or(0, |at| u64::from(*at) * 512),
                };
                fetching.begin(output);
            }
            _ => {
                let Ok(chunk) = OutputChunk::decode(bytes) else {
                    continue;
                };
                let came = chunk.data.len() as u64;
                match fetching.take(chunk) {
                    Err(_) => return,
                    Ok(Step::Keep { start, data, .. }) => {
                        assert!(data.len() as u64 >= came && data.len() <= 64 << 10);
                        let end = start + data.len() as u64;
                        if let Next::Ask(request) = fetching.kept(Kept::Part(end)) {
                            assert_eq!(request.offset, end);
                        }
                    }
                    Ok(_) => {}
                }
            }
        }
        if let Some(position) = intake.acknowledgement() {
            assert!(
                position <= stored,
                "nothing is acknowledged before it is stored"
            );
            assert!(Some(position) >= acknowledged, "it goes back");
            acknowledged = Some(position);
        }
    }
}
