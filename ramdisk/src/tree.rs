//! The image's files before they are written. `/bin`, `/sbin`, `/lib` and `/lib64` are links into `/usr`,
//! as on every distribution today, and what is put there lands in `/usr`. Parents are made as needed.
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use crate::compress;
use crate::cpio::{CHARACTER, DIRECTORY, Entry, REGULAR, SYMLINK, Writer};
use crate::problem::Problem;

const MERGED: [&str; 4] = ["bin", "sbin", "lib", "lib64"];
/// The largest file an image may hold; the format's own limit is 4 GiB.
const MAX_FILE: u64 = 1 << 30;

/// What stands at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    Directory,
    /// Content made here, and the permission bits.
    Text(Vec<u8>, u32),
    /// A file of the building machine, and the permission bits.
    File(PathBuf, u32),
    /// A kernel module, unpacked on the way: the image is compressed as a whole, better so.
    Module(PathBuf),
    Symlink(String),
    /// Major and minor number of a character device, and the permission bits.
    Device(u32, u32, u32),
}

/// The image's files by path.
#[derive(Debug, Default)]
pub struct Tree {
    nodes: BTreeMap<String, Node>,
}

impl Tree {
    /// An empty system: the merged directories, where things are mounted, and the two device files a
    /// kernel without devtmpfs cannot do without.
    pub fn new() -> Self {
        let mut tree = Self::default();
        for name in MERGED {
            tree.nodes
                .insert(name.to_owned(), Node::Symlink(format!("usr/{name}")));
            tree.nodes.insert(format!("usr/{name}"), Node::Directory);
        }
        for name in [
            "dev", "etc", "proc", "root", "run", "sys", "tmp", "usr", "var",
        ] {
            tree.nodes.insert(name.to_owned(), Node::Directory);
        }
        tree.nodes
            .insert("dev/console".to_owned(), Node::Device(5, 1, 0o600));
        tree.nodes
            .insert("dev/null".to_owned(), Node::Device(1, 3, 0o666));
        tree
    }

    /// Puts `node` at `path` (with or without a leading `/`). The same node twice is one.
    ///
    /// # Errors
    /// The path climbs, is empty, passes through a file, or holds something else already.
    pub fn put(&mut self, path: &str, node: Node) -> Result<(), Problem> {
        let path = inside(path)?;
        let mut parent = path.as_str();
        while let Some((above, _)) = parent.rsplit_once('/') {
            match self.nodes.get(above) {
                None => {
                    self.nodes.insert(above.to_owned(), Node::Directory);
                }
                Some(Node::Directory) => {}
                Some(_) => {
                    return Err(Problem::new(format!(
                        "cannot put /{path} into the image: /{above} is no directory there"
                    )));
                }
            }
            parent = above;
        }
        match self.nodes.get(&path) {
            Some(there) if *there == node => Ok(()),
            Some(_) => Err(Problem::new(format!(
                "cannot put two different things at /{path} in the image"
            ))),
            None => {
                self.nodes.insert(path, node);
                Ok(())
            }
        }
    }

    /// Whether something stands at `path`.
    pub fn holds(&self, path: &str) -> bool {
        inside(path).is_ok_and(|path| self.nodes.contains_key(&path))
    }

    /// Writes the archive: sorted, so that the same tree is the same bytes.
    ///
    /// # Errors
    /// A file cannot be read, is too large, or the writer fails.
    pub fn write(&self, out: impl Write) -> Result<(), Problem> {
        let mut writer = Writer::new(out);
        for (path, node) in &self.nodes {
            let at = Path::new(path);
            let failed = |error| Problem::with("write into the image", at, error);
            match node {
                Node::Directory => {
                    let mode = if path == "root" { 0o700 } else { 0o755 };
                    put(&mut writer, path, DIRECTORY | mode, (0, 0), &[]).map_err(failed)?;
                }
                Node::Symlink(target) => {
                    put(
                        &mut writer,
                        path,
                        SYMLINK | 0o777,
                        (0, 0),
                        target.as_bytes(),
                    )
                    .map_err(failed)?;
                }
                Node::Text(content, mode) => {
                    put(&mut writer, path, REGULAR | mode, (0, 0), content).map_err(failed)?;
                }
                Node::Device(major, minor, mode) => {
                    put(&mut writer, path, CHARACTER | mode, (*major, *minor), &[])
                        .map_err(failed)?;
                }
                Node::Module(source) => {
                    let content = compress::unpacked_module(source)?;
                    put(&mut writer, path, REGULAR | 0o644, (0, 0), &content).map_err(failed)?;
                }
                Node::File(source, mode) => {
                    let (mut file, size) = open(source)?;
                    let entry = Entry {
                        name: path.clone().into_bytes(),
                        mode: REGULAR | mode,
                        device: (0, 0),
                        size,
                    };
                    writer
                        .entry(&entry, &mut file)
                        .map_err(|error| Problem::with("put into the image", source, error))?;
                }
            }
        }
        writer
            .finish()
            .and_then(|mut out| out.flush())
            .map_err(|error| Problem::with("write", Path::new("the image"), error))
    }
}

