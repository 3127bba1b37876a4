//! Opening a relative path, symlinks followed, that can never leave its directory: openat2's
//! RESOLVE_BENEATH, or the same rule walked by hand where the kernel has no openat2.
use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat, openat2, readlinkat};
use rustix::io::Errno;

use super::retry;

/// As the kernel's own bound (MAXSYMLINKS).
const MAX_LINKS: usize = 40;

/// Opens `path` beneath `dir`. An absolute path or symlink, and a `..` that would climb above
/// `dir`, are EXDEV.
pub(super) fn open(dir: BorrowedFd<'_>, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    match retry(|| openat2(dir, path, flags, Mode::empty(), resolve)) {
        Err(Errno::NOSYS | Errno::PERM) => walk(dir, path, flags),
        // A rename raced the walk (openat2(2)); once more is the documented remedy.
        Err(Errno::AGAIN) => retry(|| openat2(dir, path, flags, Mode::empty(), resolve)),
        opened => opened,
    }
}

/// The fallback. Each component is opened without following links; a link's text takes its
/// place in the queue.
fn walk(dir: BorrowedFd<'_>, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut queue: VecDeque<Step> = VecDeque::new();
    prepend(&mut queue, path)?;
    let mut open: Vec<OwnedFd> = Vec::new();
    let mut links = 0;
    while let Some(step) = queue.pop_front() {
        let name = match step {
            Step::Up => {
                open.pop().ok_or(Errno::XDEV)?;
                continue;
            }
            Step::Into(name) => name,
        };
        let here = open.last().map_or(dir, AsFd::as_fd);
        match retry(|| readlinkat(here, &name, Vec::new())) {
            Ok(text) => {
                links += 1;
                if links > MAX_LINKS {
                    return Err(Errno::LOOP);
                }
                prepend(
                    &mut queue,
                    Path::new(&OsString::from_vec(text.into_bytes())),
                )?;
            }
            // Not a link.
            Err(Errno::INVAL) if queue.is_empty() => {
                return retry(|| openat(here, &name, flags | OFlags::NOFOLLOW, Mode::empty()));
            }
            Err(Errno::INVAL) => {
                let directory =
                    OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let next = retry(|| openat(here, &name, directory, Mode::empty()))?;
                open.push(next);
            }
            Err(errno) => return Err(errno),
        }
    }
    // The path ended in a directory ("..", "a/..").
    let here = open.last().map_or(dir, AsFd::as_fd);
    retry(|| openat(here, ".", flags, Mode::empty()))
}

enum Step {
    Into(OsString),
    Up,
}

fn prepend(queue: &mut VecDeque<Step>, path: &Path) -> Result<(), Errno> {
    if path.as_os_str().is_empty() {
        return Err(Errno::NOENT);
    }
    for component in path.components().rev() {
        match component {
            Component::Normal(name) => queue.push_front(Step::Into(name.to_owned())),
            Component::ParentDir => queue.push_front(Step::Up),
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return Err(Errno::XDEV),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::fs::Dir;
    use std::os::unix::fs::symlink;

    #[test]
    fn the_walk_by_hand_answers_as_the_kernel_does() {
        let root = crate::sys::fs::tests::scratch("beneath");
        std::fs::create_dir_all(root.join("in/..2026/sub")).unwrap();
        std::fs::write(root.join("outside"), "secret").unwrap();
        std::fs::write(root.join("in/..2026/token"), "t").unwrap();
        std::fs::write(root.join("in/plain"), "p").unwrap();
        symlink("..2026", root.join("in/..data")).unwrap();
        symlink("..data/token", root.join("in/token")).unwrap();
        symlink("../outside", root.join("in/up")).unwrap();
        symlink(root.join("in/plain"), root.join("in/absolute")).unwrap();
        symlink("loop", root.join("in/loop")).unwrap();
        symlink("missing", root.join("in/dangling")).unwrap();
        symlink("..2026/sub/../../plain", root.join("in/round")).unwrap();
        let dir = Dir::open(&root.join("in")).unwrap();
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        for path in [
            "plain",
            "token",
            "..data/token",
            "up",
            "absolute",
            "loop",
            "dangling",
            "round",
            "..",
            "../outside",
            "missing",
            "plain/x",
            "..data/../plain",
            "./plain",
            "..data/sub/../../..",
            "/etc/passwd",
            ".",
            "..data",
        ] {
            let path = Path::new(path);
            let kernel = open(dir.as_fd(), path, flags).map(|fd| ident(&fd));
            let hand = walk(dir.as_fd(), path, flags).map(|fd| ident(&fd));
            assert_eq!(kernel, hand, "{}", path.display());
        }
    }

    fn ident(fd: &OwnedFd) -> (u64, u64) {
        let stat = rustix::fs::fstat(fd).unwrap();
        (stat.st_dev, stat.st_ino)
    }
}
