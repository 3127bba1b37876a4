//! Whether the key that a join token is sealed to is the pinned one.
use super::{Seen, Verdict, chain};
use crate::crypto::jwk::PublicKey;
use crate::sys::fs::Dir;

/// The longest key file read.
const LONGEST: usize = 16 << 10;

pub(super) fn run(seen: &mut Seen<'_>) -> Verdict {
    let Ok(config) = seen.config else {
        return Verdict::no_config();
    };
    let path = config.join_encryption_jwk();
    let (Some(parent), Some(name)) = (path.parent(), path.file_name().and_then(|n| n.to_str()))
    else {
        return Verdict::unseen("its path names no file", "");
    };
    let shown = path.display();
    let needed = if seen.joined {
        "it is not needed any more"
    } else {
        "write it as the control plane's install script has it, or join with bcd join --server"
    };
    let bytes = match Dir::open(parent).and_then(|dir| dir.read(name, LONGEST)) {
        Ok(bytes) => bytes,
        Err(error) if error.is_missing() && seen.joined => {
            return Verdict::ok(format!("{shown} is missing; {needed}"));
        }
        Err(error) => return Verdict::warn(chain(&error), needed),
    };
    let wrong = |why: String| {
        if seen.joined {
            Verdict::warn(why, needed)
        } else {
            Verdict::fail(why, needed)
        }
    };
    match PublicKey::parse(&bytes) {
        Err(error) => wrong(format!("{shown}: {}", chain(&error))),
        Ok(key) if key.pin() != config.join_encryption_key_pin => wrong(format!(
            "{shown} holds {}, and {} is pinned ({})",
            key.pin(),
            config.join_encryption_key_pin,
            config.whereabouts("", "join_encryption_key_pin")
        )),
        Ok(key) => Verdict::ok(format!("{shown} holds the pinned {}", key.pin())),
    }
}
