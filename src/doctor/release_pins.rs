//! Whether this node could take an update.
use super::{Seen, Verdict};

pub(super) fn run(seen: &mut Seen<'_>) -> Verdict {
    let Ok(config) = seen.config else {
        return Verdict::no_config();
    };
    match config.update.release_pins.len() {
        0 => Verdict::warn(
            "[update] release_pins is empty: every self-update is refused",
            "put the pins of the release keys there, if this node shall update itself",
        ),
        pins => Verdict::ok(format!(
            "{pins} release keys pinned, {} must have signed",
            config.update.release_threshold
        )),
    }
}