fn put(
    writer: &mut Writer<impl Write>,
    path: &str,
    mode: u32,
    device: (u32, u32),
    content: &[u8],
) -> io::Result<()> {
    let size = u32::try_from(content.len())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "larger than 4 GiB"))?;
    let entry = Entry {
        name: path.as_bytes().to_vec(),
        mode,
        device,
        size,
    };
    writer.entry(&entry, &mut &content[..])
}

/// Opens a regular file and says its size.
fn open(path: &Path) -> Result<(File, u32), Problem> {
    let failed = |error: io::Error| Problem::with("read", path, error);
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(Problem::new(format!("{} is no file", path.display())));
    }
    match u32::try_from(metadata.len()) {
        Ok(size) if metadata.len() <= MAX_FILE => Ok((file, size)),
        _ => Err(Problem::new(format!(
            "{} is larger than 1 GiB",
            path.display()
        ))),
    }
}

/// Reads a whole file of at most `limit` bytes.
///
/// # Errors
/// It cannot be read, or is larger.
pub fn read(path: &Path, limit: usize) -> Result<Vec<u8>, Problem> {
    let (file, size) = open(path)?;
    let mut content = Vec::with_capacity((size as usize).min(limit));
    file.take(limit as u64 + 1)
        .read_to_end(&mut content)
        .map_err(|error| Problem::with("read", path, error))?;
    if content.len() > limit {
        return Err(Problem::new(format!(
            "{} is larger than {limit} bytes",
            path.display()
        )));
    }
    Ok(content)
}

/// The path without its leading `/`, in `/usr` where the directory is a merged one.
fn inside(path: &str) -> Result<String, Problem> {
    let relative = path.trim_start_matches('/');
    let fine = !relative.contains('\0')
        && relative
            .split('/')
            .all(|part| !matches!(part, "" | "." | ".."));
    if !fine {
        return Err(Problem::new(format!(
            "{path:?} is no path in an image: it is empty or climbs"
        )));
    }
    match relative.split_once('/') {
        Some((first, _)) if MERGED.contains(&first) => Ok(format!("usr/{relative}")),
        _ => Ok(relative.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpio::Reader;

    #[test]
    fn what_goes_to_a_merged_directory_lands_in_usr_and_parents_come_first() {
        let mut tree = Tree::new();
        tree.put("/sbin/x/y", Node::Text(b"1".to_vec(), 0o755))
            .unwrap();
        assert!(tree.holds("usr/sbin/x/y") && tree.holds("/sbin/x/y"));
        let mut bytes = Vec::new();
        tree.write(&mut bytes).unwrap();
        let mut reader = Reader::new(&bytes[..]);
        let mut names = Vec::new();
        while let Some(entry) = reader.next_entry().unwrap() {
            names.push(String::from_utf8(entry.name).unwrap());
        }
        for (index, name) in names.iter().enumerate() {
            if let Some((parent, _)) = name.rsplit_once('/') {
                assert!(
                    names[..index].iter().any(|earlier| earlier == parent),
                    "{name}"
                );
            }
        }
        assert!(names.contains(&"usr/sbin/x/y".to_owned()));
    }

    #[test]
    fn the_order_of_putting_does_not_change_the_bytes() {
        let parts = [("a", 1), ("etc/b", 2), ("usr/c/d", 3)];
        let write = |order: &[usize]| {
            let mut tree = Tree::new();
            for index in order {
                let (path, content) = parts[*index];
                tree.put(path, Node::Text(vec![content], 0o644)).unwrap();
            }
            let mut bytes = Vec::new();
            tree.write(&mut bytes).unwrap();
            bytes
        };
        assert_eq!(write(&[0, 1, 2]), write(&[2, 0, 1]));
    }

    #[test]
    fn a_path_that_climbs_or_is_taken_is_refused() {
        let mut tree = Tree::new();
        for path in ["", "/", "../x", "a/../b", "a//b", "a/.", "nul\0"] {
            assert!(tree.put(path, Node::Directory).is_err(), "{path:?}");
        }
        let text = Node::Text(Vec::new(), 0o644);
        tree.put("init", text.clone()).unwrap();
        tree.put("init", text.clone()).unwrap();
        assert!(tree.put("init", Node::Directory).is_err());
        assert!(tree.put("init/below", text).is_err());
    }
}
