//! Whether the state directory is there, private and writable.
use std::os::unix::fs::MetadataExt;

use super::{Seen, Verdict, chain, look_again};
use crate::sys::{fs, user};

pub(super) fn run(seen: &mut Seen<'_>) -> Verdict {
    let shown = seen.data_dir.display();
    let there = match std::fs::metadata(&seen.data_dir) {
        Ok(there) => there,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Verdict::warn(format!("{shown} is missing"), "bcd join makes it");
        }
        Err(error) => {
            return Verdict::unseen(&format!("{shown}: {error}"), look_again(&error));
        }
    };
    if !there.is_dir() {
        return Verdict::fail(
            format!("{shown} is no directory"),
            "move it away, or correct data_dir",
        );
    }
    let mode = there.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Verdict::warn(
            format!("{shown} (mode {mode:04o}) is open to others than its owner"),
            format!("run chmod 0700 {shown}"),
        );
    }
    let euid = user::euid();
    if euid != 0 && euid != there.uid() {
        return Verdict::unseen(
            &format!(
                "{shown} is of user {}, and this is user {euid}",
                there.uid()
            ),
            "run it as root",
        );
    }
    match fs::Dir::open(&seen.data_dir).and_then(|dir| dir.try_write()) {
        Ok(()) => Verdict::ok(format!("{shown} can be written, mode {mode:04o}")),
        Err(error) => Verdict::fail(
            chain(&error),
            error
                .remedy()
                .unwrap_or("look at that filesystem: mount, lsattr -d, the kernel's log"),
        ),
    }
}
