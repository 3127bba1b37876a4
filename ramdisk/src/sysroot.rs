//! The machine or directory that tools and libraries are taken from. Paths in it are resolved beneath it: an
//! absolute link in an unpacked system points into that system, not to the building machine.
use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::problem::Problem;

/// The most links that resolving one path may follow, as in the kernel.
const MAX_LINKS: usize = 40;

/// A directory taken as `/`.
#[derive(Debug, Clone)]
pub struct Sysroot {
    root: PathBuf,
}

impl Sysroot {
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The real place of `path` (absolute, as seen from inside), or `None` when there is nothing.
    ///
    /// # Errors
    /// Too many links.
    pub fn resolve(&self, path: &Path) -> Result<Option<PathBuf>, Problem> {
        // What is still to be walked, last part first.
        let mut todo: Vec<PathBuf> = parts(path);
        let mut at = PathBuf::new();
        let mut links = 0;
        while let Some(part) = todo.pop() {
            if part.as_os_str() == ".." {
                at.pop();
                continue;
            }
            let next = at.join(&part);
            let real = self.root.join(&next);
            let Ok(metadata) = fs::symlink_metadata(&real) else {
                return Ok(None);
            };
            if !metadata.is_symlink() {
                at = next;
                continue;
            }
            links += 1;
            if links > MAX_LINKS {
                return Err(Problem::new(format!(
                    "{} goes through more than {MAX_LINKS} links",
                    path.display()
                )));
            }
            let target =
                fs::read_link(&real).map_err(|error| Problem::with("read", &real, error))?;
            if target.is_absolute() {
                at = PathBuf::new();
            }
            todo.extend(parts(&target));
        }
        Ok(Some(self.root.join(at)))
    }
}

/// The parts of a path, last first, without `/` and `.`.
fn parts(path: &Path) -> Vec<PathBuf> {
    path.components()
        .rev()
        .filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir))
        .map(|part| PathBuf::from(part.as_os_str()))
        .collect()
}
