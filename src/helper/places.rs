//! Where nobody but root may write: what the helper reads and runs has to lie there.
//!
//! A path is walked from `/` down, through each symlink in it: every directory on the way has to be root's, and
//! closed to writes of its group and of others. Whoever could write in one could put something else in the
//! place of what is below.
use std::collections::VecDeque;
use std::ffi::OsString;
use std::fmt;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use crate::config::Config;

/// As the kernel's own bound (MAXSYMLINKS).
const LINKS: usize = 40;

/// A path that root cannot go by, and what to do about it.
#[derive(Debug, PartialEq, Eq)]
pub struct Problem {
    pub what: String,
    pub remedy: String,
    /// Nothing is there, which for the socket's directory is so while bcd-helper.service does not run.
    pub is_missing: bool,
}

/// All that keeps a helper of this configuration from starting.
pub fn problems(config: &Config) -> Vec<Problem> {
    let mut problems = Vec::new();
    let update = &config.update;
    let parents = [&config.path, &update.entrypoint]
        .into_iter()
        .filter_map(|file| Some((file.parent()?, false)));
    let socket_dir = config.helper.as_ref().and_then(|it| it.socket.parent());
    let dirs = parents
        .chain([(update.slots_dir.as_path(), false)])
        .chain(socket_dir.map(|dir| (dir, true)));
    for (dir, needed) in dirs {
        let found = match walk(dir) {
            Ok(true) => continue,
            Ok(false) if !needed => continue,
            Ok(false) => Problem {
                what: format!("{} is missing", dir.display()),
                remedy: format!("run mkdir -m 0755 {}", dir.display()),
                is_missing: true,
            },
            Err(problem) => problem,
        };
        if !problems.contains(&found) {
            problems.push(found);
        }
    }
    problems.extend(file(&config.path));
    problems
}

/// The configuration decides what root does.
fn file(path: &Path) -> Option<Problem> {
    let shown = path.display();
    match std::fs::symlink_metadata(path) {
        Ok(there) if !there.is_file() => Some(Problem {
            what: format!("{shown} is no regular file"),
            remedy: "put the file itself there".to_owned(),
            is_missing: false,
        }),
        Ok(there) => judge(path, &there),
        Err(error) => Some(unseen(path, &error)),
    }
}

/// Whether the directory is there; as far as it is, it is root's alone.
fn walk(path: &Path) -> Result<bool, Problem> {
    let absolute = std::path::absolute(path).map_err(|error| unseen(path, &error))?;
    let mut left: VecDeque<OsString> = parts(&absolute);
    let mut here = PathBuf::from("/");
    let mut links = 0;
    look(&here)?;
    while let Some(part) = left.pop_front() {
        if part == ".." {
            here.pop();
            continue;
        }
        let next = here.join(&part);
        let there = match std::fs::symlink_metadata(&next) {
            Ok(there) => there,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(unseen(&next, &error)),
        };
        if !there.is_symlink() {
            here = next;
            look(&here)?;
            continue;
        }
        links += 1;
        let target = std::fs::read_link(&next).map_err(|error| unseen(&next, &error))?;
        if links > LINKS {
            return Err(unseen(&next, &io::Error::from_raw_os_error(libc::ELOOP)));
        }
        if target.is_absolute() {
            here = PathBuf::from("/");
        }
        let mut rest = parts(&target);
        rest.append(&mut left);
        left = rest;
    }
    Ok(true)
}

fn parts(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir))
        .map(|part| part.as_os_str().to_owned())
        .collect()
}

/// A directory by its full path.
fn look(dir: &Path) -> Result<(), Problem> {
    match std::fs::symlink_metadata(dir) {
        Ok(there) if there.is_dir() => judge(dir, &there).map_or(Ok(()), Err),
        Ok(_) => Err(Problem {
            what: format!("{} is no directory", dir.display()),
            remedy: "move it away, or correct the path".to_owned(),
            is_missing: false,
        }),
        Err(error) => Err(unseen(dir, &error)),
    }
}

