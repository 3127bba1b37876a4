//! Whether the gateway is reached through a proxy.
use super::{Seen, Verdict};

pub(super) fn run(seen: &mut Seen<'_>) -> Verdict {
    let Ok(_config) = seen.config else {
        return Verdict::no_config();
    };
    Verdict::ok("none")
}
