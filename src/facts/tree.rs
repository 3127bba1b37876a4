//! The files a machine shows itself in (`/proc`, `/sys`, `/etc`), read below a root that tests choose.
//! Each read has a bound, and nothing is trusted to be text, to be short or to be there.
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::sys::fs::entries;
use crate::sys::log::{cut, is_unseen};

/// The longest text taken from a machine, in bytes; docs/protocol.md refuses longer ones.
pub const TEXT: usize = 256;

/// The files below a root.
pub struct Tree {
    root: PathBuf,
}

impl Tree {
    pub fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    /// Where `path` is.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// The first `max` bytes of a regular file.
    ///
    /// # Errors
    /// It is missing, no regular file, or cannot be read; the error does not name it.
    pub fn bytes(&self, path: &str, max: usize) -> io::Result<Vec<u8>> {
        let file = OpenOptions::new()
            .read(true)
            // What stands in a file's place must not hang the open.
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(self.path(path))?;
        if !file.metadata()?.is_file() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut bytes = Vec::new();
        let limit = u64::try_from(max).unwrap_or(u64::MAX);
        file.take(limit).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// The first line of a small file as clean text; empty when there is none to be had.
    pub fn text(&self, path: &str) -> String {
        self.bytes(path, TEXT)
            .map(|bytes| clean(&bytes))
            .unwrap_or_default()
    }

    /// The number that a small file holds.
    pub fn number(&self, path: &str) -> Option<u64> {
        self.text(path).parse().ok()
    }

    /// Where the symlink at `path` leads, as it is written.
    pub fn link(&self, path: &str) -> Option<String> {
        let target = std::fs::read_link(self.path(path)).ok()?;
        Some(target.to_string_lossy().into_owned())
    }

    /// The last component of where the symlink at `path` leads: a driver, a subsystem.
    pub fn link_name(&self, path: &str) -> Option<String> {
        let target = self.link(path)?;
        target.rsplit('/').next().map(|name| clean(name.as_bytes()))
    }

    /// The names in a directory, sorted; at most `max` of them. One that is no clean text is passed over.
    ///
    /// # Errors
    /// It is missing or cannot be read.
    pub fn names(&self, path: &str, max: usize) -> io::Result<Vec<String>> {
        let mut names: Vec<String> = entries(&self.path(path))?
            .take(max)
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| clean(name.as_bytes()) == *name)
            .collect();
        names.sort_unstable();
        Ok(names)
    }

    pub fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }
}

/// The first line of `bytes`: without [unseen](is_unseen) characters in it or blanks around it, at most
/// [`TEXT`] bytes; what is no UTF-8 is replaced.
pub fn clean(bytes: &[u8]) -> String {
    let line = bytes
        .split(|byte| matches!(byte, b'\n' | 0))
        .next()
        .unwrap_or_default();
    let line = String::from_utf8_lossy(line.get(..TEXT).unwrap_or(line));
    let text: String = line.chars().filter(|c| !is_unseen(*c)).collect();
    // What was no text has grown in becoming some.
    cut(&text, TEXT).trim().to_owned()
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A tree of files in a directory of its own, removed at the end.
    pub struct Fixture {
        pub tree: Tree,
        directory: PathBuf,
    }

    impl Fixture {
        /// Symlinks are written "path -> target".
        pub fn new(files: &[(&str, &[u8])]) -> Self {
            let directory = crate::sys::fs::tests::scratch("tree");
            let fixture = Self {
                tree: Tree::new(&directory),
                directory,
            };
            for (path, bytes) in files {
                fixture.put(path, bytes);
            }
            fixture
        }

        pub fn put(&self, path: &str, bytes: &[u8]) {
            let (path, target) = match path.split_once(" -> ") {
                Some((path, target)) => (path, Some(target)),
                None => (path, None),
            };
            let path = self.directory.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            match target {
                Some(target) => std::os::unix::fs::symlink(target, path).unwrap(),
                None => std::fs::write(path, bytes).unwrap(),
            }
        }
    }

    #[test]
    fn text_is_one_clean_line_within_its_bound() {
        for (bytes, text) in [
            (&b"  Super\x07micro \nsecond"[..], "Supermicro"),
            (b"4711\0more", "4711"),
            (b"\x1b[31mred", "[31mred"),
            (b"", ""),
            (b"\n", ""),
            (b" \x01 ", ""),
            (b"\x7f EPYC \x01", "EPYC"),
            ("SN\u{202e}42\u{2028}\u{feff}".as_bytes(), "SN42"),
        ] {
            assert_eq!(clean(bytes), text);
        }
        assert_eq!(clean(&[b'x'; 10_000]).len(), 256);
        assert_eq!(clean(&[0xff; 256]).len(), 255);
    }

    #[test]
    fn what_is_no_file_is_not_read_and_hangs_nobody() {
        let fixture = Fixture::new(&[("a/b", b"12\n"), ("l -> a/b", b"")]);
        let tree = &fixture.tree;
        assert_eq!(tree.number("l"), Some(12));
        assert_eq!(tree.link("l").as_deref(), Some("a/b"));
        assert_eq!(tree.link_name("l").as_deref(), Some("b"));
        assert_eq!(tree.bytes("a/b", 1).unwrap(), b"1");
        assert!(tree.bytes("a", 10).is_err());
        assert!(tree.bytes("none", 10).is_err());
        rustix::fs::mknodat(
            rustix::fs::CWD,
            tree.path("fifo"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        assert!(tree.bytes("fifo", 10).is_err());
        assert_eq!(tree.text("fifo"), "");
        assert_eq!(tree.names("", 10).unwrap(), ["a", "fifo", "l"]);
        assert_eq!(tree.names("", 2).unwrap().len(), 2);
        // No name can end a line, or hide.
        for name in ["b\n", "b\u{202e}", " b"] {
            fixture.put(&["c/", name].concat(), b"");
        }
        fixture.put("c/b c", b"");
        assert_eq!(tree.names("c", 10).unwrap(), ["b c"]);
    }
}