fn judge(path: &Path, there: &Metadata) -> Option<Problem> {
    let shown = path.display();
    let mode = there.mode() & 0o7777;
    if there.uid() != 0 {
        return Some(Problem {
            what: format!("{shown} is of user {}, not root's", there.uid()),
            remedy: format!("run chown root {shown}"),
            is_missing: false,
        });
    }
    let (who, bits) = match (mode & 0o020 != 0, mode & 0o002 != 0) {
        (false, false) => return None,
        (true, false) => ("its group", "g-w"),
        (false, true) => ("others", "o-w"),
        (true, true) => ("its group and others", "go-w"),
    };
    Some(Problem {
        what: format!("{shown} (mode {mode:04o}) can be written by {who}"),
        remedy: format!("run chmod {bits} {shown}"),
        is_missing: false,
    })
}

fn unseen(path: &Path, error: &io::Error) -> Problem {
    Problem {
        what: format!("{} cannot be looked at: {error}", path.display()),
        remedy: "run it as root".to_owned(),
        is_missing: false,
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.remedy)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::sys::fs::tests::scratch;

    fn mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }

    /// What is said of a directory below a scratch one, whatever /tmp itself is.
    fn said(path: &Path) -> String {
        match look(path) {
            Ok(()) => String::new(),
            Err(problem) => problem.to_string(),
        }
    }

    #[test]
    fn a_directory_that_others_can_write_is_named_with_what_to_do() {
        let dir = scratch("places");
        let root = rustix::process::geteuid().is_root();
        for (bits, wanted) in [
            (0o755, ""),
            (
                0o1777,
                "can be written by its group and others: run chmod go-w",
            ),
            (0o2775, "can be written by its group: run chmod g-w"),
            (0o707, "can be written by others: run chmod o-w"),
        ] {
            mode(&dir, bits);
            let wanted = if root {
                wanted
            } else {
                "not root's: run chown root"
            };
            let said = said(&dir);
            assert_eq!(said.is_empty(), wanted.is_empty(), "{said}");
            assert!(said.contains(wanted), "{said}");
        }
        mode(&dir, 0o755);
    }

    #[test]
    fn the_way_is_walked_from_the_root_and_through_every_link() {
        // On every machine: /proc is root's alone, and /tmp everybody's.
        assert_eq!(walk(Path::new("/proc")), Ok(true));
        assert_eq!(walk(Path::new("/proc/no/such")), Ok(false));
        assert_eq!(
            walk(Path::new("/proc/self/..")).map_err(|p| p.what),
            Ok(true)
        );
        let problem = walk(Path::new("/tmp/x/y")).unwrap_err();
        assert!(problem.what.starts_with("/tmp ("), "{problem}");
        let dir = scratch("places-links");
        symlink("/tmp", dir.join("absolute")).unwrap();
        symlink("loop", dir.join("loop")).unwrap();
        // Whatever is wrong above them is found first; here only what they lead to matters.
        for link in ["absolute", "loop"] {
            assert!(walk(&dir.join(link).join("below")).is_err(), "{link}");
        }
    }

    #[test]
    fn a_configuration_that_is_no_file_of_roots_is_named() {
        let dir = scratch("places-file");
        let path = dir.join("config.toml");
        let what = || file(&path).map(|problem| problem.what).unwrap_or_default();
        assert!(what().contains("cannot be looked at"));
        std::fs::write(&path, "").unwrap();
        mode(&path, 0o660);
        let wanted = match rustix::process::geteuid().is_root() {
            true => "can be written by its group",
            false => "not root's",
        };
        assert!(what().contains(wanted), "{}", what());
        std::fs::remove_file(&path).unwrap();
        symlink("/etc/passwd", &path).unwrap();
        assert!(what().contains("is no regular file"));
    }
}
